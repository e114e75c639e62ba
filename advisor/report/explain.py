"""One finding in full: what runs now, what would run, at which lines, for which bytes, or else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from advisor.model.base import Location
from advisor.model.findings import Alternative, Evidence, Finding
from advisor.model.gemm import PRODUCT, arithmetic_of, operands, product_flops, product_text
from advisor.model.plan import FusionPlan, PlanInput, PlanOutput, Site
from advisor.model.report import Hardware, Report
from advisor.model.scan import sizes_text
from advisor.model.site_work import computed, equation, site_arithmetic, site_bytes
from advisor.report.text import headline, plain, spread, table
from advisor.report.words import cannot_judge, evidence_text, way_price, when
from advisor.units import NS_PER_S, counted, format_bytes, format_fraction, format_ns

INDENT = (0, 0, 0, 3)
MAX_SITES = 20
# The line of a source file, None where it cannot be read.
SourceLine = Callable[[Location], str | None]
_KINDS_BEFORE = ("dataflow", "time", "traffic", "host", "resources")


def render_explanation(
    report: Report, finding: Finding, plans: Sequence[FusionPlan], source: SourceLine
) -> RenderableType:
    """Everything that is known of a finding; `plans` are those of its ways, the main one first."""
    parts: list[RenderableType] = [plain(finding.title, "bold"), _worth(report, finding)]
    parts += _section("Today", [*_members(finding), *_evidence(finding, _KINDS_BEFORE)])
    for plan in plans:
        parts += _section(f"Fused: {plan.title} {plan.id}", _plan(report, plan))
    parts += _section("Where", _places(finding, plans, source))
    parts += _section("What stays out, and why", _evidence(finding, ("legality", "cannot_judge")))
    parts += _section("Ways", [_alternative(item) for item in finding.alternatives])
    parts += _section("Do", [plain(finding.action)])
    return Group(*parts)


def _section(title: str, lines: Sequence[RenderableType]) -> list[RenderableType]:
    if not lines:
        return []
    return [Text(), plain(title, "bold"), *(Padding(line, INDENT) for line in lines)]


def _worth(report: Report, finding: Finding) -> Text:
    saving = finding.exposed_saving_ns
    if saving is None:
        why = cannot_judge(finding)
        return plain(f"worth: unknown; {why}" if why else "worth: unknown")
    return plain(f"worth: {headline(saving)} {when(report)} ({spread(saving)})")


def _members(finding: Finding) -> list[RenderableType]:
    if not finding.members:
        return []
    rows = table((("Kernel or op", False), ("A step", True), ("Time", True)))
    for member in finding.members:
        rows.add_row(plain(member.name), f"{member.count:,}", format_ns(member.time_ns))
    return [rows]


def _evidence(finding: Finding, kinds: Sequence[str]) -> list[RenderableType]:
    found: list[Evidence] = [item for item in finding.evidence if item.kind in kinds]
    return [plain(evidence_text(item)) for item in found]


def _plan(report: Report, plan: FusionPlan) -> list[RenderableType]:
    """The program line by line, then its traffic and its place under the roofline."""
    lines: list[RenderableType] = [
        plain(f"{item.name}: {item.dtype} {_of_input(plan, item)}{computed(item)}", "dim")
        for item in plan.inputs
    ]
    if plan.product is not None:
        bits = ", its operands in TF32" if plan.product.tf32 else ""
        lines.append(plain(f"{PRODUCT} = {' @ '.join(operands(plan))}, in float32{bits}"))
    lines += [
        plain(f"{state.name}: {state.value} of the step before, at first {state.initial}", "dim")
        for state in plan.states
    ]
    lines += [plain(f"{op.name} = {equation(op)}") for op in plan.ops]
    lines += [
        plain(f"writes {output.value}: {output.dtype} {_written(plan, output)}", "dim")
        for output in plan.outputs
    ]
    return lines + _roofline(report, plan)


def _of_input(plan: FusionPlan, item: PlanInput) -> str:
    """Along what an input of any plan varies."""
    if item.name in operands(plan):
        return "of the product"
    if plan.states:
        return _of_step(item)
    spans = item.spans
    return _spans(item, (*spans[:-2], spans[-1]) if plan.product is not None else spans)


def _spans(item: PlanInput, spans: tuple[bool, ...]) -> str:
    if item.segments:
        return "for every part of a row"
    *rows, column = spans
    if all(spans):
        return "for every element"
    if not any(spans):
        return "one value"
    if not any(rows):
        return "for every column"
    if all(rows):
        return "for every row"
    # A mask that all heads share, for one: it is repeated along the other axes.
    part = f"{sum(rows)} of {len(rows)} row axes"
    return f"for every column and {part}" if column else f"for {part}"


def _of_step(item: PlanInput) -> str:
    """Along what an input of a scan varies."""
    *lanes, step, column = item.spans
    names = (("lane", any(lanes)), ("step", step), ("column", column))
    found = [name for name, spans in names if spans]
    return f"for every {', '.join(found)}" if found else "one value"


def _written(plan: FusionPlan, output: PlanOutput) -> str:
    if not plan.states:
        return f"for every {_of(output.space)}"
    column = " and column" if output.space == "tile" else ""
    when = "of the last step" if output.last else "of every step"
    return f"{when}, for every lane{column}"


def _of(space: str) -> str:
    return {"row": "row", "column": "column"}.get(space, "element")


def _roofline(report: Report, plan: FusionPlan) -> list[RenderableType]:
    """Bytes and arithmetic of all sites, and the least time that each of them takes."""
    moved = sum(site_bytes(plan, site) * site.executions for site in plan.sites)
    work = sum(site_arithmetic(plan, site)[0] * site.executions for site in plan.sites)
    if not moved:
        return []
    lines = [
        f"{format_bytes(round(moved))} and {work / 1e9:,.3g} GFLOP a step at "
        f"{counted(len(plan.sites), 'site')}: {work / moved:.2f} FLOP a byte"
    ]
    lines += _bounds(report.hardware, plan, moved)
    if plan.prediction is not None:
        before, after = plan.prediction.bytes_before, plan.prediction.bytes_after
        share = 1 - after / before if before else None
        lines.append(
            f"traffic {format_bytes(before)} op by op, {format_bytes(after)} fused: "
            f"{format_fraction(share)} goes"
        )
    return [plain(line) for line in lines]


def _bounds(hardware: Hardware, plan: FusionPlan, moved: float) -> list[str]:
    """The least time of the bytes `moved` and, of a product, of its arithmetic: the roofline."""
    lines = []
    bandwidth = hardware.dram_bandwidth_bytes_per_s
    if bandwidth:
        least = format_ns(round(moved * NS_PER_S / bandwidth))
        fits = max(site_bytes(plan, site) for site in plan.sites) <= (hardware.l2_bytes or 0)
        lines.append(
            f"memory: {least} at least, at {bandwidth / 1e12:.2f} TB/s "
            f"({hardware.dram_bandwidth_provenance})"
            f"{'; less where L2 still holds what is read' if fits else ''}"
        )
    kind = arithmetic_of(plan) if plan.product is not None else None
    peak = hardware.peak_flops.get(kind) if kind else None
    if peak:
        work = sum(product_flops(site) * site.executions for site in plan.sites)
        lines.append(
            f"arithmetic: {format_ns(round(work * NS_PER_S / peak))} at least, at "
            f"{peak / 1e12:,.0f} TFLOP/s of {kind} (data sheet)"
        )
    return lines


def _size(plan: FusionPlan, site: Site) -> str:
    if site.members:
        return f"{len(site.members)} members, {site.columns:,} elements"
    if site.input_offsets:
        return sizes_text(site)
    if plan.product is not None:
        return product_text(site)
    return f"{counted(site.rows, 'row')} × {counted(site.columns, 'column')}"


def _places(
    finding: Finding, plans: Sequence[FusionPlan], source: SourceLine
) -> list[RenderableType]:
    """Every place, with its sizes where a plan knows them and its line where it can be read."""
    places = [(site.location, _size(plan, site)) for plan, site in _sites(finding, plans)]
    planned = {location for location, _ in places}
    places += [(location, "") for location in finding.locations if location not in planned]
    lines: list[RenderableType] = []
    for place, size in places[:MAX_SITES]:
        line = _line(place)
        # A module in a sequence is called "1": nobody knows what that is.
        module = place.module if line or not place.module else f"module {place.module}"
        where = " · ".join(part for part in (module, line, size) if part)
        lines.append(plain(where or "a place without a name"))
        text = source(place)
        if text:
            lines.append(plain(f"   {text}", "dim"))
    if len(places) > MAX_SITES:
        lines.append(plain(f"and {len(places) - MAX_SITES} more"))
    return lines


def _sites(finding: Finding, plans: Sequence[FusionPlan]) -> Iterator[tuple[FusionPlan, Site]]:
    """The sites of the main plan, then those that only the other plans of its way replace."""
    way = next((w.plan_ids for w in finding.alternatives if finding.plan_id in w.plan_ids), ())
    replaced: set[tuple[str, str]] = set()
    for plan in (*plans[:1], *(plan for plan in plans[1:] if plan.id in way)):
        for site in plan.sites:
            nodes = {(site.graph, node) for node in site.nodes}
            if not nodes & replaced:
                yield plan, site
            replaced |= nodes


def _line(place: Location) -> str:
    if not place.file:
        return ""
    return place.file if place.line is None else f"{place.file}:{place.line}"


def _alternative(item: Alternative) -> RenderableType:
    return plain(f"{item.route.replace('_', ' ')}, {way_price(item)}: {item.text}")
