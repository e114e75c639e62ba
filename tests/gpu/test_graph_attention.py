"""Fused attention on the GPU: as exact as eager, and on the kernels that the records promise."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from advisor.apply.graph import sdpa
from advisor.apply.graph.attention import rewrite_attention
from advisor.apply.graph.cudnn import attention_without_cudnn
from advisor.apply.graph.records import Rewritten
from tests.apply.test_graph_attention import CAPPED, dynamo_graph, results
from tests.apply.test_graph_attention_calls import OWN_CALLS, Own
from tests.apply.test_graph_attention_ways import Attention
from tests.apply.test_graph_cudnn import written_out
from tests.builders.attention import FUSED, Case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
NAMED = {case.name: case for case in FUSED}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def on_gpu(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    return [x.cuda().requires_grad_(x.is_floating_point()) for x in case.inputs(dtype)]


def rewritten(
    case: Case, dtype: torch.dtype, **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule, list[Any], tuple[Rewritten, ...]]:
    original, given = dynamo_graph(case.function, on_gpu(case, dtype))
    changed = copy.deepcopy(original)
    return original, changed, given, rewrite_attention(changed, **options)


def stepped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: (function(*inputs),)


def check_errors(
    exact: list[torch.Tensor], before: list[torch.Tensor], after: list[torch.Tensor]
) -> None:
    """At most twice the error of eager, and what rounding alone may do beside that.

    In float16 and bfloat16 fused kernels sum in float32 and round once: one unit. In float32 their
    sums are rounded as eager's are, in another order. A sum of n terms is off by about sqrt(n)/2
    units by chance; scores, softmax and values, then the three products of the gradient, of up to
    16 terms here, make 8 units together. On so few numbers eager's own error is chance as well, and
    says nothing about the next order of summation. A gradient of one element sums over all scores,
    which cancel: there a thousand units are allowed.
    """
    for reference, one, two in zip(exact, before, after, strict=True):
        own = (one.double() - reference).abs().max()
        ours = (two.double() - reference).abs().max()
        units = 1
        if one.dtype == torch.float32:
            units = 1000 if one.numel() == 1 else 8
        assert ours <= 2 * own + units * reference.abs().max() * torch.finfo(one.dtype).eps


@contextlib.contextmanager
def without_cudnn() -> Iterator[None]:
    """No cuDNN: its backward plan of one case would be used for another's layout."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", FUSED, ids=lambda case: case.name)
def test_error_is_at_most_twice_that_of_eager(case: Case, dtype: torch.dtype) -> None:
    original, changed, given, (record,) = rewritten(case, dtype)
    assert record.refused is None
    with without_cudnn():
        before, after = (results(gm, given, case.unused) for gm in (original, changed))
    exact, exact_given = dynamo_graph(case.function, on_gpu(case, torch.float64))
    check_errors(results(exact, exact_given, case.unused), before, after)


# --- cuDNN: sizes that no other test has, since its plans stay as long as the process -----------


def merged_by(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.linear(x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1), w)


def read_as_usual(*inputs: torch.Tensor) -> torch.Tensor:
    *qkv, w = inputs
    return merged_by(written_out(*qkv), w)


def read_directly(*inputs: torch.Tensor) -> torch.Tensor:
    *qkv, w = inputs
    return written_out(*qkv) * w[0, 0]


def of_length(length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = [(2, 4, length, 64)] * 3 + [(256, 256)]
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    return [x.bfloat16().cuda().requires_grad_() for x in made]


def compared(function: Callable[..., Any], inputs: list[torch.Tensor]) -> Rewritten:
    """The record of a function whose rewritten graph is as right as eager."""
    original, given = dynamo_graph(function, inputs)
    changed = copy.deepcopy(original)
    (record,) = rewrite_attention(changed)
    check_against_double(function, inputs, results(original, given), results(changed, given))
    return record


def check_against_double(
    function: Callable[..., Any],
    inputs: list[torch.Tensor],
    before: list[torch.Tensor],
    after: list[torch.Tensor],
) -> None:
    exact, given = dynamo_graph(function, [x.detach().double().requires_grad_() for x in inputs])
    check_errors(results(exact, given), before, after)


@pytest.mark.parametrize(("function", "length"), [(read_as_usual, 304), (read_directly, 272)])
def test_cudnn_is_right_for_a_layout_that_has_its_sizes_to_itself(
    function: Callable[..., Any], length: int
) -> None:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        inputs = of_length(length)
        original, given = dynamo_graph(function, inputs)
        changed = copy.deepcopy(original)
        rewrite_attention(changed)
        for node in changed.graph.find_nodes(op="call_function", target=attention_without_cudnn):
            node.target = functional.scaled_dot_product_attention
        changed.recompile()
        before, after = results(original, given), results(changed, given)
    check_against_double(function, inputs, before, after)


@pytest.mark.parametrize("length", [336, 368])
def test_two_layouts_of_the_same_sizes_are_right_in_any_order(length: int) -> None:
    functions = (read_as_usual, read_directly)
    records = {f: compared(f, of_length(length)) for f in functions[:: 1 if length == 336 else -1]}
    assert "cudnn" in records[read_as_usual].backends
    assert "cudnn" not in records[read_directly].backends


def fused_ops(function: Callable[..., Any], inputs: list[torch.Tensor]) -> set[str]:
    """The attention kernels in the forward graph that is compiled."""
    found: set[str] = set()

    def keep(module: fx.GraphModule, _: Any) -> Any:
        names = [str(node.target) for node in module.graph.nodes]
        found.update(name.split(".")[1] for name in names if "scaled_dot_product" in name)
        return module.forward

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        rewrite_attention(gm)
        return aot_autograd(fw_compiler=keep, bw_compiler=lambda gm, _: gm.forward)(gm, given)

    torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    return found


def test_the_kernel_is_chosen_while_the_graph_is_traced() -> None:
    (direct,) = fused_ops(read_directly, of_length(400))
    assert direct == "_scaled_dot_product_flash_attention"
    (usual,) = fused_ops(read_as_usual, of_length(400))
    if sdpa._cudnn_comes_before_math():
        assert usual == "_scaled_dot_product_cudnn_attention"


# --- calls of the user's own ----------------------------------------------------------------------


# A mask of another dtype falls to nothing: cuDNN misreads it, other kernels raise.
FALLING = [own for own in OWN_CALLS if own.name != "wide_mask"]


@pytest.mark.parametrize("own", FALLING, ids=lambda own: own.name)
def test_a_call_that_is_said_to_fall_to_math_does_and_then_no_longer(own: Own) -> None:
    inputs = [x.detach().cuda().requires_grad_() for x in own.inputs()]
    gm, given = dynamo_graph(own.function, inputs)
    newer_groups = own.name == "grouped_and_masked"  # taken as they are from torch 2.12 on
    assert choice_of(gm, given) == {int(SDPBackend.MATH.value)} or newer_groups
    (record,) = rewrite_attention(gm)
    if record.refused is None:
        assert int(SDPBackend.MATH.value) not in choice_of(gm, given)


def choice_of(gm: fx.GraphModule, given: list[Any]) -> set[int]:
    """What PyTorch itself chooses for the calls of a graph without cuDNN."""
    chosen: set[int] = set()

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is functional.scaled_dot_product_attention:
                chosen.add(int(torch._fused_sdp_choice(*args, **(kwargs or {}))))
            return function(*args, **(kwargs or {}))

    with without_cudnn(), Watch():
        gm(*given)
    return chosen


def test_t5_of_transformers_runs_fused_after_the_rewrite() -> None:
    """Its mask is a table looked up and permuted: in 5.17 its last axis has a stride of 8."""
    own = next(own for own in OWN_CALLS if own.name == "permuted_bias")
    inputs = [x.detach().cuda().requires_grad_() for x in own.inputs()]
    assert fused_ops(own.function, inputs) == {"_scaled_dot_product_efficient_attention"}


@pytest.mark.parametrize("name", ["plain", "llama_eager", "bert", "cross_attention"])
def test_promised_kernels_take_the_call(name: str) -> None:
    _, changed, given, (record,) = rewritten(NAMED[name], torch.bfloat16)
    assert record.backends
    assert record.backends[-1] == "math"
    for backend in record.backends[:-1]:
        with sdpa_kernel(KERNELS[backend]), torch.no_grad():
            changed(*given)


def test_causal_grouped_attention_may_use_flash() -> None:
    _, _, _, (record,) = rewritten(NAMED["llama_eager"], torch.bfloat16)
    assert "flash" in record.backends


@pytest.mark.parametrize("case", CAPPED, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_capped_scores_train_through_flex_attention(case: Case, dtype: torch.dtype) -> None:
    records: list[Rewritten] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        records.extend(rewrite_attention(gm))
        return compile_fx(gm, given)

    compiled = torch.compile(case.function, backend=backend, fullgraph=True)
    after = results(stepped(compiled), on_gpu(case, dtype))
    before = results(stepped(case.function), on_gpu(case, dtype))
    exact = results(stepped(case.function), on_gpu(case, torch.float64))
    assert [(r.refused, r.route) for r in records] == [(None, "flex_attention")]
    check_errors(exact, before, after)


@pytest.mark.parametrize("name", ["llama_eager", "mistral_window", "t5_relative_bias"])
@pytest.mark.parametrize("prefer_flex", [False, True], ids=["library", "flex"])
def test_in_a_backend_before_inductor(name: str, prefer_flex: bool) -> None:
    case = NAMED[name]
    records: list[Rewritten] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        records.extend(rewrite_attention(gm, prefer_flex=prefer_flex))
        return compile_fx(gm, given)

    inputs = on_gpu(case, torch.bfloat16)
    with torch.no_grad(), without_cudnn():
        wanted = case.function(*inputs)
        got = torch.compile(case.function, backend=backend, fullgraph=True)(*inputs)
    assert [record.refused for record in records] == [None]
    torch.testing.assert_close(got, wanted, rtol=5e-2, atol=5e-2)


def padded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    added = (1.0 - keep[:, None, None, :].to(q.dtype)) * torch.finfo(q.dtype).min
    return (q @ k.mT * 0.125 + added).softmax(-1) @ v


def test_a_mask_known_only_at_run_time_trains_through_flex_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    qkv = [torch.randn(2, 4, 256, 64, generator=generator).bfloat16().cuda() for _ in range(3)]
    keep = torch.ones(2, 256, dtype=torch.int64, device="cuda")
    keep[1, 100:] = 0
    records: list[Rewritten] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        records.extend(rewrite_attention(gm, prefer_flex=True))
        return compile_fx(gm, given)

    compiled = torch.compile(padded, backend=backend, fullgraph=True)
    after = results(stepped(compiled), [*qkv, keep])
    before = results(stepped(padded), [*qkv, keep])
    exact = results(stepped(padded), [*(x.double() for x in qkv), keep])
    assert [(r.refused, r.route) for r in records] == [(None, "flex_attention")]
    check_errors(exact, before, after)


@pytest.mark.parametrize(
    "options", [{"alibi": True}, {"blocks": 128}, {"blocks": 128, "groups": 2}], ids=str
)
def test_hidden_blocks_are_skipped_without_a_trace_in_results_or_gradients(
    options: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    module = Attention(**options).bfloat16().cuda()
    x = torch.randn(2, 512, 32, dtype=torch.bfloat16, device="cuda")
    records: list[Rewritten] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        records.extend(rewrite_attention(gm, prefer_flex=True))
        return compile_fx(gm, given)

    def of(function: Callable[..., Any], owner: Attention, x: torch.Tensor) -> list[torch.Tensor]:
        leaf = x.detach().clone().requires_grad_()
        owner.zero_grad(set_to_none=True)
        out = function(leaf)
        out.float().square().mean().backward()
        gradients = [p.grad for p in owner.parameters() if p.grad is not None]
        return [out.detach(), *([] if leaf.grad is None else [leaf.grad]), *gradients]

    after = of(torch.compile(module, backend=backend, fullgraph=True), module, x)
    before = of(module, module, x)
    exact = copy.deepcopy(module).double()
    assert [(r.refused, r.route) for r in records] == [(None, "flex_attention")]
    check_errors(of(exact, exact, x.double()), before, after)
