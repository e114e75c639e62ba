"""How the programs of one launch are dealt to the members of a horizontal plan.

Every program computes about the same number of elements, whichever member it works for: as many
whole rows as hold them where rows are reduced, a block of rows and columns where they are not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from advisor.model.block_configs import has_reductions
from advisor.model.launch import (
    MAX_ELEMENTS_PER_THREAD,
    MIN_ELEMENTS_PER_THREAD,
    LaunchConfig,
)
from advisor.model.members import Member, parts
from advisor.model.plan import FusionPlan, Site
from advisor.model.ranking import (
    BASE_REGISTERS,
    L2_SHARE,
    LIVE_TILES,
    idle,
    layouts,
    resident_programs,
    unusual_tile,
)
from advisor.model.sectors import sector_bytes
from advisor.model.site_work import site_bytes

ELEMENTS, WARPS, KEPT = (512, 1024, 2048, 4096, 8192), (1, 2, 4, 8, 16), 10


class Block(NamedTuple):
    """What one program computes of a member: so many rows, so many columns at most."""

    rows: int
    columns: int


def block_of(part: FusionPlan, member: Member, elements: int) -> Block:
    """The block of each program of a member, for programs of so many `elements`."""
    columns = member.width if has_reductions(part) else min(member.width, elements)
    return Block(max(elements // columns, 1), columns)


def programs_of(part: FusionPlan, block: Block, site: Site) -> int:
    """How many programs work for a member at a site of its own."""
    beside = 1 if has_reductions(part) else -(-site.columns // block.columns)
    return -(-site.rows // block.rows) * beside


def dealt(plan: FusionPlan, site: Site, elements: int) -> tuple[int, ...]:
    """How many programs work for each member."""
    return tuple(
        programs_of(part, block_of(part, member, elements), own)
        for (part, own), member in zip(parts(plan, site), plan.members, strict=True)
    )


def dealt_sector_bytes(plan: FusionPlan, site: Site, elements: int) -> int:
    """Bytes of all sectors that the programs of all members touch (`sectors.sector_bytes`)."""
    total = 0
    for (part, own), member in zip(parts(plan, site), plan.members, strict=True):
        rows, columns = block_of(part, member, elements)
        config = LaunchConfig(block_rows=rows)
        if not has_reductions(part):
            config = LaunchConfig(scheme="blocks", block_rows=rows, block_columns=columns)
        total += sector_bytes(part, own, config)
    return total


def dealt_configs(plan: FusionPlan, site: Site, sm_count: int) -> tuple[LaunchConfig, ...]:
    """Configurations that suit a site, the likeliest first; at least one.

    Few elements a program make programs enough for every multiprocessor, many keep more on their
    way to memory. The largest block decides what a thread holds.
    """
    found: list[tuple[float, int, LaunchConfig]] = []
    split, programs = tuple(part for part, _ in parts(plan, site)), 0
    for elements in ELEMENTS:
        blocks = [block_of(p, m, elements) for p, m in zip(split, plan.members, strict=True)]
        largest = max(math.prod(block) for block in blocks)
        beside = dealt_sector_bytes(plan, site, elements) / max(site_bytes(plan, site), 1) - 1
        before, programs = programs, sum(dealt(plan, site, elements))
        if before == len(split):
            break  # each member is one program's already: larger ones have rows of nothing
        for warps in WARPS:
            per_thread = largest / (32 * warps)
            if not MIN_ELEMENTS_PER_THREAD <= per_thread <= MAX_ELEMENTS_PER_THREAD / 2:
                continue
            resident = resident_programs(warps, BASE_REGISTERS + LIVE_TILES * per_thread)
            doublings = idle(programs, resident, sm_count) + unusual_tile(per_thread, largest)
            doublings += math.log2(1 + L2_SHARE * beside)
            doublings += max(
                layouts(*block, warps, vectors=part.reads_vectors)
                for part, block in zip(split, blocks, strict=True)
            )
            config = LaunchConfig(scheme="dealt", block_columns=elements, num_warps=warps)
            found.append((doublings, len(found), config))
    found.sort(key=lambda item: item[:2])
    return tuple(config for _, _, config in found[:KEPT])
