"""Launch configurations of scans, the likeliest first.

A modelled time in ns orders them: traffic at the bandwidth that the running multiprocessors draw,
beside the chain of dependent steps. A step costs its arithmetic one after the other, and a trip to
memory where too few loads are ahead of it, by the pipeline of the loop or read in turns of several
steps; a block of steps costs a trip and the levels of its tree. The figures are those of `ranking`;
what spills is dropped by compiling, the rest is timed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from msgspec.structs import replace

from advisor.model.launch import (
    MAX_BLOCK_STEPS,
    LaunchConfig,
    Scheme,
    next_power_of_two,
    steps_per_split,
)
from advisor.model.optable import item_bytes
from advisor.model.plan import FusionPlan, Site
from advisor.model.ranking import BASE_REGISTERS, L2_SHARE, LIVE_TILES, resident_programs
from advisor.model.scan import lanes_of, linear_path, loads_ahead, steps_of
from advisor.model.sectors import sector_bytes
from advisor.model.site_work import site_bytes

# Of a scheme, and of those that take as many steps at once and have as many elements a thread.
KEPT: dict[Scheme, int] = {"scan_steps": 14, "scan_blocks": 9, "scan_chunks": 4}
KEPT_ALIKE = 3
WARPS, STAGES, TURNS = (1, 2, 4, 8), (1, 3, 5), (8, 32)
# Registers that hold what the steps of a turn read, and ops of a turn in its text, at most.
MOST_READ, MOST_TURN_OPS = 64, 1024
# Elements of one step's tile, and of a block of steps, that a thread holds.
MOST_PER_THREAD, MOST_IN_BLOCK = 8, 16
# Latency of a trip to DRAM, of one dependent op (in clocks of 0.6 ns), and of a level of a scan
# over the threads of a program, through shared memory; a second launch.
TRIP_NS, OP_NS, LEVEL_NS, LAUNCH_NS = 700.0, 4.0, 30.0, 2500.0
BYTES_PER_NS = 4000.0
# Operations of one multiprocessor in a ns; of a level of a tree for each element, of which most are
# for its way between threads: between two recurrences on an H200, [8, 64, 4096] in blocks of 64
# steps (9.9 µs with cold caches, 8.4 warm) and [64, 32, 2048] in blocks of 16 (10.4, 8.4).
OPS_PER_NS, LEVEL_OPS = 225.0, 16
REGISTER_BYTES = 4
# Fewer steps than this are not worth sharing.
SHORTEST_SHARE = 32


@dataclass(frozen=True)
class _Task:
    """A plan at one site on a GPU."""

    plan: FusionPlan
    site: Site
    lanes: int
    steps: int
    columns: int
    bytes_moved: int
    step_ops: int
    step_bytes: int
    sm_count: int

    def touched(self, config: LaunchConfig) -> int:
        """Bytes of all sectors that programs touch, each on its own."""
        return sector_bytes(self.plan, self.site, config)

    def step_registers(self, per_thread: float) -> float:
        """Registers of a thread that hold what one step reads, of so many elements of its tile."""
        return max(per_thread, 1) * self.step_bytes / REGISTER_BYTES


def scan_schemes(plan: FusionPlan) -> tuple[Scheme, ...]:
    """The schemes that can compute a scan."""
    joined: tuple[Scheme, ...] = ("scan_blocks", "scan_chunks")
    return ("scan_steps", *(joined if linear_path(plan) is not None else ()))


def scan_configs(plan: FusionPlan, site: Site, sm_count: int) -> tuple[LaunchConfig, ...]:
    """Configurations of all schemes that suit a site, the likeliest first; at least one."""
    task = _task(plan, site, sm_count)
    found: list[tuple[float, int, LaunchConfig]] = []
    for scheme in scan_schemes(plan):
        ranked = sorted((_time_ns(task, c), n, c) for n, c in enumerate(_every(task, scheme)))
        found += _best(ranked, KEPT[scheme])
    if not found:
        warps = min(max(next_power_of_two(task.columns) // 256, 1), 32)
        return (LaunchConfig(scheme="scan_steps", block_rows=1, num_warps=warps),)
    return tuple(config for _, _, config in sorted(found, key=lambda item: item[:2]))


def _best(
    ranked: Sequence[tuple[float, int, LaunchConfig]], most: int
) -> list[tuple[float, int, LaunchConfig]]:
    """The likeliest, of every kind a few: their order is not that sure."""
    alike: Counter[tuple[int | None, int, int]] = Counter()
    found = []
    for item in ranked:
        config = item[2]
        kind = config.block_steps, config.unroll, config.block_rows // config.num_warps
        alike[kind] += 1
        if alike[kind] <= KEPT_ALIKE:
            found.append(item)
    return found[:most]


def chain_ns(plan: FusionPlan, site: Site, config: LaunchConfig) -> float:
    """How long the steps of a lane, which wait for each other, take one program."""
    width = next_power_of_two(max(site.columns, 1))
    tile = config.block_rows * width * (config.block_steps or 1)
    return _chain_ns(_task(plan, site, 1), config, tile / (32 * config.num_warps))


def joining_ops(site: Site, config: LaunchConfig) -> int:
    """Operations that join the steps of blocks, beside those of the steps themselves."""
    if config.block_steps is None:
        return 0
    levels = config.block_steps.bit_length() - 1
    return site.rows * site.columns * levels * LEVEL_OPS


def _task(plan: FusionPlan, site: Site, sm_count: int) -> _Task:
    return _Task(
        plan=plan,
        site=site,
        lanes=max(lanes_of(site), 1),
        steps=max(steps_of(site), 1),
        columns=max(site.columns, 1),
        bytes_moved=site_bytes(plan, site),
        step_ops=len(plan.ops),
        step_bytes=sum(item_bytes(item.dtype) for item in plan.inputs if item.spans[-2]),
        sm_count=sm_count,
    )


def _every(task: _Task, scheme: Scheme) -> Iterator[LaunchConfig]:
    width = next_power_of_two(task.columns)
    for power, warps in product(range(11), WARPS):
        lanes, threads = 1 << power, 32 * warps
        if lanes > next_power_of_two(task.lanes):
            continue
        if scheme == "scan_blocks":
            yield from _blocks(task, lanes, width, warps)
        elif threads <= lanes * width <= MOST_PER_THREAD * threads or _is_least(
            lanes, width, warps
        ):
            plain = LaunchConfig(scheme="scan_steps", block_rows=lanes, num_warps=warps)
            ahead = [replace(plain, num_stages=stages) for stages in STAGES]
            ahead += [replace(plain, unroll=turn) for turn in _turns(task, lanes * width / threads)]
            for config in ahead:
                yield from [config] if scheme == "scan_steps" else _chunks(task, config)


def _turns(task: _Task, per_thread: float) -> list[int]:
    """How many steps can be read together."""
    held = task.step_registers(per_thread)
    return [
        turn
        for turn in TURNS
        if turn <= next_power_of_two(task.steps)
        and turn * held <= MOST_READ
        and turn * task.step_ops <= MOST_TURN_OPS
    ]


def _is_least(lanes: int, width: int, warps: int) -> bool:
    """A tile smaller than a warp: the only way for few columns and few lanes."""
    return warps == 1 and lanes * width < 32


def _blocks(task: _Task, lanes: int, width: int, warps: int) -> Iterator[LaunchConfig]:
    for steps in (16, 32, 64, 128, 256, 512, 1024, 2048, MAX_BLOCK_STEPS):
        tile = lanes * width * steps
        small = steps >= 2 * next_power_of_two(task.steps) and steps > 16
        if not small and 64 * warps <= tile <= MOST_IN_BLOCK * 32 * warps:
            yield LaunchConfig(
                scheme="scan_blocks", block_rows=lanes, block_steps=steps, num_warps=warps
            )


def _chunks(task: _Task, plain: LaunchConfig) -> Iterator[LaunchConfig]:
    """Shares of the steps, where the lanes alone leave multiprocessors idle."""
    programs = -(-task.lanes // plain.block_rows)
    for power in range(1, 11):
        splits = 1 << power
        enough = task.steps >= SHORTEST_SHARE * splits and programs * splits <= 16 * task.sm_count
        if enough and programs < 2 * task.sm_count:
            yield replace(plain, scheme="scan_chunks", splits=splits)


def _time_ns(task: _Task, config: LaunchConfig) -> float:
    """The modelled time: traffic and the chain of steps overlap in part."""
    programs = -(-task.lanes // config.block_rows) * (config.splits or 1)
    tile = config.block_rows * next_power_of_two(task.columns) * (config.block_steps or 1)
    per_thread = tile / (32 * config.num_warps)
    registers = BASE_REGISTERS + LIVE_TILES * per_thread
    if config.unroll > 1:
        registers += config.unroll * task.step_registers(per_thread)
    resident = resident_programs(config.num_warps, registers)
    waves = max(math.ceil(programs / (resident * task.sm_count)), 1)
    active = min(programs / task.sm_count, 1.0)
    warps = min(programs, resident * task.sm_count) * config.num_warps / task.sm_count
    # A few warps of one multiprocessor cannot ask for all of its share of the bandwidth, unless
    # they ask for many steps at once.
    least, touched = task.bytes_moved, task.touched(config)
    moved = least + L2_SHARE * max(touched - least, 0)
    memory = moved / (BYTES_PER_NS * min(active, 1.0) * min(warps * config.unroll / 8, 1.0))
    if config.splits is not None:
        memory *= 2
    work = task.lanes * task.steps * task.columns * task.step_ops + joining_ops(task.site, config)
    busy = max(memory, work / (OPS_PER_NS * task.sm_count * active))
    return math.hypot(busy, _chain_ns(task, config, per_thread) * waves)


def _chain_ns(task: _Task, config: LaunchConfig, per_thread: float) -> float:
    """What the steps of one lane take that wait for each other."""
    reductions = math.log2(max(min(task.columns, 32), 1)) * OP_NS
    if config.scheme == "scan_blocks":
        blocks = math.ceil(task.steps / (config.block_steps or 1))
        levels = math.log2(max(config.block_steps or 1, 2))
        chain = blocks * (TRIP_NS + levels * LEVEL_NS + per_thread * task.step_ops * OP_NS / 4)
    else:
        own = steps_per_split(config, task.steps)
        work = task.step_ops * OP_NS * (1 + per_thread / 4) + reductions
        ahead = config.num_stages if loads_ahead(task.plan, task.site, per_thread) else 1
        step = max(work, TRIP_NS / max(ahead, config.unroll))
        chain = own * step
        if config.splits is not None:
            chain = 2 * chain + LAUNCH_NS + config.splits * TRIP_NS / 8
    return chain
