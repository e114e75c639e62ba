"""The GPU table: complete, sourced, consistent with itself, and found under the names in use."""

from __future__ import annotations

import pytest

from advisor.errors import UsageError
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import GPUS, find_gpu, gpu_by_key

REQUIRED = (
    "v100", "t4", "a10", "a100-40gb", "a100", "a30", "l4", "l40s", "rtx3090", "rtx4090", "rtx5090",
    "rtx6000-ada", "rtx6000-blackwell", "h100-pcie", "h100", "h100-nvl", "h200", "gh200", "b200",
    "b300", "mi210", "mi250x", "mi300x", "mi325x", "mi355x",
)  # fmt: skip
each_gpu = pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.key)


def test_every_required_gpu_is_there_once() -> None:
    keys = [gpu.key for gpu in GPUS]
    assert len(keys) == len(set(keys))
    assert set(REQUIRED) <= set(keys)


@each_gpu
def test_every_figure_has_a_source(gpu: Gpu) -> None:
    figures = [
        name
        for name in gpu.__struct_fields__
        if isinstance(getattr(gpu, name), int | float) and getattr(gpu, name) is not None
    ]
    assert len(figures) >= 8
    assert all(len(gpu.source(name)) > 8 for name in figures)
    assert set(gpu.sources) <= set(figures), "a source for a figure that is not there"


@each_gpu
def test_figures_agree_with_each_other(gpu: Gpu) -> None:
    # FP32 peak = multiprocessors × lanes × 2 × clock; CDNA 3 issues twice 128 lanes.
    lanes = gpu.float32_flops / (2 * gpu.sm_count * gpu.clock_hz)
    assert min(abs(lanes / known - 1) for known in (64, 128, 256)) < 0.04
    for faster, slower in (("float8", "bfloat16"), ("bfloat16", "tfloat32")):
        peaks = gpu.peak_flops(faster), gpu.peak_flops(slower)  # type: ignore[arg-type]
        if peaks[0] is not None and peaks[1] is not None:
            assert peaks[0] / peaks[1] == pytest.approx(2, rel=0.05)
    if gpu.copy_bandwidth_bytes_per_s is not None:
        share = gpu.copy_bandwidth_bytes_per_s / gpu.dram_bandwidth_bytes_per_s
        assert 0.7 < share < 1
    assert gpu.limits.max_warps >= 32


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("H200", "h200"), ("nvidia h200", "h200"), ("NVIDIA H200", "h200"), ("a100", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"), ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("rtx4090", "rtx4090"), ("rtx 4090", "rtx4090"), ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("mi300x", "mi300x"), ("AMD Instinct MI300X", "mi300x"), ("Tesla T4", "t4"),
        ("AMD Instinct MI250X/MI250", "mi250x"), ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"), ("NVIDIA GH200 480GB", "gh200"), ("NVIDIA L40S", "l40s"),
        ("NVIDIA B300 SXM6 AC", "b300"), ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx6000-blackwell"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx6000-blackwell-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx6000-blackwell-maxq"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"), ("Tesla V100-PCIE-32GB", "v100-pcie"),
        ("NVIDIA H200 NVL", "h200-nvl"), ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA L4", "l4"), ("NVIDIA A30", "a30"), ("NVIDIA A10", "a10"), ("NVIDIA B200", "b200"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"), ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("AMD Instinct MI210", "mi210"), ("AMD Instinct MI325X", "mi325x"),
        ("AMD Instinct MI355X", "mi355x"), ("AMD Instinct MI300X OAM", "mi300x"),
    ],
)  # fmt: skip
def test_names_in_use_are_found(text: str, key: str) -> None:
    assert gpu_by_key(text).key == key


@pytest.mark.parametrize(
    "text",
    [
        "", "gtx1080", "A1000", "L40", "NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H2000",
        "Tesla V100-PCIE-16GB", "NVIDIA H100 64GB HBM2", "NVIDIA A40", "NVIDIA RTX 6000",
    ],
)  # fmt: skip
def test_another_product_is_not_taken_for_a_known_one(text: str) -> None:
    assert find_gpu(text) is None
    with pytest.raises(UsageError, match="h200"):
        gpu_by_key(text)


@each_gpu
def test_key_and_name_lead_to_the_gpu(gpu: Gpu) -> None:
    assert {gpu_by_key(name).key for name in (gpu.key, gpu.name, *gpu.aliases)} == {gpu.key}


def test_compile_targets() -> None:
    h200, mi300x = gpu_by_key("h200"), gpu_by_key("mi300x")
    assert (h200.target.backend, h200.target.arch, h200.target.warp_size) == ("cuda", 90, 32)
    assert (mi300x.target.backend, mi300x.target.arch, mi300x.target.warp_size) == (
        "hip", "gfx942", 64,
    )  # fmt: skip
    assert h200.compute_capability == "9.0"
    assert gpu_by_key("b300").compute_capability == "10.3"
    assert mi300x.compute_capability is None
