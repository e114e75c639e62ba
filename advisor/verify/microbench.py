"""What `calibrate` runs on the GPU: a minute of small kernels, each of which loads one unit.

Copies rotate through so many buffers that what they read was written just before (warm) or long
ago (cold), and what they write is in no cache: as in a step of a model. Times are those of the
profiler, a kernel each; the host's by its clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

from advisor.hardware.gpu import Arithmetic, Gpu
from advisor.verify import microbench_kernels
from advisor.verify.timing import KernelRecorder

# Copies by their bytes over L2; the last is far beyond it.
SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.2, 1.8, 8.0)
UNKNOWN_L2_BYTES = 64 << 20
ROTATION = 4  # times L2 that passes before a buffer is used again
MOST_BUFFERS = 96
SPECIAL_ELEMENTS = 1 << 22
# Blocks copied by each program of the narrow copy, and the threads of such a program.
NARROW_BLOCKS, PROGRAM_THREADS = 64, 1_024
ROWS, COLUMNS = 8_192, 4_096
LONG_ROWS, LONG_COLUMNS = 4_096, 32_768
CHUNK_BLOCKS, CHUNK_ELEMENTS = 20, 65_536
MATRIX: dict[Arithmetic, int] = {
    "float32": 4_096, "tfloat32": 8_192, "float16": 8_192, "bfloat16": 8_192, "float8": 8_192,
}  # fmt: skip
LAUNCHES, GRAPH_KERNELS = 400, 200
# Products that keep the card busy for a moment, fewer than a stream takes without blocking.
OCCUPYING, OCCUPYING_LAUNCHES = 4_096, 900
ROUNDS, QUICK_ROUNDS = 7, 3


@dataclass(frozen=True)
class Probe:
    """A call that launches so many like kernels."""

    call: Callable[[], object]
    kernels: int = 1


@dataclass(frozen=True)
class Readings:
    """Median ns of one kernel of every probe, by name; what the host spends on one launch."""

    kernel_ns: Mapping[str, float]
    launch_ns: int
    graph_launch_ns: int | None


def read(
    gpu: Gpu, device: torch.device, record: KernelRecorder, *, quick: bool = False
) -> Readings:
    """Run all probes; needs a CUDA device. `quick` takes fewer rounds and fewer sizes."""
    found = probes(gpu, device, quick=quick)
    for probe in found.values():
        probe.call()
    torch.cuda.synchronize()
    times = record(
        {name: probe.call for name, probe in found.items()}, QUICK_ROUNDS if quick else ROUNDS
    )
    return Readings(
        kernel_ns={name: median(times[name]) / probe.kernels for name, probe in found.items()},
        launch_ns=launch_ns(device),
        graph_launch_ns=graph_launch_ns(device),
    )


def probes(gpu: Gpu, device: torch.device, *, quick: bool) -> dict[str, Probe]:
    """All probes by name; tensors are made here, so that a probe only launches."""
    l2 = gpu.l2_bytes or UNKNOWN_L2_BYTES
    shares = SHARES[::2] if quick else SHARES
    found = {"floor": _small(device)}
    for share in shares:
        size = round(share * l2)
        found[f"warm {size}"] = warm_copies(size, l2, device)
        found[f"cold {size}"] = cold_copies(size, l2, device)
    found |= _units(gpu, device)
    found |= _loops(device)
    for arithmetic, size in MATRIX.items():
        edge = size // 2 if quick else size
        product = _product(gpu, arithmetic, edge, device)
        if product is not None:
            found[f"matrix {arithmetic} {edge}"] = product
    return found


def _small(device: torch.device) -> Probe:
    x = torch.ones(1_024, device=device)
    y = torch.empty_like(x)
    return Probe(lambda: torch.neg(x, out=y))


def _buffers(size: int, l2: int, device: torch.device) -> list[torch.Tensor]:
    """Buffers of half the bytes that a copy moves, enough for the rotation."""
    elements = max(size // 4, 8) // 8 * 8
    count = min(max(math.ceil(ROTATION * l2 / (2 * elements)), 4), MOST_BUFFERS)
    return [torch.ones(elements, device=device, dtype=torch.bfloat16) for _ in range(count)]


def warm_copies(size: int, l2: int, device: torch.device) -> Probe:
    """A chain of copies: each reads what the one before it wrote."""
    buffers = _buffers(size, l2, device)
    pairs = list(zip(buffers, [*buffers[1:], buffers[0]], strict=True))

    def call() -> None:
        for source, target in pairs:
            torch.neg(source, out=target)

    return Probe(call, len(pairs))


def cold_copies(size: int, l2: int, device: torch.device) -> Probe:
    """Copies between buffers that were used last when all the others were."""
    buffers = _buffers(size, 2 * l2, device)
    half = len(buffers) // 2
    pairs = list(zip(buffers[:half], buffers[half:], strict=False))

    def call() -> None:
        for source, target in pairs:
            torch.neg(source, out=target)

    return Probe(call, len(pairs))


def _units(gpu: Gpu, device: torch.device) -> dict[str, Probe]:
    """Special functions; a copy by a quarter of the multiprocessors."""
    x = torch.rand(SPECIAL_ELEMENTS, device=device)
    y = torch.empty_like(x)
    programs = max(gpu.sm_count // 4, 1)
    wide = torch.rand(programs * microbench_kernels.COPY_BLOCK * NARROW_BLOCKS, device=device)
    target = torch.empty_like(wide)
    warps = PROGRAM_THREADS // gpu.limits.warp_size
    return {
        "special": Probe(lambda: microbench_kernels.special(x, y)),
        "narrow": Probe(lambda: microbench_kernels.narrow_copy(wide, target, programs, warps)),
    }


def _loops(device: torch.device) -> dict[str, Probe]:
    """PyTorch's own loops over large tensors, by pattern: the model's counts are of these."""
    half = torch.randn(ROWS, COLUMNS, device=device, dtype=torch.bfloat16)
    full = torch.randn(ROWS, COLUMNS, device=device)
    other = torch.randn(ROWS, COLUMNS, device=device)
    out_half, out_full = torch.empty_like(half), torch.empty_like(full)
    weight = torch.randn(COLUMNS, device=device, dtype=torch.bfloat16)
    short = half.view(-1, 512)
    long = torch.randn(LONG_ROWS, LONG_COLUMNS, device=device)
    chunks = [torch.randn(CHUNK_BLOCKS * CHUNK_ELEMENTS, device=device)]
    return {
        "vector": Probe(lambda: torch.add(full, other, out=out_full)),
        "cast": Probe(lambda: out_full.copy_(half)),
        "index": Probe(lambda: torch.mul(half, weight, out=out_half)),
        "softmax": Probe(lambda: torch.softmax(short, -1)),
        "norm": Probe(lambda: torch.nn.functional.layer_norm(half, (COLUMNS,))),
        "row_reduction": Probe(lambda: full.sum(-1)),
        "column_reduction": Probe(lambda: half.sum(0)),
        "reread": Probe(lambda: torch.log_softmax(long, -1)),
        "chunks": Probe(lambda: torch._foreach_add_(chunks, 1.0)),
    }


def _product(gpu: Gpu, arithmetic: Arithmetic, size: int, device: torch.device) -> Probe | None:
    """A matrix product in the arithmetic, or None where this GPU or PyTorch has none."""
    if gpu.peak_flops(arithmetic) is None:
        return None
    if arithmetic == "float8":
        return _product_float8(size, device)
    dtypes: dict[Arithmetic, torch.dtype] = {
        "float16": torch.float16, "bfloat16": torch.bfloat16,
    }  # fmt: skip
    left = torch.randn(size, size, device=device, dtype=dtypes.get(arithmetic, torch.float32))
    out = torch.empty_like(left)

    def call() -> None:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = arithmetic == "tfloat32"
        torch.mm(left, left, out=out)
        torch.backends.cuda.matmul.allow_tf32 = before

    return Probe(call)


def _product_float8(size: int, device: torch.device) -> Probe | None:
    if torch.version.hip or not hasattr(torch, "_scaled_mm"):
        return None
    left = torch.randn(size, size, device=device).to(torch.float8_e4m3fn)
    right = left.t()  # the second operand is wanted by columns
    one = torch.ones((), device=device)
    return Probe(
        lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    )


def launch_ns(device: torch.device, launches: int = LAUNCHES) -> int:
    """Host time of one eager operator with one kernel, the queue never full."""
    x = torch.ones(8, device=device)
    y = torch.empty_like(x)
    best = math.inf
    for _ in range(5):
        _wait(device)
        started = time.perf_counter_ns()
        for _ in range(launches):
            torch.neg(x, out=y)
        best = min(best, time.perf_counter_ns() - started)
        _wait(device)
    return round(best / launches)


def graph_launch_ns(device: torch.device, kernels: int = GRAPH_KERNELS) -> int | None:
    """Time of one more small kernel in a CUDA graph; None where there are no graphs."""
    if device.type != "cuda":
        return None
    x = torch.ones(8, device=device)
    y = torch.empty_like(x)
    spans = []
    for count in (kernels, 2 * kernels):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                torch.neg(x, out=y)
        spans.append(_replay_ns(graph))
    return max(round((spans[1] - spans[0]) / kernels), 0)


def _replay_ns(graph: torch.cuda.CUDAGraph) -> float:
    """Median time of a replay, from launch to the end."""
    found = []
    for _ in range(20):
        torch.cuda.synchronize()
        started = time.perf_counter_ns()
        graph.replay()
        torch.cuda.synchronize()
        found.append(time.perf_counter_ns() - started)
    return median(found)


def occupy(device: torch.device) -> None:
    """Queue work for a moment and return at once, so that the clocks can be read under load."""
    left = torch.randn(OCCUPYING, OCCUPYING, device=device, dtype=torch.float16)
    out = torch.empty_like(left)
    for _ in range(OCCUPYING_LAUNCHES):
        torch.mm(left, left, out=out)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
