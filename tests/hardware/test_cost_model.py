"""The kernel model against kernels that ran on an H200, and its behaviour at the edges."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import statistics
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.hardware.calibration import default_calibration, residuals
from advisor.hardware.gpus import gpu_by_key
from analyzers.cost_model import kernel_time

SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", Path(__file__).parents[2].parent / "shared"))
H200 = gpu_by_key("h200")
CALIBRATION = default_calibration(H200)
WORKLOADS = (
    "llama_prefill", "llama_train", "resnet50", "unet", "bert", "bert_cudagraph", "dlrm_train",
    "llama_decode", "mamba",
)  # fmt: skip
ITEM_BYTES = {"c10::BFloat16": 2, "c10::Half": 2, "float": 4, "long int": 8, "bool": 1}
IN_PLACE = {"aten::add_", "aten::mul_", "aten::clamp_min_"}
# FLOP and special-function results per element of ATen's kernels (expf, erff, a division).
ARITHMETIC = {"aten::silu": (10, 2), "aten::gelu": (40, 1)}


def events(workload: str) -> list[dict[str, Any]]:
    path = SHARED / "traces" / "h200" / f"{workload}.eager.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    found: list[dict[str, Any]] = msgspec.json.decode(gzip.decompress(path.read_bytes()))[
        "traceEvents"
    ]
    return found


def elementwise(workload: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(measured ns, arguments of the model) of every elementwise kernel with known operands."""
    all_events = events(workload)
    launches = {
        event["args"]["correlation"]: event
        for event in all_events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    ops = sorted((e for e in all_events if e.get("cat") == "cpu_op"), key=lambda e: float(e["ts"]))
    starts = [float(op["ts"]) for op in ops]
    for kernel in all_events:
        if kernel.get("cat") != "kernel" or "elementwise_kernel" not in kernel["name"]:
            continue
        launch = launches[kernel["args"]["correlation"]]
        at = bisect_right(starts, float(launch["ts"]))
        around = (
            op for op in reversed(ops[:at])
            if op["tid"] == launch["tid"] and float(launch["ts"]) < op["ts"] + op["dur"]
        )  # fmt: skip
        op = next(around, None)
        if op is not None and (arguments := model_arguments(op, kernel["name"])) is not None:
            yield round(float(kernel["dur"]) * 1000), arguments


def model_arguments(op: dict[str, Any], kernel: str) -> dict[str, Any] | None:
    name, inputs = op["name"], op["args"]
    tensors = [
        (dims, ITEM_BYTES[kind])
        for dims, kind in zip(inputs["Input Dims"], inputs["Input type"], strict=True)
        if dims and kind in ITEM_BYTES
    ]
    if not tensors or name not in {
        "aten::copy_", "aten::add", "aten::mul", "aten::div", "aten::silu", "aten::gelu",
        "aten::pow", "aten::neg", *IN_PLACE,
    }:  # fmt: skip
        return None
    read = sum(math.prod(dims) * size for dims, size in tensors)
    rank = max(len(dims) for dims, _ in tensors)
    shape = [
        max(([1] * (rank - len(dims)) + list(dims))[axis] for dims, _ in tensors)
        for axis in range(rank)
    ]
    elements = math.prod(shape)
    written = elements * max(size for _, size in tensors)
    if name == "aten::copy_":
        written = 0  # both sides are listed as inputs
    elif name in IN_PLACE:
        written = math.prod(tensors[0][0]) * tensors[0][1]
    flops, special = ARITHMETIC.get(name, (2, 0))
    return {
        "bytes_moved": read + written,
        "flops": flops * elements,
        "special": special * elements,
        "scalar_elements": 0 if "vectorized_elementwise" in kernel else elements,
    }


@pytest.fixture(scope="module")
def kernels() -> list[tuple[int, dict[str, Any]]]:
    return [kernel for workload in WORKLOADS for kernel in elementwise(workload)]


def predicted(arguments: dict[str, Any]) -> int:
    return kernel_time(H200, CALIBRATION, **arguments).mid


def median_error(kernels: list[tuple[int, dict[str, Any]]]) -> float:
    return statistics.median(abs(predicted(args) / measured - 1) for measured, args in kernels)


def test_memory_bound_kernels_of_ten_microseconds_are_predicted(
    kernels: list[tuple[int, dict[str, Any]]],
) -> None:
    large = [kernel for kernel in kernels if kernel[0] >= 10_000]
    vectorised = [kernel for kernel in large if not kernel[1]["scalar_elements"]]
    scalar = [kernel for kernel in large if kernel[1]["scalar_elements"]]
    assert len(vectorised) > 150
    assert len(scalar) > 150
    assert median_error(vectorised) < 0.06
    assert median_error(scalar) < 0.20
    assert median_error(large) < 0.12


def test_the_default_interval_covers_what_it_says(
    kernels: list[tuple[int, dict[str, Any]]],
) -> None:
    large = [kernel for kernel in kernels if kernel[0] >= 10_000]
    ranges = [(measured, kernel_time(H200, CALIBRATION, **args)) for measured, args in large]
    inside = sum(price.low <= measured <= price.high for measured, price in ranges) / len(ranges)
    assert inside >= CALIBRATION.coverage
    low, high = residuals([price.mid for _, price in ranges], [measured for measured, _ in ranges])
    assert low > 0.8
    assert high < 1.3


# Eager kernels of the Nsight Compute run: what they read and write per element, 2 bytes each.
TENSORS_OF = {"AUnaryFunctor": 2, "launch_clamp": 2, "CUDAFunctor_add": 3}


def test_kernels_on_flushed_caches_are_predicted_cold() -> None:
    path = SHARED / "traces" / "h200" / "ncu_model_raw.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    errors: list[float] = []
    with gzip.open(path, "rt", newline="") as lines:
        rows = csv.DictReader(lines)
        assert next(rows)["gpu__time_duration.sum"] == "us"
        for row in rows:
            measured_ns = 1000 * float(row["gpu__time_duration.sum"])
            name = row["Kernel Name"]
            tensors = [count for part, count in TENSORS_OF.items() if part in name]
            if measured_ns < 10_000 or "vectorized_elementwise_kernel<8" not in name or not tensors:
                continue
            elements = 8 * float(row["launch__thread_count"].replace(",", ""))
            moved = round(2 * elements * tensors[0])
            price = kernel_time(H200, CALIBRATION, bytes_moved=moved, warm=False)
            errors.append(abs(price.mid / measured_ns - 1))
    assert len(errors) >= 5
    assert statistics.median(errors) < 0.08


def test_small_kernels_stay_near_the_floor(kernels: list[tuple[int, dict[str, Any]]]) -> None:
    small = [
        measured
        for measured, args in kernels
        if args["bytes_moved"] < 1 << 20 and not args["scalar_elements"]
    ]
    assert statistics.median(small) == pytest.approx(CALIBRATION.kernel_floor_ns, rel=0.15)


def test_no_measured_fusion_beats_its_prediction() -> None:
    path = SHARED / "traces" / "h200" / "pattern_baselines.json"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    baselines = json.loads(path.read_text())
    rate = baselines["copy_gbps"] * 1e9
    near = 0
    for row in baselines["rows"]:
        if "inductor_frac_copy_bw" not in row:
            continue
        moved = round(row["inductor_frac_copy_bw"] * rate * row["inductor_ms"] / 1e3)
        best = 1e6 * min(row["inductor_ms"], row.get("liger_ms") or math.inf)
        price = kernel_time(H200, CALIBRATION, bytes_moved=moved)
        assert best > 0.97 * price.mid, row
        near += best < 1.12 * price.mid
    assert near >= 14, "where a compiler does well it comes close"


@given(st.integers(0, 1 << 34), st.integers(0, 1 << 34), st.integers(0, 10**13))
def test_more_work_is_never_faster(first: int, second: int, flops: int) -> None:
    low, high = sorted((first, second))
    fewer = kernel_time(H200, CALIBRATION, bytes_moved=low)
    more = kernel_time(H200, CALIBRATION, bytes_moved=high, flops=flops)
    more.check()
    assert fewer.mid <= more.mid
    assert fewer.low <= fewer.mid <= fewer.high


def test_waves_quantise_arithmetic_and_starve_bandwidth() -> None:
    def time(programs: int, **work: float) -> int:
        work = {"bytes_moved": 0, **work}
        price = kernel_time(
            H200, CALIBRATION, programs=programs, resident_programs=132, **work  # type: ignore[arg-type]
        )  # fmt: skip
        return price.mid - CALIBRATION.kernel_floor_ns

    full, tail = time(132, flops=6.69e11), time(133, flops=6.69e11 * 133 / 132)
    assert tail == pytest.approx(2 * full, rel=0.01), "one program more costs a whole wave"
    alone, spread = time(1, bytes_moved=1 << 28), time(132, bytes_moved=1 << 28)
    assert alone == pytest.approx(66 * spread, rel=0.01)
    assert time(1320, bytes_moved=1 << 28) == pytest.approx(spread, rel=0.01)


def test_the_slowest_unit_decides() -> None:
    elements = 1 << 26
    memory = kernel_time(H200, CALIBRATION, bytes_moved=4 * elements).mid
    special = kernel_time(H200, CALIBRATION, bytes_moved=4 * elements, special=8 * elements).mid
    assert special - CALIBRATION.kernel_floor_ns == pytest.approx(
        8 * elements / (16 * 132 * 1.98e9) * 1e9, rel=1e-3
    )
    assert special > memory
