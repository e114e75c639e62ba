"""The replay of recorded steps against the clock: as profiled, clean, and as CUDA graphs.

    python benchmarks/replay.py [--recorded FOLDER]

Reads what `replay_record.py` wrote into FOLDER [default: replay_steps beside this file, from an
H200]: traces of steps, and the times of the same steps without a profiler from the same process.
Four questions, each harder than the one before:

1. As recorded. Host times as profiled, nothing fitted: does the replay end when the trace ends?
2. Held out. The host's constants (cost of recording an operator, factor on the rest) are fitted to
   one half of the workloads and predict the clean step of the other half, and the other way round.
3. Calibrated. One factor on a step's host time, within fixed bounds, so that it takes as long as
   its clean step; the replay says "cannot judge" if none comes within 5 %. This is what `profile`
   does, and by itself proves little: one number is fitted to one number.
4. CUDA graphs. Calibrated to a step compiled without graphs, the replay of the same step with
   graphs predicts a time that it has not seen.

Writes replay.json and replay.md beside this file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from needed import need_results

from advisor.model.trace import Trace
from analyzers.exposure import replay_window
from analyzers.replay import NONE, Step, replay
from analyzers.replay_calibration import OVERHEAD, TOLERANCE, USUAL_SCALE, host_scale
from analyzers.replay_step import Overhead, recorded_step
from collectors import read_trace

HERE = Path(__file__).parent
STEPS = HERE / "replay_steps"
# What was tried for the constants: ns per operator, more with stacks, per call; the factor.
PER_OP_NS, PER_STACKED_OP_NS, PER_CALL_NS = (
    (0, 250, 500, 1_000),
    (0, 1_000, 2_000, 3_000),
    (0, 1_500),
)
FACTORS = tuple(round(0.50 + 0.03 * k, 2) for k in range(14))


class Recorded(NamedTuple):
    """A traced step and the time that the same step takes without a profiler."""

    name: str
    model: str
    trace: Trace
    clean_ns: float


class Constants(NamedTuple):
    """The host without a profiler: what recording costs, and the factor on the rest."""

    overhead: Overhead
    factor: float


def main() -> None:
    """Answer the four questions and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recorded", type=Path, default=STEPS)
    folder: Path = parser.parse_args().recorded
    workloads = _recorded(folder)
    baselines = json.loads((folder / "clean.json").read_text())
    halves = [[w for k, w in enumerate(_by_model(workloads)) if k % 2 == half] for half in (0, 1)]
    tables = [_predictions([w for group in half for w in group]) for half in halves]
    fitted = [_fit(table) for table in tables]
    held_out = {
        name: predicted
        for table, constants in zip(tables, reversed(fitted), strict=True)
        for name, predicted in ((name, times[constants]) for name, times in table.items())
    }
    result = {
        "tolerance": TOLERANCE,
        "constants": [
            {**c.overhead._asdict(), "factor": c.factor, "fitted_to": sorted(table)}
            for c, table in zip(fitted, tables, strict=True)
        ],
        "product_constants": {**OVERHEAD._asdict(), "factor": USUAL_SCALE},
        "steps": [_row(w, held_out[w.name]) for w in workloads],
        "graphs": _graphs(workloads, baselines),
    }
    (HERE / "replay.json").write_text(json.dumps(result, indent=1) + "\n")
    (HERE / "replay.md").write_text(_markdown(result))


def _recorded(folder: Path) -> list[Recorded]:
    """What `replay_record.py` wrote, eager and compiled of each model."""
    (kept,) = need_results([*folder.glob("clean.json")], folder)
    clean = json.loads(kept.read_text())
    return [
        Recorded(f"{model}.{suffix}", model, read_trace(path), times[mode] * 1e6)
        for model, times in sorted(clean.items())
        for mode, suffix in (("eager", "eager"), ("default", "inductor"))
        if (path := folder / f"{model}.{suffix}.json.gz").exists()
    ]


def _by_model(workloads: list[Recorded]) -> list[list[Recorded]]:
    """Eager and compiled of one model stay in one half."""
    return [list(group) for _, group in itertools.groupby(workloads, key=lambda w: w.model)]


def _step(trace: Trace, overhead: Overhead, *, backlog: bool = False) -> Step:
    window = replay_window(trace, trace.steps())
    assert window is not None
    return recorded_step(trace, window, overhead, backlog=backlog)


# --- 2. constants ---------------------------------------------------------------------------------


def _predictions(workloads: list[Recorded]) -> dict[str, dict[Constants, float]]:
    """Predicted over clean step of each workload with every choice of the constants."""
    found: dict[str, dict[Constants, float]] = {}
    for workload in workloads:
        stacked = workload.trace.info.stacks_recorded
        mine: dict[Constants, float] = {}
        times: dict[Overhead, list[float]] = {}
        for op, more, call in itertools.product(PER_OP_NS, PER_STACKED_OP_NS, PER_CALL_NS):
            # Without stacks in the trace, what stacks cost makes no difference.
            own = Overhead(op, op + more if stacked else op, call)
            if own not in times:
                step = _step(workload.trace, own)
                times[own] = [replay(step, factor).step_ns for factor in FACTORS]
            for factor, step_ns in zip(FACTORS, times[own], strict=True):
                every = Constants(Overhead(op, op + more, call), factor)
                mine[every] = step_ns / workload.clean_ns
        found[workload.name] = mine
    return found


def _fit(table: dict[str, dict[Constants, float]]) -> Constants:
    """The constants with the least mean error; of equals the first, which takes off least."""
    choices = next(iter(table.values()))
    return min(choices, key=lambda c: statistics.mean(abs(t[c] - 1) for t in table.values()))


# --- the tables -----------------------------------------------------------------------------------


def _row(workload: Recorded, held_out: float) -> dict[str, Any]:
    trace = workload.trace
    window = replay_window(trace, trace.steps())
    assert window is not None
    raw = _step(trace, Overhead(0, 0, 0), backlog=True)
    held = raw.stream != NONE
    rows = raw.row[held & (raw.row < len(trace.kernels))]
    kernels = trace.kernels.iloc[rows]
    ended = int((kernels["start_ns"] + kernels["duration_ns"]).max()) - window.start_ns
    scale = host_scale(_step(trace, OVERHEAD), round(workload.clean_ns))
    return {
        "workload": workload.name,
        "model": workload.model,
        "recorded_ms": round(ended / 1e6, 3),
        "as_recorded_error": round(float(replay(raw).ended_ns[held].max()) / ended - 1, 4),
        "clean_ms": workload.clean_ns / 1e6,
        "held_out_error": round(held_out - 1, 4),
        "factor": round(scale.mid, 3),
        "replayed_ms": round(scale.replayed_ns / 1e6, 3),
        "error": round(scale.error or 0.0, 4),
        "verdict": "judged" if scale.holds else "cannot judge",
    }


def _graphs(
    workloads: list[Recorded], baselines: dict[str, dict[str, float]]
) -> list[dict[str, Any]]:
    found = []
    for workload in workloads:
        times = baselines.get(workload.model)
        if times is None or not workload.name.endswith("inductor"):
            continue
        step = _step(workload.trace, OVERHEAD)
        scale = host_scale(step, round(times["default"] * 1e6))
        predicted = replay(step.graphed(), scale.mid).step_ns / 1e6
        measured = times["reduce-overhead"]
        found.append(
            {
                "workload": workload.model,
                "default_ms": round(times["default"], 3),
                "replayed_ms": round(scale.replayed_ns / 1e6, 3),
                "verdict": "judged" if scale.holds else "cannot judge",
                "predicted_ms": round(predicted, 3),
                "measured_ms": round(measured, 3),
                "error": round(predicted / measured - 1, 4),
                "kernels_error": round(float(step.device_ns.sum()) / 1e6 / measured - 1, 4),
                "predicted_saving_ms": round(scale.replayed_ns / 1e6 - predicted, 3),
                "measured_saving_ms": round(times["default"] - measured, 3),
            }
        )
    return found


def _markdown(result: dict[str, Any]) -> str:
    steps, graphs = result["steps"], result["graphs"]
    lines = [
        "# The replay of recorded steps against the clock",
        "",
        "Made by `python benchmarks/replay.py`; the questions are explained there. NVIDIA H200.",
        f"{len(steps)} recorded steps of {len({r['model'] for r in steps})} workloads.",
        "",
        *_summary(result),
        "",
        "| step | recorded ms | 1. as recorded | clean ms | 2. held out | 3. factor | replayed ms "
        "| error | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['workload']} | {r['recorded_ms']:.2f} | {_signed(r['as_recorded_error'])} "
        f"| {r['clean_ms']:.2f} | {_signed(r['held_out_error'])} | {r['factor']:.2f} "
        f"| {r['replayed_ms']:.2f} | {_signed(r['error'])} | {r['verdict']} |"
        for r in steps
    ]
    lines += [
        "",
        "## 4. From torch.compile to CUDA graphs",
        "",
        "| workload | default ms | replayed ms | verdict | graphs predicted ms | measured ms "
        "| error | kernel time alone | saving predicted ms | measured ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['workload']} | {r['default_ms']:.3f} | {r['replayed_ms']:.3f} | {r['verdict']} "
        f"| {r['predicted_ms']:.3f} | {r['measured_ms']:.3f} | {_signed(r['error'])} "
        f"| {_signed(r['kernels_error'])} | {r['predicted_saving_ms']:.3f} "
        f"| {r['measured_saving_ms']:.3f} |"
        for r in graphs
    ]
    return "\n".join([*lines, ""])


def _summary(result: dict[str, Any]) -> list[str]:
    steps, graphs = result["steps"], result["graphs"]
    judged = sum(row["verdict"] == "judged" for row in steps)
    held = [abs(row["held_out_error"]) for row in steps]
    recorded = [abs(row["as_recorded_error"]) for row in steps]
    errors = [abs(row["error"]) for row in graphs]
    alone = [abs(row["kernels_error"]) for row in graphs]
    large = [r for r in graphs if r["measured_saving_ms"] > 0.1 * r["default_ms"]]
    savings = [abs(r["predicted_saving_ms"] / r["measured_saving_ms"] - 1) for r in large]
    return [
        f"1. As recorded: median error {_share(statistics.median(recorded))}, "
        f"{_within(recorded, TOLERANCE)} within 5 %.",
        f"2. Held out: median error {_share(statistics.median(held))}, "
        f"{_within(held, TOLERANCE)} within 5 %. So exposure is judged only where the "
        "step's own clean time is known; a bare trace gives bounds.",
        f"3. Calibrated to the step's own clean time: {judged} of {len(steps)} within 5 %, the "
        f"other {len(steps) - judged} cannot be judged.",
        "4. CUDA graphs: median error of the step with graphs "
        f"{_share(statistics.median(errors))}, largest {_share(max(errors))} (the time of its "
        f"kernels alone: median {_share(statistics.median(alone))}); of what graphs save, where "
        f"that is more than a tenth of the step ({len(large)} of {len(graphs)}): median "
        f"{_share(statistics.median(savings))}.",
    ]


def _within(errors: list[float], most: float) -> str:
    return f"{sum(error <= most for error in errors)} of {len(errors)}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f} %"


if __name__ == "__main__":
    main()
