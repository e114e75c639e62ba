"""From the readings of the micro-benchmark to a calibration: every constant solved for in turn.

The bandwidth curves are read off. A constant that the model uses in a formula (a trip to memory,
the rates of L2, of issue and of special functions) is the one for which the model predicts the
kernel that was timed for it. The other kernels check the result: their errors widen the spreads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from advisor.errors import WorkloadError
from advisor.hardware.calibration import (
    BandwidthPoint,
    Calibration,
    DeviceState,
    Pattern,
    default_calibration,
)
from advisor.hardware.gpu import Arithmetic, Gpu
from advisor.units import NS_PER_S
from advisor.verify import microbench_kernels as kernels
from advisor.verify.microbench import (
    CHUNK_BLOCKS,
    COLUMNS,
    LONG_COLUMNS,
    LONG_ROWS,
    NARROW_BLOCKS,
    ROWS,
    SPECIAL_ELEMENTS,
    Readings,
)
from analyzers.cost_model import Work
from analyzers.eager_work import Launch, eager_work
from analyzers.recorded_ops import Operand, RecordedOp

# A constant is looked for within this factor of its estimate; beyond it, something else was timed.
SEARCH_FACTOR = 6.0
# Of the launch "chunks": ATen `MultiTensorApply.cuh`; registers as seen for one list of tensors.
_CHUNK_LAUNCH = Launch("multi_tensor_apply_kernel<float>", CHUNK_BLOCKS, 512, 32)


def calibration_of(
    gpu: Gpu, device: str, readings: Readings, *, created: str, state: DeviceState
) -> Calibration:
    """The calibration that the readings of a GPU make; raises `WorkloadError` if they make none."""
    times = readings.kernel_ns
    floor = round(times["floor"])
    warm, cold = _curve(times, "warm", floor), _curve(times, "cold", floor)
    if not warm or not cold:
        raise WorkloadError(
            "copies took no longer than an empty kernel",
            remedy="run `fusion-advisor calibrate` again while nothing else uses the GPU",
        )
    found = msgspec.structs.replace(
        default_calibration(gpu),
        device=device,
        provenance="measured",
        source="fusion-advisor calibrate",
        created=created,
        state=state,
        curve=warm,
        cold_curve=cold,
        kernel_floor_ns=floor,
        launch_ns=readings.launch_ns,
        graph_launch_ns=readings.graph_launch_ns,
        matrix_flops=_matrix_flops(times),
        reduction_share=_reduction_share(times, cold[-1].bytes_per_s, floor),
    )
    unsolved = []
    for name, work, change in _constants(gpu):
        solved = _solved(gpu, found, work, times[name], change)
        if solved is None:
            unsolved.append(name)
        found = solved or found
    if unsolved:
        note = f"{found.source}; still estimated, since no value fits: {', '.join(unsolved)}"
        found = msgspec.structs.replace(found, source=note)
    found = msgspec.structs.replace(found, spreads=_spreads(gpu, found, times))
    found.check()
    return found


def _curve(times: Mapping[str, float], kind: str, floor: int) -> tuple[BandwidthPoint, ...]:
    """Points of the copies of a kind that took longer than the floor, by size."""
    points = []
    for name, taken in times.items():
        prefix, _, size = name.partition(" ")
        if prefix == kind and taken > floor:
            moved = int(size)
            rate = round(moved / (taken - floor) * NS_PER_S)
            points.append(BandwidthPoint(bytes=moved, bytes_per_s=rate))
    return tuple(sorted(points, key=lambda point: point.bytes))


def _matrix_flops(times: Mapping[str, float]) -> dict[Arithmetic, float]:
    """FLOP/s of the products that were timed; a name ends with arithmetic and size."""
    arithmetics: tuple[Arithmetic, ...] = (
        "float32", "tfloat32", "float16", "bfloat16", "float8",
    )  # fmt: skip
    found: dict[Arithmetic, float] = {}
    for name, taken in times.items():
        kind, *rest = name.split()
        for arithmetic in arithmetics:
            if kind == "matrix" and rest[0] == arithmetic:
                found[arithmetic] = 2 * int(rest[1]) ** 3 / taken * NS_PER_S
    return found


def _reduction_share(times: Mapping[str, float], copy_rate: int, floor: int) -> float | None:
    taken = times["row_reduction"] - floor
    return 4 * ROWS * COLUMNS / taken * NS_PER_S / copy_rate if taken > 0 else None


def _dense(dtype: str, *shape: int) -> Operand:
    return Operand(dtype, shape, tuple(_below(shape)))


def _below(shape: tuple[int, ...]) -> list[int]:
    found: list[int] = []
    step = 1
    for size in reversed(shape):
        found.insert(0, step)
        step *= size
    return found


def _op(name: str, *operands: Operand) -> RecordedOp:
    return RecordedOp(f"aten::{name}", operands)


def timed_work(gpu: Gpu) -> dict[str, Work]:
    """The work of the kernels that the constants and the checks are timed on, by probe.

    Their tensors come out of a rotation or are larger than the caches: nothing is warm.
    """
    half, full = _dense("bfloat16", ROWS, COLUMNS), _dense("float32", ROWS, COLUMNS)
    rows = Launch("reduce_kernel<512")
    ops: dict[str, tuple[RecordedOp, Launch]] = {
        "vector": (_op("add", full, full), Launch()),
        "cast": (_op("copy_", full, half), Launch()),
        "index": (_op("mul", half, _dense("bfloat16", COLUMNS)), Launch()),
        "softmax": (_op("_softmax", _dense("bfloat16", ROWS * COLUMNS // 512, 512)), Launch()),
        "norm": (_op("native_layer_norm", half), Launch("layer_norm", ROWS, 128)),
        "row_reduction": (_op("sum", full), rows),
        "column_reduction": (_op("sum", half), Launch("reduce_kernel<128")),
        "reread": (_op("_log_softmax", _dense("float32", LONG_ROWS, LONG_COLUMNS)),
                   Launch("cunn_SoftMaxForward", LONG_ROWS, 1_024)),
        "chunks": (_op("_foreach_add_"), _CHUNK_LAUNCH),
    }  # fmt: skip
    found = {name: eager_work(op, launch, gpu) for name, (op, launch) in ops.items()}
    works = {name: work for name, work in found.items() if work is not None}
    special, programs = SPECIAL_ELEMENTS, max(gpu.sm_count // 4, 1)
    works["special"] = Work(bytes_moved=8 * special, special=special * kernels.SPECIAL_ROUNDS)
    works["narrow"] = Work(
        bytes_moved=8 * programs * kernels.COPY_BLOCK * NARROW_BLOCKS,
        programs=programs,
        resident_programs=2 * gpu.sm_count,
    )
    return works


Change = Callable[[Calibration, float], Calibration]


def _constants(gpu: Gpu) -> tuple[tuple[str, Work, Change], ...]:
    """(probe, its work, constant as a factor of what it is now) in the order they are solved."""
    works = timed_work(gpu)

    def scaled(field: str) -> Change:
        return lambda calibration, factor: msgspec.structs.replace(
            calibration, **{field: _like(getattr(calibration, field), factor)}
        )

    return tuple(
        (name, works[name], scaled(field))
        for name, field in (
            ("special", "special_share"),
            ("narrow", "sm_bandwidth_share"),
            ("index", "issue_share"),
            ("chunks", "trip_ns"),
            ("reread", "l2_bytes_per_s"),
        )
    )


def _like(value: float, factor: float) -> float:
    return round(value * factor) if isinstance(value, int) else value * factor


def _solved(
    gpu: Gpu, calibration: Calibration, work: Work, taken: float, change: Change
) -> Calibration | None:
    """The calibration that predicts what was timed; None where no constant near it does."""
    low, high = 1 / SEARCH_FACTOR, SEARCH_FACTOR

    def error(factor: float) -> float:
        return work.time(gpu, change(calibration, factor)).mid - taken

    rising = error(high) > error(low)
    if error(low) * error(high) > 0:
        return None
    for _ in range(40):
        middle = (low * high) ** 0.5
        if (error(middle) > 0) == rising:
            high = middle
        else:
            low = middle
    return change(calibration, (low * high) ** 0.5)


def _spreads(
    gpu: Gpu, calibration: Calibration, times: Mapping[str, float]
) -> dict[Pattern, tuple[float, float]]:
    """The spreads of recorded kernels, widened to hold the kernels timed here."""
    found = dict(calibration.spreads)
    for name, work in timed_work(gpu).items():
        if name in times and work.pattern in found:
            ratio = times[name] / work.time(gpu, calibration).mid
            low, high = found[work.pattern]
            found[work.pattern] = (min(low, ratio), max(high, ratio))
    return found
