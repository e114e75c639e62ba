"""AMD GPUs, oldest first; every figure with the document it was taken from."""

from __future__ import annotations

from advisor.hardware.gpu import Gpu

_GB = 1_000_000_000
_MHZ = 1_000_000
_CDNA_ISA = "AMD CDNA instruction set architecture manual (transcendentals at quarter rate)"
_RDNA_ISA = "AMD RDNA 3 instruction set architecture manual (transcendentals at quarter rate)"
_ROCM_SPECS = "AMD ROCm documentation, GPU specifications"

# fmt: off
AMD: tuple[Gpu, ...] = (
    Gpu(
        key="mi210", name="AMD Instinct MI210", vendor="amd", arch="gfx90a",
        sm_count=104, clock_hz=1_700 * _MHZ, special_per_sm_cycle=16,
        dram_bytes=64 << 30, dram_bandwidth_bytes_per_s=1_638 * _GB, l2_bytes=8 << 20,
        float32_flops=22.6e12, tfloat32_flops=None, float16_flops=181.0e12,
        bfloat16_flops=181.0e12, float8_flops=None,
        link_bytes_per_s=300 * _GB,
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
        pcie_bytes_per_s=128 * _GB, link_bytes_per_s=896 * _GB,
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
        pcie_bytes_per_s=128 * _GB, link_bytes_per_s=896 * _GB,
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
        pcie_bytes_per_s=128 * _GB,
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
