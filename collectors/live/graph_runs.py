"""What the graphs of a step are given, run by run: one is compiled once, and may run often.

A graph that is compiled for any size runs on others in the same step or in the next, of which what
was captured says nothing: it has the sizes of its first run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch._inductor import compile_fx as inductor

from collectors.live.workload import shape_text

Backend = Callable[..., Any]
Look = Callable[[fx.GraphModule], None]


@dataclass(frozen=True)
class GraphRun:
    """One run: the number of the graph in order of compilation, its tensors as text."""

    graph: int
    given: tuple[str, ...]


@dataclass
class GraphRuns:
    """The runs of each step that was watched; `own_regions` where the code compiles itself."""

    steps: list[list[GraphRun]] = field(default_factory=list)
    own_regions: bool = False
    _is_watching: bool = False
    _compiled: int = 0

    def watch(self, *, again: bool = False) -> None:
        """What runs from now on is of a step: of one more with `again`, else of the first."""
        self.steps = [*(self.steps if again else ()), []]
        self._is_watching = True

    def stop(self) -> None:
        """What runs from now on is of no step."""
        self._is_watching = False

    def watching(self, backend: Backend, look: Look) -> Backend:
        """A backend whose graphs note what they are given, as long as anybody watches.

        Those of the first step are shown to `look`, as Dynamo made them.
        """

        def shown(gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            if len(self.steps) <= 1:
                look(gm)
            return self._noting(backend(gm, inputs, **options))

        return shown

    def own(self, backend: Backend) -> Backend:
        """The same backend for regions that the code compiles itself."""

        def shown(gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            self.own_regions = True
            return backend(gm, inputs, **options)

        return shown

    def _noting(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        number = self._compiled
        self._compiled += 1

        def run(*inputs: Any) -> Any:
            if self._is_watching:
                given = tuple(shape_text(x) for x in inputs if isinstance(x, torch.Tensor))
                self.steps[-1].append(GraphRun(number, given))
            return compiled(*inputs)

        return run


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
