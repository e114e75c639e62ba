"""A compiler for the CPU that runs swapped graphs: kernels are replaced by what their plans say.

It takes ops apart as for a GPU, as graphs without one are captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import fx

from advisor.apply.kernels import ReadyKernel, load_kernel
from advisor.apply.rewrite import rewrite
from advisor.model.configs import default_config
from advisor.pipeline import backend
from advisor.pipeline.backend import SwapLog
from collectors.live.as_on_gpu import decomposed_as_on_gpu
from collectors.live.capture import BoxedCall, Capture, _passes_only
from collectors.live.fx_graph import copied
from collectors.live.layouts import STRIDES
from tests.builders import captured as models


def kernels_of(found: Capture, folder: Path) -> list[ReadyKernel]:
    """A kernel for every plan of a capture; the longest programs claim their sites first."""
    plans = {plan.id: plan for item in found.graphs for plan in models.plans_of(item.lowered)}
    ordered = sorted(plans.values(), key=lambda plan: -len(plan.ops))
    return [load_kernel(plan, folder, default_config(plan, plan.sites[0])) for plan in ordered]


def swapping(kernels: Sequence[ReadyKernel], log: SwapLog) -> Callable[..., Any]:
    """`plan_backend` with an inner compiler that runs the swapped graphs op by op."""
    functions = {
        id(function): (kernel, place)
        for kernel in kernels
        for place, function in enumerate(kernel.functions)
    }
    swapped: list[fx.Graph] = []

    def keeping(graph: fx.Graph, *given: Any) -> Any:
        outcomes = rewrite(graph, *given)
        swapped.append(copied(graph))
        return outcomes

    def inner(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            # Passes after ours turn kernels into writes: what ours made is kept before that.
            patch.setattr(backend, "rewrite", keeping)
            with decomposed_as_on_gpu():
                _passes_only(gm, example_inputs, **options)
        runner = models._Runner(fx.GraphModule(gm, swapped[-1]), functions)
        (output,) = gm.graph.find_nodes(op="output")
        told = output.meta[STRIDES]
        return BoxedCall(lambda args: list(map(laid_out, runner.run(*args), told)))

    return backend.plan_backend(kernels, log, inner)


def laid_out(value: Any, strides: tuple[int, ...] | None) -> Any:
    """A result in the strides that the compiler promised; it promises no unknown sizes."""
    known = strides is not None and all(isinstance(step, int) for step in strides)
    if strides is None or not known or value.stride() == strides:
        return value
    return value.new_empty_strided(value.shape, strides).copy_(value)
