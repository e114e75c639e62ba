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
from advisor.model.base import Range
from advisor.model.step_record import DRIVER, StepRecord, Tensor
from analyzers.overfusion.alone import judge_alone
from analyzers.overfusion.facts import step_facts
from analyzers.overfusion.findings import findings_of
from analyzers.overfusion.judge import judge_pair, judge_times
from analyzers.overfusion.pairing import pair
from collectors import read_trace
from tests.builders.steps import FULL, launch, spilled, step

SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", Path(__file__).parents[3] / "shared"))
H200, ENGINES = SHARED / "traces" / "h200", SHARED / "engine_outputs"

needs_h200 = pytest.mark.skipif(not H200.is_dir(), reason=f"no recorded traces in {H200}")
needs_engines = pytest.mark.skipif(not ENGINES.is_dir(), reason=f"no outputs in {ENGINES}")


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
def test_attention_that_was_given_a_mask_and_all_heads_is_raised_and_says_so() -> None:
    found = judge_pair(recorded("llama_train.eager"), recorded("llama_train.inductor"))
    (lost,) = found.regressions
    assert "sdpa" in lost.kernel
    assert lost.reason.endswith("; given 4 operands of 56 MiB, 3 operands of 24 MiB before")


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
