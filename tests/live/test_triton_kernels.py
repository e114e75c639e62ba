"""Triton kernels of the program itself: what was compiled of them is read from Triton's caches."""

# Constants of a kernel are written in capitals.
# ruff: noqa: N803

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from advisor.model.overfusion import KernelCode  # noqa: E402
from analyzers.overfusion.kernel_source import read_kernel  # noqa: E402
from collectors.live.triton_kernels import aligned_names, written_kernels  # noqa: E402

ROOT = Path(__file__).parents[2]


@triton.jit
def _gate(v):
    return v / (1.0 + tl.exp(-v))


@triton.jit
def gated(x, y, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, _gate(tl.load(x + at, mask=at < size)), mask=at < size)


def compiled(warps: int) -> Any:
    """As Triton keeps a compiled kernel."""
    source = SimpleNamespace(
        signature={"x": "*bf16", "y": "*bf16", "size": "i32", "BLOCK": "constexpr"},
        constants={(3,): 1_024},
        attrs={(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]},
    )
    return SimpleNamespace(src=source, metadata=SimpleNamespace(name="gated", num_warps=warps))


def test_what_ran_is_known_with_its_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = {0: ({"a": compiled(4)}, {}, None, None, None)}
    monkeypatch.setattr(gated, "device_caches", caches)
    (code,) = written_kernels([gated, "no kernel"])
    assert (code.name, code.num_warps, code.constants) == ("gated", 4, {"BLOCK": 1_024})
    assert code.aligned == ("x", "y")
    reading = read_kernel(code)
    assert reading is not None
    assert reading.complete
    assert [access.lanes for access in reading.accesses] == [1_024, 1_024]
    # The helper was followed: an exponential and a division for every element.
    assert sum(special.results for special in reading.specials) == 2 * 1_024


def test_every_launch_has_a_code_and_none_is_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = {0: ({"a": compiled(4), "b": compiled(8)}, {}, None, None, None)}
    monkeypatch.setattr(gated, "device_caches", caches)
    assert [code.num_warps for code in written_kernels([gated])] == [4, 8]
    monkeypatch.setattr(gated, "device_caches", "kept otherwise")
    assert written_kernels([gated]) == ()


def test_all_that_are_alive_are_looked_at_once_anything_was_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caches = {0: ({"a": compiled(4)}, {}, None, None, None)}
    monkeypatch.setattr(gated, "device_caches", caches)
    config = sys.modules["triton.runtime.driver"].driver
    monkeypatch.setattr(config, "_active", None)
    assert written_kernels() == ()
    monkeypatch.setattr(config, "_active", object())
    assert [code.name for code in written_kernels() if code.num_warps == 4] == ["gated"]


def test_what_triton_itself_compiled_is_read(tmp_path: Path) -> None:
    """No stand-in for its caches: they are no public API, and differ from version to version."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.live.triton_child"],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    before, after = msgspec.json.decode(done.stdout, type=list[tuple[KernelCode, ...]])
    assert before == ()
    wide, narrow = after
    assert (wide.name, wide.num_warps, wide.num_stages) == ("gated", 8, 2)
    assert wide.constants == {"one": 1, "BLOCK": 1024, "AGAIN": False, "unused": None}
    assert wide.signature == {"x": "*fp32", "y": "*fp32", "size": "i32"}
    assert (wide.aligned, narrow.aligned) == (("x", "y", "size"), ("x", "y"))
    for code, exponentials in ((wide, 1024), (narrow, 2 * 256)):
        reading = read_kernel(code)
        assert reading is not None
        assert reading.complete
        assert [access.lanes for access in reading.accesses] == [code.constants["BLOCK"]] * 2
        assert sum(special.results for special in reading.specials) == 2 * exponentials


def test_what_else_is_said_of_a_pointer_is_no_alignment() -> None:
    attributes = {
        (0,): [["tt.divisibility", 16], ["tt.pointer_range", 32]],
        (1,): [["tt.pointer_range", 32]],
        (2,): [],
    }
    assert aligned_names(["x", "y", "size"], attributes) == ("x",)
