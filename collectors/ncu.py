"""Nsight Compute: the CSV of `ncu --csv --page raw`, one row a kernel execution.

The file may begin with lines that ncu or the program printed. The first row names the columns, the
second holds their units, which differ from file to file (`Kbyte`, `Mbyte`: powers of 1000) and are
converted here. Metrics: Nsight Compute documentation, "Metrics Reference".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from advisor.errors import UnreadableError
from advisor.model.base import Provenance, Warning_
from advisor.model.counters import CounterFile, KernelCounters, Triple
from collectors.bytes_in import Source

MAX_BYTES = 1 << 30
_NAME, _ID = "Kernel Name", "ID"
_DEVICE = "device__attribute_display_name"
_LONG_FORM = "Metric Name"
_PERMISSION = "ERR_NVGPUCTRPERM"
_TRIPLE = re.compile(r"\(([\d,]+), ([\d,]+), ([\d,]+)\)")
# A warp's instruction moves at least four bytes for each of its threads.
_BYTES_PER_LOCAL_INSTRUCTION = 32 * 4
_SCALES = {
    "byte": 1,
    "kbyte": 10**3,
    "mbyte": 10**6,
    "gbyte": 10**9,
    "tbyte": 10**12,
    "ns": 1,
    "nsecond": 1,
    "us": 10**3,
    "usecond": 10**3,
    "ms": 10**6,
    "msecond": 10**6,
    "s": 10**9,
    "second": 10**9,
    "%": 1,
    "inst": 1,
    "register/thread": 1,
    "block": 1,
    "": 1,
}
_BYTES = {
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "static_shared_bytes": "launch__shared_mem_per_block_static",
    "dynamic_shared_bytes": "launch__shared_mem_per_block_dynamic",
    "registers_per_thread": "launch__registers_per_thread",
    "duration_ns": "gpu__time_duration.sum",
}
_LOCAL_BYTES = {
    "local_load_bytes": "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum",
    "local_store_bytes": "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum",
}
_LOCAL_INSTRUCTIONS = {
    "local_load_bytes": "smsp__sass_inst_executed_op_local_ld.sum",
    "local_store_bytes": "smsp__sass_inst_executed_op_local_st.sum",
}
_PERCENT = {
    "occupancy_theoretical": "sm__maximum_warps_per_active_cycle_pct",
    "occupancy_measured": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
# In the order in which a tie is named.
_LIMITS = {
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "registers": "launch__occupancy_limit_registers",
    "shared_memory": "launch__occupancy_limit_shared_mem",
}


def read_ncu(path: Path) -> CounterFile:
    """The kernel executions of a raw CSV, plain or compressed; raises `UnreadableError`."""
    rows = csv.reader(_lines(path))
    header = _header(rows, path)
    units = next(rows, [])
    if len(units) != len(header) or (units and units[header.index(_ID)]):
        raise UnreadableError(
            "has no row of units",
            where=str(path),
            remedy="write it with ncu --csv --page raw, without --print-units",
        )
    columns = {name: (at, units[at]) for at, name in enumerate(header)}
    kernels, damaged, device = [], 0, None
    for row in rows:
        if len(row) == len(header):
            device = device or (row[columns[_DEVICE][0]] if _DEVICE in columns else None)
            kernels.append(_kernel(row, columns))
        elif row and not row[0].startswith("=="):
            damaged += 1
    note = Warning_(code="ncu-row", message="rows of another length left out", count=damaged)
    return CounterFile(
        source=str(path),
        device=device or None,
        kernels=tuple(kernels),
        local_bytes=_local_provenance(columns),
        warnings=(note,) if damaged else (),
    )


def _lines(path: Path) -> Iterator[str]:
    """Decompressed text by lines; a text of more than `MAX_BYTES` is refused."""
    rest, have = b"", 0
    for chunk in Source(path).chunks():
        have += len(chunk)
        if have > MAX_BYTES:
            raise UnreadableError("is too large for counters of one step", where=str(path))
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace") + "\n"
    if rest.count(b'"') % 2:
        # A file cut within a figure: half of it would be another one.
        rest = rest.rpartition(b',"')[0]
    if rest:
        yield rest.decode("utf-8", "replace")


def _header(rows: Iterator[list[str]], path: Path) -> list[str]:
    refused = False
    try:
        for row in rows:
            refused |= any(_PERMISSION in cell for cell in row)
            if _ID in row and _NAME in row:
                if _LONG_FORM in row:
                    raise UnreadableError(
                        "is the details page of Nsight Compute",
                        where=str(path),
                        remedy="write it again with ncu --import REPORT --csv --page raw",
                    )
                return row
    except csv.Error as error:
        raise UnreadableError("is no CSV", where=str(path), why=str(error)) from error
    if refused:
        raise UnreadableError(
            "holds no counters: the driver keeps them for administrators",
            where=str(path),
            why=_PERMISSION,
            remedy="record it as root, or set NVreg_RestrictProfilingToAdminUsers=0",
        )
    raise UnreadableError(
        "is no table of Nsight Compute",
        where=str(path),
        remedy="write it with ncu --csv --page raw",
    )


Columns = Mapping[str, tuple[int, str]]


def _kernel(row: Sequence[str], columns: Columns) -> KernelCounters:
    whole = {field: _scaled(row, columns, metric) for field, metric in _BYTES.items()}
    for field, metric in _LOCAL_BYTES.items():
        whole[field] = _scaled(row, columns, metric)
        # Only where the file counts no bytes: it then says `estimated` of all of them.
        if metric not in columns:
            count = _scaled(row, columns, _LOCAL_INSTRUCTIONS[field])
            whole[field] = None if count is None else count * _BYTES_PER_LOCAL_INSTRUCTION
    shares = {field: _scaled(row, columns, metric) for field, metric in _PERCENT.items()}
    fields: dict[str, Any] = {
        **{field: None if value is None else round(value) for field, value in whole.items()},
        **{field: None if value is None else float(value / 100) for field, value in shares.items()},
    }
    return KernelCounters(
        name=row[columns[_NAME][0]],
        grid=_triple(row, columns, "Grid Size"),
        block=_triple(row, columns, "Block Size"),
        occupancy_limiter=_limiter(row, columns),
        compute_capability=row[columns["CC"][0]] or None if "CC" in columns else None,
        **fields,
    )


def _scaled(row: Sequence[str], columns: Columns, metric: str) -> Decimal | None:
    """A figure in bytes, ns, percent or a plain count; None if absent, or in an unknown unit."""
    if metric not in columns:
        return None
    at, unit = columns[metric]
    scale = _SCALES.get(unit.lower().removesuffix("/block"))
    try:
        value = Decimal(row[at].replace(",", ""))
    except InvalidOperation:
        return None
    return value * scale if scale is not None and value.is_finite() else None


def _triple(row: Sequence[str], columns: Columns, name: str) -> Triple | None:
    match = _TRIPLE.fullmatch(row[columns[name][0]]) if name in columns else None
    if match is None:
        return None
    x, y, z = (int(size.replace(",", "")) for size in match.groups())
    return x, y, z


def _limiter(row: Sequence[str], columns: Columns) -> str | None:
    """What allows the fewest blocks on a multiprocessor."""
    blocks = {name: _scaled(row, columns, metric) for name, metric in _LIMITS.items()}
    known = {name: count for name, count in blocks.items() if count is not None}
    return min(known, key=lambda name: known[name], default=None)


def _local_provenance(columns: Columns) -> Provenance:
    if all(metric in columns for metric in _LOCAL_BYTES.values()):
        return "measured"
    counted = all(metric in columns for metric in _LOCAL_INSTRUCTIONS.values())
    return "estimated" if counted else "unknown"
