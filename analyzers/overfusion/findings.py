"""Verdicts as findings of a report: what lost, by how much, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.findings import Evidence, Finding, finding_id
from advisor.model.overfusion import Bisection, Cause, FusionVerdict
from advisor.model.remedies import command_of
from advisor.units import counted, format_ns

RULE_ID = "over-fusion"
WORDS: dict[Cause, str] = {
    "register_spill": "registers spill",
    "occupancy_registers": "registers leave room for few warps",
    "occupancy_shared_memory": "shared memory leaves room for few blocks",
    "too_few_programs": "too few programs to fill the GPU",
    "recompute": "values are computed again and again",
    "reread_inputs": "inputs are read several times",
    "uncoalesced_access": "memory is walked against its order",
    "gemm_epilogue": "the product lost more than its epilogue saves",
    "serialised_streams": "work that ran side by side runs in turn",
    "unequal_horizontal": "unequal tensors share one launch equally",
    "lost_overlap": "transfers are hidden no more",
    "lost_vectorisation": "narrow loads and stores",
    "no_tensor_core": "products left the tensor cores",
    "atomics_contention": "atomic additions to few places",
    "widened_traffic": "wider types move more bytes",
    "stale_config": "tiles tuned for other sizes",
}
# What to do, in words; what is tried, and in which order: `advisor.model.remedies`.
ADVICE: dict[Cause, str] = {
    "register_spill": (
        "launch it with more warps or smaller tiles so that its values fit into registers; lift a "
        "bound on registers if there is one; else cut it in two"
    ),
    "occupancy_registers": (
        "give a thread less to hold: smaller tiles, more warps, or cut it where it waits"
    ),
    "occupancy_shared_memory": "fewer stages or a smaller tile, so that more blocks reside",
    "too_few_programs": "split the reduction over more programs, or keep the kernels apart",
    "recompute": "store the value that is computed again, and read it: a kernel of its own",
    "reread_inputs": "keep the row in registers, or compute what needs all of it in a first kernel",
    "uncoalesced_access": "walk in two-dimensional tiles, or transpose in a kernel of its own",
    "gemm_epilogue": "leave the product to the library, and fuse what follows it by itself",
    "serialised_streams": "give independent work a stream of its own again",
    "unequal_horizontal": "deal programs by size, or keep the large tensor apart",
    "lost_overlap": "smaller buckets, begun as soon as their data is there",
    "lost_vectorisation": "align the views to 16 bytes and give each thread several elements",
    "no_tensor_core": "TF32 or 16-bit factors for the product, or the library's product",
    "atomics_contention": "partial sums per program and a second kernel, or more rows a program",
    "widened_traffic": "store results in the type that their readers need",
    "stale_config": "tune the tile for these sizes",
}
UNTOLD = "measure it apart: none of what is known of it explains the loss"
ORDER: tuple[Cause, ...] = ("serialised_streams", "lost_overlap")


def finding_of(verdict: FusionVerdict) -> Finding:
    """The regression that a verdict is."""
    cause = verdict.cause
    why = "cannot tell the cause" if cause is None else WORDS[cause]
    lost = verdict.lost_ns or 0
    name = _short(verdict.kernel)
    ratio = verdict.fused_ns.mid / max(1, verdict.members_ns.mid if verdict.members_ns else 1)
    subject = "The step's work" if cause in ORDER else name
    same = {member.name for member in verdict.fused} == {m.name for m in verdict.members}
    other = "the same kernel otherwise" if same else "what it replaced"
    if cause in ORDER:
        other = "before"
    against = "measured" if verdict.tier == "pair" else "modelled"
    evidence = [
        Evidence(
            kind="time",
            text=f"{format_ns(verdict.fused_ns.mid)} a step: {verdict.reason}",
            values={
                "fused_ns": verdict.fused_ns.mid,
                "members_ns": verdict.members_ns.mid if verdict.members_ns else None,
                "kernel_saving_ns": max(lost, 0),
                "tier": verdict.tier,
                "cause": cause,
            },
        ),
        *(candidate.evidence for candidate in verdict.candidates),
    ]
    if cause is None:
        evidence.append(Evidence(kind="cannot_judge", text=f"cause: {UNTOLD}"))
    if verdict.config:
        evidence.append(Evidence(kind="resources", text=f"launched with {verdict.config}"))
    return Finding(
        id=finding_id(RULE_ID, f"{verdict.kernel} {verdict.config} {cause} {verdict.tier}"),
        rule=RULE_ID,
        kind="regression",
        title=f"{subject} takes {ratio:.2f} times as long as {other} ({against}): {why}",
        exposed_saving_ns=None,
        evidence=tuple(evidence),
        members=(*verdict.fused, *verdict.members),
        provenance="inferred",
        action=verdict.cure or (UNTOLD if cause is None else _remedy(verdict.kernel, cause)),
    )


def _remedy(kernel: str, cause: Cause) -> str:
    """What to do, and the command that does it where there is one."""
    command = command_of(kernel, cause)
    return f"{ADVICE[cause]}: `{command}`" if command else ADVICE[cause]


def note_of(verdict: FusionVerdict) -> Finding:
    """Overlap that went without costing time: the figures, and nothing to do."""
    return Finding(
        id=finding_id(RULE_ID, f"note {verdict.candidates[0].cause}"),
        rule=RULE_ID,
        kind="note",
        title="Less work runs side by side than before; the step takes no longer for it",
        exposed_saving_ns=None,
        evidence=(verdict.candidates[0].evidence, Evidence(kind="time", text=verdict.reason)),
        provenance="inferred",
        action="nothing: it costs no time here; look again on a slower link",
    )


def findings_of(verdicts: Sequence[FusionVerdict]) -> tuple[Finding, ...]:
    """Findings of verdicts, regressions first; ids are unique."""
    lost = [finding_of(v) for v in verdicts if v.outcome == "regression"]
    notes = [
        note_of(v)
        for v in verdicts
        if v.outcome == "benign" and v.candidates and v.candidates[0].cause in ORDER
    ]
    return tuple({finding.id: finding for finding in (*lost, *notes)}.values())


def headline(bisection: Bisection) -> str:
    """The change of the step in one line."""
    change = bisection.after_ns - bisection.before_ns
    longer = "longer" if change > 0 else "shorter"
    shares = counted(len(bisection.shares), "share")
    return f"the step is {format_ns(abs(change))} {longer} on the device; {shares}"


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."
