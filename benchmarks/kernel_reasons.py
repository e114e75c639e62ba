"""Why rows of `kernels.py` that memory bounds stay below the bar: what is known, and was tried."""

from __future__ import annotations

from kernel_bounds import RESULTS, counts
from kernel_rows import Row

# A row of so many elements is all that the registers of one multiprocessor hold.
WIDE_COLUMNS = 30_000
# So many rows were looked into: of more, adding up the shares is a smaller part of the time.
FEW_ROWS = 4096
# Of a copy's time: where the instructions alone take so much, both do not overlap altogether.
MUCH_ARITHMETIC = 0.7
WIDE = (
    "a row takes a whole multiprocessor, which reads nothing while it computes; read twice, blocks "
    "come from L2 the second time, at little more than the speed of memory. Tried, and slower or "
    "below the bar still: rows held block by block in their narrow type, the next row on its way "
    "meanwhile by cp.async, a bound on registers. Triton reduces over no cluster"
)
SUMS = (
    "two launches: the rows are walked over at 0.93 of a copy's speed, then the shares of the sums "
    "are added up, which at so few rows is a twentieth of the time. Tried, no faster: programs "
    "with equal rows, shares added up at once, one more block on its way"
)
TURNED = "bytes of a transposed copy go through shared memory one by one, and so take its time"


def reason(row: Row) -> str:
    """Why a row is below the bar."""
    if row.plan is not None and row.plan.in_tiles:
        return TURNED
    if row.plan is not None and row.plan.sites[0].columns >= WIDE_COLUMNS:
        return WIDE
    return _arithmetic(row) or (SUMS if _sums_few_rows(row) else "not known")


def _sums_few_rows(row: Row) -> bool:
    if row.plan is None or row.launch is None or row.launch.scheme != "column_sums":
        return False
    return row.plan.sites[0].rows <= FEW_ROWS


def _arithmetic(row: Row) -> str:
    """What a row's instructions take by count, if that is much of what a copy takes."""
    found = counts().rows if RESULTS.exists() else ()
    for item in found:
        if item.key == row.key and item.least_ns > MUCH_ARITHMETIC * item.copy_ns:
            share = item.least_ns / item.copy_ns
            return (
                f"by count the instructions alone take {share:.2f} of a copy's time, and do not "
                "overlap with the traffic altogether"
            )
    return ""
