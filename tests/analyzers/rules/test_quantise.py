"""Dynamic quantisation and the combine of experts, on small traces and captured graphs."""

from __future__ import annotations

import pytest
import torch

from advisor.model.findings import Finding
from tests.analyzers.rules.test_captured import graphs_of, matches
from tests.builders.eager import Eager, Tensor

FLOAT8 = "float8_e4m3fn"


def magnitude(eager: Eager, x: Tensor) -> Tensor:
    """|x| as the profiler records it: the launching op is the `out=` form with an empty buffer."""
    return eager.op("aten::abs", x, Tensor((0,), x.dtype), us=30, out=x)


def tensor_wise(eager: Eager, x: Tensor) -> Tensor:
    """amax (60 µs) → scale → cast (40 µs) → copy in the other order (30 µs)."""
    eager.op("aten::max", magnitude(eager, x), us=30, out=Tensor(()))
    scale = Tensor(())
    eager.op("aten::reciprocal", scale, us=2)
    scaled = eager.op("aten::mul", eager.cast(x, "float32", us=10), scale, us=10)
    narrow = eager.cast(eager.op("aten::clamp", scaled, -448, 448, us=10), FLOAT8, us=10)
    turned = Tensor(x.shape[::-1], FLOAT8)
    eager.op("aten::copy_", turned, Tensor(turned.shape, FLOAT8, (1, x.shape[1])), False, us=30)
    return narrow


def product(eager: Eager, x: Tensor) -> None:
    out = Tensor((x.shape[0], 512), "bfloat16")
    weight = Tensor((x.shape[1], 512), FLOAT8, (1, x.shape[1]))
    eager.op("aten::_scaled_mm", x, weight, Tensor(()), us=370, out=out, kernel="nvjet_qqtst_128")


def finding(eager: Eager, rule: str = "quantise-chain") -> Finding:
    return eager.found()[rule].finding


def test_scaling_around_a_linear_is_bounded_by_its_share() -> None:
    """pytorch#128063, #130015: what can go is the overhead's share, not "four kernels to one"."""
    eager = Eager()
    for _ in range(3):
        x = eager.matmul(Tensor((1024, 512), "bfloat16"), Tensor((512, 512), "bfloat16"))
        product(eager, tensor_wise(eager, x))
    everything = eager.found()
    found = everything["quantise-chain"].finding
    assert found.title.startswith("Quantisation to float8_e4m3fn, one scale a tensor")
    assert found.evidence[0].values["sites"] == 3
    shares = [v for e in found.evidence if (v := e.values.get("overhead_fraction"))]
    assert shares == [pytest.approx(130 / (130 + 370))]
    saving = found.exposed_saving_ns
    assert saving is not None
    assert saving.high <= 3 * 130_000
    assert any("whole pass before the first cast" in a.text for a in found.alternatives)
    assert "other order" in found.evidence[0].text
    # A cast is no copy that only moves elements.
    assert "repeated-copies" not in everything


def test_a_row_scale_is_one_pass_and_its_second_reader_bars_no_fusion() -> None:
    """pytorch PR 178237: the scale also feeds an opaque product."""
    eager = Eager()
    for _ in range(2):
        x = eager.matmul(Tensor((1024, 512), "bfloat16"), Tensor((512, 512), "bfloat16"))
        peak = Tensor((1024, 1), "bfloat16")
        eager.op("aten::amax", magnitude(eager, x), [-1], True, us=60, out=peak)
        scale = eager.op("aten::div", peak, 448.0, us=2)
        narrow = eager.cast(eager.op("aten::div", x, scale, us=60), FLOAT8, us=40)
        weight = Tensor((512, 512), FLOAT8, (1, 512))
        eager.op("aten::_scaled_mm", narrow, weight, scale, us=370, out=x, kernel="nvjet_qqtst")
    found = finding(eager)
    assert "a scale a row or group" in found.title
    assert found.evidence[0].values["scale_readers"] == 2
    legality = next(e for e in found.evidence if e.kind == "legality")
    assert "not the fusion" in legality.text
    assert "one kernel a row" in found.action
    assert not any("whole pass" in a.text for a in found.alternatives)


@pytest.mark.parametrize("broken", ["no maximum", "another maximum", "no scale"])
def test_a_cast_that_no_maximum_scales_is_no_quantisation(broken: str) -> None:
    eager = Eager()
    x = eager.matmul(Tensor((1024, 512), "bfloat16"), Tensor((512, 512), "bfloat16"))
    peak = Tensor((1024, 1), "bfloat16")
    if broken == "another maximum":
        eager.op(
            "aten::amax", magnitude(eager, Tensor((1024, 256), "bfloat16")), [-1], True, out=peak
        )
    elif broken == "no scale":
        eager.op("aten::amax", magnitude(eager, x), [-1], True, out=peak)
    y = eager.op("aten::tanh", x) if broken == "no scale" else eager.op("aten::div", x, peak)
    eager.cast(y, FLOAT8)
    assert "quantise-chain" not in eager.found()


def rowwise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 127
    return (x / scale).round().to(torch.int8), scale


def test_a_captured_quantiser_is_found_by_the_same_rule() -> None:
    found = {
        m.finding.rule: m.finding for m in matches(graphs_of(rowwise, torch.randn(4096, 2048)))
    }
    quantiser = [f for rule, f in found.items() if rule == "quantise-chain"]
    text = [a.text for f in found.values() for a in f.alternatives]
    assert quantiser or any(t.startswith("Quantisation to int8") for t in text)


def combine(eager: Eager, *, experts: int = 2, axis: int = 1, shared: bool = False) -> None:
    tokens, hidden = 512, 256
    rows = eager.matmul(Tensor((tokens, hidden), "bfloat16"), Tensor((hidden, hidden), "bfloat16"))
    picked = Tensor((tokens * experts, hidden), "bfloat16")
    eager.op("aten::index_select", rows, 0, Tensor((tokens * experts,), "int64"), out=picked)
    view = picked.view(tokens, experts, hidden)
    weighted = eager.op("aten::mul", view, Tensor((tokens, experts, 1), "bfloat16"))
    if shared:
        eager.op("aten::sort", view)
    size = tuple(n for place, n in enumerate(view.shape) if place != axis)
    eager.op("aten::sum", weighted, [axis], False, None, out=Tensor(size, "bfloat16"))


def test_combining_experts_states_both_sides_and_promises_nothing() -> None:
    """pytorch PR 190945: one consumer, and yet the fused kernel may lose."""
    eager = Eager()
    for _ in range(4):
        combine(eager)
    found = finding(eager, "moe-combine")
    assert found.evidence[0].values["sites"] == 4
    doubt = found.evidence[1]
    assert doubt.kind == "cannot_judge"
    assert "heavier" in doubt.text
    saving = found.exposed_saving_ns
    assert saving is not None
    assert (saving.low, saving.mid) == (0, 0)
    assert saving.high > 0
    assert found.alternatives[0].route == "do_not_fuse"
    assert "may lose" in found.action


@pytest.mark.parametrize("change", [{"experts": 64}, {"axis": 2}, {"shared": True}])
def test_other_sums_over_gathered_rows_are_no_combine(change: dict[str, int]) -> None:
    eager = Eager()
    combine(eager, **change)  # type: ignore[arg-type]
    assert "moe-combine" not in eager.found()
