"""What a report says of how often, and on which sizes, the captured graphs run in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from advisor.model.base import Warning_
from advisor.units import counted
from analyzers.step_sizes import CODE
from collectors.live.capture import Capture
from collectors.live.graph_runs import GraphRun

MOST_SIZES = 3
SEVERAL, RECOMPILED, OWN_REGIONS = "several-runs", "recompiled", "own-regions"
READ_AS_EAGER = (
    "the step compiles parts of itself: without a GPU they are read op by op, as if it did not; "
    "what is fused there already is known on a GPU only"
)


def own_warnings(captured: Capture) -> list[Warning_]:
    """Of a step that compiles parts of itself: what is not known without a GPU."""
    seen = captured.runs.own_regions and captured.device_is_assumed
    return [Warning_(code=OWN_REGIONS, message=READ_AS_EAGER)] if seen else []


def within_step(captured: Capture) -> list[Warning_]:
    """Of what sizes, and of how many runs of its graphs in one step, findings and plans are."""
    return list(_within(_forward(captured.runs.step)))


def _forward(step: Sequence[GraphRun]) -> list[GraphRun]:
    return [run for run in step if not run.backward]


def between_steps(captured: Capture) -> list[Warning_]:
    """What the second step ran otherwise, where one was watched."""
    first, *later = map(_forward, captured.runs.steps or [[]])
    which = "second" if captured.runs.latest else "first"
    alone = f"graphs, findings and plans are of the {which} step alone"
    return [note for step in later[:1] for note in _between(first, step, alone)]


def _within(step: Sequence[GraphRun]) -> Iterable[Warning_]:
    given: dict[int, list[tuple[str, ...]]] = {}
    for run in step:
        given.setdefault(run.graph, []).append(run.given)
    for sizes in map(list, map(dict.fromkeys, given.values())):
        if len(sizes) > 1:
            texts = _texts(sizes)
            left = len(texts) - MOST_SIZES
            more = f" and {counted(left, 'more size')}" if left > 0 else ""
            note = (
                f"sizes vary within a step: a graph runs on {', '.join(texts[:MOST_SIZES])}{more}; "
                "findings and plans are of the first of these alone"
            )
            yield Warning_(code=CODE, message=note)
            break
    often = Counter({number: len(runs) for number, runs in given.items() if len(runs) > 1})
    if often:
        note = (
            f"a graph that is compiled once runs up to {max(often.values())} times a step: what "
            "findings and plans save is of all runs on the sizes of the first"
        )
        yield Warning_(code=SEVERAL, message=note, count=len(often))


def _between(
    first: Sequence[GraphRun], second: Sequence[GraphRun], alone: str
) -> Iterable[Warning_]:
    known, graphs = {run.given for run in first}, {run.graph for run in first}
    for run in second:
        if run.given in known:
            continue
        before = next((r.given for r in first if _alike(r.given, run.given)), None)
        if before is not None:
            sizes = " then ".join(_texts([before, run.given]))
            note = f"sizes vary between steps: a graph is given {sizes}; {alone}"
            yield Warning_(code=CODE, message=note)
            return
    if any(run.graph not in graphs for run in second):
        note = f"the second step was compiled again, for values that changed; {alone}"
        yield Warning_(code=RECOMPILED, message=note)


def _alike(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two runs were given the same tensors but for their sizes."""
    return list(map(_kind, one)) == list(map(_kind, other))


def _kind(tensor: str) -> tuple[str, int]:
    return tensor.partition("[")[0], tensor.count(",")


def _texts(given: Sequence[tuple[str, ...]]) -> list[str]:
    """The first tensor in which runs differ, as each had it."""
    columns = zip(*given, strict=False)
    return next((list(dict.fromkeys(c)) for c in columns if len(set(c)) > 1), ["other tensors"])
