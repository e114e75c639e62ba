"""How a generated kernel is launched: what may vary without changing its result."""

from __future__ import annotations

from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.base import Record

Scheme = Literal[
    "registers", "looped", "online", "split", "column_sums", "column_walk", "blocks", "dealt",
    "scan_steps", "scan_blocks", "scan_chunks", "gemm",
]  # fmt: skip

# Elements of one tile that a thread holds; below, latency is exposed, above, registers run out.
MIN_ELEMENTS_PER_THREAD, MAX_ELEMENTS_PER_THREAD = 4, 64
MAX_TILE_ELEMENTS = 1 << 16
MAX_WARPS, MAX_STAGES, MAX_SPLITS = 32, 8, 1024
# A streamed row that is this much shorter than its block leaves most lanes without work.
SHORTEST_STREAMED = 4
# What one program of the second kernel of `column_sums` adds up at a time.
PART_COLUMNS = 32
# Of one number, and of all that are kept for a column: beyond, they do not fit into the registers
# of a warp, whose threads have a column each.
MOST_PARTS_PER_WARP, MOST_NUMBERS_PER_WARP = 32, 64


# The schemes in which several programs work for one result.
SHARED: tuple[Scheme, ...] = ("split", "column_sums", "scan_chunks")
# Those that walk along a row block by block, or along a scan step by step: how many of these their
# loops take a turn at most.
UNROLLED: dict[Scheme, int] = {
    "looped": 8, "online": 8, "split": 8, "scan_steps": 32, "scan_chunks": 32,
}  # fmt: skip
# Those that can reduce over the rows.
OVER_ROWS: tuple[Scheme, ...] = ("column_sums", "column_walk")
# Those of scans, which hold the columns of one step.
SCANS: tuple[Scheme, ...] = ("scan_steps", "scan_blocks", "scan_chunks")
MAX_BLOCK_STEPS = 4096
# Those whose programs take so many steps at once.
IN_STEPS: tuple[Scheme, ...] = ("scan_blocks", "gemm")
# Blocks of rows of a product whose programs run one after the other: the columns that they share
# are in L2 then.
GROUP_ROWS = 8


class LaunchConfig(Record, frozen=True, kw_only=True):
    """How the rows are dealt out: what may vary without changing the result.

    `registers` holds whole rows, the other schemes stream them in blocks of `block_columns`:
    `looped` with one pass a level of reductions, `online` with the associative forms, `split` with
    `splits` programs a row whose partial results a second kernel combines. With reductions over the
    rows, `column_sums` deals the rows out to `splits` programs, which walk over them `block_rows`
    at a time, whole or in blocks of columns; a second kernel combines theirs. In `column_walk` one
    program walks over all rows of a block of columns. Without reductions, each program of `blocks`
    has `block_rows` × `block_columns` elements; each of `dealt`, the programs of a horizontal plan,
    has `block_columns` elements of one member.

    A program of a scan has `block_rows` lanes: with `scan_steps` it takes one step after the other,
    with `scan_blocks` `block_steps` at once; in `scan_chunks`, `splits` programs share the steps.
    A program of a `gemm` has `block_rows` × `block_columns` elements of the product, and multiplies
    `block_steps` of its depth at once.

    Loops along a row take `unroll` blocks a turn, those along a scan as many steps: what they load
    is on its way together.
    """

    block_rows: int = 1
    num_warps: int = 4
    num_stages: int = 1
    scheme: Scheme = "registers"
    block_columns: int | None = None
    splits: int | None = None
    block_steps: int | None = None
    unroll: int = 1

    def check(self) -> None:
        sizes = (self.block_rows, self.num_warps, self.block_columns or 1, self.block_steps or 1)
        if any(not 0 < n <= MAX_TILE_ELEMENTS or n & (n - 1) for n in sizes):
            raise InvalidRecordError(f"a launch of {sizes} rows, warps, ...: no powers of two")
        if self.num_warps > MAX_WARPS or not 0 < self.num_stages <= MAX_STAGES:
            raise InvalidRecordError(f"{self.num_warps} warps or {self.num_stages} stages")
        if not 0 < self.unroll <= UNROLLED.get(self.scheme, 1):
            raise InvalidRecordError(f"{self.scheme} with {self.unroll} blocks or steps a turn")
        held = self.block_columns is None
        either = (*SCANS, "column_sums")
        if (self.scheme == "registers") != held and not (self.scheme in either and held):
            raise InvalidRecordError("a row is streamed in blocks, or held without")
        splits = self.splits is not None and 0 < self.splits <= MAX_SPLITS
        if (self.scheme in SHARED) != splits:
            raise InvalidRecordError(f"{self.scheme} over {self.splits} programs")
        if (self.scheme in IN_STEPS) != (self.block_steps is not None):
            raise InvalidRecordError(f"{self.scheme} with blocks of {self.block_steps} steps")

    def label(self) -> str:
        """The configuration as text: `rows=1 warps=4`, `online cols=4096 warps=8 stages=3`."""
        if self.scheme == "dealt":
            return f"dealt elements={self.block_columns} warps={self.num_warps}"
        words = [] if self.scheme == "registers" else [self.scheme.replace("_", " ")]
        if self.splits is not None:
            words.append(f"over {self.splits}")
        if self.block_steps is not None:
            words.append(f"{'depth' if self.scheme == 'gemm' else 'steps'}={self.block_steps}")
        if self.block_columns is not None:
            words.append(f"cols={self.block_columns}")
        if self.block_columns is None or self.block_rows > 1:
            words.append(f"rows={self.block_rows}")
        words.append(f"warps={self.num_warps}")
        if self.num_stages > 1:
            words.append(f"stages={self.num_stages}")
        if self.unroll > 1:
            words.append(f"unroll={self.unroll}")
        return " ".join(words)

    def options(self) -> dict[str, int]:
        """The keyword arguments of a generated launcher."""
        if self.scheme == "dealt":
            return {"elements": self.block_columns or 1, "num_warps": self.num_warps}
        found = {"block_rows": self.block_rows, "num_warps": self.num_warps}
        if self.block_columns is not None:
            found["block_columns"] = self.block_columns
        if self.block_steps is not None:
            found["block_steps"] = self.block_steps
        if self.scheme not in ("registers", "blocks"):
            found["num_stages"] = self.num_stages
        if self.splits is not None:
            found["splits"] = self.splits
        if self.scheme in UNROLLED:
            found["unroll"] = self.unroll
        return found


def is_least(rows: int, tallest: int, warps: int) -> bool:
    """Whether a warp has all rows there are, and fewer elements than it could take."""
    return rows == tallest and warps == 1


def columns_per_split(config: LaunchConfig, columns: int) -> int:
    """Columns that one program of a split row reads: whole blocks, the last one may have fewer."""
    block = config.block_columns or 1
    share = -(-columns // (config.splits or 1))
    return max(-(-share // block), 1) * block


def splits_of(config: LaunchConfig, columns: int) -> int:
    """Programs that share one row: as many as have a column to read."""
    if config.splits is None:
        return 1
    return -(-columns // columns_per_split(config, columns))


def tile_rows(block: int, outer: int, inner: int) -> int:
    """Outer columns of a tile of `block` elements: a square one if there are as many of both."""
    square = 1 << (block.bit_length() - 1) // 2
    return max(min(square, next_power_of_two(outer)), block // next_power_of_two(inner), 1)


def steps_per_split(config: LaunchConfig, steps: int) -> int:
    """Steps of a scan that one program takes; all where none share them."""
    return max(-(-steps // (config.splits or 1)), 1)


def row_splits_of(config: LaunchConfig, rows: int) -> int:
    """Programs that share the rows, a block in turn: as many as have one, one if there is none.

    Where the number of rows is known at run time only, all: one without a block adds nothing.
    """
    if not isinstance(rows, int):
        return config.splits or 1
    return max(min(config.splits or 1, -(-rows // config.block_rows)), 1)


def column_blocks(config: LaunchConfig, columns: int) -> int:
    """Programs beside each other along the columns, where none has all of them."""
    return 1 if config.block_columns is None else -(-columns // config.block_columns)


def parts_at_once(config: LaunchConfig, numbers: int) -> int:
    """Partial results that a program of the second kernel of `column_sums` adds up at a time.

    `numbers` are those that it has on hand for every column. All where they fit: it waits for
    memory once.
    """
    parts = next_power_of_two(config.splits or 1)
    return min(parts, most_parts_per_warp(numbers) * config.num_warps)


def most_parts_per_warp(numbers: int) -> int:
    """Partial results that one warp adds up at a time; a power of two."""
    share = min(MOST_PARTS_PER_WARP, MOST_NUMBERS_PER_WARP // max(numbers, 1))
    return last_power_of_two(share)


def grid_size(config: LaunchConfig, rows: int, columns: int) -> int:
    """Programs launched (of the larger kernel, where there are two)."""
    if config.scheme in OVER_ROWS:
        return row_splits_of(config, rows) * column_blocks(config, columns)
    if config.scheme == "blocks":
        return -(-rows // config.block_rows) * column_blocks(config, columns)
    return -(-rows // config.block_rows) * splits_of(config, columns)


def unsuitable(config: LaunchConfig, columns: int) -> str | None:
    """Why a configuration, chosen for rows of one length, does not suit another; None if it does.

    A streamed row may have any length that fills its blocks; a held one must fit in registers.
    """
    if config.scheme in ("dealt", "gemm"):
        return None
    if config.block_columns is None:
        tile = config.block_rows * next_power_of_two(columns) * (config.block_steps or 1)
        widest = min(MAX_TILE_ELEMENTS, MAX_ELEMENTS_PER_THREAD * 32 * config.num_warps)
        if tile > widest:
            return (
                f"{config.block_rows} rows of {columns:,} columns are too much for one program"
                f" of {config.num_warps} warps; the kernel was configured for shorter rows"
            )
        return None
    shortest = config.block_columns // SHORTEST_STREAMED
    if config.scheme == "split":
        shortest = config.block_columns
    if columns <= shortest:
        return (
            f"rows of {columns:,} columns do not fill blocks of {config.block_columns:,}"
            f" ({config.label()}); the kernel was configured for longer rows"
        )
    return None


def last_power_of_two(value: int) -> int:
    """The largest power of two that is at most `value` (at least 1)."""
    return 1 << max(value.bit_length() - 1, 0)


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value` (at least 1)."""
    return 1 << max(value - 1, 0).bit_length()
