"""Any event list survives any chunk boundary, and damage costs no more than what is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import UnreadableError
from collectors import bytes_in, kineto_stream
from collectors.bytes_in import Source
from collectors.kineto_stream import EventStream
from tests.builders.trace import event, kineto


class Pieces(Source):
    """A source whose chunks are given instead of read."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.path, self.truncated, self._pieces = Path("t.json"), "", pieces

    def chunks(self) -> Iterator[bytes]:
        return iter(self._pieces)


def stream(data: bytes, size: int | None = None) -> tuple[EventStream, list[str]]:
    pieces = [data[i : i + size] for i in range(0, len(data), size)] if size else [data]
    opened = EventStream(Pieces(pieces))
    return opened, [e.name for events in opened for e in events]


TRAPS = [
    '},{"ph": "X"',
    "] } , {",
    'quote " and \\ backslash \\',
    '}, {"name": "x"',
    "",
    "ünï",
]
names = st.one_of(st.sampled_from(TRAPS), st.text(max_size=12))
values = st.recursive(
    st.one_of(st.integers(-5, 5), names, st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)
events = st.lists(
    st.builds(
        lambda n, v: {**event("cpu_op", n, 1, 1), "args": {"extra": [{"a": v}, {"b": v}]}},
        names,
        values,
    ),
    max_size=6,
)
layouts = st.sampled_from([(None, (", ", ": ")), (2, (",", ": ")), (None, (",", ":"))])


@settings(deadline=None, max_examples=150)
@given(events, layouts, st.integers(1, 400))
def test_any_event_list_survives_any_chunk_boundary(
    listed: list[dict[str, Any]], layout: tuple[int | None, tuple[str, str]], size: int
) -> None:
    indent, separators = layout
    text = {"schemaVersion": 1, "traceEvents": listed, "INFO": ["] } , {"], "traceName": "n"}
    data = json.dumps(text, indent=indent, separators=separators).encode()
    opened, found = stream(data, size)
    assert found == [e["name"] for e in listed]
    assert opened.whole
    assert opened.metadata["traceName"] == "n"
    assert not opened.damage.counts


@settings(deadline=None, max_examples=80)
@given(events, st.data())
def test_a_truncated_file_gives_its_complete_events(
    listed: list[dict[str, Any]], data: st.DataObject
) -> None:
    text = kineto(listed)
    first = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = data.draw(st.integers(first, text.rindex(b'],\n  "traceName"')))
    opened, found = stream(text[:end], 50)
    complete, behind = 0, first
    for one in listed:
        behind = text.index(json.dumps(one, indent=4).encode(), behind)
        behind += len(json.dumps(one, indent=4))
        complete += behind <= end
    assert found == [e["name"] for e in listed][:complete]
    assert not opened.whole
    assert opened.dropped_bytes <= end - first


def test_an_array_without_an_object_around_it() -> None:
    opened, found = stream(json.dumps([event("kernel", "k", 1, 1)] * 3).encode(), 30)
    assert found == ["k"] * 3
    assert opened.whole


def test_an_open_array_as_chrome_allows_it() -> None:
    opened, found = stream(b'[{"ph":"X","name":"a"},\n{"ph":"X","name":"b"},\n')
    assert found == ["a", "b"]
    assert not opened.whole


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (b'"bandwidth": inf', "number_not_finite"),
        (b'"bandwidth": -Infinity', "number_not_finite"),
        (b'"bandwidth": NaN', "number_not_finite"),
        (rb'"path": "C:\queue\data"', "escape_repaired"),
        (b'"path": "a\x01b\tc"', "control_character_repaired"),
    ],
)
def test_repairs_are_counted_and_lose_nothing(damage: bytes, kind: str) -> None:
    whole = kineto([event("kernel", f"k{i}", i, 1, correlation=i) for i in range(9)])
    broken = whole.replace(b'"correlation": 4', b'"correlation": 4, ' + damage)
    opened, found = stream(broken, 200)
    assert found == [f"k{i}" for i in range(9)]
    assert set(opened.damage.counts) == {kind}
    assert opened.whole


def test_the_word_inf_inside_a_string_stays() -> None:
    broken = kineto([event("kernel", "a: inf, b", 1, 1, bytes=0)]).replace(
        b'"bytes": 0', b'"bytes": inf'
    )
    assert stream(broken)[1] == ["a: inf, b"]


def test_invalid_utf8_is_replaced() -> None:
    broken = kineto([event("python_function", "aXb", 1, 1), event("kernel", "k", 1, 1)])
    opened, found = stream(broken.replace(b"aXb", b"a\xff\xfeb"))
    assert found == ["a\ufffd\ufffdb", "k"]
    assert opened.damage.counts == {"utf8_repaired": 1}


def test_a_wrong_argument_costs_only_itself() -> None:
    broken = kineto([event("kernel", "k", 1, 1, correlation="many", stream=7)])
    opened = EventStream(Pieces([broken]))
    (found,) = [e for events in opened for e in events]
    assert (found.name, found.args.stream) == ("k", 7)
    assert opened.damage.counts == {"event_repaired": 1}


def test_a_path_that_ends_in_a_backslash_costs_no_neighbour() -> None:
    listed = [event("kernel", f"k{i}", i, 1) for i in range(5)]
    broken = kineto(listed).replace(b'"k2"', b'"C:\\dir\\"')
    opened, found = stream(broken)
    assert found[:2] + found[-2:] == ["k0", "k1", "k3", "k4"]
    assert sum(opened.damage.counts.values()) == 1


def test_a_lost_quote_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_stream, "RESYNC_BYTES", 2000)
    listed = [event("kernel", f"k{i}", i, 1) for i in range(60)]
    broken = kineto(listed).replace(b'"k7"', b'"k7')
    opened, found = stream(broken, 300)
    assert set(found) >= {f"k{i}" for i in range(60)} - {"k7", "k8"}
    assert opened.damage.counts["event_dropped"] <= 2


def test_deep_nesting_is_dropped_not_followed() -> None:
    deep = b"[" * 10**6 + b"]" * 10**6
    data = kineto([event("kernel", "k", 1, 1, extra=1)]).replace(b'"extra": 1', b'"extra": ' + deep)
    opened, found = stream(data)
    assert found in ([], ["k"])
    assert opened.damage.counts


@pytest.mark.parametrize("filler", [b"{},", b'{"ph": "X", "cat": "kernel", "name": 5},'])
def test_a_file_of_nothing_but_damage_is_given_up(
    filler: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto_stream, "RESYNC_BYTES", 1 << 14)
    monkeypatch.setattr(kineto_stream, "_MOST_LOST_EVENTS", 100)
    good = json.dumps(event("kernel", "k", 1, 1)).encode() + b","
    with pytest.raises(UnreadableError, match=r"damaged beyond use.* byte \d+"):
        stream(b'{"traceEvents": [' + good + filler * 5000, 4096)


@pytest.mark.parametrize("filler", [b"{},", b'{"ph": "X", "cat": "kernel", "name": 5},'])
def test_a_file_that_is_mostly_good_is_read(filler: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_stream, "_MOST_LOST_EVENTS", 100)
    good = json.dumps(event("kernel", "k", 1, 1)).encode() + b","
    content = b'{"traceEvents": [' + (good * 2 + filler) * 300 + b"{}]}"
    assert stream(content, 4096)[1].count("k") == 600


def test_nothing_but_quotes_is_given_up_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_stream, "RESYNC_BYTES", 1 << 18)
    monkeypatch.setattr(kineto_stream, "_MOST_LOST_BYTES", 1 << 20)
    with pytest.raises(UnreadableError, match="the first at byte 17"):
        stream(b'{"traceEvents": [' + b'"' * (3 << 20), 60_000)


def test_half_a_character_is_replaced() -> None:
    """Python writes a byte that is no UTF-8 as half of a surrogate pair, which JSON forbids."""
    broken = kineto([event("kernel", "aXb", 1, 1)]).replace(b"aXb", rb"\udc80 \ud83d\ude00 \\ud800")
    opened, found = stream(broken)
    assert found == ["\ufffd \U0001f600 \\ud800"]
    assert opened.damage.counts == {"utf8_repaired": 1}


def test_a_byte_order_mark_hides_no_metadata() -> None:
    opened, found = stream(b"\xef\xbb\xbf" + kineto([event("kernel", "k", 1, 1)]))
    assert found == ["k"]
    assert opened.metadata["schemaVersion"] == 1
    assert not opened.damage.counts


def test_a_file_without_events_array_is_refused() -> None:
    with pytest.raises(UnreadableError, match="no event array"):
        stream(b'{"schemaVersion": 1}')


def test_chunks_are_bounded() -> None:
    assert bytes_in.CHUNK_BYTES <= 1 << 20


@pytest.mark.parametrize("filler", [b" ", b"x", b"[", b'{"a":', b'"'])
def test_what_never_becomes_an_event_is_dropped_in_bounded_memory(
    filler: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto_stream, "RESYNC_BYTES", 1 << 18)
    garbage = filler * (3 << 20)
    good = json.dumps(event("kernel", "k", 1, 1)).encode()
    opened = EventStream(Pieces([b'{"traceEvents": [' + good + b","] + [garbage[:60_000]] * 60))
    longest = 0
    exactly = opened._exactly

    def watched(buffer: bytes, *, final: bool) -> Any:
        nonlocal longest
        longest = max(longest, len(buffer))
        return exactly(buffer, final=final)

    monkeypatch.setattr(opened, "_exactly", watched)
    assert [e.name for found in opened for e in found] == ["k"]
    assert longest < 2 << 18
    assert opened.damage.counts["event_dropped"] >= 1
