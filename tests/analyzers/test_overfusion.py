"""Did fusing hurt: pairing, judgement and causes, on small steps and on what was recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.hardware.gpus import gpu_by_key
from advisor.model.applied import KernelResources
from advisor.model.base import Range, decode, encode
from advisor.model.overfusion import KernelCode
from advisor.model.step_record import DRIVER, Launch, StepRecord, Tensor
from analyzers.overfusion.alone import judge_alone
from analyzers.overfusion.facts import step_facts
from analyzers.overfusion.findings import findings_of
from analyzers.overfusion.judge import judge_pair, judge_times
from analyzers.overfusion.members_model import members_ns
from analyzers.overfusion.pairing import pair
from collectors import read_trace

SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", Path(__file__).parents[3] / "shared"))
H200, ENGINES = SHARED / "traces" / "h200", SHARED / "engine_outputs"
NOISE = (0.99, 0.995, 1.0, 1.005, 1.01)
ROWS, COLUMNS = 8_192, 8_192
FULL = Tensor(shape=(ROWS, COLUMNS), dtype="float")

needs_h200 = pytest.mark.skipif(not H200.is_dir(), reason=f"no recorded traces in {H200}")
needs_engines = pytest.mark.skipif(not ENGINES.is_dir(), reason=f"no outputs in {ENGINES}")

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def gate(v):
    return v / (1.0 + tl.exp(-v))

@triton.jit
def kernel(x, y, out, columns, BLOCK: tl.constexpr, TAPS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(TAPS):
        total += gate(tl.load(x + at + j))
    tl.store(out + at, total + tl.load(y + at * columns))
"""


def launch(name: str, time_us: float, **more: Any) -> Launch:
    """A kernel of a step: five times around one."""
    times = tuple(round(time_us * 1_000 * noise) for noise in NOISE)
    given = {
        "role": "pointwise", "library": "unknown", "op": f"my::{name}", "operands": (FULL,) * 3,
        "grid": (ROWS, 1, 1), "threads": 256, "registers": 40, "shared_bytes": 0, "stream": 7,
    } | more  # fmt: skip
    return Launch(name=name, time_ns=times[2], times_ns=times, **given)


def step(*launches: Launch, codes: tuple[KernelCode, ...] = ()) -> StepRecord:
    """A step that runs its launches in turn, but for those that say when they start."""
    placed, end = [], 0
    for one in launches:
        start = one.start_ns or end
        placed.append(replace(one, start_ns=start))
        end = max(end, start + one.time_ns)
    busy = tuple(round(end * noise) for noise in NOISE)
    return StepRecord(launches=tuple(placed), busy_ns=busy, span_ns=busy, gpu="h200", codes=codes)


def spilled(stores: int) -> KernelCode:
    """The code of `fused` with so many bytes spilled and read back by a thread."""
    resources = KernelResources(
        gpu="h200", config="", registers=255, spill_store_bytes=stores, spill_load_bytes=stores,
        threads=256, occupancy=0.125,
    )  # fmt: skip
    return KernelCode(name="fused", num_warps=8, resources=resources)


# --- two runs -------------------------------------------------------------------------------------


def test_a_fused_kernel_that_loses_is_raised_and_its_spill_explains_it() -> None:
    before = step(launch("first", 100), launch("second", 100))
    found = judge_pair(before, step(launch("fused", 500), codes=(spilled(400),)))
    (lost,) = found.regressions
    assert lost.cause == "register_spill"
    assert {member.name for member in lost.members} == {"first", "second"}
    assert found.bisection.unexplained == 0
    assert found.bisection.shares[0].change_ns == 300_000


def test_what_spills_and_is_faster_is_no_regression() -> None:
    before = step(launch("first", 100), launch("second", 100))
    found = judge_pair(before, step(launch("fused", 150), codes=(spilled(400),)))
    assert not found.regressions


def test_a_loss_that_nothing_explains_has_no_cause() -> None:
    before = step(launch("first", 100), launch("second", 100))
    found = judge_pair(before, step(launch("fused", 500)))
    (lost,) = found.regressions
    assert lost.cause is None
    (finding,) = findings_of(found.verdicts)
    assert "cannot tell the cause" in finding.title
    assert found.bisection.unexplained == 1.0


def test_a_loss_within_what_processes_differ_by_is_silent() -> None:
    before = step(launch("first", 100), launch("second", 100))
    assert not judge_pair(before, step(launch("fused", 208))).regressions


def test_names_decide_nothing() -> None:
    before = step(launch("first", 100), launch("second", 100))
    lost = judge_pair(before, step(launch("fused", 500), codes=(spilled(400),)))
    renamed = step(
        replace(launch("fused", 500), name="cutlass_gemm_relu", op="my::other"),
        codes=(replace(spilled(400), name="cutlass_gemm_relu"),),
    )
    again = judge_pair(before, renamed)
    assert again.regressions[0].cause == lost.regressions[0].cause == "register_spill"


def test_work_beside_each_other_put_in_turn_is_told_from_slower_kernels() -> None:
    one = [launch(f"a{i}", 50, start_ns=50_000 * i + 1) for i in range(4)]
    two = [launch(f"b{i}", 50, start_ns=50_000 * i + 1, stream=9) for i in range(4)]
    before = step(*one, *two)
    after = step(*(replace(x, start_ns=0, stream=7) for x in (*one, *two)))
    (lost,) = judge_pair(before, after).regressions
    assert lost.cause == "serialised_streams"
    assert not judge_pair(after, before).regressions


def test_products_that_changed_places_are_not_taken_for_fusions() -> None:
    small = Tensor(shape=(512, 512), dtype="float")
    big = launch("mm", 300, role="gemm", library="cublas", op="aten::mm", operands=(FULL, FULL))
    little = launch("mm", 10, role="gemm", library="cublas", op="aten::mm", operands=(small, small))
    relu = launch("relu", 50, op="aten::relu", library="aten", operands=(FULL,))
    before, after = step(big, relu, little), step(little, relu, big)
    assert not judge_pair(before, after).regressions


@st.composite
def steps(draw: st.DrawFn) -> StepRecord:
    """Any step: kernels and copies of a few kinds on two streams."""
    kinds = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 500), st.booleans())))
    launches = []
    for kind, time_us, side in kinds:
        more: dict[str, Any] = {"stream": 7 + 2 * side}
        if kind == 0:
            more |= {"library": DRIVER, "role": "copy", "op": None, "operands": ()}
        if kind == 1:
            more |= {"role": "gemm", "operands": (FULL, FULL)}
        if kind == 2:
            more |= {"role": "communication"}
        launches.append(launch(f"k{kind}", time_us, **more))
    return step(*launches, launch("last", 10))


@settings(max_examples=60, deadline=None)
@given(steps(), steps())
def test_every_launch_is_in_one_pairing_and_shares_add_up(a: StepRecord, b: StepRecord) -> None:
    pairings = pair(a.launches, b.launches)
    for side, launches in (("before", a.launches), ("after", b.launches)):
        seen = [id(x) for one in pairings for x in getattr(one, side)]
        assert sorted(seen) == sorted(map(id, launches))
    bisection = judge_pair(a, b).bisection
    bisection.check()


def test_of_two_launches_of_one_kernel_each_has_its_own_code() -> None:
    codes = (replace(spilled(0), num_warps=4), replace(spilled(400), num_warps=8))
    found = step(launch("fused", 1, threads=128), launch("fused", 9, threads=256), codes=codes)
    assert [x.code.num_warps for x in found.coded().launches if x.code] == [4, 8]
    # Which of two is meant is not guessed.
    doubtful = step(launch("fused", 1, threads=1_024), codes=codes).coded()
    assert doubtful.launches[0].code is None


# --- cases from the field ---------------------------------------------------------------------


def test_a_kernel_that_loses_its_registers_and_gets_slower_looks_like_a_spill() -> None:
    """One matrix kernel generated twice: 168 registers to 80, and a third more time."""
    before = step(launch("kernel", 300, registers=168))
    (lost,) = judge_pair(before, step(launch("kernel", 393, registers=80))).regressions
    assert lost.cause == "register_spill"
    assert "the binary would tell" in lost.candidates[0].evidence.text


def test_few_registers_are_no_proof_against_a_spill() -> None:
    """A large loop fusion held at 32 registers, which spills kilobytes a thread."""
    before = step(launch("first", 300), launch("second", 300))
    fused = launch("fused", 2_000, registers=32)
    (lost,) = judge_pair(before, step(fused, codes=(spilled(8_000),))).regressions
    assert lost.cause == "register_spill"


def test_a_spill_that_grew_explains_a_loss_and_one_that_did_not_explains_none() -> None:
    """A norm's gradient: 64 bytes of stack in both builds, loads of spills 128 to 208."""
    before = step(launch("fused", 400), codes=(spilled(64),))
    worse = judge_pair(before, step(launch("fused", 620), codes=(spilled(104),)))
    assert worse.regressions[0].cause == "register_spill"
    assert not judge_pair(before, step(launch("fused", 402), codes=(spilled(104),))).regressions


def test_one_optimizer_kernel_with_twice_the_registers_of_those_it_replaced() -> None:
    """Fused AdamW against foreach: 67 % occupancy where each list kernel has all of it."""
    before = step(*(launch(f"foreach_{i}", 100, registers=32) for i in range(4)))
    (lost,) = judge_pair(before, step(launch("fused_adamw", 800, registers=48))).regressions
    assert lost.cause == "occupancy_registers"


@pytest.mark.parametrize(("times", "lost"), [(1.3, False), (1.9, False), (4.0, True)])
def test_one_step_of_each_run_is_raised_beyond_what_a_single_time_may_vary(
    times: float, lost: bool
) -> None:
    runs = []
    for time_us in (200, 200 * times):
        one = launch("kernel", time_us)
        one = replace(one, times_ns=(one.time_ns,))
        runs.append(replace(step(one), busy_ns=(one.time_ns,), span_ns=(one.time_ns,)))
    assert bool(judge_pair(*runs).regressions) == lost


# --- one run --------------------------------------------------------------------------------------


def test_few_programs_and_low_bandwidth_are_raised_from_a_trace_alone() -> None:
    (verdict,) = judge_alone(step(launch("sums", 900, grid=(32, 1, 1), operands=(FULL, FULL))))
    assert (verdict.outcome, verdict.cause, verdict.tier) == (
        "regression", "too_few_programs", "trace",
    )  # fmt: skip


def test_one_slow_launch_of_many_alike_or_one_time_alone_is_no_loss() -> None:
    sums = launch("sums", 900, grid=(32, 1, 1), operands=(FULL, FULL))
    high = members_ns(sums, gpu_by_key("h200"))
    assert high is not None
    fast = launch("sums", high.high / 1_000, grid=(32, 1, 1), operands=(FULL, FULL))
    assert judge_alone(step(fast, fast, sums))[0].outcome == "benign"
    assert judge_alone(step(fast, sums, sums))[0].outcome == "regression"
    time_ns = round(1.8 * high.high)
    seldom = replace(sums, time_ns=time_ns, times_ns=(time_ns,))
    assert judge_alone(step(seldom))[0].outcome == "benign"
    assert judge_alone(step(seldom, seldom))[0].outcome == "regression"


@pytest.mark.parametrize(
    "benign",
    [
        launch("nvjet_sm90_tst_256x128", 900, library="cublas", role="gemm", registers=255),
        launch("tiny", 3, grid=(4, 1, 1), operands=(Tensor(shape=(64,), dtype="float"),)),
        launch("flash_fwd_kernel", 900, library="flash", role="attention", registers=255),
        launch("near_roof", 220, registers=255, operands=(FULL, FULL)),
        launch("slow_for_no_reason", 5_000, operands=(FULL, FULL)),
        launch("unknown_work", 5_000, operands=(), grid=(8, 1, 1)),
    ],
    ids=lambda one: one.name,
)
def test_look_alikes_are_silent(benign: Launch) -> None:
    assert not [v for v in judge_alone(step(benign)) if v.outcome == "regression"]


@pytest.mark.parametrize(
    ("constants", "aligned", "cause"),
    [
        ({"BLOCK": 1_024, "TAPS": 9}, ("x", "y", "out"), "recompute"),
        ({"BLOCK": 1_024, "TAPS": 1}, ("x", "y", "out"), "uncoalesced_access"),
    ],
)
def test_the_source_explains_a_loss(
    constants: dict[str, int], aligned: tuple[str, ...], cause: str
) -> None:
    code = KernelCode(
        name="kernel", source=KERNEL, constants=dict(constants), aligned=aligned, num_warps=4,
        signature={"x": "*fp32", "y": "*fp32", "out": "*fp32", "columns": "i32"},
    )  # fmt: skip
    before = step(launch("first", 150), launch("second", 150))
    fused = launch("kernel", 900, grid=(ROWS * COLUMNS // 1_024, 1, 1), threads=128)
    (lost,) = judge_pair(before, step(fused, codes=(code,))).regressions
    assert lost.cause == cause


def test_few_long_rows_may_have_members_that_fill_no_more_of_the_device() -> None:
    """A norm of 64 rows by 64 programs: so do libraries, at half of the bandwidth at worst."""
    long = Tensor(shape=(64, 262_144), dtype="c10::BFloat16")
    gpu = gpu_by_key("h200")
    outcomes = []
    for time_us in (100, 400):
        norm = launch("norm", time_us, grid=(64, 1, 1), operands=(long, long))
        walked = replace(norm, grid=(32, 1, 1))
        mine, others = members_ns(norm, gpu), members_ns(walked, gpu)
        assert mine is not None
        assert others is not None
        assert mine.high == pytest.approx(others.high * gpu.sm_count / 64, rel=1e-4)
        outcomes += [judge_alone(step(one))[0].outcome for one in (norm, walked)]
    assert outcomes == ["benign", "regression", "regression", "regression"]


def copied(count: int, layer_us: float) -> StepRecord:
    """Sixteen layers, and what they wrote (64 MiB, 1.2 ms) in so many copies on another stream."""
    part = Tensor(shape=(1 << 20,), dtype="float")
    launches, each = [], 16 // count
    end = free = 0
    for layer in range(16):
        one = launch(f"layer_{layer}", layer_us, operands=(part,), grid=(1_024, 1, 1), start_ns=end)
        launches.append(replace(one, role="gemm", library="cublas"))
        end += one.time_ns
        if (layer + 1) % each == 0:
            name, size = "copy device to host", each * part.size_bytes
            sent = launch(
                name, 75 * each, role="copy", library=DRIVER, stream=8, copied_bytes=size,
                operands=(), start_ns=max(end, free),
            )  # fmt: skip
            launches.append(sent)
            free = sent.end_ns
    return step(*launches)


@pytest.mark.parametrize(
    ("count", "layer_us", "lost"),
    [
        (1, 300, True),
        (1, 70, True),
        # A copy for every layer is no faster where layers are shorter than the host takes.
        (2, 70, False),
        (1, 10, False),
        (16, 300, False),
    ],
)
def test_merged_copies_are_held_against_a_copy_for_each_kernel(
    count: int, layer_us: float, lost: bool
) -> None:
    raised = [v for v in judge_alone(copied(count, layer_us)) if v.outcome == "regression"]
    assert [verdict.cause for verdict in raised] == ["lost_overlap"] * lost


def test_loads_that_are_shifted_against_each_other_cost_the_members_too() -> None:
    gpu, high = gpu_by_key("h200"), []
    half = Tensor(shape=(ROWS, COLUMNS), dtype="c10::BFloat16")
    for taps in (1, 12, 15):
        code = KernelCode(
            name="kernel", source=KERNEL, constants={"BLOCK": 1_024, "TAPS": taps}, num_warps=4,
            signature={"x": "*bf16", "y": "*bf16", "out": "*bf16", "columns": "i32"},
        )  # fmt: skip
        grid = (ROWS * COLUMNS // 1_024, 1, 1)
        found = members_ns(launch("kernel", 900, grid=grid, operands=(half,) * 3, code=code), gpu)
        assert found is not None
        high.append(found.high)
    assert high[0] < high[1] < high[2]


@pytest.mark.parametrize(
    "body",
    [
        "a = 'a' * 10**12",
        "a = (1, 2)\n    for i in tl.static_range(500):\n        a = a + a",
        "a = 1\n    for i in tl.static_range(500):\n        a = (a, a)\n    a = a * 2",
        "a = 3\n    for i in tl.static_range(500):\n        a *= a",
        "a = 9**9**9",
        f"a = tl.exp(tl.load(y + tl.arange(0, 1{'0' * 400})))",
        f"a = 1\n    for i in range(1{'0' * 400}):\n        tl.atomic_add(x + i, 1)",
        f"a = {'(' * 3_000}1{')' * 3_000}",
        "while True:\n        a = 1",
    ],
)
def test_hostile_source_is_given_up_in_time(body: str) -> None:
    """Kernels of a run from elsewhere are read: no line of theirs takes memory, time or a crash."""
    head = "@triton.jit\ndef kernel(x, y, N: tl.constexpr):\n    "
    code = KernelCode(
        name="kernel", source=f"{head}{body}\n    tl.store(x, a)\n", constants={"N": 4},
        signature={"x": "*fp32", "y": "*fp32"}, num_warps=4,
    )  # fmt: skip
    fused = step(launch("kernel", 9_000), codes=(code,))
    judge_alone(fused)
    assert judge_pair(step(launch("member", 100)), fused).regressions


# --- what was recorded ----------------------------------------------------------------------------


def recorded(name: str) -> StepRecord:
    """The step of a trace recorded on an H200."""
    return step_facts(read_trace(H200 / f"{name}.json.gz"))


def test_what_the_driver_does_has_a_name_without_holes() -> None:
    sample = Path(__file__).parents[2] / "sample_traces" / "llama_prefill.eager.json.gz"
    launches = step_facts(read_trace(sample)).launches
    names = {item.name for item in launches if item.library == DRIVER}
    assert "memset" in names
    assert not [name for name in names if "nan" in name or "None" in name]


@needs_h200
def test_streams_made_one_are_a_regression_and_two_streams_are_none() -> None:
    two, one = recorded("streams_two"), recorded("streams_one")
    (lost,) = judge_pair(two, one).regressions
    assert lost.cause == "serialised_streams"
    assert lost.lost_ns == 41_695
    assert "times as long as before (measured)" in findings_of([lost])[0].title
    assert judge_pair(two, one).bisection.unexplained < 0.1
    assert not judge_pair(one, two).regressions


@needs_h200
def test_overlap_lost_without_costing_time_is_a_note_with_its_figures() -> None:
    found = judge_pair(recorded("ddp_overlap.rank0"), recorded("ddp_onebucket.rank0"))
    assert not found.regressions
    (note,) = findings_of(found.verdicts)
    assert note.kind == "note"
    assert (
        note.evidence[0].values["overlap_before_ns"] > note.evidence[0].values["overlap_after_ns"]
    )


@needs_h200
def test_the_spilling_variant_of_the_probe_is_raised_and_no_other() -> None:
    trace = read_trace(H200 / "ncu_probe_raw.csv.gz")
    verdicts = judge_alone(step_facts(trace, gpu=gpu_by_key("h200")))
    (lost,) = [v for v in verdicts if v.outcome == "regression"]
    assert (lost.config, lost.cause) == ("num_warps=2", "register_spill")
    assert lost.cure.startswith("launch it with 16 warps")


@needs_engines
def test_fusions_of_other_engines_are_judged_by_their_times() -> None:
    ort = json.loads((ENGINES / "onnxruntime" / "summary.json").read_text())["ablation"]["encoder"]
    by_config = {
        row["config"]: Range(
            low=round(row["q1_us"] * 1e3), mid=round(row["median_us"] * 1e3),
            high=round(row["q3_us"] * 1e3),
        )
        for row in ort
    }  # fmt: skip
    xla = json.loads((ENGINES / "jax_xla_cpu" / "summary.json").read_text())["results"]
    times = {(row["model"], row["config"]): _spread(row["median_us_of_3_processes"]) for row in xla}
    skip = judge_times(
        "SkipLayerNormFusion", by_config["level:all"], by_config["all minus SkipLayerNormFusion"]
    )
    assert skip.outcome == "regression"
    assert skip.cause is None
    # Its quartiles overlap with those of the level below.
    weak = judge_times("extended", by_config["level:extended"], by_config["level:basic"])
    assert weak.outcome == "benign"
    for model in ("encoder", "convnet"):
        library = judge_times(
            "ynn_fusion", times[model, "default"], times[model, "no_library_fusion"]
        )
        assert library.outcome == "regression"
        loops = judge_times("fusion", times[model, "default"], times[model, "nofusion"])
        assert loops.outcome == "benign"


def _spread(times_us: list[float]) -> Range:
    ordered = sorted(round(value * 1e3) for value in times_us)
    return Range(low=ordered[0], mid=ordered[1], high=ordered[2])


def test_a_trace_with_sizes_that_cannot_be_makes_a_step_that_can_be_read(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for at, shape in enumerate(([-1, 5], [2**70], [[3, 4], [-2]], [1e3, 2], ["a"], [True], [8])):
        start, mine = 1_000.0 + 100 * at, {"External id": at + 1, "correlation": at + 5}
        kernel = {"device": 0, "stream": -7, "grid": [-8, 1, 1], "block": [-128, 1, 1],
                  "registers per thread": -255}  # fmt: skip
        events += [
            {"ph": "X", "cat": cat, "name": name, "ts": start + late, "dur": 50.0, "pid": 1,
             "tid": 1, "args": {**mine, **more}}
            for cat, name, late, more in (
                ("cpu_op", "my::op", 0, {"Input Dims": [shape], "Input type": ["float"]}),
                ("cuda_runtime", "cudaLaunchKernel", 5, {}),
                ("kernel", f"kernel_{at}", 20, kernel),
            )
        ]  # fmt: skip
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = step_facts(read_trace(path))
    assert decode(encode(found), StepRecord) == found
    assert found.launches[-1].operands[0].shape == (8,)
    assert not any(launch.operands for launch in found.launches[:2])
