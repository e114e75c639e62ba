"""Kernels that TorchInductor generates (Triton and C++), by its naming scheme."""

from __future__ import annotations

from analyzers.kernel_knowledge.rows import Row
from analyzers.kernel_knowledge.schemes import inductor

_SOURCE = "pytorch torch/_inductor/codegen/triton.py, wrapper names in scheduler.py"
_TEMPLATES = "pytorch torch/_inductor/kernel (Triton templates)"
_CPP = "pytorch torch/_inductor/codegen/cpp.py (seen with cpp.enable_kernel_profile)"
_REDUCING = r"^triton_(red|per|mix|split_scan)_"
_MOVED = (
    r"(clone|cat|stack|view|_unsafe_view|transpose|permute|slice|select|expand|unsqueeze|squeeze"
    r"|split|unbind|constant_pad_nd|copy|lift_fresh_copy|convolution"
    r"|_scaled_dot_product_\w+?_attention)"
)

ROWS: tuple[Row, ...] = (
    Row(
        r"^triton_tem_.*conv",
        "conv",
        "inductor",
        inductor,
        _TEMPLATES,
        "triton_tem_fused_convolution_relu_3",
        exact=False,
    ),
    Row(
        r"^triton_tem_",
        "gemm",
        "inductor",
        inductor,
        _TEMPLATES,
        "triton_tem_fused_addmm_relu_5",
        exact=False,
    ),
    Row(
        _REDUCING + r".*(layer_norm|group_norm|batch_norm|rms_norm)",
        "norm",
        "inductor",
        inductor,
        _SOURCE,
        "triton_per_fused_add_native_layer_norm_2",
    ),
    Row(
        _REDUCING + r".*softmax",
        "softmax",
        "inductor",
        inductor,
        _SOURCE,
        "triton_per_fused__softmax_add_div_4",
    ),
    Row(
        _REDUCING,
        "reduction",
        "inductor",
        inductor,
        _SOURCE,
        "triton_red_fused_add_mean_mul_pow_rsqrt_0",
    ),
    Row(
        r"^triton_poi_fused_.*(inductor_random|native_dropout(?!_backward))",
        "rng",
        "inductor",
        inductor,
        _SOURCE,
        "triton_poi_fused_native_dropout_7",
    ),
    Row(
        rf"^triton_poi_fused_+({_MOVED}_)+\d+$",
        "copy",
        "inductor",
        inductor,
        _SOURCE,
        "triton_poi_fused_clone_transpose_view_3",
    ),
    Row(
        rf"^triton_poi_fused_+(_?to_copy_|convert_element_type_|{_MOVED}_)+\d+$",
        "cast",
        "inductor",
        inductor,
        _SOURCE,
        "triton_poi_fused__to_copy_view_5",
    ),
    Row(
        r"^triton_poi_fused_(embedding|index_select|index_put|gather|scatter)",
        "embedding",
        "inductor",
        inductor,
        _SOURCE,
        "triton_poi_fused_embedding_select_3",
    ),
    Row(
        r"^triton_(poi|for)_",
        "pointwise",
        "inductor",
        inductor,
        _SOURCE,
        "triton_poi_fused_gelu_view_6",
    ),
    Row(
        r"(^|_)cpp_fused_.*(layer_norm|group_norm|rms_norm)",
        "norm",
        "inductor_cpp",
        inductor,
        _CPP,
        "graph_0_cpp_fused_add_native_layer_norm_view_2",
    ),
    Row(
        r"(^|_)cpp_fused_.*softmax",
        "softmax",
        "inductor_cpp",
        inductor,
        _CPP,
        "cpp_fused__softmax_div_3",
    ),
    Row(
        r"(^|_)cpp_fused_.*(_mean|_sum|_amax|_argmax|_prod|var_mean)",
        "reduction",
        "inductor_cpp",
        inductor,
        _CPP,
        "graph_0_cpp_fused__native_batch_norm_legit_no_training_mean_relu_3",
    ),
    Row(
        r"(^|_)cpp_fused_convolution_\d+$",
        "layout",
        "inductor_cpp",
        inductor,
        _CPP,
        "graph_0_cpp_fused_convolution_0",
    ),
    Row(
        r"(^|_)cpp_fused_",
        "pointwise",
        "inductor_cpp",
        inductor,
        _CPP,
        "graph_0_cpp_fused_addmm_gelu_view_2",
    ),
)
