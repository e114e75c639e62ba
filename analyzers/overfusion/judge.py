"""Two runs of one workload judged: which fused kernels lost, and what the step's change is made of.

A regression is raised on time alone: the interval of fused over members, from the steps of both
runs, lies above `LOST`. Registers, spills and the like only explain it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from statistics import median

from advisor.hardware.gpus import find_gpu
from advisor.model.base import Range
from advisor.model.findings import Evidence, Member
from advisor.model.overfusion import (
    UNPAIRED,
    Bisection,
    Candidate,
    Cause,
    FusionVerdict,
    Share,
)
from advisor.model.shifts import interval_of_ratio
from advisor.model.step_record import Launch, StepRecord
from advisor.units import counted, format_bytes, format_ns
from analyzers.overfusion.causes import NAMED, explain
from analyzers.overfusion.group import Group
from analyzers.overfusion.pairing import Pairing, pair

# Two processes differ by some percent without any reason in the code.
LOST = 1.05
# A loss below this share of the step is left to the sums.
WORTH = 0.01
BESIDE = 0.1
# One time says nothing of noise: clocks, cold caches and first launches change it up to so much.
ONE_STEP = 2.0


@dataclass(frozen=True)
class Judgement:
    """`verdicts` of all fused kernels, losses first; `bisection` of the step."""

    verdicts: tuple[FusionVerdict, ...]
    bisection: Bisection

    @property
    def regressions(self) -> tuple[FusionVerdict, ...]:
        """What lost."""
        return tuple(v for v in self.verdicts if v.outcome == "regression")


def judge_pair(before: StepRecord, after: StepRecord) -> Judgement:
    """The judgement of `after` against `before`; both need at least one step."""
    before, after = before.coded(), after.coded()
    pairings = pair(before.launches, after.launches)
    order = _order(before, after, pairings)
    verdicts = [] if order is None else [order]
    beside = _beside(before) | _beside(after)
    causes: dict[int, str | None] = {}
    for group in _alike(pairings):
        # What runs beside other work takes longer by itself: its time is the overlap's.
        if any(id(x) in beside for one in group for x in (*one.before, *one.after)):
            continue
        verdict = _judge(group, after)
        if verdict is not None:
            verdicts.append(verdict)
            if verdict.outcome == "regression":
                causes.update(dict.fromkeys(map(id, group), verdict.cause))
    verdicts.sort(key=lambda v: (v.outcome != "regression", -(v.lost_ns or 0)))
    bisection = bisect(before, after, pairings, causes, order, beside)
    return Judgement(tuple(verdicts), bisection)


def _alike(pairings: Sequence[Pairing]) -> list[list[Pairing]]:
    """Pairings that do the same work at several places of the step, together."""
    found: dict[Hashable, list[Pairing]] = defaultdict(list)
    for one in pairings:
        sides = (one.before, one.after)
        work = tuple(tuple((x.name, x.operands) for x in side) for side in sides)
        found[one.certain, work].append(one)
    return list(found.values())


def _judge(group: Sequence[Pairing], after: StepRecord) -> FusionVerdict | None:
    """The verdict on one fusion at all its places; None where there is nothing to compare."""
    if not group[0].certain or group[0].is_communication:
        return None
    fused = tuple(x for one in group for x in one.after if x.is_kernel)
    members = tuple(x for one in group for x in one.before if x.is_kernel)
    if not fused or not members:
        return None
    times = _per_step(fused), _per_step(members)
    mine, theirs = spread_of(times[0]), spread_of(times[1])
    ratio = interval_of_ratio(times[1], times[0]) or _of_few(times[1], times[0])
    lost = mine.mid - theirs.mid
    is_lost = ratio[0] > LOST and lost > WORTH * after.busy_mid_ns
    candidates: tuple[Candidate, ...] = ()
    gpu = None if after.gpu is None else find_gpu(after.gpu)
    if is_lost and gpu is not None:
        first = group[0]
        loss = first.change_ns if first.change_ns > 0 else lost
        kernels = (
            tuple(x for x in first.after if x.is_kernel),
            tuple(x for x in first.before if x.is_kernel),
        )
        candidates = explain(Group(*kernels, loss, gpu))
    main = max(fused, key=lambda launch: launch.time_ns)
    return FusionVerdict(
        tier="pair",
        outcome="regression" if is_lost else "benign",
        kernel=main.name,
        fused=members_of(fused),
        members=members_of(members),
        fused_ns=mine,
        members_ns=theirs,
        cause=cause_of(candidates) if is_lost else None,
        candidates=candidates,
        reason=(
            f"{ratio[0]:.2f} to {ratio[1]:.2f} times the time of its members"
            f"{_given_otherwise(main, members)}"
        ),
        config=config_of(main),
        code=main.code,
    )


def _given_otherwise(launch: Launch, members: Sequence[Launch]) -> str:
    """Of the same kernel as before: how much more or less its call is given, as a mask."""
    same = next((m for m in members if m.name == launch.name), None)
    if same is None or not same.operands or not launch.operands:
        return ""
    now, before = (
        (counted(len(x.operands), "operand"), sum(t.size_bytes for t in x.operands))
        for x in (launch, same)
    )
    if now == before:
        return ""
    mine, theirs = (f"{count} of {format_bytes(size)}" for count, size in (now, before))
    return f"; given {mine}, {theirs} before"


def judge_times(kernel: str, fused_ns: Range, members_ns: Range) -> FusionVerdict:
    """A fusion switched on and off, of which only times are known: middles, and what they vary in.

    Raised if even the low end lies above the high end of the members by as much as processes
    differ; what the cause is, times do not tell.
    """
    ratio = fused_ns.low / max(1, members_ns.high)
    apart = fused_ns.mid / max(1, members_ns.mid)
    row = Member(name=kernel, count=1, time_ns=fused_ns.mid)
    return FusionVerdict(
        tier="pair",
        outcome="regression" if ratio > LOST else "benign",
        kernel=kernel,
        fused=(row,),
        fused_ns=fused_ns,
        members_ns=members_ns,
        reason=f"{apart:.2f} times the time without it, at least {ratio:.2f}",
    )


def cause_of(candidates: Sequence[Candidate]) -> Cause | None:
    """The cause, None where the best of all accounts for too little of the loss."""
    return candidates[0].cause if candidates and candidates[0].share >= NAMED else None


def members_of(launches: Sequence[Launch]) -> tuple[Member, ...]:
    """Launches by name, most time first."""
    found: dict[str, list[int]] = {}
    for launch in launches:
        held = found.setdefault(launch.name, [0, 0])
        held[0] += 1
        held[1] += launch.time_ns
    rows = [Member(name=n, count=c, time_ns=t) for n, (c, t) in found.items()]
    return tuple(sorted(rows, key=lambda row: -(row.time_ns or 0)))


def config_of(launch: Launch) -> str:
    """How a kernel was launched."""
    code = launch.code
    if code is not None and code.num_warps is not None:
        constants = [f"{k}={v}" for k, v in code.constants.items() if k.isupper()]
        return " ".join([*constants, f"num_warps={code.num_warps}"])
    return "" if launch.threads is None else f"threads={launch.threads}"


def _per_step(launches: Sequence[Launch]) -> list[int]:
    return [sum(step) for step in zip(*(x.times_ns for x in launches), strict=False)]


def spread_of(times: Sequence[int]) -> Range:
    """The median of the steps between their extremes, ns."""
    return Range(low=min(times), mid=round(median(times)), high=max(times))


def _extremes(before: Sequence[int], after: Sequence[int]) -> tuple[float, float]:
    """Too few steps for an interval: the ratio as small and as large as any two steps make it."""
    return min(after) / max(*before, 1), max(after) / max(1, min(before))


def _of_few(before: Sequence[int], after: Sequence[int]) -> tuple[float, float]:
    """The same for kernels, of whose times nothing but themselves says that they are not noise."""
    low, high = _extremes(before, after)
    noise = ONE_STEP if min(len(before), len(after)) < 2 else 1.0
    return low / noise, high * noise


# --- the order of work ----------------------------------------------------------------------------


def _overlap(step: StepRecord) -> int:
    """Time during which more than one activity ran, counted once for each beyond the first."""
    return sum(launch.time_ns for launch in step.launches) - step.busy_mid_ns


def _beside(step: StepRecord) -> set[int]:
    """Identities of the launches that share a good part of their time with another stream."""
    found: set[int] = set()
    ordered = sorted(step.launches, key=lambda launch: launch.start_ns)
    for place, launch in enumerate(ordered):
        end = launch.end_ns
        for later in range(place + 1, len(ordered)):
            other = ordered[later]
            if other.start_ns >= end:
                break
            if other.stream == launch.stream or {id(launch), id(other)} <= found:
                continue
            shared = min(end, other.end_ns) - other.start_ns
            found |= {id(x) for x in (launch, other) if shared > BESIDE * x.time_ns}
    return found


def _order(
    before: StepRecord, after: StepRecord, pairings: Sequence[Pairing]
) -> FusionVerdict | None:
    """Whether work that ran side by side runs in turn now; None where it does not."""
    gone = _overlap(before) - _overlap(after)
    if gone < max(WORTH * before.busy_mid_ns, 1):
        return None
    moved = before.busy_mid_ns, after.busy_mid_ns
    ratio = interval_of_ratio(before.busy_ns, after.busy_ns) or _extremes(
        before.busy_ns, after.busy_ns
    )
    kernels = [one for one in pairings if not one.is_same]
    by_kernels = sum(one.change_ns for one in kernels)
    lost = moved[1] - moved[0]
    is_lost = ratio[0] > LOST and lost - by_kernels > lost / 2
    cause = _kind(before)
    text = (
        f"{format_ns(_overlap(before))} of the step ran beside other work before, "
        f"{format_ns(_overlap(after))} now"
    )
    evidence = Evidence(
        kind="time", text=text,
        values={"overlap_before_ns": _overlap(before), "overlap_after_ns": _overlap(after)},
    )  # fmt: skip
    main = max(after.launches, key=lambda launch: launch.time_ns)
    return FusionVerdict(
        tier="pair",
        outcome="regression" if is_lost else "benign",
        kernel=main.name,
        fused=members_of(after.launches),
        members=members_of(before.launches),
        fused_ns=spread_of(after.busy_ns),
        members_ns=spread_of(before.busy_ns),
        cause=cause if is_lost else None,
        candidates=(Candidate(cause=cause, share=1.0, evidence=evidence),),
        reason=f"the device is busy {ratio[0]:.2f} to {ratio[1]:.2f} times as long",
    )


def _kind(before: StepRecord) -> Cause:
    """Copies and collectives that were hidden, or kernels that ran side by side."""
    hidden = 0
    apart = 0
    kernels = [x for x in before.launches if x.is_kernel and x.role != "communication"]
    for launch in before.launches:
        beside = sum(
            max(0, min(x.end_ns, launch.end_ns) - max(x.start_ns, launch.start_ns))
            for x in kernels
            if x is not launch and x.stream != launch.stream
        )
        if launch.is_kernel and launch.role != "communication":
            apart += beside
        else:
            hidden += 2 * beside
    return "lost_overlap" if hidden > apart else "serialised_streams"


# --- bisection ------------------------------------------------------------------------------------


def bisect(
    before: StepRecord,
    after: StepRecord,
    pairings: Sequence[Pairing],
    causes: dict[int, str | None],
    order: FusionVerdict | None,
    beside: Set[int] = frozenset(),
) -> Bisection:
    """The change of the step as shares, the largest first; they add up to it.

    span = sum of all launches − what overlaps + what is idle, in both runs.
    """
    shares: list[Share] = []
    overlapped = _overlap(before) - _overlap(after)
    idle = (after.span_mid_ns - after.busy_mid_ns) - (before.span_mid_ns - before.busy_mid_ns)
    for one in pairings:
        if one.is_same and any(id(x) in beside for x in (*one.before, *one.after)):
            # Side by side each takes longer: what that costs belongs to the overlap.
            overlapped += one.change_ns
        elif one.change_ns:
            shares.append(_share(one, causes))
    if overlapped:
        cause = order.candidates[0].cause if order is not None else "overlap"
        text = "less work runs side by side" if overlapped > 0 else "more work runs side by side"
        shares.append(Share(cause=cause, change_ns=overlapped, text=text))
    if idle:
        text = f"the device waits {'longer' if idle > 0 else 'less'} between launches"
        shares.append(Share(cause="launch_gaps", change_ns=idle, text=text))
    joined = _joined(shares)
    joined.sort(key=lambda share: -abs(share.change_ns))
    return Bisection(before_ns=before.span_mid_ns, after_ns=after.span_mid_ns, shares=tuple(joined))


def _share(one: Pairing, causes: dict[int, str | None]) -> Share:
    names = tuple(dict.fromkeys(x.name for x in (*one.after, *one.before)))
    copies = all(not x.is_kernel for x in (*one.before, *one.after))
    cause, text = causes.get(id(one)), "takes longer than what it replaced"
    if copies:
        cause, text = "copies", "copies"
    elif one.is_communication:
        cause, text = "communication", "collectives, which also wait for other ranks"
    elif not one.certain:
        cause, text = None, UNPAIRED
    elif one.change_ns < 0:
        cause, text = "faster_kernels", "takes less time than what it replaced"
    elif not one.before:
        cause, text = "new_kernels", "runs only now"
    return Share(cause=cause, change_ns=one.change_ns, text=text, kernels=names)


def _joined(shares: Sequence[Share]) -> list[Share]:
    """Shares of one cause and one text together."""
    found: dict[tuple[str | None, str], list[Share]] = defaultdict(list)
    for share in shares:
        found[share.cause, share.text].append(share)
    return [
        Share(
            cause=cause, text=text, change_ns=sum(x.change_ns for x in group),
            kernels=tuple(dict.fromkeys(name for x in group for name in x.kernels)),
        )
        for (cause, text), group in found.items()
    ]  # fmt: skip
