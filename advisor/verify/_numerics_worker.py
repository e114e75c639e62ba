"""Child process: run generated kernels on every case, one request after the other.

Arguments: the number of the pipe for answers, and the device (`cuda:0`, or `cpu` with
TRITON_INTERPRET=1). A request is a line of JSON on standard input, an answer a line of JSON in the
pipe: what a kernel prints is in nobody's way. A crash or a hang costs this process only.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import msgspec
import torch

from advisor.model import base
from advisor.model.applied import NumericCase, Numerics
from advisor.model.gemm_configs import LEAST_BLOCK
from advisor.model.launch import LaunchConfig
from advisor.model.members import alone
from advisor.model.plan import FusionPlan
from advisor.model.tolerance import MOST_STEPS, allowance, longest_sum, roundings, steps
from advisor.verify.cases import Case, cases, group_cases, make_inputs, poisoned_outputs
from advisor.verify.child import READY
from advisor.verify.interpret import evaluate
from advisor.verify.kernel_module import load_module
from advisor.verify.numerics import NumericsRequest
from advisor.verify.products import allowed_as_planned

SMALL_ROWS = 8
SMALL_BLOCK = 128
SMALL_STEPS = 16
SMALL_TILE = 32
# What numbers of so many bytes are compared as: bit for bit, NaN as well.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def unit_of(dtype: torch.dtype, casts: Sequence[str]) -> float:
    """The machine epsilon that errors are counted in: the coarsest type a result went through."""
    return max(torch.finfo(kind).eps for kind in (dtype, *(getattr(torch, c) for c in casts)))


def error_ulps(
    value: torch.Tensor,
    truth: torch.Tensor,
    by_row: bool,
    epsilon: float,
    kind: torch.dtype | None = None,
) -> float:
    """The largest |value - truth| in units of the last place (of `epsilon`) at the largest |truth|.

    The largest is taken `by_row` for a tile of several columns, over all rows for single values:
    where a result is a difference of large terms, its own last place is below what any float32
    computation can give.
    Finite elements only. `kind` is what the value is stored in, if that is another dtype.
    """
    finite = torch.isfinite(truth) & torch.isfinite(value)
    if not bool(finite.any()):
        return 0.0
    exact = torch.where(finite, truth.double(), 0.0)
    largest = exact.abs().amax(-1, keepdim=True) if by_row else exact.abs().max()
    least = torch.finfo(kind or value.dtype).tiny
    unit = torch.exp2(torch.floor(torch.log2(largest.clamp(min=least)))) * epsilon
    difference = torch.where(finite, value.double() - exact, 0.0).abs()
    return float((difference / unit).max())


def tolerance(plan: FusionPlan, value: str, epsilon: float, terms: int, eager: float) -> float:
    """Allowed error in ulps: the floor and one a rounding of the plan, or twice eager's own."""
    exact = epsilon <= torch.finfo(torch.float32).eps
    return allowance(plan, value, terms, narrow=not exact).beside(eager)


def run_case(
    plan: FusionPlan,
    module: ModuleType,
    case: Case,
    device: torch.device,
    config: LaunchConfig,
    seed: int,
) -> NumericCase:
    """Launch the kernel on a case and compare every output."""
    inputs = make_inputs(plan, case, device, seed)
    before = [tensor.clone() for tensor in inputs]
    out = poisoned_outputs(plan, case, device)
    module.fused(*inputs, out=out, **config.options() | {"block_rows": case.block_rows})
    joined = config.scheme in ("scan_blocks", "scan_chunks")
    return compared(plan, case, before, inputs, out, joined=joined)


def run_group(
    plan: FusionPlan,
    module: ModuleType,
    shares: Sequence[Case],
    device: torch.device,
    config: LaunchConfig,
    seed: int,
) -> NumericCase:
    """Launch the kernel of several members, a case for each, and compare every output of each."""
    members = alone(plan)
    given = [make_inputs(m, case, device, seed) for m, case in zip(members, shares, strict=True)]
    before = [[tensor.clone() for tensor in inputs] for inputs in given]
    out = [poisoned_outputs(m, case, device) for m, case in zip(members, shares, strict=True)]
    tensors = [tensor for inputs in given for tensor in inputs]
    written = tuple(tensor for tensors in out for tensor in tensors)
    module.fused(*tensors, out=written, **config.options())
    found = [compared(*each) for each in zip(members, shares, before, given, out, strict=True)]
    failed = [(n, one) for n, one in enumerate(found) if not one.passed]
    detail = f"member {failed[0][0]}: {failed[0][1].detail}" if failed else ""
    return NumericCase(
        name=shares[0].name,
        passed=not failed,
        max_error_ulps=max(one.max_error_ulps or 0.0 for one in found),
        eager_error_ulps=max(one.eager_error_ulps or 0.0 for one in found),
        detail=detail,
    )


def compared(
    plan: FusionPlan,
    case: Case,
    before: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
    *,
    joined: bool = False,
) -> NumericCase:
    """The outputs of a launch beside eager's and the exact ones; inputs must be as they were.

    Steps that are `joined` in another order give NaN where one after the other gives an infinity.
    """
    if any(not torch.equal(_bits(a), _bits(b)) for a, b in zip(before, inputs, strict=True)):
        return NumericCase(name=case.name, passed=False, detail="an input was overwritten")
    with allowed_as_planned(plan):
        eager = evaluate(plan, inputs, "native")
    exact = evaluate(plan, inputs, "exact")
    worst = worst_eager = 0.0
    each = zip(plan.outputs, out, eager, exact, strict=True)
    for position, (output, got, narrow, wide) in enumerate(each):
        own, truth = narrow.expand(got.shape), wide.expand(got.shape)
        detail = _plainly_wrong(got, own, truth, steps=steps(plan, output.value), joined=joined)
        if not detail and got.dtype.is_floating_point:
            error, own_error, detail = _errors(plan, case, inputs, position, (got, own, truth))
            worst, worst_eager = max(worst, error), max(worst_eager, own_error)
        if detail:
            detail = f"{output.value}: {detail}"
            break
    return NumericCase(
        name=case.name,
        passed=not detail,
        max_error_ulps=worst,
        eager_error_ulps=worst_eager,
        detail=detail,
    )


def _errors(
    plan: FusionPlan,
    case: Case,
    inputs: Sequence[torch.Tensor],
    position: int,
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> tuple[float, float, str]:
    """How far a kernel's floats and eager's are from the exact ones, in ulps; "" or what is wrong.

    `results` are the three, of one shape. Where the casts of the plan cost more than is allowed,
    what they give in float64 is as right as what is never rounded.
    """
    output, kind = plan.outputs[position], results[0].dtype
    # A row of one column has no scale but its element; steps of a scan are allowed more.
    tile = output.space == "tile" and (case.columns > 1 or bool(plan.states))
    casts = roundings(plan, output.value)
    epsilon = unit_of(kind, casts)
    mine, own, truth = (_readable(tensor).flatten(plan.row_axes) for tensor in results)
    error = error_ulps(mine, truth, tile, epsilon, kind)
    own_error = error_ulps(own, truth, tile, epsilon, kind)
    terms = longest_sum(plan, math.prod(case.row_sizes), case.columns)
    allowed = tolerance(plan, output.value, epsilon, terms, own_error)
    passed = error <= allowed
    if not passed and casts:
        planned = evaluate(plan, inputs, "as_planned")[position].expand(results[0].shape)
        near = _nearer(mine, truth, planned.flatten(plan.row_axes))
        passed = error_ulps(mine, near, tile, epsilon, kind) <= allowed
    return error, own_error, "" if passed else f"{error:.1f} ulps, at most {allowed:.1f} allowed"


def _plainly_wrong(
    got: torch.Tensor, own: torch.Tensor, truth: torch.Tensor, *, steps: bool, joined: bool
) -> str:
    """Other dtype or integers, or elements non-finite unlike both eager's and the exact ones."""
    if got.dtype != own.dtype:
        return f"dtype {got.dtype}, eager gives {own.dtype}"
    if not got.is_floating_point():
        near = steps and (_is_near(got, own) or _is_near(got, truth))
        return "" if near or torch.equal(got, own) else "integer results differ from eager's"
    return _other_class(_readable(got), _readable(own), _readable(truth), joined=joined)


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """Eight bits as float32: little is computed in them."""
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


def _nearer(value: torch.Tensor, truth: torch.Tensor, cast: torch.Tensor) -> torch.Tensor:
    """Element by element, whichever of two right results a value is nearer to."""
    wide = value.double()
    return torch.where((wide - cast).abs() < (wide - truth).abs(), cast, truth)


def _is_near(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Integers of which a few are one off: floats that lay between two of them."""
    apart = (got.long() - want.long()).abs()
    few = int(apart.sum()) <= 1 + MOST_STEPS * apart.numel()
    return few and not bool((apart > 1).any())


def _other_class(got: torch.Tensor, own: torch.Tensor, truth: torch.Tensor, *, joined: bool) -> str:
    """Elements that are non-finite unlike both eager's and the exact ones."""
    agrees = _same_class(got, own) | _same_class(got, truth.to(got.dtype))
    if joined:
        agrees |= ~torch.isfinite(got) & ~torch.isfinite(own)
    wrong = int((~agrees).sum())
    return f"{wrong} elements are non-finite where eager's are not, or the reverse" if wrong else ""


def _same_class(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Element by element: both finite, both NaN, or the same infinity."""
    same = torch.isnan(a) == torch.isnan(b)
    same &= torch.isposinf(a) == torch.isposinf(b)
    return same & (torch.isneginf(a) == torch.isneginf(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(INTEGERS[tensor.dtype.itemsize])


def tried(config: LaunchConfig, *, small: bool) -> LaunchConfig:
    """The configuration with blocks that short rows fill several of, where rows are `small`."""
    if config.scheme == "gemm" and small:
        return msgspec.structs.replace(
            config,
            block_columns=min(config.block_columns or SMALL_TILE, SMALL_TILE),
            block_steps=min(config.block_steps or SMALL_STEPS, SMALL_STEPS),
        )
    if config.block_steps is not None and small:
        return msgspec.structs.replace(config, block_steps=min(config.block_steps, SMALL_STEPS))
    if config.block_columns is None or not small:
        return config
    return msgspec.structs.replace(
        config, block_columns=min(config.block_columns, SMALL_BLOCK), num_stages=1
    )


def verdict(request: NumericsRequest, device: torch.device) -> Numerics:
    """All cases of one kernel."""
    plan = base.load(Path(request.plan), FusionPlan)
    small = device.type == "cpu"
    config = tried(request.config, small=small)
    # The interpreter walks every row of a block; the few rows of small cases fill several of these.
    few = LEAST_BLOCK if config.scheme == "gemm" else SMALL_ROWS
    block_rows = min(config.block_rows, few) if small else config.block_rows
    module = load_module(Path(request.kernel))
    if plan.members:
        results = tuple(
            run_group(plan, module, shares, device, config, seed)
            for seed, shares in enumerate(group_cases(plan, small=small))
        )
    else:
        results = tuple(
            run_case(plan, module, case, device, config, seed)
            for seed, case in enumerate(cases(plan, small=small, block_rows=block_rows))
        )
    return Numerics(
        executed_on="interpreter" if small else "gpu",
        passed=all(result.passed for result in results),
        cases=results,
    )


def main(arguments: list[str]) -> int:
    """Answer until standard input ends; a kernel that raises ends the process too."""
    answers, device = int(arguments[0]), torch.device(arguments[1])
    os.write(answers, READY)
    if device.index is not None:
        torch.cuda.set_device(device)
    for line in sys.stdin.buffer:
        found = verdict(msgspec.json.decode(line, type=NumericsRequest), device)
        if device.type == "cuda":
            torch.cuda.synchronize()  # what a kernel did is known before the next one is run
            torch.cuda.empty_cache()
        os.write(answers, msgspec.json.encode(found) + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
