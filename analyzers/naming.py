"""Names for people: what a row program is called in the field. No decision depends on them."""

from __future__ import annotations

from advisor.model.plan import FusionPlan
from analyzers.activation_names import activation_gradients, activations, drops_out
from analyzers.gradient_names import are_norm_sums, gradient_name
from analyzers.plan_values import PlanValues
from analyzers.row_names import cores, of_channels, prologue, row_reductions

_WORDS = {
    "to_copy": "cast",
    "convert_element_type": "cast",
    "gelu": "GELU",
    "silu": "SiLU",
    "relu": "ReLU",
    "threshold": "ReLU",
    "mul": "product",
    "add": "sum",
    "sub": "difference",
    "div": "quotient",
    "neg": "negation",
    "where": "selection",
    "masked_fill": "mask",
    "fused_rms_norm": "RMS norm",
    "rms_norm": "RMS norm",
    "batch_norm_with_update": "batch norm",
    "log_softmax": "log-softmax",
}
# How ATen spells the ways in which it computes one op: of no meaning to the reader.
_SPELLINGS = ("native_", "cudnn_", "miopen_")
_MANNERS = ("_legit_no_training", "_legit_functional", "_legit", "_for_cpu")
_GRADIENT = "_backward"


def op_word(label: str) -> str:
    """`aten.silu_backward.default` as `SiLU gradient`, `aten::add_` as `sum`; others by name."""
    parts = label.replace("::", ".").split(".")
    bare = (parts[1] if len(parts) > 1 else label).strip("_")
    core = bare.removesuffix(_GRADIENT)
    word = _WORDS.get(core) or _WORDS.get(_plain(core), _plain(core).replace("_", " "))
    return f"{word} gradient" if core != bare else word


def _plain(core: str) -> str:
    """`native_batch_norm_legit_no_training` as `batch_norm`."""
    for prefix in _SPELLINGS:
        core = core.removeprefix(prefix)
    for suffix in _MANNERS:
        core = core.removesuffix(suffix)
    return core


def describe(plan: FusionPlan) -> str:
    """A short name made from what the program computes: `residual add + RMS norm`."""
    outputs = f" with {len(plan.outputs)} outputs" if len(plan.outputs) > 1 else ""
    if plan.phase == "backward":
        name = _gradient(plan)
    elif row_reductions(plan):
        name = _along_rows(plan)
    else:
        name = _pointwise(plan)
    over_rows = sorted({op.op for op in plan.ops if op.over_rows})
    if all(op.over_rows or op.op == "cast" for op in plan.ops) and over_rows:
        return f"{', '.join(over_rows)} over the rows{outputs}"
    if over_rows in (["mean", "var"], ["var"]) and _roots_of_columns(plan):
        summed = " and batch norm statistics"
    else:
        summed = f" and {', '.join(over_rows)} over the rows" if over_rows else ""
    return f"{name}{summed}{outputs}"


def _roots_of_columns(plan: FusionPlan) -> bool:
    """Whether the reciprocal root of a variance over the rows is taken."""
    values = PlanValues(plan.ops)
    spreads = [op for op in plan.ops if op.over_rows and op.op == "var"]
    roots = [op for op in plan.ops if op.op == "rsqrt"]
    return any(values.depends(root, spread) for root in roots for spread in spreads)


def _along_rows(plan: FusionPlan) -> str:
    """Of a program with reductions along the row: what is before, what it is, what is after."""
    named = cores(plan)
    reductions = row_reductions(plan)
    last = max(place for place, op in enumerate(plan.ops) if op in reductions)
    if not named:
        ahead = activations(plan.ops[:last])
        what = " and ".join(sorted({op.op for op in reductions}))
        return " + ".join((*ahead, f"{what} of each row"))
    before = prologue(plan)
    if any("norm" in name for name in named):
        parts = [*before, *named, *activations(plan.ops[last + 1 :])]
    else:
        parts = [*(word for word in before if word != "residual add"), *named]
    if drops_out(plan) and "dropout" not in parts:
        parts.append("dropout")
    return " + ".join(parts)


def _gradient(plan: FusionPlan) -> str:
    """Of a backward program: which forward it differentiates, with an activation before; or what
    is computed again there.
    """
    before = "".join(f"{word} gradient + " for word in activation_gradients(plan.ops))
    if not row_reductions(plan):
        return before.removesuffix(" + ") or "pointwise chain gradient"
    name = gradient_name(plan)
    if name == "layer norm" and of_channels(plan):
        name = "batch norm"
    if not name and are_norm_sums(plan):
        return f"{before}row sums of a gradient and of its product"
    if not name and (again := cores(plan)):
        return f"{before}{' + '.join(again)} in the backward pass"
    added = [word for word in prologue(plan) if word == "gradient add" and "norm" in name]
    head = "".join(f"{word} + " for word in added)
    return f"{before}{head}{name or 'row reduction'} gradient"


def _pointwise(plan: FusionPlan) -> str:
    """Of a program without reductions along the row: the activation in it, and what it gates."""
    named = activations(plan.ops)
    if drops_out(plan):
        named.append("dropout")
    return f"pointwise chain with {' and '.join(named)}" if named else "pointwise chain"
