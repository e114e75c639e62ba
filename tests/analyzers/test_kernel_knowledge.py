"""Kernel names of real profiles: role, library, what one launch computes, and the traps."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.demangle import short_name
from analyzers.kernel_knowledge.operators import OP_TABLE
from analyzers.kernel_roles import TABLE, Kernel, Row, classify, row_of
from tests.builders.trace import SHARED

NAMES = SHARED / "engine_outputs" / "kernel_names.json"
TRUTH: list[dict[str, Any]] = json.loads(NAMES.read_text())["kernels"] if NAMES.is_file() else []
# Class in the list of names → roles that are right for it; None: any (a fusion of anything).
ROLES: dict[str, set[str] | None] = {
    "activation": {"pointwise"},
    "attention": {"attention"},
    "attention backward": {"attention"},
    "batch norm": {"norm"},
    "batch norm backward": {"norm"},
    "cast": {"cast"},
    "collective": {"communication"},
    "conv": {"conv"},
    "conv backward": {"conv"},
    "conv/eltwise": {"conv", "pointwise"},
    "conv1d": {"conv"},
    "conv1d step": {"conv"},
    "dot": {"reduction"},
    "elementwise": {"pointwise", "copy", "cast"},
    "elementwise/reduction": {"pointwise", "reduction", "norm", "softmax", "copy", "layout"},
    "fill": {"pointwise"},
    "fused function": None,
    "fusion": None,
    "gemm": {"gemm"},
    "gemv": {"gemm"},
    "kv cache write": {"cache"},
    "layout": {"layout"},
    "matmul": {"gemm"},
    "mlp epilogue": {"pointwise"},
    "moe": {"routing"},
    "moe gemm": {"gemm"},
    "moe routing": {"routing"},
    "norm": {"norm"},
    "norm backward": {"norm"},
    "op": None,
    "optimizer": {"optimizer"},
    "pointwise": {"pointwise"},
    "pool": {"pool"},
    "quantize": {"quantize"},
    "reduction/normalization": {"reduction", "norm"},
    "rope": {"rotary"},
    "softmax": {"softmax"},
    "ssm scan": {"scan"},
    "ssm scan backward": {"scan"},
    "ssm step": {"scan"},
    "subgraph": {"other"},
}
# The dominant operation of a fusion of anything, by words in its list of operations.
DOMINANT = (
    ("conv", "conv"),
    ("matmul", "gemm"),
    ("dense", "gemm"),
    ("dot", "gemm"),
    ("softmax", "softmax"),
    ("reduce", "reduction"),
    ("mean", "reduction"),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.example[:60])
def test_every_row_is_reached_by_its_example_and_names_a_source(row: Row) -> None:
    assert row_of(row.example) is row
    assert len(row.source) > 3


def test_patterns_are_unique() -> None:
    assert len({row.pattern for row in TABLE}) == len(TABLE)


@pytest.mark.skipif(not TRUTH, reason=f"no list of kernel names in {SHARED}")
@pytest.mark.parametrize("known", TRUTH, ids=lambda k: str(k["name"])[:60])
def test_names_of_real_engines(known: dict[str, Any]) -> None:
    found = classify(known["name"])
    roles = ROLES[known["op_class"]]
    if roles is None and known["op_class"] == "fused function":
        words = " ".join(known["fused_ops"])
        roles = {next((role for word, role in DOMINANT if word in words), "layout")}
    assert roles is None or found.role in roles
    assert found.library != "unknown"
    # None is "the name does not tell": no claim, so it cannot be wrong.
    assert known["is_fusion"] is None or found.fuses in (known["is_fusion"], None)


@pytest.mark.skipif(not TRUTH, reason=f"no list of kernel names in {SHARED}")
def test_how_often_names_tell_whether_they_fuse() -> None:
    stated = [k for k in TRUTH if k["is_fusion"] is not None]
    told = [k for k in stated if classify(k["name"]).fuses is not None]
    assert len(stated) == 217
    assert len(told) >= 193


@pytest.mark.parametrize(
    ("name", "op", "role", "fuses"),
    [
        # A ReLU or a bias in the name of a library kernel proves nothing.
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_relu_f2f_stages_64x6_tn", None, "gemm", None),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_tn_align8>",
            "aten::addmm",
            "gemm",
            None,
        ),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256", "aten::mm", "gemm", None),
        ("ampere_scudnn_128x64_relu_xregs_large_nn_v1", None, "conv", None),
        # The same GEMM kernel is a convolution under a convolution.
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4>",
            "aten::cudnn_convolution",
            "conv",
            None,
        ),
        ("nvjet_sm90_hsh_128x96_64x7_2x1_v_bz_TNT", "aten::cudnn_convolution", "conv", False),
        ("nvjet_sm90_hsh_96x128_64x7_2x1_v_bz_bias_TNN", "aten::addmm", "gemm", True),
        # One operation behind a prefix that promises more.
        ("wrapped_convert.kd", None, "cast", False),
        ("fused_nn_softmax", None, "softmax", False),
        # Names of layers inside another layer's name.
        (
            "Reformatting CopyNode for Input Tensor 0 to Conv_0 + Relu_1",
            None,
            "layout",
            False,
        ),
        # Producers that ran elsewhere are in Inductor's names.
        (
            "triton_poi_fused__scaled_dot_product_flash_attention_cat_transpose_view_10",
            None,
            "copy",
            False,
        ),
        ("triton_poi_fused_0", None, "pointwise", None),
        # Disguised collectives.
        ("void multimem_one_shot_all_reduce_kernel<float>(x)", None, "communication", None),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", None, "communication", None),
        # The operator tells what a helper belongs to.
        (
            "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<long>(x)",
            "aten::embedding_dense_backward",
            "embedding",
            False,
        ),
        ("my_own_triton_kernel", "mylib::apply_rope", "rotary", None),
        ("my_own_triton_kernel", "my_own_triton_kernel", "other", None),
    ],
)
def test_traps(name: str, op: str | None, role: str, fuses: bool | None) -> None:
    found = classify(name, op)
    assert (found.role, found.fuses) == (role, fuses)


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", ("add", "mean", "mul", "pow", "rsqrt")),
        ("triton_poi_fused__unsafe_view_mul_silu_2", ("mul", "silu")),
        (
            "triton_per_fused__to_copy_add_native_layer_norm_view_3",
            ("_to_copy", "add", "native_layer_norm"),
        ),
        (
            "fused_conv2d1_subtract_divide_add_add1_relu",
            ("conv2d", "subtract", "divide", "add", "add", "relu"),
        ),
        ("__myl_MulMaxSubExpSum_myl109_3", ("mul", "max", "sub", "exp", "sum")),
        ("PWN(PWN(/m/act/Sigmoid), PWN(/m/act/Mul))", ("sigmoid", "mul")),
        ("Conv_3 + Relu_4", ("conv", "relu")),
        ("broadcast_add_fusion.4", ("broadcast", "add")),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
            "silu_kernel(at::TensorIteratorBase&)::{lambda(float)#1}>(int)",
            ("silu",),
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::"
            "MeanOps<float, float>>>(x)",
            ("mean",),
        ),
    ],
)
def test_operations_in_names(name: str, ops: tuple[str, ...]) -> None:
    assert classify(name).ops == ops


def test_operator_rows_match_and_differ_from_what_they_replace() -> None:
    for row in OP_TABLE:
        re.compile(row.pattern)
        assert set(row.instead_of) - {row.role}
        assert row.source


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, "
            "float, float, at::native::binary_internal::MulFunctor<float> >, x>(int)",
            "vectorized_elementwise_kernel[MulFunctor]",
        ),
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
            "vllm::fused_add_rms_norm_kernel",
        ),
        (
            "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_",
            "aiter::add_rmsnorm_quant_kernel",
        ),
        (
            "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_27Rms",
            "ck_tile::kentry[Rmsnorm2dFwd]",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16",
            "Cijk_Alik_Bljk_BBS MT256x192x64",
        ),
        ("input_reduce_fusion_1.kd", "input_reduce_fusion_1"),
        ("triton_poi_fused_gelu_view_6", "triton_poi_fused_gelu_view_6"),
        (
            "/model.13/m.0/cv2/conv/Conv || /model.13/m.0/cv1/conv/Conv",
            "/model.13/m.0/cv2/conv/Conv || /model.13/m.0/cv1/conv/Conv",
        ),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


@given(st.text(max_size=200) | st.text("_ZN0123456789IEabc<>(): ,", max_size=200))
def test_any_name_gets_an_answer(name: str) -> None:
    assert isinstance(classify(name), Kernel)
    assert len(short_name(name)) <= 80


@pytest.mark.parametrize("piece", ["<", "(", "_ZN9", "fused_a_", "a+", "__myl_Exp", "reduce_"])
def test_hostile_names_cost_little(piece: str) -> None:
    name = piece * 100_000
    assert isinstance(classify(name, name), Kernel)
    assert len(short_name(name)) <= 80
