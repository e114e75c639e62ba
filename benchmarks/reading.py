"""How fast a gigabyte of trace becomes a report, beside others on the same files.

    python benchmarks/reading.py [--size-mb 1000] [--runs 3] [--others PYTHON]

Inputs are recorded traces repeated to the size asked for (`reading_inputs`), without and with
Python stacks, plain and gzipped. Every run is a process of its own; the time is its wall time, the
memory the largest sum of what it and its children hold (pages that they share counted once),
sampled every 30 ms. Each input is first checked: the report's kernels and their total time are
those the input was built with. `--others` names a Python with orjson and HolisticTraceAnalysis
0.5.0. Writes reading.json and reading.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from needed import need_traces
from reading_inputs import Tiled, tile

HERE = Path(__file__).parent
ROOT = HERE.parent
SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", ROOT.parent / "shared"))
RECORDED = SHARED / "traces" / "h200"
SMALL_MB, HTA_MB = 60, 200
SAMPLE_S = 0.03
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
JSON_LOAD = "import json, sys; json.load(open(sys.argv[1], 'rb'))"
ORJSON = "import orjson, sys; orjson.loads(open(sys.argv[1], 'rb').read())"
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir='')
found.get_gpu_kernel_breakdown(visualize=False)
found.get_idle_time_breakdown(ranks=[0], visualize=False)
"""


class Run(NamedTuple):
    """One process: wall seconds, processor seconds, largest resident bytes, load before."""

    wall_s: float
    cpu_s: float
    memory_bytes: int
    load: float


class Subject(NamedTuple):
    """What is measured, on which input; `command` ends with the file."""

    name: str
    command: list[str]
    tiled: Tiled


def main() -> None:
    """Make the inputs, measure, write both files."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        inputs = _inputs(Path(folder), options.size_mb)
        rows = [_measured(subject, options.runs) for subject in _subjects(inputs, options.others)]
    result = {
        "machine": _machine(),
        "runs": options.runs,
        "note": options.note,
        "rows": rows,
    }
    (HERE / "reading.json").write_text(json.dumps(result, indent=2) + "\n")
    (HERE / "reading.md").write_text(_markdown(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size-mb", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where the inputs go while it runs")
    parser.add_argument("--others", default=None, help="a Python with orjson and HTA 0.5.0")
    parser.add_argument("--note", default="", help="a remark for the result")
    return parser.parse_args()


def _inputs(folder: Path, size_mb: int) -> dict[str, Tiled]:
    need_traces(RECORDED)
    sources = sorted(RECORDED.glob("*.json.gz"))
    with_stacks = [p for p in sources if b"python_function" in gzip.decompress(p.read_bytes())]
    without = [path for path in sources if path not in with_stacks]
    made = {}
    for name, chosen, size in (
        ("without stacks", without, size_mb),
        ("with stacks", with_stacks, size_mb),
        ("small", without, SMALL_MB),
        ("for HTA", without, HTA_MB),
    ):
        made[name] = tile(chosen, folder / f"{name.replace(' ', '_')}.json", size * 1_000_000)
    for name in ("without stacks", "with stacks"):
        packed = made[name].path.with_suffix(".json.gz")
        with packed.open("wb") as out:
            subprocess.run(["gzip", "-6", "-c", str(made[name].path)], stdout=out, check=True)
        made[f"{name}, gzip"] = made[name]._replace(path=packed, size_bytes=packed.stat().st_size)
    return made


def _subjects(inputs: dict[str, Tiled], others: str | None) -> list[Subject]:
    ours = [str(Path(sys.executable).parent / "fusion-advisor"), "analyze", "-o", os.devnull]
    plain = inputs["without stacks"]
    subjects = [Subject(f"fusion-advisor analyze, {name}", ours, inputs[name]) for name in inputs]
    subjects.append(Subject("json.load, without stacks", [sys.executable, "-c", JSON_LOAD], plain))
    if others:
        subjects.append(Subject("orjson, without stacks", [others, "-c", ORJSON], plain))
        subjects.append(Subject("HTA 0.5.0, for HTA", [others, "-c", HTA], inputs["for HTA"]))
    return subjects


def _measured(subject: Subject, runs: int) -> dict[str, Any]:
    _check(subject)
    done = [_run([*subject.command, str(subject.tiled.path)]) for _ in range(runs)]
    row = {
        "subject": subject.name,
        "input_bytes": subject.tiled.size_bytes,
        "kernels": subject.tiled.kernels,
        "wall_s": round(statistics.median(run.wall_s for run in done), 2),
        "wall_s_all": [round(run.wall_s, 2) for run in done],
        "cpu_s": round(statistics.median(run.cpu_s for run in done), 2),
        "memory_mb": round(max(run.memory_bytes for run in done) / 1e6),
        "load": [round(run.load, 1) for run in done],
    }
    print(row)  # noqa: T201 - progress of a benchmark
    return row


def _check(subject: Subject) -> None:
    """The report of this input is right; only ours makes one."""
    if "analyze" not in subject.command:
        return
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [report if part == os.devnull else part for part in subject.command]
        subprocess.run([*command, subject.tiled.path], check=True, stdout=subprocess.DEVNULL)
        metrics = json.loads(report.read_text())["metrics"]
    found = metrics["kernels"]["value"], metrics["kernel_time_sum_ns"]["value"]
    if found != (subject.tiled.kernels, subject.tiled.kernel_time_sum_ns):
        sys.exit(f"{subject.name}: wrong figures {found}, expected {subject.tiled}")


def _run(command: list[str]) -> Run:
    load = os.getloadavg()[0]
    before = os.times()
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        most = max(most, _held_bytes(process.pid))
        time.sleep(SAMPLE_S)
    wall = time.perf_counter() - began
    after = os.times()
    if process.returncode:
        sys.exit(f"{command} failed with {process.returncode}")
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return Run(wall, cpu, most, load)


def _held_bytes(pid: int) -> int:
    """Bytes in memory of a process and all below it; 0 for those that have just ended."""
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    total = int(found[1]) * 1024 if found else 0
    return total + sum(_held_bytes(int(child)) for child in children)


def _machine() -> dict[str, Any]:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def _markdown(result: dict[str, Any]) -> str:
    rows = result["rows"]
    machine = result["machine"]
    lines = [
        "# Reading a gigabyte of trace",
        "",
        "Made by `python benchmarks/reading.py`; the method is described there.",
        f"{machine['cores']} cores of {machine['processor']}, Python {machine['python']}, "
        f"median of {result['runs']} runs.",
        "",
        *([result["note"], ""] if result["note"] else []),
        "| what | input | kernels | wall s (best) | processor s | memory MB | load before |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['subject']} | {row['input_bytes'] / 1e6:,.0f} MB | {row['kernels']:,} "
        f"| {row['wall_s']:.2f} ({min(row['wall_s_all']):.2f}) | {row['cpu_s']:.2f} "
        f"| {row['memory_mb']:,} "
        f"| {', '.join(map(str, row['load']))} |"
        for row in rows
    ]
    return "\n".join([*lines, "", *_ratios({row["subject"]: row for row in rows}), ""])


def _ratios(rows: dict[str, dict[str, Any]]) -> list[str]:
    ours = "fusion-advisor analyze, "
    pairs = (
        ("gzip against plain", f"{ours}without stacks, gzip", f"{ours}without stacks"),
        ("json.load against us", "json.load, without stacks", f"{ours}without stacks"),
        ("orjson against us", "orjson, without stacks", f"{ours}without stacks"),
        ("HTA against us", "HTA 0.5.0, for HTA", f"{ours}for HTA"),
    )
    return [
        f"- {name}: {rows[a]['wall_s'] / rows[b]['wall_s']:.2f}× the wall time, "
        f"{rows[a]['cpu_s'] / rows[b]['cpu_s']:.2f}× the processor time"
        for name, a, b in pairs
        if a in rows and b in rows
    ]


if __name__ == "__main__":
    main()
