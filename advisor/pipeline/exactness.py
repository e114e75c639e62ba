"""Results judged by a copy that computes more exactly, where other runs do not settle it.

Eager and the compiler call the same library and add up in the same order, so that both make the
same error and are nearer to each other than to the truth: a gradient that is a sum over 16,384 rows
in float32, one after the other, is off by 2e-6 in both, where pieces of 2,048 rows added up are off
by 4e-7. What adds up in another order differs from eager by eager's own error. So it is held to
what eager is held to: to be near to what the step is in a wider type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from advisor.errors import AbortedError, AdvisorError
from advisor.pipeline.instances import Instances
from advisor.pipeline.likeness import (
    NOISE,
    TINY,
    Agreement,
    Results,
    differences,
    epsilon_of,
    floors_of,
    held,
    named,
    noise_of,
)
from advisor.pipeline.peers import Peers, all_say, together, tried
from advisor.pipeline.votes import objection

NO_MODULE = "the step is no module that a wider type could be given to"
NOT_AGAIN = "a copy of the workload does not give eager's results again"
OTHER = "in a wider type the step computes something else"


def against_exact(instances: Instances, results: Results, peers: Peers) -> Agreement | str:
    """Ours beside eager's and the compiler's, all against a copy in a wider type.

    A text says why there is no such copy: where the workload is no module, where a copy does not
    give eager's results again, from the state that the workload is in or from the one it began in,
    where the wider one is another computation or fails. Of several ranks all make it or none.
    """
    for begun in (False, True):
        again = tried(partial(together, peers, "the step again", partial(instances.again, begun)))
        if all_say(peers, "it is the same", again is not None and _same(again, results)):
            return _beside_a_copy(instances, begun, results, peers)
    return NOT_AGAIN


def _beside_a_copy(
    instances: Instances, begun: bool, results: Results, peers: Peers
) -> Agreement | str:
    """The same with a copy from the state it `begun` in or the present one, which is eager's."""

    def compared() -> Agreement | str:
        exact = instances.exactly(begun)
        return NO_MODULE if exact is None else beside_exact(results, *exact)

    try:
        found = together(peers, "more exactly", compared)
    except AbortedError:
        raise
    except AdvisorError as error:  # a wider copy may have no room on the device
        return error.line()
    return objection(peers, "it says nothing", found if isinstance(found, str) else "") or found


def _same(again: Sequence[torch.Tensor], results: Results) -> bool:
    """Whether results of a copy are eager's, but for what differs from run to run."""
    return held("eager", again, results.eager, results.plain).agrees


def beside_exact(
    results: Results, exact: Sequence[torch.Tensor], kind: torch.dtype
) -> Agreement | str:
    """The result of ours that is furthest off for what others make of it, from `exact` in `kind`.

    Each is held against the same one of eager and of the compiler: one that rounds badly excuses
    no other, and none is excused by another's coarser dtype. In a norm a few wrong elements of many
    are lost: of each result the element that is furthest off is held against theirs as well. A text
    where `exact` is not eager's, rounded otherwise.
    """
    truth = [_widened(tensor) for tensor in exact]
    runs = [[_widened(tensor) for tensor in one] for one in results]
    eager, plain, mine = (differences(one, truth) for one in runs)
    own = list(map(max, eager, plain))
    noise = noise_of(own)
    if noise is None or not all(map(math.isfinite, own)):
        return OTHER
    noise |= {n for n, values in enumerate(truth) if not values.any()}
    kept = [n for n, gap in enumerate(mine) if n not in noise or not gap <= NOISE * own[n]]
    floors = floors_of(results.eager, own, noise)
    reference = f"a {str(kind).removeprefix('torch.')} run"
    worst = max(kept, key=lambda n: mine[n] / max(own[n], floors[n], TINY), default=None)
    epsilon = epsilon_of(results.eager)
    if worst is None:
        return Agreement(reference, 0.0, 0.0, epsilon)

    def told(of: str, number: int, error: float, baseline: float) -> Agreement:
        figures, result = (error, baseline, epsilon), named(results.eager, number)
        return Agreement(of, *figures, result=result, floor=floors[number])

    found = told(reference, worst, mine[worst], own[worst])
    if not found.agrees:
        return found
    for number in kept:
        *others, peak = (_peak(one[number], truth[number]) for one in runs)
        if peak > NOISE * max(*others, floors[number]):
            return told(f"an element of {reference}", number, peak, max(others))
    return found


def _peak(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference of an element over the largest element, of those that are finite."""
    finite = exact.isfinite()
    if not bool(finite.any()) or not (exact.is_floating_point() or exact.is_complex()):
        return 0.0
    gap = float((ours - exact)[finite].abs().max())
    size = float(exact[finite].abs().max())
    return gap / size if size else gap


def may_be_rounding(found: Agreement | None, results: Results) -> bool:
    """Whether results differ by little enough for an exacter run to decide.

    Few of many may differ by more: eager and the compiler make the same error in what is 0 but for
    rounding, so that it looks like a result.
    """
    near = noise_of(differences(results.ours, results.eager))
    return found is not None and not found.note and near is not None


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """In the widest type of its sort, in which results of several types are compared."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor
