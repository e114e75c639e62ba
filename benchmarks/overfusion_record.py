"""Records the corpus of over-fusion on a GPU: times, binaries, traces, labels.

    python benchmarks/overfusion_record.py --out FOLDER [CASE or FAMILY ...]
    python benchmarks/overfusion_record.py --out FOLDER --counters 90
    python benchmarks/overfusion_record.py --out FOLDER --pack FILE.tgz
    python benchmarks/overfusion_record.py --list

A case is a fused kernel and what it replaced (`overfusion_corpus`). Everything is compiled in
parallel first; then one process at a time runs the cases on the quiet machine and writes each as it
is done: FOLDER/cases/ID.json, traces/ID.{fused,members}.json.gz, code/ (what Inductor wrote). No
case is begun after `--seconds`; a second call goes on with those that are missing or failed
(failed/ID.txt). `--counters` counts DRAM and local traffic of some cases afterwards, under Nsight
Compute. labels.json is made from the times alone, anew by every call; `--pack` writes all of it
into one archive, and nothing is recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import torch
from overfusion_corpus import all_cases, counting, frozen, measure, warming
from overfusion_corpus.labels import labels_of
from overfusion_corpus.model import Case, Launch
from overfusion_corpus.records import Labels, Result, Session

from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu
from advisor.model.applied import KernelResources
from advisor.model.base import encode
from advisor.verify.resources import resources_of

SCRIPT = Path(__file__).resolve()
RESOURCES, ATTEMPTS = "resources.json", "attempts.txt"
COMPILE_LIMIT_S, COUNTED_CASES = 100.0, 70
# Families whose kernels take the assembler longest.
SLOW = ("solve_cells", "mix_tile")
Resources = dict[str, KernelResources]


def main(arguments: Sequence[str]) -> int:
    """Do what is asked for; 0 if there is nothing left to record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases or families; all if none")
    parser.add_argument("--out", type=Path, help="folder of the recording")
    parser.add_argument("--seconds", type=float, default=380, help="begin no case after this")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="to compile with")
    parser.add_argument("--counters", type=float, metavar="SECONDS", help="count some cases by ncu")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write an archive of the folder")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    chosen = [c for c in all_cases() if not options.cases or {c.id, c.family} & {*options.cases}]
    if options.list:
        sys.stdout.writelines(f"{c.id}\t{c.cause or '-'}\n" for c in chosen)
        return 0
    if options.out is None:
        parser.error("--out is needed")
    return _record(options, chosen)


class _Plain(argparse.RawDescriptionHelpFormatter):
    pass


def _record(options: argparse.Namespace, chosen: list[Case]) -> int:
    folder: Path = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.pack is not None:
        return _pack(folder, options.pack)
    if not torch.cuda.is_available():
        sys.stderr.write("cases are recorded on a GPU; there is none here\n")
        return 2
    if options.measure:
        return _measure_all(chosen, folder, options.seconds)
    # Children inherit where the compilers keep their results.
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache" / "triton")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache" / "inductor")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if options.count:
        counting.run_counted(chosen, folder, options.seconds)
        return 0
    started = time.monotonic()
    todo = [case for case in chosen if not _result_path(folder, case).exists()]
    if todo and not options.counters:
        (folder / "session.json").write_bytes(encode(_session()))
        _compile(todo, folder, options.workers)
        _say(started, f"compiled for {len(todo)} cases")
        _supervise(todo, folder, options.seconds - (time.monotonic() - started))
    if options.counters:
        done = [case for case in chosen if _result_path(folder, case).exists()]
        why = counting.count(SCRIPT, folder, _worth_counting(done, folder), options.counters)
        _say(started, f"counted{': ' + why if why else ''}")
    labels = labels_of(frozen.results(folder))
    (folder / "labels.json").write_bytes(encode(labels))
    left = [case for case in chosen if not _result_path(folder, case).exists()]
    _say(started, f"{len(labels.labels)} cases are there, {len(left)} are missing")
    sys.stderr.write(_summary(labels) + "\n")
    return 1 if left else 0


def _say(started: float, what: str) -> None:
    sys.stderr.write(f"{time.monotonic() - started:6.1f} s  {what}\n")


def _result_path(folder: Path, case: Case) -> Path:
    return folder / "cases" / f"{case.id}.json"


def _session() -> Session:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    import triton

    versions = {
        "torch": str(torch.__version__),
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": sys.version.split()[0],
    }
    return Session(gpu=torch.cuda.get_device_name(), driver=driver, versions=versions)


# --- compiling in parallel ------------------------------------------------------------------------


def _compile(todo: Sequence[Case], folder: Path, workers: int) -> None:
    """Fill the compilers' caches, write the binaries' resources; failures come up again later."""
    gpu = find_gpu(torch.cuda.get_device_name())
    if gpu is None:
        sys.exit(f"{torch.cuda.get_device_name()} is not in the table of GPUs")
    share = max(1, workers // 2)
    # What takes longest must not begin last.
    ordered = sorted(todo, key=lambda c: (c.family not in SLOW, c.engine != "inductor"))
    with ThreadPoolExecutor(1) as side:
        sizing = side.submit(_write_resources, todo, gpu, folder, share)
        done = warming.warm_all(ordered, max(1, workers - share), COMPILE_LIMIT_S)
        sizing.result()
    sys.stderr.write(f"{done} of {len(todo)} cases ran once\n")


def _write_resources(todo: Sequence[Case], gpu: Gpu, folder: Path, processes: int) -> None:
    unique: dict[str, Launch] = {}
    for case in todo:
        for found in measure.launches(case).values():
            unique.update({measure.key_of(launch): launch for launch in found})
    requests = [launch.request for launch in unique.values()]
    rows = resources_of(
        requests, (gpu,), timeout_s=COMPILE_LIMIT_S, cache=folder / "cache" / "resources",
        processes=processes,
    )  # fmt: skip
    found_rows = {key: row for key, (row,) in zip(unique, rows, strict=True)}
    (folder / RESOURCES).write_bytes(msgspec.json.encode(found_rows))


# --- measuring, one case at a time ----------------------------------------------------------------


def _supervise(todo: Sequence[Case], folder: Path, seconds: float) -> None:
    """A child measures; one that a case has ended is replaced, without that case."""
    ends, left = time.monotonic() + seconds, list(todo)
    while left and time.monotonic() < ends:
        (folder / ATTEMPTS).write_text("")
        line = [sys.executable, str(SCRIPT), "--out", str(folder), "--measure"]
        line += ["--seconds", str(ends - time.monotonic()), *(case.id for case in left)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(line, check=False, timeout=ends - time.monotonic() + 45)
        tried = set((folder / ATTEMPTS).read_text().split())
        if not tried:
            return
        left = [case for case in left if case.id not in tried]


def _measure_all(cases: Sequence[Case], folder: Path, seconds: float) -> int:
    ends = time.monotonic() + seconds
    measure.prepare()
    resources = msgspec.json.decode((folder / RESOURCES).read_bytes(), type=Resources)
    for name in ("cases", "failed"):
        (folder / name).mkdir(exist_ok=True)
    for case in cases:
        if time.monotonic() > ends:
            break
        with (folder / ATTEMPTS).open("a") as attempts:
            attempts.write(case.id + "\n")
        _measure_one(case, resources, folder)
        measure.cleared(case)
    return 0


def _measure_one(case: Case, resources: Resources, folder: Path) -> None:
    """Measure and write; a case that cannot be run leaves its reason, unless the GPU is lost."""
    begun, failed = time.monotonic(), folder / "failed" / f"{case.id}.txt"
    try:
        result = measure.measure(case, resources, folder)
    except Exception as error:  # compilers and drivers raise anything
        failed.write_text(traceback.format_exc())
        sys.stderr.write(f"{case.id}: {type(error).__name__}\n")
        if not _usable():
            raise
        return
    failed.unlink(missing_ok=True)
    _result_path(folder, case).write_bytes(encode(result))
    low, middle, high = result.ratio
    sys.stderr.write(
        f"{time.monotonic() - begun:5.1f} s  {case.id}: {middle:.3f} ({low:.3f} to {high:.3f}), "
        f"{result.fused.time.median_ns / 1e3:.1f} us\n"
    )


def _usable() -> bool:
    """False if a kernel has broken the process's context: nothing runs in it any more."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


# --- afterwards -----------------------------------------------------------------------------------


def _worth_counting(cases: Sequence[Case], folder: Path) -> list[Case]:
    """The least and the greatest loss of every group, counters that mean something only."""
    results = {r.case.id: r for r in frozen.results(folder)}
    groups: dict[str, list[Result]] = {}
    for case in cases:
        if not results[case.id].concurrent:
            groups.setdefault(case.group, []).append(results[case.id])
    ends = [
        chosen
        for found in groups.values()
        for chosen in {id(r): r for r in (min(found, key=_ratio), max(found, key=_ratio))}.values()
    ]
    ends.sort(key=lambda r: r.fused.time.median_ns + r.members.time.median_ns)
    return [result.case for result in ends[:COUNTED_CASES]]


def _ratio(result: Result) -> float:
    return result.ratio[1]


def _summary(labels: Labels) -> str:
    counts = Counter(label.verdict for label in labels.labels)
    causes = Counter(str(one.cause) for one in labels.labels if one.verdict == "regression")
    lines = [f"{name}: {count}" for name, count in sorted(counts.items())]
    lines += [f"  {name}: {count}" for name, count in sorted(causes.items())]
    return "\n".join(lines)


def _pack(folder: Path, target: Path) -> int:
    """All but the caches in one archive, whose bytes depend on the content alone; its manifest."""
    raw = folder / counting.RAW
    if raw.exists():
        packed = folder / f"{counting.RAW}.gz"
        packed.write_bytes(gzip.compress(raw.read_bytes(), 9, mtime=0))
    frozen.pack(folder, target)
    manifest = frozen.manifest(folder, target)
    (target.parent / frozen.MANIFEST).write_bytes(encode(manifest))
    sys.stderr.write(f"{target}: {manifest.bytes / 1e6:.1f} MB, {manifest.cases} cases\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
