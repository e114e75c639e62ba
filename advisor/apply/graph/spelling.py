"""One name for each operation that torch lets one spell as function, method or operator.

A Dynamo graph holds what the model's author wrote: `torch.matmul(a, b)`, `a @ b`, `a.matmul(b)`;
of an exported model, `aten.matmul.default(a, b)`. `read` gives all of them as one `Call` with named
arguments.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional

_TWO = ("input", "other")
_ONE = ("input",)

# Canonical name: its parameters, its functions, its methods (an in-place one ends in "_").
_TABLE: tuple[tuple[str, tuple[str, ...], tuple[Any, ...], tuple[str, ...]], ...] = (
    ("matmul", _TWO, (torch.matmul, operator.matmul), ("matmul", "__matmul__")),
    ("bmm", _TWO, (torch.bmm,), ("bmm",)),
    ("baddbmm", ("input", "batch1", "batch2", "beta", "alpha"), (torch.baddbmm,), ("baddbmm",)),
    ("softmax", ("input", "dim", "_stacklevel", "dtype"), (functional.softmax,), ()),
    ("softmax", ("input", "dim", "dtype"), (torch.softmax, torch.special.softmax), ("softmax",)),
    ("log_softmax", ("input", "dim", "_stacklevel", "dtype"), (functional.log_softmax,), ()),
    ("log_softmax", ("input", "dim", "dtype"), (torch.log_softmax,), ("log_softmax",)),
    ("dropout", ("input", "p", "training", "inplace"), (functional.dropout,), ()),
    ("dropout", ("input", "p", "train"), (torch.dropout,), ()),
    ("exp", _ONE, (torch.exp,), ("exp",)),
    ("tanh", _ONE, (torch.tanh, functional.tanh), ("tanh",)),
    ("neg", _ONE, (torch.neg, torch.negative, operator.neg), ("neg", "negative")),
    ("sum", ("input", "dim", "keepdim", "dtype"), (torch.sum,), ("sum",)),
    ("amax", ("input", "dim", "keepdim"), (torch.amax,), ("amax",)),
    ("max", ("input", "dim", "keepdim"), (torch.max,), ("max",)),
    ("maximum", _TWO, (torch.maximum,), ("maximum",)),
    ("clamp", ("input", "min", "max"), (torch.clamp, torch.clip), ("clamp", "clip")),
    ("clamp", ("input", "min"), (torch.clamp_min,), ("clamp_min",)),
    (
        "add",
        ("input", "other", "alpha"),
        (torch.add, operator.add, operator.iadd),
        ("add", "__add__"),
    ),
    (
        "sub",
        ("input", "other", "alpha"),
        (torch.sub, torch.subtract, operator.sub, operator.isub),
        ("sub", "subtract", "__sub__"),
    ),
    ("rsub", _TWO, (torch.rsub,), ("__rsub__",)),
    (
        "mul",
        _TWO,
        (torch.mul, torch.multiply, operator.mul, operator.imul),
        ("mul", "multiply", "__mul__"),
    ),
    (
        "div",
        ("input", "other", "rounding_mode"),
        (
            torch.div,
            torch.divide,
            torch.true_divide,
            operator.truediv,
            operator.itruediv,
        ),
        ("div", "divide", "true_divide", "__truediv__"),
    ),
    ("masked_fill", ("input", "mask", "value"), (torch.masked_fill,), ("masked_fill",)),
    ("where", ("condition", "input", "other"), (torch.where,), ()),
    ("method_where", ("input", "condition", "other"), (), ("where",)),
    (
        "transpose",
        ("input", "dim0", "dim1"),
        (torch.transpose, torch.swapaxes, torch.swapdims),
        ("transpose", "swapaxes", "swapdims"),
    ),
    ("t", _ONE, (torch.t,), ("t",)),
    ("adjoint", _ONE, (torch.adjoint,), ("adjoint",)),
    ("permute", ("input", "dims"), (torch.permute,), ("permute",)),
    (
        "repeat_interleave",
        ("input", "repeats", "dim", "output_size"),
        (torch.repeat_interleave,),
        ("repeat_interleave",),
    ),
    ("repeat", ("input", "sizes"), (), ("repeat",)),
    ("expand", ("input", "sizes"), (), ("expand", "expand_as", "broadcast_to")),
    ("expand", ("input", "sizes"), (torch.broadcast_to,), ()),
    ("getitem", ("input", "index"), (operator.getitem,), ("__getitem__",)),
    (
        "cast",
        ("input", "to"),
        (),
        ("to", "type", "float", "half", "bfloat16", "double", "type_as"),
    ),
    (
        "view",
        ("input", "sizes"),
        (torch.reshape, torch.flatten, torch.unflatten, torch.unsqueeze, torch.squeeze),
        (
            "view",
            "reshape",
            "flatten",
            "unflatten",
            "unsqueeze",
            "squeeze",
            "view_as",
            "reshape_as",
        ),
    ),
    ("copy", ("input", "memory_format"), (torch.clone,), ("contiguous", "clone")),
    ("detach", _ONE, (torch.detach,), ("detach",)),
)
# How exported models spell the same: overloads of ATen that take what the function takes, in order.
_ATEN: dict[str, tuple[str, ...]] = {
    "matmul": ("default",),
    "bmm": ("default",),
    "baddbmm": ("default",),
    "softmax": ("int",),
    "log_softmax": ("int",),
    "dropout": ("default",),
    "exp": ("default",),
    "tanh": ("default",),
    "neg": ("default",),
    "sum": ("dim_IntList",),
    "amax": ("default",),
    "maximum": ("default",),
    "add": ("Tensor", "Scalar"),
    "sub": ("Tensor", "Scalar"),
    "rsub": ("Tensor",),
    "mul": ("Tensor", "Scalar"),
    "div": ("Tensor", "Scalar"),
    "masked_fill": ("Scalar", "Tensor"),
    "where": ("self", "ScalarOther", "ScalarSelf"),
    "transpose": ("int",),
    "t": ("default",),
    "permute": ("default",),
    "repeat": ("default",),
    "expand": ("default",),
    "detach": ("default",),
}
# Those that have another name, or whose parameters beside the tensor are not looked at.
_ATEN_ONLY: tuple[tuple[str, tuple[str, ...], str, tuple[str, ...]], ...] = (
    ("cast", ("input", "to"), "to", ("dtype",)),
    ("view", ("input", "sizes"), "view", ("default",)),
    ("view", ("input", "sizes"), "reshape", ("default",)),
    ("view", ("input", "sizes"), "flatten", ("using_ints",)),
    ("view", ("input", "sizes"), "unflatten", ("int",)),
    ("view", ("input", "sizes"), "unsqueeze", ("default",)),
    ("view", ("input", "sizes"), "squeeze", ("dim",)),
    ("copy", ("input", "memory_format"), "clone", ("default",)),
    ("copy", ("input", "memory_format"), "contiguous", ("default",)),
)
_IN_PLACE_OPERATORS = frozenset(
    getattr(operator, name) for name in dir(operator) if name.startswith("i") and name[1:] in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul",
        "lshift", "rshift",
    )
)  # fmt: skip
_VARIADIC = frozenset(("permute", "expand", "repeat", "view"))


@dataclass(frozen=True)
class Call:
    """An operation under its one name; what an argument's default is, is absent."""

    name: str
    arguments: Mapping[str, Any]
    in_place: bool = False

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)


def _index() -> tuple[dict[Any, tuple[str, tuple[str, ...]]], dict[str, tuple[str, Any]]]:
    functions: dict[Any, tuple[str, tuple[str, ...]]] = {}
    methods: dict[str, tuple[str, Any]] = {}
    for name, parameters, targets, spelled in _TABLE:
        functions.update((target, (name, parameters)) for target in targets)
        for method in spelled:
            methods[method] = (name, parameters)
            if not method.endswith("_"):
                methods.setdefault(method + "_", (name, parameters))
    # A later row of a name takes the parameters that ATen has.
    rows = {name: parameters for name, parameters, _, _ in _TABLE}
    exported = [(name, rows[name], name, overloads) for name, overloads in _ATEN.items()]
    for name, parameters, packet, overloads in (*exported, *_ATEN_ONLY):
        for overload in overloads:
            target = getattr(getattr(torch.ops.aten, packet), overload)
            functions[target] = (name, parameters)
    return functions, methods


_FUNCTIONS, _METHODS = _index()


def read(node: fx.Node) -> Call | None:
    """The operation of a node, or None if it has no name here."""
    if node.op == "call_function" and node.target in _EINSUMS:
        return _einsum(node)
    if node.op == "call_function" and node.target is getattr:
        return _attribute(node)
    if node.op == "call_function":
        found = _FUNCTIONS.get(node.target)
    elif node.op == "call_method":
        found = _METHODS.get(str(node.target))
    else:
        return None
    if found is None:
        return None
    name, parameters = found
    arguments = _bound(name, parameters, node)
    if name == "method_where":
        name = "where"
    return Call(name, MappingProxyType(arguments), bool(written(node)))


def _bound(name: str, parameters: tuple[str, ...], node: fx.Node) -> dict[str, Any]:
    given = node.args
    if name in _VARIADIC:
        # x.permute(0, 2, 1) and x.permute((0, 2, 1)) alike
        rest = given[1:]
        packed = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
        given = (*given[:1], packed)
    arguments = dict(zip(parameters, given, strict=False))
    for key, value in node.kwargs.items():
        arguments["input" if key == "self" else _SAME.get((name, key), key)] = value
    return arguments


_SAME = {
    ("bmm", "mat2"): "other",
    ("cast", "dtype"): "to",
    ("transpose", "axis0"): "dim0",
    ("transpose", "axis1"): "dim1",
    ("softmax", "axis"): "dim",
}
_EINSUMS = frozenset((torch.einsum, torch.functional.einsum))


def _einsum(node: fx.Node) -> Call | None:
    equation, *operands = node.args
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = list(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    return Call(
        "einsum",
        MappingProxyType({"equation": equation, "left": operands[0], "right": operands[1]}),
    )


def _attribute(node: fx.Node) -> Call | None:
    source, name = node.args[:2]
    if name in ("mT", "T", "mH"):
        return Call("adjoint" if name != "T" else "t", MappingProxyType({"input": source}))
    return None


def written(node: fx.Node) -> tuple[fx.Node, ...]:
    """The tensors that a node changes in place."""
    if "mutation" in getattr(node.target, "__name__", ""):
        # A user's Triton kernel: any of its tensors may be written.
        return tuple(node.all_input_nodes)
    target = _written_argument(node)
    return (target,) if isinstance(target, fx.Node) else ()


def _written_argument(node: fx.Node) -> Any:
    if isinstance(node.kwargs.get("out"), fx.Node):
        return node.kwargs["out"]
    first = node.args[0] if node.args else node.kwargs.get("input")
    if node.op == "call_method":
        name = str(node.target)
        changes = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        return first if changes or name == "__setitem__" else None
    if node.op != "call_function":
        return None
    if node.target in _IN_PLACE_OPERATORS or node.target is operator.setitem:
        return first
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return first if schema.is_mutable else None
    name = getattr(node.target, "__name__", "")
    if name.endswith("_") and not name.startswith("_"):
        return first
    return first if _asked_in_place(node) else None


def _asked_in_place(node: fx.Node) -> bool:
    """Whether the `inplace` parameter of a function of `torch.nn.functional` is set."""
    place = _inplace_position(node.target)
    if place is None:
        return False
    given = node.args[place] if len(node.args) > place else node.kwargs.get("inplace", False)
    if not given:
        return False
    # Dropout outside training returns its input as it is.
    call_training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)
    return not (node.target is functional.dropout and call_training is False)


@functools.lru_cache(maxsize=4096)
def _inplace_position(target: Callable[..., Any]) -> int | None:
    try:
        parameters = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return None
    return parameters.index("inplace") if "inplace" in parameters else None


def value_of(node: Any) -> torch.Tensor | None:
    """The (fake) tensor of a node as Dynamo recorded it; None if it is none or unknown."""
    if not isinstance(node, fx.Node):
        return None
    value = node.meta.get("example_value", node.meta.get("val"))
    return value if isinstance(value, torch.Tensor) else None


def same_size(first: Any, second: Any) -> bool:
    """Whether two sizes are equal on all inputs, asked without adding a guard."""
    return bool(statically_known_true(first == second))


def differs(first: Any, second: Any) -> bool:
    """Whether two sizes differ on all inputs, asked without adding a guard."""
    return bool(statically_known_true(first != second))


def same_shape(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Whether two shapes are equal on all inputs."""
    return len(first) == len(second) and all(map(same_size, first, second))


def spelled(node: fx.Node) -> str:
    """The operation as its author wrote it, for messages: never a node's name."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op == "output":
        return "the graph's output"
    return getattr(node.target, "__name__", str(node.target))
