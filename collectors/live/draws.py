"""Random numbers of the compiled graph, which Inductor's kernels draw from a seed, as an op."""

from __future__ import annotations

from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor.codegen.triton import TritonOverrides

from collectors.live.fx_builder import GraphBuilder

RANDOM = "prims.inductor_random.default"
# Whether Inductor makes two kinds of numbers of one seed, by the shape of its kernel.
TWO_STREAMS = hasattr(TritonOverrides, "_can_use_4x_random")


def random_numbers(builder: GraphBuilder, node: fx.Node) -> bool:
    """Numbers of a seed tensor and the element's own index, as Inductor draws them for dropout.

    From PyTorch 2.13 on its 1-D kernels make other numbers of a seed than all others do, so a mask
    that both passes draw from it must be left to Inductor on both sides, as it is.
    """
    _, seed, mode = node.args[:3]
    if mode != "rand" or node.kwargs.get("align_dtype") is not None or inductor_aligns():
        return False
    if not isinstance(seed, fx.Node) or (TWO_STREAMS and is_shared(seed)):
        return False
    value = builder.arg(seed)
    if value is None:
        return False
    meta = builder.tensor_meta(node.meta["val"])
    builder.bind(node, builder.emit(node, "random", (value,), meta))
    return True


def inductor_aligns() -> bool:
    """Whether Inductor draws what eager draws, or rounds what it draws before it compares."""
    settings = ("align_random_eager", "emulate_precision_casts")
    return any(getattr(inductor_config, name, False) for name in settings)


def is_shared(seed: fx.Node) -> bool:
    """Whether a seed comes from another graph or is kept for one, which draws from it as well."""
    pending = [seed]
    while pending:
        node = pending.pop()
        if node.op == "placeholder" or any(user.op == "output" for user in node.users):
            return True
        pending += node.all_input_nodes
    return sum(str(user.target) == RANDOM for user in seed.users) > 1
