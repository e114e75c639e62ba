"""Real Chromium against a real server: what the browser tests share."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from werkzeug.serving import BaseWSGIServer

from advisor.store import RunStore
from dashboard.access import Access
from dashboard.app import create_app
from dashboard.jobs import JobRunner, cli_command
from dashboard.server import bind
from tests.dashboard.conftest import child_command

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
needs_chromium = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason="no chromium: apt-get install chromium"
)


class Served:
    """A real server in a thread; it can be stopped and started again on its port."""

    def __init__(self, store: RunStore, mode: str, access: Access) -> None:
        self.store, self.mode, self.access = store, mode, access
        self.port = 0
        self.start()

    def start(self) -> None:
        """Serve."""
        command = cli_command if self.mode == "real" else child_command(self.mode)
        app, self.runner = create_app(self.store, self.access, command=command)
        self.server: BaseWSGIServer = bind(app, "127.0.0.1", self.port)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.runner.start()

    def stop(self) -> None:
        """Stop, as a server that is ended does; its children go on."""
        self.runner.stop()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def url(self, path: str) -> str:
        """The address of a page."""
        return f"http://127.0.0.1:{self.port}{path}"


def end_children(runner: JobRunner) -> None:
    for child in runner._children.values():
        child.kill()
        child.wait()


@contextmanager
def opened(browser: Any, **options: Any) -> Iterator[Any]:
    """A page that fails the test on a script error, a dialog or a request to another host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(45_000)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"script error: {error}"))
    page.on("dialog", lambda dialog: (faults.append("dialog"), dialog.dismiss()))
    page.on("request", lambda request: _check_host(request.url, faults))
    page.on("console", lambda said: _check_console(said, faults))
    yield page
    context.close()
    assert faults == []


def _check_host(url: str, faults: list[str]) -> None:
    if not re.match(r"(http://(127\.0\.0\.1|localhost):\d+/|data:|blob:)", url):
        faults.append(f"request to {url}")


def _check_console(said: Any, faults: list[str]) -> None:
    if said.type == "error" and (
        "Content Security Policy" in said.text or "SyntaxError" in said.text
    ):
        faults.append(said.text)
