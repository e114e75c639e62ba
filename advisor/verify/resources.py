"""Registers, spills, shared memory and occupancy of a kernel on any GPU, without a GPU.

Each (kernel, configuration, compile target) is compiled once in a child process with a time limit;
results are cached on disk by everything that they depend on. A failure is a row with `error`.
"""

from __future__ import annotations

import hashlib
import math
import os
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from advisor.errors import AdvisorError, UnreadableError, UsageError
from advisor.folders import cache_folder
from advisor.hardware.gpu import Gpu, Target
from advisor.hardware.occupancy import occupancy
from advisor.model.applied import KernelResources
from advisor.model.base import Record, decode
from advisor.store.files import read_bounded, write_atomic
from advisor.verify._compile_process import CompileProcess
from advisor.verify._resource_worker import CompileJob, Constant
from advisor.verify.binaries import Usage
from advisor.verify.toolchain import assembler, cannot_compile

# Bumped when the meaning of a cached `Usage` changes.
_CACHE_VERSION = 1
_MAX_USAGE_BYTES = 1 << 16
_MAX_SOURCE_BYTES = 16 << 20
_MAX_PROCESSES = 4
CANNOT_COMPILE = "cannot be compiled here"


class ResourceRequest(Record, frozen=True, kw_only=True):
    """A kernel of a source file in one configuration.

    `signature` types the run-time arguments in Triton's words (`*fp16`, `i32`, `fp32`),
    `constexprs` fixes the others, `aligned` names arguments that are divisible by 16, as a launch
    specialises; `max_registers` bounds a thread's registers (NVIDIA). `config` labels the rows.
    """

    source: str
    kernel: str
    signature: dict[str, str]
    constexprs: dict[str, Constant]
    aligned: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    max_registers: int | None = None
    config: str = ""

    @property
    def label(self) -> str:
        """`config`, or the configuration in words: `BLOCK=4096 num_warps=8 num_stages=1`."""
        if self.config:
            return self.config
        words = [f"{name}={value}" for name, value in self.constexprs.items()]
        words += [f"num_warps={self.num_warps}", f"num_stages={self.num_stages}"]
        if self.max_registers is not None:
            words.append(f"max_registers={self.max_registers}")
        return " ".join(words)


def resources_of(
    requests: Sequence[ResourceRequest],
    gpus: Sequence[Gpu],
    *,
    timeout_s: float = 60.0,
    cache: Path | None = None,
    processes: int | None = None,
    launched: Path | None = None,
) -> tuple[tuple[KernelResources, ...], ...]:
    """For every request, one row per GPU in the order of `gpus`.

    `timeout_s` holds for each compilation. `cache` is the folder of stored results, by default the
    user's. Kernels that will be launched here are left in Triton's cache `launched`, where a launch
    that is specialised as its request says need not compile them again. Raises
    `MissingDependencyError` without Triton, `UnreadableError` if a source is missing, `UsageError`
    for a constant that is not finite, `StorageError` where compilers have no place to write.
    """
    folder = (cache_folder() / "resources") if cache is None else cache
    targets = {gpu.arch: gpu.target for gpu in gpus}
    jobs = {
        (index, arch): job_of(request, target)
        for index, request in enumerate(requests)
        for arch, target in targets.items()
    }
    tools = {arch: assembler(target) for arch, target in targets.items()}
    lacking = {arch: cannot_compile(target) for arch, target in targets.items()}
    sources = [_source_hash(request.source) for request in requests]
    keys = {where: _key(job, sources[where[0]], tools[where[1]]) for where, job in jobs.items()}
    usages: dict[str, Usage | str] = {}
    for (_, arch), key in keys.items():
        if lacking[arch] is not None:
            usages[key] = f"{CANNOT_COMPILE}: {lacking[arch]}"
        elif (stored := _load(folder, key)) is not None:
            usages[key] = stored
    missing = {key: jobs[where] for where, key in keys.items() if key not in usages}
    fresh = _compile_all(missing, timeout_s, processes, launched)
    for key, usage in fresh.items():
        if isinstance(usage, Usage):
            _save(folder, key, usage)
    usages |= fresh
    return tuple(
        tuple(_row(request, gpu, usages[keys[index, gpu.arch]], tools[gpu.arch]) for gpu in gpus)
        for index, request in enumerate(requests)
    )


def job_of(request: ResourceRequest, target: Target) -> CompileJob:
    """What compiles a request for a target; raises `UsageError` for a constant beyond numbers."""
    for name, value in request.constexprs.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"constant {name} of {request.kernel} is {value}")
    return CompileJob(
        source=str(Path(request.source).resolve()),
        kernel=request.kernel,
        signature=request.signature,
        constexprs=request.constexprs,
        aligned=request.aligned,
        num_warps=request.num_warps,
        num_stages=request.num_stages,
        max_registers=request.max_registers,
        backend=target.backend,
        arch=target.arch,
        warp_size=target.warp_size,
    )


def _source_hash(source: str) -> str:
    return hashlib.sha256(read_bounded(Path(source).resolve(), _MAX_SOURCE_BYTES)).hexdigest()


def _key(job: CompileJob, source_hash: str, tool: str) -> str:
    """Everything that the result depends on; where the file lies does not matter."""
    content = msgspec.structs.replace(job, source=source_hash)
    data = msgspec.json.encode([_CACHE_VERSION, tool, content], order="sorted")
    return hashlib.sha256(data).hexdigest()


def _load(folder: Path, key: str) -> Usage | None:
    try:
        return decode(read_bounded(folder / f"{key}.json", _MAX_USAGE_BYTES), Usage)
    except AdvisorError:
        return None  # absent, or damaged: compiling again is the remedy


def _save(folder: Path, key: str, usage: Usage) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / f"{key}.json", msgspec.json.encode(usage))
    except (OSError, UnreadableError):
        return  # a cache that cannot be written only costs time


def _compile_all(
    jobs: Mapping[str, CompileJob],
    timeout_s: float,
    processes: int | None,
    launched: Path | None,
) -> dict[str, Usage | str]:
    """Results by key; every child takes the next job when it has finished one."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for key in jobs:
        waiting.put(key)
    results: dict[str, Usage | str] = {}

    def work(process: CompileProcess) -> None:
        with process:
            while (key := _next(waiting)) is not None:
                results[key] = process.compile(jobs[key], timeout_s)

    wanted = min(len(jobs), processes or min(os.cpu_count() or 1, _MAX_PROCESSES))
    children = [CompileProcess(launched) for _ in range(wanted)]
    with ThreadPoolExecutor(max(wanted, 1)) as pool:
        try:
            for future in [pool.submit(work, child) for child in children]:
                future.result()
        finally:
            # An interrupt ends here: without this the pool would wait for every job left.
            while _next(waiting) is not None:
                continue
            for child in children:
                child.kill()
    return results


def _next(waiting: queue.SimpleQueue[str]) -> str | None:
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


def _row(request: ResourceRequest, gpu: Gpu, usage: Usage | str, tool: str) -> KernelResources:
    threads = request.num_warps * gpu.target.warp_size
    if isinstance(usage, str):
        return KernelResources(
            gpu=gpu.key, config=request.label, threads=threads, assembler=tool, error=usage
        )
    held = None
    if usage.registers is not None and usage.shared_bytes is not None:
        held = occupancy(
            gpu.arch,
            registers=usage.registers,
            threads=threads,
            shared_bytes=usage.shared_bytes,
            scalar_registers=usage.scalar_registers or 0,
        )
    return KernelResources(
        gpu=gpu.key,
        config=request.label,
        registers=usage.registers,
        spill_store_bytes=usage.spill_store_bytes,
        spill_load_bytes=usage.spill_load_bytes,
        local_bytes_per_thread=usage.local_bytes,
        shared_bytes=usage.shared_bytes,
        threads=threads,
        occupancy=None if held is None else held.fraction,
        limiter=None if held is None else held.limiter,
        assembler=tool,
    )
