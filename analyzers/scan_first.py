"""A first step that a state of zeros folded away, put back: `x + 0` left `x` in its place.

A sum of products S[t] = S[t-1] + k[t] v[t] has no sum in its first step, so its loop seems to begin
a step later, from k[1] v[1]. What that step and its readers would be is looked for here; whether
they are what the others are is checked where all steps are.
"""

from __future__ import annotations

from dataclasses import replace

from advisor.model.graph import Arg, is_value
from analyzers.dataflow import Dataflow
from analyzers.reads import passes, read_of
from analyzers.recurrence import Recurrence
from analyzers.step_columns import look


def with_first(flow: Dataflow, loop: Recurrence) -> Recurrence | None:
    """The loop with a step before its first one; None where nothing of the kind is there."""
    before = min(k for at in loop.carried for k in loop.columns[at]) - 1
    found: dict[int, str] = {}
    for state in loop.states:
        first = loop.columns[state].get(before + 1)
        left = _read_first(flow, loop, state, before + 1)
        if first is None or left is None or flow.nodes[first].op != "add":
            return None
        for position in (0, 1):
            added = loop.sources.get((state, 1 - position))
            zero = is_zero(flow, loop, loop.sources.get((state, position)))
            if zero and added is not None and _alike(flow, loop, added[0], left):
                found[state] = found[added[0]] = left
    if len(found) < 2 * len(loop.states):
        return None
    _complete(flow, loop, found)
    columns = tuple(
        {**column, before: found[at]} if at in found and at not in loop.states else column
        for at, column in enumerate(loop.columns)
    )
    return replace(loop, columns=columns, steps=loop.steps + 1)


def is_zero(flow: Dataflow, loop: Recurrence, source: tuple[int, int] | None) -> bool:
    """Whether an operand is 0 where the state is: the state itself, or numbers times it."""
    if source is None:
        return False
    column, lag = source
    if lag == 1:
        return column in loop.states
    node = flow.nodes[loop.sample(column)]
    if lag or node.op not in ("mul", "neg"):
        return False
    operands = [loop.sources.get((column, n)) for n in range(len(node.args))]
    numbers = [not (isinstance(arg, str) and is_value(arg)) for arg in node.args]
    return any(
        is_zero(flow, loop, one) and all(n or k == position for k, n in enumerate(numbers))
        for position, one in enumerate(operands)
    )


def _read_first(flow: Dataflow, loop: Recurrence, state: int, k: int) -> str | None:
    """What is read as a state in the first step that was found."""
    for (reader, position), source in loop.sources.items():
        name = loop.columns[reader].get(k)
        if source == (state, 1) and name is not None:
            return _producer(flow, flow.nodes[name].args[position])
    return None


def _complete(flow: Dataflow, loop: Recurrence, found: dict[int, str]) -> None:
    """Add what these nodes of the first step read, and who reads them as in the other steps."""
    size = 0
    while size != len(found):
        size = len(found)
        for (reader, position), (source, lag) in loop.sources.items():
            if lag or reader in loop.states:
                continue
            if reader in found and source not in found:
                made = _producer(flow, flow.nodes[found[reader]].args[position])
                if made is not None and _alike(flow, loop, source, made):
                    found[source] = made
            elif source in found and reader not in found:
                for name in _consumers(flow, found[source]):
                    reads = _producer(flow, flow.nodes[name].args[position : position + 1])
                    if _alike(flow, loop, reader, name) and reads == found[source]:
                        found[reader] = name
                        break


def _alike(flow: Dataflow, loop: Recurrence, column: int, name: str) -> bool:
    held = loop.columns[column].values()
    return name not in held and look(flow.nodes[name]) == look(flow.nodes[loop.sample(column)])


def _producer(flow: Dataflow, arg: Arg | tuple[Arg, ...]) -> str | None:
    """The computing node behind an operand, None where that is a number."""
    value = (arg[0] if arg else None) if isinstance(arg, tuple) else arg
    return read_of(flow, value).producer if isinstance(value, str) and is_value(value) else None


def _consumers(flow: Dataflow, name: str) -> list[str]:
    """The computing nodes that read a node's results, through views of any kind."""
    pending, found = [name], list[str]()
    while pending:
        node = flow.nodes[pending.pop()]
        for output in range(max(len(node.outputs), 1)):
            for use in flow.uses.get(node.value(output), ()):
                if passes(flow.nodes[use.consumer]):
                    pending.append(use.consumer)
                else:
                    found.append(use.consumer)
    return found
