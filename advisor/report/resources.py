"""What kernels need, as tables: configurations by GPU, and a fusion op by op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.model.applied import KernelResources
from advisor.model.resources import (
    Cliff,
    CliffPoint,
    Fit,
    LaunchCure,
    ResourceTable,
    SizedKernel,
)
from advisor.report.text import heading, plain, table
from advisor.units import UNKNOWN, counted, format_bytes, format_fraction, format_value

FIT_STYLE: dict[Fit, str] = {"use": "green", "avoid": "red", "unknown": "yellow"}
LONGEST_UNBROKEN = 28
SHARED = ("Shared", True)
NO_LAUNCH = "it holds too much at once however it is launched: a part at a time, in a loop, is less"
HELD = (("Registers", True), ("Spilled", True), ("Occupancy", True), ("Limit", True))


def render_resources(found: ResourceTable) -> RenderableType:
    """A section for each plan or kernel, a table for each GPU in it, and what to launch first."""
    parts: list[RenderableType] = []
    for (plan_id, title, kernel), sized in groupby(found.kernels, key=_subject):
        rows = list(sized)
        name = f"{title}  {plan_id}" if plan_id else kernel
        parts.append(heading(name))
        for gpu in dict.fromkeys(row.resources.gpu for row in rows):
            parts += _of_gpu(gpu, [row for row in rows if row.resources.gpu == gpu])
    parts += [plain(cure_text(one), "green" if one.after else "yellow") for one in found.cures]
    parts += [Text(), *_assemblers(row.resources for row in found.kernels)]
    return Group(*parts)


def cure_text(cure: LaunchCure) -> str:
    """What another launch of a kernel needs, in a line."""
    name = f"{cure.kernel} on {cure.gpu}, {cure.before.config}"
    if cure.after is None:
        tried = counted(cure.tried, "other launch", "other launches")
        return f"{name}: no cure among {tried}; {NO_LAUNCH}"
    after = cure.after
    spilled = (after.spill_store_bytes or 0) + (after.spill_load_bytes or 0)
    held = "" if after.occupancy is None else f", occupancy {format_fraction(after.occupancy)}"
    return (
        f"{name}: cure: {cure.change}: {format_bytes(spilled)} spilled, "
        f"{format_value(after.registers, 'count')} registers{held}"
    )


def _subject(kernel: SizedKernel) -> tuple[str | None, str, str]:
    return kernel.plan_id, kernel.title, "" if kernel.plan_id else kernel.kernel


def _of_gpu(gpu: str, rows: Sequence[SizedKernel]) -> list[RenderableType]:
    errors = {row.why for row in rows if row.verdict == "unknown"}
    if len(errors) == 1 and all(row.verdict == "unknown" for row in rows):
        return [plain(f"{gpu}: {errors.pop()}", "yellow")]
    shown = table((("Configuration", False), SHARED, *HELD, ("Verdict", False)))
    reasons: list[RenderableType] = []
    several = Counter(row.resources.config for row in rows)
    for row in rows:
        many = several[row.resources.config] > 1
        part = f", {row.kernel.rsplit('_', 1)[-1]}" if many else ""
        verdict = Text(row.verdict, style=FIT_STYLE[row.verdict])
        verdict.append(" first" if row.first else "", style="bold")
        label, shared = f"{row.resources.config}{part}", format_bytes(row.resources.shared_bytes)
        shown.add_row(plain(label), shared, *held(row.resources), verdict)
        if row.verdict != "use":
            reasons.append(plain(f"{label}: {row.why}", "dim"))
    shown.columns[0].no_wrap = all(len(row.resources.config) <= LONGEST_UNBROKEN for row in rows)
    for column in shown.columns[1:]:
        column.no_wrap = True
    return [plain(gpu, "bold"), shown, *reasons]


def held(row: KernelResources) -> tuple[Text, ...]:
    """Registers, spills, occupancy and what bounds it, as cells."""
    if row.error is not None:
        return tuple(Text(UNKNOWN, style="dim") for _ in HELD)
    stored, loaded = row.spill_store_bytes, row.spill_load_bytes
    known = stored is not None or loaded is not None
    spilled = (stored or 0) + (loaded or 0)
    return (
        Text(format_value(row.registers, "count")),
        Text(format_bytes(spilled) if known else UNKNOWN, style="red" if spilled else ""),
        Text(UNKNOWN if row.occupancy is None else f"{100 * row.occupancy:.0f} %"),
        Text((row.limiter or UNKNOWN).replace("_", " ")),
    )


def render_cliff(cliff: Cliff) -> RenderableType:
    """The ops one by one, and the one that is too many."""
    shown = table(
        (
            ("Ops", True),
            ("The last one", False),
            ("In, out", True),
            *HELD,
            ("Costs", False),
        )
    )
    for before, point in zip((None, *cliff.points), cliff.points, strict=False):
        fell = point.ops == cliff.falls_at
        style = "bold red" if fell else ""
        shown.add_row(
            Text(str(point.ops), style=style),
            plain(point.op, style),
            Text(f"{point.inputs}, {point.outputs}"),
            *held(point.resources),
            plain(_cost(point, before), FIT_STYLE[point.verdict] if point.verdict != "use" else ""),
        )
    shown.columns[1].no_wrap = True
    shown.columns[-1].min_width = len("occupancy,")
    return Group(
        heading(f"{cliff.title}  {cliff.plan_id}"),
        plain(f"{cliff.gpu}, all launched as {cliff.config}", "dim"),
        shown,
        Text(),
        plain(cliff_verdict(cliff), "bold red" if cliff.falls_at is not None else "green"),
        *_assemblers(point.resources for point in cliff.points),
    )


def _cost(point: CliffPoint, before: CliffPoint | None) -> str:
    """What got worse, in words; the figures stand beside it."""
    if not point.loss or before is None:
        return "" if point.verdict == "use" else point.verdict
    was, now = before.resources.occupancy, point.resources.occupancy
    words = ["occupancy"] if was is not None and now is not None and now < was else []
    more = (point.resources.spill_store_bytes or 0) > (before.resources.spill_store_bytes or 0)
    return ", ".join([*words, *(["spills"] if more else [])])


def cliff_verdict(cliff: Cliff) -> str:
    """What the whole table says, in a sentence."""
    at = next((point for point in cliff.points if point.ops == cliff.falls_at), None)
    if at is not None:
        return (
            f"Op {at.ops}, {at.op}, is one too many on {cliff.gpu}: {at.why}. A kernel of the ops"
            f" before it fits; so may all of them in another configuration.{_split_text(cliff)}"
        )
    unknown = [point for point in cliff.points if point.verdict == "unknown"]
    if unknown:
        return f"Not known for {counted(len(unknown), 'point')}: {unknown[0].why}."
    bad = next((point for point in cliff.points if point.verdict == "avoid"), None)
    if bad is not None:
        return f"Not even the first ops fit {cliff.gpu} in this configuration: {bad.why}."
    lowest, ops = min((point.resources.occupancy or 0.0, point.ops) for point in cliff.points)
    return (
        f"No cliff on {cliff.gpu}: no op is one too many; the lowest occupancy is "
        f"{format_fraction(lowest)}, first at op {ops}."
    )


def _split_text(cliff: Cliff) -> str:
    """Where to cut the kernel in two, and what the second one needs."""
    rest = cliff.rest
    if cliff.split_after is None or rest is None or rest.error is not None:
        return ""
    spilled = (rest.spill_store_bytes or 0) + (rest.spill_load_bytes or 0)
    held = "" if rest.occupancy is None else f", occupancy {format_fraction(rest.occupancy)}"
    return (
        f" Cut in two after op {cliff.split_after}, the kernel of the other ops needs "
        f"{format_value(rest.registers, 'count')} registers and spills {format_bytes(spilled)}"
        f"{held}."
    )


def _assemblers(
    rows: Iterator[KernelResources] | Sequence[KernelResources],
) -> list[RenderableType]:
    names = " and ".join(dict.fromkeys(row.assembler for row in rows if row.assembler))
    return [plain(f"compiled by {names}; no GPU is needed for it", "dim")] if names else []
