"""Which optimizers have a kernel, what it reads of their groups, and why others have none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch

Kind = Literal["adam", "sgd", "lion"]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Rule:
    """One update rule; `decoupled` takes weight decay off the parameter, as AdamW does."""

    kind: Kind
    decoupled: bool = False

    @property
    def counts(self) -> bool:
        """Whether its state counts steps."""
        return self.kind == "adam"

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The tensors of a parameter's state, in the order of the table's columns."""
        if self.kind == "sgd":
            return ("momentum_buffer",) if group["momentum"] else ()
        if self.kind == "lion":
            return ("exp_avg",)
        names = ("exp_avg", "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if group["amsgrad"] else names

    def tensor_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """All that a step needs of a parameter's state: its tensors, and the count of steps."""
        names = self.state_names(group)
        return (*names, "step") if self.counts else names

    def launch(
        self,
        group: dict[str, Any],
        table: torch.Tensor,
        chunks: torch.Tensor,
        *,
        dtypes: Sequence[torch.dtype],
        **options: Any,
    ) -> None:
        """One launch for all parameters of a table."""
        import triton.language as tl

        from advisor.apply.model import update_kernels

        spelled = [getattr(tl, str(dtype).removeprefix("torch.")) for dtype in dtypes]
        names = ("parameters", "gradients", "states")
        options |= dict(zip(names, spelled, strict=True))
        options |= {"fields": update_kernels.FIELDS, "maximize": bool(group.get("maximize"))}
        rate = group["lr"]
        in_memory = isinstance(rate, torch.Tensor) and rate.device == table.device
        rate = rate if in_memory else float(rate)
        grid = (chunks.numel() // 2,)
        options |= {"rate_in_memory": in_memory}
        numbers, switches = self._settings(group)
        kernel = getattr(update_kernels, self.kind)
        kernel[grid](table, chunks, rate, *numbers, **switches, **options)

    def _settings(self, group: dict[str, Any]) -> tuple[tuple[float, ...], dict[str, bool]]:
        """What the kernel of a rule takes after the rate, in its order, and what it compiles in."""
        decay = float(group["weight_decay"])
        if self.kind == "sgd":
            momentum, fresh = float(group["momentum"]), 1.0 - float(group["dampening"])
            switches = {"has_momentum": bool(momentum), "nesterov": bool(group["nesterov"])}
            return (momentum, fresh, decay), switches
        betas = tuple(float(beta) for beta in group["betas"])
        shares = (*betas, *(1.0 - beta for beta in betas))
        if self.kind == "lion":
            return (*shares, decay), {}
        logarithms = (math.log(beta) if beta else -math.inf for beta in betas)
        decoupled = self.decoupled or bool(group.get("decoupled_weight_decay"))
        switches = {"decoupled": decoupled, "amsgrad": bool(group["amsgrad"])}
        return (*logarithms, *shares, float(group["eps"]), decay), switches


RULES: dict[type[torch.optim.Optimizer], Rule] = {
    torch.optim.AdamW: Rule("adam", decoupled=True),
    torch.optim.Adam: Rule("adam"),
    torch.optim.SGD: Rule("sgd"),
}
# Optimizers of other packages, which need not be there, by the full name of their type.
RULES_BY_NAME = {
    "lion_pytorch.lion_pytorch.Lion": Rule("lion"),
    "timm.optim.lion.Lion": Rule("lion"),
}


def rule_of(optimizer: torch.optim.Optimizer) -> Rule | str:
    """The rule of an optimizer, or why its steps stay its own."""
    kind = type(optimizer)
    name = kind.__name__
    rule = RULES.get(kind) or RULES_BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
    if rule is None:
        return f"there is no kernel for the update of {name}"
    # Schedulers of learning rates wrap the step to see it called, and mark what they wrapped.
    replaced = optimizer.__dict__.get("step")
    if replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched"):
        return f"the step of this {name} was replaced by something else"
    return unfit(rule, optimizer) or rule


def unfit(rule: Rule, optimizer: torch.optim.Optimizer) -> str | None:
    """Why an optimizer's groups and parameters are not as its rule needs them, if they are not."""
    name = type(optimizer).__name__
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not parameters:
        return f"{name} has no parameters"
    if getattr(optimizer, "decoupled_wd", False):
        return f"the weight decay of this {name} is a share of its first learning rate"
    if len({parameter.device for parameter in parameters}) > 1:
        return "its parameters are on several devices"
    if _overlap(parameters):
        return "parameters share memory: one is updated from what the update of the other left"
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return f"{name} is differentiable: a kernel is not"
        if group.get("caution"):
            return f"{name} is cautious: its kernel takes every element of an update"
        if rule.kind != "sgd" and any(isinstance(b, torch.Tensor) for b in group["betas"]):
            return "its betas are tensors"
    for parameter in parameters:
        if type(parameter) not in (torch.nn.Parameter, torch.Tensor):
            return f"a parameter is a {type(parameter).__name__}, which holds shards of its own"
        if parameter.dtype not in FLOATS or parameter.is_sparse:
            return f"a parameter is {parameter.dtype} or sparse"
        if torch.empty_like(parameter, device="meta").stride() != parameter.stride():
            return "a parameter has gaps in memory"
    return None


def _overlap(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether two parameters hold the same elements, each taken to have no gaps."""
    spans = sorted((p.data_ptr(), p.data_ptr() + p.nbytes) for p in parameters if p.numel())
    return any(end > begin for (_, end), (begin, _) in pairwise(spans))
