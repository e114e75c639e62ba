"""A trace of any number of kernels for the dashboard benchmark: streams, roles, steps of a model.

Kernels, their launches and the operators around them are all that is written, so that a million
kernels stay a file that fits anywhere; names, lengths and order repeat as in a layered model.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

# name, operator, length in ns: one layer, as an eager transformer launches it
LAYER: tuple[tuple[str, str, int], ...] = (
    ("void at::native::elementwise_kernel<128, at::native::MulFunctor>", "aten::mul", 9_100),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "aten::mean", 11_300),
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "aten::mm", 61_000),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90>", "aten::scaled_dot_product", 48_000),
    ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
     "aten::copy_", 7_700),
    ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "aten::mm", 83_000),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel>", "aten::silu",
     8_300),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "c10d::reduce",
     41_000),
)  # fmt: skip
KERNELS_PER_STEP = 10_000
_GAP_NS, _STEP_GAP_NS, _LAUNCH_LEAD_NS = 1_400, 600_000, 20_000
_COMM_STREAM, _STREAM = 20, 7


def write_trace(path: Path, kernels: int) -> None:
    """A gzipped Kineto trace with that many kernels."""
    head = (
        b'{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200",'
        b' "computeMajor": 9, "computeMinor": 0, "numSms": 132}], "traceEvents": [\n'
    )
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        batch: list[str] = []
        for event in _events(kernels):
            batch.append(event)
            if len(batch) == 5_000:
                file.write((",\n".join(batch) + ",\n").encode())
                batch.clear()
        batch.append('{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {}}')
        file.write(",\n".join(batch).encode() + b"\n]}\n")


def _events(kernels: int) -> Iterator[str]:
    now = 1_000_000_000
    for step in range(0, kernels, KERNELS_PER_STEP):
        first = now
        for place in range(step, min(step + KERNELS_PER_STEP, kernels)):
            name, op, length = LAYER[place % len(LAYER)]
            length += (place * 7919) % 2_000
            stream = _COMM_STREAM if name.startswith("nccl") else _STREAM
            launch = now - _LAUNCH_LEAD_NS
            yield _event(op, "cpu_op", launch - 900, 3_000, 1, f'"External id": {place + 1}')
            yield _event(
                "cudaLaunchKernel", "cuda_runtime", launch, 1_800, 1, f'"correlation": {place + 1}'
            )
            args = (
                f'"correlation": {place + 1}, "device": 0, "stream": {stream}, "grid": [64, 1, 1]'
            )
            yield _event(name, "kernel", now, length, 0, args, thread=stream)
            now += length + _GAP_NS
        number = step // KERNELS_PER_STEP
        begun = first - 2 * _LAUNCH_LEAD_NS
        yield _event(
            f"ProfilerStep#{number}", "user_annotation", begun, now - _LAUNCH_LEAD_NS - begun, 1, ""
        )
        now += _STEP_GAP_NS


def _event(
    name: str, kind: str, start: int, length: int, process: int, args: str, thread: int = 1
) -> str:
    return (
        f'{{"ph": "X", "cat": "{kind}", "name": "{name}", "pid": {process}, "tid": {thread}, '
        f'"ts": {start // 1000}.{start % 1000:03d}, "dur": {length // 1000}.{length % 1000:03d}, '
        f'"args": {{{args}}}}}'
    )
