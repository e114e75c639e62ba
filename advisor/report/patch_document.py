"""The README of a patch: what is in it, what was measured on what, how to use it."""

from __future__ import annotations

from collections.abc import Mapping

from advisor.model.applied import ActionVerdict, Applied, PlanVerdict, SetVerdict
from advisor.report.document import (
    Block,
    Content,
    Document,
    Heading,
    Items,
    Listing,
    Paragraph,
    Words,
    code,
    table,
)
from advisor.report.text import counted, gain_text, speedup_text, timing_text
from advisor.report.verdict_words import WARM, serves_text, why_text
from advisor.units import UNKNOWN, format_value

NO_KERNEL = "No kernel is in it: what was kept are library calls, layouts and settings."
IN_PART = (
    "This is a part of what was kept. What is below was measured on the way to the whole, beside "
    "what was kept before it; this part alone was not measured."
)


def patch_document(
    target: str,
    made: str,
    applied: Applied,
    source: Mapping[str, str],
    *,
    whole: bool,
    changed: bool = False,
    package: str = "fusion_patch",
) -> Document:
    """The README of the patch `applied`, which names only what is in it.

    `made` says what wrote it. `source` says of each plan which source is changed, or why none;
    `whole` is False for a part of what was kept together; `changed` that there is a source diff;
    `package` is what it is imported as.
    """
    blocks: list[Block] = [Heading(f"Patch for {target}", 1), Paragraph(made)]
    if not whole:
        blocks.append(Paragraph(Words(IN_PART, "strong")))
    blocks += [Heading("Use"), Listing(_use(package)), *_needs(package)]
    blocks += [Heading("Measured"), Paragraph(_origin(applied)), *_measured(applied.set)]
    blocks += [Heading("What it does, in this order"), *_contents(applied)]
    if applied.plans:
        blocks += [Heading("Source"), *_source(applied, source, changed=changed)]
    return tuple(blocks)


USE = (
    ("fast = NAME.apply(model)", "inference: call it as you call the model"),
    ("step = NAME.apply(model, optimizer, loss)", "training: step() is one step"),
    ("model = step.revert()", "or fast.revert(): take it out again"),
)


def _use(package: str) -> str:
    lines = [(call.replace("NAME", package), comment) for call, comment in USE]
    width = max(len(call) for call, _ in lines)
    return "\n".join(
        (f"import {package}", "", *(f"{call:{width}}  # {comment}" for call, comment in lines))
    )


def _needs(package: str) -> list[Paragraph]:
    first: Content = (
        Words("The folder that holds "),
        code(package),
        Words(" must be where Python looks for modules, or name the folder: "),
        code(f'advisor.load("{package}").apply(model)'),
        Words(". Either needs fusion advisor ("),
        code("pip install -e '.[gpu]'"),
        Words(" in its checkout), which finds the places in compiled graphs; no run is needed."),
    )
    second = (
        "A kernel is put in wherever the graph computes exactly what it replaces, whatever the "
        "module is called; where it does not, the original ops stay. A warning after the first "
        "step names what found no place, and why. Kernels are generated again "
        "from the checked plans: the files in kernels/ are for reading, and check and time "
        "themselves."
    )
    return [Paragraph(first), Paragraph(second)]


_DIFF: tuple[Content, ...] = (
    (
        Words(
            "In place of all the above, modules whose whole forward is a kernel can call it from "
        ),
        Words("their own source: "),
        code("git apply fusion_patch/forwards.diff"),
        Words(", or "),
        code("patch -p1"),
        Words(", in the folder that the paths of the diff begin in. The model is then used as it "),
        Words("was, without "),
        code("apply"),
        Words(
            " and without fusion advisor; it gains these kernels alone, which were measured only "
        ),
        Words("together with the rest."),
    ),
    "Such a forward asks whether types, sizes, device and constants are those it was shown for, "
    "and runs as written where they are not, which a warning says once. That the kernel is that "
    "forward was shown by the captured graph, by the source, and by running both on random "
    "tensors.",
)


def _origin(applied: Applied) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(applied.versions.items()))
    return f"On {applied.device}, {applied.created}, with {versions}."


def _measured(facts: SetVerdict) -> list[Block]:
    pairs = (
        ("step, against eager", facts.against_eager),
        ("step, against the compiler", facts.against_compiled),
        ("GPU time of the step", facts.gpu_time),
    )
    rows = [
        (
            name,
            timing_text(pair.before),
            timing_text(pair.after),
            speedup_text(pair),
            gain_text(pair),
        )
        for name, pair in pairs
        if pair is not None
    ]
    figures = (
        ("peak memory", facts.peak_memory_before_bytes, facts.peak_memory_after_bytes, "bytes"),
        (f"compile time ({WARM})", facts.compile_before_ns, facts.compile_after_ns, "ns"),
    )
    rows += [
        (name, format_value(before, unit), format_value(after, unit), "", "")
        for name, before, after, unit in figures
        if before is not None and after is not None
    ]
    blocks: list[Block] = []
    if rows:
        titles = ("Measured", False), ("Before", True), ("After", True), ("Speed-up", True)
        blocks.append(table((*titles, ("Gain", False)), rows))
    if facts.outputs_agree is not None:
        agree = "agree with" if facts.outputs_agree else "differ from"
        blocks.append(Paragraph(f"Outputs {agree} eager's; {facts.reason}."))
    return blocks


def _contents(applied: Applied) -> list[Block]:
    """What is done, in the order in which it is done."""
    actions = {action.kind: action for action in applied.actions}
    plans = {plan.plan_id: plan for plan in applied.plans}
    rows = [_action(actions[kind]) for kind in applied.set.actions]
    rows += [_plan(plans[plan_id]) for plan_id in applied.set.plans]
    blocks: list[Block] = [Items(tuple(rows), numbered=True)]
    return blocks if plans else [*blocks, Paragraph(NO_KERNEL)]


def _action(action: ActionVerdict) -> Content:
    places = "" if action.sites is None else f" at {counted(action.sites, 'place')}"
    return (
        Words(action.title, "strong"),
        Words(f"{places}: {why_text(action)}. By hand: {action.by_hand}."),
    )


def _plan(plan: PlanVerdict) -> Content:
    swapped = UNKNOWN if plan.sites_swapped is None else str(plan.sites_swapped)
    return (
        Words(plan.title, "strong"),
        Words(f", {swapped} of {counted(plan.sites_expected, 'site')}: {plan.reason}. Kernel: "),
        code(f"kernels/{plan.plan_id}.py"),
        *([Words(f". Serves {served}")] if (served := serves_text(plan)) else []),
    )


def _source(applied: Applied, source: Mapping[str, str], *, changed: bool) -> list[Block]:
    rows = [f"{plan.title}: {source[plan.plan_id]}" for plan in applied.plans]
    blocks: list[Block] = [Items(tuple(rows))]
    return [*(Paragraph(text) for text in _DIFF), *blocks] if changed else blocks
