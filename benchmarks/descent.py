"""Coordinate descent: how the benchmarks fit the constants of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def descended(
    values: Mapping[str, float],
    loss: Callable[[dict[str, float]], float],
    step: float = 0.1,
) -> dict[str, float]:
    """The values of least loss: each is made larger or smaller by `step` in turn, which is halved
    where neither helps, down to a hundredth.
    """
    found = dict(values)
    steps = dict.fromkeys(found, step)
    best = loss(found)
    while max(steps.values()) > 0.01:
        for name, width in list(steps.items()):
            for factor in (1 + width, 1 / (1 + width)):
                tried = {**found, name: found[name] * factor}
                now = loss(tried)
                if now < best - 1e-6:
                    best, found = now, tried
                    break
            else:
                steps[name] *= 0.5
    return found
