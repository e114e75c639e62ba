"""The compiler's counters as metrics of the report."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from advisor.model.compiler import CompilerFacts, GeneratedKernel
from advisor.model.report import KernelRow, Metric
from collectors.live.capture import Capture

_PHASES = {
    "backend_compile": ("compile_backend_ns", "in the backend: AOTAutograd and Inductor"),
    "inductor_compile": ("compile_inductor_ns", "in Inductor, within the backend's"),
    "code_gen": ("compile_code_generation_ns", "generating and loading code, within Inductor's"),
}


def compiler_metrics(captured: Capture, facts: CompilerFacts) -> dict[str, Metric]:
    """Graphs, breaks, recompiles, compile time by phase, cache hits; unknown where not counted."""
    generated = any(graph.kernels for graph in captured.graphs)
    without = "" if generated else ", without code generation"
    metrics = {
        "graphs": _count(
            len(captured.graphs),
            "graphs the compiler made of one step (forward and backward each count)",
        ),
        "graph_breaks": _count(
            captured.graph_breaks, "lines at which the compiler had to leave the graph"
        ),
        "recompiles": _count(
            sum(item.count for item in facts.recompiles),
            "compilations of a function that was compiled before, because a guard failed",
        ),
        "compile_ns": _compile_time(captured, facts, without),
        "cache_hit_fraction": Metric(
            value=facts.cache_hit_fraction,
            unit="fraction",
            provenance="unknown" if facts.cache_hit_fraction is None else "measured",
            definition=(
                "hits over lookups of the compiler's caches (FX graphs, AOTAutograd); unknown "
                "where nothing was looked up: capture goes around the caches"
            ),
        ),
    }
    for phase, (name, text) in _PHASES.items():
        if phase in facts.phases_ns:
            metrics[name] = _time(facts.phases_ns[phase], f"compile time {text}{without}")
    return metrics


def _compile_time(captured: Capture, facts: CompilerFacts, without: str) -> Metric:
    """By the compiler's counters; where it has none, the wall-clock time of capturing."""
    if facts.compile_ns:
        return _time(facts.compile_ns, f"time inside the compiler, by its own counters{without}")
    if captured.compile_ns:
        text = f"wall-clock time of compiling and running one step{without}"
        return _time(captured.compile_ns, text)
    return Metric(
        value=None, unit="ns", provenance="unknown", definition="time inside the compiler"
    )


def with_resources(
    rows: Iterable[KernelRow], kernels: Iterable[GeneratedKernel]
) -> tuple[KernelRow, ...]:
    """The rows of generated kernels with what the compiler knows of them and the trace does not."""
    known = {kernel.name: kernel for kernel in kernels}
    return tuple(
        replace(
            row,
            registers_per_thread=_first(row.registers_per_thread, found.registers_per_thread),
            local_bytes_per_thread=_first(row.local_bytes_per_thread, found.local_bytes_per_thread),
        )
        if (found := known.get(row.name)) is not None
        else row
        for row in rows
    )


def _first(recorded: int | None, told: int | None) -> int | None:
    return told if recorded is None else recorded


def _count(value: int, definition: str) -> Metric:
    return Metric(value=value, unit="count", provenance="measured", definition=definition)


def _time(value: int, definition: str) -> Metric:
    return Metric(value=value, unit="ns", provenance="measured", definition=definition)
