"""Graph breaks, recompiles, compile time and cache hits, as the compiler itself counts them.

Read from `torch._dynamo.utils`: the list of break reasons, the metrics of each compilation (with
the guard that failed), the cumulative times of phases, the counters of the caches. None of it is
public API; each part is looked up by name and is simply absent where a version lacks it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import utils as dynamo

from advisor.model.base import Location
from advisor.model.compiler import CompilerFacts, GeneratedKernel, GraphBreak, Recompile
from advisor.model.overfusion import KernelCode
from collectors.live.fx_builder import short_path
from collectors.live.triton_kernels import aligned_names, count_of, written_kernels

TORCH_FOLDER = str(Path(torch.__file__).parent)
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<name>.+)_at_\d+")
_HINT = re.compile(r"^\s*Hint: (?P<hint>.+)$", re.MULTILINE)
_EXPLANATION = re.compile(r"^\s*Explanation: (?P<text>.+)$", re.MULTILINE)
_GUARD_ORIGIN = re.compile(r"\s+# .*?# (?P<file>[^#\n]+):(?P<line>\d+) in \w+")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
# The compiler's names of its phases, outermost first.
PHASES = (
    "entire_frame_compile",
    "entire_backward_compile",
    "backend_compile",
    "inductor_compile",
    "code_gen",
    "async_compile.wait",
)
_WHOLE = ("entire_frame_compile", "entire_backward_compile")
_HITS = (("inductor", "fxgraph_cache_hit"), ("aot_autograd", "autograd_cache_hit"))
_MISSES = (("inductor", "fxgraph_cache_miss"), ("aot_autograd", "autograd_cache_miss"))
# Local memory of a thread is counted in registers of 4 bytes.
_REGISTER_BYTES = 4
_MOST_METRICS = 4096
# Dynamo's reason for a branch on a tensor says nothing to a reader; its own documentation does.
_BRANCH = "generic_jump"
_BRANCH_REASON = "a Python branch depends on the value of a tensor"
_BRANCH_HINT = "use torch.where or torch.cond, or decide on something that is no tensor"


class CompilerWatch:
    """Remembers the compiler's counters when made; `facts()` is what has happened since.

    A reset of the compiler forgets its break reasons and times: ask before.
    """

    def __init__(self) -> None:
        keep = getattr(dynamo, "set_compilation_metrics_limit", None)
        if keep is not None:
            keep(_MOST_METRICS)
        self._breaks = set(map(id, _break_reasons()))
        self._held = list(_break_reasons())  # alive, so that their ids are not given again
        self._metrics = len(_compilations())
        self._times = _times()
        self._counts = _counts()

    def facts(self) -> CompilerFacts:
        """Everything since the watch began."""
        times = {name: max(ns - self._times.get(name, 0), 0) for name, ns in _times().items()}
        counts = _counts()
        counts.subtract(self._counts)
        fresh = [item for item in _break_reasons() if id(item) not in self._breaks]
        compilations = _compilations()[self._metrics :]
        return CompilerFacts(
            graph_breaks=_graph_breaks(fresh, compilations),
            recompiles=_recompiles(compilations),
            compile_ns=sum(times.get(name, 0) for name in _WHOLE),
            phases_ns={name: times[name] for name in PHASES if times.get(name)},
            cache_hits=sum(counts[key] for key in _HITS),
            cache_misses=sum(counts[key] for key in _MISSES),
            kernels=generated_kernels(),
            written=written_kernels(),
        )


def _break_reasons() -> list[Any]:
    found: list[Any] = getattr(dynamo, "graph_break_reasons", [])
    return found


def _compilations() -> list[Any]:
    read = getattr(dynamo, "get_compilation_metrics", None)
    return list(read()) if read is not None else []


def _times() -> dict[str, int]:
    held: Mapping[str, float] = getattr(dynamo, "cumulative_time_spent_ns", {})
    return {name: round(ns) for name, ns in held.items()}


def _counts() -> Counter[tuple[str, str]]:
    counters = dynamo.counters
    return Counter({(group, name): counters[group][name] for group, name in (*_HITS, *_MISSES)})


def _graph_breaks(reasons: Iterable[Any], compilations: Iterable[Any]) -> tuple[GraphBreak, ...]:
    """The breaks by line and reason; functions that were left to eager are in no list of reasons.

    Dynamo leaves a function whole where it cannot go on after a break, as in a loop.
    """
    found: dict[tuple[str | None, int | None, str], GraphBreak] = {}

    def add(location: Location, function: str | None, reason: str, *left: str) -> None:
        text, hint = explained(reason)
        key = (location.file, location.line, text)
        known = found.get(key)
        found[key] = GraphBreak(
            location=location,
            function=function,
            reason=text,
            hint=hint,
            count=1 if known is None else known.count + 1,
            left_to_eager=left if known is None else (*known.left_to_eager, *left),
        )

    for item in reasons:
        add(*_place(item.user_stack), str(item.reason))
    for item in compilations:
        if getattr(item, "fail_type", None):
            place, left = _given_up(item)
            add(place, None, str(item.fail_reason or item.fail_type), *left)
    return tuple(found.values())


def _given_up(item: Any) -> tuple[Location, tuple[str, ...]]:
    """(the line for which a compilation failed, the function that runs op by op therefore).

    One that was compiled too often has no name; the guard that failed last says where it is.
    """
    if item.co_filename is None:
        return failed_guard(str(item.recompile_reason or ""))[1], ()
    begins = Location(file=short_path(item.co_filename), line=item.co_firstlineno)
    left = (f"{_function(item.co_name)} ({begins.file}:{begins.line})",)
    if item.fail_user_frame_filename is None:
        return begins, left
    file = short_path(item.fail_user_frame_filename)
    return Location(file=file, line=item.fail_user_frame_lineno), left


def explained(reason: str) -> tuple[str, str | None]:
    """(what happened, the compiler's first hint) of a break reason in Dynamo's layout."""
    if reason.startswith(_BRANCH):
        return _BRANCH_REASON, _BRANCH_HINT
    explanation, hint = _EXPLANATION.search(reason), _HINT.search(reason)
    headline = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
    text = explanation["text"].strip() if explanation else headline
    return text, hint["hint"].strip() if hint else None


def _place(stack: Any) -> tuple[Location, str | None]:
    """The innermost frame of the user's own code."""
    frames = list(stack or ())
    own = [frame for frame in frames if not frame.filename.startswith(TORCH_FOLDER)] or frames
    if not own:
        return Location(), None
    last = own[-1]
    return Location(file=short_path(last.filename), line=last.lineno), _function(last.name)


def _function(name: str | None) -> str | None:
    """A continuation after a break is the function it continues."""
    while name is not None and (match := _RESUMED.fullmatch(name)) is not None:
        name = match["name"]
    return name


def _recompiles(metrics: Iterable[Any]) -> tuple[Recompile, ...]:
    found: dict[tuple[str | None, int | None, str], Recompile] = {}
    for item in metrics:
        reason = getattr(item, "recompile_reason", None)
        if not reason:
            continue
        guard, location = failed_guard(str(reason))
        if location.file is None and item.co_filename is not None:
            location = Location(file=short_path(item.co_filename), line=item.co_firstlineno)
        key = (location.file, location.line, guard)
        known = found.get(key)
        found[key] = Recompile(
            location=location,
            function=_function(item.co_name),
            guard=guard,
            count=1 if known is None else known.count + 1,
        )
    return tuple(found.values())


def failed_guard(reason: str) -> tuple[str, Location]:
    """(the guard that failed, where it comes from) of Dynamo's reason `0/1: guard  # code ...`."""
    head = next(iter(reason.strip().splitlines()), "")
    cache_entry, separator, rest = head.partition(": ")
    text = rest if separator and re.fullmatch(r"\d+/\d+", cache_entry) else head
    origin = _GUARD_ORIGIN.search(text)
    guard = text.partition("  #")[0].strip()
    frames = list(_FRAME.finditer(reason))
    own = [frame for frame in frames if not frame["file"].startswith(TORCH_FOLDER)]
    if own:
        return guard, Location(file=short_path(own[-1]["file"]), line=int(own[-1]["line"]))
    if origin is not None:
        return guard, Location(file=origin["file"].strip(), line=int(origin["line"]))
    return guard, Location()


def generated_kernels() -> tuple[GeneratedKernel, ...]:
    """Resources of the Triton kernels that Inductor has loaded and launched in this process."""
    codecache = getattr(getattr(torch, "_inductor", None), "codecache", None)
    cache = getattr(codecache, "PyCodeCache", None)
    found: dict[str, GeneratedKernel] = {}
    for module in getattr(cache, "modules", ()):
        for held in vars(module).values():
            # A tuned kernel keeps the one launcher that won; before that none is chosen.
            launchers = getattr(held, "launchers", None)
            if isinstance(launchers, list) and len(launchers) == 1:
                kernel = _kernel(held, launchers[0])
                found[kernel.name] = kernel
    return tuple(found.values())


def _kernel(autotuner: Any, launcher: Any) -> GeneratedKernel:
    name = getattr(autotuner, "inductor_meta", {}).get("kernel_name")
    spills = count_of(launcher, "n_spills")
    return GeneratedKernel(
        name=str(name or getattr(getattr(autotuner, "fn", None), "__name__", "kernel")),
        registers_per_thread=count_of(launcher, "n_regs"),
        local_bytes_per_thread=None if spills is None else spills * _REGISTER_BYTES,
        shared_bytes=count_of(launcher, "shared"),
        code=_code(autotuner, launcher),
    )


def _code(autotuner: Any, launcher: Any) -> KernelCode | None:
    """Source, constants and argument types of a generated kernel, as this compiler keeps them."""
    function, config = getattr(autotuner, "fn", None), getattr(launcher, "config", None)
    source, meta = getattr(function, "src", None), getattr(autotuner, "triton_meta", None)
    if not isinstance(source, str) or not isinstance(meta, dict):
        return None
    signature = {str(k): str(v) for k, v in dict(meta.get("signature", {})).items()}
    attributes = next(iter(meta.get("configs") or ()), None)
    held = attributes if isinstance(attributes, dict) else {}
    constants = dict(getattr(config, "kwargs", None) or {})
    return KernelCode(
        name=str(getattr(function, "__name__", "kernel")),
        source=source,
        constants={k: v for k, v in constants.items() if isinstance(v, (int, float, bool, str))},
        signature={k: v for k, v in signature.items() if v != "constexpr"},
        aligned=aligned_names(list(signature), held),
        num_warps=count_of(config, "num_warps"),
        num_stages=count_of(config, "num_stages"),
    )
