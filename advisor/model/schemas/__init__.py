"""The JSON Schema files beside this module, written from the record types.

`python -m advisor.model.schemas` writes them; a test holds the files to the types. A schema is
versioned by the `schema_version` of its record.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from advisor.errors import UsageError
from advisor.model.applied import Applied
from advisor.model.base import Record, schema
from advisor.model.comparison import ReportComparison
from advisor.model.forward import Forwards
from advisor.model.gate import GateConfig, GateResult
from advisor.model.graph import Graph
from advisor.model.plan import FusionPlan
from advisor.model.report import Report
from advisor.model.resources import Cliff, ResourceTable
from advisor.model.run import Progress, RunInfo
from advisor.model.scores import Scores
from advisor.model.step_record import StepRecord

DIRECTORY = Path(__file__).parent

# name of the schema, its record type, the file of a run that holds it
RECORDS: tuple[tuple[str, type[Record], str], ...] = (
    ("report", Report, "report.json"),
    ("plan", FusionPlan, "plans/ID.json"),
    ("graph", Graph, "a captured graph"),
    ("applied", Applied, "applied.json"),
    ("resources", ResourceTable, "resources --json"),
    ("cliff", Cliff, "cliff --json"),
    ("run", RunInfo, "run.json"),
    ("step", StepRecord, "step.json"),
    ("forwards", Forwards, "forwards.json"),
    ("comparison", ReportComparison, "compare --format json"),
    ("gate", GateConfig, "gates.toml"),
    ("verdict", GateResult, "gate --json"),
    ("scores", Scores, "calibration --json"),
    ("progress", Progress, "one line of progress.jsonl"),
)


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema called `name`; raises `UsageError` that lists the names."""
    for known, kind, where in RECORDS:
        if name == known:
            return {"title": where, **schema(kind)}
    raise UsageError(
        f"no schema is called {name!r}",
        remedy=f"there are: {', '.join(known for known, _, _ in RECORDS)}",
    )


def schema_text(name: str) -> str:
    """The schema as the text of its file: sorted keys, two spaces, a final newline."""
    return msgspec.json.format(msgspec.json.encode(schema_of(name), order="sorted")).decode() + "\n"


def write_schemas(directory: Path = DIRECTORY) -> tuple[Path, ...]:
    """Write every schema file and return the paths."""
    paths = tuple(directory / f"{name}.json" for name, _, _ in RECORDS)
    for path in paths:
        path.write_text(schema_text(path.stem), encoding="utf-8")
    return paths
