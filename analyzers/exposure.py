"""What a saving is worth on the critical path, bounded by the idle time of the clean step."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.model.base import Range
from advisor.model.findings import Evidence
from advisor.model.plan import Prediction
from advisor.units import format_ns


@dataclass(frozen=True)
class Situation:
    """What the prices rest on: the device, its calibration, and the clean step if one was timed.

    `step_ns` and `busy_ns` are None without a GPU: exposure is then unknown.
    """

    gpu: Gpu
    calibration: Calibration
    eager: bool
    step_ns: int | None = None
    busy_ns: int | None = None


def exposed(
    prediction: Prediction, launches_saved: int, situation: Situation
) -> tuple[Range | None, Evidence]:
    """The exposed saving (None where it cannot be judged) and what says so.

    With idle time I in the step, removing S of GPU work shortens it by at least S - I (the host may
    be what is waited for) and at most by S plus the host time of the launches that go away (eager
    only: a compiled step launches as before). The middle is S times the busy fraction: the GPU is
    taken to be what is waited for as often as it is busy. All of it is a bound, not a replay.
    """
    saved = prediction.saving_ns
    if situation.step_ns is None or situation.busy_ns is None:
        text = (
            "no GPU here, so host time and what the step waits for are unknown; "
            f"kernel time saved is {format_ns(saved.mid)} (modelled)"
        )
        return None, Evidence(kind="cannot_judge", text=text, values={"needs": "a run on the GPU"})
    idle = max(situation.step_ns - situation.busy_ns, 0)
    share = min(situation.busy_ns / situation.step_ns, 1.0) if situation.step_ns else 0.0
    host = launches_saved * situation.calibration.launch_ns if situation.eager else 0
    mid = round(saved.mid * share)
    low = max(min(saved.low - idle, mid), min(0, saved.low))
    high = saved.high + min(host, idle)
    text = (
        f"the GPU is busy for {100 * share:.0f} % of the clean step; "
        f"{launches_saved} launches fewer"
    )
    evidence = Evidence(
        kind="host", text=text, values={"idle_ns": idle, "launches_saved": launches_saved}
    )
    return Range(low=low, mid=max(mid, low), high=max(high, mid, low)), evidence
