"""One run judged alone, and what runs and kernels from elsewhere may try."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import decode, encode
from advisor.model.overfusion import KernelCode
from advisor.model.step_record import DRIVER, Launch, StepRecord, Tensor
from analyzers.overfusion.alone import judge_alone
from analyzers.overfusion.facts import step_facts
from analyzers.overfusion.judge import judge_pair
from analyzers.overfusion.members_model import members_ns
from collectors import read_trace
from tests.builders.steps import COLUMNS, FULL, ROWS, launch, step

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def gate(v):
    return v / (1.0 + tl.exp(-v))

@triton.jit
def kernel(x, y, out, columns, BLOCK: tl.constexpr, TAPS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(TAPS):
        total += gate(tl.load(x + at + j))
    tl.store(out + at, total + tl.load(y + at * columns))
"""


def test_few_programs_and_low_bandwidth_are_raised_from_a_trace_alone() -> None:
    (verdict,) = judge_alone(step(launch("sums", 900, grid=(32, 1, 1), operands=(FULL, FULL))))
    assert (verdict.outcome, verdict.cause, verdict.tier) == (
        "regression", "too_few_programs", "trace",
    )  # fmt: skip


def test_one_slow_launch_of_many_alike_or_one_time_alone_is_no_loss() -> None:
    sums = launch("sums", 900, grid=(32, 1, 1), operands=(FULL, FULL))
    high = members_ns(sums, gpu_by_key("h200"))
    assert high is not None
    fast = launch("sums", high.high / 1_000, grid=(32, 1, 1), operands=(FULL, FULL))
    assert judge_alone(step(fast, fast, sums))[0].outcome == "benign"
    assert judge_alone(step(fast, sums, sums))[0].outcome == "regression"
    time_ns = round(1.8 * high.high)
    seldom = replace(sums, time_ns=time_ns, times_ns=(time_ns,))
    assert judge_alone(step(seldom))[0].outcome == "benign"
    assert judge_alone(step(seldom, seldom))[0].outcome == "regression"


@pytest.mark.parametrize(
    "benign",
    [
        launch("nvjet_sm90_tst_256x128", 900, library="cublas", role="gemm", registers=255),
        launch("tiny", 3, grid=(4, 1, 1), operands=(Tensor(shape=(64,), dtype="float"),)),
        launch("flash_fwd_kernel", 900, library="flash", role="attention", registers=255),
        launch("near_roof", 220, registers=255, operands=(FULL, FULL)),
        launch("slow_for_no_reason", 5_000, operands=(FULL, FULL)),
        launch("unknown_work", 5_000, operands=(), grid=(8, 1, 1)),
    ],
    ids=lambda one: one.name,
)
def test_look_alikes_are_silent(benign: Launch) -> None:
    assert not [v for v in judge_alone(step(benign)) if v.outcome == "regression"]


@pytest.mark.parametrize(
    ("constants", "aligned", "cause"),
    [
        ({"BLOCK": 1_024, "TAPS": 9}, ("x", "y", "out"), "recompute"),
        ({"BLOCK": 1_024, "TAPS": 1}, ("x", "y", "out"), "uncoalesced_access"),
    ],
)
def test_the_source_explains_a_loss(
    constants: dict[str, int], aligned: tuple[str, ...], cause: str
) -> None:
    code = KernelCode(
        name="kernel", source=KERNEL, constants=dict(constants), aligned=aligned, num_warps=4,
        signature={"x": "*fp32", "y": "*fp32", "out": "*fp32", "columns": "i32"},
    )  # fmt: skip
    before = step(launch("first", 150), launch("second", 150))
    fused = launch("kernel", 900, grid=(ROWS * COLUMNS // 1_024, 1, 1), threads=128)
    (lost,) = judge_pair(before, step(fused, codes=(code,))).regressions
    assert lost.cause == cause


def test_few_long_rows_may_have_members_that_fill_no_more_of_the_device() -> None:
    """A norm of 64 rows by 64 programs: so do libraries, at half of the bandwidth at worst."""
    long = Tensor(shape=(64, 262_144), dtype="c10::BFloat16")
    gpu = gpu_by_key("h200")
    outcomes = []
    for time_us in (100, 400):
        norm = launch("norm", time_us, grid=(64, 1, 1), operands=(long, long))
        walked = replace(norm, grid=(32, 1, 1))
        mine, others = members_ns(norm, gpu), members_ns(walked, gpu)
        assert mine is not None
        assert others is not None
        assert mine.high == pytest.approx(others.high * gpu.sm_count / 64, rel=1e-4)
        outcomes += [judge_alone(step(one))[0].outcome for one in (norm, walked)]
    assert outcomes == ["benign", "regression", "regression", "regression"]


def copied(count: int, layer_us: float) -> StepRecord:
    """Sixteen layers, and what they wrote (64 MiB, 1.2 ms) in so many copies on another stream."""
    part = Tensor(shape=(1 << 20,), dtype="float")
    launches, each = [], 16 // count
    end = free = 0
    for layer in range(16):
        one = launch(f"layer_{layer}", layer_us, operands=(part,), grid=(1_024, 1, 1), start_ns=end)
        launches.append(replace(one, role="gemm", library="cublas"))
        end += one.time_ns
        if (layer + 1) % each == 0:
            name, size = "copy device to host", each * part.size_bytes
            sent = launch(
                name, 75 * each, role="copy", library=DRIVER, stream=8, copied_bytes=size,
                operands=(), start_ns=max(end, free),
            )  # fmt: skip
            launches.append(sent)
            free = sent.end_ns
    return step(*launches)


@pytest.mark.parametrize(
    ("count", "layer_us", "lost"),
    [
        (1, 300, True),
        (1, 70, True),
        # A copy for every layer is no faster where layers are shorter than the host takes.
        (2, 70, False),
        (1, 10, False),
        (16, 300, False),
    ],
)
def test_merged_copies_are_held_against_a_copy_for_each_kernel(
    count: int, layer_us: float, lost: bool
) -> None:
    raised = [v for v in judge_alone(copied(count, layer_us)) if v.outcome == "regression"]
    assert [verdict.cause for verdict in raised] == ["lost_overlap"] * lost


def test_loads_that_are_shifted_against_each_other_cost_the_members_too() -> None:
    gpu, high = gpu_by_key("h200"), []
    half = Tensor(shape=(ROWS, COLUMNS), dtype="c10::BFloat16")
    for taps in (1, 12, 15):
        code = KernelCode(
            name="kernel", source=KERNEL, constants={"BLOCK": 1_024, "TAPS": taps}, num_warps=4,
            signature={"x": "*bf16", "y": "*bf16", "out": "*bf16", "columns": "i32"},
        )  # fmt: skip
        grid = (ROWS * COLUMNS // 1_024, 1, 1)
        found = members_ns(launch("kernel", 900, grid=grid, operands=(half,) * 3, code=code), gpu)
        assert found is not None
        high.append(found.high)
    assert high[0] < high[1] < high[2]


# --- from elsewhere -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "a = 'a' * 10**12",
        "a = (1, 2)\n    for i in tl.static_range(500):\n        a = a + a",
        "a = 1\n    for i in tl.static_range(500):\n        a = (a, a)\n    a = a * 2",
        "a = 3\n    for i in tl.static_range(500):\n        a *= a",
        "a = 9**9**9",
        f"a = tl.exp(tl.load(y + tl.arange(0, 1{'0' * 400})))",
        f"a = 1\n    for i in range(1{'0' * 400}):\n        tl.atomic_add(x + i, 1)",
        f"a = {'(' * 3_000}1{')' * 3_000}",
        "while True:\n        a = 1",
    ],
)
def test_hostile_source_is_given_up_in_time(body: str) -> None:
    """Kernels of a run from elsewhere are read: no line of theirs takes memory, time or a crash."""
    head = "@triton.jit\ndef kernel(x, y, N: tl.constexpr):\n    "
    code = KernelCode(
        name="kernel", source=f"{head}{body}\n    tl.store(x, a)\n", constants={"N": 4},
        signature={"x": "*fp32", "y": "*fp32"}, num_warps=4,
    )  # fmt: skip
    fused = step(launch("kernel", 9_000), codes=(code,))
    judge_alone(fused)
    assert judge_pair(step(launch("member", 100)), fused).regressions


def test_a_trace_with_sizes_that_cannot_be_makes_a_step_that_can_be_read(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for at, shape in enumerate(([-1, 5], [2**70], [[3, 4], [-2]], [1e3, 2], ["a"], [True], [8])):
        start, mine = 1_000.0 + 100 * at, {"External id": at + 1, "correlation": at + 5}
        kernel = {"device": 0, "stream": -7, "grid": [-8, 1, 1], "block": [-128, 1, 1],
                  "registers per thread": -255}  # fmt: skip
        events += [
            {"ph": "X", "cat": cat, "name": name, "ts": start + late, "dur": 50.0, "pid": 1,
             "tid": 1, "args": {**mine, **more}}
            for cat, name, late, more in (
                ("cpu_op", "my::op", 0, {"Input Dims": [shape], "Input type": ["float"]}),
                ("cuda_runtime", "cudaLaunchKernel", 5, {}),
                ("kernel", f"kernel_{at}", 20, kernel),
            )
        ]  # fmt: skip
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = step_facts(read_trace(path))
    assert decode(encode(found), StepRecord) == found
    assert found.launches[-1].operands[0].shape == (8,)
    assert not any(launch.operands for launch in found.launches[:2])
