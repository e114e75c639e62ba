"""The tables of `llama_runs.md` from the records that `apply` wrote on an H200.

Record:  for WHAT in prefill train, MODE in eager compile:
           fusion-advisor profile benchmarks/llama.py:WHAT --mode MODE --out runs/WHAT_MODE
           fusion-advisor apply runs/WHAT_MODE
         (the eager training run: `--only` its RMS norm and one gradient) and copy report.json,
         applied.json, plans/ and kernels/ to sample_traces/runs/llama_WHAT_MODE.
Table:   python benchmarks/llama_runs.py > benchmarks/llama_runs.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from advisor.model.applied import Applied, Comparison, PlanVerdict
from advisor.model.base import load
from advisor.model.report import Report
from advisor.report.text import gain_text, range_text
from advisor.units import format_fraction, format_ns, format_ratio

RUNS = Path(__file__).resolve().parent.parent / "sample_traces" / "runs"
SHOWN = tuple(
    (what, mode)
    for what in ("prefill", "train")
    for mode in ("eager", "compile")
    if (RUNS / f"llama_{what}_{mode}").is_dir()
)
INTRODUCTION = """# Llama on an H200

Hugging Face's Llama (hidden 2048, 16/4 heads, 4 x 1024 tokens, bf16), RMSNorm in pieces:
`benchmarks/llama.py`. `prefill` has four layers and attention written out, `train` two layers, SDPA
and AdamW. Each run is one process; variants of the step run in turn; medians with their intervals.
Raw records: `sample_traces/runs/llama_*`. Written by `python benchmarks/llama_runs.py`, which says
how to record them again."""


def main() -> None:
    """Write the table to standard output."""
    lines = [INTRODUCTION]
    for what, mode in SHOWN:
        folder = RUNS / f"llama_{what}_{mode}"
        applied = load(folder / "applied.json", Applied)
        titles = "; ".join(f.title for f in load(folder / "report.json", Report).findings)
        lines += [f"\n## {what}, profiled as {mode}\n", _versions(applied), "", *_steps(applied)]
        lines += ["", *_plans(applied), "", *_kernels(applied), ""]
        lines += [f"Set: {applied.set.verdict}; {applied.set.reason}.", "", f"Findings: {titles}."]
    sys.stdout.write("\n".join(lines) + "\n")


def _versions(applied: Applied) -> str:
    named = ", ".join(f"{name} {version}" for name, version in sorted(applied.versions.items()))
    return f"{applied.device}; {named}; {applied.created}."


def _steps(applied: Applied) -> list[str]:
    rows = [
        ("step, against eager", applied.set.against_eager),
        ("step, against torch.compile", applied.set.against_compiled),
        ("GPU time of the step, against torch.compile", applied.set.gpu_time),
    ]
    lines = ["| measured | before | after | factor | gain |", "|---|---|---|---|---|"]
    return lines + [_comparison(name, value) for name, value in rows if value is not None]


def _comparison(name: str, value: Comparison) -> str:
    factor = format_ratio(value.before.median_ns / value.after.median_ns)
    before, after = format_ns(value.before.median_ns), format_ns(value.after.median_ns)
    return f"| {name} | {before} | {after} | {factor} | {gain_text(value)} |"


def _plans(applied: Applied) -> list[str]:
    lines = [
        "| plan | sites | swapped | predicted | measured | in the compiled step | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for plan in applied.plans:
        predicted = range_text(plan.predicted_ns) if plan.predicted_ns else "unknown"
        measured = gain_text(plan.measured) if plan.measured else "not alone"
        region = gain_text(plan.region) if plan.region else "unknown"
        cells = (
            f"{plan.title} `{plan.plan_id[:8]}`", str(plan.sites_expected), str(plan.sites_swapped),
            predicted, measured, region, plan.verdict,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _kernels(applied: Applied) -> list[str]:
    head = (
        "kernel, cold caches", "shape", "time", "op by op", "Inductor", "of a same-size copy",
        "of a 2 GiB copy", "op by op, of a 2 GiB copy", "launch", "largest error (eager's)",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [_kernel(plan) for plan in applied.plans if plan.timings]


def _kernel(plan: PlanVerdict) -> str:
    timing = plan.timings[0]
    cases = plan.numerics.cases if plan.numerics else ()
    error = max((case.max_error_ulps or 0.0 for case in cases), default=0.0)
    own = max((case.eager_error_ulps or 0.0 for case in cases), default=0.0)
    eager = format_ns(timing.eager.median_ns if timing.eager else None)
    inductor = format_ns(timing.inductor.median_ns if timing.inductor else None)
    return (
        f"| {plan.title} `{plan.plan_id[:8]}` ({timing.config}) | {timing.shape} |"
        f" {format_ns(timing.kernel.median_ns)} | {eager} | {inductor} |"
        f" {format_fraction(timing.copy_bandwidth_fraction)} |"
        f" {format_fraction(timing.peak_copy_bandwidth_fraction)} |"
        f" {format_fraction(timing.eager_bandwidth_fraction)} | {format_ns(timing.launch_ns)} |"
        f" {error:.2f} ({own:.2f}) ulps |"
    )


if __name__ == "__main__":
    main()
