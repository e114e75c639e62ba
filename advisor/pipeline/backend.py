"""The `fusion_advisor` backend of `torch.compile`: Inductor, then proved plans swapped in.

On every post-grad graph the analyzers run again; a site is swapped where they find the very program
of a plan. So nothing depends on node names, and a graph that changed since the run was profiled is
matched by what it computes, or not at all. The plans and their generated sources are part of every
compile-cache key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor import list_mode_options
from torch._inductor.compile_fx import compile_fx_inner

from advisor import __version__
from advisor.apply.compiler.apart import Cut, choosing_apart, keep_apart
from advisor.apply.compiler.generated import as_retuned, settings_of
from advisor.apply.graph.attention import rewrite_attention
from advisor.apply.graph.loss import rewrite_losses
from advisor.apply.graph.records import Rewritten
from advisor.apply.kernels import ReadyKernel
from advisor.apply.recipe import Recipe
from advisor.apply.rewrite import Outcome, Swap, rewrite
from advisor.errors import UsageError
from advisor.model.actions import ActionKind
from advisor.model.base import Phase
from advisor.model.cures import Retuned, Split
from advisor.pipeline.graph_programs import (
    NO_SITE,
    GraphPrograms,
    placed,
    programs_of,
    why_no_site,
)
from advisor.pipeline.kept import kept_at
from advisor.pipeline.misfits import tell_of_graph
from collectors.live.capture import HookPass, backend_with
from collectors.live.fx_graph import lower

# Inductor may pad rows of its own buffers; plan sites promise the strides of the captured graph.
EXACT_LAYOUT = {"comprehensive_padding": False}
# So does what a forward hands on; what was compiled otherwise, or with kernels for known sizes
# alone, is in no cache of ours.
HELD = "held layouts, any number of rows"


GraphRewrite = Callable[[fx.GraphModule], Sequence[Rewritten]]
GRAPH_REWRITES: dict[ActionKind, GraphRewrite] = {
    "attention": rewrite_attention,
    "flex_attention": partial(rewrite_attention, prefer_flex=True),
    "chunked_loss": rewrite_losses,
}


def rewrites_of(actions: Sequence[ActionKind]) -> list[GraphRewrite]:
    """What the actions do to Dynamo's graphs."""
    return [GRAPH_REWRITES[kind] for kind in actions if kind in GRAPH_REWRITES]


@dataclass
class SwapLog:
    """What happened to every site in every graph compiled so far, at both levels.

    `compiled` counts Dynamo's graphs; `phases` are those of graphs in which sites were looked for,
    and `from_cache` says that there were others, which the compiler took from its caches as they
    are. Some were wholly `on_cpu`, where no kernel is launched, some were not (`on_gpu`). `absent`
    is why a plan has no site, by its id, where `explains` asks for it.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    rewritten: list[Rewritten] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    compiled: int = 0
    phases: set[Phase] = field(default_factory=set)
    from_cache: bool = False
    on_cpu: bool = False
    on_gpu: bool = False
    explains: bool = False
    absent: dict[str, str] = field(default_factory=dict)

    def swapped(self, plan_id: str) -> int:
        """Sites of a plan that now call its kernel."""
        return sum(o.refused is None and o.swap.kernel.plan.id == plan_id for o in self.outcomes)

    def refusals(self, plan_id: str) -> tuple[str, ...]:
        """Distinct reasons why sites of a plan kept their original ops."""
        reasons = [
            o.refused for o in self.outcomes if o.refused and o.swap.kernel.plan.id == plan_id
        ]
        return tuple(dict.fromkeys(reasons))

    def explain(self, kernels: Sequence[ReadyKernel], programs: GraphPrograms | None) -> None:
        """Keep why kernels without a site so far have none in a graph; a telling reason stays."""
        for plan in (kernel.plan for kernel in kernels):
            if programs is not None and self.absent.get(plan.id, NO_SITE) == NO_SITE:
                self.absent[plan.id] = why_no_site(plan, [programs])


@dataclass(frozen=True)
class Told:
    """What the compiler is told of its own kernels: which to cut, which to launch otherwise."""

    splits: tuple[Split, ...] = ()
    retuned: tuple[Retuned, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """What Inductor must know as well where it loads what is in its caches."""
        return settings_of(self.retuned) if self.retuned else {}

    def compiling(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """An inner compiler that does so."""
        if not (self.splits or self.retuned):
            return inner

        def told(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                if self.splits:
                    stack.enter_context(choosing_apart())
                if self.retuned:
                    stack.enter_context(as_retuned(self.retuned))
                return inner(*args, **kwargs)

        return told


NOTHING_TOLD = Told()


def _on_cpu(graph: fx.Graph) -> bool:
    values = (node.meta.get("val") for node in graph.nodes)
    return {v.device.type for v in values if isinstance(v, torch.Tensor)} == {"cpu"}


def plan_backend(
    kernels: Sequence[ReadyKernel],
    log: SwapLog,
    inner: Callable[..., Any] = compile_fx_inner,
    rewrites: Sequence[GraphRewrite] = (),
    told: Told = NOTHING_TOLD,
    **settings: Any,
) -> Callable[..., Any]:
    """A Dynamo backend that swaps the sites of `kernels`; earlier ones claim their sites first.

    `rewrites` change Dynamo's graphs before that; `told` is what the compiler is told of its own
    kernels; `settings` are Inductor's own.
    """

    def hook(graph: fx.Graph, phase: Phase, identity: str) -> None:
        # Before the swaps: ops are named by all that they are computed from.
        log.cuts += keep_apart(graph, told.splits)
        log.phases.add(phase)
        # Inductor has no driver to launch a kernel by on the CPU: there a model keeps its own ops.
        if kernels and inner is compile_fx_inner and _on_cpu(graph):
            log.on_cpu = True
        elif kernels:
            log.on_gpu = True
            lowered = lower(graph, identity, phase)
            programs = programs_of(lowered.graph)
            swaps = choose_swaps(programs, kernels)
            if log.explains:
                placed_here = {swap.kernel.plan.id for swap in swaps}
                log.explain([k for k in kernels if k.plan.id not in placed_here], programs)
            log.outcomes += rewrite(graph, lowered.fx_node, lowered.fx_aliases, swaps)

    layout = EXACT_LAYOUT if kernels else {}
    look = HookPass(hook, cache_key(kernels, told), holds=bool(kernels))
    compiling = _noticing(look, told.compiling(inner), log)
    backend = backend_with(look, compiling, **settings | layout | told.settings)
    return with_rewrites(_noticing(look, backend, log, counts=True), rewrites, log)


def _noticing(
    look: HookPass, compiler: Callable[..., Any], log: SwapLog, *, counts: bool = False
) -> Callable[..., Any]:
    """A compiler of graphs that notes where one came from a cache: then nobody looked at it."""

    def compiled(*args: Any, **options: Any) -> Any:
        before = look.count
        result = compiler(*args, **options)
        log.from_cache |= look.count == before
        log.compiled += counts
        return result

    return compiled


def with_rewrites(
    backend: Callable[..., Any], rewrites: Sequence[GraphRewrite], log: SwapLog
) -> Callable[..., Any]:
    """The backend behind rewrites of Dynamo's graphs; `log` keeps what each did."""

    def rewritten(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        for rewrite_graph in rewrites:
            log.rewritten += rewrite_graph(gm)
        return backend(gm, example_inputs, **options)

    return rewritten if rewrites else backend


def choose_swaps(programs: GraphPrograms | None, kernels: Sequence[ReadyKernel]) -> list[Swap]:
    """The sites that are a kernel's; a node is used once, earlier kernels first."""
    found = placed(programs, [kernel.plan for kernel in kernels])
    return [Swap(kernels[number], kernels[number].plan, site) for number, site in found]


def cache_key(kernels: Sequence[ReadyKernel], told: Told = NOTHING_TOLD) -> str:
    """A hash of everything that decides what the pass does, and the compiler after it."""
    parts = [__version__, HELD, *(kernel.key() for kernel in kernels)]
    parts += [repr(item) for item in (*told.splits, *told.retuned)]
    return "fusion-advisor-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def fusion_advisor(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """`torch.compile(model, backend="fusion_advisor", options={"run": "runs/x"})`.

    Compiles with the plans that `apply` kept in that run and the actions that are about graphs;
    what it did to the model or the optimizer needs `advisor.load(RUN).apply(model)`, and a loss in
    pieces beside the model that loss's own function compiled in the place of the model. `mode` and
    all other options are Inductor's. Plans are data: they are checked again and their kernels
    regenerated; nothing of the run directory is executed. Raises `UsageError` without a run, or if
    nothing is kept in it.
    """
    settings = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    where = settings.pop("run", None)
    if where is None:
        raise UsageError(
            "the fusion_advisor backend needs a run",
            remedy='torch.compile(model, backend="fusion_advisor", options={"run": "runs/x"})',
        )
    recipe, log = kept_at(Path(where)), SwapLog()
    log.explains = True
    compiled = recipe_backend(recipe, log, **settings)(gm, example_inputs)
    tell_of_graph(recipe, log, str(where))
    return compiled


def recipe_backend(recipe: Recipe, log: SwapLog, **settings: Any) -> Callable[..., Any]:
    """The Dynamo backend that does what a recipe says of graphs; `settings` overrule its own."""
    return plan_backend(
        recipe.kernels,
        log,
        rewrites=rewrites_of(recipe.actions),
        told=Told(recipe.splits, recipe.retuned),
        **recipe.settings | settings,
    )
