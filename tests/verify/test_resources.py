"""Resources read from compiled kernels: against the vendors' tools, under failure, cached."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from advisor.codegen import render
from advisor.codegen.launches import launches
from advisor.errors import UnreadableError, UsageError
from advisor.hardware.gpus import gpu_by_key
from advisor.hardware.occupancy import occupancy
from advisor.model.applied import KernelResources
from advisor.model.launch import LaunchConfig
from advisor.verify._compile_process import worker_environment
from advisor.verify.binaries import read_amdgcn, read_cubin
from advisor.verify.resources import ResourceRequest, resources_of
from tests.model import builders

ROOT = Path(__file__).parents[2]
FIVE = tuple(gpu_by_key(key) for key in ("a100", "h200", "b200", "rtx4090", "mi300x"))
ROW = {"x": "*fp16", "y": "*fp16", "stride": "i32", "N": "i32"}
ROW_ALIGNED = ("x", "y", "stride", "N")
CONFIG = LaunchConfig(block_rows=2, num_warps=8)
OVERFUSED = {"x": "*fp32", "y": "*fp32", "n": "i32"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "kernels.py"
    shutil.copy(Path(__file__).with_name("kernels.txt"), path)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def request(source: Path, kernel: str = "row", **changes: object) -> ResourceRequest:
    fields: dict[str, object] = {
        "source": str(source),
        "kernel": kernel,
        "signature": ROW,
        "constexprs": {"BLOCK": 4096},
        "aligned": ROW_ALIGNED,
    }
    return ResourceRequest(**(fields | changes))  # type: ignore[arg-type]


def generated(path: Path) -> ResourceRequest:
    """The kernel that code generation writes for an RMSNorm, as the pipeline sizes it."""
    plan = builders.plan()
    path.write_text(render(plan).text)
    (call,) = launches(plan, CONFIG, (4096,), (2048,), [(0,) * 2 for _ in plan.inputs])
    return ResourceRequest(
        source=str(path),
        kernel=call.kernel.name,
        signature=call.types,
        constexprs=dict(call.constants),
        aligned=call.aligned,
        num_warps=CONFIG.num_warps,
        num_stages=CONFIG.num_stages,
        config=CONFIG.label(),
    )


@pytest.fixture(scope="module")
def rows(source: Path, cache: Path) -> dict[str, tuple[KernelResources, ...]]:
    """All compilations that several tests look at, in one go."""
    wanted = {
        "row": request(source),
        "unaligned": request(source, aligned=()),
        "spilling": request(
            source,
            "overfused",
            signature=OVERFUSED,
            constexprs={"BLOCK": 2048, "LIVE": 6},
            aligned=("x", "y"),
            num_warps=2,
        ),
        "missing": request(source, "no_such_kernel"),
        "untyped": request(source, signature={"x": "*fp16"}),
        "generated": generated(source.with_name("generated.py")),
        "tuned": request(source, "tuned", signature={"x": "*fp32", "N": "i64"}, aligned=("x",)),
    }
    found = resources_of(list(wanted.values()), FIVE, timeout_s=120, cache=cache)
    return dict(zip(wanted, found, strict=True))


def test_a_row_kernel_on_five_gpus(rows: dict[str, tuple[KernelResources, ...]]) -> None:
    assert [row.gpu for row in rows["row"]] == [gpu.key for gpu in FIVE]
    for row, gpu in zip(rows["row"], FIVE, strict=True):
        assert row.error is None
        assert row.registers is not None
        assert 16 < row.registers < 128
        assert (row.spill_store_bytes, row.local_bytes_per_thread) == (0, 0)
        assert row.shared_bytes == 16, "four warps exchange one float each"
        assert row.threads == 4 * gpu.target.warp_size
        assert row.occupancy is not None
        assert 0.5 <= row.occupancy <= 1
        assert row.config == "BLOCK=4096 num_warps=4 num_stages=3"
    assemblers = [row.assembler or "" for row in rows["row"]]
    assert all(re.fullmatch(r"ptxas \d+\.\d+\.\d+, triton \S+", text) for text in assemblers[:4])
    assert assemblers[4].startswith("llvm, triton ")


def test_a_file_is_read_and_nothing_of_it_runs(tmp_path: Path) -> None:
    """Neither statements nor what a definition would evaluate; a kernel beside it compiles."""
    marker = tmp_path / "ran"
    touch = f"open({str(marker)!r}, 'w')"
    path = tmp_path / "kernels.py"
    path.write_text(
        "import triton\nimport triton.language as tl\n"
        f"@triton.jit\ndef evil(x, n={touch}):\n    tl.store(x, n)\n"
        f"@triton.jit\ndef worse(x, n: {touch}):\n    tl.store(x, n)\n"
        "@triton.jit\ndef fine(x, n: int, BLOCK: tl.constexpr = 1):\n    tl.store(x, n)\n"
        f"{touch}\n"
    )
    wanted = [
        request(
            path, name, signature={"x": "*i32", "n": "i32"}, constexprs={"BLOCK": 1}, aligned=()
        )
        for name in ("evil", "worse", "fine")
    ]
    evil, worse, fine = (rows[0] for rows in resources_of(wanted, FIVE[1:2], cache=tmp_path))
    assert "has no kernel evil" in (evil.error or "")
    assert "has no kernel worse" in (worse.error or "")
    assert fine.error is None
    assert not marker.exists()


def test_alignment_reaches_the_compiler(rows: dict[str, tuple[KernelResources, ...]]) -> None:
    aligned, unaligned = rows["row"][1].registers, rows["unaligned"][1].registers
    assert aligned is not None
    assert unaligned is not None
    assert aligned < unaligned


def test_few_registers_do_not_mean_no_spill(
    rows: dict[str, tuple[KernelResources, ...]],
) -> None:
    a100 = rows["spilling"][0]
    assert a100.registers is not None
    assert a100.registers < 128
    assert (a100.spill_store_bytes or 0) > 1000
    assert (a100.spill_load_bytes or 0) > 1000
    assert (a100.local_bytes_per_thread or 0) > 1000


def test_a_bound_on_registers_is_kept_at_the_price_of_spills(source: Path, cache: Path) -> None:
    asked = [request(source, num_warps=4, max_registers=most) for most in (None, 32)]
    (free,), (bound,) = resources_of(asked, FIVE[1:2], cache=cache)
    assert free.registers is not None
    assert free.registers > 32
    assert bound.registers is not None
    assert bound.registers <= 32
    assert bound.spill_store_bytes
    assert not free.spill_store_bytes
    assert bound.config.endswith("max_registers=32")


def test_a_failure_is_a_row_that_says_why(rows: dict[str, tuple[KernelResources, ...]]) -> None:
    assert all("no_such_kernel" in (row.error or "") for row in rows["missing"])
    assert all("y, stride, N" in (row.error or "") for row in rows["untyped"])
    assert all(row.registers is None and row.occupancy is None for row in rows["missing"])


def test_a_generated_kernel_fits_everywhere(
    rows: dict[str, tuple[KernelResources, ...]],
) -> None:
    for row in rows["generated"]:
        assert row.error is None
        assert row.config == CONFIG.label()
        assert row.spill_store_bytes == 0
        assert (row.occupancy or 0) >= 0.5


def test_an_autotuned_kernel_is_unwrapped(rows: dict[str, tuple[KernelResources, ...]]) -> None:
    assert all(row.error is None for row in rows["tuned"])


def test_results_come_from_the_cache_until_the_source_changes(
    rows: dict[str, tuple[KernelResources, ...]], source: Path, cache: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere.py"
    shutil.copy(source, moved)
    again = resources_of([request(moved)], FIVE, timeout_s=0, cache=cache)[0]
    assert again == rows["row"]
    moved.write_text(moved.read_text() + "\n# changed\n")
    changed = resources_of([request(moved)], FIVE[:1], timeout_s=0, cache=cache)[0]
    assert changed[0].error == "not compiled within 0 s"


def test_a_source_may_be_reached_through_a_link(source: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "linked").symlink_to(source.parent)
    (row,) = resources_of([request(tmp_path / "linked" / source.name)], FIVE[:1], cache=cache)
    assert row[0].error is None


def test_gpus_of_one_architecture_share_one_compilation(
    rows: dict[str, tuple[KernelResources, ...]], source: Path, cache: Path
) -> None:
    h100 = resources_of([request(source)], [gpu_by_key("h100")], timeout_s=0, cache=cache)[0][0]
    assert (h100.gpu, h100.registers) == ("h100", rows["row"][1].registers)


def test_a_timeout_stops_one_job_and_not_the_next(source: Path, tmp_path: Path) -> None:
    slow = request(
        source,
        "overfused",
        signature=OVERFUSED,
        constexprs={"BLOCK": 2048, "LIVE": 16},
        aligned=("x", "y"),
        num_warps=1,
    )
    late, fine = resources_of(
        [slow, request(source)], FIVE[:1], timeout_s=2.5, cache=tmp_path, processes=1
    )
    assert late[0].error == "not compiled within 2.5 s"
    assert fine[0].error is None


SLOW_PARENT = """
import sys
from advisor.hardware.gpus import gpu_by_key
from advisor.verify.resources import ResourceRequest, resources_of
slow = ResourceRequest(
    source=sys.argv[1], kernel="overfused", signature={"x": "*fp32", "y": "*fp32", "n": "i32"},
    constexprs={"BLOCK": 4096, "LIVE": 16}, aligned=("x", "y"), num_warps=1,
)
resources_of([slow], [gpu_by_key("mi210")])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a child learns of its parent's death on Linux")
def test_a_killed_parent_leaves_no_compilation_behind(source: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", SLOW_PARENT, source], env=environment)
    deadline = time.monotonic() + 60
    children: list[str] = []
    while not children and time.monotonic() < deadline:
        time.sleep(0.1)
        tasks = Path(f"/proc/{parent.pid}/task").glob("*/children")
        children = [pid for task in tasks for pid in task.read_text().split()]
    time.sleep(1.0)  # long enough to be compiling, which takes many seconds
    parent.kill()
    parent.wait()
    assert children
    deadline = time.monotonic() + 3
    while _runs(children[0]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(children[0])


def _runs(pid: str) -> bool:
    """Whether it still runs: orphans that ended stay as zombies where this process adopts them."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def test_the_interpreter_of_the_parent_does_not_reach_the_child(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (found,) = resources_of([request(source, num_warps=8)], FIVE[:1])
    assert found[0].error is None
    assert found[0].threads == 256
    assert list((tmp_path / "fusion-advisor" / "resources").glob("*.json"))
    assert "triton" not in sys.modules or "TRITON_INTERPRET" not in worker_environment(
        {"TRITON_INTERPRET": "1"}, "x"
    )


def test_a_damaged_cache_entry_is_compiled_again(source: Path, tmp_path: Path) -> None:
    first = resources_of([request(source)], FIVE[:1], cache=tmp_path)
    for entry in tmp_path.glob("*.json"):
        entry.write_text('{"registers": "many"}')
    assert resources_of([request(source)], FIVE[:1], cache=tmp_path) == first


def test_bad_input_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="absent"):
        resources_of([request(tmp_path / "absent.py")], FIVE, cache=tmp_path)
    with pytest.raises(UsageError, match="constant EPS"):
        resources_of([request(source, constexprs={"EPS": float("inf")})], FIVE[:1], cache=tmp_path)


DUMP = """
import contextlib, importlib, io, json, sys
from pathlib import Path
from advisor.verify._resource_worker import kernels_of
compiler = importlib.import_module("triton.compiler")
targets = importlib.import_module("triton.backends.compiler")
kernel = kernels_of(Path(sys.argv[1]))["row"]
out = Path(sys.argv[2])
facts = []
for backend, arch, lanes in json.loads(sys.argv[3]):
    for block, warps in ((256, 1), (4096, 1), (4096, 4)):
        source = compiler.ASTSource(
            fn=kernel, constexprs={"BLOCK": block},
            signature=json.loads(sys.argv[4]),
        )
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            made = compiler.compile(
                source, target=targets.GPUTarget(backend, arch, lanes), options={"num_warps": warps}
            )
        name = f"{arch}-{block}-{warps}"
        binary = made.asm["cubin"] if backend == "cuda" else made.asm["amdgcn"].encode()
        (out / name).write_bytes(binary)
        (out / f"{name}.log").write_text(log.getvalue())
        facts.append([backend, arch, warps, lanes, made.metadata.shared, name])
(out / "facts.json").write_text(json.dumps(facts))
"""
TARGETS = [
    ("cuda", 80, 32), ("cuda", 90, 32), ("cuda", 120, 32),
    ("hip", "gfx90a", 64), ("hip", "gfx942", 64), ("hip", "gfx950", 64), ("hip", "gfx1100", 32),
]  # fmt: skip


@pytest.fixture(scope="module")
def binaries(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("binaries")
    types = ROW | {"BLOCK": "constexpr"}
    subprocess.run(
        [sys.executable, "-c", DUMP, source, folder, json.dumps(TARGETS), json.dumps(types)],
        check=True,
        env=worker_environment(os.environ, str(folder / "triton")),
        timeout=120,
    )
    return folder


def test_cubins_are_read_as_nvidias_tool_reads_them(binaries: Path) -> None:
    spec = importlib.util.find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    tool = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    checked = 0
    for backend, arch, _, _, _, name in json.loads((binaries / "facts.json").read_text()):
        if backend != "cuda":
            continue
        done = subprocess.run(
            [tool, "-res-usage", binaries / name], capture_output=True, text=True, check=False
        )
        printed = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
        log = (binaries / f"{name}.log").read_text()
        ours = read_cubin((binaries / name).read_bytes(), log)
        used = re.search(r"Used (\d+) registers", log)
        assert used is not None
        assert ours.registers == int(used[1])
        assert ours.spill_store_bytes is not None
        if printed is not None:
            assert (ours.registers, ours.local_bytes) == (int(printed[1]), int(printed[2]))
        assert printed is not None or int(arch) >= 100, "an older cuobjdump cannot read Blackwell"
        checked += 1
    assert checked == 9


def test_amd_occupancy_is_llvms_remark(binaries: Path) -> None:
    checked = 0
    for backend, arch, warps, lanes, shared, name in json.loads(
        (binaries / "facts.json").read_text()
    ):
        if backend != "hip":
            continue
        text = (binaries / name).read_text()
        usage = read_amdgcn(text)
        remark = re.search(r";\s*Occupancy:\s*(\d+)", text)
        assert remark is not None
        assert usage.registers is not None
        ours = occupancy(
            arch,
            registers=usage.registers,
            threads=warps * lanes,
            shared_bytes=shared,
            scalar_registers=usage.scalar_registers or 0,
        )
        # LLVM counts waves a SIMD; whole groups of waves fit no better than that.
        assert ours.warps == int(remark[1]) * 4 // warps * warps, name
        checked += 1
    assert checked == 12
