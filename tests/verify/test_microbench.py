"""The micro-benchmark without a GPU: its probes run, and readings come back as they went in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the probes of special functions are Triton kernels")

from advisor.errors import WorkloadError
from advisor.hardware.calibration import Calibration, DeviceState, default_calibration
from advisor.hardware.gpus import GPUS, gpu_by_key
from advisor.verify import microbench
from advisor.verify.microbench import Readings, cold_copies, launch_ns, warm_copies
from advisor.verify.microbench_fit import calibration_of, timed_work
from analyzers.cost_model import Work

H200 = gpu_by_key("h200")
CPU = torch.device("cpu")
MEASURED = ("special_share", "sm_bandwidth_share", "issue_share", "trip_ns", "l2_bytes_per_s")


def readings_of(card: Calibration) -> Readings:
    """What a card that behaves as the model says would show."""
    times: dict[str, float] = {"floor": card.kernel_floor_ns}
    for share in microbench.SHARES:
        size = round(share * (H200.l2_bytes or 0))
        for kind, warm in (("warm", True), ("cold", False)):
            seconds = size / card.bandwidth(size, warm=warm)
            times[f"{kind} {size}"] = card.kernel_floor_ns + 1e9 * seconds
    for name, work in timed_work(H200).items():
        times[name] = work.time(H200, card).mid
    times["matrix float16 8192"] = 2 * 8192**3 / 700e12 * 1e9
    return Readings(times, launch_ns=4_321, graph_launch_ns=1_234)


def calibrated(readings: Readings) -> Calibration:
    return calibration_of(
        H200, "NVIDIA H200", readings, created="2026-01-01T00:00:00+00:00", state=DeviceState()
    )


def test_a_constant_that_nothing_explains_stays_an_estimate_and_says_so() -> None:
    base = default_calibration(H200)
    readings = readings_of(base)
    slow = {**readings.kernel_ns, "chunks": 1_000 * readings.kernel_ns["chunks"]}
    found = calibrated(replace(readings, kernel_ns=slow))
    assert found.trip_ns == base.trip_ns
    assert found.source.endswith("still estimated, since no value fits: chunks")
    assert "estimated" not in calibrated(readings).source


@settings(max_examples=20, deadline=None)
@given(st.tuples(*[st.floats(0.6, 1.6)] * 5), st.integers(600, 3_000))
def test_a_card_that_follows_the_model_is_found_again(
    factors: tuple[float, ...], floor: int
) -> None:
    base = default_calibration(H200)
    changed: dict[str, float | int] = {"kernel_floor_ns": floor}
    for name, factor in zip(MEASURED, factors, strict=True):
        value = getattr(base, name)
        changed[name] = round(value * factor) if isinstance(value, int) else value * factor
    card = msgspec.structs.replace(base, **changed)
    found = calibrated(readings_of(card))
    assert (found.provenance, found.kernel_floor_ns) == ("measured", floor)
    assert (found.launch_ns, found.graph_launch_ns) == (4_321, 1_234)
    assert found.matrix_flops["float16"] == pytest.approx(700e12)
    for size in (10 << 20, 100 << 20, 1 << 30):
        assert found.bandwidth(size) == pytest.approx(card.bandwidth(size), rel=0.02)
    for name, work in timed_work(H200).items():
        expected = work.time(H200, card).mid
        assert work.time(H200, found).mid == pytest.approx(expected, rel=0.03), name


def test_a_kernel_off_the_model_widens_its_spread() -> None:
    readings = readings_of(default_calibration(H200))
    slow = {**readings.kernel_ns, "norm": 2 * readings.kernel_ns["norm"]}
    found = calibrated(Readings(slow, readings.launch_ns, None))
    assert found.spread("norm").high == pytest.approx(2, rel=0.02)
    assert found.spread("softmax") == default_calibration(H200).spread("softmax")


def test_what_no_constant_explains_changes_none() -> None:
    readings = readings_of(default_calibration(H200))
    odd = {**readings.kernel_ns, "special": 1.0}
    assert calibrated(Readings(odd, 1, None)).special_share == 1.0


def test_copies_no_longer_than_an_empty_kernel_are_refused() -> None:
    readings = readings_of(default_calibration(H200))
    flat = {
        name: 500.0 if name.startswith("cold") else taken
        for name, taken in readings.kernel_ns.items()
    }
    with pytest.raises(WorkloadError, match="copies"):
        calibrated(Readings(flat, 1, None))


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.key)
def test_every_probe_that_is_fitted_has_work_on_every_gpu(gpu: object) -> None:
    works = timed_work(gpu)  # type: ignore[arg-type]
    assert set(works) == {*NAMES, "special", "narrow"}
    assert all(isinstance(work, Work) for work in works.values())


NAMES = (
    "vector", "cast", "index", "softmax", "norm", "row_reduction", "column_reduction", "reread",
    "chunks",
)  # fmt: skip


def test_warm_copies_read_what_was_just_written_and_cold_ones_do_not() -> None:
    for make, fresh in ((warm_copies, True), (cold_copies, False)):
        probe = make(1 << 12, 1 << 14, CPU)
        assert probe.kernels >= 4
        probe.call()
        pairs = probe.call.__closure__[0].cell_contents  # type: ignore[attr-defined]
        written = [target.data_ptr() for _, target in pairs]
        read = [source.data_ptr() for source, _ in pairs]
        follows = [w == r for w, r in zip(written, read[1:], strict=False)]
        assert all(follows) if fresh else not any(follows)


def test_the_loops_run_and_a_recorder_gets_each_of_them() -> None:
    assert launch_ns(CPU, launches=10) > 0
    assert microbench.graph_launch_ns(CPU) is None


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from advisor.verify import microbench_kernels as kernels
for backend, arch, lanes in (("cuda", 75, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)):
    target = GPUTarget(backend, arch, lanes)
    floats = {"x_ptr": "*fp32", "y_ptr": "*fp32"}
    for fn, extra, constants, warps in (
        (kernels._special, {}, {"ROUNDS": kernels.SPECIAL_ROUNDS, "BLOCK": 1024}, 4),
        (kernels._copy, {"each": "i32"}, {"BLOCK": kernels.COPY_BLOCK}, 1024 // lanes),
    ):
        signature = floats | extra | dict.fromkeys(constants, "constexpr")
        source = ASTSource(fn=fn, signature=signature, constexprs=constants)
        made = triton.compile(source, target=target, options={"num_warps": warps})
        text = made.asm["ptx" if backend == "cuda" else "amdgcn"]
        sys.stdout.write(f"{arch} {fn.__name__} {text.count('ex2') + text.count('v_exp_f32')}\\n")
"""


def test_the_kernels_compile_for_both_vendors_with_one_special_function_a_round(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
    )
    counts = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    # A thread has 1,024 / (4 × lanes) elements: eight, or four on CDNA, whose loop is unrolled.
    assert counts[:4] == [8, 0, 8, 0]
    assert counts[4] > 0 == counts[4] % 4
    assert counts[5] == 0


def test_readings_are_per_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def record(
        variants: Mapping[str, Callable[[], object]],
        rounds: int,
        before: Callable[[], object] | None = None,
    ) -> dict[str, list[int]]:
        for name, call in variants.items():
            calls.append(name)
            call()
        return {name: [900] * rounds for name in variants}

    small = {
        "floor": microbench.Probe(lambda: None),
        "warm 4096": warm_copies(1 << 12, 1 << 14, CPU),
    }
    monkeypatch.setattr(microbench, "probes", lambda *_, **__: small)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    found = microbench.read(H200, CPU, record, quick=True)
    assert calls == list(small)
    assert found.kernel_ns["floor"] == 900
    assert found.kernel_ns["warm 4096"] == 900 / small["warm 4096"].kernels
