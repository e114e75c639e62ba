"""Which rows of `kernels.py` are bound by arithmetic: by count of instructions, before measuring.

    python benchmarks/kernel_counts.py [--gpu h200] [--only softmax,rope]
    python benchmarks/kernel_counts.py --table > benchmarks/kernel_counts.md

Needs no GPU: every row's pattern is captured, its likeliest configuration compiled, and the
instructions of the machine code counted, loops as often as they run. At one instruction a cycle of
each of a multiprocessor's four schedulers (less what the calibration says that none reaches), at
the highest clock, they take the least time that the row can take. Where that is more than a copy of
the same bytes has at 0.90 of its speed, no kernel of these instructions reaches it. The numbers are
kept in kernel_counts.json.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import kernel_groups
import kernel_tasks
import kernels
import torch
import triton
from kernel_bounds import FAST, RESULTS, Count, Counts, counts
from kernel_rows import Row
from kernel_table import LARGE_BYTES
from msgspec.structs import replace

from advisor.codegen.families import site_launches
from advisor.errors import AdvisorError
from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpus import Gpu, gpu_by_key
from advisor.model.base import encode
from advisor.model.configs import candidate_configs
from advisor.model.launch import SCANS, LaunchConfig, row_splits_of, steps_per_split
from advisor.model.plan import FusionPlan, Site
from advisor.model.site_work import site_bytes
from advisor.pipeline.sizing import requests
from advisor.store.files import write_atomic
from advisor.verify._resource_worker import compiled_kernel
from advisor.verify.resources import ResourceRequest, job_of

DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
CPU = torch.device("cpu")
# Warps whose next instruction a multiprocessor issues in a cycle, from compute capability 7.0 on.
SCHEDULERS, WARP = 4, 32
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)(.*)")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Code:
    """Instructions of a kernel that a warp executes once, and in each turn of its loops."""

    once: int
    turns: tuple[int, ...]
    special_once: int
    special_turns: tuple[int, ...]


def main(arguments: Sequence[str]) -> int:
    """Count every row and write the numbers, or print the table of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="h200", help="key of an NVIDIA GPU")
    parser.add_argument("--only", default="", help="count these patterns anew, comma separated")
    parser.add_argument("--table", action="store_true", help="print the table of what was counted")
    options = parser.parse_args(arguments)
    if options.table:
        sys.stdout.write(table(counts()))
        return 0
    gpu, wanted = gpu_by_key(options.gpu), set(filter(None, options.only.split(",")))
    rows = []
    kernels.CUDA = CPU
    for name, shape, make in kernels.tasks():
        if wanted and name not in wanted:
            continue
        key = Row(name=name, shape=shape, gpu="").key
        try:
            plan = _plan(make)
            if plan is not None:
                rows.append(count(key, plan, gpu))
                sys.stderr.write(f"{key}: {rows[-1].least_ns / rows[-1].copy_ns:.2f}\n")
        except AdvisorError as error:
            sys.stderr.write(f"{key}: {error.line()}\n")
    kept = {}
    if wanted:  # the others are as they were
        kept = {row.key: row for row in counts().rows}
    merged = kept | {row.key: row for row in rows}
    found = Counts(gpu=gpu.key, triton=triton.__version__, rows=tuple(merged.values()))
    write_atomic(RESULTS, encode(found) + b"\n")
    return 0


def _plan(make: partial[Any]) -> FusionPlan | None:
    """The plan of a row; None for what is no single plan (steps of an optimizer)."""
    torch._dynamo.reset()
    if make.func is kernel_tasks.stored:
        return make.args[0]  # type: ignore[no-any-return]
    if make.func is kernel_groups.adamw:
        return None
    return make().plan  # type: ignore[no-any-return]


def count(key: str, plan: FusionPlan, gpu: Gpu) -> Count:
    """The least time of a plan's likeliest configuration, by what its warps execute."""
    site = replace(plan.sites[0], executions=1)
    likeliest = candidate_configs(plan, site, sm_count=gpu.sm_count, l2_bytes=gpu.l2_bytes)[0]
    config = likeliest
    if config.scheme not in SCANS:  # one block a turn, to be multiplied by their number
        config = replace(config, unroll=1)
    # The larger of two kernels: what combines shares is small.
    request, trips = requests(plan, config)[0], float(_trips(config, site))
    if request.constexprs.get("REST_APART"):
        # What is left of a row has a loop of its own: it counts as its part of a whole block.
        whole = {**request.constexprs, "REST_APART": False, "EVEN_COLUMNS": True}
        request, trips = replace(request, constexprs=whole), _blocks(config, site)
    code = _code(_compiled(request, gpu))
    warps = math.prod(site_launches(plan, config, site)[0].grid) * config.num_warps
    executed = warps * (code.once + sum(turn * trips for turn in code.turns))
    special = warps * (code.special_once + sum(turn * trips for turn in code.special_turns))
    calibration = load_calibration(gpu)
    cycles = max(
        executed / (SCHEDULERS * calibration.issue_share),
        special * WARP / ((gpu.special_per_sm_cycle or 16) * calibration.special_share),
    )
    moved, elements = site_bytes(plan, site), max(site.columns * math.prod(site.row_sizes), 1)
    return Count(
        key=key,
        config=config.label(),
        bytes=moved,
        instructions=executed * WARP / elements,
        special=special * WARP / elements,
        least_ns=round(cycles / gpu.sm_count / gpu.clock_hz * 1e9),
        copy_ns=round(moved / (gpu.copy_bandwidth_bytes_per_s or 1) * 1e9),
    )


def _trips(config: LaunchConfig, site: Site) -> int:
    """How often a program's loops run: over blocks of columns, or over blocks of rows."""
    if config.scheme in ("column_sums", "column_walk"):
        blocks = -(-site.rows // config.block_rows)
        return -(-blocks // row_splits_of(config, site.rows))
    if config.scheme in SCANS:
        at_once = config.block_steps or config.unroll
        return -(-steps_per_split(config, site.row_sizes[-1]) // at_once)
    return math.ceil(_blocks(config, site))


def _blocks(config: LaunchConfig, site: Site) -> float:
    """Blocks of columns that a program reads."""
    return site.columns / (config.block_columns or site.columns) / (config.splits or 1)


def _compiled(request: ResourceRequest, gpu: Gpu) -> bytes:
    """The machine code of a kernel."""
    return compiled_kernel(job_of(request, gpu.target)).asm["cubin"]  # type: ignore[no-any-return]


def _code(cubin: bytes) -> Code:
    """The instructions of machine code; a loop ends where a branch leads back."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [DISASSEMBLER, "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    labels: dict[str, int] = {}
    names: list[str] = []
    loops: list[tuple[int, int]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(names)
        if found := _INSTRUCTION.search(line):
            target = _TARGET.search(found[2])
            if found[1].startswith("BRA") and target and target[1] in labels:
                loops.append((labels[target[1]], len(names) + 1))
            names.append(found[1])
    # What pads the end branches to itself.
    loops = [(first, last) for first, last in loops if last - first > 1]
    outer = [a for a in loops if not any(b[0] <= a[0] and a[1] <= b[1] and a != b for b in loops)]
    counted = [name for name in names if name != "NOP"]
    turns = tuple(sum(name != "NOP" for name in names[a:b]) for a, b in outer)
    special = tuple(sum(name.startswith("MUFU") for name in names[a:b]) for a, b in outer)
    every = sum(name.startswith("MUFU") for name in counted)
    return Code(len(counted) - sum(turns), turns, every - sum(special), special)


def table(found: Counts) -> str:
    """Markdown: the rows that arithmetic bounds first."""
    bound = [row for row in found.rows if row.bound and row.bytes >= LARGE_BYTES]
    lines = [
        "# What bounds the rows of the kernel benchmark, by count",
        "",
        "Written by `python benchmarks/kernel_counts.py --table`, before measuring, for "
        f"{found.gpu} by",
        f"Triton {found.triton}: instructions (of them special functions) an element in the",
        "machine code of the likeliest configuration, the least time that they take, and that of a",
        "copy of the same bytes. Arithmetic bounds the row where a copy has below "
        f"{FAST:.2f} of that time.",
        "",
        f"{len(bound)} of {sum(row.bytes >= LARGE_BYTES for row in found.rows)} rows of "
        "64 MB and more are bound by arithmetic.",
        "",
        "| row | MB | instructions | special | least µs | copy µs | bound by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(found.rows, key=lambda row: row.copy_ns / max(row.least_ns, 1)):
        lines.append(
            f"| {row.key} | {row.bytes / 1e6:.0f} | {row.instructions:.1f} | {row.special:.1f} "
            f"| {row.least_ns / 1e3:.1f} | {row.copy_ns / 1e3:.1f} "
            f"| {'arithmetic' if row.bound else 'memory'} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
