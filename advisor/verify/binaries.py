"""Registers, stack and spills, read from what the assemblers leave: cubin, ptxas log, amdgcn text.

NVIDIA: section `.nv.info` of the cubin (attribute 0x2f registers, 0x11 frame size, as printed by
`cuobjdump -res-usage`), spills from `ptxas -v`. AMD: the kernel's metadata at the end of its
assembly (LLVM, "User Guide for AMDGPU Backend", code object metadata).
"""

from __future__ import annotations

import re
import struct

from advisor.model.base import Record

_ELF_SECTION_OFFSET, _ELF_SECTION_COUNTS = 0x28, 0x3A
_SIZED_VALUE = 4  # EIFMT_SVAL: a size in bytes and that many bytes follow
_REGISTER_COUNT, _FRAME_SIZE = 0x2F, 0x11
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class Usage(Record, frozen=True, kw_only=True):
    """What one compiled kernel uses per thread, and shared memory per block; None is unknown."""

    registers: int | None = None
    local_bytes: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    shared_bytes: int | None = None
    scalar_registers: int | None = None


def read_cubin(cubin: bytes, log: str) -> Usage:
    """Usage of the only kernel of a cubin; spills from the `ptxas -v` log that came with it."""
    attributes = _nv_info(cubin)
    spills = _SPILLS.findall(log)
    # One line a function: device functions that were not inlined have their own.
    stores = sum(int(store) for _, store, _ in spills) if spills else None
    loads = sum(int(load) for _, _, load in spills) if spills else None
    return Usage(
        registers=attributes.get(_REGISTER_COUNT),
        local_bytes=attributes.get(_FRAME_SIZE),
        spill_store_bytes=stores,
        spill_load_bytes=loads,
    )


def _nv_info(cubin: bytes) -> dict[int, int]:
    """Attribute to value of the kernel-wide `.nv.info`; the largest value of all functions."""
    start = struct.unpack_from("<Q", cubin, _ELF_SECTION_OFFSET)[0]
    entry, count, names = struct.unpack_from("<HHH", cubin, _ELF_SECTION_COUNTS)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * entry) for i in range(count)]
    text = sections[names][4]
    found: dict[int, int] = {}
    for section in sections:
        begin = text + section[0]
        if cubin[begin : cubin.index(b"\0", begin)] == b".nv.info":
            for attribute, value in _sized_values(cubin, section[4], section[5]):
                found[attribute] = max(value, found.get(attribute, 0))
    return found


def _sized_values(cubin: bytes, offset: int, size: int) -> list[tuple[int, int]]:
    """The (attribute, value) pairs of records that hold a symbol and one 32-bit value."""
    pairs: list[tuple[int, int]] = []
    end = offset + size
    while offset + 4 <= end:
        kind, attribute, length = struct.unpack_from("<BBH", cubin, offset)
        offset += 4
        if kind == _SIZED_VALUE:
            if length == 8:
                pairs.append((attribute, struct.unpack_from("<II", cubin, offset)[1]))
            offset += length
    return pairs


def read_amdgcn(assembly: str) -> Usage:
    """Usage of the only kernel of an AMD assembly; a spilled vector register is 4 bytes a lane."""
    spilled = _metadata(assembly, "vgpr_spill_count")
    return Usage(
        registers=_metadata(assembly, "vgpr_count"),
        scalar_registers=_metadata(assembly, "sgpr_count"),
        local_bytes=_metadata(assembly, "private_segment_fixed_size"),
        spill_store_bytes=None if spilled is None else 4 * spilled,
        shared_bytes=_metadata(assembly, "group_segment_fixed_size"),
    )


def _metadata(assembly: str, name: str) -> int | None:
    found = re.search(rf"^\s*(?:- )?\.{name}:\s*(\d+)", assembly, re.MULTILINE)
    return int(found[1]) if found else None
