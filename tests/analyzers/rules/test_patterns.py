"""What each rule finds in small traces, and what it leaves alone."""

from __future__ import annotations

import pytest

from advisor.model.findings import Finding
from advisor.pipeline.analyze import analyze
from collectors import read_trace
from tests.builders.eager import Eager, Tensor
from tests.builders.trace import SHARED

LLAMA = SHARED / "traces" / "h200" / "llama_train.eager.json.gz"


def attention(eager: Eager, *, mask: bool = True, cut: bool = False) -> None:
    """One attention block as HuggingFace writes it; `cut` breaks it before the second product."""
    q, k = eager.tensor(8, 64, 32, dtype="bfloat16"), eager.tensor(8, 32, 64, dtype="bfloat16")
    scores = eager.matmul(q, k).view(2, 4, 64, 64)
    scores = eager.op("aten::mul", scores, 0.125)
    if mask:
        scores = eager.op("aten::add", scores, Tensor((2, 1, 64, 64), "bfloat16"), 1)
    wide = eager.cast(scores, "float32")
    weights = eager.cast(eager.op("aten::_softmax", wide, -1, False), "bfloat16")
    if cut:
        weights = eager.op("aten::sort", weights)
    eager.matmul(weights.view(8, 64, 64), eager.tensor(8, 64, 32, dtype="bfloat16"))


def rotation(eager: Eager, x: Tensor) -> None:
    """x cos + rotate_half(x) sin."""
    *lead, size = x.shape
    table = Tensor((1, 1, lead[-1], size), x.dtype)
    half = x.view(*lead, size // 2, strides=(*_strides(x)[:-1], 1))
    straight = eager.op("aten::mul", x, table)
    packed = Tensor(half.shape, x.dtype)
    turned = eager.op("aten::cat", [eager.op("aten::neg", half, out=packed), half], -1, out=x)
    eager.op("aten::add", straight, eager.op("aten::mul", turned, table), 1)


def _strides(x: Tensor) -> tuple[int, ...]:
    steps, step = [], 1
    for size in reversed(x.shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def sites(finding: Finding) -> object:
    return finding.evidence[0].values["sites"]


@pytest.mark.parametrize("mask", [True, False])
def test_attention_written_out(mask: bool) -> None:
    eager = Eager()
    for _ in range(3):
        attention(eager, mask=mask)
    found = eager.found()
    written = found["attention-written-out"].finding
    assert sites(written) == 3
    assert written.evidence[0].values["masked_sites"] == (3 if mask else 0)
    # Its ops are spoken for: no narrower rule proposes them again.
    assert found.keys() == {"attention-written-out"}


def test_a_softmax_between_other_things_is_only_a_chain() -> None:
    eager = Eager()
    attention(eager, cut=True)
    found = eager.found()
    assert "attention-written-out" not in found
    assert sites(found["softmax-chain"].finding) == 1


def test_fused_attention_is_left_alone() -> None:
    eager = Eager()
    q = eager.tensor(2, 64, 4, 32, dtype="bfloat16")
    eager.op("aten::_flash_attention_forward", q, q, q, kernel="flash_fwd_kernel")
    assert not eager.found()


def test_a_library_softmax_by_itself_is_left_alone() -> None:
    """vllm PR 15416: one well-tuned library kernel is no candidate."""
    eager = Eager()
    for _ in range(5):
        eager.op("aten::_softmax", eager.tensor(64, 131_072), -1, False)
    assert not eager.found()


def test_a_region_of_one_kernel_has_nothing_to_fuse() -> None:
    """KernelBench#68."""
    eager = Eager()
    eager.op("aten::gelu", eager.tensor(64, 4_096), "none")
    assert not eager.found()


def test_norms_in_pieces_are_counted_with_and_without_residual() -> None:
    eager = Eager()
    x = eager.tensor(4, 128, 256, dtype="bfloat16")
    weight, square = eager.tensor(256, dtype="bfloat16"), eager.tensor(256, 256, dtype="bfloat16")
    eager.rms_norm(x, weight)
    for _ in range(4):
        out = eager.matmul(x.view(512, 256), square)
        eager.rms_norm(eager.op("aten::add", x, out.view(4, 128, 256), 1), weight)
    finding = eager.found()["row_program"].finding
    assert sites(finding) == 5
    assert "RMS norm" in finding.title
    texts = " / ".join(other.text for other in finding.alternatives)
    assert "residual add + RMS norm at 4 sites" in texts
    assert finding.plan_id is None
    assert finding.provenance == "inferred"


@pytest.mark.parametrize("turns", [1, 2, 6])
def test_rotary_embedding(turns: int) -> None:
    eager = Eager()
    for _ in range(turns):
        for heads in (8, 2):
            rotation(eager, eager.tensor(2, heads, 64, 32, dtype="bfloat16"))
        eager.matmul(eager.tensor(64, 64), eager.tensor(64, 64))
    finding = eager.found()["rotary-written-out"].finding
    assert (sites(finding), finding.evidence[0].values["pairs"]) == (2 * turns, turns)


def test_a_concatenation_without_rotation_is_none() -> None:
    eager = Eager()
    x = eager.tensor(2, 8, 64, 32)
    half = x.view(2, 8, 64, 16)
    joined = eager.op("aten::cat", [half, half], -1, out=x)
    eager.op("aten::add", eager.op("aten::mul", x, x), eager.op("aten::mul", joined, x), 1)
    assert "rotary-written-out" not in eager.found()


@pytest.mark.parametrize(
    ("activation", "name"), [("silu", "SwiGLU"), ("gelu", "GEGLU"), ("sigmoid", "GLU")]
)
def test_gated_mlp(activation: str, name: str) -> None:
    eager = Eager()
    hidden, weight = eager.tensor(256, 128), eager.tensor(128, 512)
    for _ in range(4):
        gate = eager.op(f"aten::{activation}", eager.matmul(hidden, weight))
        eager.op("aten::mul", gate, eager.matmul(hidden, weight))
    found = eager.found()
    assert found["gated-mlp"].finding.title == f"{name} gate in separate ops, 4 sites"
    assert "pointwise-chain" not in found


def test_an_activation_times_itself_is_no_gate() -> None:
    eager = Eager()
    up = eager.matmul(eager.tensor(256, 128), eager.tensor(128, 512))
    eager.op("aten::mul", eager.op("aten::silu", up), eager.tensor(1, 512))
    assert "gated-mlp" not in eager.found()


def convolution(eager: Eager, x: Tensor, *, training: bool, relu: bool = True) -> Tensor:
    lists = [[1, 1], [1, 1], [1, 1]]
    weight = eager.tensor(x.shape[1], x.shape[1], 3, 3, dtype=x.dtype)
    kernel = "sm90_xmma_fprop_implicit_gemm_f16f16"
    y = eager.op("aten::cudnn_convolution", x, weight, *lists, 1, False, False, True, kernel=kernel)
    c = eager.tensor(x.shape[1], dtype=x.dtype)
    y = eager.op("aten::native_batch_norm", y, c, c, c, c, training, 0.1, 1e-5, kernels=2)
    return eager.op("aten::clamp_min_", y, 0) if relu else y


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_relu(training: bool) -> None:
    eager = Eager()
    x = eager.tensor(8, 16, 32, 32, dtype="float16")
    for _ in range(6):
        x = convolution(eager, x, training=training)
    finding = eager.found()["batch-norm"].finding
    assert sites(finding) == 6
    assert ("fold" in finding.action) is not training
    assert "BatchNorm + ReLU" in finding.title


@pytest.mark.parametrize("relu", [True, False])
def test_what_follows_a_folded_batch_norm_still_costs_its_pass(relu: bool) -> None:
    eager = Eager()
    x = eager.tensor(8, 16, 32, 32, dtype="float16")
    one = 8 * 16 * 32 * 32 * 2
    for _ in range(3):
        x = convolution(eager, x, training=False, relu=relu)
    finding = eager.found()["batch-norm"].finding
    (traffic,) = [item.values for item in finding.evidence if item.kind == "traffic"]
    assert traffic["bytes_after"] == (pytest.approx(3 * 2 * one, rel=1e-3) if relu else 0)
    (time,) = [item.values for item in finding.evidence if item.kind == "time"]
    share = float(time["kernel_saving_ns"] or 0) / float(time["before_ns"] or 1)
    assert share == (pytest.approx(0.5, rel=0.01) if relu else 1.0)
    assert ("left, as one pass" in finding.evidence[0].text) is relu


def test_a_batch_norm_in_training_with_nothing_beside_it_is_left_alone() -> None:
    eager = Eager()
    convolution(eager, eager.tensor(8, 16, 32, 32), training=True, relu=False)
    assert "batch-norm" not in eager.found()


def test_group_norm_with_activation_and_layer_norm_with_residual() -> None:
    eager = Eager()
    x = eager.tensor(8, 32, 32, 32, dtype="float16")
    for _ in range(3):
        eager.op("aten::silu", eager.op("aten::native_group_norm", x, kernels=3))
        eager.matmul(eager.tensor(64, 64), eager.tensor(64, 64))
    finding = eager.found()["library-norm"].finding
    assert finding.title == "GroupNorm + SiLU in separate ops, 3 sites"


def test_pointwise_chain_and_cast_chain() -> None:
    eager = Eager()
    y = eager.op("aten::mul", eager.op("aten::tanh", eager.tensor(512, 512)), 3.0)
    eager.op("aten::sort", y)
    assert eager.found()["pointwise-chain"].finding.title.startswith(
        "Pointwise chain tanh + product"
    )
    eager = Eager()
    y = eager.cast(eager.cast(eager.tensor(512, 512), "float16"), "float32")
    eager.op("aten::sort", y)
    assert eager.found()["pointwise-chain"].finding.title.startswith("Cast chain")


@pytest.mark.parametrize("between", ["aten::native_dropout", "aten::sort", "aten::cumsum"])
def test_nothing_fuses_across_what_is_no_pointwise_op(between: str) -> None:
    """pytorch/xla#3868: random numbers are computation of their own."""
    eager = Eager()
    y = eager.op("aten::tanh", eager.tensor(512, 512))
    eager.op("aten::mul", eager.op(between, y), 2.0)
    assert "pointwise-chain" not in eager.found()


def test_optimizer_passes_are_counted_in_traffic() -> None:
    eager = Eager()
    names = ("lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")
    for name in names:
        eager.op(f"aten::_foreach_{name}", [], kernel="multi_tensor_apply_kernel")
    finding = eager.found()["optimizer-updates"].finding
    values = finding.evidence[0].values
    assert values["passes_before"] == 3 + 2 + 4 + 2 + 3 + 3 + 4
    assert values["passes_after"] == 7
    assert "fused=True" in finding.action
    assert "any other with torch.compile" in finding.action
    saving = finding.evidence[1].values["kernel_saving_ns"]
    assert saving == round(700_000 * (1 - 7 / 21))


@pytest.mark.skipif(not LLAMA.exists(), reason=f"no {LLAMA}")
def test_a_quotient_by_numbers_is_two_passes_and_a_fused_step_as_many_launches_as_its_lists() -> (
    None
):
    """Recorded: `_foreach_div_` is given one list and numbers; 21 tensors, 11 launches at most."""
    found = {f.rule: f for f in analyze([LLAMA]).findings}["optimizer-updates"]
    traffic, _, host = found.evidence
    assert traffic.values["passes_before"] == 3 + 2 + 2 + 4 + 2 + 2 + 2 + 4
    trace = read_trace(LLAMA)
    last = trace.steps().iloc[-1]
    calls = trace.launches["start_ns"].to_numpy()[trace.kernels["launch"].to_numpy(dtype=int)]
    inside = trace.kernels[
        (calls >= last["start_ns"]) & (calls < last["start_ns"] + last["duration_ns"])
    ]
    ops = inside["op"].dropna().astype(int)
    names = trace.ops["name"].astype(str).to_numpy()
    per_op = ops[[names[op] in {m.name for m in found.members} for op in ops]].value_counts()
    # What counts the steps goes through lists of scalars and is left out.
    launches = per_op[per_op > 1]
    assert host.values["launches_saved"] == launches.sum() - launches.max()


def test_an_optimizer_that_updates_one_parameter_after_the_other() -> None:
    """pytorch#107006: updates in place are for the library to merge."""
    eager = Eager()
    start = eager.host
    for _ in range(6):
        state, grad = eager.tensor(512, 512), eager.tensor(512, 512)
        eager.op("aten::mul_", state, 0.9)
        eager.op("aten::addcmul_", state, grad, grad)
        eager.op("aten::addcdiv_", state, grad, grad)
    eager.line.range("Optimizer.step#NAdam.step", start - 1, eager.host - start)
    found = eager.found()
    assert "parameter by parameter" in found["optimizer-updates"].finding.title
    assert "foreach" in found["optimizer-updates"].finding.action
    assert found.keys() == {"optimizer-updates"}


def test_a_fused_optimizer_is_left_alone() -> None:
    eager = Eager()
    eager.op("aten::_fused_adamw_", [], kernel="multi_tensor_apply_kernel<FusedAdam>")
    assert not eager.found()


def test_layout_conversions_inside_convolutions() -> None:
    eager = Eager()
    x = eager.tensor(8, 16, 32, 32)
    for kernel in ("cudnn::ops::nchwToNhwcKernel<float>", "sm80_xmma_fprop", "nhwcToNchwKernel<f>"):
        eager.op("aten::cudnn_convolution", x, x, kernel=kernel)
    finding = eager.found()["layout-conversion"].finding
    assert finding.evidence[0].values["conversions"] == 2
    assert "channels_last" in finding.action


def test_copies_are_to_be_removed_not_fused() -> None:
    eager = Eager()
    for _ in range(5):
        x = eager.tensor(64, 64, dtype="bfloat16")
        eager.op("aten::copy_", x, x.view(64, 64, strides=(1, 64)), False)
    finding = eager.found()["repeated-copies"].finding
    assert "contiguous" in finding.action
    assert finding.evidence[0].values["copies"] == 5


def test_names_of_kernels_change_nothing() -> None:
    """What is found follows from shapes and dataflow."""
    found = []
    for kernel in ("void at::native::elementwise_kernel<128, 4>(int)", "k"):
        eager = Eager()
        x, weight = eager.tensor(4, 64, 256, dtype="bfloat16"), eager.tensor(256, dtype="bfloat16")
        eager.rms_norm(x, weight)
        y = eager.op("aten::tanh", eager.tensor(512, 512), kernel=kernel)
        eager.op("aten::mul", y, 2.0, kernel=kernel)
        found.append({rule: match.nodes for rule, match in eager.found().items()})
    assert found[0] == found[1]
    assert found[0].keys() >= {"row_program", "pointwise-chain"}


@pytest.mark.parametrize(("classes", "fires"), [(32_000, True), (1_000, False)])
def test_cross_entropy_over_many_classes(classes: int, fires: bool) -> None:
    eager = Eager()
    logits = eager.matmul(
        eager.tensor(256, 64, dtype="bfloat16"), eager.tensor(64, classes, dtype="bfloat16")
    )
    wide = eager.cast(logits, "float32")
    labels, loss = eager.tensor(256, dtype="int64"), eager.tensor(1)
    logs = eager.op("aten::_log_softmax", wide, 1, False)
    eager.op("aten::nll_loss_forward", logs, labels, None, 1, -100, out=loss)
    grad = eager.op("aten::nll_loss_backward", loss, logs, labels, out=logs)
    eager.op("aten::fill_", logs, 0)
    back = eager.op("aten::_log_softmax_backward_data", grad, logs, 1, 6)
    narrow = eager.cast(back, "bfloat16")
    eager.matmul(narrow, eager.tensor(classes, 64, dtype="bfloat16"))
    found = eager.found()
    assert ("cross-entropy" in found) is fires
    if fires:
        title = found["cross-entropy"].finding.title
        assert title == "Cross-entropy over 32,000 classes in 7 separate ops"


def test_a_loss_in_pieces_is_priced_in_memory() -> None:
    """4096 rows by 32000 classes in bfloat16 of 64 features: logits, gradients, less a piece."""
    eager = Eager()
    rows, classes = 4096, 32_000
    logits = eager.matmul(
        eager.tensor(rows, 64, dtype="bfloat16"), eager.tensor(64, classes, dtype="bfloat16")
    )
    wide = eager.cast(logits, "float32")
    labels, loss = eager.tensor(rows, dtype="int64"), eager.tensor(1)
    logs = eager.op("aten::_log_softmax", wide, 1, False)
    eager.op("aten::nll_loss_forward", logs, labels, None, 1, -100, out=loss)
    grad = eager.op("aten::nll_loss_backward", loss, logs, labels, out=logs)
    eager.op("aten::_log_softmax_backward_data", grad, logs, 1, 6)
    evidence = eager.found()["cross-entropy"].finding.evidence[-1]
    assert evidence.values["logits_bytes"] == rows * classes * 2
    saved = 2 * rows * classes * 2 - 1024 * classes * 2 - classes * 64 * (4 - 2)
    assert evidence.values["activation_bytes_saved"] == saved
    assert "1,024 rows at a time" in evidence.text
