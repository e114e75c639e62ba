"""The graphs of a script: those of the regions that it compiles, else of the modules it calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.eval_frame import OptimizedModule
from torch._dynamo.external_utils import wrap_inline
from torch.nn.modules import module as module_hooks

from collectors.live.capture import Capture, no_compile_caches, running_backend
from collectors.live.compiler_facts import CompilerWatch
from collectors.live.conductor import ScriptPhase
from collectors.live.graph_runs import compiled_by
from collectors.live.workload import shape_text, tensors


@contextmanager
def compiled_regions(found: Capture, *, generate_code: bool) -> Iterator[None]:
    """Record every graph that the script has Inductor compile meanwhile.

    Without `generate_code` (there is no GPU) the graphs then run op by op.
    """
    backend = running_backend(found, generate_code=generate_code)
    watch = CompilerWatch()
    try:
        with compiled_by(backend), no_compile_caches():
            yield
    finally:
        if found.graphs and found.watch is None and not found.compile_ns:
            found.facts = watch.facts()
            found.compile_ns = found.facts.compile_ns
            found.graph_breaks = found.facts.break_places


class Compiles(ScriptPhase):
    """A phase of one step that sees whether the script compiles regions of its own."""

    def __init__(self, found: Capture) -> None:
        self.found = found
        self.graphs = 0
        self.again = False

    def begin(self, undo: ExitStack) -> int:
        """One step; nothing may be hooked meanwhile, or the hooks are compiled too."""
        return 1

    def enter(self) -> None:
        """See what regions are given in this step."""
        self.found.runs.watch()

    def leave(self, completed: bool) -> None:
        """What runs between steps is of none."""
        self.found.runs.stop()

    def end(self) -> None:
        """Count the graphs of one step: later ones are compiled again, for other shapes."""
        self.graphs = len(self.found.graphs)

    def settle(self, *, timed: bool) -> bool:
        """Keep the graphs that the last steps ran where these were `timed`, else those of the first
        step; False if that cannot be told. `again` then says whether there were others.
        """
        graphs, first = self.found.graphs, self.graphs
        if not first or len(graphs) == first:
            return True
        self.again = True
        known = len(graphs) == 2 * first
        self.found.graphs[:] = graphs[first:] if known and timed else graphs[:first]
        return known or not timed


class Again(ScriptPhase):
    """A phase of one more step of a script with regions of its own: are they compiled again?"""

    def __init__(self, compiles: Compiles) -> None:
        self._compiles = compiles

    def begin(self, undo: ExitStack) -> int:
        """One step, if the first one compiled anything."""
        return 1 if self._compiles.graphs else 0

    def enter(self) -> None:
        """See what regions are given in this step."""
        self._compiles.found.runs.watch(again=True)

    def leave(self, completed: bool) -> None:
        """What runs after the step is of none."""
        self._compiles.found.runs.stop()


class Watch(ScriptPhase):
    """A phase of one step that finds the outermost modules it calls, and what they are given."""

    def __init__(self, found: Capture) -> None:
        self._found = found
        self.modules: list[nn.Module] = []
        self.shapes: tuple[str, ...] = ()
        self._depth = 0

    def begin(self, undo: ExitStack) -> int:
        """Hook every call of a module, unless the script compiles regions of its own."""
        if self._found.graphs:
            return 0
        hooks = (
            module_hooks.register_module_forward_pre_hook(self._called),
            module_hooks.register_module_forward_hook(self._returned, always_call=True),
        )
        for hook in hooks:
            undo.callback(hook.remove)
        return 1

    def enter(self) -> None:
        """Forget what a step that failed has called."""
        self.modules, self.shapes, self._depth = [], (), 0

    def _called(self, module: nn.Module, inputs: Any) -> None:
        if self._depth == 0 and module not in self.modules:
            self.modules.append(module)
            self.shapes += tuple(map(shape_text, tensors(inputs)))
        self._depth += 1

    def _returned(self, module: nn.Module, inputs: Any, result: Any) -> None:
        self._depth -= 1


class CaptureModules(ScriptPhase):
    """A phase of one step in which the outermost modules are compiled, to record their graphs.

    They compute what they always compute, op by op; with `generate_code` by the compiler's kernels,
    and they stay compiled. Nothing is done where the script compiles regions of its own.
    """

    def __init__(
        self, found: Capture, watch: Watch, *, generate_code: bool, announce: Callable[[], None]
    ) -> None:
        self._found, self._watch, self._announce = found, watch, announce
        self._generate_code = generate_code
        self._started_ns = 0
        self.used = False
        self.shapes: tuple[str, ...] = ()
        self._called: list[nn.Module] = []
        self._looks = True
        self._counters = CompilerWatch()

    def begin(self, undo: ExitStack) -> int:
        """Have the modules compiled at their next call."""
        modules = [m for m in self._watch.modules if not isinstance(m, OptimizedModule)]
        if self._found.graphs or not modules:
            return 0
        self._announce()
        torch.compiler.reset()
        self._started_ns = time.perf_counter_ns()
        self._counters = CompilerWatch()
        backend = running_backend(self._found, generate_code=self._generate_code)
        # What cannot be compiled runs as it did, and has no graph.
        undo.enter_context(dynamo_config.patch(suppress_errors=True))
        undo.enter_context(no_compile_caches())
        for module in modules:
            # As torch.compile(module) does: alone, the call of a module of torch.nn is not traced.
            call = wrap_inline(module._call_impl)
            module._compiled_call_impl = self._looking(module, torch.compile(call, backend=backend))
            if not self._generate_code:
                undo.callback(_uncompile, module)
        return 1

    def enter(self) -> None:
        """Forget what a step that failed was given."""
        self.shapes, self._called = (), []
        self._found.runs.watch()

    def _looking(self, module: nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled call that notes what its module is given first in the step of this phase."""

        def call(*inputs: Any, **named: Any) -> Any:
            if self._looks and not torch.compiler.is_compiling() and module not in self._called:
                self._called.append(module)
                self.shapes += tuple(map(shape_text, tensors(inputs)))
            return compiled(*inputs, **named)

        return call

    def leave(self, completed: bool) -> None:
        """A step that failed is compiled again: its graphs are not those of a step."""
        self._found.runs.stop()
        if not completed:
            self._found.graphs.clear()
            torch.compiler.reset()

    def end(self) -> None:
        """Put on record what the compiler said."""
        found = self._found
        self._looks = False
        self.used = bool(found.graphs)
        found.compile_ns = time.perf_counter_ns() - self._started_ns
        found.facts = self._counters.facts()
        found.graph_breaks = found.facts.break_places
        found.watch = self._counters if self._generate_code else None
        if not self._generate_code:
            torch.compiler.reset()


def _uncompile(module: nn.Module) -> None:
    module._compiled_call_impl = None
