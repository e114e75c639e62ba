"""Vendor math libraries: cuBLAS, cuDNN, CUTLASS, hipBLASLt and rocBLAS, MIOpen, Composable Kernel.

Trap: `relu` in a CUTLASS, cuDNN or cuBLAS name and `Bias`, `HA`, `SAV` in a Tensile name say what
the kernel can do, not what this launch did.
"""

from __future__ import annotations

from analyzers.kernel_knowledge.rows import Row
from analyzers.kernel_knowledge.schemes import nvjet

_CUDNN = "cuDNN (seen)"
_CUBLAS = "cuBLAS (seen)"
_TENSILE = "ROCm/Tensile kernel naming (seen)"
_MIOPEN = "ROCm/MIOpen src/kernels (seen)"
_CK = "ROCm/composable_kernel include/ck (seen, mangled)"
_CONV = r"[fb]prop|dgrad|wgrad|implicit_convolve|[Cc]onv[23]?d|convolve|ImplicitGemmConvolution"

ROWS: tuple[Row, ...] = (
    # Norms and layouts of the convolution libraries.
    Row(
        r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|\btensorTransform|nchwToFoldedNhwc",
        "layout",
        "cudnn",
        ("transpose NCHW->NHWC",),
        _CUDNN,
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(cudnn::ops::params)",
    ),
    Row(
        r"cudnn.*bn_(fw|bw)_|bn_fw_|bn_bw_|cudnn.*batchnorm",
        "norm",
        "cudnn",
        ("batch_norm",),
        _CUDNN,
        "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(args)",
        exact=False,
    ),
    Row(
        r"cudnn.*pooling|pooling_(fw|bw)",
        "pool",
        "cudnn",
        ("pool",),
        _CUDNN,
        "void cudnn::ops::pooling_fw_4d_kernel<float, float, cudnn::maxpooling_func<float>>(...)",
    ),
    Row(
        r"MIOpenBatchNorm\w*(FinalMeanVariance|MeanVariance)",
        "norm",
        "miopen",
        ("mean/var final reduce",),
        _MIOPEN,
        "MIOpenBatchNormFwdTrainSpatialFinalMeanVariance",
    ),
    Row(
        r"MIOpenBatchNorm\w*SpatialNorm",
        "norm",
        "miopen",
        ("normalize",),
        _MIOPEN,
        "MIOpenBatchNormFwdTrainSpatialNorm",
    ),
    Row(
        r"MIOpenBatchNormBwd",
        "norm",
        "miopen",
        ("batch_norm backward",),
        _MIOPEN,
        "MIOpenBatchNormBwdSpatial",
    ),
    Row(
        r"MIOpenBatchNorm",
        "norm",
        "miopen",
        ("mean", "var", "normalize", "running stats update"),
        _MIOPEN,
        "MIOpenBatchNormFwdTrainSpatial",
    ),
    Row(
        r"^batched_transpose_|^transpose_(NCHW|CNHW|packed)",
        "layout",
        "miopen",
        ("transpose NCHW<->NHWC",),
        _MIOPEN,
        "batched_transpose_32x16_half",
    ),
    Row(
        r"SubTensorOpWithCast", "cast", "miopen", ("cast",), _MIOPEN, "SubTensorOpWithCastTensor1d"
    ),
    Row(
        r"SubTensorOpWithScalar|Op[1-5]dTensor|OpTensor",
        "pointwise",
        "miopen",
        ("set zero",),
        _MIOPEN,
        "SubTensorOpWithScalar1d",
    ),
    Row(
        r"Im[23]d2Col|im2col|Col2Im",
        "conv",
        "miopen",
        ("im2col",),
        _MIOPEN + ": a slow path",
        "Im2d2Col_v2",
    ),
    Row(
        r"^igemm_(bwd|wrw)_",
        "conv",
        "miopen",
        ("conv2d backward",),
        _MIOPEN + ": iGEMM assembly",
        "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64_wt32x32x8_ws1x1",
    ),
    Row(
        r"^igemm_fwd_|^miopenSp3Asm|^miopenGcnAsm|^naive_conv|^MIOpenConv",
        "conv",
        "miopen",
        ("conv2d forward",),
        _MIOPEN + ": iGEMM assembly, Winograd",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1",
    ),
    # Composable Kernel.
    Row(
        r"kernel_(grouped_|batched_)?(conv_bwd|gemm_xdlops_bwd)_?|ck.*(BwdWeight|bwd_weight|bwd_data)",
        "conv",
        "composable_kernel",
        ("conv2d backward",),
        _CK,
        "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseG",
    ),
    Row(
        r"kernel_grouped_conv|DeviceConv|ck.*grouped_conv_fwd",
        "conv",
        "composable_kernel",
        ("conv2d forward",),
        _CK + ": a PassThrough functor means no epilogue",
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3",
        exact=False,
    ),
    Row(
        r"^_ZN2ck|\bck::|ck_tile.*[Gg]emm",
        "gemm",
        "composable_kernel",
        ("matmul",),
        _CK,
        "_ZN2ck27kernel_gemm_xdl_cshuffle_v3INS_28GridwiseGemm_xdl_cshuffle_v3INS_13tensor",
        exact=False,
    ),
    # Convolutions of NVIDIA's libraries; plain GEMM names serve convolutions too (see operators).
    Row(
        r"cudnn_generated_|cudnn.*\bgenericRuntime",
        "other",
        "cudnn",
        None,
        "cuDNN run-time fusion engine: any pattern",
        "cudnn_generated_fort_native_norm_sm90_rmsnorm_fprop",
    ),
    Row(
        rf"xmma_({_CONV}).*cudnn|cudnn.*({_CONV})|({_CONV}).*cudnn|\w*scudnn_|\w*_h\d+cudnn_",
        "conv",
        "cudnn",
        ("conv",),
        _CUDNN,
        "sm90_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize64x64_cudnn",
        exact=False,
    ),
    Row(
        r"[Ww]inograd|\bfft2d_|\bflip_filter|reduce_wgrad_nchw|computeOffsetsKernel|"
        r"cutlass_cudnn.*ReduceSplitK|convolve_common_engine",
        "conv",
        "cudnn",
        ("conv",),
        _CUDNN + ": helpers of a convolution",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(params)",
        exact=False,
    ),
    Row(
        r"conv_depthwise|conv2d_c1_k1|convolution_depthwise|DepthwiseConv",
        "conv",
        "pytorch",
        ("conv",),
        "pytorch aten/src/ATen/native/cuda/DepthwiseConv2d.cu (seen)",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel_generic<float>",
    ),
    Row(
        rf"cutlass.*({_CONV})",
        "conv",
        "cutlass",
        ("conv",),
        "NVIDIA/cutlass include/cutlass/conv",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688fprop_optimized_256x64_16x4_nhwc_align4>(x)",
        exact=False,
    ),
    Row(
        rf"^(ampere|turing|volta|maxwell|hopper)_\w*({_CONV})|xmma_({_CONV})",
        "conv",
        "cudnn",
        ("conv",),
        _CUDNN,
        "ampere_fp16_s16816fprop_128x128_ldg8_f2f_stages_64x3_nhwc",
        exact=False,
    ),
    # GEMMs.
    Row(
        r"^nvjet",
        "gemm",
        "cublas",
        nvjet,
        "cuBLASLt 12.6 and later (seen): only a stated epilogue ran",
        "nvjet_sm90_hsh_96x128_64x7_2x1_v_bz_bias_TNN",
    ),
    Row(
        r"^Cijk_\w*(_Bias|UserArgs)",
        "gemm",
        "hipblaslt",
        ("matmul",),
        _TENSILE + ": Bias, HA, SAV are abilities",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN",
        exact=False,
    ),
    Row(
        r"^Cijk_",
        "gemm",
        "rocblas",
        ("matmul",),
        _TENSILE,
        "Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0_APM1",
    ),
    Row(
        r"splitKreduce_kernel",
        "gemm",
        "cublas",
        ("split-K reduce",),
        _CUBLAS + ": belongs to the GEMM before it",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float>(params)",
        exact=False,
    ),
    Row(
        r"internal::gemvx|gemv\w*[_<(]|\bgemvNSP|\bgemmk1_kernel",
        "gemm",
        "cublas",
        ("matvec",),
        _CUBLAS,
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, 7>(params)",
    ),
    Row(
        r"^void dot_kernel|reduce_1Block_kernel",
        "reduction",
        "cublas",
        ("dot",),
        _CUBLAS,
        "void dot_kernel<float, 128, 0, cublasDotParams<float>>(cublasDotParams<float>)",
    ),
    Row(
        r"cutlass_\d+_(wmma_)?(tensorop|simt)\w*gemm|5x_cublas|^(ampere|turing|volta|maxwell|hopper)_"
        r"\w*gemm|^\w*[sdh]gemm_|gemmSN_|cublas|sm\d+_xmma_gemm",
        "gemm",
        "cublas",
        ("matmul",),
        _CUBLAS,
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_tn_align8>(x)",
        exact=False,
    ),
    Row(
        r"cutlass",
        "gemm",
        "cutlass",
        ("matmul",),
        "NVIDIA/cutlass include/cutlass/gemm",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<...>>>(x)",
        exact=False,
    ),
    Row(
        r"^_?(matmul|gemm|grouped_gemm|persistent_matmul|_w8a8_block_fp8_matmul|mm)(_persistent|_tma)?"
        r"_kernel|^matmul_kernel|_block_fp8_matmul",
        "gemm",
        "triton",
        ("matmul",),
        "triton-lang/triton tutorials; vLLM and SGLang block FP8",
        "_w8a8_block_fp8_matmul",
        exact=False,
    ),
    Row(
        r"[Gg]emm|GEMM|\bgemv",
        "gemm",
        "unknown",
        ("matmul",),
        "common spelling",
        "my_fast_gemm_kernel",
        exact=False,
    ),
)
