"""Whether a step trains like eager's: losses of several steps beside those of an exacter run.

Three fresh copies of the workload start from the same weights and random numbers. The reference
runs in float32, that of a step in float32 in float64; eager's own distance from it says how much
rounding moves these losses. Where ours go further, the compiler's own say whether it is its
rounding: losses of a step in float32 can be three times as far when they are compiled. Where losses
depend on random numbers, dropout is off in all. Losses that are not finite, or a reference that
computes something else, say nothing: every distance from them would be as good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch

from advisor.pipeline.peers import Alone, Peers, all_say, together, tried
from advisor.pipeline.references import Reload, undropped, widened, without_dropout
from advisor.pipeline.votes import objection
from collectors.live.random_numbers import seeded
from collectors.live.workload import Part, Step, Workload, tensors

T = TypeVar("T")
STEPS = 20
SEED = 1
# Ours may be as far from the reference as eager or the compiler is, twice over, or one rounding.
TOLERATED = 2.0
# Two runs of eager that differ by more draw random numbers; by less, the order of their sums.
RANDOM = 5e-3
# Rounding moves the first loss, of equal weights, by less: where it is further, the reference is
# not the same computation.
SAME_START = 0.1
DRAWN = "the loss depends on random numbers, which the compiler draws otherwise"
NO_LOSS = "the step returns no loss"
NOT_FINITE = "those of the step as it came are not finite"


@dataclass(frozen=True)
class LossCurves:
    """Losses of `STEPS` steps: eager's, ours, and those of a run in `exact_type`.

    `dropout_off` says that nothing was dropped in any of them; `compiled` are the compiler's
    without what is judged, where eager's did not settle it.
    """

    eager: tuple[float, ...]
    ours: tuple[float, ...]
    reference: tuple[float, ...]
    exact_type: str = "float32"
    dropout_off: bool = False
    compiled: tuple[float, ...] | None = None

    @property
    def divergence(self) -> float:
        """Largest distance of our losses from the reference, relative to its largest loss."""
        return _distance(self.ours, self.reference)

    @property
    def eager_divergence(self) -> float:
        """The same of eager's."""
        return _distance(self.eager, self.reference)

    @property
    def compiled_divergence(self) -> float | None:
        """The same of the compiler's; None where they were not needed."""
        return None if self.compiled is None else _distance(self.compiled, self.reference)

    def agree(self, resolution: float) -> bool:
        """Whether ours stay as near to the reference as others' do, or within `resolution`."""
        own = max(self.eager_divergence, _finite(self.compiled_divergence))
        allowed = max(TOLERATED * own, resolution)
        return math.isfinite(self.divergence) and self.divergence <= allowed


Ours = Callable[[], tuple[Workload, Part]]


def loss_curves(
    reload: Reload,
    ours: Ours,
    peers: Peers | None = None,
    plain: Ours | None = None,
    resolution: float = 0.0,
) -> LossCurves | str:
    """The curves of a training step, or why they say nothing.

    `reload` makes the workload anew from one seed, `ours` does so with what is to be judged: a copy
    and how its part is run; `plain` as the compiler alone runs it, asked for where ours do not
    agree within `resolution` without it. Several ranks train together: each run is made by all or
    by none.
    """
    ranks = peers if peers is not None else Alone()
    first = _eager(reload, ranks)
    dropout_off = False
    if first is not None and first.drawn:
        dropout_off = all_say(ranks, "dropout", without_dropout(reload()) is not None)
        if dropout_off:
            reload, ours = undropped(reload), _undropped_run(ours)
            plain = _undropped_run(plain) if plain is not None else None
            first = tried(lambda: _eager(reload, ranks))
            if first is None:
                return f"{DRAWN}, and without dropout the step does not run"
    if first is None:
        return NO_LOSS
    if first.drawn and _depends_on_seed(reload, first, ranks):
        return DRAWN
    reference, kind = _reference(reload, ranks)
    if reference is None:
        return f"the step does not run in {kind}"
    why = objection(ranks, "the reference", _says_nothing(first, reference, kind))
    if why:
        return why
    found = together(ranks, "losses of ours", lambda: _losses(*ours(), SEED))
    values = found.values if found is not None else ()
    curves = LossCurves(first.values, values, reference.values, kind, dropout_off)
    if plain is None or all_say(ranks, "losses agree", curves.agree(resolution)):
        return curves
    own = together(ranks, "losses of the compiler", lambda: _losses(*plain(), SEED))
    return replace(curves, compiled=own.values if own is not None else None)


class _Losses(NamedTuple):
    """Losses of a run; whether it drew random numbers."""

    values: tuple[float, ...]
    drawn: bool


def _eager(reload: Reload, ranks: Peers) -> _Losses | None:
    """Eager's losses, None if there are none on some rank; drawn if some rank's were."""
    found = together(ranks, "losses of eager", lambda: _losses(reload(), None, SEED))
    if not all_say(ranks, "there is a loss", found is not None) or found is None:
        return None
    return found._replace(drawn=not all_say(ranks, "nothing is drawn", not found.drawn))


def _depends_on_seed(reload: Reload, first: _Losses, ranks: Peers) -> bool:
    again = together(ranks, "losses again", lambda: _losses(reload(), None, SEED + 1))
    alike = again is not None and _distance(again.values, first.values) <= RANDOM
    return not all_say(ranks, "losses are alike", alike)


def _undropped_run(ours: Ours) -> Ours:
    def load() -> tuple[Workload, Part]:
        twin, part = ours()
        return without_dropout(twin) or twin, part

    return load


def _reference(reload: Reload, ranks: Peers) -> tuple[_Losses | None, str]:
    """Losses of a copy that computes more exactly, and in which type; None if some rank cannot."""
    made = tried(lambda: together(ranks, "a wider copy", lambda: _wider(reload)))
    if made is None:
        return None, "a wider type"
    twin, kind = made
    if not all_say(ranks, "it is a module", kind is not None):
        return None, "another type"
    run = tried(lambda: together(ranks, "its losses", lambda: _losses(twin, None, SEED)))
    all_ran = all_say(ranks, "the reference runs", run is not None)
    return run if all_ran else None, str(kind).removeprefix("torch.")


def _wider(reload: Reload) -> tuple[Workload, torch.dtype | None]:
    twin = reload()
    return twin, widened(twin)


def _says_nothing(first: _Losses, reference: _Losses, kind: str) -> str:
    """Why losses as far from the reference as eager's prove nothing; "" if they may."""
    if not all(map(math.isfinite, first.values)):
        return NOT_FINITE
    if not all(map(math.isfinite, reference.values)):
        return f"those of the step in {kind} are not finite"
    apart = abs(first.values[0] - reference.values[0])
    if apart > SAME_START * max(map(abs, reference.values)):
        return f"the step computes something else in {kind}"
    return ""


def _losses(twin: Workload, part: Part | None, seed: int) -> _Losses | None:
    step: Step = twin.step_of(None if part is None else lambda _: part)
    with seeded(twin.device, seed):
        before = _random_state(twin.device)
        found = []
        for _ in range(STEPS):
            values = tensors(step())
            if len(values) != 1 or values[0].numel() != 1:
                return None
            found.append(float(values[0].detach()))
        after = _random_state(twin.device)
    drawn = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return _Losses(tuple(found), drawn)


def _random_state(device: torch.device) -> list[torch.Tensor]:
    """Where PyTorch's generators stand that a step on a device draws from.

    What the host draws from Python's and NumPy's is the same in all runs.
    """
    found = [torch.get_rng_state()]
    return [*found, torch.cuda.get_rng_state(device)] if device.type == "cuda" else found


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def _distance(values: Sequence[float], reference: Sequence[float]) -> float:
    if len(values) != len(reference):
        return math.inf
    scale = max((abs(value) for value in reference), default=0.0) or 1.0
    gaps = [abs(a - b) / scale for a, b in zip(values, reference, strict=True)]
    return math.inf if any(map(math.isnan, gaps)) else max(gaps, default=0.0)
