"""Generated kernels made bad on purpose, from inside the process that applies a run.

A workload's file calls `plant` when the environment asks for it: from then on every kernel that is
generated for the plan is the bad one. Everything else of `apply` is what a user runs.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from advisor.apply import kernels
from advisor.codegen import KernelSource
from advisor.model.applied import Numerics
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.verify.numerics import NumericsProcess
from advisor.verify.timing_process import (
    LAUNCH_LIMIT_S,
    LIMIT_S,
    TimingAnswer,
    TimingProcess,
    TimingRequest,
)

# `KIND=PLAN_ID`, and which of the plan's kernels: all, or those in the model only.
VARIABLE = "FUSION_ADVISOR_TEST_PLANT"
# Seconds after which the process of a kernel without an end is ended, in place of the product's.
LIMIT_VARIABLE = "FUSION_ADVISOR_TEST_LIMIT"

_STORE = re.compile(r"^(?P<indent> +)tl\.store\((?P<pointer>out\d+)\b", re.MULTILINE)
_FUSED = re.compile(r"^( +)return out\b", re.MULTILINE)


def wrong(source: str) -> str:
    """Results are twice what they should be."""
    return _FUSED.sub(r"\1for one in out:\n\1    one.mul_(2)\n\1return out", source)


def overwriting(source: str) -> str:
    """It also writes the tensor that it reads: whoever reads that later gets something else."""
    return _FUSED.sub(r"\1in0.add_(1)\n\1return out", source)


def endless(source: str) -> str:
    """The launcher never returns."""
    return _FUSED.sub(r"\1while True:\n\1    __import__('time').sleep(1)", source)


def crashing(source: str) -> str:
    """The process dies where it runs."""
    return _FUSED.sub(r"\1__import__('os').kill(__import__('os').getpid(), 11)", source)


def _before_stores(text: str) -> Callable[[str], str]:
    """Lines in the kernel itself, in front of its first store; `OUT` is what that writes."""

    def edit(source: str) -> str:
        def first(found: re.Match[str]) -> str:
            indent, pointer = found["indent"], found["pointer"]
            lines = [f"{indent}{line}" for line in text.replace("OUT", pointer).splitlines()]
            return "\n".join([*lines, found[0]])

        return _STORE.sub(first, source, count=1)

    return edit


def drifting(source: str) -> str:
    """Every tile that is written is a constant, fast and 2.3 % more than one."""
    tile = r"(tl\.store\(out\d+ \+ row_start[^,]*, )(v\d+)"
    return re.sub(tile, r"\1tl.zeros_like(\2) + 1.0234375", source)


ENDLESS = ("endless", "looping")
BAD: dict[str, Callable[[str], str]] = {
    "wrong": wrong,
    "overwriting": overwriting,
    "endless": endless,
    "crashing": crashing,
    "drifting": drifting,
    # On a GPU, in the kernel: an address that is nobody's, a loop without an end, work for nothing,
    # and more values at once than there are registers.
    "illegal": _before_stores("tl.store(OUT + (1 << 44), 0.0)"),
    "looping": _before_stores(
        "turns = 0\n"
        "seen = tl.load(in0, volatile=True)\n"
        "while tl.load(in0, volatile=True) == seen:\n"
        "    turns += 1\n"
        "tl.store(OUT, turns)"
    ),
    "slow": _before_stores(
        "turns = tl.load(in0, volatile=True).to(tl.float32)\n"
        "for _ in range(2000):\n"
        "    turns = tl.exp(-turns * turns)\n"
        "if turns > 1e30:\n"
        "    tl.store(OUT, 0.0)"
    ),
    "spilling": _before_stores(
        "many = tl.arange(0, 65536)\n"
        # As many values as a multiprocessor has registers, no two of them the same.
        "held = tl.load(in0 + many * 7 % 61).to(tl.float32)\n"
        "peak = tl.max(held, axis=0)\n"
        "rest = tl.sum(tl.exp(held - peak), axis=0)\n"
        "if rest < 0:\n"
        "    tl.store(OUT, tl.sum(held / rest, axis=0))"
    ),
}


def plant_from_environment() -> None:
    """Make the kernels of the plans that the environment names bad, each in its way."""
    limit = os.environ.get(LIMIT_VARIABLE)
    _plant_once(os.environ.get(VARIABLE, ""), None if limit is None else float(limit))


@functools.cache
def _plant_once(text: str, limit_s: float | None) -> None:
    """A workload's file is executed again for every copy of it: what is bad gets no worse."""
    for item in filter(None, text.split(",")):
        kind, _, plan_id = item.partition("=")
        where, _, name = kind.rpartition(":")
        plant(name, plan_id, in_model_only=where == "model")
        if limit_s is not None and name in ENDLESS:
            _bound(plan_id, limit_s)


def _bound(plan_id: str, limit_s: float) -> None:
    """Wait for the kernel of this plan alone no longer than `limit_s`, timed or verified.

    What it takes to compile it for timing is not within that, as in the product.
    """
    verified, timed = NumericsProcess.verify, TimingProcess.time

    def verify(
        self: NumericsProcess,
        plan: Path,
        kernel: Path,
        config: LaunchConfig,
        timeout_s: float | None = None,
    ) -> Numerics:
        within = limit_s if plan.stem == plan_id else timeout_s
        return verified(self, plan, kernel, config, within)

    def time(
        self: TimingProcess,
        request: TimingRequest,
        whole_limit_s: float = LIMIT_S,
        launch_limit_s: float = LAUNCH_LIMIT_S,
    ) -> TimingAnswer:
        within = limit_s if Path(request.plan).stem == plan_id else launch_limit_s
        return timed(self, request, whole_limit_s, within)

    NumericsProcess.verify = verify  # type: ignore[method-assign]
    TimingProcess.time = time  # type: ignore[method-assign]


def plant(kind: str, plan_id: str, *, in_model_only: bool = False) -> None:
    """Make every kernel of a plan bad, or those that `load_kernel` puts into the model."""
    edit = BAD[kind]

    def edited(text: str) -> str:
        found = edit(text)
        assert found != text, f"{kind} found nothing to edit"
        return found

    if in_model_only:
        # Who puts kernels into the model has long imported `load_kernel`: what that calls is ours.
        loaded = kernels.load_module

        def load_module(path: Path) -> ModuleType:
            if path.stem != plan_id:
                return loaded(path)
            bad = path.with_name(f"{plan_id}_{kind}.py")
            bad.write_text(edited(path.read_text()))
            return loaded(bad)

        kernels.load_module = load_module
        return
    genuine = kernels.render

    def render(plan: FusionPlan, scheme: Scheme = "registers") -> KernelSource:
        source = genuine(plan, scheme)
        if plan.id != plan_id:
            return source
        return dataclasses.replace(source, text=edited(source.text))

    kernels.render = render
