"""PyTorch's kernels in Nsight Compute's raw pages, with the op that each one must have been.

Nsight Compute records no shapes. A vectorised elementwise kernel has eight (or four) elements a
thread, a softmax warp a row, and what a kernel reads is in its DRAM counter, since the caches were
flushed before it: so the op can be told without knowing the model. Others are left out.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from analyzers.eager_work import Launch
from analyzers.recorded_ops import Operand, RecordedOp

_NS = {"us": 1e3, "ms": 1e6, "ns": 1.0}
_BYTES = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
_VECTOR = re.compile(r"vectorized_elementwise_kernel<(\d+)")
_UNROLLED = re.compile(r"unrolled_elementwise_kernel<.*direct_copy")
# Elementwise functions by a part of the kernel's name, with the tensors they are given.
_FUNCTIONS = (
    ("bfloat16_copy_kernel", "copy_", 2), ("AUnaryFunctor", "mul", 1), ("BinaryFunctor", "mul", 2),
    ("launch_clamp_scalar", "clamp_min_", 1), ("CUDAFunctor_add", "add", 2),
    ("GeluCUDAKernel", "gelu", 1), ("silu_kernel", "silu", 1),
)  # fmt: skip
# Kernels that read one large tensor once, by a part of the name: op, bytes of an element.
_READERS = (
    ("softmax_warp_forward", "_softmax"), ("SoftMaxForwardReg", "_softmax"),
    ("layer_norm_kernel", "native_layer_norm"), ("batch_norm_transform", "native_batch_norm"),
    ("reduce_kernel", "mean"),
)  # fmt: skip

Found = tuple[str, RecordedOp, Launch, int]


def kernels(path: Path, shortest_ns: int) -> Iterator[Found]:
    """(kernel, op, launch, measured ns) of the kernels whose sizes can be told."""
    with gzip.open(path, "rt", newline="") as lines:
        rows = csv.DictReader(lines)
        units = next(rows)
        for row in rows:
            measured = _figure(row, units, "gpu__time_duration.sum", _NS)
            op = _op(row, units)
            if op is not None and measured >= shortest_ns:
                launch = Launch(
                    kernel=row["Kernel Name"],
                    blocks=_number(row["launch__grid_size"]),
                    threads=_number(row["launch__block_size"]),
                    registers=_number(row["launch__registers_per_thread"]),
                )
                yield row["Kernel Name"], op, launch, round(measured)


def _op(row: Mapping[str, str], units: Mapping[str, str]) -> RecordedOp | None:
    kernel = row["Kernel Name"]
    threads = _number(row["launch__thread_count"])
    dtype = _dtype(kernel)
    if vector := _VECTOR.search(kernel):
        name, tensors = next(((n, t) for part, n, t in _FUNCTIONS if part in kernel), ("", 0))
        flat = (threads * int(vector[1]),)
        dtypes = ("bfloat16", "float32") if name == "copy_" else (dtype,) * tensors
        return _recorded(name, flat, dtypes) if name else None
    if _UNROLLED.search(kernel):
        return _recorded("copy_", (threads * 4,), ("float32", "bfloat16"))
    name = next((name for part, name in _READERS if part in kernel), "")
    if not name:
        return None
    size = 4 if dtype == "float32" else 2
    elements = round(_figure(row, units, "dram__bytes_read.sum", _BYTES) / size)
    columns = _columns(kernel, row, elements)
    return _recorded(name, (max(elements // columns, 1), columns), (dtype,))


def _columns(kernel: str, row: Mapping[str, str], elements: int) -> int:
    """The row length: a softmax warp's is a power of two in its name, else rows are blocks."""
    warp = re.search(r"softmax_warp_forward<[^,]*, [^,]*, [^,]*, (\d+)", kernel)
    if warp:
        return 1 << int(warp[1])
    return max(elements // _number(row["launch__grid_size"]), 1)


def _recorded(name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> RecordedOp:
    strides = (*(shape[-1],) * (len(shape) - 1), 1)
    return RecordedOp(f"aten::{name}", tuple(Operand(dtype, shape, strides) for dtype in dtypes))


def _dtype(kernel: str) -> str:
    if "BFloat16" in kernel:
        return "bfloat16"
    return "float16" if "Half" in kernel else "float32"


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _figure(
    row: Mapping[str, str], units: Mapping[str, str], column: str, scale: Mapping[str, float]
) -> float:
    return float(row[column].replace(",", "")) * scale[units[column]]
