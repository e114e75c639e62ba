"""The GPUs that prices, occupancy and compile targets are known for, and how to find one."""

from __future__ import annotations

import re

from advisor.errors import UsageError
from advisor.hardware.gpu import Gpu

_GB = 1_000_000_000
_MHZ = 1_000_000

_PROGRAMMING_GUIDE = "CUDA C++ Programming Guide, Throughput of Native Arithmetic Instructions"
_A100_WHITEPAPER = "NVIDIA A100 Tensor Core GPU architecture whitepaper"
_ADA_WHITEPAPER = "NVIDIA Ada GPU architecture whitepaper"
_BLACKWELL_RTX_WHITEPAPER = "NVIDIA RTX Blackwell GPU architecture whitepaper"
_H100_WHITEPAPER = "NVIDIA H100 Tensor Core GPU architecture whitepaper"
_HOPPER_CLOCK = (
    "derived: FP32 peak / (256 FLOP x multiprocessors), equals the reported maximum clock"
)
_H200_DEVICE = "device attributes of an H200, Nsight Compute"
_B200_DEVICE = "no datasheet figure: as public device logs report, agrees with the FP32 peak"
_HOPPER_L2 = "derived: 10 MiB of L2 per memory stack, as on H100 SXM (5) and H200 (6); here 6"
_CDNA_ISA = "AMD CDNA instruction set architecture manual (transcendentals at quarter rate)"
_RDNA_ISA = "AMD RDNA 3 instruction set architecture manual (transcendentals at quarter rate)"
_ROCM_SPECS = "AMD ROCm documentation, GPU specifications"

# fmt: off
GPUS: tuple[Gpu, ...] = (
    Gpu(
        key="v100", name="NVIDIA V100 SXM2 32GB", vendor="nvidia", arch="sm_70",
        sm_count=80, clock_hz=1_530 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=32 * _GB, dram_bandwidth_bytes_per_s=900 * _GB, l2_bytes=6 << 20,
        float32_flops=15.7e12, tfloat32_flops=None, float16_flops=125.0e12,
        bfloat16_flops=None, float8_flops=None,
        default_source="NVIDIA Tesla V100 GPU architecture whitepaper (Volta)",
        sources={"special_per_sm_cycle": _PROGRAMMING_GUIDE},
        aliases=("v100-sxm2", "teslav100",),
    ),
    Gpu(
        key="t4", name="NVIDIA T4", vendor="nvidia", arch="sm_75",
        sm_count=40, clock_hz=1_590 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=16 * _GB, dram_bandwidth_bytes_per_s=320 * _GB, l2_bytes=4 << 20,
        float32_flops=8.1e12, tfloat32_flops=None, float16_flops=65.0e12,
        bfloat16_flops=None, float8_flops=None,
        default_source="NVIDIA T4 datasheet",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE,
            "sm_count": "NVIDIA Turing GPU architecture whitepaper",
            "clock_hz": "NVIDIA Turing GPU architecture whitepaper",
            "l2_bytes": "NVIDIA Turing GPU architecture whitepaper",
        },
        aliases=("teslat4",),
    ),
    Gpu(
        key="a10", name="NVIDIA A10", vendor="nvidia", arch="sm_86",
        sm_count=72, clock_hz=1_695 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=24 * _GB, dram_bandwidth_bytes_per_s=600 * _GB, l2_bytes=6 << 20,
        float32_flops=31.2e12, tfloat32_flops=62.5e12, float16_flops=125.0e12,
        bfloat16_flops=125.0e12, float8_flops=None,
        default_source="NVIDIA A10 datasheet",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": "NVIDIA A10 product brief",
            "clock_hz": "NVIDIA A10 product brief",
            "l2_bytes": "NVIDIA Ampere GA102 GPU architecture whitepaper",
        },
    ),
    Gpu(
        key="a100-40gb", name="NVIDIA A100 SXM4 40GB", vendor="nvidia", arch="sm_80",
        sm_count=108, clock_hz=1_410 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=40 * _GB, dram_bandwidth_bytes_per_s=1_555 * _GB, l2_bytes=40 << 20,
        float32_flops=19.5e12, tfloat32_flops=156.0e12, float16_flops=312.0e12,
        bfloat16_flops=312.0e12, float8_flops=None,
        default_source="NVIDIA A100 Tensor Core GPU datasheet",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": _A100_WHITEPAPER,
            "clock_hz": _A100_WHITEPAPER, "l2_bytes": _A100_WHITEPAPER,
        },
        aliases=("a100-sxm4-40gb", "a100-pcie-40gb",),
    ),
    Gpu(
        key="a100", name="NVIDIA A100 SXM4 80GB", vendor="nvidia", arch="sm_80",
        sm_count=108, clock_hz=1_410 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=80 * _GB, dram_bandwidth_bytes_per_s=2_039 * _GB, l2_bytes=40 << 20,
        float32_flops=19.5e12, tfloat32_flops=156.0e12, float16_flops=312.0e12,
        bfloat16_flops=312.0e12, float8_flops=None,
        default_source="NVIDIA A100 Tensor Core GPU datasheet",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": _A100_WHITEPAPER,
            "clock_hz": _A100_WHITEPAPER, "l2_bytes": _A100_WHITEPAPER,
        },
        aliases=("a100-80gb", "a100-sxm4-80gb",),
    ),
    Gpu(
        key="a100-pcie", name="NVIDIA A100 PCIe 80GB", vendor="nvidia", arch="sm_80",
        sm_count=108, clock_hz=1_410 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=80 * _GB, dram_bandwidth_bytes_per_s=1_935 * _GB, l2_bytes=40 << 20,
        float32_flops=19.5e12, tfloat32_flops=156.0e12, float16_flops=312.0e12,
        bfloat16_flops=312.0e12, float8_flops=None,
        default_source="NVIDIA A100 Tensor Core GPU datasheet",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": _A100_WHITEPAPER,
            "clock_hz": _A100_WHITEPAPER, "l2_bytes": _A100_WHITEPAPER,
        },
        aliases=("a100-80gb-pcie", "a100-pcie-80gb",),
    ),
    Gpu(
        key="a30", name="NVIDIA A30", vendor="nvidia", arch="sm_80",
        sm_count=56, clock_hz=1_440 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=24 * _GB, dram_bandwidth_bytes_per_s=933 * _GB, l2_bytes=24 << 20,
        float32_flops=10.3e12, tfloat32_flops=82.0e12, float16_flops=165.0e12,
        bfloat16_flops=165.0e12, float8_flops=None,
        default_source="NVIDIA A30 datasheet",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": "NVIDIA A30 product brief",
            "clock_hz": "NVIDIA A30 product brief", "l2_bytes": "NVIDIA A30 product brief",
        },
    ),
    Gpu(
        key="l4", name="NVIDIA L4", vendor="nvidia", arch="sm_89",
        sm_count=58, clock_hz=2_040 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=24 * _GB, dram_bandwidth_bytes_per_s=300 * _GB, l2_bytes=48 << 20,
        float32_flops=30.3e12, tfloat32_flops=60.0e12, float16_flops=121.0e12,
        bfloat16_flops=121.0e12, float8_flops=242.5e12,
        default_source="NVIDIA L4 datasheet (sparse peaks halved)",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": "NVIDIA L4 product brief",
            "clock_hz": "NVIDIA L4 product brief", "l2_bytes": _ADA_WHITEPAPER,
        },
    ),
    Gpu(
        key="l40s", name="NVIDIA L40S", vendor="nvidia", arch="sm_89",
        sm_count=142, clock_hz=2_520 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=48 * _GB, dram_bandwidth_bytes_per_s=864 * _GB, l2_bytes=96 << 20,
        float32_flops=91.6e12, tfloat32_flops=183.0e12, float16_flops=362.0e12,
        bfloat16_flops=362.0e12, float8_flops=733.0e12,
        default_source="NVIDIA L40S datasheet",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": "NVIDIA L40S product brief",
            "clock_hz": "NVIDIA L40S product brief", "l2_bytes": _ADA_WHITEPAPER,
        },
    ),
    Gpu(
        key="rtx3090", name="NVIDIA GeForce RTX 3090", vendor="nvidia", arch="sm_86",
        sm_count=82, clock_hz=1_695 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=24 * _GB, dram_bandwidth_bytes_per_s=936 * _GB, l2_bytes=6 << 20,
        float32_flops=35.6e12, tfloat32_flops=35.6e12, float16_flops=71.2e12,
        bfloat16_flops=71.2e12, float8_flops=None,
        default_source="NVIDIA Ampere GA102 GPU architecture whitepaper",
        sources={"special_per_sm_cycle": _PROGRAMMING_GUIDE},
        aliases=("3090",),
    ),
    Gpu(
        key="rtx4090", name="NVIDIA GeForce RTX 4090", vendor="nvidia", arch="sm_89",
        sm_count=128, clock_hz=2_520 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=24 * _GB, dram_bandwidth_bytes_per_s=1_008 * _GB, l2_bytes=72 << 20,
        float32_flops=82.6e12, tfloat32_flops=82.6e12, float16_flops=165.2e12,
        bfloat16_flops=165.2e12, float8_flops=330.3e12,
        default_source=_ADA_WHITEPAPER,
        sources={"special_per_sm_cycle": _PROGRAMMING_GUIDE},
        aliases=("4090",),
    ),
    Gpu(
        key="rtx5090", name="NVIDIA GeForce RTX 5090", vendor="nvidia", arch="sm_120",
        sm_count=170, clock_hz=2_407 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=32 * _GB, dram_bandwidth_bytes_per_s=1_792 * _GB, l2_bytes=96 << 20,
        float32_flops=104.8e12, tfloat32_flops=104.8e12, float16_flops=209.5e12,
        bfloat16_flops=209.5e12, float8_flops=419.0e12,
        default_source=_BLACKWELL_RTX_WHITEPAPER,
        sources={"special_per_sm_cycle": _PROGRAMMING_GUIDE},
        aliases=("5090",),
    ),
    Gpu(
        key="rtx6000-ada", name="NVIDIA RTX 6000 Ada Generation", vendor="nvidia", arch="sm_89",
        sm_count=142, clock_hz=2_505 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=48 * _GB, dram_bandwidth_bytes_per_s=960 * _GB, l2_bytes=96 << 20,
        float32_flops=91.1e12, tfloat32_flops=182.1e12, float16_flops=364.2e12,
        bfloat16_flops=364.2e12, float8_flops=728.5e12,
        default_source=_ADA_WHITEPAPER,
        sources={"special_per_sm_cycle": _PROGRAMMING_GUIDE},
        aliases=("rtx6000ada",),
    ),
    Gpu(
        key="rtx6000-blackwell", name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        vendor="nvidia", arch="sm_120",
        sm_count=188, clock_hz=2_617 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=96 * _GB, dram_bandwidth_bytes_per_s=1_792 * _GB, l2_bytes=128 << 20,
        float32_flops=126.0e12, tfloat32_flops=251.9e12, float16_flops=503.8e12,
        bfloat16_flops=503.8e12, float8_flops=1007.6e12,
        default_source="NVIDIA RTX PRO Blackwell GPU architecture whitepaper",
        sources={"special_per_sm_cycle": _PROGRAMMING_GUIDE},
        aliases=(
            "rtxpro6000",
            "rtxpro6000blackwell",
            "rtxpro6000blackwellworkstationedition",
            "rtxpro6000blackwellserveredition",
        ),
    ),
    Gpu(
        key="h100-pcie", name="NVIDIA H100 PCIe", vendor="nvidia", arch="sm_90",
        sm_count=114, clock_hz=1_755 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=80 * _GB, dram_bandwidth_bytes_per_s=2_000 * _GB, l2_bytes=50 << 20,
        float32_flops=51.2e12, tfloat32_flops=378.0e12, float16_flops=756.5e12,
        bfloat16_flops=756.5e12, float8_flops=1513.0e12,
        default_source="NVIDIA H100 Tensor Core GPU datasheet (sparse peaks halved)",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": _H100_WHITEPAPER,
            "l2_bytes": _H100_WHITEPAPER, "clock_hz": _HOPPER_CLOCK,
        },
    ),
    Gpu(
        key="h100", name="NVIDIA H100 SXM5 80GB", vendor="nvidia", arch="sm_90",
        sm_count=132, clock_hz=1_980 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=80 * _GB, dram_bandwidth_bytes_per_s=3_350 * _GB, l2_bytes=50 << 20,
        float32_flops=66.9e12, tfloat32_flops=494.7e12, float16_flops=989.4e12,
        bfloat16_flops=989.4e12, float8_flops=1978.9e12,
        default_source="NVIDIA H100 Tensor Core GPU datasheet (sparse peaks halved)",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": _H100_WHITEPAPER,
            "l2_bytes": _H100_WHITEPAPER, "clock_hz": _HOPPER_CLOCK,
        },
        aliases=("h100-sxm", "h100-sxm5", "h100-80gb-hbm3",),
    ),
    Gpu(
        key="h100-nvl", name="NVIDIA H100 NVL", vendor="nvidia", arch="sm_90",
        sm_count=132, clock_hz=1_785 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=94 * _GB, dram_bandwidth_bytes_per_s=3_900 * _GB, l2_bytes=60 << 20,
        float32_flops=60.3e12, tfloat32_flops=417.5e12, float16_flops=835.5e12,
        bfloat16_flops=835.5e12, float8_flops=1671.0e12,
        default_source="NVIDIA H100 Tensor Core GPU datasheet (sparse peaks halved)",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": _H100_WHITEPAPER,
            "l2_bytes": _HOPPER_L2, "clock_hz": _HOPPER_CLOCK,
        },
    ),
    Gpu(
        key="h200", name="NVIDIA H200 SXM5 141GB", vendor="nvidia", arch="sm_90",
        sm_count=132, clock_hz=1_980 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=141 * _GB, dram_bandwidth_bytes_per_s=4_800 * _GB, l2_bytes=60 << 20,
        float32_flops=66.9e12, tfloat32_flops=494.7e12, float16_flops=989.4e12,
        bfloat16_flops=989.4e12, float8_flops=1978.9e12,
        copy_bandwidth_bytes_per_s=4_270 * _GB,
        default_source="NVIDIA H200 Tensor Core GPU datasheet (sparse peaks halved)",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": _H200_DEVICE,
            "clock_hz": _H200_DEVICE, "l2_bytes": _H200_DEVICE,
            "copy_bandwidth_bytes_per_s": "copy benchmark, sample_traces",
        },
        aliases=("h200-sxm",),
    ),
    Gpu(
        key="gh200", name="NVIDIA GH200 96GB HBM3", vendor="nvidia", arch="sm_90",
        sm_count=132, clock_hz=1_980 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=96 * _GB, dram_bandwidth_bytes_per_s=4_000 * _GB, l2_bytes=60 << 20,
        float32_flops=66.9e12, tfloat32_flops=494.7e12, float16_flops=989.4e12,
        bfloat16_flops=989.4e12, float8_flops=1978.9e12,
        default_source="NVIDIA GH200 Grace Hopper Superchip datasheet (sparse peaks halved)",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE,
            "sm_count": "NVIDIA Grace Hopper Superchip architecture whitepaper",
            "clock_hz": _HOPPER_CLOCK,
            "l2_bytes": _HOPPER_L2,
        },
        aliases=("gh200-480gb", "gh200-96gb",),
    ),
    Gpu(
        key="b200", name="NVIDIA B200", vendor="nvidia", arch="sm_100",
        sm_count=148, clock_hz=1_965 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=180 * _GB, dram_bandwidth_bytes_per_s=7_700 * _GB, l2_bytes=126 << 20,
        float32_flops=75.0e12, tfloat32_flops=1100.0e12, float16_flops=2250.0e12,
        bfloat16_flops=2250.0e12, float8_flops=4500.0e12,
        default_source="NVIDIA HGX platform datasheet (8-GPU figures divided, sparse peaks halved)",
        sources={
            "special_per_sm_cycle": _PROGRAMMING_GUIDE, "sm_count": _B200_DEVICE,
            "clock_hz": _B200_DEVICE, "l2_bytes": "NVIDIA Blackwell tuning guide",
        },
    ),
    Gpu(
        key="b300", name="NVIDIA B300", vendor="nvidia", arch="sm_103",
        sm_count=148, clock_hz=1_980 * _MHZ, special_per_sm_cycle=32,
        dram_bytes=270 * _GB, dram_bandwidth_bytes_per_s=7_700 * _GB, l2_bytes=None,
        float32_flops=75.0e12, tfloat32_flops=1100.0e12, float16_flops=2250.0e12,
        bfloat16_flops=2250.0e12, float8_flops=4500.0e12,
        default_source="NVIDIA HGX platform datasheet (8-GPU figures divided, sparse peaks halved)",
        sources={
            "special_per_sm_cycle": "NVIDIA, Inside Blackwell Ultra (10.7e12 exponentials/s)",
            "sm_count": _B200_DEVICE,
            "clock_hz": "derived: FP32 peak / (256 FLOP x multiprocessors)",
        },
    ),
    Gpu(
        key="mi210", name="AMD Instinct MI210", vendor="amd", arch="gfx90a",
        sm_count=104, clock_hz=1_700 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=64 << 30, dram_bandwidth_bytes_per_s=1_638 * _GB, l2_bytes=8 << 20,
        float32_flops=22.6e12, tfloat32_flops=None, float16_flops=181.0e12,
        bfloat16_flops=181.0e12, float8_flops=None,
        default_source="AMD Instinct MI210 data sheet",
        sources={
            "special_per_sm_cycle": _CDNA_ISA, "sm_count": _ROCM_SPECS, "l2_bytes": _ROCM_SPECS,
        },
    ),
    Gpu(
        key="mi250x", name="AMD Instinct MI250X (one of two compute dies)",
        vendor="amd", arch="gfx90a",
        sm_count=110, clock_hz=1_700 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=64 << 30, dram_bandwidth_bytes_per_s=1_638 * _GB, l2_bytes=8 << 20,
        float32_flops=23.95e12, tfloat32_flops=None, float16_flops=191.5e12,
        bfloat16_flops=191.5e12, float8_flops=None,
        default_source="AMD Instinct MI250X data sheet, half of the module",
        sources={
            "special_per_sm_cycle": _CDNA_ISA, "sm_count": _ROCM_SPECS, "l2_bytes": _ROCM_SPECS,
        },
        aliases=("mi250",),
    ),
    Gpu(
        key="mi300x", name="AMD Instinct MI300X", vendor="amd", arch="gfx942",
        sm_count=304, clock_hz=2_100 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=192 << 30, dram_bandwidth_bytes_per_s=5_300 * _GB, l2_bytes=32 << 20,
        float32_flops=163.4e12, tfloat32_flops=653.7e12, float16_flops=1307.4e12,
        bfloat16_flops=1307.4e12, float8_flops=2614.9e12,
        memory_side_cache_bytes=256 << 20,
        default_source="AMD Instinct MI300X data sheet",
        sources={
            "special_per_sm_cycle": _CDNA_ISA, "sm_count": _ROCM_SPECS, "l2_bytes": _ROCM_SPECS,
            "memory_side_cache_bytes": _ROCM_SPECS,
        },
    ),
    Gpu(
        key="mi325x", name="AMD Instinct MI325X", vendor="amd", arch="gfx942",
        sm_count=304, clock_hz=2_100 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=256 << 30, dram_bandwidth_bytes_per_s=6_000 * _GB, l2_bytes=32 << 20,
        float32_flops=163.4e12, tfloat32_flops=653.7e12, float16_flops=1307.4e12,
        bfloat16_flops=1307.4e12, float8_flops=2614.9e12,
        memory_side_cache_bytes=256 << 20,
        default_source="AMD Instinct MI325X data sheet",
        sources={
            "special_per_sm_cycle": _CDNA_ISA, "sm_count": _ROCM_SPECS, "l2_bytes": _ROCM_SPECS,
            "memory_side_cache_bytes": _ROCM_SPECS,
        },
    ),
    Gpu(
        key="mi355x", name="AMD Instinct MI355X", vendor="amd", arch="gfx950",
        sm_count=256, clock_hz=2_400 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=288 << 30, dram_bandwidth_bytes_per_s=8_000 * _GB, l2_bytes=32 << 20,
        float32_flops=157.3e12, tfloat32_flops=None, float16_flops=2516.6e12,
        bfloat16_flops=2516.6e12, float8_flops=5033.2e12,
        memory_side_cache_bytes=256 << 20,
        default_source="AMD Instinct MI355X data sheet",
        sources={
            "special_per_sm_cycle": _CDNA_ISA, "sm_count": _ROCM_SPECS, "l2_bytes": _ROCM_SPECS,
            "memory_side_cache_bytes": _ROCM_SPECS,
        },
    ),
    Gpu(
        key="rx7900xtx", name="AMD Radeon RX 7900 XTX", vendor="amd", arch="gfx1100",
        sm_count=96, clock_hz=2_500 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=24 << 30, dram_bandwidth_bytes_per_s=960 * _GB, l2_bytes=6 << 20,
        float32_flops=61.4e12, tfloat32_flops=None, float16_flops=122.8e12,
        bfloat16_flops=122.8e12, float8_flops=None,
        memory_side_cache_bytes=96 << 20,
        default_source="AMD Radeon RX 7900 XTX product page",
        sources={
            "special_per_sm_cycle": _RDNA_ISA, "sm_count": _ROCM_SPECS, "l2_bytes": _ROCM_SPECS,
            "memory_side_cache_bytes": _ROCM_SPECS,
        },
        aliases=("7900xtx",),
    ),
)
# fmt: on

_VENDOR_WORDS = re.compile(
    r"\b(nvidia|amd|geforce|instinct|radeon|tesla|quadro|gpu|generation|graphics)\b"
)
# What a driver may add to a name without it being another product. A MIG slice, a laptop part or
# a `Ti` has other figures and is not matched.
_FORM_FACTOR = re.compile(r"(sxm[0-9]?|pcie|[0-9]+gb|hbm[0-9]e?|ac|oam|mi[0-9]+x?)*")


def _squeezed(text: str) -> str:
    """Lower case, vendor words and punctuation removed: `NVIDIA GeForce RTX 4090` is `rtx4090`."""
    return re.sub(r"[^a-z0-9]", "", _VENDOR_WORDS.sub(" ", text.lower()))


def find_gpu(text: str) -> Gpu | None:
    """The GPU that `text` names (key, marketing name or device name), or None.

    An exact name wins; otherwise a known name followed by a form factor or memory size only, the
    longest first, so that a variant is not taken for its base model.
    """
    wanted = _squeezed(text)
    names = {_squeezed(n): gpu for gpu in GPUS for n in (gpu.key, gpu.name, *gpu.aliases)}
    for name in sorted(names, key=len, reverse=True):
        if wanted.startswith(name) and _FORM_FACTOR.fullmatch(wanted[len(name) :]):
            return names[name]
    return None


def gpu_by_key(text: str) -> Gpu:
    """The GPU that `text` names; raises `UsageError` listing the keys if it is not in the table."""
    found = find_gpu(text)
    if found is None:
        keys = ", ".join(gpu.key for gpu in GPUS)
        raise UsageError(f"unknown GPU {text[:60]!r}", remedy=f"known: {keys}")
    return found
