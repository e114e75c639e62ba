"""Profiles of the zoo as samples: reports and plans, packed, without traces or paths of a machine.

Used by `zoo_profiles.py --keep`. Each run is a folder MODEL_MODE with `report.json.gz`, `plans/`
and `row.json`; `MANIFEST.json` lists them with the SHA-256 of the report. The same runs give the
same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from advisor.model.base import decode, encode
from advisor.model.plan import FusionPlan
from advisor.model.report import Report

MODELS = "zoo_models.py"
MOST_BYTES = 6_000_000
_ABSOLUTE = re.compile(rb'"(?:/|[A-Za-z]:\\)[^"]*')


class UnfitError(Exception):
    """A run that may not become a sample, and why."""


def keep(finished: Path, into: Path) -> list[str]:
    """Replace `into` by the runs of a finished folder; the names of those kept."""
    runs = sorted(path.parent for path in finished.glob("*/row.json"))
    if not runs:
        raise UnfitError(f"{finished} holds no finished run")
    packed = {run.name: _packed(run) for run in runs}
    size = sum(len(data) for files in packed.values() for data in files.values())
    if size > MOST_BYTES:
        raise UnfitError(f"{size:,} bytes are more than {MOST_BYTES:,}")
    shutil.rmtree(into, ignore_errors=True)
    for name, files in packed.items():
        for place, data in files.items():
            (into / name / place).parent.mkdir(parents=True, exist_ok=True)
            (into / name / place).write_bytes(data)
    rows = [_manifest_row(name, files) for name, files in packed.items()]
    (into / "MANIFEST.json").write_text(json.dumps(_manifest(rows), indent=2) + "\n")
    return list(packed)


def _packed(run: Path) -> dict[str, bytes]:
    """The files of a run by their place in it."""
    row = json.loads((run / "row.json").read_text())
    if row["disagreements"]:
        raise UnfitError(f"{run.name}: a plan differs from its region: {row['disagreements'][0]}")
    report = decode((run / "report.json").read_bytes(), Report, str(run))
    model = report.workload.target.rpartition(f"{MODELS}:")[2]
    workload = replace(report.workload, target=f"benchmarks/{MODELS}:{model}")
    files = {"report.json.gz": encode(replace(report, workload=workload))}
    for plan in sorted((run / "plans").glob("*.json")):
        files[f"plans/{plan.name}.gz"] = encode(
            decode(plan.read_bytes(), FusionPlan, f"{run.name}/{plan.name}")
        )
    for place, data in files.items():
        found = _ABSOLUTE.search(data)
        if found is not None:
            raise UnfitError(f"{run.name}/{place} names {found[0].decode()[1:]}")
    packed = {place: gzip.compress(data, mtime=0) for place, data in files.items()}
    return {**packed, "row.json": json.dumps(row, indent=1).encode() + b"\n"}


def _manifest_row(name: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    row = json.loads(files["row.json"])
    return {
        "run": name,
        **{key: row[key] for key in ("model", "mode", "device", "torch", "step_ns", "attributed")},
        "plans": sum(place.startswith("plans/") for place in files),
        "sha256": hashlib.sha256(files["report.json.gz"]).hexdigest(),
    }


def _manifest(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "format": "reports and plans of `fusion-advisor profile`, gzip",
        "origin": "recorded by benchmarks/zoo_profiles.py on models with random weights",
        "licence": "as the project (Apache-2.0)",
        "runs": list(rows),
    }
