"""Compiler facts: real breaks and recompiles, named with their line; counters of a real compile."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch._inductor import codecache

from collectors.live.capture import capture
from collectors.live.compiler_facts import (
    CompilerWatch,
    explained,
    failed_guard,
    generated_kernels,
)
from collectors.live.workload import Workload


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.sin(x) * factor


def branches(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def line_of(function: object, text: str) -> int:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_a_recompile_names_the_guard_and_its_line() -> None:
    watch = CompilerWatch()
    compiled = torch.compile(scale, backend="eager")
    for rows in (4, 8):
        compiled(torch.ones(rows, 3), 2.0)
    compiled(torch.ones(8, 3), 3.0)
    found = watch.facts()
    assert [item.count for item in found.recompiles] == [1, 1]
    size, factor = found.recompiles
    assert "size mismatch at index 0. expected 4, actual 8" in size.guard
    assert size.function == "scale"
    assert size.location.file is not None
    assert Path(size.location.file).name == Path(__file__).name
    assert size.location.line == line_of(scale, "def scale")
    assert "factor" in factor.guard
    assert factor.location.line == line_of(scale, "torch.sin")
    assert found.compile_ns > 0
    assert not found.graph_breaks


def test_a_break_names_reason_and_line_and_counts_repeats() -> None:
    watch = CompilerWatch()
    compiled = torch.compile(branches, backend="eager", dynamic=False)
    for rows in (4, 8):
        compiled(torch.ones(rows))
    found = watch.facts()
    assert len(found.graph_breaks) == 1
    broke = found.graph_breaks[0]
    assert broke.reason == "a Python branch depends on the value of a tensor"
    assert broke.hint is not None
    assert "torch.where" in broke.hint
    assert broke.location.line == line_of(branches, "if x.sum()")
    assert broke.count == 2
    assert broke.function == "branches"


def test_a_watch_sees_only_what_came_after_it() -> None:
    torch.compile(branches, backend="eager")(torch.ones(4))
    watch = CompilerWatch()
    assert watch.facts().graph_breaks == ()
    assert watch.facts().compile_ns == 0
    torch.compile(scale, backend="eager")(torch.ones(4), 2.0)
    assert watch.facts().graph_breaks == ()
    assert watch.facts().compile_ns > 0


def test_capture_keeps_the_facts_of_the_step_it_compiled() -> None:
    class Prints(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(x)
            torch._dynamo.graph_break()
            return y.sin()

    workload = Workload(
        "test", "inference", torch.device("cpu"), Prints(), inputs=(torch.ones(4, 4),)
    )
    found, _ = capture(workload, generate_code=False)
    facts = found.compiler_facts()
    assert len(facts.graph_breaks) == 1
    assert facts.graph_breaks[0].location.line == line_of(Prints, "graph_break()")
    assert 0 < facts.phases_ns["backend_compile"] < facts.compile_ns <= found.compile_ns
    assert facts.cache_hit_fraction is None


def test_hits_and_misses_are_those_of_the_caches(tmp_path: Path) -> None:
    with (
        torch._inductor.config.patch(fx_graph_cache=True),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        watch = CompilerWatch()
        # A constant of its own: no other run has left this graph in the cache.
        constant = hash(str(tmp_path)) % 1_000_003 + math.pi
        for function in (lambda x: x * constant, lambda x: x * constant):
            torch.compile(function)(torch.ones(8))
        found = watch.facts()
    assert (found.cache_hits, found.cache_misses) == (1, 1)
    assert found.cache_hit_fraction == 0.5
    assert found.phases_ns["code_gen"] <= found.phases_ns["inductor_compile"]


@pytest.mark.parametrize(
    ("reason", "guard", "file", "line"),
    [
        (
            "3/1: n == 2                # return x.sin() * n  # net.py:4 in inner",
            "n == 2",
            "net.py",
            4,
        ),
        (
            "0/0: tensor 'x' stride mismatch at index 0. expected 4, actual 1",
            "tensor 'x' stride mismatch at index 0. expected 4, actual 1",
            None,
            None,
        ),
        (
            '1/0: k == 1  # a  # net.py:9 in f\nUser stack:\n  File "/u/net.py", line 9, in f',
            "k == 1",
            "/u/net.py",
            9,
        ),
    ],
)
def test_guards_as_versions_write_them(
    reason: str, guard: str, file: str | None, line: int | None
) -> None:
    found, location = failed_guard(reason)
    assert (found, location.file, location.line) == (guard, file, line)


def test_the_compilers_explanation_and_first_hint() -> None:
    text = (
        "Unsupported call\n  Explanation: no idea how to trace f\n  Hint: do not\n  Hint: or do\n"
    )
    assert explained(text) == ("no idea how to trace f", "do not")
    assert explained("call_function f") == ("call_function f", None)


def test_resources_of_the_configuration_that_won(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("generated")
    won = SimpleNamespace(n_regs=40, n_spills=2, shared=512)
    module.triton_poi_fused_0 = SimpleNamespace(  # type: ignore[attr-defined]
        launchers=[won], inductor_meta={"kernel_name": "triton_poi_fused_add_0"}
    )
    module.untuned = SimpleNamespace(launchers=[won, won])  # type: ignore[attr-defined]
    monkeypatch.setattr(codecache.PyCodeCache, "modules", [module])
    (kernel,) = generated_kernels()
    assert kernel.name == "triton_poi_fused_add_0"
    assert (kernel.registers_per_thread, kernel.shared_bytes) == (40, 512)
    assert kernel.local_bytes_per_thread == 8


def test_the_source_and_launch_of_a_generated_kernel_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What rules of over-fusion read: source, constants, pointer types, what divides by 16."""
    module = ModuleType("generated")
    config = SimpleNamespace(kwargs={"XBLOCK": 1024}, num_warps=4, num_stages=1)
    meta = {
        "signature": {
            "in_ptr0": "*bf16",
            "out_ptr0": "*bf16",
            "xnumel": "i32",
            "XBLOCK": "constexpr",
        },
        "configs": [{(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}],
    }
    function = SimpleNamespace(src="def triton_poi_0(in_ptr0): ...", __name__="triton_poi_0")
    module.tuned = SimpleNamespace(  # type: ignore[attr-defined]
        launchers=[SimpleNamespace(n_regs=24, config=config)], inductor_meta={}, fn=function,
        triton_meta=meta,
    )  # fmt: skip
    monkeypatch.setattr(codecache.PyCodeCache, "modules", [module])
    (kernel,) = generated_kernels()
    assert kernel.code is not None
    assert (kernel.code.constants, kernel.code.num_warps) == ({"XBLOCK": 1024}, 4)
    assert kernel.code.aligned == ("in_ptr0", "xnumel")
    assert kernel.code.signature == {"in_ptr0": "*bf16", "out_ptr0": "*bf16", "xnumel": "i32"}
