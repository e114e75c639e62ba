"""Two reports: whether they are of the same work."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from advisor.errors import UsageError
from advisor.model.report import KernelRow, Report
from advisor.report.compare_work import comparability, operand_shapes, steps_of
from analyzers.metrics import kernel_rows
from collectors import read_trace
from tests.builders.compared import base, gemms, kernel, stepped
from tests.builders.trace import SHARED


def test_a_report_is_of_the_same_work_as_itself() -> None:
    found = comparability(base(), base())
    assert (found.comparable, found.reasons) == (True, ())
    assert found.score > 0.9, "only unknown versions are missing from a full score"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("graph_hash", {"graph_hash": "cd"}),
        ("shapes", {"shapes": ("4x512x1024",)}),
        ("gpu", {"gpu": "a100"}),
        ("world_size", {"world_size": 2}),
        ("rank", {"rank": 1}),
    ],
)
def test_each_part_of_the_identity_ends_the_comparison(name: str, other: dict[str, object]) -> None:
    before = base()
    after = replace(before, workload=replace(before.workload, **other))
    found = comparability(before, after)
    assert not found.comparable
    assert [reason.partition(":")[0].replace(" ", "_") for reason in found.reasons] == [name]
    assert found.score < comparability(before, before).score
    accepted = comparability(before, after, [name])
    assert (accepted.comparable, accepted.accepted) == (True, (name,))


def test_another_number_of_steps_or_another_device_is_not_comparable() -> None:
    before = base()
    longer = {**before.metrics, "gpu_busy_per_step_ns": stepped(10, 9, 10, 11)}
    assert (steps_of(before), steps_of(replace(before, metrics=longer))) == (2, 3)
    assert (
        "steps: 2 before, 3 after" in comparability(before, replace(before, metrics=longer)).reasons
    )
    absent = replace(before, hardware=replace(before.hardware, present=False))
    assert "device present: yes before, no after" in comparability(before, absent).reasons
    trace = replace(absent, workload=replace(absent.workload, mode="trace"))
    checks = {check.name: check.after for check in comparability(before, trace).checks}
    assert checks["device_present"] == "yes", "it was recorded on one, wherever it is read"


def test_mode_and_versions_are_stated_and_end_nothing() -> None:
    before = base()
    after = replace(
        before, workload=replace(before.workload, mode="compile", versions={"torch": "3"})
    )
    found = comparability(before, after)
    assert found.comparable
    assert {c.name: c.outcome for c in found.checks}["mode"] == "differ"


def test_all_reasons_are_listed() -> None:
    before = base()
    after = base(world_size=2, rank=1)
    found = comparability(before, replace(after, kernels=(gemms(8, "[[9, 9], [9, 9]]"),)))
    assert [r.partition(":")[0] for r in found.reasons] == ["world size", "rank", "work"]


def test_an_unknown_name_of_a_check_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="graph_hash, shapes"):
        comparability(base(), base(), ["colour"])


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ((gemms(8),), (gemms(8), kernel("x")), "agree"),
        ((gemms(8),), (gemms(7),), "agree"),
        ((gemms(8),), (gemms(4),), "differ"),
        ((gemms(8),), (gemms(8, "[[9, 9], [9, 9]]"),), "differ"),
        # A bias in front and an output behind are no part of the work.
        ((gemms(8),), (gemms(8, "[[4], [8, 16], [16, 4], [8, 4], []]"),), "agree"),
        # Without shapes, counts may refute but never confirm.
        ((kernel("g", "gemm", count=8.0),), (kernel("g", "gemm", count=8.0),), "unknown"),
        ((kernel("g", "gemm", count=8.0),), (kernel("g", "gemm", count=4.0),), "differ"),
        ((kernel("p"),), (kernel("p"),), "unknown"),
        ((), (gemms(8),), "unknown"),
        # Attention in one kernel answers for two batched products.
        (
            (gemms(8), gemms(4, "[[2, 8, 8], [2, 8, 8]]"), gemms(4, "[[2, 8, 9], [2, 9, 8]]")),
            (gemms(8), kernel("flash", "attention", count=4.0)),
            "agree",
        ),
        (
            (gemms(8), gemms(40, "[[2, 8, 8], [2, 8, 8]]")),
            (gemms(8), kernel("flash", "attention", count=1.0)),
            "differ",
        ),
    ],
)
def test_work_is_judged_by_what_fusion_leaves_alone(
    before: tuple[KernelRow, ...], after: tuple[KernelRow, ...], outcome: str
) -> None:
    for a, b in ((before, after), (after, before)):
        found = comparability(replace(base(), kernels=a), replace(base(), kernels=b))
        assert {c.name: c.outcome for c in found.checks}["work"] == outcome


def test_traces_with_other_names_compare_by_their_work_alone() -> None:
    def trace(name: str, graph: str, rows: tuple[KernelRow, ...]) -> Report:
        work = replace(base().workload, target=name, mode="trace", graph_hash=graph)
        return replace(base(), workload=work, kernels=rows)

    assert comparability(trace("a", "1", (gemms(8),)), trace("b", "2", (gemms(8),))).comparable
    unknown = comparability(trace("a", "1", (kernel("x"),)), trace("b", "2", (kernel("x"),)))
    assert [r.partition(":")[0] for r in unknown.reasons] == ["target"]


def test_shapes_of_hostile_calls_are_unknown() -> None:
    for text in ("aten::mm", "aten::mm [", "x [[[[[", "x " + "[" * 9999, 'x ["a", {"b": 1}]'):
        assert operand_shapes(text) == ()
    assert operand_shapes("a: B [[3], [8, 16], [16, 4], [8, 4]]") == ((8, 16), (16, 4))


TRACES = ("bert.eager", "bert.inductor", "llama_decode.eager", "llama_decode.inductor")


@pytest.mark.skipif(not (SHARED / "traces/h200").is_dir(), reason="needs the recorded traces")
def test_recorded_runs_of_one_model_compare_and_others_do_not() -> None:
    reports = {}
    for name in TRACES:
        trace = read_trace(SHARED / f"traces/h200/{name}.json.gz")
        work = replace(base().workload, target=name, mode="trace", graph_hash=name)
        rows = kernel_rows(trace, trace.steps())
        reports[name] = replace(base(), workload=work, kernels=rows)
    for a, b in itertools.permutations(TRACES, 2):
        same = a.partition(".")[0] == b.partition(".")[0]
        assert comparability(reports[a], reports[b]).comparable == same, (a, b)
