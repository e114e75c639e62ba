"""Fifteen models: eager, `torch.compile` in its modes, tuned by hand, and what `apply` keeps.

    python benchmarks/zoo.py --out FOLDER [MODEL ...]   one process a model; those done are left out
    python benchmarks/zoo.py --out FOLDER --table       FOLDER/*.json as zoo.md and zoo.json

In a process: `profile` and `apply` (with a time budget), which leave the run in FOLDER/MODEL.run,
then every column is compiled and all are timed in turn, so that each figure is of one process on
one machine. Where the run is there already, as after `--apply-only` or an interruption, it is
timed. A column is a way to run the step:

* `eager`; `default`, `reduce-overhead`, `max-autotune`: `torch.compile` with this mode;
* `tuned`: the fastest mode of the model as it is or as `zoo_tuned.py` sets it up by hand;
* `ours`: what `apply` kept of that run, compiled anew.

Needs a CUDA GPU, transformers, timm and torchvision.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from needed import need_gpu, need_results

if TYPE_CHECKING:
    from advisor.model.scores import HeldOut

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
MODES = ("default", "reduce-overhead", "max-autotune")
OTHERS = ("eager", *MODES, "tuned")
ROUNDS, TUNING_ROUNDS, WARMUP = 60, 20, 5
BUDGET_S = 300.0
# Beside what a run holds: how long profiling took, and what `apply` announced.
PROFILED, LOG = "profiled_s.txt", "apply_log.jsonl"
Step = Callable[[], Any]


def main() -> None:
    """Measure what is asked for and not there yet, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", help="names in zoo_models.py  [default: all]")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--table", action="store_true", help="write zoo.md and zoo.json")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for apply")
    parser.add_argument("--apply-only", action="store_true", help="profile and apply, time nothing")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.table:
        _write_table(options.out)
    elif options.in_process:
        name = options.models[0]
        run = _applied_run(name, options.budget, options.out)
        if not options.apply_only:
            result = json.dumps(_measure(name, run), indent=1)
            (options.out / f"{name}.json").write_text(result + "\n")
    else:
        _shards(options)


def _shards(options: argparse.Namespace) -> None:
    need_gpu()
    from zoo_models import ZOO

    for name in options.models or [factory.__name__ for factory in ZOO]:
        if (options.out / f"{name}.json").exists():
            continue
        command = [sys.executable, __file__, name, "--out", str(options.out), "--in-process"]
        command += [f"--budget={options.budget}", *(["--apply-only"] * options.apply_only)]
        done = subprocess.run(command, check=False)
        sys.stderr.write(f"{name}: {'done' if not done.returncode else 'FAILED'}\n")


# --- one model ------------------------------------------------------------------------------------


def _applied_run(name: str, budget_s: float, out: Path) -> Any:
    """The run of a model with what `apply` kept of it; without its traces, made once."""
    from advisor.pipeline.apply import apply_run
    from advisor.pipeline.options import ProfileOptions
    from advisor.pipeline.profile import profile
    from advisor.store import RunDirectory

    place = out / f"{name}.run"
    if (place / "applied.json").exists():
        return RunDirectory(place)
    if (place / PROFILED).exists():
        run = RunDirectory(place)
    else:
        shutil.rmtree(place, ignore_errors=True)
        run = RunDirectory.create_at(place)
        started = time.perf_counter()
        profile(ProfileOptions(target=_target(name)), run, lambda *_: None)
        (place / PROFILED).write_text(f"{time.perf_counter() - started:.1f}\n")
    apply_run(run, (), _Log(place / LOG), budget_s)
    for trace in place.glob("trace*"):
        trace.unlink()
    return run


def _target(name: str) -> str:
    return f"{HERE / 'zoo_models.py'}:{name}"


def _measure(name: str, run: Any) -> dict[str, Any]:
    import msgspec
    import torch

    from advisor.pipeline.facts import versions
    from advisor.pipeline.measure import Bench
    from advisor.pipeline.peers import Alone
    from advisor.pipeline.sets import disagreement
    from advisor.verify.statistics import compare
    from advisor.verify.timing import time_steps
    from collectors.live.workload import load_workload

    applied = run.applied()
    device = torch.device("cuda")
    load = partial(load_workload, _target(name), device)
    recipe = _kept(run, applied.set.verdict)
    bench = Bench(load(), load)
    ours = bench.build(recipe)
    steps: dict[str, Step] = {"eager": bench.eager.step, "ours": ours.step}
    for mode in MODES:
        steps[mode] = _compiled(load(), mode)
    steps["tuned"], tuned_mode = _tuned(name, device, steps)
    samples = time_steps(steps, ROUNDS, WARMUP)
    differs, agreement = disagreement(Alone(), bench, ours)
    best = min(OTHERS, key=lambda column: _median(samples[column]))
    against = {
        column: _ratio(compare(samples[column], samples["ours"], "step")) for column in OTHERS
    }
    log = [json.loads(line) for line in (run.path / LOG).read_text().splitlines()]
    return {
        "model": name,
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "step_ns": {column: _summary(values) for column, values in samples.items()},
        "speed_up": against,
        "best_other": best,
        "tuned_mode": tuned_mode,
        "kept": {"actions": recipe.actions, "plans": len(recipe.kernels)},
        "gains": _gains(applied),
        "agreement": None if agreement is None else agreement._asdict(),
        "disagreement": differs,
        "peak_memory_bytes": [
            applied.set.peak_memory_before_bytes, applied.set.peak_memory_after_bytes,
        ],
        "compile_ns": [applied.set.compile_before_ns, applied.set.compile_after_ns],
        "profile_s": float((run.path / PROFILED).read_text()),
        "apply_s": round((applied.duration_ns or 0) / 1e9, 1),
        "applied": json.loads(msgspec.json.encode(applied)),
        "log": log,
    }  # fmt: skip


class _Log:
    """What `apply` announced, with the seconds since it began: in a file, as it comes."""

    def __init__(self, path: Path) -> None:
        self.started = time.perf_counter()
        self.path = path
        path.write_text("")

    def __call__(self, stage: str, state: str, **facts: Any) -> None:
        at = round(time.perf_counter() - self.started, 1)
        line = [at, stage, facts.get("plan"), facts.get("message", "")]
        with self.path.open("a") as stream:
            stream.write(json.dumps(line) + "\n")


def _kept(run: Any, verdict: str) -> Any:
    from advisor.apply.recipe import UNCHANGED
    from advisor.pipeline.kept import kept_recipe

    return kept_recipe(run) if verdict == "kept" else UNCHANGED


def _compiled(work: Any, mode: str) -> Step:
    """The step of a workload compiled in one of PyTorch's modes, warm."""
    import torch

    from advisor.pipeline.measure import marked

    part = torch.compile(work.part, mode=None if mode == "default" else mode)
    step: Step = marked(work.step_of(lambda _: part))
    # As the action `autotune` compiles: with processes the candidates are compiled twice.
    threads = {"compile_threads": 1} if mode == "max-autotune" else {}
    with torch._inductor.config.patch(threads):
        step()
    for _ in range(WARMUP):
        step()
    torch.cuda.synchronize()  # a fault is this column's
    return step


def _tuned(name: str, device: Any, steps: Mapping[str, Step]) -> tuple[Step, str]:
    """The fastest of all modes of the model as it is and as it is set up by hand, and its name."""
    from zoo_tuned import TUNED

    from advisor.verify.timing import time_steps
    from collectors.live.workload import load_workload

    candidates = {mode: steps[mode] for mode in MODES}
    if name in {factory.__name__ for factory in TUNED}:
        target = f"{HERE / 'zoo_tuned.py'}:{name}"
        by_hand = {f"{m} by hand": _compiled(load_workload(target, device), m) for m in MODES}
        candidates |= by_hand
    times = time_steps(candidates, TUNING_ROUNDS, WARMUP)
    mode = min(candidates, key=lambda column: _median(times[column]))
    return candidates[mode], mode


def _median(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]


def _summary(values: Sequence[int]) -> dict[str, int]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "median": _median(values),
        "p10": ordered[round(0.1 * last)],
        "p90": ordered[round(0.9 * last)],
    }


def _ratio(comparison: Any) -> dict[str, float]:
    """Time of another column over ours, with the interval of the paired difference."""
    before = comparison.before.median_ns
    gains = {
        "low": comparison.gain_low_ns, "mid": comparison.gain_mid_ns,
        "high": comparison.gain_high_ns,
    }  # fmt: skip
    return {name: before / max(before - gain, 1) for name, gain in gains.items()}


def _gains(applied: Any) -> dict[str, int]:
    """What each kind of change gave when it was added, ns a step (kernels: of GPU time)."""
    found = {"flags and graphs": 0, "library": 0, "generated kernels": 0}
    for action in applied.actions:
        if action.verdict == "kept" and action.step is not None:
            kind = "library" if action.kind == "attention" else "flags and graphs"
            found[kind] += action.step.gain_mid_ns
    regions = {
        id(plan.region): plan.region.gain_mid_ns
        for plan in applied.plans
        if plan.verdict == "kept" and plan.region is not None
    }
    found["generated kernels"] = sum(regions.values())
    return found


# --- the table ------------------------------------------------------------------------------------


def _write_table(folder: Path) -> None:
    found = need_results(sorted(folder.glob("*.json")), folder)
    rows = [json.loads(path.read_text()) for path in found]
    (HERE / "zoo.json").write_text(json.dumps(rows, indent=1) + "\n")
    (HERE / "zoo.md").write_text(_markdown(rows))


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = (*OTHERS, "ours")
    head = ("model", *columns, "against the best other", "kept", "apply", "applied, UTC")
    lines = [
        "# The zoo",
        "",
        "Made by `python benchmarks/zoo.py --out FOLDER --table`; the method is described there.",
        f"{rows[0]['device']}, torch {rows[0]['versions'].get('torch')}. Median step in ms; all",
        "columns of a row are of one process, timed in turn, by the code of the time. Raw results:",
        "`zoo.json`.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    lines += [_row(row, columns) for row in rows]
    lines += ["", *_means(rows), "", *_split(rows), "", *_calibration(rows), *_differing(rows)]
    lines += _left(rows)
    return "\n".join([*lines, ""])


def _row(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    times = [f"{row['step_ns'][column]['median'] / 1e6:.3f}" for column in columns]
    best = row["speed_up"][row["best_other"]]
    versus = f"{best['mid']:.3f}× ({best['low']:.3f} … {best['high']:.3f}) {row['best_other']}"
    kept = ", ".join([*row["kept"]["actions"], f"{row['kept']['plans']} kernels"])
    end = [versus, kept, f"{row['apply_s']} s", row["applied"]["created"][:16].replace("T", " ")]
    return f"| {' | '.join([row['model'], *times, *end])} |"


def _means(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Geometric means of the speed-up over each column, and over the best torch mode."""
    lines = [f"Geometric means over {len(rows)} models:", ""]
    for column in OTHERS:
        lines.append(
            f"- over {column}: {_mean(row['speed_up'][column]['mid'] for row in rows):.3f}×"
        )
    best = [min(row["speed_up"][mode]["mid"] for mode in MODES) for row in rows]
    lines.append(f"- over the best mode of torch.compile: {_mean(best):.3f}×")
    return lines


def _mean(values: Any) -> float:
    found = list(values)
    return math.exp(sum(math.log(value) for value in found) / len(found))


def _split(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "What each kind of change gave when it was added, µs a step (kernels: GPU time):",
        "",
        "| model | flags and graphs | library | generated kernels |",
        "|---|---|---|---|",
    ]
    for row in rows:
        cells = [f"{row['gains'][kind] / 1e3:.0f}" for kind in row["gains"]]
        lines.append(f"| {row['model']} | {' | '.join(cells)} |")
    return lines


def _differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """With what results agree: a step that computes something else is no faster one."""
    wrong = [f"- {row['model']}: {row['disagreement']}" for row in rows if row["disagreement"]]
    lines = ["", "Results that do not agree, so that their figures prove nothing:", "", *wrong]
    held: dict[str, list[str]] = {}
    for row in rows:
        found = row["agreement"]
        if found is not None and not row["disagreement"]:
            held.setdefault(found["reference"], []).append(row["model"])
    told = [f"with those of {name}: {', '.join(models)}" for name, models in sorted(held.items())]
    agreeing = ["", f"Results of ours agree {'; '.join(told)}."] if told else []
    return [*(lines if wrong else []), *agreeing]


def _left(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    from zoo_models import ZOO

    names = {factory.__name__ for factory in ZOO} - {row["model"] for row in rows}
    return ["", f"Not measured: {', '.join(sorted(names))}."] if names else []


def _calibration(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What plans were predicted to save of eager's kernels, against what was measured of them."""
    from msgspec import convert

    from advisor.model.applied import Applied
    from analyzers.scores import score

    scores = score((row["model"], convert(row["applied"], Applied)) for row in rows)
    if scores.median_error is None or scores.coverage is None:
        return []
    return [
        f"Of {len(scores.plans)} plans, kept or not, what was predicted to be saved of eager's own "
        f"kernels is within {scores.median_error:.1%} of their time in the median; "
        f"{scores.coverage:.0%} of the 80 % intervals hold.",
        *_cross_validated(scores.held_out),
    ]


def _cross_validated(found: HeldOut | None) -> list[str]:
    """How predictions do that learn: each model as the plans of all others teach it."""
    if found is None or found.median_error is None:
        return []
    return [
        "",
        "Cross-validated, with what is predicted of each model learned from the plans of all other "
        f"models (as by `fusion-advisor calibration --learn`): of {found.plans} plans "
        f"{found.coverage:.0%} of the 80 % intervals hold; the median error is "
        f"{found.median_error:.1%}.",
    ]


if __name__ == "__main__":
    main()
