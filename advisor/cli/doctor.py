"""`fusion-advisor doctor`: what works on this machine, and what each missing part disables."""

from __future__ import annotations

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from advisor.cli.output import echo
from advisor.cli.probes import Check, all_checks
from advisor.model.base import Record
from advisor.report.text import heading, plain, table

STATE_STYLE = {"ok": "green", "limited": "yellow", "missing": "red"}

# What a user wants to do, and the parts that it needs.
ABILITIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("read traces, print reports", ("pandas",)),
    ("open the dashboard", ("dash",)),
    ("record a workload", ("torch",)),
    ("compile and check kernels", ("torch", "triton", "ptxas")),
    (
        "time kernels and keep those that pay",
        ("torch", "triton", "ptxas", "GPU", "C compiler", "Python headers"),
    ),
    ("sample clocks and bandwidth", ("NVML",)),
    ("measure DRAM traffic per kernel", ("GPU", "Nsight Compute")),
)


class Ability(Record, frozen=True, kw_only=True):
    """Something to do with the tool, and the names of the parts that it lacks here."""

    name: str
    lacks: tuple[str, ...]


class Diagnosis(Record, frozen=True, kw_only=True):
    """All checks and what follows from them."""

    checks: tuple[Check, ...]
    abilities: tuple[Ability, ...]


def diagnose(checks: tuple[Check, ...]) -> Diagnosis:
    """What works, given what was found."""
    usable = {check.name for check in checks if check.state == "ok"}
    abilities = tuple(
        Ability(name=name, lacks=tuple(part for part in needs if part not in usable))
        for name, needs in ABILITIES
    )
    return Diagnosis(checks=checks, abilities=abilities)


def render_diagnosis(diagnosis: Diagnosis) -> RenderableType:
    """Parts, then what is missing and how to get it, then what works."""
    rows = table((("Part", False), ("State", False), ("Found", False)))
    for check in diagnosis.checks:
        state = Text(check.state, style=STATE_STYLE[check.state])
        rows.add_row(plain(check.name), state, plain(check.detail))
    parts: list[RenderableType] = [rows]
    lacking = [check for check in diagnosis.checks if check.state != "ok"]
    if lacking:
        parts.append(heading("What that disables"))
        parts += [_disabled(check) for check in lacking]
    parts.append(heading("What works here"))
    parts += [_ability(ability) for ability in diagnosis.abilities]
    return Group(*parts)


def _disabled(check: Check) -> Text:
    remedy = f" → {check.remedy}" if check.remedy else ""
    line = plain(check.name, "bold").append(": ")
    return line.append_text(plain(check.disables)).append_text(plain(remedy, "dim"))


def _ability(ability: Ability) -> Text:
    if not ability.lacks:
        return Text("✓ ", style="green").append(ability.name)
    lacks = plain(f", needs {', '.join(ability.lacks)}", "dim")
    return Text("✗ ", style="red").append(ability.name).append_text(lacks)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def doctor(as_json: bool) -> None:
    """Say what is installed and what each missing part disables."""
    diagnosis = diagnose(all_checks())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(diagnosis)))
        return
    echo(render_diagnosis(diagnosis))
