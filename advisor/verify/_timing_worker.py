"""Child process: time generated kernels on the GPU, one request after the other.

Arguments: the number of the pipe for answers, and the device. A request is a line of JSON on
standard input, an answer a line of JSON in the pipe: what a compiler prints is in nobody's way.
Before it, the child says when it waits for a launch and when that has ended. A kernel that crashes
or never ends costs this process and the plan that it was for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch._inductor.compile_fx  # what a first compilation would import, before it is asked for

from advisor.model import base
from advisor.model.plan import FusionPlan
from advisor.verify.child import READY
from advisor.verify.recording import gpu_recorder
from advisor.verify.timing import best_config, time_kernel
from advisor.verify.timing_process import ENDED, LAUNCHED, TimingAnswer, TimingRequest


def answer(
    request: TimingRequest, device: torch.device, wait: Callable[[], object]
) -> TimingAnswer:
    """The fastest configuration of a plan, timed beside the same ops run otherwise.

    `wait` is called after the first launch of each configuration, and ends when that has.
    """
    plan = base.load(Path(request.plan), FusionPlan)
    sources = {scheme: Path(path) for scheme, path in request.sources.items()}
    config = best_config(plan, sources, gpu_recorder, device, request.usable, wait)
    found = time_kernel(
        plan, sources[config.scheme], config, gpu_recorder, device, request.bytes_moved
    )
    torch.cuda.empty_cache()
    return TimingAnswer(config=config, timing=found)


def main(arguments: list[str]) -> int:
    """Answer until standard input ends."""
    answers, device = int(arguments[0]), torch.device(arguments[1])
    if device.index is not None:  # else the one that is current already
        torch.cuda.set_device(device)

    def wait() -> None:
        os.write(answers, LAUNCHED + b"\n")
        torch.cuda.synchronize()
        os.write(answers, ENDED + b"\n")

    os.write(answers, READY)
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=TimingRequest)
        # Compiled comparisons of one plan must not count against the next.
        torch.compiler.reset()
        os.write(answers, msgspec.json.encode(answer(request, device, wait)) + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
