"""A recipe: everything that tells one way to run a step from another, as data.

An application tries changes one by one; what it keeps is again a recipe, which is what
`advisor.load(RUN).apply(model)` and the `fusion_advisor` backend follow.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from advisor.apply.kernels import ReadyKernel
from advisor.model.actions import REPLACES, ActionKind
from advisor.model.cures import Retuned, Split

# Inductor's settings by action: what `torch.compile(mode=...)` would set.
SETTINGS: dict[ActionKind, tuple[tuple[str, Any], ...]] = {
    "cuda_graph": (("triton.cudagraphs", True),),
    "autotune": (
        ("max_autotune", True),
        ("coordinate_descent_tuning", True),
        # Candidates are compiled by threads, all at once. A process of Inductor's pool (torch 2.11)
        # leaves them under other cache keys: each was compiled again, alone, when it was timed.
        ("compile_threads", 1),
    ),
}
# Changes to the module, its inputs or its optimizer: they need an instance of their own.
ON_MODEL: tuple[ActionKind, ...] = (
    "fold_batch_norm",
    "channels_last",
    "fused_optimizer",
    "multi_tensor",
)
# Ways to run what the compiler made of the graphs.
ON_RUNNING: tuple[ActionKind, ...] = ("cuda_graph", "step_graph", "autotune")
# Changes to the graphs that Dynamo hands to the compiler.
ON_GRAPH: tuple[ActionKind, ...] = ("attention", "flex_attention", "chunked_loss")


@dataclass(frozen=True)
class Recipe:
    """Actions beside generated kernels; the empty recipe is `torch.compile` with its defaults.

    `with_loss`: a training step's model and loss are compiled as one function.
    """

    actions: tuple[ActionKind, ...] = ()
    kernels: tuple[ReadyKernel, ...] = ()
    splits: tuple[Split, ...] = ()
    retuned: tuple[Retuned, ...] = ()
    with_loss: bool = False

    def with_action(self, kind: ActionKind) -> Recipe:
        """The recipe and one more action, which takes the place of the one that it replaces."""
        others = tuple(item for item in self.actions if item != REPLACES.get(kind))
        return replace(self, actions=(*others, kind))

    def without(self, kinds: tuple[ActionKind, ...]) -> Recipe:
        """The recipe less some actions."""
        return replace(self, actions=tuple(kind for kind in self.actions if kind not in kinds))

    def with_kernels(self, kernels: tuple[ReadyKernel, ...]) -> Recipe:
        """The recipe with other kernels."""
        return replace(self, kernels=kernels)

    def with_cures(
        self, splits: tuple[Split, ...] = (), retuned: tuple[Retuned, ...] = ()
    ) -> Recipe:
        """The recipe and more that the compiler is told of its own kernels."""
        return replace(self, splits=self.splits + splits, retuned=self.retuned + retuned)

    def compiled_with_loss(self, with_loss: bool = True) -> Recipe:
        """The recipe, whose model is compiled together with its loss if that is asked for."""
        return replace(self, with_loss=self.with_loss or with_loss)

    @property
    def on_model(self) -> tuple[ActionKind, ...]:
        """The actions that change the model, in the order of `ON_MODEL`."""
        return tuple(kind for kind in ON_MODEL if kind in self.actions)

    @property
    def whole_step_graph(self) -> bool:
        """Whether the whole step is one CUDA graph."""
        return "step_graph" in self.actions

    @property
    def settings(self) -> dict[str, Any]:
        """Inductor's options."""
        return {name: value for kind in self.actions for name, value in SETTINGS.get(kind, ())}

    def name(self) -> str:
        """A label that no other recipe has."""
        told = [repr(item) for item in (*self.splits, *self.retuned)]
        digest = [hashlib.sha256("".join(told).encode()).hexdigest()[:12]] if told else []
        whole = ["with_loss"] if self.with_loss else []
        kernels = [kernel.plan.id for kernel in self.kernels]
        return "+".join((*self.actions, *whole, *kernels, *digest)) or "unchanged"


UNCHANGED = Recipe()
