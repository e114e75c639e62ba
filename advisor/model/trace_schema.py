"""The columns of a `Trace`: name, type and meaning.

Units are in the names; every time is integer nanoseconds. Types: `int` is int64 and always present;
`int?` and `float?` are nullable (absent is missing, never 0); `text` is a nullable categorical of
strings. Row numbers (`launch`, `op`, `parent`) index the other table.
"""

from __future__ import annotations

from typing import Literal

ColumnType = Literal["int", "int?", "float?", "text"]
Columns = dict[str, ColumnType]

_ACTIVITY: Columns = {
    "name": "text",
    "start_ns": "int",
    "duration_ns": "int",
    "rank": "int",
    "device": "int?",
    "stream": "int?",
    "correlation": "int?",  # id shared with the API call that launched it
    "external_id": "int?",  # profiler's id of the op, where it really is one
    "launch": "int?",  # row of `launches`
    "op": "int?",  # row of `ops`: innermost op around the launch
}

# Kinds of shared memory and of occupancy are kept apart: sources give one or the other.
KERNELS: Columns = {
    **_ACTIVITY,
    "grid_x": "int?",
    "grid_y": "int?",
    "grid_z": "int?",
    "block_x": "int?",
    "block_y": "int?",
    "block_z": "int?",
    "registers_per_thread": "int?",
    "shared_bytes": "int?",  # static + dynamic, where the source gives only the sum
    "static_shared_bytes": "int?",
    "dynamic_shared_bytes": "int?",
    "local_bytes_per_thread": "int?",
    "spill_store_bytes": "int?",
    "spill_load_bytes": "int?",
    "dram_read_bytes": "int?",
    "dram_write_bytes": "int?",
    "occupancy_theoretical": "float?",  # fractions, 0 to 1
    "occupancy_estimated": "float?",  # from the grid: 0 is a tiny grid, not a bad kernel
    "occupancy_measured": "float?",
    "occupancy_limiter": "text",
    "graph_id": "int?",
    "graph_node_id": "int?",
}

COPIES: Columns = {
    **_ACTIVITY,
    "kind": "text",  # copy, set
    "direction": "text",  # HtoD, DtoH, DtoD, PtoP, HtoH
    "bytes": "int?",
}

_HOST: Columns = {
    "name": "text",
    "start_ns": "int",
    "duration_ns": "int",
    "rank": "int",
    "thread": "int",  # index into `TraceInfo.threads`
}

OPS: Columns = {
    **_HOST,
    "parent": "int?",  # row of `ops`: innermost op around this one, same thread
    "external_id": "int?",
    "record_function_id": "int?",  # joins to the execution trace
    "sequence_number": "int?",  # joins a backward op to its forward op
    "forward_thread": "int?",
    "input_shapes": "text",  # JSON as recorded: [[4, 1024], []]
    "input_dtypes": "text",
    "input_strides": "text",
    "input_values": "text",
    "input_tensor_ids": "text",
    "output_tensor_ids": "text",
    "module": "text",  # the modules around the op, outermost first: `A_0.B_1`
    "source": "text",  # innermost function of the user's program and its first line: `a.py:12`
}

# Every recorded call into the runtime or driver API except the synchronising ones.
LAUNCHES: Columns = {
    **_HOST,
    "kind": "text",  # kernel, graph, copy, set, other
    "correlation": "int?",
    "external_id": "int?",
    "op": "int?",
}

SYNCS: Columns = {
    **_HOST,
    "kind": "text",  # device, stream, event: the host waits; stream_wait, event_record: not
    "correlation": "int?",
}

RANGES: Columns = {**_HOST, "side": "text"}  # side: host, device

COMMS: Columns = {
    "kernel": "int",  # row of `kernels`; in a builder, its place in order of adding
    "collective": "text",
    "elements_in": "int?",
    "elements_out": "int?",
    "dtype": "text",
    "group": "text",
    "group_size": "int?",
}

DEVICES: Columns = {
    "device": "int",
    "rank": "int",
    "name": "text",
    "compute_major": "int?",
    "compute_minor": "int?",
    "multiprocessors": "int?",
    "warp_size": "int?",
    "memory_bytes": "int?",
    "registers_per_multiprocessor": "int?",
    "shared_bytes_per_multiprocessor": "int?",
    "shared_bytes_per_block": "int?",
    "threads_per_multiprocessor": "int?",
}

# Python frames: a builder's input only; they end up as `ops.module` and `ops.source`.
FRAMES: Columns = dict(_HOST)

TABLES: dict[str, Columns] = {
    "kernels": KERNELS,
    "ops": OPS,
    "launches": LAUNCHES,
    "copies": COPIES,
    "comms": COMMS,
    "syncs": SYNCS,
    "ranges": RANGES,
    "devices": DEVICES,
}
