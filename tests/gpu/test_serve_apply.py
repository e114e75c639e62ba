"""Apply and Revert from the page: the real server, driven over HTTP as its pages drive it.

The measured gain appears on the page, and after Revert the step takes what it took. The workload is
the bundled transformer block, or what FUSION_ADVISOR_APPLY_TARGET names, such as
`benchmarks/llama.py:prefill`, for which FUSION_ADVISOR_APPLY_SECONDS should allow some minutes.
What goes without a GPU is in `tests/dashboard`.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels need triton")
pytest.importorskip("dash", reason="the page needs dash")

from advisor.model.base import Range
from advisor.model.run import JobState
from advisor.store import RunDirectory
from dashboard.jobview import ACTIVE, APPLY_STAGES
from dashboard.parts import saving_text
from tests.dashboard.test_serve_command import served

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
ROOT = Path(__file__).resolve().parents[2]
MAIN = [sys.executable, "-m", "advisor.cli.main"]
TARGET = os.environ.get("FUSION_ADVISOR_APPLY_TARGET", "sample:transformer_block")
SECONDS = int(os.environ.get("FUSION_ADVISOR_APPLY_SECONDS", "300"))
# Two profiles of one step: what clocks and other tenants of the host move between them.
NOISE = 0.1


class Page:
    """What a browser on a page of the server sends: its session, its token, its origin."""

    def __init__(self, port: int) -> None:
        self._port, self._cookie = port, ""

    def request(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, bytes]:
        """Status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        sent = {"Content-Type": "application/json", "Sec-Fetch-Site": "same-origin",
                "Origin": f"http://127.0.0.1:{self._port}", "Cookie": self._cookie}  # fmt: skip
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, sent | headers)
        answer = connection.getresponse()
        self._cookie = (answer.getheader("Set-Cookie") or self._cookie).partition(";")[0]
        found = answer.status, answer.read()
        connection.close()
        return found

    def post(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        """A change of state, with a token fetched just before, as the buttons do it."""
        _, issued = self.request("GET", "/api/csrf")
        token = json.loads(issued)["token"]
        status, data = self.request("POST", path, body, **{"X-Fusion-CSRF": token})
        return status, json.loads(data)

    def job(self, run: str) -> dict[str, Any]:
        """The job of a run as it stands."""
        status, data = self.request("GET", f"/api/jobs/{run}")
        assert status == 200, data
        found: dict[str, Any] = json.loads(data)
        return found

    def ended(self, run: str) -> dict[str, Any]:
        """The job of a run when nothing of it is active any more; it was seen at work before."""
        states: list[JobState] = []
        deadline = time.monotonic() + SECONDS + 240
        while time.monotonic() < deadline:
            view = self.job(run)
            states.append(view["state"])
            if view["state"] not in ACTIVE:
                assert states[0] in ACTIVE, "it was done before it was asked about"
                return view
            time.sleep(0.3)
        raise AssertionError(f"it never ended: {self.job(run)}")

    def words(self, path: str) -> str:
        """All text of a page, through the callback that draws it."""
        body = {
            "output": "..page.children...title.data..",
            "outputs": [
                {"id": "page", "property": "children"}, {"id": "title", "property": "data"}
            ],
            "inputs": [{"id": "url", "property": "pathname", "value": path}],
            "changedPropIds": ["url.pathname"],
        }  # fmt: skip
        status, data = self.request("POST", "/_dash-update-component", body)
        assert status == 200, data
        return "\n".join(_strings(json.loads(data)))


def _strings(item: object) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    elif isinstance(item, dict):
        for part in item.values():
            yield from _strings(part)
    elif isinstance(item, list):
        for part in item:
            yield from _strings(part)


def command(*arguments: str) -> None:
    done = subprocess.run(
        [*MAIN, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]


def step_ns(run: RunDirectory) -> float | None:
    """The time of a step with no profiler attached."""
    metric = run.report().metrics.get("step_ns")
    return None if metric is None else metric.value


def test_apply_and_revert_from_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    store = tmp_path / "runs"
    command("profile", TARGET, "--out", str(store / "first"))
    run = RunDirectory.at(store / "first")
    with served(str(store), "--allow-apply") as port:
        page = Page(port)
        status, told = page.request("POST", "/api/jobs", {"run": run.id})
        assert status == 403, "a post without the pair of cookie and header"
        assert run.job() is None, told
        body = {"run": run.id, "only": [], "budget_s": SECONDS}
        status, asked = page.post("/api/jobs", body)
        assert (status, asked["run"]) == (202, run.id)
        status, refused = page.post("/api/jobs", {"run": run.id})
        assert (status, "already has a job" in refused["error"]["message"]) == (403, True)
        view = page.ended(run.id)
        assert view["state"] == "done", (view["message"], run.log_tail()[-2_000:])
        done = {stage["name"] for stage in view["stages"] if stage["state"] == "done"}
        assert {"load", "generate", "resources", "verify", "done"} <= done
        assert done <= {name for name, _ in APPLY_STAGES}
        _measured(page, run)
        status, _ = page.post(f"/api/runs/{run.id}/revert", {})
        assert status == 202
        assert page.ended(run.id)["state"] == "done"
        assert run.applied() is None
        assert "Download the patch" not in page.words("/run/first")
        assert page.request("GET", f"/api/runs/{run.id}/patch.zip")[0] == 400
    command("profile", "--again", str(run.path), "--out", str(store / "again"))
    before, after = step_ns(run), step_ns(RunDirectory.at(store / "again"))
    assert before is not None
    assert after == pytest.approx(before, rel=NOISE), "the step takes what it took"


def _measured(page: Page, run: RunDirectory) -> None:
    """What was kept, its gain as the page prints it, and the patch, which needs no run."""
    applied = run.applied()
    assert applied is not None
    assert applied.set.verdict == "kept", applied.set.reason
    gain = applied.set.against_eager
    assert gain is not None
    assert gain.gain_low_ns > 0
    saved = Range(low=gain.gain_low_ns, mid=gain.gain_mid_ns, high=gain.gain_high_ns)
    text = page.words(f"/run/{run.id}")
    assert saving_text(saved) in text
    assert "beyond noise" in text
    assert applied.device in text
    status, data = page.request("GET", f"/api/runs/{run.id}/patch.zip")
    assert status == 200
    folder = run.path.parents[1] / "taken"
    zipfile.ZipFile(io.BytesIO(data)).extractall(folder)
    _patch_computes_what_eager_does(folder)


def _patch_computes_what_eager_does(folder: Path) -> None:
    code = f"""
import torch, fusion_patch
from pathlib import Path
from collectors.live.workload import load_workload, tensors
work = load_workload({TARGET!r}, torch.device("cuda"), seed=0, directory=Path({str(ROOT)!r}))
if work.kind == "inference":
    expected = work.results_of()
    with torch.no_grad():
        got = work.results_of(fusion_patch.apply)
    for ours, theirs in zip(got, expected, strict=True):
        error = (ours.float() - theirs.float()).norm() / theirs.float().norm()
        assert error < 0.02, error
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
