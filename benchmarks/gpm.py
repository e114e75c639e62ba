"""GPM counters of the driver against Nsight Compute, on a copy, a softmax and a matrix product.

    python benchmarks/gpm.py --out FILE.json      measure (needs a GPU of compute capability 9.0+)
    python benchmarks/gpm.py --table FILE.json    gpm.md

Each kernel takes a millisecond or more and runs back to back for `WINDOW_S` while the driver
samples; then as many launches, again back to back, are one range under ncu (`--replay-mode
app-range`: the program runs once a pass, so the card is as warm and its caches are as full as
before; `--cache-control none`, `--clock-control none`). Both state fractions of a peak. Of ncu's
metrics the ones that this version knows are asked for: `METRICS` lists, for each GPM counter, the
metrics that mean the same, best first. DRAM bytes a launch are compared as well: the GPM fraction
times the peak bandwidth (memory clock by NVML, two transfers a clock, the bus width) times the time
of a launch. The copy is a negation: ncu counts kernels, and a plain copy is none.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from needed import need_gpu

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]
WINDOW_S, WINDOWS, WARM_UP_S = 1.0, 5, 0.3
METRICS = {
    "dram_bandwidth_fraction": (
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__bytes.sum.pct_of_peak_sustained_elapsed",
    ),
    "sm_active_fraction": ("sm__cycles_active.avg.pct_of_peak_sustained_elapsed",),
    "sm_occupancy_fraction": (
        "sm__warps_active.avg.pct_of_peak_sustained_elapsed",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    ),
    "tensor_active_fraction": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
    ),
}
BYTES = ("dram__bytes_read.sum", "dram__bytes_write.sum")


def main() -> None:
    """Measure, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="measure, and write this file")
    parser.add_argument("--table", type=Path, help="write gpm.md from this file")
    parser.add_argument("--launch", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        _launch_for_ncu(options.launch[0], int(options.launch[1]))
    elif options.table:
        (HERE / "gpm.md").write_text(_markdown(json.loads(options.table.read_text())))
    elif options.out:
        need_gpu()
        options.out.write_text(json.dumps(_measure(), indent=1) + "\n")
    else:
        parser.error("give --out or --table")


def _kernels() -> dict[str, Callable[[], Callable[[], object]]]:
    """Name to a function that allocates and returns the launch."""
    import torch

    def copy() -> Callable[[], object]:
        source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_(0, 255)
        target = torch.empty_like(source)
        return lambda: torch.neg(source.view(torch.bfloat16), out=target.view(torch.bfloat16))

    def softmax() -> Callable[[], object]:
        rows = torch.randn(1 << 16, 1 << 15, dtype=torch.bfloat16, device="cuda")
        target = torch.empty_like(rows)
        return lambda: torch.softmax(rows, -1, out=target)

    def matmul(size: int) -> Callable[[], object]:
        one = torch.randn(size, size, dtype=torch.bfloat16, device="cuda")
        target = torch.empty_like(one)
        return lambda: torch.matmul(one, one, out=target)

    return {
        "copy (negation) of 4 GiB": copy,
        "softmax 65536 × 32768 bf16": softmax,
        "matmul 8192³ bf16": lambda: matmul(8192),
        "matmul 16384³ bf16": lambda: matmul(16384),
    }


def _measure() -> dict[str, Any]:
    import torch

    rows = {name: _sampled(build()) for name, build in _kernels().items()}
    torch.cuda.empty_cache()
    known = _known_metrics()
    for name, row in rows.items():
        launches = round(WINDOW_S * 1e9 / row["windows"][0]["launch_ns"])
        row["ncu"] = _counted(name, launches, known)
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "peak_dram_bytes_per_s": _peak_bandwidth(),
        "kernels": rows,
    }


def _device() -> int | str:
    from collectors.live.nvml import visible_device

    return visible_device(0, os.environ)


def _peak_bandwidth() -> int:
    """Bytes a second: memory clock × 2 transfers × bus width (NVML)."""
    import pynvml  # type: ignore[import-untyped]

    pynvml.nvmlInit()
    device = _device()
    by_index = pynvml.nvmlDeviceGetHandleByIndex
    handle = (
        by_index(device) if isinstance(device, int) else pynvml.nvmlDeviceGetHandleByUUID(device)
    )
    clock = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)
    width = pynvml.nvmlDeviceGetMemoryBusWidth(handle)
    pynvml.nvmlShutdown()
    return int(clock * 1_000_000 * 2 * width // 8)


def _sampled(launch: Callable[[], object]) -> dict[str, Any]:
    import msgspec
    import torch

    from collectors.live.nvml import GpmSampler

    launch()
    torch.cuda.synchronize()
    windows: list[dict[str, Any]] = []
    for _ in range(WINDOWS):
        _loop(launch, WARM_UP_S)
        with GpmSampler(_device()) as gpm:
            launches, seconds = _loop(launch, WINDOW_S)
        counted = json.loads(msgspec.json.encode(gpm.counters))
        windows.append(counted | {"launch_ns": round(seconds / launches * 1e9)})
    return {"windows": windows}


def _loop(launch: Callable[[], object], seconds: float) -> tuple[int, float]:
    """(launches, seconds): back to back, with at most a few hundred in flight."""
    import torch

    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for _ in range(20):
            launch()
        count += 20
        torch.cuda.synchronize()
    return count, time.perf_counter() - started


def _known_metrics() -> list[str]:
    """The metrics to ask for: of those that mean the same, the first that this ncu knows."""
    from collectors.live.ncu import find_ncu

    said = subprocess.run(
        [find_ncu() or "ncu", "--query-metrics"], capture_output=True, text=True, check=False
    ).stdout
    bases = {line.split()[0] for line in said.splitlines() if line.strip()}
    known = [
        next((metric for metric in choices if metric.split(".")[0] in bases), None)
        for choices in METRICS.values()
    ]
    return [metric for metric in known if metric] + list(BYTES)


def _counted(name: str, launches: int, metrics: Sequence[str]) -> dict[str, Any]:
    from collectors.live.ncu import find_ncu

    line = [
        find_ncu() or "ncu", "--replay-mode", "app-range",
        "--clock-control", "none", "--cache-control", "none", "--csv", "--page", "raw",
        "--print-units", "base", "--metrics", ",".join(metrics),
        sys.executable, __file__, "--launch", name, str(launches),
    ]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    rows = [row for row in csv.reader(done.stdout.splitlines()) if len(row) > len(metrics)]
    if len(rows) < 3:
        return {"error": (done.stdout + done.stderr)[-600:]}
    head, _, counted = rows[:3]
    found = {
        metric: float(counted[head.index(metric)].replace(",", ""))
        for metric in metrics
        if metric in head
    }
    return found | {"launches": launches}


def _launch_for_ncu(name: str, launches: int) -> None:
    import torch

    launch = _kernels()[name]()
    _loop(launch, WARM_UP_S)
    torch.cuda.cudart().cudaProfilerStart()
    for _ in range(launches):
        launch()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


# --- the table ------------------------------------------------------------------------------------


def _markdown(result: Mapping[str, Any]) -> str:
    lines = [
        "# GPM counters against Nsight Compute",
        "",
        "Made by `python benchmarks/gpm.py --table benchmarks/gpm.json`; the method is there.",
        f"{result['device']}, torch {result['torch']}. Percent of the peak; of GPM the median of",
        f"{WINDOWS} windows of {WINDOW_S:.0f} s with the range, of ncu one range of as long.",
        "",
        "| kernel | counter | GPM | ncu | GPM / ncu |",
        "|---|---|---|---|---|",
    ]
    for name, row in result["kernels"].items():
        for counter, metrics in METRICS.items():
            theirs = next((row["ncu"][m] for m in metrics if m in row["ncu"]), None)
            ours = [w[counter] * 100 for w in row["windows"] if w[counter] is not None]
            lines.append(_line(name, counter, ours, theirs))
        lines.append(_bytes_line(name, row, result["peak_dram_bytes_per_s"]))
    return "\n".join([*lines, ""])


def _line(name: str, counter: str, ours: Sequence[float], theirs: float | None) -> str:
    if not ours or theirs is None:
        return f"| {name} | {counter} | unknown | unknown | |"
    middle = statistics.median(ours)
    ratio = f"{middle / theirs:.3f}" if theirs > 1 else ""
    spread = f"{middle:.1f} ({min(ours):.1f} … {max(ours):.1f})"
    return f"| {name} | {counter} | {spread} | {theirs:.1f} | {ratio} |"


def _bytes_line(name: str, row: Mapping[str, Any], peak: int) -> str:
    windows = [w for w in row["windows"] if w["dram_bandwidth_fraction"] is not None]
    if not windows or BYTES[0] not in row["ncu"]:
        return f"| {name} | DRAM bytes a launch | unknown | unknown | |"
    ours = statistics.median(
        w["dram_bandwidth_fraction"] * peak * w["launch_ns"] / 1e9 for w in windows
    )
    theirs = (row["ncu"][BYTES[0]] + row["ncu"][BYTES[1]]) / row["ncu"]["launches"]
    cells = (f"{ours / 1e9:.2f} GB", f"{theirs / 1e9:.2f} GB", f"{ours / theirs:.3f}")
    return f"| {name} | DRAM bytes a launch | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
