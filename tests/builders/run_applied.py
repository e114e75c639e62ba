"""What applying the plan of a realistic run gave: kept, with its proof."""

from __future__ import annotations

from advisor.model.applied import (
    Applied,
    Comparison,
    KernelResources,
    KernelTiming,
    NumericCase,
    Numerics,
    PlanVerdict,
    SetVerdict,
    Timing,
)
from advisor.model.plan import FusionPlan
from tests.builders.run_plan import CREATED, range_of


def timing(median: int, samples: int = 50) -> Timing:
    """A narrow sample around `median`."""
    return Timing(
        median_ns=median,
        low_ns=round(median * 0.99),
        high_ns=round(median * 1.01),
        samples=samples,
    )


def comparison(before: int, after: int) -> Comparison:
    """An interleaved comparison with a clear gain."""
    gain = before - after
    return Comparison(
        before=timing(before),
        after=timing(after),
        gain_low_ns=round(gain * 0.95),
        gain_mid_ns=gain,
        gain_high_ns=round(gain * 1.05),
        clock="step",
    )


def applied_of(plan: FusionPlan) -> Applied:
    """The plan was kept, with numerics, resources on three GPUs and timings."""
    resources = (
        KernelResources(
            gpu="h200",
            config="block 2048, warps 8",
            registers=32,
            spill_store_bytes=0,
            spill_load_bytes=0,
            local_bytes_per_thread=0,
            shared_bytes=64,
            threads=256,
            occupancy=1.0,
            limiter="warps",
        ),
        KernelResources(
            gpu="a100",
            config="block 2048, warps 8",
            registers=34,
            spill_store_bytes=0,
            spill_load_bytes=0,
            local_bytes_per_thread=0,
            shared_bytes=64,
            threads=256,
            occupancy=0.75,
            limiter="registers",
        ),
        KernelResources(
            gpu="mi300x", config="block 2048, warps 4", error="the compiler timed out after 30 s"
        ),
    )
    verdict = PlanVerdict(
        plan_id=plan.id,
        title=plan.title,
        verdict="kept",
        reason="the region is faster by 1.29 ms, its lower bound 1.23 ms is above noise",
        sites_expected=9,
        sites_swapped=9,
        predicted_ns=range_of(1_358_000),
        measured=comparison(1_432_000, 138_000),
        numerics=Numerics(
            executed_on="gpu",
            passed=True,
            cases=(
                NumericCase(
                    name="plan shape", passed=True, max_error_ulps=0.5, eager_error_ulps=1.0
                ),
                NumericCase(
                    name="adversarial: inf and NaN",
                    passed=True,
                    max_error_ulps=1.0,
                    eager_error_ulps=1.0,
                ),
            ),
        ),
        resources=resources,
        timings=(
            KernelTiming(
                shape="4096 x 2048",
                config="block 2048, warps 8",
                bytes=33_558_528,
                kernel=timing(13_600),
                eager=timing(164_000),
                inductor=timing(14_900),
                copy=timing(12_700),
                copy_bandwidth_fraction=0.934,
                launch_ns=6_100,
            ),
        ),
    )
    return Applied(
        created=CREATED,
        device="NVIDIA H200",
        versions={"torch": "2.13.0", "triton": "3.7.1"},
        plans=(verdict,),
        set=SetVerdict(
            verdict="kept",
            reason="the step is faster beyond noise and its outputs agree",
            plans=(plan.id,),
            against_eager=comparison(6_420_000, 5_130_000),
            against_compiled=comparison(5_210_000, 5_130_000),
            outputs_agree=True,
        ),
    )
