"""Operations read from names that are built by a scheme.

Each function takes a kernel's name and gives the operations of one launch, None where the name
holds none.
"""

from __future__ import annotations

import re

# Operations whose own name holds an underscore, as Inductor joins names with underscores.
_LONG_OPS = (
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "_log_softmax",
    "_log_softmax_backward_data",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_safe_softmax",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_mm",
    "_softmax",
    "_softmax_backward_data",
    "_to_copy",
    "_unsafe_index",
    "_unsafe_view",
    "_weight_norm_interface",
    "as_strided",
    "as_strided_scatter",
    "avg_pool2d",
    "binary_cross_entropy_with_logits",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "clamp_max",
    "clamp_min",
    "constant_pad_nd",
    "convert_element_type",
    "convolution_backward",
    "embedding_dense_backward",
    "fmha_v3_fwd",
    "full_like",
    "gelu_backward",
    "hardtanh_backward",
    "index_add",
    "index_put",
    "index_select",
    "inductor_lookup_seed",
    "inductor_random",
    "inductor_seeds",
    "leaky_relu",
    "leaky_relu_backward",
    "lift_fresh",
    "lift_fresh_copy",
    "linalg_vector_norm",
    "log_sigmoid_forward",
    "logical_and",
    "logical_not",
    "logical_or",
    "masked_fill",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "moe_forward",
    "mse_loss",
    "mse_loss_backward",
    "native_batch_norm_backward",
    "native_dropout",
    "native_dropout_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "new_empty",
    "new_full",
    "new_ones",
    "new_zeros",
    "nll_loss_backward",
    "nll_loss_forward",
    "ones_like",
    "prepare_softmax_online",
    "repeat_interleave",
    "scalar_tensor",
    "select_backward",
    "select_scatter",
    "sigmoid_backward",
    "silu_backward",
    "slice_backward",
    "slice_scatter",
    "smooth_l1_loss",
    "softplus_backward",
    "split_with_sizes",
    "tanh_backward",
    "threshold_backward",
    "tril_indices",
    "upsample_bilinear2d",
    "upsample_nearest2d",
    "var_mean",
    "zeros_like",
)
_INDUCTOR = re.compile(r"fused_(?P<ops>.+?)_?\d*$")
_INDUCTOR_OP = re.compile(
    "(?:" + "|".join(sorted(map(re.escape, _LONG_OPS), key=len, reverse=True)) + r")(?=_|$)"
    r"|[^_]+"
)
# Producers that Inductor names although they ran as kernels of their own, and mere views.
_ELSEWHERE = frozenset(
    (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "convolution_backward",
        "_scaled_mm",
        "fmha_v3_fwd",
        "moe_forward",
        "view",
        "_unsafe_view",
        "reshape",
        "transpose",
        "permute",
        "t",
        "expand",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "split",
        "split_with_sizes",
        "unbind",
        "as_strided",
        "alias",
        "detach",
        "unsafe",
    )
)
_TVM_OP = re.compile(
    r"(?:nn_contrib_conv2d_NCHWc|(?:nn|tir|image|vision)_(?:\w+?_)??"
    r"(?:dense|matmul|add|relu|gelu|softmax|norm|conv2d|conv1d|conv2d_transpose|pool2d|sqrt|exp"
    r"|sigmoid|tanh|erf|flatten|pad|upsampling|resize2d)|bias_add|strided_slice|layer_norm"
    r"|batch_norm|batch_matmul|max_pool2d|avg_pool2d|global_avg_pool2d|expand_dims|layout_transform"
    r"|broadcast_to|batch_flatten|[^_]+?)(?:\d*)(?=_|$)"
)
_MYELIN_WORDS = {
    "Add": "add",
    "Cas": "cast",
    "Con": "concat",
    "Div": "div",
    "Exp": "exp",
    "Fc": "matmul",
    "Gel": "gelu",
    "Max": "max",
    "Mea": "mean",
    "Mov": "move",
    "Mul": "mul",
    "Neg": "neg",
    "Pow": "pow",
    "Res": "reshape",
    "Rsq": "rsqrt",
    "Sig": "sigmoid",
    "Sil": "silu",
    "Sli": "slice",
    "Sqr": "sqrt",
    "Sub": "sub",
    "Sum": "sum",
    "Tan": "tanh",
    "Tra": "transpose",
}
_FUNCTORS: tuple[tuple[str, str], ...] = (
    (r"FusedAdam|FusedSgd|FusedAdagrad", "fused optimizer step"),
    (r"LpNorm|LpMax", "norm"),
    (r"GroupNormBackward", "group_norm backward"),
    (r"GroupNorm", "group_norm"),
    (r"batch_norm_calc_invstd", "batch_norm"),
    (r"silu_backward", "silu_backward"),
    (r"silu", "silu"),
    (r"GeluBackward", "gelu_backward"),
    (r"Gelu", "gelu"),
    (r"sigmoid_backward", "sigmoid_backward"),
    (r"log_sigmoid", "log_sigmoid"),
    (r"sigmoid_kernel", "sigmoid"),
    (r"tanh_backward", "tanh_backward"),
    (r"tanh_kernel|\bTanh<", "tanh"),
    (r"threshold_kernel", "threshold_backward"),
    (r"launch_clamp_scalar|clamp_\w*kernel|clamp_min", "clamp / relu"),
    (r"leaky_relu", "leaky_relu"),
    (r"softplus", "softplus"),
    (r"hardswish", "hardswish"),
    (r"binary_cross_entropy_backward", "binary_cross_entropy_backward"),
    (r"mse_backward", "mse_loss_backward"),
    (r"mse_kernel", "mse_loss"),
    (r"pow_tensor|\bpow_", "pow"),
    (r"rsqrt_kernel", "rsqrt"),
    (r"sqrt_kernel|Sqrt<", "sqrt"),
    (r"neg_kernel", "neg"),
    (r"exp_kernel", "exp"),
    (r"\blog_kernel", "log"),
    (r"\bcos_kernel", "cos"),
    (r"\bsin_kernel", "sin"),
    (r"\berf_kernel", "erf"),
    (r"\babs_kernel|AbsFunctor", "abs"),
    (r"reciprocal_kernel", "reciprocal"),
    (r"where_kernel", "where"),
    (r"masked_fill", "masked_fill"),
    (r"Compare(\w*)Functor", "compare"),
    (r"Bitwise(\w+)Functor", "bitwise"),
    (r"logical_\w+_kernel", "logical"),
    (r"remainder_kernel", "remainder"),
    (r"div_\w+_kernel|DivFunctor", "div"),
    (r"addcmul|PointwiseOp.*multiplies", "addcmul"),
    (r"addcdiv|PointwiseOp.*divides", "addcdiv"),
    (r"lerp|LerpFunctor", "lerp"),
    (r"copy_kernel_cuda\(at::TensorIteratorBase&\)::\{lambda\(\w+\)#1\}", "cast"),
    (r"direct_copy_kernel|CopyFunctor|\bCopy<", "copy"),
    (r"FillFunctor", "fill"),
    (r"arange", "arange"),
    (r"CUDAFunctorOnSelf_add|CUDAFunctor_add|AddFunctor|BinaryOpListAlpha", "add"),
    (r"MulFunctor|multiplies", "mul"),
    (r"BinaryOpScalar\w*Functor.*plus|plus<", "add"),
    (r"divides<", "div"),
    (r"MeanOps", "mean"),
    (r"sum_functor|SumOps", "sum"),
    (r"ArgMaxOps", "argmax"),
    (r"ArgMinOps", "argmin"),
    (r"MaxOps|MaxNanFunctor|max_functor", "max"),
    (r"MinOps|MinNanFunctor|min_functor", "min"),
    (r"WelfordOps", "var"),
    (r"NormTwoOps|NormOps|norm_kernel", "vector norm"),
    (r"and_kernel", "all"),
    (r"or_kernel", "any"),
    (r"prod_functor", "prod"),
)
_FUNCTOR_ROWS = tuple((re.compile(pattern), op) for pattern, op in _FUNCTORS)


def inductor(name: str) -> tuple[str, ...] | None:
    """`triton_poi_fused_addmm_gelu_view_17` → gelu.

    An upper bound: besides library calls and views, which are left out, a producer that became a
    kernel of its own may be among them.
    """
    found = _INDUCTOR.search(name)
    if found is None or not found["ops"].strip("_0123456789"):
        return None
    ops = [m.group() for m in _INDUCTOR_OP.finditer(found["ops"])]
    kept = (op for op in ops if op not in _ELSEWHERE and not op.startswith("_scaled_dot_product"))
    return tuple(dict.fromkeys(kept))


def tvm(name: str) -> tuple[str, ...]:
    """`fused_conv2d1_add_add1_relu` → conv2d, add, add, relu; digits only tell twins apart."""
    body = name.split("fused_", 1)[1]
    ops = []
    for match in _TVM_OP.finditer(body):
        ops.append(match.group())
    counted = (re.sub(r"(?<=\D)\d+$", "", op) if not _dimensional(op) else op for op in ops)
    return tuple(op for op in counted if op and not op.isdigit())


def _dimensional(op: str) -> bool:
    """Digits that belong to the name: conv2d, pool2d; `conv2d1` is conv2d again."""
    return bool(re.search(r"\dd$", op))


def myelin(name: str) -> tuple[str, ...] | None:
    """`__myl_MulMaxSubExpSum_myl109_3` → mul, max, sub, exp, sum."""
    found = re.search(r"__myl_([A-Za-z]+)", name)
    if found is None:
        return None
    words = re.findall(r"[A-Z][a-z]*", found[1])
    return tuple(_MYELIN_WORDS.get(word, word.lower()) for word in words) or None


def tensorrt_layer(name: str) -> tuple[str, ...] | None:
    """`Conv_0 + Relu_1` → conv, relu; `PWN(PWN(/a/Sigmoid), PWN(/a/Mul))` → sigmoid, mul."""
    parts = re.split(r" \+ | \|\| |, ", re.sub(r"PWN\(|\)", "", name))
    ops = [re.sub(r"_?\d+$", "", part.strip().rsplit("/", 1)[-1]).lower() for part in parts]
    return tuple(op for op in ops if op) or None


def xla(name: str) -> tuple[str, ...] | None:
    """`broadcast_add_fusion.4` → broadcast, add; `wrapped_copy.4` → copy, one op only.

    XLA names a fusion by its last instructions, so the list is a lower bound.
    """
    bare = re.sub(r"(\.kd)?$|\.\d+$|_\d+$", "", re.sub(r"\.kd$", "", name))
    bare = re.sub(r"(\.\d+|_\d+)$", "", bare)
    if bare.startswith("wrapped_"):
        return (bare.removeprefix("wrapped_"),)
    body = re.sub(r"_?fusion$|^(loop|input|gemm|triton)_", "", bare)
    body = re.sub(r"_?fusion_?", "", body)
    return tuple(op for op in body.split("_") if op) or None


def nvjet(name: str) -> tuple[str, ...]:
    """`nvjet_sm90_hsh_96x128_64x7_2x1_v_bz_bias_TNN` → matmul, bias: only stated epilogues ran."""
    words = name.lower().split("_")
    return ("matmul", *(word for word in ("bias", "relu", "gelu") if word in words))


def trtllm_batched_gemm(name: str) -> tuple[str, ...]:
    """The epilogue that a generated grouped GEMM states in its suffixes."""
    stated = (
        ("_biasM", "bias"),
        ("_clmp_swiGlu", "clamp"),
        ("_swiGlu", "swiglu"),
        ("bmm_MxE4m3", "quantize MXFP8"),
    )
    return ("grouped matmul", *(op for mark, op in stated if mark in name))


def matmul_ogs(name: str) -> tuple[str, ...]:
    """OpenAI's mixture-of-experts matmul: formats and activation are in the name."""
    parts = ["gather", "grouped matmul", "bias"]
    if "mxfp4" in name:
        parts.insert(1, "dequantize MXFP4")
    return (*parts, "swiglu") if name.endswith("_swiglu") else tuple(parts)


def aten_functor(name: str) -> tuple[str, ...] | None:
    """The one operation an ATen loop, reduction or multi-tensor kernel applies."""
    return next(((op,) for pattern, op in _FUNCTOR_ROWS if pattern.search(name)), None)
