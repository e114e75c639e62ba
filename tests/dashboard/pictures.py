"""Pictures of every page, light and dark, into docs/img.

    python -m tests.dashboard.pictures

Shown are the recorded runs in sample_traces/runs and two of the traces there, analysed as a user
would. Needs Chromium and playwright, no GPU.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

from advisor.cli.main import run as command
from advisor.store import RunStore
from dashboard.access import Access
from dashboard.app import create_app
from dashboard.server import bind

ROOT = Path(__file__).resolve().parents[2]
TRACES, IMAGES = ROOT / "sample_traces", ROOT / "docs" / "img"
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
EAGER = "/run/llama_prefill_eager"
PAGES: tuple[tuple[str, str], ...] = (
    ("runs", "/"),
    ("overview", EAGER),
    ("findings", f"{EAGER}/findings"),
    ("finding", f"{EAGER}/finding/row-program-3fe649bf68"),
    ("kernels", f"{EAGER}/kernels"),
    ("timeline", "/run/llama_trace/timeline/attention-written-out-03f39030"),
    ("overlap", "/run/ddp_two_ranks/overlap"),
    ("compiler", "/run/llama_train_compile/compiler"),
    ("regressions", f"{EAGER}/regressions"),
    ("compare", "/compare/llama_trace/llama_compiled"),
    ("calibration", f"{EAGER}/calibration"),
    ("upload", "/upload"),
)


def main() -> None:
    """Serve the recorded runs and photograph every page twice."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        store = Path(folder) / "runs"
        shutil.copytree(TRACES / "runs", store)
        ranks = [str(TRACES / f"ddp_onebucket.rank{rank}.json.gz") for rank in (0, 1)]
        llama, compiled = (
            [str(TRACES / f"llama_prefill.{name}.json.gz")] for name in ("eager", "inductor")
        )
        traces = ("ddp_two_ranks", ranks), ("llama_trace", llama), ("llama_compiled", compiled)
        for name, files in traces:
            command(["analyze", *files, "--out", str(store / name)])
        app, _ = create_app(RunStore(store), Access(allow_apply=True))
        server = bind(app, "127.0.0.1", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _photograph(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def _photograph(base: str) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        for scheme in ("light", "dark"):
            size = {"width": 1280, "height": 900}
            page = browser.new_context(viewport=size, color_scheme=scheme).new_page()
            for name, path in PAGES:
                page.goto(base + path)
                page.wait_for_selector("h1", state="attached")
                page.wait_for_timeout(1_500)
                if name in ("timeline", "overlap"):
                    page.locator("#timeline-status", has_text="spans").wait_for()
                    page.wait_for_timeout(700)
                page.screenshot(path=IMAGES / f"{name}-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
