"""A child that answers requests for timings as the plan's name asks: no GPU, no kernel."""

from __future__ import annotations

import os
import signal
import sys
import time

import msgspec

from advisor.model.applied import KernelTiming, Timing
from advisor.verify.child import READY
from advisor.verify.timing_process import ENDED, LAUNCHED, TimingAnswer, TimingRequest

LATE_S = 0.2


def main() -> None:
    answers = int(sys.argv[1])
    time.sleep(LATE_S)
    os.write(answers, READY)
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=TimingRequest)
        if request.plan == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if request.plan == "loop":
            time.sleep(60)
        # It waits for two launches, as a real one does for each configuration.
        for _ in range(2):
            os.write(answers, LAUNCHED + b"\n")
            if request.plan == "endless":
                time.sleep(60)
            os.write(answers, ENDED + b"\n")
        if request.plan == "slow to compile":
            time.sleep(3 * LATE_S)
        ns = Timing(median_ns=os.getpid(), low_ns=1, high_ns=os.getpid(), samples=1)
        found = KernelTiming(
            shape="1", config=request.usable[0].label(), bytes=request.bytes_moved, kernel=ns,
            kernel_warm=ns, eager=ns, inductor=ns, copy=ns, copy_bandwidth_fraction=1.0,
            peak_copy_bandwidth_fraction=1.0, eager_bandwidth_fraction=1.0, launch_ns=1,
        )  # fmt: skip
        answer = TimingAnswer(config=request.usable[0], timing=found)
        os.write(answers, msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
