"""Uploads over HTTP: bounded, analysed by the real child, read-only ever after."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from advisor.model.base import encode
from advisor.pipeline import stored
from advisor.pipeline.analyze import analyze
from advisor.store import RunDirectory, RunStore
from dashboard import uploads
from dashboard.access import Access
from dashboard.app import create_app
from dashboard.jobs import JobRunner
from dashboard.jobview import JobView
from dashboard.security import CSRF_HEADER
from tests.builders.run_plan import norm_plan
from tests.builders.run_report import report_of
from tests.dashboard.conftest import ROOT, wait_for

BASE = "http://127.0.0.1:8050"
TRACE = ROOT / "sample_traces" / "unet.eager.json.gz"


class Uploader:
    """A client of a real server, and its runner."""

    def __init__(self, store: RunStore, *, allow_apply: bool = True) -> None:
        app, self.runner = create_app(store, Access(allow_apply=allow_apply))
        self.client: FlaskClient = app.server.test_client()
        self.store = store

    def send(
        self, data: bytes, name: str = "x.json", length: int | None = None, **headers: str
    ) -> TestResponse:
        """POST a file as the page does; `headers` are put over those of the page."""
        token = self.client.get("/api/csrf", base_url=BASE).get_json()["token"]
        given = {CSRF_HEADER: token, "Content-Type": "application/octet-stream"}
        given |= {key.replace("_", "-"): value for key, value in headers.items()}
        url = f"/api/uploads?name={name}"
        said = {"CONTENT_LENGTH": str(length)} if length is not None else {}
        return self.client.post(
            url, base_url=BASE, data=data, headers=given, environ_overrides=said
        )

    def send_several(
        self, files: Sequence[tuple[str, bytes]], sizes: Sequence[object] | None = None
    ) -> TestResponse:
        """POST files one behind the other; `sizes` are said in place of the true ones."""
        said = [len(data) for _, data in files] if sizes is None else sizes
        pairs = [("name", name) for name, _ in files] + [("size", str(size)) for size in said]
        name, rest = pairs[0][1], urlencode(pairs[1:])
        return self.send(b"".join(data for _, data in files), f"{quote(name)}&{rest}")

    def analysed(self, answer: TestResponse) -> tuple[RunDirectory, JobView]:
        """The run of an upload when its job has ended."""
        assert answer.status_code == 202, answer.get_data(as_text=True)
        run = self.store.open(answer.get_json()["run"])
        return run, wait_for(self.runner, run, lambda view: not view.active, timeout_s=60)


@pytest.fixture
def uploader(store: RunStore) -> Iterator[Uploader]:
    """A server that takes uploads."""
    store.root.mkdir()
    made = Uploader(store)
    yield made
    _end(made.runner)


def _end(runner: JobRunner) -> None:
    for child in runner._children.values():
        child.kill()
        child.wait()


def test_an_uploaded_trace_becomes_a_run_that_is_never_applied(uploader: Uploader) -> None:
    run, view = uploader.analysed(uploader.send(TRACE.read_bytes(), "../../unet.eager.json.gz"))
    assert view.state == "done", view.message
    report = run.report()
    assert report.workload.target == "unet.eager.json.gz"
    assert report.workload.mode == "trace"
    assert report.kernels
    assert run.trace_path.read_bytes() == TRACE.read_bytes()
    assert not list(run.path.glob("*.part"))
    assert {path.parent for path in uploader.store.root.glob("*/run.json")} == {run.path}
    token = uploader.client.get("/api/csrf", base_url=BASE).get_json()["token"]
    refused = uploader.client.post(
        "/api/jobs", base_url=BASE, json={"run": run.id}, headers={CSRF_HEADER: token}
    )
    assert refused.status_code == 403
    assert "not signed" in refused.get_json()["error"]["message"]


def test_a_plain_trace_is_kept_compressed(uploader: Uploader) -> None:
    plain = gzip.decompress(TRACE.read_bytes())
    run, view = uploader.analysed(uploader.send(plain, "unet.json"))
    assert view.state == "done", view.message
    assert gzip.decompress(run.trace_path.read_bytes()) == plain


RANKS = [
    (path.name, path.read_bytes())
    for path in (ROOT / "sample_traces" / f"ddp_onebucket.rank{rank}.json.gz" for rank in (0, 1))
]


def test_files_of_one_upload_are_the_ranks_of_one_run(uploader: Uploader) -> None:
    run, view = uploader.analysed(uploader.send_several(RANKS))
    assert view.state == "done", view.message
    report = run.report()
    paths = [ROOT / "sample_traces" / name for name, _ in RANKS]
    beside = analyze(paths)
    assert report.workload == beside.workload
    assert report.metrics == beside.metrics
    assert report.findings == beside.findings
    assert [source.path for source in report.sources] == [name for name, _ in RANKS]
    assert [path.read_bytes() for path in run.traces()] == [data for _, data in RANKS]
    assert not list(run.path.glob("*.part"))


def put(store: RunStore, files: Sequence[tuple[str, bytes]]) -> RunDirectory:
    """A run whose files were received and are analysed here, not in a child."""
    run = store.create("several")
    for number, (_, data) in enumerate(files):
        run.upload_part(number).write_bytes(data)
    run.write_info(uploads._info(run, [name for name, _ in files]))
    return run


def test_files_without_ranks_are_told_by_their_own_names(store: RunStore) -> None:
    data = TRACE.read_bytes()
    run = put(store, [("a.json.gz", data), ("b.json", data)])
    assert stored.main([str(run.path)]) == 0
    told = " ".join(warning.message for warning in run.report().warnings)
    assert "a.json.gz taken as rank 0" in told
    assert ".part" not in told


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (("<b>bad.json", b"not a trace"), "<b>bad.json"),
        (("r.json", encode(report_of(norm_plan(), "A norm", "x.py:f"))), "uploaded alone"),
    ],
)
def test_what_is_not_of_the_job_is_named(
    store: RunStore, other: tuple[str, bytes], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = put(store, [RANKS[0], other])
    assert stored.main([str(run.path)]) != 0
    line = capsys.readouterr().err
    assert says in line
    assert ".part" not in line
    assert not (run.path / "report.json").exists()
    assert not list(run.path.glob("*.part"))


@pytest.mark.parametrize(
    ("sizes", "status", "says"),
    [
        ((1, 2), 400, "do not add up"),
        ((6, 0), 400, "empty"),
        ((3,), 400, "a name and a size"),
        ((-3, 9), 400, "a name and a size"),
        (("٣", 3), 400, "a name and a size"),
        ((10**30, 3), 400, "a name and a size"),
    ],
)
def test_several_files_are_bounded_by_what_they_say(
    uploader: Uploader, sizes: Sequence[object], status: int, says: str
) -> None:
    answer = uploader.send_several([("a", b"xxx"), ("b", b"yyy")], sizes)
    assert answer.status_code == status
    assert says in answer.get_json()["error"]["message"]
    assert list(uploader.store.root.glob("*/*")) == []


def test_several_files_are_bounded_together(
    uploader: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_UPLOAD_BYTES", 1000)
    answer = uploader.send_several([("a", b"x" * 600), ("b", b"y" * 600)])
    assert answer.status_code == 403
    many = uploader.send_several([("a", b"x")] * (uploads.MAX_FILES + 1))
    assert many.status_code == 403
    assert "64" in many.get_json()["error"]["message"]
    assert list(uploader.store.root.glob("*/*")) == []


def test_a_store_that_was_removed_is_not_made_again(uploader: Uploader) -> None:
    uploader.store.root.rmdir()
    answer = uploader.send(TRACE.read_bytes())
    assert answer.status_code == 404
    assert "was removed" in answer.get_json()["error"]["message"]
    assert not uploader.store.root.exists()


def test_an_uploaded_report_is_checked_and_shown(uploader: Uploader) -> None:
    report = report_of(norm_plan(), "A norm", "x.py:f")
    run, view = uploader.analysed(uploader.send(encode(report), "report.json"))
    assert view.state == "done", view.message
    assert run.report() == report
    for path in ("", "/findings", "/finding/row-program-1", "/kernels", "/timeline"):
        assert uploader.client.get(f"/run/{run.id}{path}", base_url=BASE).status_code == 200


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"<html>", "web page"),
        (b"\x1f\x8b" + b"junk" * 50, "decompressed"),
        (b'{"schema_version": 99, "tool": {}}', "not a valid report"),
        (b'{"traceEvents": [', ""),
        (b"not a trace", "no trace"),
    ],
)
def test_what_is_no_trace_fails_with_its_reason(uploader: Uploader, data: bytes, says: str) -> None:
    run, view = uploader.analysed(uploader.send(data, "bad.bin"))
    assert view.state == "failed"
    assert view.message.strip()
    assert says.lower() in view.message.lower()
    assert str(uploader.store.root) not in view.message
    assert not (run.path / "report.json").exists()
    assert not list(run.path.glob("*.part"))


def test_who_may_not_write_may_not_upload(store: RunStore, uploader: Uploader) -> None:
    closed = Uploader(store, allow_apply=False)
    assert closed.send(b"x").status_code == 403
    assert uploader.send(b"x", X_Fusion_CSRF="0" * 64).status_code == 403
    assert uploader.send(b"x", Origin="http://evil.example").status_code == 403
    assert uploader.send(b"x", Content_Type="text/plain").status_code == 400
    assert uploader.send(b"x", Content_Type="multipart/form-data; boundary=x").status_code == 400
    assert uploader.send(b"").status_code == 400
    assert uploader.client.get("/api/uploads", base_url=BASE).status_code == 404
    assert list(store.root.glob("*/*")) == []


def test_size_is_bounded(
    store: RunStore, uploader: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_UPLOAD_BYTES", 1000)
    answer = uploader.send(b"x" * 1001)
    assert answer.status_code == 403
    assert "larger" in answer.get_json()["error"]["message"]
    monkeypatch.setattr(uploads, "MAX_UPLOAD_BYTES", 1 << 62)
    monkeypatch.setattr(uploads, "_RESERVE_BYTES", 1 << 61)
    assert "too full" in uploader.send(b"x").get_json()["error"]["message"]
    assert list(store.root.glob("*/*")) == []


def test_an_upload_beyond_the_limit_of_other_bodies_is_streamed(uploader: Uploader) -> None:
    data = b'{"traceEvents": [' + b" " * (3 << 20) + b"]}"
    run, view = uploader.analysed(uploader.send(data, "wide.json"))
    assert not view.active
    assert run.info().target == "wide.json"


def test_a_broken_off_upload_leaves_nothing(store: RunStore, uploader: Uploader) -> None:
    answer = uploader.send(b"x" * 10, length=50)
    assert answer.status_code == 400
    assert [path for path in store.root.glob("*") if path.is_dir() and path.name != ".jobs"] == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\traces\\a.json", "a.json"),
        ("", "upload"),
        ("a\u202egnp.json", "a\\u202egnp.json"),
        ("x" * 500, "x" * 120),
        ("<script>.json", "<script>.json"),
    ],
)
def test_names_of_files_are_words(given: str, kept: str) -> None:
    assert uploads.upload_name(given) == kept


def test_a_run_in_the_making_is_a_page_and_a_row(uploader: Uploader) -> None:
    run, _ = uploader.analysed(uploader.send(b"not a trace", "mine.json"))
    payload = {
        "output": "..page.children...title.data..",
        "outputs": [{"id": "page", "property": "children"}, {"id": "title", "property": "data"}],
        "inputs": [{"id": "url", "property": "pathname", "value": f"/run/{run.id}"}],
        "changedPropIds": ["url.pathname"],
    }
    for path, says in ((f"/run/{run.id}", "is no trace this program reads"), ("/", "mine.json")):
        payload["inputs"][0]["value"] = path  # type: ignore[index]
        answer = uploader.client.post("/_dash-update-component", base_url=BASE, json=payload)
        assert says in json.dumps(answer.get_json())


def test_kernels_can_be_downloaded(uploader: Uploader, run: RunDirectory) -> None:
    run.write_kernel("ab" * 8, "x = 1\n")
    answer = uploader.client.get(f"/api/runs/{run.id}/kernels/{'ab' * 8}.py", base_url=BASE)
    assert answer.get_data(as_text=True) == "x = 1\n"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    for bad in ("../x", "cd" * 8, "%2e%2e%2frun"):
        path = f"/api/runs/{run.id}/kernels/{bad}.py"
        assert uploader.client.get(path, base_url=BASE).status_code in (400, 404)


def test_an_analysis_has_limits(uploader: Uploader, tmp_path: Path) -> None:
    """The child cannot hold more memory than it is given: checked on a child that tries."""
    import subprocess
    import sys

    from dashboard import timelines

    code = "import sys; sys.stdin.read(1); bytearray(1 << 34); print('got it')"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    timelines.limit_memory(child.pid)
    out, said = child.communicate("x")
    assert "got it" not in out
    assert "MemoryError" in said
