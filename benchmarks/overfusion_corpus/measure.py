"""Runs one case on the GPU: both ways checked against each other, timed in turn, and traced."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from torch._inductor.codecache import PyCodeCache
from torch.profiler import ProfilerActivity, profile, record_function

from advisor.model.range_names import STEP_PREFIX
from advisor.verify.recording import gpu_recorder
from advisor.verify.statistics import interval_of_median, timing
from advisor.verify.timing import flusher

from . import build
from .model import Case, Launch, Pair, Run, Scope, release
from .records import Compiled, Generated, Result, Variant

# Seconds of GPU time for a case, and how many rounds may come of it.
SECONDS, FEWEST, MOST = 0.35, 9, 21
TRACED_STEPS = 5
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def prepare() -> None:
    """Settings that every process of a recording shares; also what makes its caches agree."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 256
    # Autotuned beside other work, a choice is no choice: the quiet process makes its own.
    torch._inductor.config.autotune_local_cache = False


def warm(case: Case) -> None:
    """Run both ways once: what they compile is then in the caches on disk."""
    pair = build(case, Scope(torch.device("cuda")))
    for _, run in _ways(pair):
        run()
    torch.cuda.synchronize()
    del pair, run
    cleared(case)


def cleared(case: Case) -> None:
    """Leave nothing of a case in this process."""
    release()
    if case.engine == "inductor":
        torch.compiler.reset()
    torch.cuda.empty_cache()


def launches(case: Case) -> dict[str, tuple[Launch, ...]]:
    """What both ways launch of this corpus's kernels, found without a GPU."""
    scope = Scope(torch.device("meta"))
    pair = build(case, scope)
    if case.engine == "inductor" or case.family == "library":
        return {"fused": (), "members": ()}
    return {"fused": scope.launches(pair.fused), "members": scope.launches(pair.members)}


def key_of(launch: Launch) -> str:
    """Identifies what was compiled."""
    return msgspec.json.encode(portable(launch).request).decode()


def portable(launch: Launch) -> Launch:
    """The launch with its source file by name, wherever this lies."""
    request = msgspec.structs.replace(launch.request, source=Path(launch.request.source).name)
    return msgspec.structs.replace(launch, request=request)


def measure(case: Case, folder: Path) -> Result:
    """Run a case and write its traces and code below `folder`; raises what the case raises.

    What its binaries need is found elsewhere meanwhile: `records.with_resources` puts it in.
    """
    pair = build(case, Scope(torch.device("cuda")))
    generated = {name: _first_run(case, run, name, folder) for name, run in _ways(pair)}
    error = _difference(pair)
    rounds = _rounds(pair)
    flush = flusher(torch.device("cuda"))
    times = gpu_recorder(dict(_ways(pair)), rounds, flush)
    for name, run in _ways(pair):
        _trace(run, folder / "traces" / f"{case.id}.{name}.json.gz", flush)
    ratios = [f / m for f, m in zip(times["fused"], times["members"], strict=True)]
    low, high = interval_of_median(ratios)
    asked = launches(case)  # builds the case again: its ops are the dry ones from here on
    variants = {
        name: Variant(
            time=timing(times[name]),
            launches=tuple(
                Compiled(request=portable(one).request, programs=one.programs)
                for one in asked[name]
            ),
            generated=generated[name],
        )
        for name in times
    }
    return Result(
        case=case,
        fused=variants["fused"],
        members=variants["members"],
        ratio=(low, median(ratios), high),
        moved_bytes=pair.moved_bytes,
        concurrent=pair.concurrent,
        error=error,
    )


def _ways(pair: Pair) -> tuple[tuple[str, Run], tuple[str, Run]]:
    return ("fused", pair.fused), ("members", pair.members)


def _difference(pair: Pair) -> float:
    """The largest difference of the two ways' results, relative to the largest value of each."""
    got = [t.float().clone() for t in pair.fused()]
    worst = 0.0
    for mine, other in zip(got, pair.members(), strict=True):
        want = other.float()
        apart = (mine - want).abs().max() / want.abs().max().clamp(min=1e-30)
        worst = max(worst, float(apart)) if torch.isfinite(apart) else float("inf")
    return worst


def _rounds(pair: Pair) -> int:
    """How often both fit into the time of a case."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    marks[0].record()
    pair.fused()
    pair.members()
    marks[1].record()
    torch.cuda.synchronize()
    return max(FEWEST, min(MOST, round(SECONDS / (marks[0].elapsed_time(marks[1]) / 1e3 + 2e-4))))


def _trace(run: Run, path: Path, flush: Any) -> None:
    """A Kineto trace of some steps with shapes, caches flushed between the steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as profiler:
        for number in range(TRACED_STEPS):
            flush()
            torch.cuda.synchronize()
            with record_function(f"{STEP_PREFIX}{number}"):
                run()
                torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        content = json.loads(plain.read_bytes())
    content.pop("traceName", None)
    data = json.dumps(content, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0))


# --- what Inductor wrote --------------------------------------------------------------------------


def _first_run(case: Case, run: Run, name: str, folder: Path) -> tuple[Generated, ...]:
    """Run once, and keep the code that the compiler loaded for it."""
    PyCodeCache.cache_clear()
    run()
    torch.cuda.synchronize()
    if case.engine != "inductor":
        return ()
    found: list[Generated] = []
    text = ""
    for module in PyCodeCache.modules:
        kernels = [value for value in vars(module).values() if getattr(value, "launchers", None)]
        if "def call(" in (source := Path(str(module.__file__)).read_text()):
            text += source
        found += [_generated(kernel) for kernel in kernels]
    if text:
        path = folder / "code" / f"{case.id}.{name}.py.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    unique = {(one.name, one.config): one for one in found}
    return tuple(unique.values())


def _generated(kernel: Any) -> Generated:
    """An autotuned kernel of Inductor after its first run: the launcher that is left."""
    launcher = kernel.launchers[0]
    store, load = _spills(str(getattr(launcher, "cache_hash", "")))
    return Generated(
        name=str(kernel.inductor_meta.get("kernel_name")),
        config=str(launcher.config),
        registers=getattr(launcher, "n_regs", None),
        local_words=getattr(launcher, "n_spills", None),
        shared_bytes=_whole(getattr(launcher, "shared", None)),
        spill_store_bytes=store,
        spill_load_bytes=load,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _spills(key: str) -> tuple[int | None, int | None]:
    """Bytes of spill stores and loads of a cached kernel: its PTX assembled again, verbosely."""
    sources: Sequence[Path] = ()
    if key:
        sources = sorted((Path(os.environ["TRITON_CACHE_DIR"]) / key).glob("*.ptx"))
    for source in sources:
        target = re.search(r"^\.target\s+(\w+)", source.read_text(), re.MULTILINE)
        line = [_ptxas(), "-v", f"--gpu-name={target[1] if target else 'sm_90a'}", str(source)]
        try:
            done = subprocess.run(
                [*line, "-o", os.devnull], capture_output=True, text=True, check=True, timeout=60
            )
        except (OSError, subprocess.SubprocessError):
            return None, None
        if found := _SPILLS.search(done.stderr + done.stdout):
            return int(found[1]), int(found[2])
    return None, None


def _ptxas() -> str:
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas")
