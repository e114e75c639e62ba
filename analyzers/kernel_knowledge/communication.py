"""Collectives, and kernels that are collectives under another name."""

from __future__ import annotations

from analyzers.kernel_knowledge.rows import Row

ROWS: tuple[Row, ...] = (
    Row(
        r"^(void )?nccl(Dev)?Kernel",
        "communication",
        "nccl",
        None,
        "NVIDIA/nccl src/device; RCCL has the same names (seen)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    Row(
        r"ncclSymk?(Dev|Kernel|_)|^ncclSymk",
        "communication",
        "nccl",
        None,
        "NVIDIA/nccl src/device/symmetric",
        "ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_bf16(ncclSymkDevWorkArgs4K)",
    ),
    Row(
        r"multimem_(all_reduce|one_shot|reduce_scatter|all_gather)"
        r"|(one|two)_shot_all_reduce|stream_write_value|symm_mem.*(barrier|signal)",
        "communication",
        "pytorch",
        None,
        "pytorch torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu (seen)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    ),
    Row(
        r"allreduce_fusion_kernel|moereduce_allreduce_fusion",
        "communication",
        "tensorrt_llm",
        ("all_reduce", "add(residual)", "rms_norm", "(quantize)"),
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/communicationKernels; FlashInfer comm",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>",
        exact=False,
    ),
    Row(
        r"lamportStyleOneShotAllReduce|oneShotAllReduceKernel|twoShotAllReduceKernel"
        r"|oneShot(Norm)?Kernel|trtllm.*allreduce|allreduce_(one|two)shot",
        "communication",
        "tensorrt_llm",
        None,
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/customAllReduceKernels.cu",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true>(...)",
    ),
    Row(
        r"quickreduce|allreduce_prototype_twoshot",
        "communication",
        "vllm",
        None,
        "vllm-project/vllm csrc/quickreduce",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half>>",
    ),
    Row(
        r"aiter.*(cross_device_reduce|allreduce|reduce_scatter_cross_device)",
        "communication",
        "aiter",
        None,
        "ROCm/aiter csrc/include/custom_all_reduce.cuh",
        "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)",
    ),
    Row(
        r"cross_device_reduce_[12]stage",
        "communication",
        "vllm",
        None,
        "vllm-project/vllm csrc/custom_all_reduce.cuh; sgl-kernel has the same",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)",
    ),
    Row(
        r"deep_ep::|internode(_ll)?::|intranode::(dispatch|combine|notify)",
        "communication",
        "deep_ep",
        None,
        "deepseek-ai/DeepEP csrc/kernels",
        "void deep_ep::internode_ll::dispatch<true, 3, 7168>(void*, float*)",
    ),
    Row(
        r"mscclpp|msccl::",
        "communication",
        "mscclpp",
        None,
        "microsoft/mscclpp apps/nccl",
        "void mscclpp::allreduce7<__half>(...)",
    ),
    Row(
        r"userbuffers_|kuserbuffers",
        "communication",
        "transformer_engine",
        None,
        "NVIDIA/TransformerEngine common/comm_gemm_overlap/userbuffers",
        "kuserbuffers_pushsend(int*, int*, int*)",
    ),
    Row(
        r"nvshmem",
        "communication",
        "nvshmem",
        None,
        "NVIDIA/nvshmem src/device",
        "nvshmemi_barrier_on_stream_kernel(int, int)",
    ),
)
