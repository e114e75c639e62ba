"""Compression, limits and salvage, on real files."""

from __future__ import annotations

import gzip
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from advisor.errors import UnreadableError
from collectors import UnknownFormatError, read_trace
from collectors.bytes_in import Source
from tests.builders.trace import event, kineto

TRACE = kineto(
    [event("kernel", f"kernel_{i % 7}", i * 10, 5, stream=7, device=0) for i in range(3000)]
)


def _zip(data: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/trace.json", data)


PACKERS: dict[str, Callable[[bytes, Path], object]] = {
    "plain": lambda data, path: path.write_bytes(data),
    "gzip": lambda data, path: path.write_bytes(gzip.compress(data, mtime=0)),
    "two gzip members": lambda data, path: path.write_bytes(
        gzip.compress(data[:5000], mtime=0) + gzip.compress(data[5000:], mtime=0) + b"\0" * 20
    ),
    "zstd": lambda data, path: path.write_bytes(zstandard.compress(data)),
    "two zstd frames": lambda data, path: path.write_bytes(
        zstandard.compress(data[:5000]) + zstandard.compress(data[5000:])
    ),
    "zip": _zip,
}


@pytest.mark.parametrize("packer", PACKERS)
def test_every_packing_gives_the_same_bytes(packer: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    PACKERS[packer](TRACE, path)
    source = Source(path)
    assert b"".join(source.chunks()) == TRACE
    assert source.truncated == ""
    assert source.head(100) == TRACE[:100]
    assert len(read_trace(path).kernels) == 3000


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("share", [0.4, 0.9])
def test_a_truncated_file_is_salvaged_and_says_so(
    pack: Callable[[bytes], bytes], share: float, tmp_path: Path
) -> None:
    noise = random.Random(1)
    many = [event("kernel", f"k{noise.random()}", i * 10, 5, stream=7) for i in range(20_000)]
    packed = pack(kineto(many))
    path = tmp_path / "cut"
    path.write_bytes(packed[: int(len(packed) * share)])
    trace = read_trace(path)
    assert 0.5 * share < len(trace.kernels) / 20_000 < 1
    assert not trace.info.complete
    (warning,) = trace.warnings
    assert warning.code == "truncated"
    assert "bytes at the end dropped" in warning.message


def test_damage_inside_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TRACE, 1, mtime=0))
    packed[-8:-4] = b"\1\2\3\4"  # the checksum
    path = tmp_path / "damaged.gz"
    path.write_bytes(packed)
    trace = read_trace(path)
    assert 1500 < len(trace.kernels) <= 3000
    assert not trace.info.complete
    assert "damaged" in trace.warnings[0].message


def refusal(path: Path) -> str:
    with pytest.raises(UnreadableError) as caught:
        read_trace(path)
    line = caught.value.line()
    assert "\n" not in line
    assert str(path) in line
    assert caught.value.exit_code == 3
    return line


def test_bombs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"schemaVersion": 1, "traceEvents": [')
        for _ in range(100):
            file.write(b" " * (1 << 20))
    assert "times its size" in refusal(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b'{"onnx": [1, 2]}', "none of: kineto"),
        (b'{"schemaVersion": 1, "traceEvents": []}', "holds no events"),
        (
            b'{"schemaVersion": 1, "traceEvents": ' + b"[" * 10**6,
            "ends before the first complete event",
        ),
        (b'{"schemaVersion": 1}', "no event array"),
        (b"\x00\x01\x02", "none of: kineto"),
        (b"PK\x03\x04 nonsense", "not a readable zip"),
        (b"\x1f\x8bnonsense", "cannot be decompressed"),
        (b"\x28\xb5\x2f\xfdnonsense", "cannot be decompressed"),
        (gzip.compress(TRACE, mtime=0)[:30], "the compressed file ends early"),
        (gzip.compress(gzip.compress(TRACE, mtime=0), mtime=0), "compressed twice"),
        (TRACE.decode().encode("utf-16"), "UTF-16"),
        (b"SQLite format 3\0" + bytes(100), "SQLite"),
        (
            b'{"traceEvents": [{"ph": "B", "cat": "cpu_op", "ts": 1}]}',
            "no kernel, operator or call",
        ),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "gpu_op", "ts": 1}]}',
            "no kernel, operator or call",
        ),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": 1}]}', "left out, byte 17"),
    ],
)
def test_bad_input_is_one_clear_line(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    assert says in refusal(path)


def test_directories_absent_files_and_crowded_zips(tmp_path: Path) -> None:
    assert "is a directory" in refusal(tmp_path)
    assert "cannot be read" in refusal(tmp_path / "absent.json")
    crowd = tmp_path / "two.zip"
    with zipfile.ZipFile(crowd, "w") as archive:
        archive.writestr("a.json", TRACE)
        archive.writestr("b.json", TRACE)
    assert "holds 2 files" in refusal(crowd)


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.symlink_to(second)
    second.symlink_to(first)
    assert "symbolic links" in refusal(first)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    assert "no regular file" in refusal(pipe)


def test_formats_of_others_are_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "jax.json"
    path.write_bytes(
        b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[{"ph":"M","pid":1}]}'
    )
    with pytest.raises(UnknownFormatError):
        read_trace(path)
