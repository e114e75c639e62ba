"""`Graph`: a step's dataflow, canonical and self-checked, whatever it was captured from.

Values are written `%node` or `%node#k` for output k of a multi-output node. Nodes are in execution
order. Everything that decides legality is here as data (op, shapes, strides, aliasing, mutation);
`label`, `id` and `module` are for people only, and renaming them changes no candidate.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Literal

import msgspec

from advisor.errors import InvalidRecordError
from advisor.model.base import Location, Phase, Record
from advisor.model.optable import ITEM_BYTES, spec_of
from advisor.model.sizes import Dim

GraphSource = Literal["compiled", "execution_trace", "inferred"]
Level = Literal["dynamo", "post_grad"]
Boundary = Literal["stream", "communication"]
Arg = str | int | float | bool | None
NON_FINITE: dict[str, float] = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_VALUE = re.compile(r"%([^%#][^#]*)(?:#([0-9]{1,6}))?", re.DOTALL)
AttributeValue = str | int | float | bool | None | tuple[int, ...]


def value_id(node: str, output: int = 0) -> str:
    """The name of output `output` of `node` as an argument."""
    return f"%{node}" if output == 0 else f"%{node}#{output}"


def node_of(value: str) -> tuple[str, int]:
    """The node and output index of a value name; raises `InvalidRecordError` for any other text."""
    if value[:1] == "%" and value[1:2] not in ("", "%") and "#" not in value:
        return value[1:], 0  # by far the most
    match = _VALUE.fullmatch(value)
    if match is None:
        raise InvalidRecordError(f"{value[:40]!r} does not name a value")
    return match[1], int(match[2] or 0)


def is_value(arg: Arg) -> bool:
    """True for a reference to a value, False for a literal."""
    return isinstance(arg, str) and arg.startswith("%")


def literal(number: float | int | bool) -> Arg:
    """A Python number as an argument; non-finite floats are spelled, since JSON has none."""
    if isinstance(number, float) and not math.isfinite(number):
        return "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")
    return number


def literal_value(arg: Arg) -> float | int | bool:
    """The number behind a literal argument; raises `InvalidRecordError` for anything else."""
    if isinstance(arg, str):
        if arg not in NON_FINITE:
            raise InvalidRecordError(f"{arg!r} is not a literal")
        return NON_FINITE[arg]
    if arg is None:
        raise InvalidRecordError("None is not a number")
    return arg


# Attributes of a view that takes a part of a tensor: the axis that it cuts, and where.
AXIS, START = "axis", "start"
# Attributes of a matrix product, where they are not as usual: the places of its operands and of
# what is added among its arguments; the factors `beta alpha` of both; whether TF32 is allowed.
OPERANDS, ADDED, FACTORS, TF32 = "operands", "added", "factors", "tf32"
# Of a tensor that counts: its first element, and how far the next one is.
FIRST, STEP = "first", "step"
# Of a lookup of whole rows: the places of its operands among its arguments.
TABLE, INDEX = "table", "index"
# How the origins of gradients begin; those of other nodes name ops of the forward pass.
GRADIENT = "backward."


class TensorMeta(Record, frozen=True, kw_only=True):
    """Shape and strides in elements (symbolic sizes as text), dtype, device type."""

    dtype: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    device: str = "cuda"

    def check(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise InvalidRecordError(f"unknown dtype {self.dtype!r}")
        if len(self.shape) != len(self.strides):
            raise InvalidRecordError(
                f"shape {self.shape} and strides {self.strides} differ in rank"
            )
        if any(isinstance(dim, int) and dim < 0 for dim in self.shape):
            raise InvalidRecordError(f"negative size in {self.shape}")


class SourceOp(Record, frozen=True, kw_only=True):
    """An op of the user's program, by `origin` and `label` as nodes have them."""

    origin: str
    label: str


class Node(Record, frozen=True, kw_only=True):
    """One op of the table (or `opaque`), its arguments, outputs, aliasing and place in the program.

    `origin` names the source-level op instance this node was decomposed from: nodes of one origin
    are one eager op; `repeats` are further such ops that compute the very same value, which eager
    runs each. `mutates` lists values whose storage this node writes; `alias_of` the value
    whose storage the output shares. `stream` is the user's own stream that it runs on, None for the
    one that is current. A `boundary` of streams orders everything before it and after it; one of
    communication is work of other GPUs that its readers wait for. The value of a `hidden` node is
    in no op of the captured graph, but inside one: no kernel can read or write it. What the
    compiler has `recomputed` in a backward graph is part of the gradient that needs it; eager has
    saved the value.
    """

    id: str
    op: str
    args: tuple[Arg, ...] = ()
    attributes: dict[str, AttributeValue] = {}
    outputs: tuple[TensorMeta, ...] = ()
    target: str = ""
    label: str = ""
    origin: str | None = None
    repeats: tuple[SourceOp, ...] = ()
    alias_of: str | None = None
    mutates: tuple[str, ...] = ()
    has_side_effect: bool = False
    stream: int | None = None
    boundary: Boundary | None = None
    hidden: bool = False
    recomputed: bool = False
    location: Location = Location()

    @property
    def value_args(self) -> tuple[str, ...]:
        """The arguments that are values, in order, repeats kept."""
        return tuple(arg for arg in self.args if isinstance(arg, str) and arg.startswith("%"))

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions that a reduction reduces, in order."""
        value = self.attributes.get("axes")
        if not isinstance(value, tuple):
            raise InvalidRecordError(f"{self.id}: {self.op} has no axes")
        return value

    def value(self, output: int = 0) -> str:
        """The name of an output of this node."""
        return value_id(self.id, output)


class Graph(Record, frozen=True, kw_only=True):
    """A checked, topologically ordered dataflow graph.

    `inputs` are nodes without arguments (parameters, activations, buffers); `outputs` the values
    that leave the graph; `size_hints` the value each symbolic size had when captured;
    `eager_strides` those of values that the compiler lays out otherwise than eager code does;
    `executions` how often it runs in one step on the sizes that it was captured with.
    """

    id: str
    source: GraphSource
    level: Level
    phase: Phase
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    size_hints: dict[str, int] = {}
    eager_strides: dict[str, tuple[int, ...]] = {}
    executions: int = 1

    def check(self) -> None:
        known: dict[str, int] = {}
        for node in self.nodes:
            if node.id in known or not node.id or node.id[0] == "%" or "#" in node.id:
                raise InvalidRecordError(
                    f"node id {node.id!r} is repeated or malformed", where=self.id
                )
            spec = spec_of(node.op)
            if spec.arity >= 0 and len(node.args) != spec.arity:
                raise InvalidRecordError(
                    f"{node.id}: {node.op} takes {spec.arity} arguments", where=self.id
                )
            for meta in node.outputs:
                meta.check()
            aliased = () if node.alias_of is None else (node.alias_of,)
            for value in (*node.value_args, *node.mutates, *aliased):
                self._require(value, known, node.id)
            known[node.id] = max(len(node.outputs), 1)
        named = (*self.outputs, *self.eager_strides, *(value_id(name) for name in self.inputs))
        for value in named:
            self._require(value, known, "the graph")

    def _require(self, value: str, known: dict[str, int], user: str) -> None:
        """Raise unless `value` is an output of a node seen so far; a node has one at least."""
        name, output = node_of(value)
        if output >= known.get(name, 0):
            raise InvalidRecordError(f"{user} uses {value} before it exists", where=self.id)

    def by_id(self) -> dict[str, Node]:
        """Nodes by id."""
        return {node.id: node for node in self.nodes}

    def fingerprint(self) -> str:
        """A hash of structure and shapes alone: ids, labels, places do not enter, nor which part
        of a tensor a view takes.
        """
        index = {node.id: position for position, node in enumerate(self.nodes)}

        def stable(arg: Arg) -> Arg:
            if not is_value(arg):
                return arg
            name, output = node_of(str(arg))
            return f"%{index[name]}#{output}"

        rows = [
            [
                n.op,
                n.target if n.op == "opaque" else "",
                [stable(a) for a in n.args],
                {key: n.attributes[key] for key in n.attributes if key not in (AXIS, START)},
                [[m.dtype, m.shape, m.strides] for m in n.outputs],
            ]
            for n in self.nodes
        ]
        data = msgspec.json.encode([rows, [stable(v) for v in self.outputs]], order="sorted")
        return hashlib.sha256(data).hexdigest()[:16]
