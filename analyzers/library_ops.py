"""Library calls as graphs and traces name them: what they are and what shape they return.

One vocabulary for exact graphs (`aten.bmm.default`) and recorded ops (`aten::bmm`): `call_of` gives
the bare name of either. Meanings are those of ATen's schemas (native_functions.yaml).
"""

from __future__ import annotations

from advisor.model.graph import AttributeValue, Node, TensorMeta
from analyzers.inferred_ops import meta_of
from analyzers.inferred_values import row_major
from analyzers.recorded_ops import Operand, RecordedOp

GEMMS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm", "addmv", "mv"}
)
CONVOLUTIONS = frozenset(
    {
        "convolution", "_convolution", "cudnn_convolution", "miopen_convolution", "conv2d",
        "cudnn_convolution_relu", "cudnn_convolution_add_relu", "thnn_conv2d", "_conv_depthwise2d",
        "convolution_overrideable", "miopen_depthwise_convolution",
    }
)  # fmt: skip
BATCH_NORMS = frozenset(
    {
        "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm",
        "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
        "_native_batch_norm_legit_functional", "_batch_norm_with_update",
    }
)  # fmt: skip
LIBRARY_NORMS = frozenset(
    {
        "native_layer_norm",
        "native_group_norm",
        "layer_norm",
        "group_norm",
        "_fused_rms_norm",
        "rms_norm",
    }
)
ATTENTIONS = frozenset(
    {
        "_flash_attention_forward",
        "_efficient_attention_forward",
        "_cudnn_attention_forward",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "scaled_dot_product_attention",
        "_flash_attention_backward",
        "_efficient_attention_backward",
        "flex_attention",
        "_scaled_dot_product_attention_math",
    }
)
SOFTMAXES = frozenset({"_softmax", "softmax"})
DROPOUTS = frozenset({"native_dropout", "_fused_dropout", "dropout"})
VIEWS = frozenset(
    {
        "permute",
        "transpose",
        "t",
        "slice",
        "select",
        "split",
        "chunk",
        "as_strided",
        "unsqueeze",
        "squeeze",
    }
)
COPIES = frozenset({"copy", "copy_", "clone", "contiguous"})
# `out_dtype` of _scaled_mm by place, and what its numbers mean (c10/core/ScalarType.h).
_OUT_DTYPE = 6
_SCALAR_TYPES: dict[float | None, str] = {5.0: "float16", 6.0: "float32", 15.0: "bfloat16"}
_LIKE_FIRST = frozenset(
    {
        "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
        "gelu_backward", "native_dropout", "_flash_attention_forward", "_cudnn_attention_forward",
        *BATCH_NORMS, *LIBRARY_NORMS,
    }
)  # fmt: skip


def is_product(node: Node) -> bool:
    """A matrix product of any spelling."""
    return node.op == "opaque" and call_of(node) in GEMMS


def call_of(node: Node) -> str:
    """The bare name of what an opaque node calls: `aten.bmm.default` and `aten::bmm` are `bmm`."""
    parts = node.target.replace("::", ".").split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims") else node.target


def is_library_call(name: str) -> bool:
    """A GEMM, convolution or attention by recorded name (`aten::bmm`): nothing fuses across it."""
    bare = name.rpartition("::")[2]
    return bare in GEMMS or bare in CONVOLUTIONS or bare in ATTENTIONS or "convolution" in bare


def attributes_of(op: RecordedOp) -> dict[str, AttributeValue]:
    """What rules need to know of a call beyond its tensors."""
    bare = op.name.rpartition("::")[2]
    if bare in BATCH_NORMS:
        training = op.number(5)  # the sixth argument of ATen's, cuDNN's and MIOpen's alike
        return {} if training is None else {"training": bool(training)}
    if bare.startswith("_foreach_"):
        return {"lists": sum(isinstance(argument, tuple) for argument in op.arguments)}
    return {}


def left_operand(op: RecordedOp) -> Operand | None:
    """The left operand of a matrix product (mm, addmm, linear), None for any other op."""
    position = {"mm": 0, "linear": 0, "addmm": 1}.get(op.name.rpartition("::")[2])
    item = None if position is None else op.tensor(position)
    return item if item is not None and item.shape else None


def operands_of(op: RecordedOp) -> tuple[Operand, ...]:
    """The tensors an opaque op reads: a copy and a fill do not read what they write."""
    bare = op.name.rpartition("::")[2]
    if bare == "copy_":
        return op.tensors[1:2]
    return () if bare in ("fill_", "zero_") else op.tensors


def output_of(op: RecordedOp) -> tuple[TensorMeta | None, bool]:
    """(the first output of an opaque op, is its shape certain?); None if it has no tensors."""
    bare = op.name.rpartition("::")[2]
    items = [t for t in op.tensors if t.shape]
    if not items:
        return None, True
    shape = _shape(bare, op, items)
    if shape is not None:
        return TensorMeta(
            dtype=_dtype(bare, op, items), shape=shape, strides=_strides(bare, shape, items)
        ), True
    first = op.tensor(0) or items[0]
    if not first.shape:
        first = items[0]
    certain = bare in _LIKE_FIRST or bare in COPIES
    return meta_of(first), certain


def _dtype(bare: str, op: RecordedOp, items: list[Operand]) -> str:
    """That of the first operand; a product of eight-bit numbers names another."""
    if bare == "_scaled_mm":
        return _SCALAR_TYPES.get(op.number(_OUT_DTYPE), "bfloat16")
    return items[0].dtype or "float32"


def _shape(bare: str, op: RecordedOp, items: list[Operand]) -> tuple[int, ...] | None:
    """The output's shape where it differs from the first operand's."""
    if bare in ("mm", "bmm", "addmm", "baddbmm", "_scaled_mm"):
        pair = items[-2:] if bare in ("addmm", "baddbmm") else items[:2]
        if len(pair) < 2 or min(len(item.shape) for item in pair) < 2:
            return None
        return (*pair[0].shape[:-1], pair[1].shape[-1])
    if bare in CONVOLUTIONS and len(items) > 1:
        return _convolved(op, items)
    if bare == "cat":
        return _concatenated(op, items)
    if bare in ("index_select", "embedding") and len(items) > 1:
        return (*items[1].shape, *items[0].shape[1:])
    if bare == "gather" and len(items) > 1:
        return items[1].shape
    return None


def _convolved(op: RecordedOp, items: list[Operand]) -> tuple[int, ...] | None:
    """floor((size + 2 padding − dilation (kernel − 1) − 1) / stride) + 1 for each spatial axis."""
    image, weight = items[:2]
    lists = [
        v
        for i in range(len(op.arguments))
        if (v := op.integers(i)) is not None and isinstance(op.arguments[i], str)
    ]
    rank = len(image.shape) - 2
    lists = [v for v in lists if len(v) == rank]
    if rank < 1 or len(weight.shape) != rank + 2 or len(lists) < 3:
        return None
    first, second, dilation = lists[:3]
    # ATen's own overload gives the stride first, the cuDNN and MIOpen ones the padding.
    padding, stride = (second, first) if op.name.endswith("::convolution") else (first, second)
    if 0 in stride:
        return None
    spatial = tuple(
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, p, s, d in zip(
            image.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True
        )
    )
    return None if min(spatial) < 0 else (image.shape[0], weight.shape[0], *spatial)


def _concatenated(op: RecordedOp, items: list[Operand]) -> tuple[int, ...] | None:
    rank = len(items[0].shape)
    dims = op.integers(1)
    if not dims or any(len(item.shape) != rank for item in items) or not -rank <= dims[0] < rank:
        return None
    axis = dims[0] % rank
    total = sum(item.shape[axis] for item in items)
    return tuple(total if a == axis else size for a, size in enumerate(items[0].shape))


def _strides(bare: str, shape: tuple[int, ...], items: list[Operand]) -> tuple[int, ...]:
    """Row-major, but a convolution of channels-last images writes channels last."""
    channels_last = (
        bare in CONVOLUTIONS
        and len(shape) == 4
        and any(
            i.strides is not None and len(i.strides) == 4 and i.strides[1] == 1 and i.shape[1] > 1
            for i in items[:2]
        )
    )
    if not channels_last:
        return row_major(shape)
    _, channels, height, width = shape
    return (channels * height * width, 1, channels * width, channels)
