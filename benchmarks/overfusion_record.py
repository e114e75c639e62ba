"""Records the corpus of over-fusion on GPUs: times, binaries, traces, labels, in one archive.

    python benchmarks/overfusion_record.py --out FOLDER --pack FILE.tgz [CASE or FAMILY ...]
    python benchmarks/overfusion_record.py --out FOLDER --pack FILE.tgz --resume FILE.tgz
    python benchmarks/overfusion_record.py --out FOLDER --pack FILE.tgz --counters 90
    python benchmarks/overfusion_record.py --list

A case is a fused kernel and what it replaced (`overfusion_corpus`). Every GPU has one process that
measures, on processor cores of its own and with nothing beside it; the other cores compile ahead of
them (`overfusion_corpus/crew.py`). Each case is written as it is done: FOLDER/cases/ID.json,
traces/ID.{fused,members}.json.gz, code/ (what Inductor wrote), or failed/ID.txt. labels.json is
made from the times alone, anew by every call. `--seconds` bounds all of it; the archive and its
manifest are renewed every minute, at the end, and when the program is asked to end. A second call
goes on with what is missing or failed, in the same folder or from an archive (`--resume`).
`--counters` counts DRAM and local traffic of some measured cases, under Nsight Compute.
"""

from __future__ import annotations

import argparse
import gzip
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from overfusion_corpus import all_cases, counting, frozen, serving
from overfusion_corpus.crew import Board, Crew, Rows, workers
from overfusion_corpus.labels import labels_of
from overfusion_corpus.model import Case
from overfusion_corpus.records import Labels, Result, Session

from advisor.hardware.gpus import find_gpu
from advisor.model.base import encode
from advisor.store.files import write_atomic

COUNTED_CASES = 70
# Kept for labels and the archive; of the rest, what one GPU, or one of several, may warm.
LAST_SECONDS, WARM_SHARE, WARM_SHARE_OF_SEVERAL = 12.0, 0.45, 0.6
RENEWED_EVERY_S = 60.0


def main(arguments: Sequence[str]) -> int:
    """Do what is asked for; 0 if there is nothing left to record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases or families; all if none")
    parser.add_argument("--out", type=Path, help="folder of the recording")
    parser.add_argument("--seconds", type=float, default=225, help="for everything (0: pack only)")
    parser.add_argument("--gpus", type=int, metavar="N", help="how many to use; all by default")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="to compile with")
    parser.add_argument("--counters", type=float, metavar="SECONDS", help="count some cases by ncu")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write an archive of the folder")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from this archive")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--serve", choices=("warm", "size", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--cores", default="", help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    chosen = [c for c in all_cases() if not options.cases or {c.id, c.family} & {*options.cases}]
    if options.list:
        sys.stdout.writelines(f"{c.id}\t{c.cause or '-'}\n" for c in chosen)
        return 0
    if options.out is None:
        parser.error("--out is needed")
    if options.resume is not None and not options.resume.is_file():
        parser.error(f"--resume: there is no {options.resume}")
    folder: Path = options.out.resolve()
    if options.serve:
        cores = tuple(int(core) for core in options.cores.split(",") if core)
        serving.serve(options.serve, folder, cores)
        return 0
    if options.count:
        counting.run_counted(chosen, folder, options.seconds)
        return 0
    return _record(options, chosen, folder)


class _Plain(argparse.RawDescriptionHelpFormatter):
    pass


def _record(options: argparse.Namespace, chosen: list[Case], folder: Path) -> int:
    started = time.monotonic()
    (folder / "cases").mkdir(parents=True, exist_ok=True)
    if options.resume is not None:
        frozen.restore(options.resume, folder)
    # Children inherit where the compilers keep their results.
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache" / "triton")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache" / "inductor")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if options.seconds > LAST_SECONDS:
        gpus = _gpus(options.gpus)
        if not gpus:
            sys.stderr.write("cases are recorded on a GPU that is in the table; none is here\n")
            return 2
        if options.counters:
            done = [case for case in chosen if _is_done(folder, case)]
            picked = _worth_counting(done, folder)
            why = counting.count(Path(sys.argv[0]).resolve(), folder, picked, options.counters)
            sys.stderr.write(f"counted{': ' + why if why else ''}\n")
        else:
            write_atomic(folder / "session.json", encode(_session()))
            _measure(options, chosen, folder, gpus)
    labels = _conclude(folder, options.pack, {})
    left = [case for case in chosen if not _is_done(folder, case)]
    sys.stderr.write(f"{len(labels.labels)} cases are there, {len(left)} are missing, ")
    sys.stderr.write(f"{time.monotonic() - started:.0f} s\n{_summary(labels)}\n")
    return 1 if left else 0


def _gpus(most: int | None) -> list[str]:
    """Names by which children see one GPU each; none if they are not known, or not alike."""
    names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    if len(names) != 1 or find_gpu(names.pop()) is None:
        return []
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    seen = [word.strip() for word in visible if word.strip()]
    return (seen or [str(i) for i in range(count)])[: min(count, most or count)]


def _is_done(folder: Path, case: Case) -> bool:
    return (folder / "cases" / f"{case.id}.json").exists()


def _session() -> Session:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    except OSError:
        said = ""
    import triton

    versions = {
        "torch": str(torch.__version__),
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": sys.version.split()[0],
    }
    driver = next(iter(said.split()), "")
    return Session(gpu=torch.cuda.get_device_name(), driver=driver, versions=versions)


# --- recording ------------------------------------------------------------------------------------


def _measure(
    options: argparse.Namespace, chosen: Sequence[Case], folder: Path, gpus: Sequence[str]
) -> None:
    """Until all is done, the time is over, or SIGTERM or an interrupt ends it."""
    ends = time.monotonic() + options.seconds - LAST_SECONDS
    share = WARM_SHARE if len(gpus) == 1 else WARM_SHARE_OF_SEVERAL
    unsized = {result.case.id for result in frozen.results(folder) if not result.sized}
    todo = [case for case in chosen if not _is_done(folder, case)]
    open_sizes = [case for case in chosen if case in todo or case.id in unsized]
    warm_ends = time.monotonic() + share * (ends - time.monotonic())
    board = Board(todo, open_sizes, warm_ends, ends)
    crew = Crew(workers(gpus, options.workers), board, folder)
    _on_signals(crew.stop)
    renewed = time.monotonic()
    while not crew.wait(0.3) and not board.stopped:
        if time.monotonic() - renewed > RENEWED_EVERY_S:
            _conclude(folder, options.pack, board.rows)
            renewed = time.monotonic()
    crew.stop()
    crew.wait(1)
    _fill(folder, board.rows)


def _on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def _fill(folder: Path, rows: Rows) -> None:
    """Put what was found about the binaries into the results that wait for it."""
    for result in frozen.results(folder):
        filled = result if result.sized else result.with_resources(rows)
        if filled != result:
            write_atomic(folder / "cases" / f"{result.case.id}.json", encode(filled))


def _conclude(folder: Path, archive: Path | None, rows: Rows) -> Labels:
    """Labels of what is there, and the archive if one is asked for."""
    _fill(folder, rows)
    labels = labels_of(frozen.results(folder))
    write_atomic(folder / "labels.json", encode(labels))
    if archive is not None and (folder / "session.json").exists():
        _pack(folder, archive)
    return labels


def _pack(folder: Path, target: Path) -> None:
    """All but the caches in one archive, whose bytes depend on the content alone; its manifest."""
    raw = folder / counting.RAW
    if raw.exists():
        packed = folder / f"{counting.RAW}.gz"
        packed.write_bytes(gzip.compress(raw.read_bytes(), 9, mtime=0))
    frozen.pack(folder, target)
    manifest = frozen.manifest(folder, target)
    write_atomic(target.parent / frozen.MANIFEST, encode(manifest))
    sys.stderr.write(f"{target}: {manifest.bytes / 1e6:.1f} MB, {manifest.cases} cases\n")


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


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
