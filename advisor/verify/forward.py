"""Is a plan what a module's `forward` computes? Both are run on random tensors, op by op.

A plan is bound to the forward's arguments and attributes by trying: every way in which types and
sizes fit is evaluated, and only one that gives the forward's own numbers passes. Parameters are
random, so that none can stand for another. Where rows may be as many as they like, other numbers
of them are tried than the site has; where they may not, the site's own shapes.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from advisor.errors import IllegalFusionError
from advisor.model.forward import ForwardTensor
from advisor.model.plan import FusionPlan, Site
from advisor.verify.interpret import evaluate
from advisor.verify.region import SMALL
from collectors.live.module_calls import CallTensor
from collectors.live.workload import is_writable

# Eager's ops in eager's types on both sides: only the order of a sum may differ.
MOST_ULPS = 4.0
MOST_VALUES, MOST_WAYS, MOST_ELEMENTS = 3, 256, 1 << 24
# Leading dimensions in place of those that were seen.
OTHER_ROWS = (3, 5, 2, 4, 6)


@dataclass(frozen=True)
class Binding:
    """Each input of a plan as the forward holds it, and which output the forward returns."""

    inputs: tuple[ForwardTensor, ...]
    output: int
    exact: bool


@dataclass(frozen=True)
class _Trial:
    """One way to call the forward: its tensors, its result, the sizes of the plan's axes."""

    held: dict[str, torch.Tensor]
    result: torch.Tensor
    sizes: tuple[int, ...]


def bind_forward(
    plan: FusionPlan,
    site: Site,
    module: nn.Module,
    parameters: Sequence[str],
    reads: Sequence[CallTensor],
    *,
    sizes_matter: bool,
) -> Binding:
    """How the plan is the forward of `module`, called with the tensors `reads` at `site`.

    `parameters` name the arguments. Raises `IllegalFusionError` where no way gives its numbers.
    """
    twin = _twin(module)
    values = [item for item in reads if item.attribute is None]
    held = [
        ForwardTensor(holder="attribute", name=item.attribute, shape=item.shape, dtype=item.dtype)
        for item in reads
        if item.attribute is not None and item.attribute.isidentifier()
    ]
    if not values:
        raise IllegalFusionError("it is given no tensor")
    if len(values) > MOST_VALUES or any(-1 in item.shape for item in reads):
        raise IllegalFusionError("it reads too many tensors, or some of unknown sizes")
    found = None
    for order in itertools.permutations(values):
        given = [
            ForwardTensor(holder="argument", name=name, shape=item.shape, dtype=item.dtype)
            for name, item in zip(parameters, order, strict=True)
        ]
        for exact in (False, True):
            if exact or (not sizes_matter and _rows_are_free(plan, site, given)):
                found = found or _bound(plan, site, twin, [*given, *held], exact=exact)
    if found is None:
        raise IllegalFusionError("its numbers are not those of the forward")
    return found


def _twin(module: nn.Module) -> nn.Module:
    """A copy of the module on the CPU, in the mode that it is in."""
    try:
        return copy.deepcopy(module).cpu()
    except Exception as error:  # the user's classes may refuse in any way
        raise IllegalFusionError(f"its module cannot be copied: {type(error).__name__}") from error


def _rows_are_free(plan: FusionPlan, site: Site, given: Sequence[ForwardTensor]) -> bool:
    """Whether all arguments are [..., columns] with the same rows, whatever their number."""
    shape = given[0].shape
    return (
        (plan.row_axes, plan.column_axes) == (1, 1)
        and len(shape) > 1
        and shape[-1] == site.columns
        and math.prod(shape) == site.rows * site.columns
        and all(item.shape == shape for item in given)
        and all(not item.segments for item in plan.inputs)
    )


def _bound(
    plan: FusionPlan, site: Site, module: nn.Module, held: Sequence[ForwardTensor], *, exact: bool
) -> Binding | None:
    """The binding that gives the forward's numbers in every trial; None if there is none."""
    trials = list(_trials(site, module, held, exact=exact))
    if not trials:
        return None
    for inputs in itertools.islice(_ways(plan, site, held), MOST_WAYS):
        for output in range(len(plan.outputs)):
            if all(_agrees(plan, inputs, output, trial) for trial in trials):
                return Binding(tuple(inputs), output, exact)
    return None


def _ways(
    plan: FusionPlan, site: Site, held: Sequence[ForwardTensor]
) -> Iterator[tuple[ForwardTensor, ...]]:
    """Every way in which the forward's tensors can be the plan's inputs, by type and size."""
    choices = []
    for item in plan.inputs:
        spans = plan.along(item)
        size = math.prod(n for n, along in zip(site.sizes, spans, strict=True) if along)
        fits = [t for t in held if t.dtype == item.dtype and math.prod(t.shape) == size]
        plain = (item.dense or size == 1) and item.gathered is None
        choices.append(fits if plain else [])
    for way in itertools.product(*choices):
        used = {item.name for item in way}
        if len(used) == len(way) and all(
            item.name in used for item in held if item.holder == "argument"
        ):
            yield way


def _trials(
    site: Site, module: nn.Module, held: Sequence[ForwardTensor], *, exact: bool
) -> Iterator[_Trial]:
    """The forward run on random tensors; no trial where it fails or gives no finite number."""
    for seed, positive in ((0, False), (1, False), (2, True)):
        shapes = {item.name: _shape(item, seed, exact=exact) for item in held}
        if sum(map(math.prod, shapes.values())) > MOST_ELEMENTS:
            raise IllegalFusionError("it is too large to be checked at its own sizes")
        with torch.random.fork_rng([]), torch.no_grad():
            torch.manual_seed(seed)
            given = {i.name: _drawn(i, shapes[i.name], positive=positive) for i in held}
            result = _run(module, held, given)
        if result is None or not result.numel() or not bool(result.double().isfinite().all()):
            continue
        first = next(item for item in held if item.holder == "argument")
        shape = shapes[first.name]
        sizes = site.sizes if exact else (math.prod(shape[:-1]), shape[-1])
        yield _Trial(given, result, sizes)


def _shape(item: ForwardTensor, seed: int, *, exact: bool) -> tuple[int, ...]:
    if exact or item.holder == "attribute":
        return item.shape
    own = item.shape[:-1]
    return (*(OTHER_ROWS[(n + seed) % len(OTHER_ROWS)] for n in range(len(own))), item.shape[-1])


def _drawn(item: ForwardTensor, shape: Sequence[int], *, positive: bool) -> torch.Tensor:
    """Random values, every other row small, so that what is added to a sum counts."""
    dtype: torch.dtype = getattr(torch, item.dtype)
    if not dtype.is_floating_point:
        return torch.randint(0, 2, tuple(shape)).to(dtype)
    value = torch.randn(tuple(shape))
    value = value.abs() + 0.25 if positive else value
    if item.holder == "argument" and len(shape) > 1:
        value.flatten(0, -2)[1::2] *= SMALL
    return value.to(dtype)


def _run(
    module: nn.Module, held: Sequence[ForwardTensor], given: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    """What the forward returns; None unless it is one tensor, and nothing else was written."""
    for item in held:
        if item.holder == "attribute":
            _write(module, item.name, given[item.name])
    arguments = [given[item.name].clone() for item in held if item.holder == "argument"]
    state = [*arguments, *module.parameters(), *module.buffers()]
    before = [tensor.clone() for tensor in state]
    try:
        result = module.forward(*arguments)
    except Exception as error:  # the user's code may raise anything
        raise IllegalFusionError(f"its forward alone fails: {type(error).__name__}") from error
    kept = all(torch.equal(one, other) for one, other in zip(state, before, strict=True))
    return result if isinstance(result, torch.Tensor) and kept else None


def _write(module: nn.Module, name: str, value: torch.Tensor) -> None:
    held = getattr(module, name, None)
    if not isinstance(held, torch.Tensor) or held.shape != value.shape:
        raise IllegalFusionError(f"its {name} is not held as its ops read it")
    if not is_writable(held):
        raise IllegalFusionError(f"its {name} repeats its elements in memory")
    held.copy_(value)


def _agrees(plan: FusionPlan, inputs: Sequence[ForwardTensor], output: int, trial: _Trial) -> bool:
    """Whether an output of the plan is the forward's result, but for the order of sums."""
    given = []
    for item, tensor in zip(plan.inputs, inputs, strict=True):
        spans = plan.along(item)
        shape = [n if along else 1 for n, along in zip(trial.sizes, spans, strict=True)]
        if math.prod(shape) != trial.held[tensor.name].numel():
            return False
        given.append(trial.held[tensor.name].reshape(shape))
    found = evaluate(plan, given, "native")[output]
    want = trial.result
    if found.dtype != want.dtype or found.numel() != want.numel():
        return False
    if not want.dtype.is_floating_point:
        return torch.equal(found.reshape(want.shape), want)
    rows = want.shape[-1] if want.dim() else 1
    wanted, got = (t.reshape(-1, rows).double() for t in (want, found))
    most = MOST_ULPS * torch.finfo(want.dtype).eps * wanted.abs().amax(1, keepdim=True)
    return bool(((wanted - got).abs() <= most).all())
