"""The words and marks that all terminal views share, and the one way from a renderable to text."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from advisor.model.applied import Comparison, Timing
from advisor.model.base import Range
from advisor.report.document import visible
from advisor.units import UNKNOWN, format_ns, format_ratio
from advisor.units import counted as counted  # noqa: PLC0414  one of the words of all views

INSIGNIFICANT = "~"


def plain(text: str, style: str = "") -> Text:
    """Text of a record: no markup is read and control characters are made visible."""
    return Text(visible(text), style=style)


def interval(low: int, high: int) -> str:
    """Both ends of an interval of durations."""
    return f"{format_ns(low)} … {format_ns(high)}"


def range_text(value: Range | None) -> str:
    """A priced saving with its interval; `unknown` where it was not judged.

    One that may as well be nothing is `at most` its upper end: `at most 1.8 ms (estimated 948 µs)`.
    """
    if value is None:
        return UNKNOWN
    beside = spread(value)
    return f"{headline(value)} ({beside})" if beside else headline(value)


def headline(value: Range) -> str:
    """The one figure that stands for a saving: its middle, or `at most` its upper end."""
    return f"at most {format_ns(value.high)}" if is_upper_bound(value) else format_ns(value.mid)


def spread(value: Range) -> str:
    """What stands beside the headline: the interval, or the middle of an upper bound, if it adds.

    An interval narrower than the digits shown adds nothing.
    """
    if not is_upper_bound(value):
        ends = {format_ns(end) for end in (value.low, value.mid, value.high)}
        return interval(value.low, value.high) if len(ends) > 1 else ""
    return "" if value.mid in (0, value.high) else f"estimated {format_ns(value.mid)}"


def is_upper_bound(value: Range) -> bool:
    """Whether nothing speaks for a saving above zero but the upper end of its interval."""
    return value.low == 0 < value.high


def timing_text(value: Timing | None) -> str:
    """The median of a sample of durations."""
    return UNKNOWN if value is None else format_ns(value.median_ns)


def gain_text(value: Comparison | None) -> str:
    """The measured gain with its interval; `~` in front where the interval contains zero.

    A gain below zero is a loss and keeps its sign.
    """
    if value is None:
        return UNKNOWN
    text = f"{format_ns(value.gain_mid_ns)} ({interval(value.gain_low_ns, value.gain_high_ns)})"
    return f"{INSIGNIFICANT} {text}" if insignificant(value) else text


def speedup_text(value: Comparison | None) -> str:
    """Median before over median after; `~` where the difference is not significant."""
    if value is None or value.after.median_ns == 0:
        return UNKNOWN
    if insignificant(value):
        return INSIGNIFICANT
    return format_ratio(value.before.median_ns / value.after.median_ns)


def insignificant(value: Comparison) -> bool:
    """The interval of the gain contains zero."""
    return value.gain_low_ns <= 0 <= value.gain_high_ns


def comparison_style(value: Comparison | None) -> str:
    """Green for a significant gain, red for a significant loss, dim otherwise."""
    if value is None or insignificant(value):
        return "dim"
    return "green" if value.significant else "red"


def command(text: str) -> Text:
    """A command line to copy: it is never broken, however narrow the terminal."""
    return Text(visible(text), style="bold", no_wrap=True, overflow="ignore")


def heading(text: str) -> Text:
    """The title of a section, with an empty line above it."""
    return Text(f"\n{text}", style="bold")


def table(columns: Sequence[tuple[str, bool]]) -> Table:
    """An open table; `columns` are titles, and whether they hold figures (right, unbroken)."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold dim")
    for title, figures in columns:
        result.add_column(
            title, justify="right" if figures else "left", no_wrap=figures, overflow="fold"
        )
    return result


def render(renderable: RenderableType, *, width: int = 100, colour: bool = False) -> str:
    """A renderable as text with a final newline, `width` columns wide, ANSI colour or none.

    Only a `command` may be wider.
    """
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(renderable, crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"
