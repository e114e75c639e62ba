"""Applies the product's cures to the losing cases of the corpus: how much time do they win back?

    python benchmarks/overfusion_cures.py --prepare WORK.json [CASE or FAMILY ...]
    python benchmarks/overfusion_cures.py --work WORK.json [--seconds 110] [--out FILE.json]
    python benchmarks/overfusion_cures.py [--seconds 200] [--out FILE.json] [CASE or FAMILY ...]

For every case that lost, the cause is what the rules say of its recorded traces (`--labels`: what
the corpus's label says). All cures of that cause are built, checked against the members' results
and timed in turn with the case as it is and its members, by GPU-busy time with flushed caches, as
the corpus was. What a case lost is fused less members; a cure wins back fused less cured.

What needs no GPU (causes, launches proved by compiling) can be prepared elsewhere. First many
processes run everything once, so that it is compiled; then every GPU has one process that measures,
with nothing beside it. The bar is a median of 80 % won back by the best cure, what `apply` would
keep; beside it stands the cure that was named first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec
import torch
from overfusion_cases import facts_of
from overfusion_corpus import cures, frozen, measure, serving
from overfusion_corpus.cures import Relaunching, Way
from overfusion_corpus.frozen import Recording
from overfusion_corpus.labels import LARGEST_ERROR, LOSES_ABOVE
from overfusion_corpus.model import Case, Run

from advisor.hardware.gpus import find_gpu
from advisor.model.base import Record, encode, load
from advisor.model.overfusion import Cause
from advisor.pipeline.launch_cures import Relaunch, proved
from advisor.store.files import write_atomic
from advisor.verify.recording import gpu_recorder
from advisor.verify.resources import ResourceRequest
from advisor.verify.timing import flusher
from analyzers.overfusion.judge import judge_pair

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "sample_traces" / "overfusion" / "MANIFEST.json"
CUDA = torch.device("cuda")
BAR = 0.8
ROUNDS = 11
# How long one launch may compile; of the time of the GPUs, what may go by before they measure.
COMPILE_LIMIT_S, WARMING = 60.0, 0.5
MOST_TO_WARM = 10
TABLE_HEAD = """# Cures of fusions that lost

Written by `python benchmarks/overfusion_cures.py --table`: the cures that the product names for the
losing cases of the corpus, applied and timed as the corpus was. What a case lost is the time of its
fused kernel less that of its members; a cure wins back the fused kernel's time less its own."""


class Launched(Record, frozen=True, kw_only=True):
    """A launch that compiling has proved, as it goes to the process that times it."""

    request: ResourceRequest
    words: str
    tiles: dict[str, tuple[int, int]] = {}


class Work(Record, frozen=True, kw_only=True):
    """One case to cure, and the launches for it."""

    case: str
    cause: Cause
    launches: tuple[Launched, ...] = ()


class AllWork(Record, frozen=True, kw_only=True):
    """All cases to cure, and those of which no cause is named; `causes` says by what."""

    causes: str
    cases: tuple[Work, ...]
    unnamed: tuple[str, ...] = ()


class Cured(Record, frozen=True, kw_only=True):
    """A case with its cures: median GPU-busy ns of one run; `why` where nothing was measured."""

    case: str
    cause: Cause | None
    fused_ns: int | None = None
    members_ns: int | None = None
    ways: tuple[Way, ...] = ()
    why: str = ""

    @property
    def loses(self) -> bool:
        """Whether the case was timed and loses in this run too, as the corpus counts it."""
        if self.fused_ns is None or self.members_ns is None:
            return False
        return self.fused_ns > LOSES_ABOVE * self.members_ns

    def won_back(self) -> list[tuple[Way, float]]:
        """The ways that were timed, each with the share of the loss that it wins back.

        Above 1 where it beats the members; nothing of a case that does not lose.
        """
        if not self.loses or self.fused_ns is None or self.members_ns is None:
            return []
        lost = self.fused_ns - self.members_ns
        return [
            (way, (self.fused_ns - way.time_ns) / lost)
            for way in self.ways
            if way.time_ns is not None
        ]


class Report(Record, frozen=True, kw_only=True):
    """All cases of one measurement."""

    gpu: str
    causes: str
    cases: tuple[Cured, ...]


def main(arguments: Sequence[str]) -> int:
    """Measure and report; 0 if the bar is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases or families; all if none")
    parser.add_argument("--seconds", type=float, default=110, help="for everything")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--table", type=Path, metavar="FILE.md", help="write the table")
    parser.add_argument("--labels", action="store_true", help="take causes from the labels")
    parser.add_argument("--prepare", type=Path, metavar="FILE", help="write the work and end")
    parser.add_argument("--work", type=Path, metavar="FILE", help="what was prepared")
    parser.add_argument("--serve", choices=("warm", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve is not None:
        return _serve(options.serve, options.folder)
    ends = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recording = frozen.unpack(MANIFEST, folder / "corpus")
        work = load(options.work, AllWork) if options.work else _prepared(options, recording)
        if options.prepare is not None:
            options.prepare.write_bytes(encode(work))
            return 0
        if not torch.cuda.is_available():
            parser.error("cures are timed on a GPU; --prepare needs none")
        found = [Cured(case=name, cause=None, why="no cause is named") for name in work.unnamed]
        found += _on_all_gpus(work.cases, folder, ends)
    report = Report(gpu=torch.cuda.get_device_name(), causes=work.causes, cases=tuple(found))
    if options.out is not None:
        options.out.write_bytes(encode(report))
    text, won = summary(report)
    if options.table is not None:
        options.table.write_text(f"{TABLE_HEAD}\n\n{text}")
    sys.stdout.write(text)
    return 0 if won >= BAR else 1


def _prepared(options: argparse.Namespace, recording: Recording) -> AllWork:
    """The causes of all losing cases, and for each what may be launched otherwise."""
    lost = [label for label in recording.labels.values() if label.verdict == "regression"]
    cases = {label.id: recording.results[label.id].case for label in lost}
    chosen = [c for c in cases.values() if not options.cases or {c.id, c.family} & {*options.cases}]
    causes = {c.id: cause_of(recording, c, by_label=options.labels) for c in _in_turn(chosen)}
    gpu = find_gpu(recording.session.gpu)
    assert gpu is not None
    noted = [
        (name, cause, note)
        for name, cause in causes.items()
        if cause is not None
        for note in cures.noted(cases[name])
    ]
    asked = [(note.request, cause, note.known) for _, cause, note in noted]
    launches: dict[str, list[Launched]] = defaultdict(list)
    sized = proved(asked, gpu, timeout_s=COMPILE_LIMIT_S, processes=os.cpu_count())
    for (name, _, _), group in zip(noted, sized, strict=True):
        launches[name] += [_told(one) for one, _ in group[: cures.MOST_LAUNCHES]]
    return AllWork(
        causes="labels" if options.labels else "rules",
        cases=tuple(
            Work(case=name, cause=cause, launches=tuple(launches[name]))
            for name, cause in causes.items()
            if cause is not None
        ),
        unnamed=tuple(name for name, cause in causes.items() if cause is None),
    )


def _in_turn(cases: Sequence[Case]) -> list[Case]:
    """One case of a family after another's, so that time that ends leaves some of all."""
    order: Counter[str] = Counter()
    ranked = []
    for case in cases:
        ranked.append((order[case.family], case))
        order[case.family] += 1
    return [case for _, case in sorted(ranked, key=lambda pair: pair[0])]


def cause_of(recording: Recording, case: Case, *, by_label: bool) -> Cause | None:
    """What made a case lose: by the rules, from its traces and binaries, or by its label."""
    if by_label:
        cause: Cause | None = recording.labels[case.id].cause
        return cause
    before, after = (facts_of(recording, case.id, way) for way in ("members", "fused"))
    return next((v.cause for v in judge_pair(before, after).regressions if v.cause), None)


def _told(one: Relaunch) -> Launched:
    # By name: elsewhere the file lies in another place.
    request = msgspec.structs.replace(one.request, source=Path(one.request.source).name)
    return Launched(request=request, words=one.words, tiles=dict(one.tiles))


# --- on the GPUs ----------------------------------------------------------------------------------


def _on_all_gpus(work: Sequence[Work], folder: Path, ends: float) -> list[Cured]:
    """Compile by running everything once, then measure; what has no result in time says so."""
    for name in ("warm", "measure", "taken", "done"):
        (folder / name).mkdir()
    for number, one in enumerate(work):
        for name in ("warm", "measure"):
            (folder / name / f"{number:03}.json").write_bytes(encode(one))
    gpus = list(range(torch.cuda.device_count()))
    warmers = min(MOST_TO_WARM * len(gpus), max(2, (os.cpu_count() or 2) * 2 // 3))
    warming = [_child("warm", folder, gpus[n % len(gpus)]) for n in range(warmers)]
    _wait(warming, time.monotonic() + (ends - time.monotonic()) * WARMING)
    _wait([_child("measure", folder, gpu) for gpu in gpus], ends)
    done = [load(path, Cured) for path in sorted((folder / "done").glob("*.json"))]
    names = {one.case for one in done}
    left = [w for w in work if w.case not in names]
    return done + [Cured(case=w.case, cause=w.cause, why="no time was left") for w in left]


def _child(role: str, folder: Path, gpu: int) -> subprocess.Popen[bytes]:
    visible = [w for w in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if w]
    line = [sys.executable, str(Path(__file__).resolve()), "--serve", role, "--folder", str(folder)]
    return subprocess.Popen(
        line,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": visible[gpu] if visible else str(gpu),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TRITON_CACHE_DIR": str(folder / "cache" / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor"),
        },
    )


def _wait(children: Sequence[subprocess.Popen[bytes]], ends: float) -> None:
    for child in children:
        try:
            child.wait(max(ends - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _serve(role: str, folder: Path) -> int:
    """The child: takes one case after another; each result is a file of its own."""
    recording = frozen.read(folder / "corpus")
    measure.prepare()
    for path in sorted((folder / role).glob("*.json")):
        taken = folder / "taken" / f"{role}.{path.name}"
        try:
            path.rename(taken)
        except FileNotFoundError:  # another process has it
            continue
        work = load(taken, Work)
        case = recording.results[work.case].case
        try:
            cured = _cure(case, work, recording, rounds=ROUNDS if role == "measure" else 0)
        except Exception as error:  # compilers and drivers raise anything
            said = next(iter(str(error).splitlines()), "")[:160]
            cured = Cured(case=work.case, cause=work.cause, why=f"{type(error).__name__}: {said}")
            if not serving.usable():
                raise
        if role == "measure":
            write_atomic(folder / "done" / path.name, encode(cured))
        measure.cleared(case)
    return 0


def _cure(
    case: Case, work: Work, recording: Recording, rounds: int, device: torch.device = CUDA
) -> Cured:
    """The case with all its cures, each run once, and `rounds` times in turn."""
    scope = Relaunching(device)
    launches = [Relaunch(one.request, one.words, one.tiles) for one in work.launches]
    pair, ways = cures.ways_of(case, work.cause, launches, scope, recording)
    wanted = [t.float().clone() for t in pair.members()]
    pair.fused()
    right = [(way, run) for way, run in ways if _agrees(run, wanted)]
    if not rounds:
        return Cured(case=case.id, cause=work.cause)
    runs = {"fused": pair.fused, "members": pair.members}
    runs |= {str(number): run for number, (_, run) in enumerate(right)}
    times = gpu_recorder(runs, rounds, flusher(device))
    middle = {name: round(median(found)) for name, found in times.items()}
    return Cured(
        case=case.id,
        cause=work.cause,
        fused_ns=middle["fused"],
        members_ns=middle["members"],
        ways=tuple(
            msgspec.structs.replace(way, time_ns=middle[str(number)])
            for number, (way, _) in enumerate(right)
        ),
        why="" if right else "no cure agrees with the members",
    )


def _agrees(run: Run, wanted: Sequence[torch.Tensor]) -> bool:
    """Whether a cure computes what the members do; one that cannot be launched does not."""
    try:
        got = [t.float() for t in run()]
        torch.cuda.synchronize()
    except (RuntimeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return False
    gaps = [
        float((mine - other).abs().max() / other.abs().max().clamp(min=1e-30))
        for mine, other in zip(got, wanted, strict=True)
    ]
    return all(gap <= LARGEST_ERROR for gap in gaps)


# --- the figures ----------------------------------------------------------------------------------


def summary(report: Report) -> tuple[str, float]:
    """A table by cause, and the median share that the best cure of a case wins back.

    What did not lose this time has nothing to be won back: it is named and not counted.
    """
    lucky = [one for one in report.cases if one.fused_ns is not None and not one.loses]
    won = {one.case: one.won_back() for one in report.cases}
    measured = [one for one in report.cases if won[one.case]]
    losing = len(report.cases) - len(lucky)
    head = f"{len(measured)} of {losing} losing cases cured on {report.gpu}"
    lines = [f"{head}, causes by {report.causes}", "", *_by_cause(measured, won)]
    # A case without a cure wins nothing back; it counts.
    shares = [max(share for _, share in won[one.case]) for one in measured]
    total = median([*shares, *[0.0] * (losing - len(measured))]) if losing else 0.0
    kept = [
        max((share for way, share in won[one.case] if way.kind != "separate"), default=0.0)
        for one in measured
    ]
    apart = f", {median(kept):.0%} without keeping things separate" if kept else ""
    lines += ["", f"All: {total:.0%} won back in the median{apart} (bar: {BAR:.0%})"]
    lines += ["", *(f"- {one.case}: {one.why}" for one in report.cases if one.why)]
    lines += [
        f"- {one.case}: lost nothing this time ({one.fused_ns} ns, its members {one.members_ns} ns)"
        for one in lucky
    ]
    return "\n".join(lines) + "\n", total


def _by_cause(
    measured: Sequence[Cured], won: Mapping[str, Sequence[tuple[Way, float]]]
) -> list[str]:
    """A row a cause: what the best cure of its cases wins back, and the one that is named first."""
    lines = [
        "| cause | cases | won back, median | by the cure named first | best cures |",
        "|---|---|---|---|---|",
    ]
    for cause in sorted({str(one.cause) for one in measured}):
        own = [won[one.case] for one in measured if str(one.cause) == cause]
        best = [max(ways, key=lambda pair: pair[1]) for ways in own]
        most = median(share for _, share in best)
        first = median(ways[0][1] for ways in own)
        kinds = Counter(way.kind for way, _ in best)
        words = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        lines.append(f"| {cause} | {len(own)} | {most:.0%} | {first:.0%} | {words} |")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
