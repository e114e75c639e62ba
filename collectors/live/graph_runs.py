"""What the graphs of a step are given, run by run: one is compiled once, and may run often.

A graph that is compiled for any size runs on others in the same step or in the next, of which what
was captured says nothing: it has the sizes of its first run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch._inductor import compile_fx as inductor

from collectors.live.workload import shape_text

Backend = Callable[..., Any]
Look = Callable[[fx.GraphModule], None]
# What AOTAutograd calls the function of a compiled graph.
COMPILED = "CompiledFunction"


@dataclass(frozen=True)
class GraphRun:
    """One run: the number of the graph in order of compilation, its tensors as text.

    A run `backward` is that of the gradients of an earlier one, whose tensors it has.
    """

    graph: int
    given: tuple[str, ...]
    backward: bool = False


class GraphCall(NamedTuple):
    """A run by the place of its graph among others; is it `like` the first, which was captured?"""

    graph: int
    like: bool = True


@dataclass
class GraphRuns:
    """The runs of each step that was watched; `own_regions` where the code compiles itself.

    Graphs are those of the first step, or of the `latest`.
    """

    steps: list[list[GraphRun]] = field(default_factory=list)
    own_regions: bool = False
    latest: bool = False
    _is_watching: bool = False
    _compiled: int = 0

    @property
    def step(self) -> list[GraphRun]:
        """What ran in the step that the graphs are of."""
        return (self.steps or [[]])[-1 if self.latest else 0]

    def watch(self, *, again: bool = False) -> None:
        """What runs from now on is of a step: of one more with `again`, else of the first."""
        self.steps = [*(self.steps if again else ()), []]
        self._is_watching = True

    def stop(self) -> None:
        """What runs from now on is of no step."""
        self._is_watching = False

    def watching(self, backend: Backend, look: Look) -> Backend:
        """A backend whose graphs note what they are given, as long as anybody watches.

        Those of the first step are shown to `look`, as Dynamo made them. `backend` is told the
        `number` of each.
        """

        def shown(gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            if len(self.steps) <= 1:
                look(gm)
            number = self._compiled
            self._compiled += 1
            return self._noting(number, backend(gm, inputs, number=number, **options))

        return shown

    def own(self, backend: Backend) -> Backend:
        """The same backend for regions that the code compiles itself."""

        def shown(gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            self.own_regions = True
            return backend(gm, inputs, **options)

        return shown

    def _noting(self, number: int, compiled: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            if not self._is_watching:
                return compiled(*inputs)
            given = tuple(shape_text(x) for x in inputs if isinstance(x, torch.Tensor))
            self._note(GraphRun(number, given))
            results = compiled(*inputs)
            backward = _backward_of(inputs, results)
            if backward is not None:
                gradients = GraphRun(number, given, backward=True)
                backward.register_prehook(lambda _: self._note(gradients))
            return results

        return run

    def _note(self, run: GraphRun) -> None:
        if self._is_watching:
            self.steps[-1].append(run)


def calls_of(
    graphs: Sequence[tuple[int | None, bool]], runs: Iterable[GraphRun]
) -> list[GraphCall]:
    """The runs of a step as those of `graphs`, in order.

    Graphs are told by (number, whether of the gradients); one that was not seen to run, as where
    autograd does not say so, is taken to run once, after the others.
    """
    first: dict[tuple[int, bool], tuple[str, ...]] = {}
    found = []
    for run in runs:
        key = run.graph, run.backward
        like = first.setdefault(key, run.given) == run.given
        found += [GraphCall(at, like) for at, graph in enumerate(graphs) if graph == key]
    seen = {call.graph for call in found}
    return [*found, *(GraphCall(at) for at in range(len(graphs)) if at not in seen)]


def _backward_of(given: Any, results: Any) -> torch.autograd.graph.Node | None:
    """The node of autograd that runs the gradients of a compiled graph; None if nothing has any.

    A result that is a view of another hangs on the view's own node; one that was given, on what
    made it before.
    """
    pending = [x.grad_fn for x in results if isinstance(x, torch.Tensor)]
    seen = {x.grad_fn for x in given if isinstance(x, torch.Tensor)}
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith(COMPILED):
            return node
        pending += [before for before, _ in node.next_functions]
    return None


def compiles_itself(part: object) -> bool:
    """Whether a module, or a function by what it is made of, has parts that it compiles itself."""
    held = [part]
    if inspect.isroutine(part):
        with suppress(TypeError):  # not written in Python
            names = inspect.getclosurevars(part)
            held += [*names.nonlocals.values(), *names.globals.values()]
    elif not isinstance(part, nn.Module):
        held += getattr(part, "__dict__", {}).values()
    return any(map(_is_compiled, held))


def _is_compiled(item: object) -> bool:
    if isinstance(item, nn.Module):
        return any(
            isinstance(m, OptimizedModule) or m._compiled_call_impl is not None
            for m in item.modules()
        )
    return isinstance(item, FunctionType) and hasattr(item, "_torchdynamo_orig_callable")


@contextmanager
def compiled_by(backend: Backend) -> Iterator[None]:
    """Have a backend compile what code gives to Inductor meanwhile."""
    original = inductor.compile_fx

    def compile_fx(gm: Any, example_inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        # A backend's own call, or the one that it makes of itself to set options.
        if args or "inner_compile" in kwargs:
            return original(gm, example_inputs, *args, **kwargs)
        return backend(gm, example_inputs, config_patches=kwargs.get("config_patches"))

    inductor.compile_fx = compile_fx  # type: ignore[assignment]
    try:
        yield
    finally:
        inductor.compile_fx = original
