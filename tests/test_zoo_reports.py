"""Golden reports: fifteen models profiled on an H200, eager and compiled.

What was recorded still reads, says what a good advisor says of these models, and renders; every
plan is legal data whose id follows from what it computes.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.model.base import decode, encode
from advisor.model.plan import FusionPlan, plan_id
from advisor.model.report import Report
from advisor.report.gate import judge
from advisor.report.gate_config import default_config
from advisor.report.html import to_html
from advisor.report.markdown import to_markdown
from advisor.report.report_document import report_document
from advisor.report.terminal import render_report
from advisor.report.text import render
from advisor.report.words import ranked, verdicts
from analyzers.row_plans import RULE, module_pattern

ROOT = Path(__file__).parents[1]
# Another folder of kept runs may be held to the same.
FOLDER = Path(os.environ.get("FUSION_ADVISOR_ZOO", ROOT / "sample_traces" / "zoo"))
RUNS = sorted(path.parent.name for path in FOLDER.glob("*/report.json.gz"))
MOST_BYTES = 6_000_000
LEAST_ATTRIBUTED = 0.99

pytestmark = pytest.mark.skipif(
    not RUNS, reason="sample_traces/zoo is empty: benchmarks/zoo_profiles.py --keep fills it"
)
each_run = pytest.mark.parametrize("run", RUNS or ["none"])


@functools.cache
def report_of(run: str) -> Report:
    data = gzip.decompress((FOLDER / run / "report.json.gz").read_bytes())
    return decode(data, Report, run)


def plans_of(run: str) -> dict[str, FusionPlan]:
    return {
        path.name.partition(".")[0]: decode(gzip.decompress(path.read_bytes()), FusionPlan, run)
        for path in sorted((FOLDER / run / "plans").glob("*.json.gz"))
    }


def titled(pattern: str, rule: str = "") -> Callable[[Report], bool]:
    """Whether some finding, of a rule if one is named, has such a title."""

    def holds(report: Report) -> bool:
        return any(
            re.search(pattern, finding.title) and rule in ("", finding.rule)
            for finding in report.findings
        )

    return holds


def is_first(rule: str) -> Callable[[Report], bool]:
    """Whether the report says to do this first."""

    def holds(report: Report) -> bool:
        told = verdicts(report)
        return bool(told) and told[0][1].rule == rule

    return holds


def both(*checks: Callable[[Report], bool]) -> Callable[[Report], bool]:
    return lambda report: all(check(report) for check in checks)


HOST_BOUND = titled("^Host-bound", "launch-bound")
OPTIMIZER = titled("^Optimizer update", "optimizer-updates")
# What a good advisor says of the recorded models, by model and mode.
EXPECTED: dict[str, dict[str, Callable[[Report], bool]]] = {
    "llama_prefill_eager": {
        "attention": titled("^Attention written out, 4 sites", "attention-written-out"),
        "RMSNorm ×9": titled("^RMS norm .*9 sites", "row_program"),
        "SwiGLU ×4": titled("^SwiGLU gate .*4 sites", "gated-mlp"),
        "rotary ×8": titled("^Rotary embedding .*8 sites", "rotary-written-out"),
    },
    "llama_prefill_compile": {
        "attention": both(
            titled("^Attention written out, 4 sites", "attention-written-out"),
            is_first("attention-written-out"),
        ),
        "RMSNorm ×9": titled("^RMS norm.*9 sites", "row_program"),
    },
    "llama_decode_eager": {"host-bound first": both(HOST_BOUND, is_first("launch-bound"))},
    "llama_decode_compile": {"host-bound first": both(HOST_BOUND, is_first("launch-bound"))},
    "bert_eager": {"host-bound": HOST_BOUND},
    "bert_compile": {"host-bound": HOST_BOUND},
    "resnet50_eager": {"BatchNorm": titled(r"^BatchNorm \+ ReLU .*53 sites", "batch-norm")},
    "resnet50_compile": {"BatchNorm": titled(r"^BatchNorm \+ ReLU .*53 sites", "batch-norm")},
    "unet_eager": {"GroupNorm + SiLU": titled("(group norm|GroupNorm).*SiLU")},
    "unet_compile": {"GroupNorm": titled("(group norm|GroupNorm|layer norm)")},
    "mamba_eager": {"scan": titled("^A scan written as a loop, 6[34] steps .*2 sites")},
    "mamba_compile": {"scan": titled("^A scan written as a loop, 6[34] steps .*2 sites")},
    **{
        f"{model}_{mode}": {"optimizer": OPTIMIZER}
        for model in ("dlrm_train", "llama_train", "gpt2_train")
        for mode in ("eager", "compile")
    },
}
CLAIMS = [(run, what) for run in RUNS for what in EXPECTED.get(run, {})]


def test_manifest_and_folder_agree_and_stay_small() -> None:
    manifest: dict[str, Any] = json.loads((FOLDER / "MANIFEST.json").read_text())
    rows = {row["run"]: row for row in manifest["runs"]}
    assert sorted(rows) == RUNS
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < MOST_BYTES
    for run, row in rows.items():
        data = (FOLDER / run / "report.json.gz").read_bytes()
        assert hashlib.sha256(data).hexdigest() == row["sha256"]
        assert row["plans"] == len(plans_of(run))
        assert run == f"{row['model']}_{row['mode']}"


@each_run
def test_nearly_all_kernel_time_leads_to_an_op(run: str) -> None:
    attributed = report_of(run).metrics["attributed_time_fraction"].value
    assert attributed is not None
    assert attributed >= LEAST_ATTRIBUTED


@pytest.mark.parametrize(("run", "what"), CLAIMS)
def test_the_report_says_what_a_good_advisor_says(run: str, what: str) -> None:
    report = report_of(run)
    assert EXPECTED[run][what](report), [finding.title for finding in ranked(report)]


@each_run
def test_titles_are_sentences_a_person_would_write(run: str) -> None:
    for finding in report_of(run).findings:
        assert not re.search(r"\b1 (?:[a-z]+ )?(?:ops|sites|kernels|steps)\b", finding.title)


@each_run
def test_every_plan_is_legal_and_named_by_what_it_computes(run: str) -> None:
    report, plans = report_of(run), plans_of(run)
    assert {plan.id for plan in report.plans} == set(plans)
    for name, plan in plans.items():
        assert plan.id == name
        patterns = sorted({module_pattern(site.location.module) for site in plan.sites})
        rule = f"{RULE}/{plan.phase}"
        assert plan_id(rule, "|".join(patterns), plan.signature()) == plan.id
        (summary,) = [item for item in report.plans if item.id == plan.id]
        assert summary.sites == len(plan.sites)
        assert encode(decode(encode(plan), FusionPlan)) == encode(plan)


@each_run
def test_no_region_differs_from_its_plan_and_no_path_of_the_machine_is_left(run: str) -> None:
    row = json.loads((FOLDER / run / "row.json").read_text())
    assert row["disagreements"] == []
    report = report_of(run)
    assert report.workload.target == f"benchmarks/zoo_models.py:{row['model']}"
    assert not re.search(rb'"/[a-z]', encode(report))


@each_run
def test_the_report_renders_in_every_form(run: str) -> None:
    report = report_of(run)
    document = report_document(report)
    terminal = "".join(render(render_report(report), width=2_000).split())
    markdown, html = to_markdown(document), to_html(run, document)
    for finding in ranked(report):
        assert "".join(finding.title.split()) in terminal
    assert html.startswith("<!doctype html>")
    assert markdown.startswith("#")
    for text in (terminal, markdown, html):
        assert report.workload.target.rpartition(":")[2] in text


@each_run
def test_the_gate_passes_against_the_same_report(run: str) -> None:
    report = report_of(run)
    result = judge(default_config(report, report), report, report)
    assert result.status == "passed", [check for check in result.checks if check.status != "passed"]


@each_run
def test_the_gate_sees_a_slower_step(run: str) -> None:
    report = report_of(run)
    step = report.metrics["step_ns"]
    assert step.value is not None
    slower = replace(
        step,
        value=step.value * 2,
        per_step=tuple(None if ns is None else ns * 2 for ns in step.per_step),
    )
    after = replace(report, metrics={**report.metrics, "step_ns": slower})
    assert judge(default_config(after, report), after, report).status == "failed"


@each_run
def test_every_recommended_finding_is_there_and_worth_something(run: str) -> None:
    report = report_of(run)
    by_id = {finding.id: finding for finding in report.findings}
    assert len(by_id) == len(report.findings)
    for name in report.recommended.order:
        saving = by_id[name].exposed_saving_ns
        assert by_id[name].kind == "opportunity"
        assert saving is None or saving.high > 0


def keeper() -> ModuleType:
    spec = importlib.util.spec_from_file_location("zoo_keep", ROOT / "benchmarks" / "zoo_keep.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def unpacked(run: str, into: Path) -> Path:
    """A finished run as `zoo_profiles.py` leaves it."""
    folder = into / run
    (folder / "plans").mkdir(parents=True)
    shutil.copy(FOLDER / run / "row.json", folder)
    (folder / "report.json").write_bytes(encode(report_of(run)))
    for name, plan in plans_of(run).items():
        (folder / "plans" / f"{name}.json").write_bytes(encode(plan))
    return folder


def test_what_is_kept_is_kept_alike_and_nothing_unfit_is(tmp_path: Path) -> None:
    module = keeper()
    folder = unpacked(RUNS[0], tmp_path / "finished")
    assert module.keep(folder.parent, tmp_path / "kept") == [RUNS[0]]
    kept = tmp_path / "kept" / RUNS[0] / "report.json.gz"
    # Fields that reports have got since are written with what they are by default.
    assert decode(gzip.decompress(kept.read_bytes()), Report) == report_of(RUNS[0])
    module.keep(folder.parent, tmp_path / "again")
    assert kept.read_bytes() == (tmp_path / "again" / RUNS[0] / kept.name).read_bytes()
    report = report_of(RUNS[0])
    source = replace(report.sources[0], path="/home/me/model.py")
    (folder / "report.json").write_bytes(encode(replace(report, sources=(source,))))
    with pytest.raises(module.UnfitError, match=r"/home/me/model\.py"):
        module.keep(folder.parent, tmp_path / "kept")
    row = json.loads((folder / "row.json").read_text())
    (folder / "row.json").write_text(json.dumps({**row, "disagreements": ["a norm: wrong"]}))
    with pytest.raises(module.UnfitError, match="a norm: wrong"):
        module.keep(folder.parent, tmp_path / "kept")
