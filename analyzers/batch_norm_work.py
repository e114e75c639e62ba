"""The work of PyTorch's own batch norms: which kernel takes one, and what that kernel does.

cuDNN takes float32, and float16 with float32 weights (ATen `Normalization.cpp`,
`_select_batch_norm_backend`): one kernel, which reads what it normalises a second time after its
statistics. Of other types each half has kernels of its own (`Normalization.cu`), of which
`batch_norm_kernels.py` tells the work, and small ones beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor.hardware.calibration import Pattern
from advisor.hardware.gpu import Gpu
from advisor.model.optable import ITEM_BYTES
from analyzers.batch_norm_kernels import Aten, Images
from analyzers.cost_model import Work
from analyzers.recorded_ops import Operand

# Trips to memory in which the blocks of cuDNN's kernel wait for each other: the median of ten
# kernels in `benchmarks/replay_steps/resnet18_train.eager` (five shapes, forward and backward).
CUDNN_TRIPS = 7.5
# ATen's kernels count in 32 bits up to here (`canUse32BitIndexMath`); others take more.
MOST_ELEMENTS = 1 << 31
# In evaluation: the running mean is copied and the variance inverted (`batch_norm_cuda_out`).
EVALUATION_KERNELS = 2


@dataclass(frozen=True)
class BatchNorm:
    """What an op reads as large as its result, and values per channel; whether a part of it
    finds statistics (`reduces`) or gives a result of that size (`writes`). `training`: the whole
    op finds statistics; `backward`: it is a gradient.
    """

    wide: Sequence[Operand]
    channels: Sequence[Operand]
    reduces: bool
    writes: bool
    training: bool
    backward: bool

    @property
    def is_cudnn(self) -> bool:
        """Whether cuDNN takes it."""
        dtypes = {item.dtype for item in self.wide}
        exact = all(item.dtype == "float32" for item in self.channels)
        return dtypes == {"float32"} or (dtypes == {"float16"} and exact)

    @property
    def is_channels_last(self) -> bool:
        """Whether ATen's kernels over channels-last take it (`batch_norm_choose_impl`)."""
        if self.is_row_major:
            return all(item.strides is not None and item.strides[1] == 1 for item in self.wide)
        return all(_lies(item, (0, 2, 3, 1)) for item in self.wide)

    @property
    def is_row_major(self) -> bool:
        """Whether the images lie channel by channel."""
        return all(_lies(item, tuple(range(len(item.shape)))) for item in self.wide)

    @property
    def images(self) -> Images:
        """The batch; `wide` counts what is written."""
        largest = max(self.wide, key=lambda item: item.elements)
        images, channels, *rest = largest.shape
        size = ITEM_BYTES.get(largest.dtype, 0)
        return Images(images, channels, math.prod(rest), size, wide=3 if self.backward else 2)


def batch_norm_work(
    norm: BatchNorm, work: Work, wide_bytes: int, gpu: Gpu
) -> tuple[Work, ...] | None:
    """The kernels of a batch norm, or of the part of it that an op's nodes are; `work` moves all
    bytes once, `wide_bytes` those of what is read whole. None where neither cuDNN takes it nor
    ATen's kernels for channels-last or for images that lie channel by channel.
    """
    if norm.is_cudnn:
        return (_cudnn(norm, work, wide_bytes),)
    if not (norm.reduces or norm.writes) or any(len(item.shape) < 2 for item in norm.wide):
        return (work,)
    if gpu.vendor != "nvidia":  # MIOpen's kernels, which nobody timed
        return None if norm.reduces else (work,)
    images = norm.images
    if not 0 < images.elements < MOST_ELEMENTS:
        return None
    aten = Aten(images, gpu)
    if norm.is_channels_last:
        sums = aten.tiled_sums(gradient=norm.backward) if norm.reduces else ()
        return (*sums, *_small(norm, aten), *((aten.tiled_values(),) if norm.writes else ()))
    if not norm.is_row_major:
        return None
    if norm.backward:
        return (aten.channel_gradient(sums=norm.reduces, values=norm.writes),)
    sums = (aten.channel_sums(),) if norm.reduces else ()
    return (*sums, *_small(norm, aten), *((aten.channel_values(),) if norm.writes else ()))


def _cudnn(norm: BatchNorm, work: Work, wide_bytes: int) -> Work:
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


def _small(norm: BatchNorm, aten: Aten) -> tuple[Work, ...]:
    """Kernels over values per channel between statistics and result: running statistics."""
    if norm.backward:
        return ()
    if norm.training:
        return (aten.small(),) if norm.reduces else ()
    return (aten.small(),) * EVALUATION_KERNELS


def _lies(item: Operand, order: Sequence[int]) -> bool:
    """Whether the axes lie in that order, the last one fastest, without gaps."""
    if item.strides is None or len(order) != len(item.shape):
        return False
    step = 1
    for axis in reversed(order):
        if item.shape[axis] > 1 and item.strides[axis] != step:
            return False
        step *= item.shape[axis]
    return True
