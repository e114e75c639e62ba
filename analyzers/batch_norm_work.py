"""The work of PyTorch's own batch norms: which kernel takes one, and what that kernel does.

cuDNN takes float32, and float16 with float32 weights (ATen `Normalization.cpp`,
`_select_batch_norm_backend`): one kernel, which reads what it normalises a second time after its
statistics. Of other types each half has kernels of its own; the one that writes a channels-last
result waits for a few loads after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor.hardware.calibration import Pattern
from analyzers.cost_model import Work
from analyzers.eager_work import channel_norm
from analyzers.recorded_ops import Operand

# Trips to memory in which the blocks of cuDNN's kernel wait for each other: the median of ten
# kernels in `benchmarks/replay_steps/resnet18_train.eager` (five shapes, forward and backward).
CUDNN_TRIPS = 7.5
# ATen `Normalization.cuh`: `OPTIMAL_TILE_W`, `MAX_BLOCK_SIZE`, `ELEMENTS_PER_THREAD`,
# `MAX_H_BLOCK`.
TILE_CHANNELS, BLOCK_THREADS, THREAD_ELEMENTS, MOST_BLOCKS = 32, 512, 16, 128


@dataclass(frozen=True)
class BatchNorm:
    """What an op reads as large as its result, and values per channel; whether a part of it
    finds statistics (`reduces`) or gives a result of that size (`writes`).
    """

    wide: Sequence[Operand]
    channels: Sequence[Operand]
    reduces: bool
    writes: bool

    @property
    def is_cudnn(self) -> bool:
        """Whether cuDNN takes it."""
        dtypes = {item.dtype for item in self.wide}
        exact = all(item.dtype == "float32" for item in self.channels)
        return dtypes == {"float32"} or (dtypes == {"float16"} and exact)

    @property
    def is_channels_last(self) -> bool:
        """Whether the channels, of which there are several, lie side by side."""
        return all(
            len(item.shape) > 1 and item.strides is not None and item.strides[1] == 1
            for item in self.wide
        )


def batch_norm_work(norm: BatchNorm, work: Work, wide_bytes: int) -> Work | None:
    """The work of a batch norm, or of the part of it that an op's nodes are; `work` moves all
    bytes once, `wide_bytes` those of what is read whole. None for statistics of ATen's own kernels.
    """
    if norm.is_cudnn:
        again = wide_bytes if norm.reduces and norm.writes else 0
        moved = work.bytes_moved + again
        pattern: Pattern = "column_reduction" if norm.reduces else "vector"
        return replace(
            work,
            bytes_moved=moved,
            footprint_bytes=work.bytes_moved,
            tail_trips=CUDNN_TRIPS if norm.reduces else 0,
            pattern=pattern,
        )
    if norm.reduces:
        return None
    if not norm.is_channels_last:
        return work
    largest = max(norm.wide, key=lambda item: item.elements)
    channels = largest.shape[1]
    threads = transform_threads(largest.elements // max(channels, 1), channels)
    return channel_norm(work.bytes_moved, largest.elements, threads)


def transform_threads(values: int, channels: int) -> int:
    """Threads of ATen's kernels over channels-last, with so many values of each channel
    (`flexible_launch_configs`).
    """
    across = min(_power_of_two(channels), TILE_CHANNELS)
    down = min(_power_of_two(-(-values // THREAD_ELEMENTS)), BLOCK_THREADS // across)
    across = min(_power_of_two(channels), BLOCK_THREADS // down)
    blocks = min(-(-values // (down * THREAD_ELEMENTS)), MOST_BLOCKS)
    return -(-channels // across) * blocks * across * down


def _power_of_two(value: int) -> int:
    """The largest power of two that is at most `value`, at least 1."""
    return 1 << max(value.bit_length() - 1, 0)
