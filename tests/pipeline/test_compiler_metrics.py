"""The compiler's facts as metrics and on the kernels that it generated."""

from __future__ import annotations

from advisor.model.base import Location
from advisor.model.compiler import CompilerFacts, GeneratedKernel, Recompile
from advisor.model.report import KernelRow
from advisor.pipeline.compiler_metrics import compiler_metrics, with_resources
from collectors.live.capture import Capture


def row(name: str, registers: int | None = None) -> KernelRow:
    return KernelRow(
        name=name,
        role="pointwise",
        library="inductor",
        count=1,
        time_ns=5,
        registers_per_thread=registers,
    )


def test_what_was_not_looked_up_is_unknown_never_zero() -> None:
    metrics = compiler_metrics(Capture(compile_ns=9), CompilerFacts())
    assert metrics["cache_hit_fraction"].value is None
    assert metrics["cache_hit_fraction"].provenance == "unknown"
    assert metrics["compile_ns"].value == 9
    assert metrics["compile_ns"].definition.startswith("wall-clock time")
    assert compiler_metrics(Capture(), CompilerFacts())["compile_ns"].value is None
    assert "compile_inductor_ns" not in metrics
    assert metrics["recompiles"].value == 0


def test_counts_times_and_phases() -> None:
    facts = CompilerFacts(
        recompiles=(
            Recompile(location=Location(), guard="a", count=2),
            Recompile(location=Location(), guard="b"),
        ),
        compile_ns=100,
        phases_ns={"backend_compile": 80, "inductor_compile": 60, "code_gen": 50},
        cache_hits=1,
        cache_misses=3,
    )
    metrics = compiler_metrics(Capture(compile_ns=900), facts)
    assert metrics["recompiles"].value == 3
    assert metrics["compile_ns"].value == 100
    assert metrics["compile_backend_ns"].value == 80
    assert metrics["compile_code_generation_ns"].value == 50
    assert metrics["cache_hit_fraction"].value == 0.25


def test_the_trace_is_believed_before_the_compiler() -> None:
    kernels = (
        GeneratedKernel(name="triton_a", registers_per_thread=40, local_bytes_per_thread=8),
        GeneratedKernel(name="triton_c", registers_per_thread=1),
    )
    a, b = with_resources((row("triton_a", 44), row("b")), kernels)
    assert (a.registers_per_thread, a.local_bytes_per_thread) == (44, 8)
    assert (b.registers_per_thread, b.local_bytes_per_thread) == (None, None)
