"""What every form of a report says in the same words: ranking, verdict, price, members."""

from __future__ import annotations

from itertools import islice

from advisor.model.base import Location, Range
from advisor.model.findings import Alternative, Evidence, Finding, Member
from advisor.model.report import INCOMPLETE, Commit, Report
from advisor.report.text import is_upper_bound, range_text
from advisor.units import UNKNOWN, counted, format_fraction, format_ns

# The metric that a saving is a share of: the step with no profiler attached.
STEP_METRIC = "step_ns"
ORDER = "Recommended order, least effort first"
# The mode of a report that was made from a bare trace.
INFERRED_MODE = "trace"
MAX_MEMBERS = 8
# Warnings of what no rule could look at: who reads whom, or which kernel does what, is unknown.
BLIND = (
    "kernels-unknown", "shapes-missing", "no-graphs", "loss-not-captured", "modules-only",
    "regions-only", "inferred-opaque", "truncated", "no-kernels",
)  # fmt: skip
# Warnings of a trace without a kernel of a GPU, and of one whose steps nobody marked.
NO_KERNELS, NO_STEPS = "no-kernels", "steps-missing"
# What stands in a table where a count means nothing, as the sites of a step that waits.
NO_COUNT = "–"


def device_text(report: Report) -> str:
    """The GPU, and whether figures are modelled for it."""
    name = report.hardware.name
    return f"{name} (not present, modelled)" if is_modelled(report) else name


def is_modelled(report: Report) -> bool:
    """Whether nothing was measured on the GPU; a trace was, wherever it is read."""
    return not report.hardware.present and report.workload.mode != INFERRED_MODE


def commit_text(commit: Commit) -> str:
    """A commit by its hash, and whether it is all that ran."""
    return f"{commit.id} with changes" if commit.dirty else commit.id


def ranked(report: Report) -> tuple[Finding, ...]:
    """Findings by exposed saving, largest first; unpriced ones behind, notes last.

    The unpriced stand by the kernel time that goes, equals as the report recommends them.
    """
    places = {name: place for place, name in enumerate(report.recommended.order)}

    def key(finding: Finding) -> tuple[bool, int, int, int, str]:
        saving = finding.exposed_saving_ns
        price = 1 if saving is None else -saving.mid
        kernels = -(finding.kernel_saving_ns or 0) if saving is None else 0
        place = places.get(finding.id, len(places))
        return (finding.kind == "note", price, kernels, place, finding.id)

    return tuple(sorted(report.findings, key=key))


def named(report: Report) -> dict[str, Finding]:
    """Findings by their ids, and by the numbers that `show` prints."""
    numbered = {str(number): found for number, found in enumerate(ranked(report), 1)}
    return {found.id: found for found in report.findings} | numbered


def first_to_fuse(report: Report) -> Finding | None:
    """The recommended finding that saves most, else the opportunity whose saving is certain.

    The recommended order is one of effort: flags before graphs before kernels.
    """
    recommended = set(report.recommended.order)
    if recommended:
        return next(finding for finding in ranked(report) if finding.id in recommended)
    for finding in ranked(report):
        saving = finding.exposed_saving_ns
        if finding.kind == "opportunity" and saving is not None and saving.low > 0:
            return finding
    return None


def verdicts(report: Report) -> tuple[tuple[str, Finding], ...]:
    """What to do first and, where that is about no kernels (a late host), what to fuse first."""
    first = first_to_fuse(report)
    if first is None:
        return ()
    if about_ops(first):
        return (("Fuse first", first),)
    recommended = report.recommended.order
    others = (f for f in ranked(report) if about_ops(f) and f.id in recommended)
    return (("Do first", first), *(("Fuse first", f) for f in islice(others, 1)))


def about_ops(finding: Finding) -> bool:
    """Whether it names ops or kernels; without a GPU a finding has ops but no kernels."""
    return bool(finding.members) or any(item.kind == "dataflow" for item in finding.evidence)


def nothing_found(report: Report) -> str:
    """That there is no opportunity, and what else may be the cause than that there is none."""
    codes = {warning.code for warning in report.warnings}
    if INCOMPLETE in codes:
        return "Nothing to fuse was found before the profile ended; it did not finish."
    if NO_KERNELS in codes:
        return "Nothing was judged: no kernel of a GPU is in this trace."
    lost = [finding.title for finding in ranked(report) if finding.kind == "regression"]
    more = f" (and {counted(len(lost) - 1, 'other')})" if len(lost) > 1 else ""
    told = f" What lost: {lost[0]}{more}." if lost else ""
    if codes & set(BLIND):
        seen = "Nothing to fuse was found in the part that can be judged; see the warnings."
        return seen + told
    return "Nothing to fuse was found." + told


def cannot_judge(finding: Finding) -> str:
    """Why a finding has no price; empty where none was given."""
    return next((e.text for e in finding.evidence if e.kind == "cannot_judge"), "")


def worth(report: Report, finding: Finding) -> str:
    """What a finding saves, or why that is unknown."""
    saving = finding.exposed_saving_ns
    if saving is None:
        reason = cannot_judge(finding)
        return f"{UNKNOWN}; {reason}" if reason else UNKNOWN
    return share(report, saving)


def kernels_text(finding: Finding) -> str:
    """The kernel time that goes, for a finding whose saving per step is unknown; else empty."""
    if finding.exposed_saving_ns is not None or not finding.kernel_saving_ns:
        return ""
    return f"{format_ns(finding.kernel_saving_ns)} of kernel time"


def priced(finding: Finding) -> str:
    """The title and what is known of the saving, on one line."""
    kernels = kernels_text(finding)
    told = range_text(finding.exposed_saving_ns) + (f" ({kernels})" if kernels else "")
    return f"{finding.title}: {told}"


def share(report: Report, saving: Range) -> str:
    """`310 µs (250 µs … 380 µs) of a 10.4 ms step, 3.0 %`, as far as the step is known.

    Of a saving that is only an upper bound, the share is that of the bound.
    """
    metric = report.metrics.get(STEP_METRIC)
    step = None if metric is None else metric.value
    if not step:
        return f"{range_text(saving)} {when(report)}"
    figure = saving.high if is_upper_bound(saving) else saving.mid
    return f"{range_text(saving)} of a {format_ns(step)} step, {format_fraction(figure / step)}"


def when(report: Report) -> str:
    """What figures are of: a step, or all of a recording in which no step is marked."""
    whole = any(warning.code == NO_STEPS for warning in report.warnings)
    return "in the whole recording" if whole else "per step"


def members_text(members: tuple[Member, ...]) -> str:
    """`mul ×6 1.5 µs, mean ×2 and 3 more`."""
    shown = [
        f"{member.name} ×{member.count}"
        + ("" if member.time_ns is None else f" {format_ns(member.time_ns)}")
        for member in members[:MAX_MEMBERS]
    ]
    left = len(members) - MAX_MEMBERS
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")


def sites_of(finding: Finding) -> int | None:
    """How many places a finding speaks of; None where it is about no places (a late host)."""
    return _told_sites(finding) or len(finding.locations) or None


def _told_sites(finding: Finding) -> int | None:
    counted = (e.values.get("sites") for e in finding.evidence)
    return next((count for count in counted if isinstance(count, int)), None)


def sites_text(report: Report, finding: Finding) -> str:
    """The sites that its title counts, else its plan's; a dash where there are none to count.

    A finding may need several plans: its first plan's sites are not all.
    """
    planned = next((plan.sites for plan in report.plans if plan.id == finding.plan_id), None)
    count = _told_sites(finding) or planned or len(finding.locations)
    return f"{count:,}" if count else NO_COUNT


def evidence_text(evidence: Evidence) -> str:
    """The kind of evidence, then the evidence."""
    return f"{evidence.kind.replace('_', ' ')}: {evidence.text}"


def place_text(places: tuple[Location, ...]) -> str:
    """The first known place, module and line, and how many more; empty without any."""
    places = tuple(place for place in places if place.module or place.file)
    if not places:
        return ""
    place = places[0]
    where = f"{place.file}:{place.line}" if place.file and place.line else place.file
    # A module in a sequence is called "1": nobody knows what that is.
    module = place.module if where or not place.module else f"module {place.module}"
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{' · '.join(filter(None, (module, where)))}{more}"


def way_price(way: Alternative) -> str:
    """What a way saves: kernel time, as rules price ways, but of graphs, which spare the host."""
    if way.saving_ns is None:
        return "not priced"
    return range_text(way.saving_ns) + " of kernel time" * (way.route != "cuda_graph")
