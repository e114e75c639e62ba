"""Inductor's lowering without its code: what it makes of layouts, on the CPU as if on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import (
    _recursive_post_grad_passes,
    fake_tensor_prop,
    record_original_output_strides,
)
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import IRNode
from torch._inductor.utils import shape_env_from_inputs
from torch._inductor.virtualized import V
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from collectors.live.capture import BoxedCall, _placeholder


def lowered(gm: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
    """An inner compiler that stops before code, and tells AOTAutograd what Inductor would.

    It returns outputs of the right shapes, laid out as it told.
    """
    view_to_reshape(gm)
    with torch.no_grad():
        mode = fake_tensor_prop(gm, inputs)
    record_original_output_strides(gm)
    told: dict[str, Any] = {
        name: bool(kwargs.get(name)) for name in ("is_inference", "is_backward")
    }
    results = [node.meta["val"] if node is not None else None for node in outputs_of(gm)]
    with V.set_fake_mode(mode), _as_on_gpu():
        _recursive_post_grad_passes(gm, is_inference=told["is_inference"])
        lowering = GraphLowering(
            gm, example_inputs=inputs, shape_env=shape_env_from_inputs(inputs), **told
        )
        with V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]):
            lowering.run(*inputs)
    strides = [strides_of(result) for result in lowering.graph_outputs]
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides[:] = strides
    made = [
        value if wanted is None or value is None else value.as_strided(value.shape, wanted)
        for value, wanted in zip(results, strides, strict=True)
    ]
    return BoxedCall(lambda _: [_placeholder(value) for value in made])


def outputs_of(gm: fx.GraphModule) -> Sequence[Any]:
    """The nodes that a graph returns."""
    (output,) = gm.graph.find_nodes(op="output")
    found: Sequence[Any] = output.args[0]
    return found


def strides_of(result: Any) -> tuple[int, ...] | None:
    """The strides that Inductor decided on; None of what is no tensor."""
    if not isinstance(result, IRNode) or not result.has_tensor_output():
        return None
    return tuple(int(stride) for stride in result.get_layout().stride)


@contextmanager
def _as_on_gpu() -> Iterator[None]:
    """Convolutions are a GPU's, and Triton kernels are read as for one."""
    enabled, active = torch._C._get_mkldnn_enabled(), driver._active
    torch._C._set_mkldnn_enabled(False)
    driver.set_active(_Card())
    try:
        with inductor_config.patch(comprehensive_padding=False):
            yield
    finally:
        driver._active = active  # to ask for a card where there is none is an error
        torch._C._set_mkldnn_enabled(enabled)


class _Card:
    """What reading a kernel asks Triton's driver for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)
