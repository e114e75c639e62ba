"""What a change is worth on the critical path: the step replayed without it, less with it.

A kernel that runs under another stream, or a launch that the device does not wait for, saves
nothing. The range has three causes: the interval of the kernel times, the host's speed (known from
the clean step to a few percent, from a bare trace only between bounds), and what the replay misses
of the clean step. A bare trace gives an upper bound: profiling stretches the host, so that kernels
seem hidden which are not, and host time seems long which is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.hardware.learned import AS_MODELLED
from advisor.model.base import Range
from advisor.model.findings import Evidence
from advisor.model.report import Metric
from advisor.model.scores import ResidualQuantiles
from advisor.model.trace import Trace
from advisor.units import counted, format_fraction, format_ns
from analyzers.activities import NONE, activities, step_of
from analyzers.replay import Step, replay
from analyzers.replay_calibration import (
    CAUTIOUS_SCALE,
    OVERHEAD,
    TOLERANCE,
    HostScale,
    host_scale,
)
from analyzers.replay_calls import Window
from analyzers.replay_changes import Change, Changes, End
from analyzers.replay_step import recorded_step

if TYPE_CHECKING:
    import pandas as pd

Values = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Situation:
    """What the prices rest on: the device, its calibration, and the step if one was recorded.

    `step_ns` is the clean step, `busy_ns` the device's part of it, `exposure` the step to replay;
    all are None without a GPU: what the step waits for is then unknown. `residuals` correct the
    modelled times of new kernels as earlier measurements on this GPU taught.
    """

    gpu: Gpu
    calibration: Calibration
    eager: bool
    step_ns: int | None = None
    busy_ns: int | None = None
    exposure: Exposure | None = None
    residuals: ResidualQuantiles = AS_MODELLED

    @property
    def model(self) -> str:
        """What the times of new kernels rest on, in words."""
        return model_text(self.gpu, self.calibration, corrected=self.residuals != AS_MODELLED)


def model_text(gpu: Gpu, calibration: Calibration, *, corrected: bool) -> str:
    """What modelled times of new kernels rest on, and whether earlier plans corrected them."""
    text = f"modelled on {gpu.name}, {calibration.provenance} calibration"
    return f"{text}, corrected as earlier plans there taught" if corrected else text


@dataclass(frozen=True)
class Exposure:
    """One step that can be replayed with changes; `scale` is how the host's time is scaled."""

    step: Step
    scale: HostScale
    _changes: Changes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_changes", Changes(self.step))

    @property
    def clean(self) -> bool:
        """Whether a clean step was timed, so that figures are savings and no bounds."""
        return self.scale.clean_ns is not None

    @property
    def doubt(self) -> str:
        """Why nothing can be judged, or ""."""
        if self.scale.holds or self.scale.clean_ns is None or self.scale.error is None:
            return ""
        return (
            f"the replay takes {format_ns(self.scale.replayed_ns)}, the clean step "
            f"{format_ns(self.scale.clean_ns)}: {format_fraction(abs(self.scale.error))} apart, "
            f"more than {format_fraction(TOLERANCE)}"
        )

    @cached_property
    def _before(self) -> dict[float, float]:
        scales = (self.scale.low, self.scale.mid, self.scale.high)
        return {scale: replay(self.step, scale).step_ns for scale in scales}

    @property
    def longest_ns(self) -> float:
        """The step with the slowest host that is possible: nothing saves more."""
        return max(self._before.values())

    def knows(self, change: Change) -> bool:
        """Whether the replayed step holds what the change speaks for."""
        return self._changes.known(change)

    def saved(self, *changes: Change) -> Range:
        """By how much the step gets shorter with all changes at once.

        From a bare trace the range spans every possible speed of the host, and what kernels save
        has an upper bound only.
        """
        scale = self.scale
        mid = self._saved(changes, "mid", scale.mid)
        ends = [
            self._saved(changes, which, at)
            for which in ("low", "high")
            for at in (scale.low, scale.mid, scale.high)
        ]
        low, high = min(*ends, mid), max(*ends, mid)
        if self.clean:
            missed = abs(scale.error or 0.0)
            low, high = low - missed * abs(low), high + missed * abs(high)
        elif all(change.graph == "none" for change in changes):
            low = min(low, 0.0)
        if all(change.saved_ns.low >= 0 for change in changes):
            # Of less work the step never gets longer; that it moves within the step is noise.
            low, mid = max(low, 0.0), max(mid, 0.0)
        high = max(min(high, self.longest_ns), mid)
        return Range(low=round(low), mid=round(mid), high=round(high))

    def certain_share(self, *changes: Change) -> float:
        """The share of the step that goes even if the profiler stretched the host a lot."""
        scale = self.scale.mid if self.clean else CAUTIOUS_SCALE
        before = replay(self.step, scale).step_ns
        after = replay(self._changes.apply(changes, "mid").step, scale).step_ns
        return (before - after) / before if before else 0.0

    def _saved(self, changes: Sequence[Change], which: End, scale: float) -> float:
        return self._before[scale] - replay(self._changes.apply(changes, which).step, scale).step_ns

    def evidence(self, *changes: Change) -> Evidence:
        """What a saving rests on."""
        effect = self._changes.apply(changes, "mid")
        values: Values = {
            "kernel_saving_ns": sum(change.saved_ns.mid for change in changes),
            "launches_saved": effect.calls_removed,
            "host_saved_ns": round(effect.host_removed_ns * self.scale.mid),
            "replayed_ns": self.scale.replayed_ns,
        }
        text = f"{self.text()}; {counted(effect.calls_removed, 'launch', 'launches')} fewer"
        return Evidence(kind="host", text=text, values=values)

    def text(self) -> str:
        """The sentence that goes with every saving."""
        replayed = format_ns(self.scale.replayed_ns)
        if self.scale.clean_ns is not None:
            return (
                f"replayed with and without: the step takes {replayed} in the replay, "
                f"{format_ns(self.scale.clean_ns)} on the clock"
            )
        return (
            "a trace does not say how much the profiler slowed the host: the step was replayed "
            f"with the host between {self.scale.low:.2f} and {self.scale.high:.2f} of its profiled "
            f"time, the middle ({self.scale.mid:.2f}) makes it {replayed}"
        )


def replay_metrics(exposure: Exposure | None) -> dict[str, Metric]:
    """How well the replay stands for the clean step; nothing where none was timed."""
    if exposure is None or not exposure.clean:
        return {}
    replayed = (
        "time of the traced step in the replay, without the profiler's share; exposed savings are "
        f"judged if it is within {format_fraction(TOLERANCE)} of the clean step"
    )
    factor = "clean over profiled host time, chosen so that the replay takes the clean step's time"
    return {
        "replayed_step_ns": Metric(
            value=exposure.scale.replayed_ns, unit="ns", provenance="modelled", definition=replayed
        ),
        "host_time_factor": Metric(
            value=round(exposure.scale.mid, 3),
            unit="fraction",
            provenance="modelled",
            definition=factor,
        ),
    }


def judged(
    exposure: Exposure | None, change: Change, doubt: str = ""
) -> tuple[Range | None, Evidence]:
    """What a change saves on the critical path with the evidence for it, or why nobody can tell.

    `doubt` says what the recording lacks, "" if nothing.
    """
    saved = f"kernel time saved is {format_ns(change.saved_ns.mid)}"
    values: Values = {"kernel_saving_ns": change.saved_ns.mid}
    if exposure is None:
        text = (
            f"no step was timed on a GPU, so what the step waits for is unknown; {saved}, predicted"
        )
        needs = "a run on the GPU"
    elif doubt:
        text, needs = f"idle time is unreliable here ({doubt}); {saved}", "a complete trace"
    elif exposure.doubt:
        text, needs = f"{exposure.doubt}; {saved}", "a step that replays as it ran"
    elif not exposure.knows(change):
        text = f"none of its kernels was found in the recorded step; {saved}"
        needs = "a trace of the same step"
    else:
        return exposure.saved(change), exposure.evidence(change)
    return None, Evidence(kind="cannot_judge", text=text, values={**values, "needs": needs})


def exposure_of(trace: Trace, steps: pd.DataFrame, clean_ns: int | None) -> Exposure | None:
    """The last step of a trace that launched kernels, else all of it; None if nothing was launched.

    `clean_ns` is the time of the same step without a profiler, None for a bare trace.
    """
    window = replay_window(trace, steps)
    if window is None:
        return None
    step = recorded_step(trace, window, OVERHEAD)
    if not (step.stream != NONE).any():
        return None
    return Exposure(step, host_scale(step, clean_ns))


def replay_window(trace: Trace, steps: pd.DataFrame) -> Window | None:
    """The step to replay: the last with kernels; without steps, from first to last launch."""
    if len(steps):
        owner = step_of(activities(trace), steps)[: len(trace.kernels)]
        if (owner != NONE).any():
            row = int(owner.max())
            start = int(steps["start_ns"].to_numpy()[row])
            length = int(steps["duration_ns"].to_numpy()[row])
            return Window(start, start + length, int(steps["thread"].to_numpy()[row]))
    begun = trace.kernels["start_ns"].to_numpy()
    if not len(begun):
        return None
    calls = trace.launches["start_ns"].to_numpy()
    if not len(calls):
        return Window(int(begun[0]), int(begun[-1]) + 1, 0)
    ends = calls + trace.launches["duration_ns"].to_numpy()
    main = int(trace.launches["thread"].to_numpy()[0])
    return Window(int(min(begun[0], calls[0])), int(ends.max()) + 1, main)
