"""Predictions against measurements: the plans of the zoo and of the samples, on one kind of GPU.

    python benchmarks/calibration.py RUN [RUN ...]      # keep what was applied in runs of samples
    python benchmarks/calibration.py --table > benchmarks/calibration.md

A run is what `fusion-advisor profile sample:NAME` and `fusion-advisor apply` left; its record is
kept in calibration.json, whatever was kept or taken out. The zoo's are in zoo.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from msgspec import convert

from advisor.model.applied import Applied
from advisor.model.base import Record, decode, encode
from advisor.model.scores import PlanScore, Scores
from advisor.store import RunDirectory
from advisor.store.files import write_atomic
from analyzers.scores import score

HERE = Path(__file__).resolve().parent
RESULTS, ZOO = HERE / "calibration.json", HERE / "zoo.json"
HEAD = "| run | plan | predicted to save | measured | of the time before | verdict |"


class Application(Record, frozen=True, kw_only=True):
    """What `apply` left in the run of a target."""

    target: str
    applied: Applied


class Results(Record, frozen=True, kw_only=True):
    """Applications of samples, by target."""

    runs: tuple[Application, ...] = ()


def read() -> Results:
    """What was kept."""
    if not RESULTS.exists():
        return Results()
    return decode(RESULTS.read_bytes(), Results, str(RESULTS))


def keep(paths: list[Path]) -> None:
    """Add runs; one of the same target is replaced."""
    found = {item.target: item for item in read().runs}
    for path in paths:
        run = RunDirectory.at(path)
        applied, target = run.applied(), run.info().target
        if applied is not None:
            found[target] = Application(target=target, applied=applied)
    ordered = tuple(found[name] for name in sorted(found))
    write_atomic(RESULTS, encode(Results(runs=ordered)) + b"\n")


def scores() -> Scores:
    """Of every plan of the zoo and of the samples."""
    zoo = [(row["model"], convert(row["applied"], Applied)) for row in json.loads(ZOO.read_text())]
    return score([*zoo, *((item.target, item.applied) for item in read().runs)])


def table(found: Scores) -> str:
    """The whole document."""
    gpus = ", ".join(sorted({plan.gpu for plan in found.plans}))
    lines = [
        f"# Predictions held against measurements on {gpus}",
        "",
        "Written by `python benchmarks/calibration.py --table`: what each plan was predicted to",
        "save of the time of the ops that it replaces (80 % interval), and what it saved, in µs.",
        "",
        *summary(found),
        "",
        HEAD,
        "|---" * (HEAD.count("|") - 1) + "|",
        *(line(plan) for plan in found.plans),
        "",
    ]
    return "\n".join(lines)


def summary(found: Scores) -> list[str]:
    """The figures that the table comes to."""
    kept = sum(plan.kept for plan in found.plans)
    lines = [
        f"- {len(found.plans)} plans, {kept} of them kept, {len(found.plans) - kept} taken out.",
        f"- {found.median_error:.1%} of the time before lie between both in the median.",
        f"- {found.coverage:.0%} of the 80 % intervals hold, as they were predicted.",
    ]
    held = found.held_out
    if held is not None and held.median_error is not None:
        lines.append(
            f"- With each run predicted as the plans of all others teach it, {held.coverage:.0%} "
            f"of {held.plans} hold, and {held.median_error:.1%} is the median error."
        )
    return lines


def line(plan: PlanScore) -> str:
    """A row of the table."""
    low, high = plan.predicted_ns.low / 1e3, plan.predicted_ns.high / 1e3
    error = "" if plan.error is None else f"{plan.error:.1%} off"
    return (
        f"| {plan.run} | {plan.title} | {low:.1f} to {high:.1f} | {plan.measured_ns.mid / 1e3:.1f} "
        f"| {error}{'' if plan.inside else ', outside'} | {'kept' if plan.kept else 'taken out'} |"
    )


def main() -> int:
    """Keep runs, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    parser.add_argument("--table", action="store_true", help="print the table of what was kept")
    options = parser.parse_args()
    if options.runs:
        keep(options.runs)
    if options.table:
        sys.stdout.write(table(scores()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
