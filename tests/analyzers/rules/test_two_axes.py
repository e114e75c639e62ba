"""Reductions along the rows and over the rows of the same tensors."""

from __future__ import annotations

import pytest

from tests.builders.eager import Eager, Tensor

WIDE = 16_384  # more columns than a row program sums over the rows as well


def norm_backward(
    eager: Eager, *, column_reads: str = "g", axes: tuple[int, ...] = (0, 1), width: int = WIDE
) -> None:
    """dx of a norm reduces each row of g x, dw all rows of g x̂."""
    x, g = (eager.matmul(Tensor((4, 256, 512)), Tensor((4, 512, width))) for _ in range(2))
    peak = eager.op("aten::sum", eager.op("aten::mul", g, x), [-1], True, None)
    eager.op("aten::sort", Tensor(peak.shape[:-1]))
    other = {"g": g, "another": Tensor((4, 256, 500))}[column_reads]
    scaled = eager.op("aten::mul", other, other if column_reads == "another" else x)
    eager.op("aten::sum", scaled, list(axes), False, None, out=Tensor((width,)))


def test_the_gradients_of_a_norm_read_the_same_tensors() -> None:
    """pytorch PR 165370: one kernel for both was 1.7 times as fast as the same compiler apart."""
    eager = Eager()
    for _ in range(3):
        norm_backward(eager)
    found = eager.found()["two-axes"].finding
    assert found.evidence[0].values["sites"] == 3
    # The product, float32, which the row program has at hand.
    assert found.evidence[0].values["bytes_read_again"] == 3 * 4 * 256 * WIDE * 4
    saving = found.exposed_saving_ns
    assert saving is not None
    assert saving.high <= 3 * 2_000_000


def test_rows_of_common_length_are_one_row_program_with_their_sums() -> None:
    eager = Eager()
    for _ in range(3):
        norm_backward(eager, width=512)
    found = eager.found()
    assert "two-axes" not in found
    assert "sum over the rows" in found["row_program"].finding.title
    assert found["row_program"].finding.evidence[0].values["rows"] == 1024


@pytest.mark.parametrize("change", [{"column_reads": "another"}, {"axes": (0,)}])
def test_other_reductions_are_no_pair(change: dict[str, object]) -> None:
    eager = Eager()
    norm_backward(eager, **change)  # type: ignore[arg-type]
    assert "two-axes" not in eager.found()


def test_rows_alone_are_no_pair() -> None:
    eager = Eager()
    eager.rms_norm(eager.tensor(4, 128, 256, dtype="bfloat16"), eager.tensor(256, dtype="bfloat16"))
    assert "two-axes" not in eager.found()
