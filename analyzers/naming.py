"""Names for people: what a row program is called in the field. No decision depends on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from advisor.model.gathers import gathers
from advisor.model.optable import FLOAT8_MAX, spec_of
from advisor.model.plan import FusionPlan, PlanOp
from analyzers.gradient_names import gradient_name

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
_EIGHT_BITS = (*FLOAT8_MAX, "int8")


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
    reductions = [op for op in plan.ops if op.space == "row" and _reduces(op)]
    names = _kernel_name(plan, {op.op for op in plan.ops}, {op.op for op in reductions})
    over_rows = sorted({op.op for op in plan.ops if op.over_rows})
    if not reductions:
        names = "pointwise chain"
    summed = f" and {', '.join(over_rows)} over the rows" if over_rows else ""
    first = min((i for i, op in enumerate(plan.ops) if _reduces(op)), default=0)
    prologue = [
        op.op for op in plan.ops[:first] if op.space == "tile" and _is_two_tensors(plan, op)
    ]
    head = "residual add + " if prologue == ["add"] and "norm" in names else ""
    if gathers(plan):
        head = "embedding + "
    if "norm" in names and plan.phase != "backward":
        names += "".join(f" + {word}" for word in _activations(plan))
    outputs = f" with {len(plan.outputs)} outputs" if len(plan.outputs) > 1 else ""
    tail = " gradient" if plan.phase == "backward" else ""
    return f"{head}{names}{tail}{summed}{outputs}"


def _reduces(op: PlanOp) -> bool:
    return spec_of(op.op).kind == "reduction"


def _kernel_name(plan: FusionPlan, ops: set[str], reductions: set[str]) -> str:
    if plan.phase == "backward":
        found = gradient_name(plan) or ("norm" if {"rsqrt", "pow"} & ops else "row reduction")
        return "batch norm" if found == "layer norm" and _of_channels(plan) else found
    if "amax" in reductions and "sum" in reductions and "exp" in ops:
        return "masked softmax" if _has_mask(plan) else "softmax"
    if "rsqrt" in ops and _mean_of_squares(plan):
        return "RMS norm"
    if ("rsqrt" in ops or "sqrt" in ops) and reductions & {"var", "mean"}:
        if any(item.segments for item in plan.inputs):
            return "group norm"
        return "batch norm" if _of_channels(plan) else "layer norm"
    rounded = [op.dtype for op in plan.ops if op.op == "cast" and op.dtype in _EIGHT_BITS]
    if "amax" in reductions and rounded:
        return f"quantisation to {rounded[0]}"
    return "row program with " + " and ".join(sorted(reductions))


def _activations(plan: FusionPlan) -> list[str]:
    """What a norm's result goes through: ReLU, GELU, SiLU, as ATen's decompositions spell them."""
    last = max(place for place, op in enumerate(plan.ops) if _reduces(op))
    after = {op.name: op for op in plan.ops[last + 1 :]}
    found: dict[str, None] = {}
    for op in after.values():
        if op.op in ("relu", "erf"):
            found["ReLU" if op.op == "relu" else "GELU"] = None
        elif op.op in ("mul", "div") and op.args[0] in after and _is_gate(op, after):
            found["SiLU"] = None
    return list(found)


def _is_gate(op: PlanOp, after: Mapping[str, PlanOp]) -> bool:
    """Whether a value is multiplied by its sigmoid: `x * sigmoid(x)` or `x / (1 + exp(-x))`."""
    value, other = op.args[0], after.get(str(op.args[1]))
    if op.op == "mul":
        return other is not None and other.op == "sigmoid" and other.args == (value,)
    for expected in ("add", "exp", "neg"):
        if other is None or other.op != expected:
            return False
        inner = other.args[0]
        other = after.get(str(inner))
    return inner == value


def _of_channels(plan: FusionPlan) -> bool:
    """Whether a row is what a channel holds of a whole batch: the columns lie around the rows."""
    along_columns = any(item.spans[-1] and not any(item.spans[:-1]) for item in plan.inputs)
    return plan.row_axes == 1 and plan.column_axes > 1 and not along_columns


def _mean_of_squares(plan: FusionPlan) -> bool:
    by_name = {op.name: op for op in plan.ops}
    for op in plan.ops:
        if op.op in ("mean", "sum"):
            source = by_name.get(str(op.args[0]))
            if source is not None and source.op == "mul" and source.args[0] == source.args[1]:
                return True
    return False


def _has_mask(plan: FusionPlan) -> bool:
    whole = (item for item in plan.inputs if not item.segments and item.gathered is None)
    partial = (item for item in whole if not all(item.spans))
    return any(sum(item.spans) > 1 for item in partial) or any(op.op == "where" for op in plan.ops)


def _is_two_tensors(plan: FusionPlan, op: PlanOp) -> bool:
    return len(list(_tile_inputs(plan, op))) == 2


def _tile_inputs(plan: FusionPlan, op: PlanOp) -> Iterator[str]:
    full = {item.name for item in plan.inputs if all(item.spans) and not item.segments}
    yield from (str(arg) for arg in op.args if arg in full)
