"""Reports to be compared: of two steps, with kernels and metrics as a test likes them."""

from __future__ import annotations

from msgspec.structs import replace

from advisor.model.report import KernelRow, Metric, Report
from tests.model.builders import report


def kernel(name: str, role: str = "pointwise", **fields: object) -> KernelRow:
    values = {"library": "aten", "count": 1.0, "time_ns": 1000, **fields}
    return KernelRow(name=name, role=role, **values)  # type: ignore[arg-type]


def gemms(count: float, shape: str = "[[8, 16], [16, 4]]") -> KernelRow:
    return kernel(
        "gemm", "gemm", count=count, ops=("aten::mm",), calls={f"aten::mm {shape}": count}
    )


def stepped(value: int, *steps: int, unit: str = "ns") -> Metric:
    return Metric(value=value, unit=unit, provenance="measured", definition="d", per_step=steps)


def base(**work: object) -> Report:
    """A report of two steps with GEMMs of known shapes."""
    plain = report()
    metrics = {**plain.metrics, "gpu_busy_per_step_ns": stepped(10, 9, 11)}
    return replace(
        plain,
        workload=replace(plain.workload, graph_hash="ab", gpu="h200", **work),  # type: ignore[arg-type]
        metrics=metrics,
        kernels=(gemms(8), *plain.kernels),
    )
