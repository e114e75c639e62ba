"""The GPU waits for the host: launches are the bottleneck, not kernels."""

from __future__ import annotations

from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence, Finding
from advisor.units import format_fraction, format_ns
from analyzers.balance import STRETCH, WORST_STRETCH
from analyzers.rules.base import Match, Rule, finding_id, note
from analyzers.subject import Subject

# Below this share of the step the host is not what to fix first, whatever the profiler added.
_SHARE = 0.1
_MANY_REGIONS = 4


def find(subject: Subject) -> tuple[Match, ...]:
    """An opportunity where the host is late even if profiling stretched its part, else a note."""
    balance = subject.balance
    if balance is None or balance.span_ns <= 0:
        return ()
    if subject.doubt:
        return (_doubtful(subject),) if balance.device_ns < balance.span_ns * (1 - _SHARE) else ()
    cautious = 1.0 if balance.clean else STRETCH
    step = max(balance.host_ns(cautious), balance.device_ns)
    mid = round(step - balance.device_ns)
    if mid < _SHARE * step:
        return ()
    if not balance.clean and not subject.steps:
        return (_stepless(subject),)
    worst = 1.0 if balance.clean else WORST_STRETCH
    low = max(round(balance.host_ns(worst) - balance.device_ns), 0)
    saving = Range(low=min(low, mid), mid=mid, high=balance.span_ns - balance.device_ns)
    return (_finding(subject, saving),)


def _finding(subject: Subject, saving: Range) -> Match:
    balance = subject.balance
    assert balance is not None
    share = 1 - min(balance.device_ns / balance.span_ns, 1.0)
    waits = subject.metric("starved_synchronisation_ns") or 0
    starved = subject.metric("starved_ns") or 0
    synchronises = waits > 0.5 * starved > 0
    return Match(
        Finding(
            id=finding_id("launch-bound", ""),
            rule=RULE.id,
            kind="opportunity",
            title=f"Host-bound: the GPU stands idle for {format_fraction(share)} of the step",
            exposed_saving_ns=saving,
            evidence=_evidence(subject, starved, waits),
            provenance=subject.provenance,
            action=_action(subject, synchronises),
            alternatives=(
                Alternative(
                    route="cuda_graph",
                    text=(
                        "one graph launch replaces the launches of the step; kernels stay as they "
                        "are"
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
        )
    )


def _evidence(subject: Subject, starved: float, waits: float) -> tuple[Evidence, ...]:
    balance = subject.balance
    assert balance is not None
    launches = subject.metric("kernel_launches")
    values: dict[str, float | int | str | None] = {
        "busy_ns": balance.device_ns,
        "span_ns": balance.span_ns,
        "starved_ns": round(starved),
        "starved_synchronisation_ns": round(waits),
        "launches": launches,
    }
    text = (
        f"{format_ns(balance.device_ns)} of GPU work in {format_ns(balance.span_ns)};"
        f" in {format_ns(starved)} of it the next kernel had not been launched yet"
    )
    found = [Evidence(kind="host", text=text, values=values)]
    if not balance.clean:
        found.append(
            Evidence(
                kind="host",
                text=(
                    "a bare trace gives an upper bound: profiling stretches the host's part of a "
                    f"step; the middle assumes {STRETCH}×, the lower end {WORST_STRETCH}×, the "
                    "upper end none"
                ),
            )
        )
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
    wanted = [
        i for i, n in enumerate(names.categories) if str(n).startswith("Torch-Compiled Region")
    ]
    return int(names.codes.isin(wanted).sum())


def _graph_launches(subject: Subject) -> int:
    return 0 if subject.trace is None else int((subject.trace.launches["kind"] == "graph").sum())


def _doubtful(subject: Subject) -> Match:
    text = f"idle time may be recording that is missing: {subject.doubt}"
    return note(
        RULE.id,
        subject,
        title="Whether the host is the bottleneck cannot be told from this recording",
        action="record whole steps, or compare with the step's time without a profiler",
        evidence=(Evidence(kind="cannot_judge", text=text, values={"needs": "a complete trace"}),),
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
