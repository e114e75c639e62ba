"""Real Chromium against a real server: what the browser tests share."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator, Mapping
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
    "--disable-component-update", "--disable-sync", "--process-per-site",
)  # fmt: skip
# A page's own store is new with the page; what its origin keeps is emptied when it first loads.
FORGET = """if (location.protocol === "http:" && !sessionStorage.getItem("begun")) {
  localStorage.clear();
  sessionStorage.setItem("begun", "yes");
}"""
STOP_POLL_S = 0.05  # how soon a server sees that it is to stop
needs_chromium = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason="no chromium: apt-get install chromium"
)


class Served:
    """A real server in a thread; it can be stopped and started again on its port."""

    def __init__(self, store: RunStore, mode: str, access: Access, port: int = 0) -> None:
        self.store, self.mode, self.access = store, mode, access
        self.port = port
        self.start()

    def start(self) -> None:
        """Serve."""
        command = cli_command if self.mode == "real" else child_command(self.mode)
        app, self.runner = create_app(self.store, self.access, command=command)
        self.server: BaseWSGIServer = bind(app, "127.0.0.1", self.port)
        self.port = self.server.server_port
        self.thread = threading.Thread(
            target=self.server.serve_forever, args=(STOP_POLL_S,), daemon=True
        )
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


class Chromium:
    """A running Chromium, with one context for all pages of the same options.

    Every context holds an empty page of the servers' site: with it lives the process that all pages
    of the site share, and what that process has compiled of the libraries.
    """

    def __init__(self, driver: Any) -> None:
        self.running = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        self.contexts: dict[str, Any] = {}

    def context(self, options: Mapping[str, Any]) -> Any:
        """The context of these options."""
        key = repr(sorted(options.items()))
        if key not in self.contexts:
            view = {"width": 1280, "height": 900}
            context = self.contexts[key] = self.running.new_context(viewport=view, **options)
            held = context.new_page()
            held.route("**", lambda call: call.fulfill(body=""))
            held.goto("http://127.0.0.1/")
        return self.contexts[key]

    def forget(self, options: Mapping[str, Any]) -> None:
        """Start the context of these options anew at its next page."""
        self.contexts.pop(repr(sorted(options.items()))).close()


def end_children(runner: JobRunner) -> None:
    for child in runner._children.values():
        child.kill()
        child.wait()


@contextmanager
def opened(browser: Chromium, color_scheme: str = "light", **options: Any) -> Iterator[Any]:
    """A page that fails the test on a script error, a dialog or a request to another host.

    The browser knows nothing of earlier pages but the libraries that it keeps: they are what takes
    it seconds to load. After a failure it forgets those too.
    """
    context = browser.context(options)
    page = context.new_page()
    page.emulate_media(color_scheme=color_scheme)
    page.set_default_timeout(45_000)
    page.add_init_script(FORGET)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"script error: {error}"))
    page.on("dialog", lambda dialog: (faults.append("dialog"), dialog.dismiss()))
    page.on("request", lambda request: _check_host(request.url, faults))
    page.on("console", lambda said: _check_console(said, faults))
    try:
        yield page
    except BaseException:
        browser.forget(options)
        raise
    page.close()
    context.clear_cookies()
    assert faults == []


def _check_host(url: str, faults: list[str]) -> None:
    if not re.match(r"(http://(127\.0\.0\.1|localhost):\d+/|data:|blob:)", url):
        faults.append(f"request to {url}")


def _check_console(said: Any, faults: list[str]) -> None:
    if said.type == "error" and (
        "Content Security Policy" in said.text or "SyntaxError" in said.text
    ):
        faults.append(said.text)
