"""The kernels of ATen's own batch norms: what each launches, and what its threads wait for.

Launches follow ATen `Normalization.cuh` of PyTorch 2.11 (functions at each). Of images that lie
channel by channel, one block of threads walks a whole channel, an element a round: with few
channels most of the GPU has nothing to do. Over channels-last, blocks share a tile of channels
and join through memory.

Constants of `Waits` are fitted on one H200 (`benchmarks/batch_norms.py --fit`, which also leaves
each shape out of the fit); they are shares of the card's trip to memory and counts of a program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from advisor.hardware.gpu import Gpu
from advisor.hardware.limits import SmLimits
from advisor.hardware.occupancy import occupancy
from advisor.model.launch import last_power_of_two
from analyzers.cost_model import Work
from analyzers.eager_work import CHANNEL_UNROLL, FITTED, channel_norm

# `OPTIMAL_TILE_W`, `MAX_BLOCK_SIZE`, `ELEMENTS_PER_THREAD`, `MAX_H_BLOCK`; fewer blocks that share
# a channel are made one (`flexible_launch_configs`, `coop_flag`).
TILE_CHANNELS, BLOCK_THREADS, THREAD_ELEMENTS, MOST_BLOCKS, FEWEST_BLOCKS = 32, 512, 16, 128, 8
# `getNumThreads`; `batch_norm_elemt_cuda_template`.
THREADS = (32, 64, 128, 256)
TRANSFORM_BLOCKS, TRANSFORM_THREADS = 256 * 1024, 64
# Of a round of statistics over channels-last: the loads, and then the divisions of Welford's
# update, which wait for each other about as long.
WELFORD_TRIPS = 2


@dataclass(frozen=True)
class Waits:
    """What was fitted: trips as shares of one to memory under load, instructions of threads."""

    cached: float = 0.52  # a trip that L2 answers
    near: float = 0.58  # a second pass over what the multiprocessor's L1 has, of the first
    round: float = 0.9  # trips of a loop that loads an element a round
    joining: float = 6.2  # trips in which the blocks of a channel join
    welford: float = 52.0  # instructions of an element's update, a division among them


@dataclass(frozen=True)
class Images:
    """A batch of `images` of `pixels` in `channels`, values of `item_bytes`; `wide` tensors of this
    size are read and written by the whole op.
    """

    images: int
    channels: int
    pixels: int
    item_bytes: int
    wide: int = 2

    @property
    def values(self) -> int:
        """Of each channel."""
        return self.images * self.pixels

    @property
    def elements(self) -> int:
        return self.values * self.channels

    @property
    def bytes(self) -> int:
        """Of one tensor."""
        return self.elements * self.item_bytes


@dataclass(frozen=True)
class Tiles:
    """A launch over channels-last: a block is `across` channels by `down` values of each; of the
    blocks `tiles` lie side by side and `shared` share their channels.
    """

    across: int
    down: int
    tiles: int
    shared: int

    @property
    def blocks(self) -> int:
        return self.tiles * self.shared

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.across * self.down


def tiles(values: int, channels: int, *, joins: bool) -> Tiles:
    """The launch for so many values of each channel (`flexible_launch_configs`)."""
    across = min(last_power_of_two(channels), TILE_CHANNELS)
    down = min(last_power_of_two(-(-values // THREAD_ELEMENTS)), BLOCK_THREADS // across)
    across = min(last_power_of_two(channels), BLOCK_THREADS // down)
    shared = min(-(-values // (down * THREAD_ELEMENTS)), MOST_BLOCKS)
    if joins and shared < FEWEST_BLOCKS:
        shared = 1
    return Tiles(across, down, -(-channels // across), shared)


@dataclass(frozen=True)
class Aten:
    """ATen's kernels for one batch on one GPU, each as the work that it is."""

    images: Images
    gpu: Gpu
    waits: Waits = Waits()

    def small(self) -> Work:
        """A kernel over a value per channel: running statistics, or zeros for the blocks' count."""
        return Work(bytes_moved=4 * 4 * self.images.channels, pattern="vector")

    def tiled_sums(self, *, gradient: bool) -> tuple[Work, ...]:
        """Statistics, or the sums of a gradient, over channels-last: every block loads, computes
        and waits again (`batch_norm_collect_statistics_channels_last_kernel`,
        `batch_norm_backward_reduce_channels_last_kernel`). Blocks that join count themselves, from
        zeros that a kernel wrote.
        """
        launch = tiles(self.images.values, self.images.channels, joins=True)
        rounds = -(-self.images.values // (launch.down * launch.shared * CHANNEL_UNROLL))
        trips = rounds * self._trip() * (1 if gradient else WELFORD_TRIPS)
        joined = launch.shared > 1
        sums = self._launched(
            Work(
                bytes_moved=self.images.bytes * (2 if gradient else 1),
                instructions=0 if gradient else self.waits.welford * self.images.elements,
                tail_trips=trips + (self.waits.joining if joined else 0),
                pattern="column_reduction",
            ),
            launch.blocks,
            launch.threads,
        )
        return (self.small(), sums) if joined else (sums,)

    def tiled_values(self) -> Work:
        """The result, or the gradient of x, over channels-last (`…_transform_input_channels_last`,
        `batch_norm_backward_elemt_channels_last_kernel`).
        """
        launch = tiles(self.images.values, self.images.channels, joins=False)
        moved, threads = self.images.wide * self.images.bytes, launch.blocks * launch.threads
        work = channel_norm(moved, self.images.elements, threads)
        work = replace(work, trips=work.trips * self._trip())
        return self._launched(work, launch.blocks, launch.threads)

    def channel_sums(self) -> Work:
        """Statistics of images that lie channel by channel (`batch_norm_collect_statistics_kernel`:
        a block a channel).
        """
        return self._walk(Work(bytes_moved=self.images.bytes), passes=1)

    def channel_gradient(self, *, sums: bool, values: bool) -> Work:
        """All of a gradient, or a half of it (`batch_norm_backward_kernel`): the block that has
        added up walks its channel again.
        """
        second = self.waits.near if self._is_near() else 1.0
        one = self.images.bytes
        work = Work(
            bytes_moved=one * (3 if values else 2),
            cached_bytes=one * (2 * sums + 3 * values),
        )
        return self._walk(work, passes=(1 if sums else 0) + (second if values else 0))

    def channel_values(self) -> Work:
        """The result where they lie channel by channel (`batch_norm_transform_input_kernel`): a
        block for a few images of a channel, of which one starts a clock.
        """
        shape, gpu = self.images, self.gpu
        threads = max(_threads(shape.pixels // 4), min(_threads(shape.pixels), TRANSFORM_THREADS))
        together = max(TRANSFORM_THREADS // threads, 1)
        most = max(TRANSFORM_BLOCKS // shape.channels, 1)
        down = min(most, -(-shape.images // together))
        rounds = -(-shape.pixels // threads) * -(-shape.images // (together * down))
        blocks = shape.channels * down
        work = Work(
            bytes_moved=2 * shape.bytes,
            instructions=blocks * gpu.instructions_per_s / gpu.clock_hz,
            trips=(rounds + 1) * self.waits.round * self._trip(),  # the channel's values first
            pattern="norm",
        )
        return self._launched(work, blocks, threads * together)

    def _walk(self, work: Work, passes: float) -> Work:
        """By a block a channel, whose threads take an element a round and then join."""
        threads = _threads(self.images.pixels)
        rows = max(BLOCK_THREADS // threads, 1)
        rounds = -(-self.images.images // rows) * -(-self.images.pixels // threads)
        channels = self.images.channels
        work = replace(
            work,
            instructions=FITTED.norm_thread * channels * threads * rows,
            trips=passes * rounds * self.waits.round * self._trip(),
            pattern="norm",
        )
        return self._launched(work, channels, threads * rows)

    def _trip(self) -> float:
        """A trip, of one to memory: the more of the op's tensors L2 holds, the shorter."""
        missed = min(1.0, self.images.wide * self.images.bytes / (self.gpu.l2_bytes or 1))
        return self.waits.cached + (1 - self.waits.cached) * missed

    def _is_near(self) -> bool:
        """Whether the L1 of a multiprocessor holds x and the gradient of its channels."""
        limits, shape = self.gpu.limits, self.images
        share = max(1.0, shape.channels / self.gpu.sm_count) / shape.channels
        return isinstance(limits, SmLimits) and 2 * shape.bytes * share <= limits.shared_bytes

    def _launched(self, work: Work, blocks: int, threads: int) -> Work:
        """With the blocks, and how many the GPU holds at once."""
        held = occupancy(self.gpu.arch, registers=32, threads=threads)
        resident = max(held.blocks, 1) * self.gpu.sm_count
        return replace(work, programs=blocks, resident_programs=resident)


def _threads(elements: int) -> int:
    """Of a block for a row of so many elements (`getNumThreads`)."""
    return next((threads for threads in THREADS if elements <= threads), BLOCK_THREADS)
