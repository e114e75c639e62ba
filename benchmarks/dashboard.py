"""How fast the dashboard is on a run of a million kernels, with one person and with twenty.

    python benchmarks/dashboard.py [--kernels 1000000] [--load-s 120] [--clients 20] [--note TEXT]

A trace of that many kernels (`dashboard_inputs`) is analysed and kept as a run, then served by
`fusion-advisor serve` in a process of its own. In headless Chromium: the time from asking for the
findings page, in a fresh context (nothing cached, its window just opened), to its first row on the
screen, for which the page looks at every frame: the driver's own `wait_for_selector` looks after
20, 50, 100, 100 and then every 500 ms, and told up to half a second too late. And the time from
each click to the change it makes being drawn, measured within the page. Then clients, a thread
each, ask for pages and for windows of the timeline without a pause. Memory is the server's largest
resident set (private and mapped pages). Browser, clients and server share the machine. Writes
dashboard.json and dashboard.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dashboard_inputs import write_trace
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
CLI = [sys.executable, "-m", "advisor.cli.main"]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu"]
VISITS, ROUNDS = 10, 8
REDRAW = (
    "timeline-graph.figure", "timeline-window.data", "timeline-status.children",
    "timeline-poll.disabled", "timeline-beside.children",
)  # fmt: skip
BUTTONS = ("in", "out", "back", "on", "all")
# Clicks, then waits until what is watched has changed and the next frame is drawn.
CLICK = """async ([what, watched, plotted]) => {
  const seen = document.querySelector(watched);
  const changed = new Promise((done) => {
    new MutationObserver((_, own) => { own.disconnect(); done(); })
      .observe(seen, { childList: true, characterData: true, subtree: true });
  });
  const chart = plotted ? document.querySelector(plotted) : null;
  const drawn = chart ? new Promise((done) => chart.once("plotly_afterplot", done)) : null;
  const begun = performance.now();
  document.querySelector(what).click();
  const late = new Promise((_, fail) => setTimeout(() => fail(new Error(what)), 10000));
  await Promise.race([Promise.all([changed, drawn]), late]);
  await new Promise(requestAnimationFrame);
  return performance.now() - begun;
}"""
# Looks at every frame for what is wanted, then waits until the next one is drawn.
SHOWN = """async (wanted) => {
  const shown = () => {
    const seen = document.querySelector(wanted);
    return seen && seen.checkVisibility({ visibilityProperty: true, opacityProperty: true })
      && seen.getBoundingClientRect().height > 0;
  };
  while (!shown()) {
    if (performance.now() > 60000) throw new Error(wanted);
    await new Promise(requestAnimationFrame);
  }
  await new Promise(requestAnimationFrame);
}"""
CHART = "#timeline-graph .js-plotly-plot"


class Interaction(NamedTuple):
    """What is clicked in turn on a page, what changes then, and what is clicked before, untimed."""

    name: str
    page: str
    clicked: tuple[str, ...]
    watched: str
    chart: str | None = None
    before: tuple[str, ...] = ()


INTERACTIONS = (
    Interaction("timeline: zoom in", "timeline", ("#timeline-in",), "#timeline-status", CHART),
    Interaction(
        "timeline: move",
        "timeline",
        ("#timeline-on", "#timeline-back"),
        "#timeline-status",
        CHART,
        ("#timeline-in",) * 4,
    ),
    Interaction(
        "timeline: zoom out",
        "timeline",
        ("#timeline-out",),
        "#timeline-status",
        CHART,
        ("#timeline-in",) * 10,
    ),
    Interaction(
        "kernels: sort",
        "kernels",
        (".ag-header-cell[col-id=name] .ag-header-cell-label",),
        ".ag-center-cols-container",
    ),
    Interaction(
        "change of page",
        "findings",
        ('.tabs a[href$="/kernels"]', '.tabs a[href$="/findings"]'),
        "#page",
    ),
)


def main() -> None:
    """Make the run, measure, write both files."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        store = Path(folder) / "runs"
        made = _make_run(Path(folder), store, options.kernels)
        with _serving(store) as (port, pid):
            made["timeline_s"] = _until_timeline(port)
            browser = _in_browser(port)
            memory = _memory(pid)
            load = _under_load(port, options.clients, options.load_s)
            memory |= {f"{key}_under_load": value for key, value in _memory(pid).items()}
    result = {
        "machine": _machine(),
        "note": options.note,
        "kernels": options.kernels,
        "made": made,
        "browser": browser,
        "memory": memory,
        "load": load,
    }
    (HERE / "dashboard.json").write_text(json.dumps(result, indent=2) + "\n")
    (HERE / "dashboard.md").write_text(markdown(result))


def _make_run(folder: Path, store: Path, kernels: int) -> dict[str, float]:
    trace = folder / "million.json.gz"
    write_trace(trace, kernels)
    begun = time.monotonic()
    command = [*CLI, "analyze", str(trace), "--out", str(store / "million")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return {"trace_mb": trace.stat().st_size / 1e6, "analyze_s": time.monotonic() - begun}


@contextmanager
def _serving(store: Path) -> Iterator[tuple[int, int]]:
    command = [*CLI, "serve", str(store), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())
        if said is None:
            raise SystemExit("the server did not start")
        yield int(said[1]), server.pid
    finally:
        server.terminate()
        server.wait()


def _update(port: int, body: dict[str, Any]) -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Content-Type": "application/json"}
        link.request("POST", "/_dash-update-component", json.dumps(body), headers)
        answer = link.getresponse()
        return answer.status, answer.read()
    finally:
        link.close()


def page_body(path: str) -> dict[str, Any]:
    """What the browser sends to show a page."""
    return {
        "output": "..page.children...title.data..",
        "outputs": [{"id": "page", "property": "children"}, {"id": "title", "property": "data"}],
        "inputs": [{"id": "url", "property": "pathname", "value": path}],
        "changedPropIds": ["url.pathname"],
    }


def redraw_body(window: list[int] | None, button: str) -> dict[str, Any]:
    """What the browser sends when a button of the timeline is clicked."""
    inputs: list[dict[str, Any]] = [
        {"id": "timeline-graph", "property": "relayoutData", "value": None},
        {"id": "timeline-finding", "property": "value", "value": None},
        {"id": "timeline-poll", "property": "n_intervals", "value": 0},
        *({"id": f"timeline-{name}", "property": "n_clicks", "value": 1} for name in BUTTONS),
    ]
    return {
        "output": f"..{'...'.join(REDRAW)}..",
        "outputs": [dict(zip(("id", "property"), name.split("."), strict=True)) for name in REDRAW],
        "inputs": inputs,
        "state": [
            {"id": "timeline-scope", "property": "data",
             "value": {"run": "million", "kinds": ["stream"]}},
            {"id": "timeline-window", "property": "data", "value": window},
        ],
        "changedPropIds": [f"timeline-{button}.n_clicks"],
    }  # fmt: skip


def _until_timeline(port: int) -> float:
    """Seconds from the first look until the timeline is there."""
    begun = time.monotonic()
    while time.monotonic() - begun < 600:
        _, answer = _update(port, page_body("/run/million/timeline"))
        if b"spans" in answer:
            return time.monotonic() - begun
        if b"cannot be shown" in answer:
            raise SystemExit(answer.decode()[:2000])
        time.sleep(0.5)
    raise SystemExit("the timeline was not made within ten minutes")


def _in_browser(port: int) -> dict[str, list[float]]:
    base = f"http://127.0.0.1:{port}/run/million"
    found: dict[str, list[float]] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        found["first finding row"] = [_first_row(browser, base) for _ in range(VISITS)]
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        for item in INTERACTIONS:
            page.goto(f"{base}/{item.page}")
            page.wait_for_selector(item.chart or item.clicked[0])
            page.wait_for_timeout(1_500)
            for button in item.before:
                page.click(button)
                page.wait_for_timeout(500)
            found[item.name] = []
            for turn in range(ROUNDS):
                button = item.clicked[turn % len(item.clicked)]
                took = page.evaluate(CLICK, [button, item.watched, item.chart])
                found[item.name].append(took)
                page.wait_for_timeout(300)
        browser.close()
    return found


def _first_row(browser: Any, base: str) -> float:
    """Milliseconds from asking for the findings page in a fresh context to its first row."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    begun = time.monotonic()
    page.goto(f"{base}/findings", wait_until="commit")
    page.evaluate(SHOWN, ".ag-row .ag-cell a")
    took = 1000 * (time.monotonic() - begun)
    context.close()
    return took


def _under_load(port: int, clients: int, seconds: float) -> dict[str, Any]:
    """Clients without a pause; milliseconds of every answer, and what failed."""
    until = time.monotonic() + seconds
    took: list[float] = []
    failed: list[str] = []
    threads = [
        threading.Thread(target=_client, args=(port, until, random.Random(n), took, failed))
        for n in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": len(took),
        "errors": len(failed),
        "first_error": failed[0] if failed else "",
        "p50_ms": quantile(took, 0.5),
        "p95_ms": quantile(took, 0.95),
        "worst_ms": max(took, default=0.0),
    }


def _client(
    port: int, until: float, chance: random.Random, took: list[float], failed: list[str]
) -> None:
    """A person: looks at a page or moves the timeline, then reads for a second or so."""
    pages = ("", "/findings", "/kernels", "/timeline", "/calibration")
    while time.monotonic() < until:
        if chance.random() < 0.5:
            first = chance.randrange(10**9)
            window = [first, first + chance.choice((10**6, 10**8, 10**10))]
            body = redraw_body(window, chance.choice(BUTTONS))
        else:
            body = page_body(f"/run/million{chance.choice(pages)}")
        begun = time.monotonic()
        try:
            status, _ = _update(port, body)
            if status != 200:
                failed.append(f"status {status}")
        except OSError as error:
            failed.append(str(error))
        took.append(1000 * (time.monotonic() - begun))
        time.sleep(chance.uniform(0.5, 1.5))


def _memory(pid: int) -> dict[str, float]:
    """The server's largest resident set so far, and what of it is private now, MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    return {
        "largest_resident_mb": int(fields["VmHWM"]) / 1000,
        "private_mb": int(fields["RssAnon"]) / 1000,
    }


def quantile(values: list[float], share: float) -> float:
    """The value that `share` of the values do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    said: Callable[[bool], str] = lambda held: "yes" if held else "no"  # noqa: E731
    browser, load, memory = result["browser"], result["load"], result["memory"]
    clicks = [ms for name, times in browser.items() if name != "first finding row" for ms in times]
    first = browser["first finding row"]
    resident = max(value for key, value in memory.items() if key.startswith("largest"))
    bars = (
        ("first finding row visible, median", quantile(first, 0.5), 1000, "ms"),
        ("any interaction, p95", quantile(clicks, 0.95), 200, "ms"),
        ("server memory, largest resident", resident, 500, "MB"),
        (f"{load['clients']} clients for {load['seconds']:g} s, p95", load["p95_ms"], 500, "ms"),
        ("errors under that load", load["errors"], 0, ""),
    )
    lines = [
        f"# The dashboard on {result['kernels']:,} kernels",
        "",
        "Made by `python benchmarks/dashboard.py`; the method is described there.",
        f"{result['machine']} {result['note']}".strip(),
        "",
        "| what | measured | bar | held |",
        "|---|---|---|---|",
        *(
            f"| {name} | {value:,.0f} {unit} | {bar:,} {unit} | {said(value <= bar)} |"
            for name, value, bar, unit in bars
        ),
        "",
        "| in the browser | median, ms | p95, ms | worst, ms | times |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {quantile(ms, 0.5):,.0f} | {quantile(ms, 0.95):,.0f} | {max(ms):,.0f} | "
            f"{len(ms)} |"
            for name, ms in browser.items()
        ),
        "",
        f"- the trace: {result['made']['trace_mb']:,.0f} MB gzipped; analysed in "
        f"{result['made']['analyze_s']:,.0f} s, its timeline made in "
        f"{result['made']['timeline_s']:,.0f} s, once, in a process of its own",
        f"- the load: {load['requests']:,} requests, median {load['p50_ms']:,.0f} ms, worst "
        f"{load['worst_ms']:,.0f} ms",
        f"- private memory of the server afterwards: {memory['private_mb_under_load']:,.0f} MB",
        "",
    ]
    return "\n".join(lines)


def _machine() -> str:
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    name = model[1] if model else platform.machine()
    return f"{cores} cores of {name}, Python {platform.python_version()}, load before {load:.1f}."


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--load-s", type=float, default=120)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--note", default="")
    return parser.parse_args()


if __name__ == "__main__":
    main()
