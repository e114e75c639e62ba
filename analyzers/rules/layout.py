"""Layout conversions around convolutions: data shuffled only because the formats differ."""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.model.base import Range
from advisor.model.findings import Evidence, Finding, Member, finding_id
from advisor.units import format_ns
from analyzers.kernel_roles import classify
from analyzers.replay_changes import Change
from analyzers.rules.base import Match, Rule, exposure
from analyzers.subject import Subject

_SHARE = 0.01
_WAY = re.compile(r"nchw(To|2|->)nhwc|nhwc(To|2|->)nchw", re.IGNORECASE)
_FIRST_TEXT = "no fusion removes them, a common layout does"
_LAST_TEXT = (
    "the first go from channels-last to channels-first and back, around a kernel that reads only "
    "the other layout; another kernel may take as long: half is taken"
)
_ACTION = "use channels_last for model and input: x.to(memory_format=torch.channels_last)"
# ATen/native/ConvUtils.h: MIOpen is given such tensors only then.
_ON_AMD = ", with PYTORCH_MIOPEN_SUGGEST_NHWC=1 where this PyTorch does not set it itself"


def find(subject: Subject) -> tuple[Match, ...]:
    """Kernels whose only work is a conversion between NCHW and NHWC."""
    if subject.trace is None:
        return ()
    found: dict[str, list[int]] = {}
    conversions = list(_conversions(subject))
    for _, name, duration in conversions:
        found.setdefault(name, []).append(duration)
    total = sum(sum(times) for times in found.values())
    busy = subject.balance.device_ns if subject.balance else 0
    if not total or total < _SHARE * busy:
        return ()
    count = sum(len(times) for times in found.values())
    # Another kernel of the library may be as fast as this one with its conversions, or not.
    last = _channels_last([name for _, name, _ in conversions])
    change = Change(
        sites=tuple((row,) for row, _, _ in conversions),
        saved_ns=Range(low=0, mid=total // 2 if last else total, high=total),
        gone=True,
    )
    exposed, host = exposure(subject, change)
    members = tuple(
        Member(name=name, count=len(times), time_ns=sum(times))
        for name, times in sorted(found.items(), key=lambda item: -sum(item[1]))
    )
    return (
        Match(
            Finding(
                id=finding_id(RULE.id, ""),
                rule=RULE.id,
                kind="opportunity",
                title=f"{count} layout conversions around convolutions",
                exposed_saving_ns=exposed,
                evidence=(
                    Evidence(
                        kind="time",
                        text=(
                            f"{format_ns(total)} {subject.when} convert images between layouts; "
                            f"{_LAST_TEXT if last else _FIRST_TEXT}"
                        ),
                        values={
                            "conversions": count,
                            "kernel_saving_ns": change.saved_ns.mid,
                            "tensors": "channels_last" if last else "channels_first",
                        },
                    ),
                    host,
                ),
                members=members,
                provenance=subject.provenance,
                action=_action(subject, last),
            ),
            change=change,
        ),
    )


def _channels_last(names: list[str]) -> bool:
    """Whether the tensors are channels-last already, and a channels-first kernel runs among them.

    What is converted is inputs and weights before a convolution, in one direction, and its result
    behind it, in the other: the direction of most, else of the first, is away from the tensors'
    own layout. False where names tell no direction.
    """
    ways = [
        "NHWC" if m[0].lower().startswith("nhwc") else "NCHW" for m in map(_WAY.search, names) if m
    ]
    away, back = ways.count("NHWC"), ways.count("NCHW")
    return away > back or (away == back > 0 and ways[0] == "NHWC")


def _action(subject: Subject, last: bool) -> str:
    if last:
        return (
            "the tensors are channels-last already: let the library try its other kernels "
            "(torch.backends.cudnn.benchmark = True), or pad the channels of this convolution"
        )
    return _ACTION + (_ON_AMD if subject.on_amd else "")


def _conversions(subject: Subject) -> Iterator[tuple[int, str, int]]:
    """(row, kernel name, duration) of the conversions of the analysed step."""
    trace = subject.trace
    assert trace is not None
    names, times = trace.kernels["name"], trace.kernels["duration_ns"].to_numpy()
    layouts = [str(n) for n in names.cat.categories if _converts(str(n))]
    if not layouts:
        return
    inside = {row for facts in subject.graphs for rows in facts.kernels.values() for row in rows}
    for row in names[names.isin(layouts)].index:
        if int(row) in inside:
            yield int(row), str(names.iat[row]), int(times[row])


def _converts(name: str) -> bool:
    """A conversion between image layouts; a transposition of a matrix is none."""
    kernel = classify(name)
    return kernel.role == "layout" and any("NCHW" in op for op in kernel.ops)


RULE = Rule(
    id="layout-conversion",
    title="Layout conversions",
    explanation=(
        "Tensor cores want images in channels-last order; given channels-first, cuDNN converts "
        "before and after each convolution. Those kernels compute nothing. They vanish when the "
        "model keeps one layout."
    ),
    bad="nchwToNhwc, convolution, nhwcToNchw for every layer",
    good="model and input in channels_last: convolutions alone",
    find=find,
)
