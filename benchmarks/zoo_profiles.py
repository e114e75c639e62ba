"""`profile` on fifteen models, eager and compiled: coverage, legality, kinds, cost of profiling.

    python benchmarks/zoo_profiles.py --out FOLDER [--mode eager|compile] [MODEL ...]
    python benchmarks/zoo_profiles.py --out FOLDER --table     FOLDER as zoo_profiles.md
    python benchmarks/zoo_profiles.py --keep FOLDER            its reports into sample_traces/zoo

One process a model and mode; those done are left out. Each leaves FOLDER/MODEL_MODE/ with the
report and the plans, and a row of figures: the share of kernel time that leads to an op; the step
as profiled over the clean one; seconds that `profile` took (compilation told apart); every plan run
in float64 against the region it would replace, on random inputs. Needs a CUDA GPU, transformers,
timm and torchvision.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from needed import need_gpu, need_results

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
MODES = ("eager", "compile")
SAMPLES = HERE.parent / "sample_traces" / "zoo"


def main() -> None:
    """Profile what is asked for and not there yet, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", help="names in zoo_models.py  [default: all]")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="make samples of its reports")
    parser.add_argument("--mode", choices=MODES, action="append", help="[default: both]")
    parser.add_argument("--table", action="store_true", help="write zoo_profiles.md")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.keep is not None:
        _keep(options.keep)
        return
    if options.out is None:
        parser.error("--out FOLDER is needed")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.table:
        found = need_results(sorted(options.out.glob("*/row.json")), options.out)
        rows = [json.loads(path.read_text()) for path in found]
        (HERE / "zoo_profiles.md").write_text(_markdown(rows))
    elif options.in_process:
        _profile(options.models[0], options.mode[0], options.out)
    else:
        _shards(options)


def _keep(finished: Path) -> None:
    from zoo_keep import UnfitError, keep

    try:
        kept = keep(finished, SAMPLES)
    except UnfitError as error:
        raise SystemExit(str(error)) from error
    sys.stderr.write(f"{len(kept)} runs in {SAMPLES}\n")


def _shards(options: argparse.Namespace) -> None:
    need_gpu()
    from zoo_models import ZOO

    names = options.models or [factory.__name__ for factory in ZOO]
    for mode in options.mode or MODES:
        for name in names:
            if (options.out / f"{name}_{mode}" / "row.json").exists():
                continue
            command = [sys.executable, __file__, name, "--out", str(options.out), "--in-process"]
            done = subprocess.run([*command, "--mode", mode], check=False)
            word = "done" if not done.returncode else "FAILED"
            sys.stderr.write(f"{name} {mode}: {word}\n")


def _profile(name: str, mode: str, out: Path) -> None:
    import torch

    from advisor.pipeline.options import ProfileOptions
    from advisor.pipeline.profile import profile
    from advisor.store import RunDirectory
    from collectors import read_trace

    target = f"{HERE / 'zoo_models.py'}:{name}"
    folder = out / f"{name}_{mode}"
    shutil.rmtree(folder, ignore_errors=True)
    run = RunDirectory.create_at(folder)
    stages: list[tuple[str, float]] = []
    started = time.perf_counter()
    report = profile(
        ProfileOptions(target=target, mode=mode),
        run,
        lambda stage, _: stages.append((stage, time.perf_counter() - started)),
    )
    taken = time.perf_counter() - started
    steps = read_trace(run.trace_path).steps()
    profiled = median(int(ns) for ns in steps["duration_ns"])
    clean = report.metrics["step_ns"].value
    row = {
        "model": name,
        "mode": mode,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "seconds": round(taken, 1),
        "stages": {stage: round(at, 1) for stage, at in stages},
        "step_ns": clean,
        "profiled_step_ns": profiled,
        "attributed": report.metrics["attributed_time_fraction"].value,
        "findings": [[f.rule, f.title, f.kind] for f in report.findings],
        "plans": len(report.plans),
        "disagreements": _disagreements(run, target, mode),
        "warnings": [[w.code, w.message] for w in report.warnings],
    }
    run.trace_path.unlink()
    (folder / "row.json").write_text(json.dumps(row, indent=1) + "\n")


def _disagreements(run: Any, target: str, mode: str) -> list[str]:
    """Plans that are not what they would replace, with the reason."""
    import torch

    from advisor.pipeline.candidates import check_regions, load_candidates
    from collectors.live.capture import capture
    from collectors.live.workload import load_workload

    device = torch.device("cuda")
    found = load_candidates(run, [plan.id for plan in run.report().plans])
    workload = load_workload(target, device)
    captured, _ = capture(workload, generate_code=False, eager=mode == "eager")
    check_regions(found, captured, device, lambda *_, **__: None)
    return [f"{item.plan.title}: {item.refused}" for item in found.values() if item.refused]


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    head = (
        "model", "mode", "attributed", "profiled / clean", "profile s", "plans",
        "differ from their region", "findings",
    )  # fmt: skip
    lines = [
        "# Profiles of the zoo",
        "",
        "Made by `python benchmarks/zoo_profiles.py --out FOLDER --table`; the method is there.",
        f"{rows[0]['device']}, torch {rows[0]['torch']}.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for row in rows:
        titles = "; ".join(title for _, title, kind in row["findings"] if kind == "opportunity")
        cells = (
            row["model"], row["mode"], f"{100 * row['attributed']:.2f} %",
            f"{row['profiled_step_ns'] / row['step_ns']:.2f}", f"{row['seconds']}",
            f"{row['plans']}", f"{len(row['disagreements'])}", titles,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
