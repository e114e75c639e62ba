"""Events of a job on the terminal, a line for each."""

from __future__ import annotations

from rich.text import Text

from advisor.model.run import Progress
from advisor.report.text import plain
from advisor.units import format_value

MARKS = {"queued": "·", "running": "▸", "done": "✓", "failed": "✗", "cancelled": "■"}
STYLES = {
    "queued": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "bold red",
    "cancelled": "yellow",
}
STAGE_WIDTH = 12
# The unit of a stage's headline figure; a stage that is not here counts something.
STAGE_UNITS = {
    "generate": "lines",
    "resources": "binaries",
    "verify": "ulps",
    "time": "ns",
    "rewrite": "sites",
    "measure": "ns",
    "decide": "ns",
}


def progress_line(event: Progress) -> Text:
    """One event: mark, stage, plan if any, headline value, message."""
    line = Text(f"{MARKS[event.state]} ", style=STYLES[event.state])
    line.append_text(plain(f"{event.stage:<{STAGE_WIDTH}}", "bold"))
    if event.plan is not None:
        line.append_text(plain(f" {event.plan[:8]}", "dim"))
    if event.value is not None:
        line.append_text(plain(f" {value_text(event)}"))
    if event.message:
        line.append_text(plain(f"  {event.message}", "dim" if event.state != "failed" else "red"))
    return line


def value_text(event: Progress) -> str:
    """The headline figure of an event in the unit of its stage; text as it is."""
    if event.value is None or isinstance(event.value, str):
        return event.value or ""
    unit = STAGE_UNITS.get(event.stage, "count")
    return format_value(event.value, unit.removesuffix("s") if event.value == 1 else unit)
