"""Every metric the tool can give, and which way is better: what gates and comparisons go by."""

from __future__ import annotations

from typing import Literal

Better = Literal["lower", "higher", "neither"]

# Figures of a trace, each for the whole trace and per step (`…_per_step`, `…_per_step_ns`).
_OF_TRACE: tuple[tuple[str, Better], ...] = (
    ("kernels", "lower"),
    ("kernel_time_sum_ns", "lower"),
    ("gpu_busy_ns", "lower"),
    ("gpu_span_ns", "lower"),
    ("gpu_idle_fraction", "lower"),
    ("comm_union_ns", "lower"),
    ("exposed_comm_ns", "lower"),
    ("starved_ns", "lower"),
    ("starved_synchronisation_ns", "lower"),
    ("starved_dispatch_ns", "lower"),
    ("starved_unattributed_ns", "lower"),
)
_OTHERS: tuple[tuple[str, Better], ...] = (
    ("step_ns", "lower"),
    ("replayed_step_ns", "neither"),
    ("host_time_factor", "neither"),
    ("kernel_launches_per_step", "lower"),
    ("kernels_without_launch", "neither"),
    ("attributed_time_fraction", "neither"),
    ("fusion_coverage_ops", "higher"),
    ("fusion_coverage_time", "higher"),
    ("host_guards_per_step_ns", "lower"),
    ("host_compiled_region_per_step_ns", "lower"),
    ("host_autograd_per_step_ns", "lower"),
    ("host_dispatch_per_step_ns", "lower"),
    ("host_launch_per_step_ns", "lower"),
    ("host_runtime_per_step_ns", "lower"),
    ("host_wait_per_step_ns", "neither"),
    ("host_python_per_step_ns", "lower"),
    ("dram_bytes", "lower"),
    ("dram_bandwidth_utilisation", "higher"),
    ("sm_active", "higher"),
    ("occupancy_theoretical", "higher"),
    ("occupancy_estimated", "higher"),
    ("occupancy_measured", "higher"),
    ("tensor_active", "higher"),
    ("local_bytes_per_thread", "lower"),
    ("spill_store_bytes", "lower"),
    ("spill_load_bytes", "lower"),
    ("compile_ns", "lower"),
    ("compile_backend_ns", "lower"),
    ("compile_inductor_ns", "lower"),
    ("compile_code_generation_ns", "lower"),
    ("recompiles", "lower"),
    ("graphs", "lower"),
    ("graph_breaks", "lower"),
    ("cache_hit_fraction", "higher"),
    ("activation_bytes_saved", "higher"),
    ("graph_pool_bytes", "lower"),
    ("speedup_e2e", "higher"),
)


# How the definition of a figure per step begins; that of the whole trace goes on without it.
PER_STEP = "median over steps, activities launched in the step: "


def per_step_name(name: str) -> str:
    """The per-step twin of a figure of the whole trace: `gpu_busy_ns` to `gpu_busy_per_step_ns`."""
    return f"{name[:-3]}_per_step_ns" if name.endswith("_ns") else f"{name}_per_step"


BETTER: dict[str, Better] = dict(_OTHERS) | {
    variant: better for name, better in _OF_TRACE for variant in (name, per_step_name(name))
}


def higher_is_better(name: str) -> bool | None:
    """Whether more is better; None where neither way is, or the metric is unknown here."""
    better = BETTER.get(name, "neither")
    return None if better == "neither" else better == "higher"
