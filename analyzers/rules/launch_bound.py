"""The GPU waits for the host: launches are the bottleneck, not kernels."""

from __future__ import annotations

import numpy as np

from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence, Finding, finding_id
from advisor.model.range_names import COMPILED_REGION
from advisor.units import format_fraction, format_ns
from analyzers.replay_changes import Change
from analyzers.rules.base import Match, Rule, note
from analyzers.subject import Subject

# Below this share of the step the host is not what to fix first, whatever the profiler added.
_SHARE = 0.1
_MANY_REGIONS = 4
_MISSING = "idle time is unreliable here: "
_WHOLE = "record whole steps, or compare with the step's time without a profiler"
_AS_IT_RAN = "profile again on a quiet machine: the traced step is not the one that was timed"


def find(subject: Subject) -> tuple[Match, ...]:
    """An opportunity where a graph launch shortens the step, replayed; else a note or nothing."""
    balance, exposure = subject.balance, subject.exposure
    if balance is None or exposure is None or balance.span_ns <= 0:
        return ()
    waits = balance.device_ns < balance.span_ns * (1 - _SHARE)
    stepless = not balance.clean and not subject.steps
    if subject.doubt and not stepless:
        return (_doubtful(subject, _MISSING + subject.doubt, _WHOLE),) if waits else ()
    if exposure.doubt:
        return (_doubtful(subject, exposure.doubt, _AS_IT_RAN),) if waits else ()
    many = _regions(subject) // max(subject.steps, 1) >= _MANY_REGIONS
    graph = Change(graph="step" if many else "regions")
    if exposure.certain_share(graph) < _SHARE or _mostly_graphed(subject):
        return ()
    if stepless:
        return (_stepless(subject),)
    return (_finding(subject, exposure.saved(graph), graph),)


def _mostly_graphed(subject: Subject) -> bool:
    """Whether most kernels come from graph launches already."""
    trace = subject.trace
    if trace is None or not len(trace.kernels):
        return False
    graphs = (trace.launches["kind"] == "graph").to_numpy()
    launch = trace.kernels["launch"].to_numpy(dtype=np.int64, na_value=len(graphs))
    return bool(np.append(graphs, False)[launch].mean() > 0.5)


def _finding(subject: Subject, saving: Range, graph: Change) -> Match:
    balance = subject.balance
    assert balance is not None
    share = _idle(subject)
    step = "step" if balance.clean else "profiled step"
    waits = subject.metric("starved_synchronisation_ns")
    starved = subject.metric("starved_ns")
    synchronises = bool(waits and starved and waits > 0.5 * starved)
    return Match(
        Finding(
            id=finding_id("launch-bound", ""),
            rule=RULE.id,
            kind="opportunity",
            title=f"Host-bound: the GPU stands idle for {format_fraction(share)} of the {step}",
            exposed_saving_ns=saving,
            evidence=_evidence(subject, graph),
            provenance=subject.provenance,
            action=_action(subject, synchronises),
            alternatives=(
                Alternative(
                    route="cuda_graph",
                    text=(
                        f"one graph launch for {_graphed(subject, graph)} replaces all others "
                        "there; kernels stay as they are"
                    ),
                    saving_ns=saving,
                ),
                Alternative(
                    route="compile_region",
                    text=(
                        "torch.compile needs fewer launches and less Python, and takes the graph "
                        "with it"
                    ),
                ),
            ),
        ),
        route="cuda_graph",
        change=graph,
    )


def _idle(subject: Subject) -> float:
    """The share of the span with nothing on the device; copies are no idleness."""
    balance = subject.balance
    assert balance is not None
    idle = subject.metric("gpu_idle_fraction")
    if idle is None or balance.clean:
        return 1 - min(balance.device_ns / balance.span_ns, 1.0)
    return idle


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _graphed(subject: Subject, graph: Change) -> str:
    """What is replayed as one graph: without compiled regions, the step."""
    assert subject.exposure is not None
    regions = graph.graph == "regions" and subject.exposure.step.has_regions
    return "each compiled region" if regions else "the whole step"


def _evidence(subject: Subject, graph: Change) -> tuple[Evidence, ...]:
    balance = subject.balance
    assert balance is not None
    starved = subject.metric("starved_ns")
    values: dict[str, float | int | str | None] = {
        "busy_ns": balance.device_ns,
        "span_ns": balance.span_ns,
        "starved_ns": _whole(starved),
        "starved_synchronisation_ns": _whole(subject.metric("starved_synchronisation_ns")),
        "launches": subject.metric("kernel_launches"),
    }
    text = f"{format_ns(balance.device_ns)} of GPU work in {format_ns(balance.span_ns)}"
    if starved is not None:
        # Of the profiled step, which may well be longer than the clean one.
        text += (
            f"; while profiled, the GPU waited {format_ns(starved)} for kernels that had not been "
            "launched yet"
        )
    assert subject.exposure is not None
    found = [
        Evidence(kind="host", text=text, values=values),
        Evidence(
            kind="host",
            text=f"{subject.exposure.text()}; one graph launch for {_graphed(subject, graph)}",
            values={"replayed_ns": subject.exposure.scale.replayed_ns},
        ),
    ]
    regions = _regions(subject)
    if regions:
        graphs = _graph_launches(subject)
        if not graphs:
            text = (
                "compiled regions, but no graph launch: if CUDA graphs were asked for, they were "
                "skipped"
            )
            found.append(Evidence(kind="host", text=text, values={"regions": regions}))
    return tuple(found)


def _action(subject: Subject, synchronises: bool) -> str:
    regions = _regions(subject)
    steps = max(subject.steps, 1)
    if synchronises and regions // steps >= _MANY_REGIONS:
        return (
            f"remove what breaks the step into {regions // steps} compiled regions and the "
            "synchronisations between them (.item(), .cpu(), printing) before any kernel work"
        )
    if synchronises:
        return (
            "remove the synchronisations inside the step (.item(), .cpu(), nonzero), then capture "
            "a CUDA graph"
        )
    if regions:
        return 'capture the step as a CUDA graph: torch.compile(mode="reduce-overhead")'
    return (
        "capture the step as a CUDA graph (torch.cuda.make_graphed_callables, "
        'or torch.compile(mode="reduce-overhead"))'
    )


def _regions(subject: Subject) -> int:
    if subject.trace is None:
        return 0
    names = subject.trace.ops["name"].cat
    wanted = [i for i, n in enumerate(names.categories) if str(n).startswith(COMPILED_REGION)]
    return int(names.codes.isin(wanted).sum())


def _graph_launches(subject: Subject) -> int:
    return 0 if subject.trace is None else int((subject.trace.launches["kind"] == "graph").sum())


def _doubtful(subject: Subject, why: str, action: str) -> Match:
    return note(
        RULE.id,
        subject,
        title="Whether the host is the bottleneck cannot be told from this recording",
        action=action,
        evidence=(Evidence(kind="cannot_judge", text=why, values={"needs": "a complete trace"}),),
    )


def _stepless(subject: Subject) -> Match:
    text = (
        "no range marks a step, so set-up, warm-up and idle time between steps are in the figures"
    )
    return note(
        RULE.id,
        subject,
        title="The GPU waits for the host, but no step is marked in this trace",
        action="name the range that surrounds a step (--step-range), or call profiler.step()",
        evidence=(Evidence(kind="cannot_judge", text=text, values={"needs": "step ranges"}),),
    )


RULE = Rule(
    id="launch-bound",
    title="The step waits for the host",
    explanation=(
        "Each kernel costs the host a few microseconds of Python, dispatch and launch. Where "
        "kernels are shorter than that, the GPU runs dry between them and faster kernels save "
        "nothing: fewer launches do. A CUDA graph launches the whole step at once."
    ),
    bad="a decode step of 186 kernels, 0.5 ms of GPU work in 6.8 ms",
    good="the same step replayed as one graph, or kernels long enough to hide the launches",
    find=find,
)
