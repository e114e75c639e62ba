"""The graphs the compiler sees: every post-grad graph of one step, lowered to `Graph`.

Inductor runs a custom pass at the end of its post-grad passes; ours reads the graph there, which is
where plans are swapped in later. Capture alone needs no code generation and no GPU: the inner
compiler then only runs the passes and returns outputs of the right shapes.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._guards import detect_fake_mode
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import (
    _recursive_post_grad_passes,
    compile_fx,
    compile_fx_inner,
)
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.debug import reset_provenance_globals
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.virtualized import V

from advisor.errors import AdvisorError, WorkloadError
from advisor.model.base import Phase
from advisor.model.compiler import CompilerFacts
from collectors.live.as_on_gpu import decomposed_as_on_gpu
from collectors.live.as_written import as_written, scales_as_written
from collectors.live.compiler_facts import CompilerWatch
from collectors.live.failures import not_compiled
from collectors.live.fx_graph import Lowered, copied, lower
from collectors.live.graph_runs import (
    GraphCall,
    GraphRuns,
    calls_of,
    compiled_by,
    compiles_itself,
)
from collectors.live.layouts import (
    hold_layouts,
    note_layouts,
    settle_layouts,
    take_layouts,
    tell_layouts,
)
from collectors.live.workload import Workload

GraphHook = Callable[[fx.Graph, Phase, str], None]
# Inductor keeps which nodes each of its kernels computes.
PROVENANCE: dict[str, Any] = {"trace.provenance_tracking_level": 1}


Look = Callable[[fx.GraphModule], None]


def unseen(_: fx.GraphModule) -> None:
    """Nobody looks at the graphs as Dynamo makes them."""


@dataclass(frozen=True)
class CapturedGraph:
    """One lowered graph and, if code was generated, which nodes each kernel call computes.

    `kernels` lists (kernel name, node names) in the order of the calls in the generated code;
    `number` is that of Dynamo's graph among those that were compiled.
    """

    lowered: Lowered
    kernels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    number: int | None = None


@dataclass
class Capture:
    """All graphs of a step in compilation order, with the compiler's own facts.

    Of a workload `on_gpu` what is on the CPU is nothing to make kernels of. `failures` are the
    words of what failed while graphs of a script were compiled, which may have gone on without;
    `runs` what the graphs of a step were given.
    """

    graphs: list[CapturedGraph] = field(default_factory=list)
    compile_ns: int = 0
    graph_breaks: int = 0
    device_is_assumed: bool = False
    on_gpu: bool = False
    facts: CompilerFacts = field(default_factory=CompilerFacts)
    watch: CompilerWatch | None = None
    failures: list[str] = field(default_factory=list)
    runs: GraphRuns = field(default_factory=GraphRuns)

    def calls(self) -> list[GraphCall]:
        """The runs of the graphs in the step that they are of, in order."""
        told = [(item.number, item.lowered.graph.phase == "backward") for item in self.graphs]
        return calls_of(told, self.runs.step)

    def compiler_facts(self) -> CompilerFacts:
        """What the compiler counted while capturing and, for a compiled step, in its runs since."""
        return self.facts if self.watch is None else self.watch.facts()


class HookPass(CustomGraphPass):
    """Calls a hook on every post-grad graph; `key` enters every compile-cache key.

    With `holds` what a forward saves keeps its layout, whatever the hook does. `phase`, `number`
    and `dynamo`, the `id` of Dynamo's graph, are of what is being compiled: a backward graph may be
    long after its forward.
    """

    def __init__(self, hook: GraphHook, key: str, *, holds: bool = False) -> None:
        self.hook, self.key, self.holds = hook, key, holds
        self.phase: Phase = "inference"
        self.number: int | None = None
        self.dynamo: int | None = None
        self.count = 0

    def __call__(self, graph: fx.Graph) -> None:
        identity = f"graph{self.count}"
        self.count += 1
        if not self.holds or self.phase != "forward":
            self.hook(graph, self.phase, identity)
            return
        hold_layouts(graph)
        self.hook(graph, self.phase, identity)
        settle_layouts(graph)

    def uuid(self) -> str:
        """What the compile caches see of this pass."""
        return self.key


def backend_with(
    hook_pass: HookPass, inner: Callable[..., Any] = compile_fx_inner, **patches: Any
) -> Callable[..., Any]:
    """A Dynamo backend: Inductor's `compile_fx` with a post-grad hook and an inner compiler."""

    def inner_compile(
        number: int | None,
        dynamo: int,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        **kwargs: Any,
    ) -> Any:
        hook_pass.number, hook_pass.dynamo = number, dynamo
        if kwargs.get("is_backward"):
            hook_pass.phase = "backward"
        else:
            hook_pass.phase = "inference" if kwargs.get("is_inference") else "forward"
        return inner(gm, example_inputs, **kwargs)

    def backend(
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        config_patches: dict[str, Any] | None = None,
        number: int | None = None,
        **_: Any,
    ) -> Any:
        settings = {
            **(config_patches or {}),
            "post_grad_custom_post_pass": hook_pass,
            **patches,
        }
        with scales_as_written():
            return compile_fx(
                gm,
                list(example_inputs),
                inner_compile=partial(inner_compile, number, id(gm.graph)),
                config_patches=settings,
            )

    return backend


def capture(
    workload: Workload,
    *,
    generate_code: bool,
    eager: bool = False,
    again: bool = False,
    look: Look = unseen,
) -> tuple[Capture, Callable[[], Any] | None]:
    """Compile one step and record every graph; with `generate_code`, return the compiled step too.

    With `eager` the graphs are those of what eager runs: the compiler's own replacements of whole
    attentions are left out. `look` is shown every graph as Dynamo made it, before any of this, and
    leaves it as it is. `again` runs a second step, for what its graphs are given alone. Raises
    `WorkloadError` if the step cannot be compiled.
    """
    if generate_code:
        found = Capture()
        generating = _generating(found)
        return found, _recorded(workload, found, generating, generate_code=True, look=look)
    # A step of unknown content may write what it computes; only a known one may see placeholders.
    # On a GPU none: a kernel that asserts what its input holds (a loss on probabilities, an index)
    # takes the whole device down with it.
    if workload.kind != "step" and workload.device.type == "cpu":
        found = Capture()
        try:
            _recorded(workload, found, _passes_only, eager=eager, again=again, look=look)
        except WorkloadError:
            found.graph_breaks += 1
        # Code between graphs may look at values: then only real ones lead it the right way.
        if not found.graph_breaks:
            return found, None
    found = Capture()
    with workload.preserved():
        _recorded(workload, found, _passes_then_run, eager=eager, again=again, look=look)
    return found, None


def _recorded(
    workload: Workload,
    found: Capture,
    inner: Callable[..., Any],
    *,
    generate_code: bool = False,
    eager: bool = False,
    again: bool = False,
    look: Look = unseen,
) -> Callable[[], Any]:
    """Compile and run one step with an inner compiler; `found` is filled. Returns the step."""
    torch.compiler.reset()
    started = time.perf_counter_ns()
    watch = CompilerWatch()
    found.on_gpu = workload.device.type == "cuda"
    backend = _recording_backend(found, inner, generate_code=generate_code, eager=eager)

    shown = found.runs.watching(backend, look)
    found.runs.own_regions = compiles_itself(workload.part)

    try:
        # Some modules (TorchScript) are refused at once.
        step = workload.step_of(lambda part: torch.compile(part, backend=shown))
        with (
            no_compile_caches(),
            _quiet(),
            _no_optimizer(workload, generate_code),
            _as_on_gpu(workload),
            # On a GPU the trace tells what these regions run.
            contextlib.nullcontext() if found.on_gpu else compiled_by(found.runs.own(shown)),
        ):
            found.runs.watch()
            step()
            _conclude(found, started, watch)
            if again and not (inner is _passes_only and found.graph_breaks):
                _run_again(step, found)
    except WorkloadError as error:
        raise not_compiled(workload.target, error.__cause__ or error) from error
    except Exception as error:  # Dynamo may raise anything
        raise not_compiled(workload.target, error) from error
    finally:
        found.runs.stop()
    found.device_is_assumed = workload.device.type == "cpu"
    if generate_code:
        found.watch = watch
    else:
        torch.compiler.reset()
    return step


def _conclude(found: Capture, started_ns: int, watch: CompilerWatch) -> None:
    found.compile_ns = time.perf_counter_ns() - started_ns
    found.facts = watch.facts()
    found.graph_breaks = found.facts.break_places


def _run_again(step: Callable[[], Any], found: Capture) -> None:
    """One more step, for what its graphs are given; it may fail, and adds no graph."""
    graphs = len(found.graphs)
    found.runs.watch(again=True)
    with contextlib.suppress(AdvisorError):
        step()
    del found.graphs[graphs:]


def _recording_backend(
    found: Capture, inner: Callable[..., Any], *, generate_code: bool, eager: bool = False
) -> Callable[..., Any]:
    """A Dynamo backend that records every graph into `found` before `inner` compiles it."""

    def record(graph: fx.Graph, phase: Phase, identity: str) -> None:
        # A copy: later passes rewrite the compiler's own graph in place.
        lowered = lower(copied(graph), identity, phase, on_gpu=found.on_gpu, dynamo=hook.dynamo)
        lowered.graph.check()
        found.graphs.append(CapturedGraph(lowered, number=hook.number))

    # What is measured runs as its user has it compiled.
    hook = HookPass(record, "fusion-advisor-capture", holds=not generate_code)
    patches: dict[str, Any] = as_written() if eager else {}
    if generate_code:
        patches |= PROVENANCE
    return backend_with(hook, inner, **patches)


def running_backend(found: Capture, *, generate_code: bool) -> Callable[..., Any]:
    """A Dynamo backend that records every graph into `found` and computes what it computes.

    With `generate_code` by Inductor's kernels, else op by op. What fails is also put down in
    `found`, for Dynamo may swallow it, and what its graphs are given while anybody watches.
    """
    inner = _generating(found) if generate_code else _passes_then_run
    backend = _recording_backend(found, inner, generate_code=generate_code)

    def noted(gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        try:
            return backend(gm, inputs, **options)
        except Exception as error:  # the compiler may raise anything
            found.failures.append(str(error))
            raise

    return found.runs.watching(noted, unseen)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tracing logs the user's error with a traceback before it raises it; once is enough."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def no_compile_caches() -> Iterator[None]:
    """Inductor must really compile: a graph from a cache has run no pass and has no provenance."""
    with (
        inductor_config.patch(fx_graph_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        yield


def _as_on_gpu(workload: Workload) -> contextlib.AbstractContextManager[None]:
    """Without a GPU graphs are read as if on one."""
    here = workload.device.type == "cuda"
    return contextlib.nullcontext() if here else decomposed_as_on_gpu()


@contextlib.contextmanager
def _no_optimizer(workload: Workload, generate_code: bool) -> Iterator[None]:
    """Keep the optimizer from stepping on placeholders: it would write them into the parameters.

    A closure is called once: what it computes is captured.
    """
    optimizer = workload.optimizer
    if optimizer is None or generate_code:
        yield
        return
    original = optimizer.step
    # Assigned, not subclassed: the step closes over this very object.
    optimizer.step = lambda closure=None, *a, **k: (  # type: ignore[method-assign,assignment]
        closure() if closure is not None else None
    )
    try:
        yield
    finally:
        optimizer.step = original  # type: ignore[method-assign]
        optimizer.zero_grad(set_to_none=True)


def _generating(found: Capture) -> Callable[..., Any]:
    """Inductor's own inner compiler, its kernel provenance kept."""

    def inner(gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        # A backward graph is compiled when first run, outside the context in which Inductor keeps
        # provenance: without one of its own it would have none.
        with reset_provenance_globals():
            result = compile_fx_inner(gm, example_inputs, **kwargs)
        found.graphs[-1] = replace(found.graphs[-1], kernels=nodes_of_kernels(result))
        return result

    return inner


def nodes_of_kernels(compiled: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(kernel, names of the post-grad nodes it computes) of a graph, in the order of the calls.

    Empty where it was compiled without `PROVENANCE`.
    """
    text = getattr(compiled, "inductor_provenance_mapping_str", None)
    mapping = json.loads(text).get("cppCodeToPost", {}) if text else {}
    calls = sorted(
        ((int(k.rpartition(":")[2] or 0), k, v) for k, v in mapping.items()),
        key=lambda row: row[0],
    )
    return tuple((k.rpartition(":")[0], tuple(v)) for _, k, v in calls)


def _passes_then_run(gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Run the post-grad passes for the record, then execute the graph as it came, op by op."""
    # Its tensors are shared: Inductor compiles in a mode in which none can be copied.
    original = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    _passes_only(gm, example_inputs, **kwargs)
    return BoxedCall(lambda args: original.forward(*args))


def _passes_only(gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Run the post-grad passes, then stand in for the compiled graph with outputs of its shapes."""
    view_to_reshape(gm)
    take_layouts(gm, example_inputs)
    note_layouts(gm)
    with V.set_fake_mode(detect_fake_mode(example_inputs)):
        _recursive_post_grad_passes(gm, is_inference=bool(kwargs.get("is_inference")))
    tell_layouts(gm.graph)
    returned = next(node for node in gm.graph.nodes if node.op == "output").args[0]
    values = [node.meta.get("val") if isinstance(node, fx.Node) else node for node in returned]
    return BoxedCall(lambda _: [_placeholder(value) for value in values])


class BoxedCall:
    """A function that takes its arguments as one list, which it may empty, and says so."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        # On the instance: wrappers copy an object's own attributes, not its class's.
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> Any:
        return self._function(args)


def _placeholder(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape = [_hint(size) for size in value.shape]
        strides = [_hint(stride) for stride in value.stride()]
        tensor = torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
        return tensor if value.is_floating_point() else tensor.zero_()
    return _hint(value)


def _hint(size: Any) -> Any:
    return size.node.hint if isinstance(size, torch.SymInt) else size
