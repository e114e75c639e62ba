"""Records steps for `replay.py` on a GPU: clean times of three modes, traces of two.

    python benchmarks/replay_record.py --zoo FILE --out FOLDER [--only NAME ...]

FILE defines `ALL`: by name, a function that returns (eager step, compile(mode) -> step). FOLDER
gets NAME.eager.json.gz, NAME.inductor.json.gz (torch.compile with defaults) and clean.json: the
median step in ms without a profiler, eager, default and reduce-overhead. What is there already is
kept, so that a call which ran out of time can be repeated. Then
`python benchmarks/replay.py --recorded FOLDER` makes the tables, with or without a GPU.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from needed import need_gpu

from advisor.verify.timing import time_steps
from collectors.live.recorder import TRACED_STEPS, record_steps

Step = Callable[[], object]
Model = Callable[[], tuple[Step, Callable[[str], Step]]]
ROUNDS, WARMUP = 30, 10
TRACED = {"eager": "eager", "default": "inductor"}


def main() -> None:
    """Record what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zoo", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=())
    options = parser.parse_args()
    need_gpu()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "clean.json"
    clean: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept.exists() else {}
    for name, build in _models(options.zoo).items():
        if name in clean or (options.only and name not in options.only):
            continue
        try:
            clean[name] = _record(name, build, options.out)
        except RuntimeError as error:
            sys.stderr.write(f"{name}: {error}\n")
        kept.write_text(json.dumps(clean, indent=1) + "\n")
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()


def _models(path: Path) -> dict[str, Model]:
    spec = importlib.util.spec_from_file_location("zoo", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.ALL
    return found


def _record(name: str, build: Model, out: Path) -> dict[str, float]:
    eager, compiled = build()
    times = {}
    for mode in ("eager", "default", "reduce-overhead"):
        step = eager if mode == "eager" else compiled(mode)
        times[mode] = _clean_ms(step)
        if mode in TRACED:
            _trace(step, out / f"{name}.{TRACED[mode]}.json.gz")
        sys.stderr.write(f"{name} {mode}: {times[mode]:.3f} ms\n")
    return times


def _clean_ms(step: Step) -> float:
    return statistics.median(time_steps({"step": step}, ROUNDS, WARMUP)["step"]) / 1e6


def _trace(step: Step, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        record_steps(step, plain, steps=TRACED_STEPS)
        target.write_bytes(gzip.compress(plain.read_bytes(), 6))


if __name__ == "__main__":
    main()
