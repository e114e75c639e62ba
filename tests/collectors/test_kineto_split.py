"""Two processes read what one would, whatever the file, the packing and the place of the cut."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.model.trace import Trace, TraceBuilder
from advisor.model.trace_schema import TABLES
from collectors import kineto, kineto_pair, kineto_split
from collectors.bytes_in import Source
from collectors.kineto_split import Before, Behind
from collectors.kineto_stream import EventStream
from tests.builders.trace import event
from tests.builders.trace import kineto as file_of

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRAPS = ['},{"ph": "X"', '}, {"name": "x"', "] } , {", 'quote " \\', "plain"]
names = st.lists(st.sampled_from(TRAPS) | st.text(max_size=8), min_size=1, max_size=8)


def content(path: Path) -> bytes:
    return gzip.decompress((SAMPLES / path).read_bytes())


def by_one(path: Path) -> Trace:
    builder, source = TraceBuilder(source="kineto"), Source(path)
    return kineto.traced(builder, *kineto.by_one(source, builder), path)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": lambda data: gzip.compress(data, 1),
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["llama_prefill.eager.json.gz", "ddp_onebucket.rank1.json.gz"])
def test_two_processes_give_the_trace_of_one(
    name: str, packer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(PACKERS[packer](content(Path(name))))
    monkeypatch.setattr(kineto_split, "_PLAIN_BYTES", 0)
    monkeypatch.setattr(kineto_split, "_PACKED_BYTES", 0)
    monkeypatch.setattr(kineto_pair, "_processors", lambda: 2)
    builder, source = TraceBuilder(source="kineto"), Source(path)
    found = kineto_pair.read_by_two(source, builder)
    assert found is not None
    two, one = kineto.traced(builder, *found, path), by_one(path)
    for table in TABLES:
        assert two.table(table).equals(one.table(table)), table
    assert (two.info, two.warnings, two.provenance) == (one.info, one.warnings, one.provenance)


@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(listed=names, nested=st.booleans(), data=st.data())
def test_any_event_list_survives_any_cut(
    listed: list[str], nested: bool, data: st.DataObject, tmp_path: Path
) -> None:
    inner = {"extra": [{"name": 1}, {"name": 2}, {"ph": 3}]} if nested else {}
    events = [event("cpu_op", name, i, 1, **inner) for i, name in enumerate(listed)]
    text = file_of(events)
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    at = data.draw(st.integers(text.index(b'"traceEvents"') + 16, len(text)))
    before, behind = Before(path, at), Behind(path, at)
    first, second = EventStream(before), EventStream(behind, inside=True)
    found = [e.name for part in first for e in part]
    later = [e.name for part in second for e in part]
    if not before.found:
        assert found == listed
        assert not later
    elif first.dropped_bytes or "event_dropped" in first.damage.counts:
        assert nested  # and then one process reads the file
    else:
        assert found + later == listed
        assert second.whole


def test_a_cut_inside_an_event_is_noticed_and_one_process_reads_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[dict[str, Any]] = [event("kernel", f"k{i}", i, 1) for i in range(400)]
    listed[200]["args"] = {"extra": [{"ph": "X"}] * 40_000}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": listed}))
    monkeypatch.setattr(kineto_split, "_PLAIN_BYTES", 0)
    monkeypatch.setattr(kineto_pair, "_processors", lambda: 2)
    source = Source(path)
    assert kineto_pair.read_by_two(source, TraceBuilder(source="kineto")) is None
    assert len(kineto.read(path).kernels) == 400


def test_a_child_that_fails_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content(Path("unet.eager.json.gz")))
    monkeypatch.setattr(kineto_split, "_PLAIN_BYTES", 0)
    monkeypatch.setattr(kineto_pair, "_processors", lambda: 2)
    monkeypatch.setattr(kineto_pair, "_START", "raise SystemExit(3)")
    assert kineto.read(path).kernels.equals(by_one(path).kernels)


def test_small_files_and_single_processors_need_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(SAMPLES / "unet.eager.json.gz")
    assert kineto_split.place_to_split(source) is None
    monkeypatch.setattr(kineto_split, "_PACKED_BYTES", 0)
    monkeypatch.setattr(kineto_pair, "_processors", lambda: 1)
    assert kineto_pair.read_by_two(source, TraceBuilder(source="kineto")) is None


def test_a_truncated_second_part_is_salvaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(Path("llama_prefill.eager.json.gz"))
    path = tmp_path / "trace.json"
    path.write_bytes(whole[: len(whole) * 9 // 10])
    monkeypatch.setattr(kineto_split, "_PLAIN_BYTES", 0)
    monkeypatch.setattr(kineto_pair, "_processors", lambda: 2)
    trace = kineto.read(path)
    assert not trace.info.complete
    assert [w.code for w in trace.warnings] == ["truncated"]
    assert trace.warnings == by_one(path).warnings
