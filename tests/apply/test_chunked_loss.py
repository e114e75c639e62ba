"""The chunked loss as an op of its own: rows, chunks, labels, and its kernel."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from advisor.apply.chunked_loss import chunked_cross_entropy
from advisor.apply.loss_rows import Cut
from advisor.hardware.gpus import gpu_by_key
from advisor.model.loss_chunks import MOST_BYTES, MOST_ROWS, LossSizes, rows_of_chunk
from advisor.verify.resources import ResourceRequest, resources_of
from tests.builders.forked import Forked

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "advisor" / "apply" / "loss_kernel.py"


def ours(
    h: torch.Tensor, w: torch.Tensor, y: torch.Tensor, chunk: int, **options: object
) -> torch.Tensor:
    return chunked_cross_entropy(
        h, w, None, y, compute=h.dtype, result=h.dtype, chunk=chunk, **options
    )  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 12),
    classes=st.integers(1, 9),
    chunk=st.integers(1, 13),
    smoothing=st.sampled_from([0.0, 0.1]),
    reduction=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 99),
)
def test_any_sizes_and_chunks_give_loss_and_gradients(
    rows: int, classes: int, chunk: int, smoothing: float, reduction: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(rows, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    w = torch.randn(classes, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randint(-1, classes, (rows,), generator=generator)
    options = {"ignore_index": -1, "label_smoothing": smoothing, "reduction": reduction}
    found = ours(h, w, y, chunk, **options)
    wanted = functional.cross_entropy(h @ w.t(), y, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted, equal_nan=True)
    torch.testing.assert_close(
        torch.autograd.grad(found, (h, w)), torch.autograd.grad(wanted, (h, w))
    )


def test_the_op_keeps_the_rules_of_custom_ops() -> None:
    h = torch.randn(10, 8, requires_grad=True)
    w = torch.randn(7, 8, requires_grad=True)
    y = torch.randint(0, 7, (10,))
    op = torch.ops.fusion_advisor.chunked_cross_entropy.default
    torch.library.opcheck(
        op, (h, w, None, y, torch.tensor(0.1), -100, 0.1, [1.0, 0.0, 1.0], [True, True, False], 4)
    )


def test_no_rows_are_no_loss() -> None:
    h = torch.randn(0, 8, requires_grad=True)
    w = torch.randn(7, 8, requires_grad=True)
    loss = ours(h, w, torch.zeros(0, dtype=torch.long), 4, reduction="sum")
    assert float(loss.detach()) == 0.0
    assert float(torch.autograd.grad(loss, w)[0].abs().sum()) == 0.0


def test_a_label_that_names_no_class_is_an_error() -> None:
    h, w = torch.randn(2, 4), torch.randn(5, 4)
    with pytest.raises(RuntimeError, match="out of bounds"):
        ours(h, w, torch.tensor([1, 5]), 1)


def test_a_large_gradient_in_float16_does_not_overflow() -> None:
    """One token makes up all labels: its row of the gradient sums over all rows."""
    h = torch.full((4096, 4), 32.0, dtype=torch.float16, requires_grad=True)
    w = torch.zeros(3, 4, dtype=torch.float16, requires_grad=True)
    loss = ours(h, w, torch.zeros(4096, dtype=torch.long), 512)
    (found,) = torch.autograd.grad(loss, w)
    torch.testing.assert_close(found[0], torch.full((4,), -32 * 2 / 3, dtype=torch.float16))


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 19), st.sampled_from([2, 4, 8]))
def test_a_chunk_is_a_power_of_two_within_its_bounds(rows: int, classes: int, size: int) -> None:
    chunk = rows_of_chunk(rows, classes, size)
    assert chunk & (chunk - 1) == 0
    assert 1 <= chunk <= MOST_ROWS
    assert chunk == 1 or chunk * classes * size <= MOST_BYTES


def test_chunks_of_models() -> None:
    assert rows_of_chunk(8_192, 128_256, 2) == 2_048
    assert rows_of_chunk(4_096, 32_000, 2) == 1_024
    assert rows_of_chunk(65_536, 256_000, 4) == 1_024


def test_the_sum_is_cast_where_the_logits_were() -> None:
    """Of float32 sums and the bfloat16 gradient nothing is held beside them but that by rows."""
    rows, classes, features, chunk = 64, 2048, 512, 16
    h = torch.randn(rows, features, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(classes, features, dtype=torch.bfloat16, requires_grad=True)
    y = torch.randint(0, classes, (rows,))
    with torch.profiler.profile(profile_memory=True) as seen:
        ours(h, w, y, chunk)
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    peak = max(itertools.accumulate(event.nbytes() for event in events))
    held = classes * features * (4 + 2) + rows * features * 2
    assert held <= peak < held + chunk * classes * 2


@pytest.mark.parametrize(
    ("item", "trains", "saved"),
    [
        # 64 logits; 8 weights, their sum in float32; two rows are 8 logits, as many as are cast.
        (2, True, 64 * 2 + 8 * 2 - 8 * 4 - 16),
        # Of the weight's own type nothing is cast, and as much is held either way.
        (4, True, 64 * 4 - 8 * 4),
        (2, False, 64 * 2 - 16),
    ],
)
def test_what_is_saved_beside_the_compiler(item: int, trains: bool, saved: int) -> None:
    sizes = LossSizes(16, 4, 2, item, trains, trains)
    assert sizes.saved_bytes(2, compiled=True) == saved
    more = sizes.logits_bytes if trains else 0
    assert sizes.saved_bytes(2, compiled=False) == saved + more


INTERPRETED = """
import torch
import tests.builders.quick_interpreter
from advisor.apply import loss_kernel
from advisor.apply.loss_rows import Cut, RowTask, rows_in_torch
loss_kernel.MOST_COLUMNS = 32
torch.manual_seed(0)
for dtype in (torch.float32, torch.bfloat16):
    for cut in (Cut(), Cut(0.5, True, -3.0), Cut(2.0, False, 0.25)):
        for gradients in (True, False):
            labels = torch.randint(0, 75, (14,))[::2]
            labels[2] = -100
            logits = 3 * torch.randn(9, 75).to(dtype)[:7]
            logits[4] = 80.0
            task = RowTask(-100, 0.1, cut, gradients)
            one, two = logits.clone(), logits.clone()
            factor = torch.tensor(0.3)
            losses = rows_in_torch(one, labels, factor, task)
            torch.testing.assert_close(loss_kernel.run_on_rows(two, labels, factor, task), losses)
            torch.testing.assert_close(two, one)
labels[0] = 75
losses = loss_kernel.run_on_rows(logits, labels, factor, task)
assert losses.isnan().tolist() == [True, *[False] * 6]
print("equal")
"""


def test_the_kernel_is_what_torch_computes(interpreting: Forked) -> None:
    pytest.importorskip("triton", reason="kernels need triton")
    done = interpreting.run("-c", INTERPRETED, cwd=ROOT)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


@pytest.mark.usefixtures("forked_compilers")
@pytest.mark.parametrize("capped", [False, True])
def test_the_kernel_compiles_without_spills(capped: bool) -> None:
    pytest.importorskip("triton", reason="kernels need triton")
    from advisor.apply.loss_kernel import MOST_COLUMNS, WARPS

    integers = ("row_stride", "label_stride", "classes", "ignore_index")
    request = ResourceRequest(
        source=str(KERNEL),
        kernel="loss_rows",
        signature={
            "logits": "*bf16", "labels": "*i64", "factor": "*fp32",
            "losses": "*fp32",
            **dict.fromkeys(integers, "i32"),
            **dict.fromkeys(("smoothing", "inner", "outer"), "fp32"),
        },
        constexprs={"capped": capped, "gradients": True, "block": MOST_COLUMNS},
        aligned=("logits", "labels", "losses"),
        num_warps=WARPS,
    )  # fmt: skip
    for row in resources_of([request], [gpu_by_key("h200"), gpu_by_key("a100_40gb")])[0]:
        assert row.error is None
        assert row.spill_store_bytes == 0


def test_a_cut_is_what_the_graph_does() -> None:
    h = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randint(0, 5, (6,))
    found = ours(h, w, y, 2, cut=Cut(0.5, True, 3.0))
    wanted = functional.cross_entropy(3 * torch.tanh(0.5 * (h @ w.t())), y)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found, (h, w)), torch.autograd.grad(wanted, (h, w))
    )
