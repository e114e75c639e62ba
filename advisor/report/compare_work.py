"""Whether two reports are of the same work: every reason against it, and a score.

Times of different work compare to nothing, so this comes before any difference. The anchor
operations (matrix products and convolutions with their operand shapes) are what fusion leaves
alone: eager and compiled runs of one model share at least 94 % of them in our recorded traces, runs
of different models at most 76 %.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

import msgspec

from advisor.errors import UsageError
from advisor.model.comparison import Comparability, IdentityCheck, Outcome
from advisor.model.report import UNKNOWN_GPU, KernelRow, Report
from advisor.report.words import INFERRED_MODE, NO_KERNELS, is_modelled

ANCHOR_ROLES = ("gemm", "conv")
# Roles that a graph replay still shows, when no operator and no shape is known.
COUNTED_ROLES = ("gemm", "conv", "communication")
# Matrix products that one attention kernel stands for, forward and at most backward.
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 4
Shapes = tuple[tuple[int, ...], ...]
Counts = dict[tuple[str, Shapes], float]
MIN_SIMILARITY = 0.8
MAX_SHAPE_TEXT = 4096
# The share of anchor kernels whose operator is known, below which shapes say nothing.
_ENOUGH_KNOWN = 0.9
CHECKS = (
    "target", "mode", "graph_hash", "shapes", "gpu", "device_present", "world_size", "rank",
    "steps", "work", "versions",
)  # fmt: skip


def comparability(before: Report, after: Report, accepted: Collection[str] = ()) -> Comparability:
    """All checks of two reports; `accepted` names required ones that may differ.

    Raises `UsageError` for a name that is no check.
    """
    unknown = sorted(set(accepted) - set(CHECKS))
    if unknown:
        raise UsageError(
            f"there is no check called {unknown[0]!r}", remedy=f"there are: {', '.join(CHECKS)}"
        )
    checks = tuple(_checks(before, after))
    against = [check for check in checks if check.required and check.outcome == "differ"]
    reasons = tuple(_reason(check) for check in against if check.name not in accepted)
    return Comparability(
        comparable=not reasons,
        score=score(checks),
        checks=checks,
        reasons=reasons,
        accepted=tuple(check.name for check in against if check.name in accepted),
    )


def score(checks: Iterable[IdentityCheck]) -> float:
    """Weight of what agrees, half for what is unknown, over all weight; 1.0 for the same work."""
    worth = {"agree": 1.0, "unknown": 0.5, "differ": 0.0}
    all_checks = list(checks)
    total = sum(check.weight for check in all_checks)
    return sum(check.weight * worth[check.outcome] for check in all_checks) / total


def unmade(found: Comparability) -> list[str]:
    """Required checks that nobody can make.

    The same operations tell what a graph and shapes would, and the same graph what operations
    would. Where no figure of either is per step, nothing rests on their number of steps.
    """
    outcomes = {check.name: check.outcome for check in found.checks}
    told = {"graph_hash", "shapes"} if outcomes.get("work") == "agree" else set()
    told |= {"work", "shapes"} if outcomes.get("graph_hash") == "agree" else set()
    return [
        check.name
        for check in found.checks
        if check.required
        and check.outcome == "unknown"
        and check.name not in told
        and not (check.name == "steps" and check.before is None and check.after is None)
    ]


def steps_of(report: Report) -> int | None:
    """Profiled steps behind the per-step figures; None where no metric is per step."""
    lengths = Counter(
        len(metric.per_step)
        for name, metric in report.metrics.items()
        if metric.per_step and (name.endswith(("_per_step", "_per_step_ns")))
    )
    return lengths.most_common(1)[0][0] if lengths else None


def _checks(before: Report, after: Report) -> Iterable[IdentityCheck]:
    a, b = before.workload, after.workload
    work = _work(before, after)
    # A graph inferred from a trace changes with the kernels: there the work decides.
    captured = INFERRED_MODE not in (a.mode, b.mode)
    graph = _same("graph_hash", a.graph_hash, b.graph_hash, required=captured, weight=3)
    # The same name proves nothing; another name is a reason only where nothing else is known.
    known = work.outcome == "agree" or graph.outcome == "agree"
    yield _same("target", a.target, b.target, required=not known, weight=1)
    yield _same("mode", a.mode, b.mode, required=False, weight=1)
    yield graph
    yield _same("shapes", " ".join(a.shapes) or None, " ".join(b.shapes) or None, weight=2)
    yield _same("gpu", _gpu(before), _gpu(after), weight=3)
    yield _same("device_present", _present(before), _present(after), weight=1)
    yield _same("world_size", str(a.world_size), str(b.world_size), weight=2)
    yield _same("rank", str(a.rank), str(b.rank), weight=1)
    steps = [None if n is None else str(n) for n in (steps_of(before), steps_of(after))]
    yield _same("steps", steps[0], steps[1], weight=1)
    yield work
    versions = (_versions(before), _versions(after))
    yield _same("versions", versions[0], versions[1], required=False, weight=1)


def _same(
    name: str, before: str | None, after: str | None, *, required: bool = True, weight: int
) -> IdentityCheck:
    outcome: Outcome = "agree" if before == after else "differ"
    if before is None or after is None:
        outcome = "unknown"
    return IdentityCheck(
        name=name, before=before, after=after, outcome=outcome, required=required, weight=weight
    )


def _gpu(report: Report) -> str | None:
    """The device; None where no recording names it: two that are unknown are not the same."""
    name = report.hardware.name if report.hardware.name != UNKNOWN_GPU else None
    return report.workload.gpu or report.hardware.key or name or None


def _present(report: Report) -> str | None:
    """Whether the GPU was there when it ran; where a trace is read says nothing of it."""
    if any(warning.code == NO_KERNELS for warning in report.warnings):
        return None
    return "no" if is_modelled(report) else "yes"


def _versions(report: Report) -> str | None:
    return ", ".join(f"{k} {v}" for k, v in sorted(report.workload.versions.items())) or None


def _reason(check: IdentityCheck) -> str:
    name = check.name.replace("_", " ")
    return f"{name}: {check.text or f'{check.before} before, {check.after} after'}"


def _work(before: Report, after: Report) -> IdentityCheck:
    """Whether the same anchor operations were executed as often, or, without shapes, the roles."""
    if not before.kernels or not after.kernels:
        return _work_check(None, "")
    if _well_known(before.kernels) and _well_known(after.kernels):
        first, second = _anchors(before.kernels), _anchors(after.kernels)
        fused = _attention(after.kernels) - _attention(before.kernels)
        found = similarity(*_written_out(first, second, fused))
        return _work_check(found, "matrix products and convolutions by operand shape")
    found = similarity(_roles(before.kernels), _roles(after.kernels))
    text = "products, convolutions, collectives counted; shapes are unknown"
    return _work_check(found, text, proves=False)


def _work_check(found: float | None, text: str, *, proves: bool = True) -> IdentityCheck:
    """Counts without shapes can only refute: very different models run as many products."""
    if found is None:
        return _same("work", None, None, weight=3)
    outcome: Outcome = "differ"
    if found >= MIN_SIMILARITY:
        outcome = "agree" if proves else "unknown"
    return IdentityCheck(
        name="work",
        before=None,
        after=None,
        outcome=outcome,
        required=True,
        weight=3,
        text=f"{100 * found:.0f} % in common ({text}; {100 * MIN_SIMILARITY:.0f} % are needed)",
    )


def similarity(before: Counts, after: Counts) -> float | None:
    """Shared executions over all: sum of minima over sum of maxima; None where both are empty."""
    keys = sorted(before.keys() | after.keys())
    pairs = [(before.get(key, 0.0), after.get(key, 0.0)) for key in keys]
    most = sum(map(max, pairs))
    return sum(map(min, pairs)) / most if most else None


def _well_known(kernels: Iterable[KernelRow]) -> bool:
    """Whether nearly every anchor kernel leads to an operator with shapes."""
    total = known = 0.0
    for kernel in kernels:
        if kernel.role in ANCHOR_ROLES:
            total += kernel.count
            known += sum(n for call, n in kernel.calls.items() if operand_shapes(call))
    return total > 0 and known >= _ENOUGH_KNOWN * total


def _anchors(kernels: Iterable[KernelRow]) -> Counts:
    found: Counts = defaultdict(float)
    for kernel in kernels:
        if kernel.role in ANCHOR_ROLES:
            for call, count in kernel.calls.items():
                found[kernel.role, operand_shapes(call)] += count
    return found


def _attention(kernels: Iterable[KernelRow]) -> float:
    return sum(kernel.count for kernel in kernels if kernel.role == "attention")


def _written_out(before: Counts, after: Counts, fused: float) -> tuple[Counts, Counts]:
    """Attention in one kernel on one side answers for batched products that only the other has.

    `fused` is how many attention kernels more the run after has (fewer, below zero). A forward
    kernel stands for two products, the kernels of a backward pass for up to four each.
    """
    few, many = (after, before) if fused > 0 else (before, after)
    left = BACKWARD_PRODUCTS * abs(fused)
    matched = dict(few)
    for key, count in sorted(many.items()):
        if len(key[1]) == 2 and len(key[1][0]) > 2 and key[0] == "gemm":
            taken = min(max(count - few.get(key, 0.0), 0.0), left)
            matched[key] = few.get(key, 0.0) + taken
            left -= taken
    return (before, matched) if fused > 0 else (matched, after)


def _roles(kernels: Iterable[KernelRow]) -> Counts:
    found: Counts = defaultdict(float)
    for kernel in kernels:
        role = kernel.role
        if role in COUNTED_ROLES:
            found[role, ()] += kernel.count
        elif role == "attention":
            found["gemm", ()] += FORWARD_PRODUCTS * kernel.count
    return found


def operand_shapes(call: str) -> Shapes:
    """The first two operands of a call that are no vector: `aten::mm [[8, 4], [4, 2]]` to both.

    A bias in front and an output behind are no part of the work.
    """
    _, _, text = call.partition(" [")
    if not text or len(text) > MAX_SHAPE_TEXT:
        return ()
    try:
        shapes = msgspec.json.decode(f"[{text}", type=list[object])
    except (msgspec.DecodeError, RecursionError):
        return ()
    matrices = [
        tuple(shape)
        for shape in shapes
        if isinstance(shape, list) and len(shape) > 1 and all(isinstance(n, int) for n in shape)
    ]
    return tuple(matrices[:2])
