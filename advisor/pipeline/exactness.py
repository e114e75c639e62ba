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

from advisor.apply.judge import outputs_agree
from advisor.pipeline.instances import Instances
from advisor.pipeline.likeness import (
    COMPARABLE,
    NOISE,
    Agreement,
    Results,
    differences,
    epsilon_of,
    held,
    noise_of,
)
from advisor.pipeline.peers import Peers, all_say, together, tried


def against_exact(instances: Instances, results: Results, peers: Peers) -> Agreement | None:
    """Ours beside eager's and the compiler's, all against a copy in a wider type.

    None where the workload is no module, where a copy does not give eager's results again, from the
    state that the workload is in or from the one it began in, or where the wider one is another
    computation. Of several ranks all make it or none.
    """
    for begun in (False, True):
        again = tried(partial(together, peers, "the step again", partial(instances.again, begun)))
        if not all_say(peers, "it is the same", again is not None and _same(again, results)):
            continue
        exact = tried(partial(together, peers, "more exactly", partial(instances.exactly, begun)))
        found = None if exact is None else beside_exact(results, *exact)
        return found if all_say(peers, "it says something", found is not None) else None
    return None


def _same(again: Sequence[torch.Tensor], results: Results) -> bool:
    """Whether results of a copy are eager's, but for what differs from run to run."""
    found = held("eager", again, results.eager, results.plain)
    return not found.note and outputs_agree(found.error, found.baseline, found.epsilon)


def beside_exact(
    results: Results, exact: Sequence[torch.Tensor], kind: torch.dtype
) -> Agreement | None:
    """The result of ours that is furthest off for what others make of it, from `exact` in `kind`.

    Each is held against the same one of eager and of the compiler: one that rounds badly excuses
    no other. In a norm a few wrong elements of many are lost: of each result the element that is
    furthest off is held against theirs as well. None where `exact` is not eager's, rounded
    otherwise.
    """
    truth = [_widened(tensor) for tensor in exact]
    runs = [[_widened(tensor) for tensor in one] for one in results]
    eager, plain, mine = (differences(one, truth) for one in runs)
    own = list(map(max, eager, plain))
    noise = noise_of(own)
    if noise is None or not all(map(math.isfinite, own)):
        return None
    epsilon = epsilon_of(results.eager)
    kept = [n for n, gap in enumerate(mine) if n not in noise or not gap <= NOISE * own[n]]
    worst = max(kept, key=lambda n: mine[n] / max(own[n], epsilon), default=None)
    error, baseline = (0.0, 0.0) if worst is None else (mine[worst], own[worst])
    found = Agreement(f"a {str(kind).removeprefix('torch.')} run", error, baseline, epsilon)
    if not outputs_agree(error, baseline, epsilon):
        return found
    for number in kept:
        *others, peak = (_peak(one[number], truth[number]) for one in runs)
        if peak > NOISE * max(*others, epsilon):
            return Agreement(f"an element of {found.reference}", peak, max(others), epsilon)
    return found


def _peak(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference of an element over the largest element, of those that are finite."""
    finite = exact.isfinite()
    if not bool(finite.any()) or not (exact.is_floating_point() or exact.is_complex()):
        return 0.0
    gap = float((ours - exact)[finite].abs().max())
    size = float(exact[finite].abs().max())
    return gap / size if size else gap


def may_be_rounding(found: Agreement | None) -> bool:
    """Whether results differ by little enough for an exacter run to decide."""
    return found is not None and not found.note and found.error <= COMPARABLE


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """In the widest type of its sort, in which results of several types are compared."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor
