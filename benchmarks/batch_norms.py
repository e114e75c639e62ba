"""ATen's batch norms in training on a GPU: what their kernels took, and what they are priced at.

    python benchmarks/batch_norms.py                                      record (needs a GPU)
    python benchmarks/batch_norms.py --table > benchmarks/batch_norms.md
    python benchmarks/batch_norms.py --fit                                find the model's constants

Each batch of bfloat16 images, channels-last and channel by channel, with weights of bfloat16 and
of float32, is normalised and differentiated ten times after three times that do not count; the
record has the median time of each kernel whose name says that it is of a batch norm. Tensors that
L2 can hold are there. The name of one kernel does not: it zeroes a count of blocks, before sums
over channels-last that blocks share. Prices of whole ops have it.

Prices are those of a machine without a GPU, by the calibration of an H200 that ships. The constants
(`analyzers.batch_norm_kernels.Waits`) were fitted on a recording of these kernels the day before,
with weights of bfloat16; `--fit` finds them again within 2 %. The table also has the errors with
each shape priced by constants that were fitted on the others.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from descent import descended
from needed import RECORDED, need_gpu

from advisor.hardware.calibration import SHIPPED, read_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import Record, decode, encode
from advisor.store.files import write_atomic
from analyzers.batch_norm_kernels import Aten, Images, Waits
from analyzers.batch_norm_work import BatchNorm, batch_norm_work
from analyzers.cost_model import Work
from analyzers.recorded_ops import Operand

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "batch_norms.json"
# Images, channels, side.
SHAPES = ((4, 64, 56), (4, 256, 56), (32, 64, 112), (32, 128, 28), (32, 512, 7))
DTYPE, WEIGHTS = "bfloat16", ("bfloat16", "float32")
WARM_UP, STEPS = 3, 10
GPU = gpu_by_key("h200")
CALIBRATION = read_calibration(SHIPPED / f"{GPU.key}.json", GPU)
# The kernel that writes the running statistics.
SMALL = "unrolled_elementwise_kernel_for_multi_outputs"
FITTED = Waits()
HEAD = (
    "| shape | layout | pass | measured | float32 weights | priced | priced / measured | whole op |"
)


class Row(Record, frozen=True, kw_only=True):
    """Median microseconds by kernel function, of a batch of `images` × `channels` × `side`²."""

    images: int
    channels: int
    side: int
    channels_last: bool
    weights: str
    kernels: dict[str, float]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.images, self.channels, self.side


class Results(Record, frozen=True, kw_only=True):
    """What was recorded on one GPU."""

    device: str
    torch: str
    rows: tuple[Row, ...]


def main() -> int:
    """Record, print the table, or print the constants."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="print the table of what was recorded")
    parser.add_argument("--fit", action="store_true", help="print the constants that fit it best")
    options = parser.parse_args()
    if options.table:
        sys.stdout.write(table(read()))
    elif options.fit:
        for name, value in asdict(fitted(fitted_on(read()))).items():
            sys.stdout.write(f"{name}: {value:.3g}\n")
    else:
        need_gpu(RECORDED)
        write_atomic(RESULTS, encode(recorded()))
    return 0


def read() -> Results:
    """What was kept."""
    return decode(RESULTS.read_bytes(), Results, str(RESULTS))


# --- on the GPU -----------------------------------------------------------------------------------


def recorded() -> Results:
    """Every shape, layout and type of weights on this machine's GPU."""
    import torch

    rows = [
        Row(
            images=images,
            channels=channels,
            side=side,
            channels_last=last,
            weights=weights,
            kernels=_timed((images, channels, side), channels_last=last, weights=weights),
        )
        for weights in WEIGHTS
        for images, channels, side in SHAPES
        for last in (True, False)
    ]
    device = torch.cuda.get_device_name()
    return Results(device=device, torch=str(torch.__version__), rows=tuple(rows))


def _timed(shape: tuple[int, int, int], *, channels_last: bool, weights: str) -> dict[str, float]:
    """Median microseconds of each kernel of the norm in a step; gradients of the steps add up."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    images, channels, side = shape
    lies = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(images, channels, side, side, device="cuda", dtype=getattr(torch, DTYPE))
    x = x.to(memory_format=lies).requires_grad_()
    norm = torch.nn.BatchNorm2d(channels).to("cuda", getattr(torch, weights))
    given = torch.randn_like(norm(x))

    def step() -> None:
        norm(x).backward(given)
        torch.cuda.synchronize()

    for _ in range(WARM_UP):
        step()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        for _ in range(STEPS):
            step()
    times: dict[str, list[float]] = {}
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and "batch_norm" in event.name:
            times.setdefault(_function(event.name), []).append(event.time_range.elapsed_us())
    return {name: round(statistics.median(taken), 1) for name, taken in times.items()}


def _function(kernel: str) -> str:
    """`reduce` of `void at::native::reduce<float>(float*)`."""
    found = re.search(r"(\w+)[<(]", kernel.replace("(anonymous namespace)", ""))
    return found.group(1) if found else kernel


# --- prices ---------------------------------------------------------------------------------------


def priced(row: Row, waits: Waits = FITTED) -> dict[str, Work]:
    """The work of each recorded kernel."""
    return {name: _work(row, name, waits) for name in row.kernels}


def _work(row: Row, kernel: str, waits: Waits) -> Work:
    backward = "backward" in kernel
    images = Images(row.images, row.channels, row.side**2, 2, wide=3 if backward else 2)
    aten = Aten(images, GPU, waits)
    if kernel == SMALL:
        return aten.small()
    if kernel == "batch_norm_backward_kernel":
        return aten.channel_gradient(sums=True, values=True)
    if "collect" in kernel or "reduce" in kernel:
        last = aten.tiled_sums(gradient=backward)[-1] if row.channels_last else None
        return last or aten.channel_sums()
    return aten.tiled_values() if row.channels_last else aten.channel_values()


def whole_op(row: Row, *, backward: bool) -> float:
    """Microseconds of all kernels of the op, as it is priced in a graph."""
    images, channels, side = row.shape
    dense = (channels * side**2, side**2, side, 1)
    last = (channels * side**2, 1, channels * side, channels)
    x = Operand(DTYPE, (images, channels, side, side), last if row.channels_last else dense)
    norm = BatchNorm(
        wide=(x, x) if backward else (x,),
        channels=(Operand(row.weights, (channels,), (1,)),),
        reduces=True,
        writes=True,
        training=True,
        backward=backward,
    )
    works = batch_norm_work(norm, Work(bytes_moved=0), 0, GPU)
    return sum(map(microseconds, works or ()))


def microseconds(work: Work) -> float:
    return work.time(GPU, CALIBRATION).mid / 1e3


# --- constants ------------------------------------------------------------------------------------


def fitted_on(results: Results) -> list[Row]:
    """Those with weights of bfloat16: the others took the same times."""
    return [row for row in results.rows if row.weights == DTYPE]


def fitted(rows: Sequence[Row]) -> Waits:
    """The constants of least mean error, by the logarithm of measured over priced."""

    def loss(values: dict[str, float]) -> float:
        return statistics.mean(abs(math.log(ratio)) for ratio in ratios(rows, Waits(**values)))

    return Waits(**descended(asdict(FITTED), loss, step=0.3))


def ratios(rows: Sequence[Row], waits: Waits = FITTED) -> list[float]:
    """Priced over measured of all kernels but the small ones."""
    return [
        microseconds(work) / row.kernels[name]
        for row in rows
        for name, work in priced(row, waits).items()
        if name != SMALL
    ]


def held_out(rows: Sequence[Row]) -> list[float]:
    """Those ratios with each shape priced by constants that were fitted on the others."""
    found: list[float] = []
    for shape in SHAPES:
        others = fitted([row for row in rows if row.shape != shape])
        found += ratios([row for row in rows if row.shape == shape], others)
    return found


# --- the table ------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """The whole document."""
    rows = fitted_on(results)
    lines = [
        "# ATen's batch norms in training",
        "",
        "Written by `python benchmarks/batch_norms.py --table`; the method is there.",
        f"{results.device}, PyTorch {results.torch}, bfloat16; times in µs, weights of bfloat16",
        "and beside them of float32. `priced` are the kernels that were recorded; `whole op`",
        "has the one that zeroes the blocks' count too.",
        "",
        f"- By the constants that ship: {errors(ratios(rows))}.",
        f"- Each shape by the constants that fit the others: {errors(held_out(rows))}.",
        "",
        HEAD,
        "|---" * (HEAD.count("|") - 1) + "|",
    ]
    for row in rows:
        (other,) = (r for r in results.rows if _key(r) == _key(row) and r.weights != row.weights)
        lines += [_line(row, other, backward=backward) for backward in (False, True)]
    return "\n".join([*lines, ""])


def errors(found: Sequence[float]) -> str:
    """`5.1 % off in the median of 35 kernels, 21 % at most`."""
    off = [abs(ratio - 1) for ratio in found]
    middle = statistics.median(off)
    return f"{middle:.1%} off in the median of {len(off)} kernels, {max(off):.0%} at most"


def _key(row: Row) -> tuple[tuple[int, int, int], bool]:
    return row.shape, row.channels_last


def _line(row: Row, other: Row, *, backward: bool) -> str:
    names = [name for name in row.kernels if ("backward" in name) == backward]
    times, prices = [row.kernels[name] for name in names], priced(row)
    own = [microseconds(prices[name]) for name in names]
    measured, wide = sum(times), sum(other.kernels[name] for name in names)
    images, channels, side = row.shape
    cells = (
        f"{images}×{channels}×{side}×{side}",
        "channels-last" if row.channels_last else "contiguous",
        "backward" if backward else "forward",
        _parts(times),
        f"{wide:.1f}",
        _parts(own),
        f"{sum(own) / measured:.2f}",
        f"{whole_op(row, backward=backward):.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _parts(times: Sequence[float]) -> str:
    """`12.8 (8.4 + 1.1 + 3.3)`."""
    each = " + ".join(f"{time:.1f}" for time in times)
    return f"{sum(times):.1f} ({each})" if len(times) > 1 else each


if __name__ == "__main__":
    raise SystemExit(main())
