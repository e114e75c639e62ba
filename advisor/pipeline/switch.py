"""A compiled step whose graphs can be exchanged one by one, without compiling the others again.

Trying a plan by a `torch.compile` of its own repeats Dynamo, autograd's partition and every graph
that the plan does not touch. Here all of that happens once: Inductor's graphs are kept as they came
in, a trial recompiles those in which it swaps something, and the step calls whichever is selected.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import fx
from torch._guards import CompileContext, TracingContext, compile_context, tracing
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.debug import reset_provenance_globals

from advisor.apply.compiler.apart import keep_apart
from advisor.apply.compiler.cuts import CompiledKernel
from advisor.apply.compiler.generated import GeneratedKernel, kernels_of_code
from advisor.apply.compiler.names import keys_of
from advisor.apply.kernels import ReadyKernel
from advisor.apply.rewrite import rewrite
from advisor.model.base import Phase
from advisor.pipeline.backend import (
    EXACT_LAYOUT,
    NOTHING_TOLD,
    GraphRewrite,
    SwapLog,
    Told,
    cache_key,
    choose_swaps,
    with_rewrites,
)
from advisor.pipeline.graph_programs import GraphPrograms, programs_of
from collectors.live.capture import (
    PROVENANCE,
    BoxedCall,
    GraphHook,
    HookPass,
    backend_with,
    no_compile_caches,
    nodes_of_kernels,
)
from collectors.live.fx_graph import copied, lower

Compiled = Callable[[list[Any]], Any]


@dataclass
class _Held:
    """One graph as Inductor was given it, what can be swapped in it, and how it runs unswapped.

    `graph` is it after all passes, None where none has run: it came from a cache.

    The contexts are those it was compiled in: its sizes and fake tensors live there.
    """

    module: fx.GraphModule
    inputs: Sequence[Any]
    arguments: Mapping[str, Any]
    tracing: TracingContext | None
    compiling: CompileContext | None
    phase: Phase
    programs: GraphPrograms | None = None
    keys: frozenset[str] = frozenset()
    plain: Compiled | None = None
    graph: fx.Graph | None = None
    seen: Seen | None = None


class Seen(NamedTuple):
    """What the compiler made of one graph: the graph after all passes, and its kernels.

    `generated` are those that it wrote in Triton.
    """

    graph: fx.Graph
    kernels: tuple[CompiledKernel, ...]
    generated: tuple[GeneratedKernel, ...]


class OwnKernels(NamedTuple):
    """One compiled graph: what plans may be for in it, and what the compiler made of it."""

    programs: GraphPrograms | None
    seen: Seen


@dataclass(frozen=True)
class Selection:
    """What to run for each graph, by its number; graphs that are not named run unswapped."""

    graphs: Mapping[int, Compiled] = field(default_factory=dict)


PLAIN = Selection()


class GraphSwitch:
    """The graphs of one step compiled with `backend()`; one of its selections runs at a time.

    `rewrites` change Dynamo's graphs first, `log` says how; `settings` are Inductor's own. In
    graphs of a step `on_gpu` nothing is swapped on the CPU.
    """

    def __init__(
        self, rewrites: Sequence[GraphRewrite] = (), *, on_gpu: bool = False, **settings: Any
    ) -> None:
        self._settings = settings | EXACT_LAYOUT
        self._rewrites, self._on_gpu = rewrites, on_gpu
        self.log = SwapLog()
        self._held: list[_Held] = []
        self._selected = PLAIN
        self._recorder = HookPass(self._record, "fusion-advisor-switch", holds=True)

    def backend(self) -> Callable[..., Any]:
        """The Dynamo backend whose graphs this switch holds."""
        settings = self._settings | PROVENANCE
        backend = backend_with(self._recorder, self._compile_first, **settings)
        return with_rewrites(backend, self._rewrites, self.log)

    def select(self, selection: Selection) -> None:
        """Run these graphs from now on."""
        self._selected = selection

    def with_kernels(
        self, kernels: Sequence[ReadyKernel], log: SwapLog, told: Told = NOTHING_TOLD
    ) -> Selection:
        """Compile the graphs in which a site is swapped, or of whose kernels something is `told`.

        `log` says what became of every site.
        """

        def swap(graph: fx.Graph, phase: Phase, identity: str) -> None:
            log.cuts += keep_apart(graph, told.splits)
            lowered = lower(graph, identity, phase, on_gpu=self._on_gpu)
            swaps = choose_swaps(programs_of(lowered.graph), kernels)
            log.outcomes += rewrite(graph, lowered.fx_node, lowered.fx_aliases, swaps)

        touched = [
            number
            for number, held in enumerate(self._held)
            if choose_swaps(held.programs, kernels) or self._is_told(number, held, told)
        ]
        return self.recompiled(touched, swap, cache_key(kernels, told), told)

    def recompiled(
        self, numbers: Sequence[int], hook: GraphHook, key: str, told: Told = NOTHING_TOLD
    ) -> Selection:
        """Compile these graphs, numbered as they were first compiled, with another post-grad hook.

        Raises whatever the compiler does.
        """
        return Selection({number: self._recompile(number, hook, key, told) for number in numbers})

    def programs(self) -> list[GraphPrograms]:
        """What plans may be for, graph by graph; of none that came from a cache."""
        return [held.programs for held in self._held if held.programs is not None]

    def seen(self) -> tuple[Seen, ...]:
        """The kernels of every graph as the compiler makes them by itself; looked at once."""
        return tuple(self._seen(number) for number in range(len(self._held)))

    def _seen(self, number: int) -> Seen:
        held = self._held[number]
        if held.seen is None:
            graphs: list[fx.Graph] = []

            def look(graph: fx.Graph, phase: Phase, identity: str) -> None:
                graphs.append(copied(graph))

            with reset_provenance_globals():
                compiled = self._recompile(number, look, "fusion-advisor-look", **PROVENANCE)
            held.seen = _seen_in(graphs[-1], compiled)
        return held.seen

    def own_kernels(self) -> list[OwnKernels]:
        """The same, with what plans may be for in each graph; None where no pass has run."""
        return [
            OwnKernels(held.programs, seen)
            for held, seen in zip(self._held, self.seen(), strict=True)
        ]

    def _is_told(self, number: int, held: _Held, told: Told) -> bool:
        if any(
            key in held.keys for split in told.splits for group in split.groups for key in group
        ):
            return True
        sources = {one.source for one in told.retuned}
        return bool(sources) and any(k.source in sources for k in self._seen(number).generated)

    def _compile_first(self, gm: fx.GraphModule, inputs: Sequence[Any], **arguments: Any) -> Any:
        number = len(self._held)
        held = _Held(
            _copied(gm),
            list(inputs),
            dict(arguments),
            TracingContext.try_get(),
            CompileContext.try_get(),
            self._recorder.phase,
        )
        self._held.append(held)
        # A backward graph is compiled when first run, outside the context that keeps provenance.
        with reset_provenance_globals():
            held.plain = compile_fx_inner(gm, inputs, **arguments)
        if held.graph is not None:
            held.seen = _seen_in(held.graph, held.plain)
        return BoxedCall(lambda given: self._run(number, given))

    def _record(self, graph: fx.Graph, phase: Phase, identity: str) -> None:
        self._held[-1].graph = copied(graph)
        self._held[-1].keys = frozenset(keys_of(graph).values())
        self._held[-1].programs = programs_of(
            lower(graph, identity, phase, on_gpu=self._on_gpu).graph
        )

    def _run(self, number: int, given: list[Any]) -> Any:
        run = self._selected.graphs.get(number) or self._held[number].plain
        assert run is not None
        return run(given)

    def _recompile(
        self, number: int, hook: GraphHook, key: str, told: Told = NOTHING_TOLD, **more: Any
    ) -> Compiled:
        held = self._held[number]
        hook_pass = HookPass(hook, key, holds=True)
        hook_pass.phase = held.phase
        settings = {"post_grad_custom_post_pass": hook_pass, **self._settings, **more}
        with _as_compiled(held), inductor_config.patch(settings), no_compile_caches():
            compiled: Compiled = told.compiling(compile_fx_inner)(
                _copied(held.module), list(held.inputs), **held.arguments
            )
        return compiled


@contextmanager
def _as_compiled(held: _Held) -> Iterator[None]:
    """The contexts in which the graph was compiled first."""
    with compile_context(held.compiling), tracing(held.tracing):
        yield


def _seen_in(graph: fx.Graph, compiled: Any) -> Seen:
    """What the compiler made of a graph that it compiled with `PROVENANCE`."""
    return Seen(
        graph,
        tuple(CompiledKernel(*pair) for pair in nodes_of_kernels(compiled)),
        kernels_of_code(getattr(compiled, "source_code", "")),
    )


def _copied(gm: fx.GraphModule) -> fx.GraphModule:
    """A twin with a graph of its own, for passes to work on; its constants are shared."""
    twin = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    twin.meta = dict(gm.meta)
    return twin
