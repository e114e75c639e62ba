"""The kernel model against kernels that ran on an H200: the benchmark's figures, and the paths."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from advisor.hardware.calibration import SPREADS, default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.optable import ITEM_BYTES
from analyzers.access import walk
from analyzers.eager_work import Launch, converts, eager_work, index_instructions
from analyzers.recorded_ops import Operand, RecordedOp

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", ROOT.parent / "shared"))
H200 = gpu_by_key("h200")


@pytest.fixture(scope="module")
def benchmark() -> Any:
    if not (SHARED / "traces" / "h200").exists():
        pytest.skip(f"no recorded traces in {SHARED}")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("kernel_model")


@pytest.fixture(scope="module")
def table(benchmark: Any) -> dict[str, Any]:
    found: dict[str, Any] = benchmark.measured_table(
        *([k for name in names for k in benchmark.recorded(name)]
          for names in (benchmark.FITTED_ON, benchmark.SCORED_ON)),
        default_calibration(H200),
    )  # fmt: skip
    return found


@pytest.mark.parametrize(("half", "kernels"), [("scored", 650), ("fitted", 1_000)])
def test_memory_bound_kernels_of_ten_microseconds_are_predicted(
    table: dict[str, Any], half: str, kernels: int
) -> None:
    row = table[half]["all"]
    assert row["kernels"] > kernels
    assert row["median_error"] < 0.05
    assert row["within_15_percent"] > 0.85
    assert all(trace["median_error"] < 0.15 for trace in table[half]["by_trace"].values())
    assert table[half]["not_modelled_time_share"] < 0.06


def test_the_interval_holds_four_of_five_kernels_it_was_not_fitted_on(
    table: dict[str, Any],
) -> None:
    assert 0.75 <= table["scored"]["all"]["coverage"] <= 0.85


def test_the_spreads_that_ship_are_those_of_the_fitted_half(table: dict[str, Any]) -> None:
    for pattern, spread in table["spreads"].items():
        assert SPREADS[pattern] == pytest.approx(spread, abs=0.002)


def test_the_published_table_is_what_the_traces_give(table: dict[str, Any]) -> None:
    published = json.loads((ROOT / "benchmarks" / "kernel_model.json").read_text())
    assert published["scored"]["all"] == pytest.approx(table["scored"]["all"], abs=1e-3)
    assert published["constants"] == table["constants"]


def test_the_path_of_every_elementwise_kernel_follows_from_its_operands(benchmark: Any) -> None:
    seen: dict[str, int] = {}
    for name in (*benchmark.FITTED_ON, *benchmark.SCORED_ON):
        for kernel in () if name.startswith("ncu") else benchmark.recorded(name):
            work = eager_work(kernel.op, kernel.launch, H200)
            if "elementwise_kernel" not in kernel.name or work is None:
                continue
            if "GroupNorm" in kernel.name:  # two operands of it are temporaries of the op
                continue
            actual = (
                "vector" if "vectorized" in kernel.name
                else "cast" if "unrolled" in kernel.name else "index"
            )  # fmt: skip
            assert work.pattern == actual, kernel
            seen[actual] = seen.get(actual, 0) + 1
    assert min(seen.values()) > 50
    assert sum(seen.values()) > 800


def dense(*shape: int, dtype: str = "float16") -> Operand:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return Operand(dtype, shape, tuple(strides))


def loop(*operands: Operand, result_bytes: int = 2, mixed: bool = False) -> Any:
    sizes = [ITEM_BYTES[item.dtype] for item in operands]
    return walk(operands, sizes, result_bytes=result_bytes, converts=mixed)


def test_axes_that_all_operands_lay_out_alike_are_joined() -> None:
    assert (loop(dense(4, 8, 16), dense(4, 8, 16)).path, loop(dense(4, 8)).axes) == ("vector", 1)
    channels_last = Operand("float16", (2, 8, 4, 4), (128, 1, 32, 8))
    assert loop(channels_last, channels_last).path == "vector"
    assert loop(dense(4, 8), mixed=True).path == "cast"
    row = loop(dense(4, 8, 16), dense(16))
    assert (row.path, row.axes) == ("index", 2)
    rotated = loop(Operand("float16", (4, 16, 32, 8), (4096, 8, 128, 1)), dense(1, 1, 32, 8))
    assert (rotated.axes, rotated.elements) == (4, 4 * 16 * 32 * 8)


def test_more_axes_and_scattered_reads_cost_more_instructions() -> None:
    plain = loop(dense(64, 64), dense(64))
    transposed = loop(dense(64, 64), Operand("float16", (64, 64), (1, 64)))
    deeper = loop(Operand("float16", (4, 4, 64, 64), (65536, 64, 1024, 1)), dense(1, 1, 64, 64))
    assert index_instructions(plain) < index_instructions(deeper)
    assert index_instructions(plain) < index_instructions(transposed)


def test_a_narrowing_copy_has_a_loop_of_its_own() -> None:
    pair = (dense(8, dtype="bfloat16"), dense(8, dtype="float32"))
    assert not converts("copy_", "bfloat16", pair)
    assert converts("copy_", "float32", pair[::-1])
    assert converts("add", "float32", pair)
    assert not converts("add", "float32", pair[1:] * 2)


def test_nothing_is_guessed_for_an_op_that_is_not_listed() -> None:
    assert eager_work(RecordedOp("aten::sort", (dense(8),)), Launch(), H200) is None
    assert eager_work(RecordedOp("aten::mul", ()), Launch(), H200) is None
    unknown = Operand("", (8,), (1,))
    assert eager_work(RecordedOp("aten::neg", (unknown,)), Launch(), H200) is None
    cat = RecordedOp("aten::cat", ((dense(8, dtype="float16"),),))
    assert eager_work(cat, Launch("CatArrayBatchedCopy"), H200) is not None


def test_a_chunked_step_needs_the_blocks_of_its_launch() -> None:
    op = RecordedOp("aten::_foreach_add_", ())
    kernel = "multi_tensor_apply_kernel<float>"
    assert eager_work(op, Launch(kernel), H200) is None
    work = eager_work(op, Launch(kernel, blocks=320, threads=512, registers=64), H200)
    assert work is not None
    # 64 registers leave two blocks of 512 threads to a multiprocessor.
    assert (work.programs, work.resident_programs) == (320, 264)
    assert work.bytes_moved == 320 * 65_536 * 4 * 2
