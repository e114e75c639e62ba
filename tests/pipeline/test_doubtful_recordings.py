"""Recordings that are not what ran: real traces with events lost, doubled, moved or mistimed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.model.gate import CaptureLimit
from advisor.model.report import Report
from advisor.pipeline.analyze import analyze
from advisor.report.compare_work import comparability, unmade
from advisor.report.gate import capture_check
from advisor.report.terminal import render_report
from advisor.report.text import render
from tests.builders.trace import SHARED

H200 = SHARED / "traces" / "h200"
PUBLIC = SHARED / "traces" / "public"
CPU = SHARED / "engine_outputs" / "pytorch"
Events = list[dict[str, Any]]
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

pytestmark = pytest.mark.skipif(not H200.exists(), reason="the shared traces are not here")


def shown(report: Report) -> str:
    return render(render_report(report), width=400)


def codes(report: Report) -> dict[str, str]:
    return {warning.code: warning.message for warning in report.warnings}


def changed(tmp_path: Path, change: Callable[[Events], Events], name: str = "bert.eager") -> Path:
    """A recorded trace with its events changed."""
    data = json.loads(gzip.decompress((H200 / f"{name}.json.gz").read_bytes()))
    data["traceEvents"] = change(data["traceEvents"])
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(data))
    return path


def kernels(events: Events) -> Iterator[dict[str, Any]]:
    return (event for event in events if event.get("cat") == "kernel")


def some_lost(events: Events) -> Events:
    """The profiler lost every fifth kernel."""
    gone = {id(event) for event in list(kernels(events))[::5]}
    return [event for event in events if id(event) not in gone]


def doubled(events: Events) -> Events:
    return events + list(kernels(events))


def moved(by_us: float) -> Callable[[Events], Events]:
    """The clocks of host and device are so far apart."""
    return lambda events: [
        {**event, "ts": event["ts"] + by_us} if event.get("cat") in DEVICE else event
        for event in events
    ]


def scaled(by: float) -> Callable[[Events], Events]:
    """Times in another unit than the microseconds that the format asks for."""
    times = ("ts", "dur")
    return lambda events: [
        event | {name: event[name] * by for name in times if name in event} for event in events
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (some_lost, "35 of 174 kernel launches have no recorded kernel"),
        (doubled, "174 of 348 kernels are recorded twice"),
        (moved(-5_000), "174 of 174 kernels start before their launch"),
        (moved(5_000), "the device stood idle before 59 kernels that had been launched 5.01 ms"),
        (scaled(0.001), "half of the kernels take at most 7 ns: times of another unit"),
        (scaled(1_000), "the quickest launches take"),
    ],
)
def test_figures_that_rest_on_such_a_recording_are_unknown(
    change: Callable[[Events], Events], why: str, tmp_path: Path
) -> None:
    report = analyze([changed(tmp_path, change)])
    assert report.findings
    for finding in report.findings:
        assert finding.exposed_saving_ns is None, finding.title
        assert not finding.title.startswith("Host-bound")
    assert why in codes(report)["recording-doubtful"]
    assert capture_check("report", report, CaptureLimit()).status == "failed"
    assert "UNRELIABLE" in report.metrics["gpu_idle_fraction_per_step"].definition


def test_a_file_that_ends_early_is_doubted(tmp_path: Path) -> None:
    whole = gzip.decompress((H200 / "llama_prefill.eager.json.gz").read_bytes())
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: int(len(whole) * 0.92)])
    report = analyze([path])
    assert "the file ends early" in codes(report)["recording-doubtful"]
    assert report.findings
    assert all(finding.exposed_saving_ns is None for finding in report.findings)


def test_two_recordings_in_one_file_are_told(tmp_path: Path) -> None:
    other = json.loads(gzip.decompress((H200 / "unet.eager.json.gz").read_bytes()))["traceEvents"]
    report = analyze([changed(tmp_path, lambda events: events + other)])
    told = codes(report)["recording-doubtful"]
    assert "ProfilerStep#0 is marked more than once" in told


def test_recordings_that_are_whole_are_not_doubted() -> None:
    for path in (*sorted(H200.glob("*.json.gz")), *sorted(PUBLIC.glob("*/*.json.gz"))):
        assert "recording-doubtful" not in codes(analyze([path])), path.name


def test_copies_are_no_idle_time() -> None:
    """Of the ResNet trace 0.6 % of the span is copies."""
    report = analyze([PUBLIC / "hta_a100_resnet_ddp_rank0.json.gz"])
    (finding,) = [f for f in report.findings if f.id == "launch-bound"]
    idle = report.metrics["gpu_idle_fraction_per_step"].value
    assert idle is not None
    assert f"{100 * idle:.1f} %" in finding.title


def test_of_the_last_step_alone_is_said_where_steps_are_unlike(tmp_path: Path) -> None:
    def cut(events: Events) -> Events:
        steps = [e for e in events if e["name"] == "ProfilerStep#1" and e["cat"] != "kernel"]
        for step in steps:
            step["dur"] *= 0.25
        return events

    told = codes(analyze([changed(tmp_path, cut)]))["steps-unlike"]
    assert told.startswith("steps launch ")
    assert "87 kernels" in told
    whole = codes(analyze([H200 / "bert.eager.json.gz"]))
    assert "steps-unlike" not in whole


def test_without_a_marked_step_nothing_is_said_of_one(tmp_path: Path) -> None:
    def unmarked(events: Events) -> Events:
        return [event for event in events if not event["name"].startswith("ProfilerStep")]

    report = analyze([changed(tmp_path, unmarked)])
    assert "'per step' is of the whole recording" in codes(report)["steps-missing"]
    text = shown(report).replace("'per step' is of", "")
    assert "per step" not in text
    assert "Saves in the whole recording" in text
    # Both recorded runs: what is known of the whole is shown.
    assert "gpu_busy_ns" in text
    assert "unknown" not in text.split("Metrics")[1].split("Warnings")[0]
    assert "steps-missing" not in codes(analyze([H200 / "bert.eager.json.gz"]))


def test_what_was_launched_for_the_first_time_is_no_saving() -> None:
    """Three sums of 8 x 16 values: 19 ms of host time went to loading their kernel."""
    norms = SHARED / "engine_outputs/kineto_gpu/mi300x_norm_layers_miopen.trace.json.gz"
    report = analyze([norms])
    assert any(finding.kind == "opportunity" for finding in report.findings)
    assert all(finding.exposed_saving_ns is None for finding in report.findings)
    # Autograd adds up the gradients of parameters, not the module.
    assert not any("aten::add_" in m.name for f in report.findings for m in f.members)
    assert "recording-doubtful" not in codes(report)


@pytest.mark.skipif(not CPU.exists(), reason="the shared engine outputs are not here")
def test_a_trace_without_a_gpu_is_not_judged() -> None:
    """Its convolutions, batch norms and activations are apart, and none of that was looked at."""
    eager = analyze([CPU / "convnet_eager.trace.json.gz"])
    compiled = analyze([CPU / "convnet_compile.trace.json.gz"])
    assert "Nothing was judged: no kernel of a GPU is in this trace." in shown(eager)
    assert "ProfilerActivity.CUDA" in codes(eager)["no-kernels"]
    assert "gpu-unknown" not in codes(eager)
    # Two graphs of nothing on two devices that nobody named are not the same work.
    assert eager.workload.graph_hash is None
    found = comparability(eager, compiled)
    assert {"gpu", "device_present", "work"} <= set(unmade(found))


def test_a_gpu_with_a_name_is_not_called_unknown() -> None:
    told = codes(analyze([PUBLIC / "kineto_gpu_metrics_2021_05.json"]))["gpu-unknown"]
    assert told.startswith("the limits of Tesla V100-DGXS-32GB are unknown")


def test_a_graph_of_a_third_of_the_kernels_is_a_part() -> None:
    titles = {f.id: f.title for f in analyze([H200 / "streams_one.json.gz"]).findings}
    assert titles["already-graphed"] == "Partly replayed as a CUDA graph"
    engine = SHARED / "engine_outputs/kineto_gpu/mi300x_sglang_qwen3_8b_decode.trace.json.gz"
    (graph,) = [f for f in analyze([engine]).findings if f.id == "already-graphed"]
    assert graph.title == "Already replayed as a HIP graph"
    assert "come from 1 graph launch;" in graph.evidence[0].text
