"""Reading gates.toml: closed, finite, and every name in it known."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection
from typing import Any

import msgspec

from advisor.errors import InvalidRecordError, UsageError
from advisor.model.base import check_deep
from advisor.model.gate import FindingLimit, GateConfig, MetricLimit
from advisor.model.metric_names import BETTER
from advisor.model.report import Report
from advisor.model.rule_names import RULE_IDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_CONFIG_BYTES = 1 << 20
# What is held against a baseline where no configuration says otherwise.
DEFAULT_METRICS = ("step_ns", "gpu_busy_per_step_ns", "kernel_launches_per_step")
DEFAULT_TOLERANCE = 0.05
REMEDY = "`fusion-advisor schema gate` prints what it may hold"
_NAMES_SHOWN = 3
_INTEGERS = range(-(1 << 63), 1 << 63)


def read_config(data: bytes, where: str) -> GateConfig:
    """The bytes of a TOML file as limits; anything wrong with them is a `UsageError`."""
    try:
        table = tomllib.loads(data.decode())
        _check_integers(table)
        config = msgspec.convert(table, GateConfig)
        check_deep(config)
    except UnicodeDecodeError as error:
        raise UsageError("not UTF-8 text", where=where, why=str(error), remedy=REMEDY) from error
    except msgspec.ValidationError as error:
        raise UsageError(
            "not a gate configuration",
            where=where,
            why=str(error),
            remedy=REMEDY,
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError("not a TOML file", where=where, why=str(error), remedy=REMEDY) from error
    except InvalidRecordError as error:
        place = f"{where}: {error.where}" if error.where else where
        remedy = error.remedy or REMEDY
        raise UsageError(error.what, where=place, why=error.why, remedy=remedy) from error
    return config


def _check_integers(value: Any) -> None:
    """Raise `ValueError` for an integer of more than the 64 bits that TOML has."""
    if isinstance(value, int) and value not in _INTEGERS:
        raise ValueError("an integer has more than 64 bits")
    parts = value.values() if isinstance(value, dict) else value
    for item in parts if isinstance(value, (dict, list)) else ():
        _check_integers(item)


def default_config(report: Report, baseline: Report | None) -> GateConfig:
    """No regressions; beside a baseline, no slower step and no more launches, beyond noise."""
    limits = tuple(
        MetricLimit(name=name, max_increase=DEFAULT_TOLERANCE, beyond_noise=True)
        for name in DEFAULT_METRICS
        if baseline is not None and _known(report, name) and _known(baseline, name)
    )
    return GateConfig(metric=limits, finding=(FindingLimit(kind="regression", max=0),))


def check_names(config: GateConfig, *reports: Report) -> None:
    """Raise `UsageError` for a metric or rule that neither the tool nor a report knows."""
    metrics = BETTER.keys() | {name for report in reports for name in report.metrics}
    rules = {*RULE_IDS, *(f.rule for report in reports for f in report.findings)}
    for limit in config.metric:
        _need(limit.name, metrics, "metric")
    for finding in config.finding:
        if finding.rule is not None:
            _need(finding.rule, rules, "rule")


def _known(report: Report, name: str) -> bool:
    metric = report.metrics.get(name)
    return metric is not None and metric.value is not None


def _need(name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, sorted(known), n=_NAMES_SHOWN, cutoff=0.5)
        raise UsageError(
            f"there is no {what} called {name!r}",
            remedy=f"did you mean {' or '.join(near)}?" if near else "see `fusion-advisor rules`"
            if what == "rule"
            else "`fusion-advisor show` lists the metrics of a report",
        )  # fmt: skip
