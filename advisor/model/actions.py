"""Graph-level actions: what `apply` can do to a step besides swapping in generated kernels."""

from __future__ import annotations

from typing import Literal

from advisor.model.base import Record

ActionKind = Literal[
    "attention",
    "flex_attention",
    "chunked_loss",
    "fold_batch_norm",
    "channels_last",
    "fused_optimizer",
    "multi_tensor",
    "cuda_graph",
    "step_graph",
    "unfuse",
    "retune",
    "autotune",
]


class ActionFacts(Record, frozen=True, kw_only=True):
    """An action in words: what it does, what speaks for it, and how to do it by hand."""

    kind: ActionKind
    title: str
    explanation: str
    by_hand: str


# In the order in which they are tried: what changes the graphs, what runs them, what takes long.
ACTIONS: tuple[ActionFacts, ...] = (
    ActionFacts(
        kind="attention",
        title="attention as one library call",
        explanation="scores and probabilities are never written to memory",
        by_hand="call torch.nn.functional.scaled_dot_product_attention",
    ),
    ActionFacts(
        kind="flex_attention",
        title="attention by FlexAttention where there is a mask or a bias",
        explanation="masks and biases become part of the kernel; blocks that they hide are skipped",
        by_hand="call torch.nn.attention.flex_attention.flex_attention",
    ),
    ActionFacts(
        kind="chunked_loss",
        title="vocabulary loss in pieces",
        explanation="logits exist some rows at a time, and their gradient at once: less memory",
        by_hand="a fused linear cross-entropy: LigerFusedLinearCrossEntropyLoss of liger_kernel",
    ),
    ActionFacts(
        kind="fold_batch_norm",
        title="BatchNorm folded into the convolution before it",
        explanation="in inference its scale and shift are constants of the weights",
        by_hand="torch.nn.utils.fusion.fuse_conv_bn_eval",
    ),
    ActionFacts(
        kind="channels_last",
        title="channels-last memory format",
        explanation="convolution kernels read it as it is; nothing converts layouts in between",
        by_hand="model.to(memory_format=torch.channels_last), the same for image inputs",
    ),
    ActionFacts(
        kind="fused_optimizer",
        title="optimizer in one kernel per group",
        explanation="one pass over parameters, gradients and state in place of many",
        by_hand="pass fused=True to the optimizer",
    ),
    ActionFacts(
        kind="multi_tensor",
        title="optimizer in one launch of our kernel",
        explanation="one pass as well, one launch for all parameters alike, found through a table",
        by_hand="advisor.load(RUN).apply(model, optimizer, loss), after an apply that kept it",
    ),
    ActionFacts(
        kind="cuda_graph",
        title="compiled graphs replayed as CUDA graphs",
        explanation="one launch replaces those of all kernels of a graph",
        by_hand='torch.compile(mode="reduce-overhead")',
    ),
    ActionFacts(
        kind="step_graph",
        title="the whole step as one CUDA graph",
        explanation="one launch replaces the step, Python, guards and optimizer included",
        by_hand="torch.cuda.graph around the compiled step, inputs copied into static tensors",
    ),
    ActionFacts(
        kind="unfuse",
        title="kernels of the compiler cut in two where that is faster",
        explanation="a value is stored once rather than computed again, or fewer are held at once",
        by_hand="torch._dynamo.graph_break() between the parts, which the compiler then compiles "
        "for themselves",
    ),
    ActionFacts(
        kind="retune",
        title="kernels of the compiler launched with other blocks and warps",
        explanation="what spills or leaves multiprocessors idle is launched in another way",
        by_hand='torch.compile(options={"coordinate_descent_tuning": True})',
    ),
    ActionFacts(
        kind="autotune",
        title="matrix kernels tuned for their shapes",
        explanation="the compiler times Triton templates against the library's kernels",
        by_hand='torch.compile(mode="max-autotune-no-cudagraphs")',
    ),
)

# The rules whose findings an action answers; the others are tried wherever they apply.
ANSWERS: dict[str, tuple[ActionKind, ...]] = {
    "attention-written-out": ("attention", "flex_attention"),
    "cross-entropy": ("chunked_loss",),
    "batch-norm": ("fold_batch_norm",),
    "layout-conversion": ("channels_last",),
    "optimizer-updates": ("fused_optimizer", "multi_tensor"),
    "launch-bound": ("cuda_graph", "step_graph"),
    "over-fusion": ("unfuse", "retune"),
}

# What is done to the compiler's own kernels; `unfuse:KERNEL` asks for those of a name.
ON_COMPILER: tuple[ActionKind, ...] = ("unfuse", "retune")
# What another action is done in place of: both would do the same thing.
REPLACES: dict[ActionKind, ActionKind] = {
    "flex_attention": "attention",
    "multi_tensor": "fused_optimizer",
    "step_graph": "cuda_graph",
}
# What is done for less memory, and kept where that costs no time.
FOR_MEMORY: tuple[ActionKind, ...] = ("chunked_loss",)
# Of an action whose place is in no graph of the model alone.
WITH_LOSS = (
    "model and loss are compiled as one function, which takes apply(model, optimizer, loss): what "
    "that alone saves is in its figures"
)


def facts_of(kind: ActionKind) -> ActionFacts:
    """The words of an action."""
    return next(item for item in ACTIONS if item.kind == kind)
