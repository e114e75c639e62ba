"""What a kernel does and whose it is, told from its name alone.

The first row that matches wins. A name proves little (`gemm_relu` does not prove a ReLU), so rows
say what kind of work the kernel is, never which ops it fused. Each row names where the spelling was
seen or is defined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

Role = Literal[
    "communication",
    "gemm",
    "conv",
    "attention",
    "norm",
    "softmax",
    "optimizer",
    "embedding",
    "reduction",
    "layout",
    "copy",
    "rng",
    "pointwise",
    "other",
]


class Row(NamedTuple):
    """A pattern searched in the name, what it means, and where the spelling is from."""

    pattern: str
    role: Role
    library: str
    source: str


TABLE: tuple[Row, ...] = (
    Row(r"^nccl(Dev)?Kernel", "communication", "nccl", "NVIDIA/nccl src/device"),
    Row(r"^ncclSymk?Dev|^ncclSymk", "communication", "nccl", "NVIDIA/nccl src/device/symmetric"),
    Row(
        r"multimem_(all_reduce|one_shot)|(one|two)_shot_all_reduce",
        "communication",
        "pytorch",
        "pytorch torch/csrc/distributed/c10d/symm_mem",
    ),
    Row(r"cross_device_reduce", "communication", "vllm", "vllm csrc/custom_all_reduce.cuh"),
    Row(r"userbuffers", "communication", "transformer_engine", "TransformerEngine userbuffers"),
    Row(r"nvshmem", "communication", "nvshmem", "NVSHMEM device kernels"),
    Row(r"multi_tensor_apply_kernel", "optimizer", "pytorch", "aten native/cuda/MultiTensorApply"),
    Row(
        r"flash_(fwd|bwd)|FlashAttn|flash::|fmha|fort_native_sdpa|attention_(fwd|bwd)|_attn_fwd",
        "attention",
        "flash_attention",
        "Dao-AILab/flash-attention csrc; cuDNN fort_native_sdpa; CUTLASS fmha; CK fmha",
    ),
    Row(
        r"^triton_tem_.*(flex|attention)", "attention", "inductor", "torch/_inductor flex_attention"
    ),
    Row(r"^triton_tem_", "gemm", "inductor", "torch/_inductor Triton templates (mm, conv)"),
    Row(r"^triton_(red|per|mix)_", "reduction", "inductor", "torch/_inductor codegen/triton.py"),
    Row(r"^triton_(poi|for)_", "pointwise", "inductor", "torch/_inductor codegen/triton.py"),
    Row(r"nchwToNhwc|nhwcToNchw|nchw2nhwc", "layout", "cudnn", "cuDNN layout kernels (seen)"),
    Row(r"[Bb]atch_?[Nn]orm|bn_(fw|bw)_|MIOpenBatchNorm", "norm", "cudnn", "cuDNN, MIOpen (seen)"),
    Row(
        r"implicit_convolve|[Cc]onv2d|convolve|fprop|dgrad|wgrad|[Ww]inograd|miopenSp3|igemm_",
        "conv",
        "cudnn",
        "cuDNN, CUTLASS implicit GEMM, MIOpen (seen)",
    ),
    Row(r"^nvjet", "gemm", "cublas", "cuBLASLt 12.6+ on Hopper (seen)"),
    Row(r"^Cijk_", "gemm", "hipblaslt", "Tensile kernel names"),
    Row(r"cutlass", "gemm", "cutlass", "NVIDIA/cutlass"),
    Row(r"gemm|gemv|Gemm|GEMM|splitKreduce", "gemm", "cublas", "cuBLAS (seen)"),
    Row(
        r"[Ll]ayer_?[Nn]orm|[Gg]roup_?[Nn]orm|rms_?norm|RMSNorm|RowwiseMoments|GammaBeta|"
        r"ComputeInternalGradients|ComputeFusedParams",
        "norm",
        "pytorch",
        "aten native/cuda norms",
    ),
    Row(r"[Ss]oft_?[Mm]ax", "softmax", "pytorch", "aten native/cuda/PersistentSoftmax.cuh"),
    Row(r"FusedAdam|fused_adam|Adam|adagrad", "optimizer", "pytorch", "aten fused optimizers"),
    Row(
        r"[Ee]mbedding|indexSelect|vectorized_gather|index_put|IndexKernel|index_elementwise",
        "embedding",
        "pytorch",
        "aten native/cuda/Indexing.cu, Embedding.cu",
    ),
    Row(
        r"distribution_(elementwise|nullary)|dropout|philox",
        "rng",
        "pytorch",
        "aten DistributionTemplates",
    ),
    Row(
        r"CatArrayBatchedCopy|direct_copy_kernel|copy_device_to_device|bfloat16_copy|float16_copy",
        "copy",
        "pytorch",
        "aten native/cuda/Copy.cu, Shape.cu",
    ),
    Row(
        r"reduce_kernel|DeviceReduce|DeviceScan|cub::",
        "reduction",
        "pytorch",
        "aten Reduce.cuh; CUB",
    ),
    Row(
        r"elementwise_kernel|Elementwise|pointwise|FillFunctor",
        "pointwise",
        "pytorch",
        "aten Loops.cuh",
    ),
)
_ROWS = tuple((re.compile(row.pattern), row) for row in TABLE)
UNKNOWN = Row("", "other", "unknown", "no row matches")


@lru_cache(maxsize=1 << 16)
def classify(name: str) -> Row:
    """The first row of the table that matches a kernel's name, or `UNKNOWN`."""
    return next((row for pattern, row in _ROWS if pattern.search(name)), UNKNOWN)


def is_communication(names: Iterable[object]) -> list[bool]:
    """Which of these kernel names are collectives or their disguises."""
    return [classify(str(name)).role == "communication" for name in names]
