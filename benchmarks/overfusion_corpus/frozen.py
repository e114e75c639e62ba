"""A recording as one archive with a manifest, and read back: what the rules are scored on.

Rules may be written once the manifest is committed: labels then can no longer follow them.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from advisor.errors import InvalidRecordError
from advisor.model.base import Record, decode, load
from advisor.model.counters import KernelCounters
from collectors import read_trace
from collectors.ncu import read_ncu

from .counting import ORDER, RAW, Counted
from .records import Label, Labels, Result, Session

MANIFEST = "MANIFEST.json"
MEMBERS = ("session.json", "labels.json", ORDER, f"{RAW}.gz", "cases", "traces", "code", "failed")
MOST_BYTES = 256 << 20


class Manifest(Record, frozen=True, kw_only=True):
    """The archive by its hash, and what it holds."""

    archive: str
    sha256: str
    bytes: int
    session: Session
    cases: int
    verdicts: dict[str, int]
    causes: dict[str, int]


@dataclass(frozen=True)
class Recording:
    """An unpacked recording; traces are `trace(id, "fused" | "members")`."""

    folder: Path
    session: Session
    results: dict[str, Result]
    labels: dict[str, Label]
    counters: dict[tuple[str, str], tuple[KernelCounters, ...]]

    def trace(self, case: str, variant: str) -> Path:
        """The Kineto trace of five steps of one way."""
        return self.folder / "traces" / f"{case}.{variant}.json.gz"

    def code(self, case: str, variant: str) -> str | None:
        """What Inductor wrote for one way, if it did."""
        path = self.folder / "code" / f"{case}.{variant}.py.gz"
        return gzip.decompress(path.read_bytes()).decode() if path.exists() else None


def results(folder: Path) -> list[Result]:
    """The measured cases of a folder, ordered by id."""
    paths = sorted((folder / "cases").glob("*.json"))
    return [decode(path.read_bytes(), Result, str(path)) for path in paths]


def pack(folder: Path, target: Path) -> None:
    """Write the archive, at once: whoever is ended meanwhile leaves the one before."""
    done = {path.stem for path in (folder / "cases").glob("*.json")}
    paths = [p for name in MEMBERS for p in (folder / name, *(folder / name).glob("*"))]
    kept = sorted(p for p in paths if p.is_file() and _is_whole(p, done))
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f"{target.name}.part")
    with (
        beside.open("wb") as plain,
        # Quickly: nearly all of it is compressed already.
        gzip.GzipFile("", "wb", 1, plain, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in kept:
            archive.add(path, str(path.relative_to(folder)), filter=_anonymous)
    beside.replace(target)


def _is_whole(path: Path, done: set[str]) -> bool:
    """False for a trace or code of a case that was not finished."""
    return path.parent.name not in ("traces", "code") or path.name.split(".")[0] in done


def restore(archive: Path, target: Path) -> None:
    """Unpack what `target` has not: a recording goes on there.

    Raises `InvalidRecordError` if the archive holds anything but files below it.
    """
    for name, content in _files(archive):
        path = target / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _anonymous(item: tarfile.TarInfo) -> tarfile.TarInfo:
    item.uid = item.gid = item.mtime = 0
    item.uname = item.gname = ""
    item.mode = 0o644
    return item


def manifest(folder: Path, archive: Path) -> Manifest:
    """What there is to commit beside the archive of a folder."""
    data = archive.read_bytes()
    found = load(folder / "labels.json", Labels).labels
    lost = [label for label in found if label.verdict == "regression"]
    return Manifest(
        archive=archive.name,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        session=load(folder / "session.json", Session),
        cases=len(found),
        verdicts=dict(sorted(Counter(label.verdict for label in found).items())),
        causes=dict(sorted(Counter(str(label.cause) for label in lost).items())),
    )


def unpack(manifest_path: Path, target: Path) -> Recording:
    """The recording that a manifest names, unpacked below `target`.

    Raises `InvalidRecordError` if the archive is another than was frozen.
    """
    expected = load(manifest_path, Manifest)
    archive = manifest_path.with_name(expected.archive)
    if hashlib.sha256(archive.read_bytes()).hexdigest() != expected.sha256:
        raise InvalidRecordError("not the archive that was frozen", where=str(archive))
    for name, content in _files(archive):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    return read(target)


def _files(archive: Path) -> Iterator[tuple[Path, bytes]]:
    with tarfile.open(archive) as packed:
        for item in packed.getmembers():
            name = Path(item.name)
            inside = not name.is_absolute() and ".." not in name.parts
            if not item.isfile() or not inside or item.size > MOST_BYTES:
                raise InvalidRecordError(f"holds {item.name}", where=str(archive))
            content = packed.extractfile(item)
            assert content is not None
            yield name, content.read()


def read(folder: Path) -> Recording:
    """A folder as it was recorded or unpacked."""
    return Recording(
        folder=folder,
        session=load(folder / "session.json", Session),
        results={result.case.id: result for result in results(folder)},
        labels={label.id: label for label in load(folder / "labels.json", Labels).labels},
        counters=dict(_counters(folder)),
    )


def _counters(folder: Path) -> Iterator[tuple[tuple[str, str], tuple[KernelCounters, ...]]]:
    """Rows of Nsight Compute by case and way: as many for each as one step of its trace has."""
    raw, order = folder / f"{RAW}.gz", folder / ORDER
    if not raw.exists() or not order.exists():
        return
    rows = read_ncu(raw).kernels
    done = msgspec.json.decode(order.read_bytes(), type=list[Counted])
    counts = [_kernels_of_a_step(folder, counted) for counted in done]
    if sum(counts) != len(rows):
        why = f"{len(rows)} rows, {sum(counts)} kernels in the traces"
        raise InvalidRecordError("counters of other kernels", where=str(raw), why=why)
    first = 0
    for counted, count in zip(done, counts, strict=True):
        yield (counted.id, counted.variant), rows[first : first + count]
        first += count


def _kernels_of_a_step(folder: Path, counted: Counted) -> int:
    trace = read_trace(folder / "traces" / f"{counted.id}.{counted.variant}.json.gz")
    step, starts = trace.steps().iloc[0], trace.kernels["start_ns"]
    ends = step["start_ns"] + step["duration_ns"]
    return int(((starts >= step["start_ns"]) & (starts < ends)).sum())
