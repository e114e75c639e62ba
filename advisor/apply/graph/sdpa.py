"""Calls of `scaled_dot_product_attention` in a graph, and which kernels PyTorch admits for them.

Source of the checks: `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` and
`sdp_utils_cpp.h` of PyTorch 2.9 to 2.13. A call that no fused kernel takes runs as products and a
softmax ("math"), without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from advisor.apply.graph.products import Size, tensor
from advisor.apply.graph.records import SdpaBackend
from advisor.apply.graph.spelling import differs, same_size, value_of

_GPU = "cuda"
HALF = (torch.float16, torch.bfloat16)
# Heads that cuDNN takes at most: 256 in new versions on Hopper and Blackwell, else 128.
_CUDNN_HEAD = 256
_FLASH_HEAD = 256
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True)
class AttentionCall:
    """A call in a graph with its arguments by name; tensors are nodes, `mask` may be None.

    Query, key and value are [batch, heads, length, dim] if they have four axes.
    """

    node: fx.Node
    query: fx.Node
    key: fx.Node
    value: fx.Node
    mask: fx.Node | None
    dropout: Any
    causal: Any
    scale: Any
    grouped: Any

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value as fakes."""
        return tensor(self.query), tensor(self.key), tensor(self.value)

    def fake_mask(self) -> torch.Tensor | None:
        """The mask as a fake."""
        return None if self.mask is None else tensor(self.mask)


def graphs_of(gm: fx.GraphModule) -> list[fx.GraphModule]:
    """A graph and the bodies of its checkpointed and wrapped parts."""
    return [module for module in gm.modules() if isinstance(module, fx.GraphModule)]


def attention_calls_of(gm: fx.GraphModule) -> list[AttentionCall]:
    """Every call of the library function, in bodies too, whose arguments have known fakes."""
    nodes = [node for module in graphs_of(gm) for node in module.graph.nodes]
    calls = [node for node in nodes if node.op == "call_function" and node.target in _TARGETS]
    found = [read_attention(node) for node in calls]
    return [call for call in found if call is not None]


_TARGETS = frozenset(
    (
        functional.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
    )
)


def read_attention(node: fx.Node) -> AttentionCall | None:
    """The arguments of a node that calls the library function; None where fakes are missing."""
    given: dict[str, Any] = dict(zip(_NAMES, node.args, strict=False))
    given.update(node.kwargs)
    query, key, value = (given.get(name) for name in _NAMES[:3])
    mask = given.get("attn_mask")
    fakes = [value_of(item) for item in (query, key, value, *(() if mask is None else (mask,)))]
    if any(item is None or item.dim() < 2 for item in fakes) or value_of(node) is None:
        return None
    assert isinstance(query, fx.Node)
    assert isinstance(key, fx.Node)
    assert isinstance(value, fx.Node)
    return AttentionCall(
        node,
        query,
        key,
        value,
        mask,
        given.get("dropout_p", 0.0),
        given.get("is_causal", False),
        given.get("scale"),
        given.get("enable_gqa", False),
    )


def on_gpu(query: fx.Node) -> bool:
    """Whether a query is on CUDA (or HIP, which calls itself so), where these checks are made."""
    return tensor(query).device.type == _GPU


def admitted(call: AttentionCall) -> tuple[SdpaBackend, ...]:
    """The kernels that PyTorch's checks admit, best first, with "math" last; () off CUDA."""
    if not on_gpu(call.query):
        return ()
    found: list[SdpaBackend] = []
    if why_no_kernel(call) is None:
        if _why_not_flash(call) is None:
            found.append("flash")
        if _why_not_efficient(call) is None:
            found.append("memory-efficient")
        if _why_not_cudnn(call) is None:
            found.append("cudnn")
    return (*found, "math")


def why_math(call: AttentionCall) -> str | None:
    """Why PyTorch chooses no fused kernel for a call on CUDA; None if it does.

    What all kernels refuse comes first; else what the memory-efficient one refuses, which has the
    fewest conditions.
    """
    fused = set(admitted(call)) - {"math"}
    if fused - {"cudnn"} or (fused and _cudnn_comes_before_math()):
        return None
    return why_no_kernel(call) or _why_not_efficient(call)


def _cudnn_comes_before_math() -> bool:
    """Whether PyTorch tries cuDNN at all before "math": from 2.11 on, on Hopper and Blackwell."""
    new = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11)
    return new and not (
        torch.cuda.is_available() and torch.cuda.get_device_capability()[0] not in (9, 10)
    )


def why_no_kernel(call: AttentionCall) -> str | None:
    """What every fused kernel refuses, fails at or reads wrongly, or None."""
    query, key, value = call.tensors()
    mask = call.fake_mask()
    dtype = _dtype(call)
    if dtype not in (*HALF, torch.float32):
        return f"its dtype is {_name(dtype)}"
    if any(item.dim() != 4 for item in (query, key, value)):
        return f"its query has {query.dim()} axes, not 4"
    if any(differs(item.shape[0], query.shape[0]) for item in (key, value)):
        return "query, key and value are of several batch sizes"
    named = {"query": query, "key": key, "value": value, "mask": mask}
    for name, item in named.items():
        if item is not None and differs(item.stride(-1), 1):
            return f"the last axis of its {name} has a stride of {item.stride(-1)}, not 1"
    if mask is not None and mask.dtype not in (torch.bool, dtype) and not _is_autocast(call):
        return f"its mask is {_name(mask.dtype)}, its query {_name(dtype)}"
    return None


def _why_not_flash(call: AttentionCall) -> str | None:
    query, key, value = call.tensors()
    if call.mask is not None:
        return "it has a mask"
    if _dtype(call) not in HALF:
        return f"its dtype is {_name(_dtype(call))}"
    uneven = any(differs(item.shape[-1], query.shape[-1]) for item in (key, value))
    if uneven or _is_above(query.shape[-1], _FLASH_HEAD):
        return "its heads are too wide, or of several widths"
    if call.causal is not False and differs(query.shape[-2], key.shape[-2]):
        return "it is causal with fewer queries than keys"
    return None if call.grouped is True else _why_not_heads(call)


def _why_not_efficient(call: AttentionCall) -> str | None:
    query, _, value = call.tensors()
    multiple = 8 if _dtype(call) in HALF else 4
    for size in (query.shape[-1], value.shape[-1]):
        if isinstance(size, int) and size % multiple:
            return f"its heads are {size} wide, no multiple of {multiple}"
    return _why_not_heads(call)


def _why_not_cudnn(call: AttentionCall) -> str | None:
    query, key, value = call.tensors()
    mask = call.fake_mask()
    if _dtype(call) not in HALF:
        return f"its dtype is {_name(_dtype(call))}"
    for size in (query.shape[-1], value.shape[-1]):
        if isinstance(size, int) and (size > _CUDNN_HEAD or size % 8):
            return f"its heads are {size} wide, above {_CUDNN_HEAD} or no multiple of 8"
    if same_size(key.shape[-2], 1):
        return "it has a single key"
    if call.dropout and (not isinstance(call.dropout, float) or (call.dropout * 16) % 1):
        return "its dropout is no multiple of 1/16"
    if mask is not None and (mask.requires_grad or mask.dim() not in (2, 4)):
        return "its mask has a gradient, or neither two axes nor four"
    return None if call.grouped is True else _why_not_heads(call)


def _why_not_heads(call: AttentionCall) -> str | None:
    query, key, value = call.tensors()
    fewer = any(differs(item.shape[1], query.shape[1]) for item in (key, value))
    return "heads of key and value are fewer than those of the query" if fewer else None


def _dtype(call: AttentionCall) -> torch.dtype:
    """The dtype it computes in: autocast casts operands and mask to that of the result."""
    return tensor(call.node).dtype


def _is_autocast(call: AttentionCall) -> bool:
    """Whether the call may be under autocast, of its graph or around it."""
    names = {getattr(node.target, "__name__", "") for node in call.node.graph.nodes}
    device = tensor(call.query).device.type
    return "_enter_autocast" in names or torch.is_autocast_enabled(device)


def _is_above(size: Size, most: int) -> bool:
    return isinstance(size, int) and size > most


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def may_share_sizes(first: AttentionCall, second: AttentionCall) -> bool:
    """Whether two calls may have query, key and value of the same sizes; unknown ones may."""
    pairs = zip(first.tensors(), second.tensors(), strict=True)
    return all(
        one.dim() == two.dim() and all(map(_may_be_equal, one.shape, two.shape))
        for one, two in pairs
    )


def _may_be_equal(one: Size, two: Size) -> bool:
    return not (isinstance(one, int) and isinstance(two, int)) or one == two
