"""What the ops of a row program compute forward, part by part, in the words of the field.

Parts are told by how values reach each other, not by which ops occur: a softmax is exp(x - max x)
over its sum, an RMS norm x over the root of its mean square, and a layer norm that too where x is
centred before. What no test fits has no name here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from advisor.model.gathers import gathers
from advisor.model.optable import FLOAT8_MAX, spec_of
from advisor.model.plan import FusionPlan, PlanOp
from analyzers.plan_values import PlanValues

_EIGHT_BITS = (*FLOAT8_MAX, "int8")
# The cube's factor of the tanh form of GELU (Hendrycks and Gimpel, 2016).
_GELU_CUBIC = 0.044715


def reduces(op: PlanOp) -> bool:
    """Whether an op is a reduction, along the row or over the rows."""
    return spec_of(op.op).kind == "reduction"


def row_reductions(plan: FusionPlan) -> list[PlanOp]:
    """The reductions along the row, in order."""
    return [op for op in plan.ops if op.space == "row" and reduces(op)]


def cores(plan: FusionPlan) -> list[str]:
    """The computations along the row that have a name, in order, each once."""
    values, found = PlanValues(plan), dict[str, None]()
    for op in row_reductions(plan):
        for name in (_softmax(plan, values, op), _norm(plan, values, op), _scaled(values, op)):
            if name:
                found[name] = None
    if "layer norm" in found or "group norm" in found or "batch norm" in found:
        found.pop("RMS norm", None)
    return list(found)


def _softmax(plan: FusionPlan, values: PlanValues, total: PlanOp) -> str:
    """Of the sum of exp(x - max x): what it divides, or whose logarithm is taken away."""
    power = values.of(values.bare(total.args[0]))
    if total.op != "sum" or power is None or power.op != "exp" or power.space != "tile":
        return ""
    largest = [op for op in values.sources(power.name) if op.op == "amax"]
    if not largest:
        return ""
    # What is read before the largest is known; guards against -inf come after.
    mask = next(filter(None, (_mask(plan, values, op) for op in largest)), "")
    logarithms = [
        op for op in plan.ops if op.op == "log" and op.space == "row" and values.depends(op, total)
    ]
    if not logarithms:
        return f"{mask}softmax"
    back = any(
        op.op == "sub" and op.space == "tile" and values.reads_row(op, logarithms[0])
        for op in plan.ops
    )
    return f"{mask}log-softmax" if back else "log-sum-exp"


def _mask(plan: FusionPlan, values: PlanValues, largest: PlanOp) -> str:
    """`masked ` where scores are chosen, or a tensor of fewer axes than theirs is added, before;
    `biased ` where one as large is.
    """
    before = values.sources(largest.name)
    if any(op.op == "where" and op.space == "tile" for op in before):
        return "masked "
    held = [item for item in plan.inputs if not item.segments and item.gathered is None]
    partial = {i.name for i in held if not all(i.spans) and sum(i.spans) > 1}
    if any(partial.intersection(map(str, op.args)) for op in before):
        return "masked "
    whole = {item.name for item in held if all(item.spans)}
    return "biased " if any(op.op == "add" and {*op.args} <= whole for op in before) else ""


def _norm(plan: FusionPlan, values: PlanValues, moment: PlanOp) -> str:
    """Of a variance, or a mean of squares, whose root scales the row."""
    root = _root_of(plan, values, moment)
    if root is None:
        return ""
    squared = _squared(values, moment)
    if moment.op == "var" or (squared is not None and _is_centred(values, squared)):
        return _layer_norm(plan)
    if squared is None:
        return ""
    # The mean of squares less the square of the mean is a variance too.
    others = [op for op in row_reductions(plan) if op.op in ("mean", "sum") and op is not moment]
    if any(values.depends(root, op) and _squared(values, op) is None for op in others):
        return _layer_norm(plan)
    if _is_mean(plan, values, moment, root):
        return "RMS norm"
    scales = any(op.space == "tile" and values.reads_row(op, root) for op in plan.ops)
    return "L2 normalisation" if scales else "L2 norm"


def _root_of(plan: FusionPlan, values: PlanValues, moment: PlanOp) -> PlanOp | None:
    roots = (op for op in plan.ops if op.op in ("rsqrt", "sqrt") and op.space == "row")
    return next((op for op in roots if values.depends(op, moment)), None)


def _layer_norm(plan: FusionPlan) -> str:
    if any(item.segments for item in plan.inputs):
        return "group norm"
    return "batch norm" if of_channels(plan) else "layer norm"


def of_channels(plan: FusionPlan) -> bool:
    """Whether a row is what a channel holds of a whole batch: the columns lie around the rows."""
    along_columns = any(item.spans[-1] and not any(item.spans[:-1]) for item in plan.inputs)
    return plan.row_axes == 1 and plan.column_axes > 1 and not along_columns


def _squared(values: PlanValues, moment: PlanOp) -> str | None:
    """What is squared before a mean or sum; None if nothing is."""
    source = values.of(moment.args[0])
    if moment.op not in ("mean", "sum") or source is None or source.op != "mul":
        return None
    return str(source.args[0]) if source.args[0] == source.args[1] else None


def _is_centred(values: PlanValues, value: str) -> bool:
    """Whether a mean along the row is taken from a value."""
    op = values.of(values.bare(value))
    return (
        op is not None
        and op.op == "sub"
        and any(one.op in ("mean", "sum") for one in values.sources(op.name) if one.space == "row")
    )


def _is_mean(plan: FusionPlan, values: PlanValues, moment: PlanOp, root: PlanOp) -> bool:
    """Whether a sum of squares is divided by the columns, before its root or after."""
    if moment.op == "mean":
        return True
    columns = plan.sites[0].columns if plan.sites else None
    for op in plan.ops:
        if op.space == "row" and (values.depends(root, op) or values.depends(op, root)):
            factors = {"mul": 1, "div": -1}
            numbers = [float(arg) for arg in op.args if isinstance(arg, int | float) and arg]
            shares = [number ** factors[op.op] for number in numbers if op.op in factors]
            if any(columns is None or _shares(share, columns) for share in shares):
                return True
    return False


def _shares(share: float, columns: int) -> bool:
    """1 / n, or its root."""
    return any(abs(part * columns - 1) < 1e-4 for part in (share, share * share))


def _scaled(values: PlanValues, largest: PlanOp) -> str:
    """Of the largest absolute value of a row: what it scales is rounded to eight bits."""
    size = values.of(values.bare(largest.args[0]))
    if largest.op != "amax" or size is None or size.op != "abs":
        return ""
    for op in values.ops:
        if op.op == "cast" and op.dtype in _EIGHT_BITS and values.depends(op, largest):
            return f"quantisation to {op.dtype}"
    return ""


def activations(ops: Sequence[PlanOp]) -> list[str]:
    """Activations among ops, as ATen's decompositions spell them: ReLU, GELU, SiLU, sigmoid."""
    here = {op.name: op for op in ops}
    found: dict[str, None] = {}
    for op in here.values():
        if op.op == "relu":
            found["ReLU"] = None
        elif op.op == "erf" or (op.op == "tanh" and has_gelu_cubic(ops)):
            found["GELU"] = None
        elif op.op in ("mul", "div") and _is_gate(op, here):
            found["SiLU"] = None
    return list(found)


def has_gelu_cubic(ops: Iterable[PlanOp]) -> bool:
    """Whether the tanh form of GELU, or its derivative, is computed there."""
    numbers = (arg for op in ops for arg in op.args if isinstance(arg, float))
    return any(abs(number - _GELU_CUBIC) < 1e-9 for number in numbers)


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


def prologue(plan: FusionPlan) -> list[str]:
    """What comes before the first reduction: a lookup, a dropout, a residual."""
    values, found = PlanValues(plan), list[str]()
    if gathers(plan):
        found.append("embedding")
    first = next(filter(reduces, plan.ops), None)
    before = values.sources(first.name) if first is not None else []
    drops = any(_is_dropout(op, plan) for op in before)
    if drops:
        found.append("dropout")
    whole = {item.name for item in plan.inputs if all(item.spans) and not item.segments}
    joined = [op for op in before if op.space == "tile" and _of_two(op, whole, values, drops)]
    if [op.op for op in joined] == ["add"] and not gathers(plan):
        found.append("residual add" if plan.phase != "backward" else "gradient add")
    return found


def drops_out(plan: FusionPlan) -> bool:
    """Whether a dropout is among the ops."""
    return any(_is_dropout(op, plan) for op in plan.ops)


def _is_dropout(op: PlanOp, plan: FusionPlan) -> bool:
    """Random numbers compared with a probability, and the result multiplied with something."""
    if op.op != "gt" or not isinstance(op.args[1], float) or not 0 < op.args[1] < 1:
        return False
    return any(user.op in ("mul", "where") and op.name in user.args for user in plan.ops)


def _of_two(op: PlanOp, whole: set[str], values: PlanValues, drops: bool) -> bool:
    """Whether an op joins two whole tensors; a dropped one is computed here."""
    read = [str(arg) in whole for arg in op.args if isinstance(arg, str)]
    if len(read) != 2:
        return False
    return all(read) or (drops and op.op == "add" and any(read) and not all(read))
