"""Rules that look at time: late hosts, communication, ranks, replays. Cases from the field."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.model.base import Range
from advisor.model.range_names import STEP_PREFIX
from advisor.model.trace import Trace
from analyzers.metrics import trace_metrics
from analyzers.rules import RULES, find_all
from analyzers.rules.base import Match
from analyzers.subject import RankFacts, Subject
from analyzers.trace_subject import trace_subject
from tests.builders.eager import Eager
from tests.builders.trace import Timeline

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def subject_of(trace: Trace) -> Subject:
    return trace_subject(trace, trace_metrics(trace), STEP_PREFIX)[0]


def found(trace: Trace) -> dict[str, Match]:
    return {match.finding.id: match for match in find_all(subject_of(trace))}


def steady(*, kernel_us: float, every_us: float, count: int = 50) -> Timeline:
    """One step of equal kernels, each launched `every_us` after the one before."""
    line = Timeline()
    device = 0.0
    for place in range(count):
        call = line.launch(10 + place * every_us)
        device = max(device, 13 + place * every_us)
        line.kernel(device, kernel_us, correlation=call)
        device += kernel_us
    line.range(f"{STEP_PREFIX}0", 5, max(count * every_us, device) + 20)
    return line


def test_short_kernels_far_apart_are_host_bound() -> None:
    finding = found(steady(kernel_us=2, every_us=20).build())["launch-bound"].finding
    assert finding.kind == "opportunity"
    saving = finding.exposed_saving_ns
    assert saving is not None
    # 50 kernels of 2 µs in a step of 1 ms: one graph of them takes about 140 µs. The bounds are
    # those of the host's speed without the profiler.
    assert 0.5 * 1_000_000 - 200_000 < saving.mid < 0.8 * 1_000_000 - 100_000
    assert 700_000 < saving.high < 1_000_000 - 100_000
    assert 100_000 < saving.low < 1_000_000 / 3 - 100_000
    assert any("how much the profiler slowed the host" in item.text for item in finding.evidence)
    assert finding.title.endswith("of the profiled step"), "no clean step was timed"
    (graph, _) = finding.alternatives
    assert graph.text.startswith("one graph launch for the whole step")
    assert "CUDA graph" in finding.action


@pytest.mark.parametrize("every_us", [8, 15])
def test_what_the_profiler_may_have_stretched_is_not_held_against_the_host(every_us: float) -> None:
    assert "launch-bound" not in found(steady(kernel_us=10, every_us=every_us).build())


def test_graph_replays_that_were_not_recorded_make_idle_time_unreliable() -> None:
    """TraceLens#728, Hyperloom PR 1047: one of many replays recorded, "99.1 % idle"."""
    line = steady(kernel_us=2, every_us=20)
    for place in range(20):
        line.launch(15 + 40 * place, kind="graph", name="cudaGraphLaunch")
    result = found(line.build())
    finding = result["launch-bound"].finding
    assert finding.kind == "note"
    assert finding.exposed_saving_ns is None
    assert "20 of 20 graph launches" in finding.evidence[0].text


def test_without_a_step_range_the_span_is_not_a_step() -> None:
    line = Timeline()
    for place in range(20):
        call = line.launch(place * 10_000)
        line.kernel(place * 10_000 + 5, 5, correlation=call)
    finding = found(line.build())["launch-bound"].finding
    assert finding.kind == "note"
    assert "--step-range" in finding.action


def compiled(*, regions: int, waits: bool) -> Timeline:
    line = Timeline()
    for place in range(regions):
        at = 10 + 50 * place
        line.op("Torch-Compiled Region: 0/0", at, 45)
        line.op("triton_poi_fused_mul_0", at + 2, 5)
        for later in range(3 if waits else 8):
            call = line.launch(at + 3 + 5 * later)
            start = at + 6 + 5 * later
            line.kernel(start, 1, name="triton_poi_fused_mul_0", correlation=call)
        if waits:
            line.sync(at + 14, 30)
    line.range(f"{STEP_PREFIX}0", 5, 50 * regions + 10)
    return line


def test_many_regions_with_waits_between_want_their_breaks_removed_first() -> None:
    """isayevlab/aimnetcentral PR 109: 42 graphs became 4."""
    finding = found(compiled(regions=42, waits=True).build())["launch-bound"].finding
    assert "42 compiled regions" in finding.action
    assert ".item()" in finding.action


def test_compiled_regions_without_a_graph_launch_are_said_to_have_none() -> None:
    """pytorch#117281: CUDA graphs skipped in silence."""
    finding = found(compiled(regions=3, waits=False).build())["launch-bound"].finding
    assert any("they were skipped" in item.text for item in finding.evidence)
    assert "reduce-overhead" in finding.action


def test_a_compiled_block_gets_no_fusion_advice() -> None:
    line = Timeline()
    for place in range(6):
        at = 10 + 3 * place
        line.op("triton_red_fused_add_mean_0", at, 2)
        call = line.launch(at + 1)
        name = "triton_red_fused_add_mean_0"
        line.kernel(20 + 100 * place, 100, name=name, correlation=call)
    line.range(f"{STEP_PREFIX}0", 5, 700)
    result = found(line.build())
    assert {m.finding.kind for m in result.values()} == {"note"}
    assert "already-fused" in result
    action = result["already-fused"].finding.action
    assert "nothing to do" not in action, "the trace does not show what the compiler left"
    assert "profile --mode compile" in action


def test_replayed_kernels_are_told_by_name_and_coverage_is_stated() -> None:
    """TraceLens#827: 41,960 kernels behind 40 graph launches."""
    line = Timeline()
    call = line.launch(10, kind="graph", name="hipGraphLaunch")
    for place in range(40):
        line.kernel(20 + 10 * place, 10, name="Cijk_Alik_Bljk_BBS_BH", correlation=call)
    finding = found(line.build())["already-graphed"].finding
    assert finding.kind == "note"
    assert finding.evidence[0].values == {"graph_launches": 1, "kernels_inside": 40}
    assert "0.0 % of kernel time leads to an operator" in finding.evidence[0].text


def test_fewer_kernels_are_never_a_speed_up() -> None:
    """sglang PR 38921: 413 → 357 kernels and no change of throughput."""
    eager = Eager()
    big = eager.tensor(4_096, 4_096)
    for _ in range(10):
        eager.matmul(big, big)
    small = eager.tensor(64)
    for _ in range(20):
        eager.op("aten::mul", eager.op("aten::tanh", small, us=1), 2.0, us=1)
        eager.op("aten::sort", small, us=1)
    for match in eager.found().values():
        saving = match.finding.exposed_saving_ns
        # 20 pairs of 1 µs kernels: whatever goes, it is not more than they take.
        assert saving is None or saving.high <= 40_000


def step_with_communication(*, late: bool) -> Timeline:
    """Ten kernels and one all-reduce: behind them, or beside the second half."""
    line = Timeline()
    for place in range(10):
        call = line.launch(10 + place)
        line.kernel(20 + 100 * place, 100, correlation=call)
    call = line.launch(25)
    line.kernel(1_030 if late else 520, 600, name=NCCL, stream=20, correlation=call)
    line.range(f"{STEP_PREFIX}0", 5, 1_700)
    return line


def test_a_collective_behind_everything_is_a_note_on_lost_overlap() -> None:
    """pytorch#169461: all-reduces after backward, no overlap by construction."""
    result = found(step_with_communication(late=True).build())
    finding = result["lost-overlap"].finding
    assert finding.kind == "note"
    assert finding.rule == "exposed-communication"
    assert any(e.kind == "cannot_judge" for e in finding.evidence)
    assert "exposed-communication" not in result


def test_partly_hidden_communication_is_an_opportunity_up_to_what_is_exposed() -> None:
    result = found(step_with_communication(late=False).build())
    finding = result["exposed-communication"].finding
    assert finding.exposed_saving_ns is not None
    assert finding.exposed_saving_ns.high == 100_000
    assert "lost-overlap" not in result


def ranked(*comm_us: int) -> Subject:
    subject = subject_of(step_with_communication(late=False).build())
    ranks = tuple(
        RankFacts(rank=i, comm_ns=1_000 * us, busy_ns=1_000_000) for i, us in enumerate(comm_us)
    )
    return replace(subject, ranks=ranks)


def test_the_straggler_is_the_rank_with_the_least_time_in_collectives() -> None:
    matches = {m.finding.rule: m.finding for m in find_all(ranked(5_798, 11_336, 1_746))}
    finding = matches["straggler-rank"]
    assert finding.title.startswith("Rank 2 is the straggler")
    assert finding.exposed_saving_ns == Range(low=0, mid=6_821_000, high=9_590_000)


@pytest.mark.parametrize("times", [(500, 520), (700,), ()])
def test_ranks_that_wait_alike_have_no_straggler(times: tuple[int, ...]) -> None:
    assert "straggler-rank" not in {m.finding.rule for m in find_all(ranked(*times))}


def test_cache_sized_copies_are_to_be_removed() -> None:
    """vllm PR 8384: a view written in place, the whole KV cache copied."""
    line = steady(kernel_us=10, every_us=5)
    line.builder.event(
        "copies", name="Memcpy DtoD", kind="copy", direction="DtoD", bytes=1 << 30,
        start_ns=700_000, duration_ns=400_000, stream=7, device=0,
    )  # fmt: skip
    finding = found(line.build())["cache-sized-copy"].finding
    assert finding.kind == "note"
    assert "remove them, do not fuse them" in finding.title


def test_a_trace_without_kernels_or_ranges_finds_nothing() -> None:
    """HTA#107 and others: absent categories are empty."""
    line = Timeline()
    line.op("aten::add", 1, 2)
    assert not found(line.build())


def test_rules_are_documented_and_distinct() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert all((rule.title, rule.explanation, rule.good, rule.bad))
