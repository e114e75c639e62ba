"""Occupancy against NVIDIA's calculator, against Nsight Compute, and on cases worked by hand."""

from __future__ import annotations

import csv
import ctypes
import gzip
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.errors import UsageError
from advisor.hardware.limits import LIMITS, SmLimits
from advisor.hardware.occupancy import occupancy

SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", Path(__file__).parents[2].parent / "shared"))
CASES = 20_000
UNITS = {"byte": 1, "Kbyte": 1_000, "Mbyte": 1_000_000}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    spec, compiler = importlib.util.find_spec("triton"), shutil.which("gcc") or shutil.which("cc")
    if spec is None or spec.origin is None:
        pytest.skip("triton, whose wheel carries cuda_occupancy.h, is not installed")
    include = Path(spec.origin).parent / "backends" / "nvidia" / "include"
    if not (include / "cuda_occupancy.h").exists():
        pytest.skip("this triton wheel has no cuda_occupancy.h")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("occupancy") / "oracle.so"
    source = Path(__file__).with_name("occupancy_oracle.c")
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-w", f"-I{include}", source, "-o", library],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    numbers = [ctypes.c_int] * 3 + [ctypes.c_long] * 3 + [ctypes.c_int] * 2 + [ctypes.c_long] * 2
    loaded.occupancy.argtypes = [*numbers, ctypes.POINTER(ctypes.c_int)]
    return loaded


def test_equals_nvidias_calculator(oracle: ctypes.CDLL) -> None:
    draw = random.Random(20_000)
    archs = [arch for arch, limits in LIMITS.items() if isinstance(limits, SmLimits)]
    for _ in range(CASES):
        arch = draw.choice(archs)
        limits = LIMITS[arch]
        assert isinstance(limits, SmLimits)
        registers, threads = draw.randint(1, 256), draw.choice((32, 64, 128, 256, 512, 1024))
        threads = draw.choice((threads, draw.randint(1, 1024)))
        static = draw.choice((0, 0, draw.randint(0, 40_000)))
        dynamic = draw.choice((0, draw.randint(0, 233_000)))
        out = (ctypes.c_int * 5)()
        number = int(arch.removeprefix("sm_"))
        status = oracle.occupancy(
            *divmod(number, 10), limits.max_warps, limits.shared_bytes, limits.shared_block_bytes,
            limits.shared_reserved_bytes, registers, threads, static, dynamic, out,
        )  # fmt: skip
        ours = occupancy(
            arch,
            registers=registers,
            threads=threads,
            shared_bytes=dynamic,
            static_shared_bytes=static,
        )
        by = ours.limits
        found = [
            ours.blocks, by["registers"], by["shared_memory"], by["warps"], by["blocks"]
        ]  # fmt: skip
        wanted = [min(value, 2**31 - 1) for value in out]
        case = (arch, registers, threads, static, dynamic)
        assert status == 0, case
        assert [min(value, 2**31 - 1) for value in found] == wanted, case


@pytest.mark.parametrize("name", ["ncu_model_raw.csv.gz", "ncu_probe_raw.csv.gz"])
def test_equals_nsight_compute_on_every_kernel(name: str) -> None:
    path = SHARED / "traces" / "h200" / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with gzip.open(path, "rt", newline="") as lines:
        rows = csv.DictReader(lines)
        units = next(rows)
        kernels = list(rows)

    def figure(row: dict[str, str], column: str) -> float:
        return float(row[column].replace(",", "")) * UNITS.get(units[column].split("/")[0], 1)

    assert len(kernels) >= 8
    for row in kernels:
        ours = occupancy(
            "sm_90",
            registers=int(figure(row, "launch__registers_per_thread")),
            threads=int(figure(row, "launch__block_size")),
            shared_bytes=round(figure(row, "launch__shared_mem_per_block_dynamic")),
            static_shared_bytes=round(figure(row, "launch__shared_mem_per_block_static")),
            shared_config_bytes=round(figure(row, "launch__shared_mem_config_size")),
        )
        theoretical = figure(row, "sm__maximum_warps_per_active_cycle_pct")
        assert 100 * ours.fraction == pytest.approx(theoretical, abs=0.01), row["Kernel Name"]


@pytest.mark.parametrize(
    ("threads", "registers", "percent"),
    [(64, 255, 12.5), (128, 255, 12.5), (256, 156, 12.5), (512, 101, 25), (1024, 56, 50)],
)
def test_the_spill_probe_on_an_h200(threads: int, registers: int, percent: float) -> None:
    found = occupancy("sm_90", registers=registers, threads=threads)
    assert (100 * found.fraction, found.limiter) == (percent, "registers")


def test_the_limiter_is_named() -> None:
    assert occupancy("sm_80", registers=32, threads=1024).limiter == "warps"
    assert occupancy("sm_80", registers=16, threads=32).limiter == "blocks"
    assert occupancy("sm_80", registers=128, threads=256).limiter == "registers"
    half = occupancy("sm_80", registers=32, threads=128, shared_bytes=80 << 10)
    assert (half.limiter, half.blocks) == ("shared_memory", 2)


def test_a_kernel_that_cannot_launch_holds_no_block() -> None:
    assert occupancy("sm_90", registers=32, threads=2048).blocks == 0
    assert occupancy("sm_90", registers=32, threads=128, shared_bytes=228 << 10).blocks == 0
    assert occupancy("sm_90", registers=255, threads=1024).blocks == 0


def test_amd_waves_by_hand() -> None:
    # 512 registers a SIMD lane / 72 (65 rounded up to 8) = 7 waves on each of 4 SIMDs.
    seven = occupancy("gfx942", registers=65, threads=64)
    assert (seven.warps, seven.limiter) == (28, "registers")
    # 12 waves fit by registers, but groups of 8 waves are placed whole.
    assert occupancy("gfx90a", registers=136, threads=512).warps == 8
    assert occupancy("gfx950", registers=32, threads=256, shared_bytes=80 << 10).blocks == 2
    assert occupancy("gfx942", registers=32, threads=256, shared_bytes=80 << 10).blocks == 0
    # 1536 / 192 = 8 of 16 waves of 32 lanes.
    assert occupancy("gfx1100", registers=190, threads=32).fraction == 0.5


AMD = (
    "gfx908:64", "gfx90a:64", "gfx942:64", "gfx950:64", "gfx1030:32", "gfx1100:32", "gfx1101:32",
    "gfx1102:32", "gfx1151:32", "gfx1200:32", "gfx1201:32",
)  # fmt: skip


def test_amd_occupancy_is_llvms_remark(tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton, whose LLVM makes the remarks, is not installed")
    script = Path(__file__).with_name("amd_occupancy_oracle.py")
    done = subprocess.run(
        [sys.executable, script, *AMD],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
    )
    cases = json.loads(done.stdout)
    assert {case["arch"] for case in cases} == {name for name in LIMITS if "gfx" in name}
    for case in cases:
        waves, remark = case.pop("waves"), case.pop("occupancy")
        ours = occupancy(**case)
        # LLVM counts waves a SIMD; whole groups of waves fit no better than that.
        assert ours.warps == remark * 4 // waves * waves, case


def test_waves_of_64_lanes_on_rdna() -> None:
    # 1536 / 2 registers a lane; 190 rounded up to 192 (granule 24 / 2): 4 waves on 4 SIMDs.
    wide = occupancy("gfx1100", registers=190, threads=64, wave_size=64)
    assert (wide.warps, wide.limiter) == (16, "registers")
    assert occupancy("gfx1100", registers=190, threads=64).warps == 32
    assert occupancy("gfx942", registers=64, threads=64, wave_size=64).warps == 32
    with pytest.raises(UsageError, match="32 lanes"):
        occupancy("gfx942", registers=64, threads=64, wave_size=32)


def test_scalar_registers_limit_waves_on_cdna() -> None:
    for used, waves in ((80, 10), (81, 9), (100, 8), (102, 7)):
        held = occupancy("gfx908", registers=16, threads=64, scalar_registers=used)
        assert held.warps == 4 * waves


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(UsageError, match="sm_61"):
        occupancy("sm_61", registers=32, threads=128)
