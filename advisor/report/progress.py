"""Events of a job on the terminal, a line for each."""

from __future__ import annotations

from rich.text import Text

from advisor.model.run import Progress
from advisor.report.text import plain

MARKS = {"queued": "·", "running": "▸", "done": "✓", "failed": "✗", "cancelled": "■"}
STYLES = {
    "queued": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "bold red",
    "cancelled": "yellow",
}
STAGE_WIDTH = 12


def progress_line(event: Progress) -> Text:
    """One event: mark, stage, plan if any, headline value, message."""
    line = Text(f"{MARKS[event.state]} ", style=STYLES[event.state])
    line.append_text(plain(f"{event.stage:<{STAGE_WIDTH}}", "bold"))
    if event.plan is not None:
        line.append_text(plain(f" {event.plan[:8]}", "dim"))
    if event.value is not None:
        line.append_text(plain(f" {_value(event.value)}"))
    if event.message:
        line.append_text(plain(f"  {event.message}", "dim" if event.state != "failed" else "red"))
    return line


def _value(value: float | int | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
