"""The table of `kernels.py`: rows in Markdown, and what the bars are about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import geometric_mean, median

from kernel_bounds import FAST, bound_rows
from kernel_reasons import reason
from kernel_rows import TUNED, Results, Row

# From so many bytes on a row has to reach the bar; how far it may be behind the best other.
LARGE_BYTES, SLOWER = 64_000_000, 1.02
HEAD = (
    "pattern", "shape", "MB", "ops", "copy", "ours", "of copy", "Inductor", "tuned", "Liger",
    "eager", "launch", "configuration",
)  # fmt: skip


def line(row: Row) -> str:
    """One row as text."""
    if row.ours_ns is None or row.copy_ns is None:
        return f"{row.key}: {row.why}"
    by_scheme: dict[str, tuple[int, str]] = {}
    for label, taken in row.configs.items():
        scheme = label.split()[0] if not label.startswith("rows=") else "registers"
        by_scheme[scheme] = min(by_scheme.get(scheme, (taken, label)), (taken, label))
    found = ", ".join(f"{t / 1000:.1f} us {label}" for t, label in sorted(by_scheme.values()))
    return f"{row.key}: {row.copy_ns / row.ours_ns:.2f} of a copy; {found}"


def table(results: Results, wanted: Sequence[str]) -> str:
    """Markdown: times in microseconds, and the share of the time of a copy of the same bytes.

    `wanted` are the keys of all rows that there are to measure.
    """
    lines = [
        "# Generated kernels",
        "",
        "Written by `python benchmarks/kernels.py --table`; times are medians on the GPU, caches",
        "cold, in µs. `copy` moves the bytes that the kernel must move: 1.00 is its speed. Eager",
        "and Inductor run the whole pattern; `ops` says how much of it our kernel does. All read",
        "the same tensors. `launch` is the host's time for one. fp8 with one scale a tensor must",
        "read the tensor twice, and no cache holds it: `MB` and `copy` count both. Rows that are",
        "bound by arithmetic, by the count of `kernel_counts.md`, which was made before them, have",
        "`*` at their share; `†` is at shapes that were measured before rows kept their plans, by",
        "earlier code.",
        "",
        f"| {' | '.join(HEAD)} |",
        "|---" * len(HEAD) + "|",
    ]
    lines += [_cells(row) for row in results.rows]
    versions = json.dumps(results.versions)
    figures = [*_figures(results.rows), _earlier(results.rows), _not_there(results.rows, wanted)]
    why = _reasons(results.rows)
    return "\n".join([*lines, "", *figures, "", *why, f"Versions: {versions}", ""])


def _cells(row: Row) -> str:
    shape = "×".join(map(str, row.shape))
    if row.ours_ns is None or row.copy_ns is None or row.bytes is None or row.why:
        return f"| {row.name} | {shape} |{' |' * (len(HEAD) - 3)} {row.why} |"
    others = dict(row.others)
    columns = [row.inductor_ns, others.pop(TUNED, None), others.pop("Liger", None), row.eager_ns]
    times = [f"{t / 1000:.1f}" if t is not None else "" for t in (*columns, row.launch_ns)]
    covers = "all" if row.covers is None else f"{row.covers[0]}/{row.covers[1]}"
    more = (f"{name} {taken / 1000:.1f}" for name, taken in others.items())
    mark = "*" if row.key in bound_rows() else ""
    shape += "" if row.day else " †"
    cells = [
        row.name, shape, f"{row.bytes / 1e6:.0f}", covers, f"{row.copy_ns / 1000:.1f}",
        f"{row.ours_ns / 1000:.1f}", f"{row.copy_ns / row.ours_ns:.2f}{mark}", *times,
        "; ".join((row.config or "", *more)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _figures(rows: Sequence[Row]) -> list[str]:
    """What the bars are about: large rows, the best other, Inductor, the kernel model."""
    timed = _timed(rows)
    every = [row for row in timed if (row.bytes or 0) >= LARGE_BYTES]
    large = _large(rows)
    fast = [row for row in large if _is_fast(row)]
    whole = [row for row in timed if row.covers is None or row.covers[0] == row.covers[1]]
    behind = [row for row in whole if (row.ours_ns or 0) > SLOWER * min(_others(row))]
    ratios = [row.inductor_ns / (row.ours_ns or 1) for row in whole if row.inductor_ns]
    errors = [
        abs(row.predicted_ns - row.warm_ns) / row.warm_ns
        for row in timed
        if row.predicted_ns and row.warm_ns
    ]
    return [
        f"- {len(fast)} of {len(large)} rows of 64 MB and more that memory bounds reach "
        f"{FAST:.2f} of a copy's speed; not: {_names(large, fast)}",
        f"- {len(every) - len(large)} rows of that size are bound by arithmetic: "
        f"{_names(every, large)}",
        f"- {len(behind)} of {len(whole)} rows that our kernel does whole are more than 2 % behind "
        f"the best other: {_names(behind, [])}",
        f"- over Inductor, geometric mean of these: {geometric_mean(ratios):.2f}×"
        if ratios
        else "- over Inductor: not measured",
        f"- the kernel model, caches warm: {median(errors):.1%} off in the median of {len(errors)}"
        if errors
        else "- the kernel model: not measured",
    ]


def _timed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.ours_ns and row.copy_ns and not row.why]


def _large(rows: Sequence[Row]) -> list[Row]:
    """The rows that the bar is for: large ones that memory bounds."""
    counted = bound_rows()
    large = (row for row in _timed(rows) if (row.bytes or 0) >= LARGE_BYTES)
    return [row for row in large if row.key not in counted]


def _is_fast(row: Row) -> bool:
    return (row.copy_ns or 0) >= FAST * (row.ours_ns or 0)


def _reasons(rows: Sequence[Row]) -> list[str]:
    """Why rows are below the bar, those of one reason together."""
    found: dict[str, list[str]] = {}
    for row in _large(rows):
        if not _is_fast(row):
            share = (row.copy_ns or 0) / (row.ours_ns or 1)
            found.setdefault(reason(row), []).append(f"{row.key} ({share:.2f})")
    if not found:
        return []
    head = f"Why rows stay below {FAST:.2f}:"
    return [head, "", *(f"- {', '.join(keys)}: {why}." for why, keys in found.items()), ""]


def _earlier(rows: Sequence[Row]) -> str:
    """How many rows say nothing of today's code; all figures count them."""
    earlier = sum(not row.day for row in rows)
    return f"- {earlier} of these {len(rows)} rows are by earlier code (`†`), in all figures too"


def _not_there(rows: Sequence[Row], wanted: Sequence[str]) -> str:
    """What was not measured: a row that the machine's time did not reach, or that failed there."""
    known = {row.key for row in rows}
    missing = [key for key in wanted if key not in known]
    return (
        f"- {len(missing)} of {len(wanted)} rows are not there (the time on the GPU ended before "
        f"them, or what failed is to be tried again): {', '.join(missing) or 'none'}"
    )


def _others(row: Row) -> list[int]:
    found = (row.inductor_ns, row.eager_ns, *row.others.values())
    return [taken for taken in found if taken is not None]


def _names(rows: Sequence[Row], without: Sequence[Row]) -> str:
    return ", ".join(row.key for row in rows if row not in without) or "none"
