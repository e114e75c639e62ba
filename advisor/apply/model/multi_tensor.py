"""An optimizer's step by kernels of ours: one launch for all parameters alike.

The optimizer stays what it is: its groups, its state and its hooks are its own, `state_dict` too.
Only its arithmetic is done elsewhere, once every parameter has state, which its own first step
makes, in the manner (foreach, fused) that it has. Where something is not as the kernel needs it,
its own step is done.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import increment_version

from advisor.apply.model.optimizer import align_state, device_counts, own_counts
from advisor.apply.model.update_rules import Rule, rule_of, unfit

# Gradients come to lie in the same few sets of places; each set has its tables. Where other
# parameters have gradients in every step, sets of sizes are many too.
MOST_PLACES, MOST_DIVISIONS = 4, 16
# Elements of one program, where there are enough of them for every multiprocessor of any GPU.
LARGE_CHUNK, SMALL_CHUNK, MANY_PROGRAMS = 8192, 1024, 4096
BLOCK, WARPS = 1024, 4
ALIGNMENT = 16
_BEFORE = "_step_before_kernels"


@dataclass
class _Bucket:
    """The parameters of one group with the same dtypes: what one launch updates."""

    parameters: list[torch.Tensor] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Launch:
    """One launch: the number of its group, dtypes of parameters, gradients, state; its tables."""

    group: int
    dtypes: tuple[torch.dtype, ...]
    table: torch.Tensor
    chunks: torch.Tensor
    chunk: int
    aligned: bool
    counts: list[torch.Tensor]
    written: list[torch.Tensor]


class MultiTensorStep:
    """Does the steps of one optimizer; tables are made anew when something moved in memory."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        # By the places of everything, the newest last.
        self._made: dict[tuple[Any, ...], list[_Launch]] = {}
        # How sizes are divided among programs does not depend on where things lie.
        self._divided: dict[tuple[tuple[int, ...], torch.device], tuple[torch.Tensor, int]] = {}
        # Where and how the parameters lay that were last found fit.
        self._known: list[Any] | None = None
        self._launches: list[_Launch] = []
        # What a captured graph reads at every replay must stay where it is.
        self._captured: list[_Launch | torch.Tensor] = []
        self._staging: torch.Tensor | None = None

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """One step of all groups; False where the optimizer has to do it itself."""
        if not self._prepared(optimizer):
            self._launches = []
            self._made.clear()
            return False
        self._keep()
        for launch in self._launches:
            if launch.counts:
                torch._foreach_add_(launch.counts, 1)
            if not launch.chunks.numel():  # all of its parameters are empty
                continue
            self.rule.launch(
                optimizer.param_groups[launch.group],
                launch.table,
                launch.chunks,
                dtypes=launch.dtypes,
                chunk=launch.chunk,
                block=min(BLOCK, launch.chunk),
                aligned=launch.aligned,
                num_warps=WARPS,
            )
            # Autograd has to notice what was written between a forward and its backward.
            increment_version(launch.written)
        return True

    def _prepared(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether there is a launch for everything as it now lies; makes those that are missing."""
        places = self._found(optimizer)
        if places is None:
            return False
        if (made := self._made.get(tuple(places))) is not None:
            self._launches = made
            return True
        if not self._fits(optimizer):
            return False
        if self.rule.counts:
            device_counts(optimizer)
            places = self._found(optimizer) or []
        self._launches = [
            self._launch(number, dtypes, bucket, group)
            for number, group in enumerate(optimizer.param_groups)
            for dtypes, bucket in self._buckets(optimizer, group).items()
        ]
        # Tables of a capture are filled by its replays only: no other step may count on them.
        if not _is_captured(self._launches):
            self._made[tuple(places)] = self._launches
            for oldest in list(self._made)[:-MOST_PLACES]:
                del self._made[oldest]
        return True

    def _found(self, optimizer: torch.optim.Optimizer) -> list[Any] | None:
        """Where and how everything lies that a step reads or writes; None where it does its own.

        At the address of a gradient may lie one with other strides the next time, for it is freed
        in between; what a step of ours writes is kept by its launches. Sizes of groups say to which
        of them a parameter belongs. The host does this in every step: nothing else may be done for
        every parameter.
        """
        found: list[Any] = []
        for group in optimizer.param_groups:
            names = self.rule.tensor_names(group)
            found.append(len(group["params"]))
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    found.append(0)
                    continue
                if gradient.is_sparse or gradient.is_neg():  # memory holds something else
                    return None
                found += (parameter.data_ptr(), parameter.stride())
                found += (gradient.data_ptr(), gradient.stride(), gradient.dtype)
                if not names:
                    continue
                state = optimizer.state[parameter]
                for name in names:
                    value = state.get(name)
                    if value is None:
                        return None
                    found.append(value.data_ptr())
        return found

    def _fits(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether parameters, gradients and state are still as the kernels need them.

        Parameters may have been added, or state loaded that another optimizer saved: its counts of
        steps may be of another type. Those on the host are moved.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        lying = [(p.data_ptr(), p.stride(), p.dtype) for p in parameters]
        if lying != self._known:
            if unfit(self.rule, optimizer) is not None:
                return False
            self._known = lying
        for group in optimizer.param_groups:
            names = self.rule.state_names(group)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = optimizer.state[parameter] if names else {}
                moments = [state[name] for name in names]
                if any(_lies_otherwise(t, parameter) for t in (parameter.grad, *moments)):
                    return False
                if len({moment.dtype for moment in moments}) > 1:  # a kernel reads all as one type
                    return False
                if self.rule.counts and state["step"].dtype != torch.float32:
                    return False
        return True

    def _buckets(
        self, optimizer: torch.optim.Optimizer, group: dict[str, Any]
    ) -> dict[tuple[torch.dtype, ...], _Bucket]:
        found: dict[tuple[torch.dtype, ...], _Bucket] = {}
        names = self.rule.state_names(group)
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter] if names else {}
            held = state[names[0]].dtype if names else parameter.dtype
            bucket = found.setdefault((parameter.dtype, parameter.grad.dtype, held), _Bucket())
            bucket.parameters.append(parameter)
            bucket.states.append(state)
        return found

    def _rows(self, bucket: _Bucket, group: dict[str, Any]) -> list[tuple[int, ...]]:
        """A row of the table per parameter: addresses, 0 where there is nothing, and the size."""
        names = self.rule.state_names(group)
        rows = []
        for parameter, state in zip(bucket.parameters, bucket.states, strict=True):
            assert parameter.grad is not None
            moments = [state[name].data_ptr() for name in names]
            moments += [0] * (3 - len(moments))
            count = state["step"].data_ptr() if self.rule.counts else 0
            own = (parameter.data_ptr(), parameter.grad.data_ptr())
            rows.append((*own, *moments, count, parameter.numel()))
        return rows

    def _launch(
        self,
        number: int,
        dtypes: tuple[torch.dtype, ...],
        bucket: _Bucket,
        group: dict[str, Any],
    ) -> _Launch:
        rows, device = self._rows(bucket, group), bucket.parameters[0].device
        chunks, chunk = self._division(tuple(row[-1] for row in rows), device)
        return _Launch(
            group=number,
            dtypes=dtypes,
            table=self._uploaded(
                torch.tensor(rows, dtype=torch.int64, device="cpu").flatten(), device
            ),
            chunks=chunks,
            chunk=chunk,
            aligned=all(address % ALIGNMENT == 0 for row in rows for address in row[:-2]),
            counts=[state["step"] for state in bucket.states] if self.rule.counts else [],
            written=[
                *bucket.parameters,
                *(state[name] for name in self.rule.state_names(group) for state in bucket.states),
            ],
        )

    def _division(self, sizes: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, int]:
        """(row, number of the part) of every program, int32[programs * 2]; elements of a part."""
        if (sizes, device) in self._divided:
            return self._divided[sizes, device]
        chunk = LARGE_CHUNK if sum(sizes) // LARGE_CHUNK >= MANY_PROGRAMS else SMALL_CHUNK
        counts = [-(-size // chunk) for size in sizes]
        parts = torch.tensor(counts, dtype=torch.int64, device="cpu")
        rows = torch.repeat_interleave(parts)
        firsts = (parts.cumsum(0) - parts).repeat_interleave(parts)
        pairs = torch.stack([rows, torch.arange(len(rows), device="cpu") - firsts], 1).flatten()
        made = self._uploaded(pairs.to(torch.int32), device), chunk
        if not _is_capturing(device):
            self._divided[sizes, device] = made
            for oldest in list(self._divided)[:-MOST_DIVISIONS]:
                del self._divided[oldest]
        return made

    def _keep(self) -> None:
        """During a capture, keep what it reads; else have memory for the tables of the next one."""
        if _is_captured(self._launches):
            self._captured += self._launches
        elif any(launch.table.is_cuda for launch in self._launches):
            self._reserve()

    def _reserve(self) -> None:
        """Pinned memory enough to make all tables anew while a graph is captured."""
        held = [tensor for one in self._launches for tensor in (one.table, one.chunks)]
        needed = sum(tensor.nbytes + ALIGNMENT for tensor in held)
        if self._staging is None or self._staging.numel() < needed:
            self._staging = torch.empty(2 * needed, dtype=torch.uint8, pin_memory=True)

    def _uploaded(self, made: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Numbers on the device; while a graph is captured, from memory that stays for its replays.

        Pinned memory for that is taken before: none may be allocated during a capture.
        """
        if device.type != "cuda":
            return made
        if not _is_capturing(device):
            return made.to(device)
        if self._staging is None or self._staging.numel() < made.nbytes:
            raise RuntimeError("the optimizer has to take a step before it is captured")
        source, self._staging = (
            self._staging[: made.nbytes].view(made.dtype),
            self._staging[-(-made.nbytes // ALIGNMENT) * ALIGNMENT :],
        )
        source.copy_(made)
        self._captured.append(source)
        return source.to(device, non_blocking=True)


def _lies_otherwise(tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether kernels would take other elements of a tensor than the parameter's."""
    return (tensor.stride(), tensor.shape, tensor.device) != (
        parameter.stride(),
        parameter.shape,
        parameter.device,
    )


def _is_captured(launches: Sequence[_Launch]) -> bool:
    return any(_is_capturing(launch.table.device) for launch in launches)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def use_multi_tensor(optimizer: torch.optim.Optimizer) -> str | None:
    """Let an optimizer's steps be done by kernels of ours; the reason if they cannot.

    `own_step` takes them out again.
    """
    rule = rule_of(optimizer)
    if isinstance(rule, str):
        return rule
    align_state(optimizer)
    # A gradient scaler would hand its factor to a step that is known to take it.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    ours = MultiTensorStep(rule)
    own: Callable[..., Any] = type(optimizer).step

    def updated(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        self._opt_called = True  # type: ignore[attr-defined]  # for schedulers of learning rates
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            done = ours.step(self)
        if not done:
            own_counts(self)
            undecorated = getattr(own, "__wrapped__", own)
            undecorated(self)
        return loss

    hooked = torch.optim.Optimizer.profile_hook_step(updated)
    optimizer.__dict__[_BEFORE] = optimizer.__dict__.get("step")
    optimizer.step = types.MethodType(hooked, optimizer)  # type: ignore[method-assign]
    return None


def is_multi_tensor(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer's step is one launch of ours."""
    return _BEFORE in optimizer.__dict__


def own_step(optimizer: torch.optim.Optimizer) -> None:
    """Take the kernels out: the optimizer does its own steps again, from the state it has."""
    if not is_multi_tensor(optimizer):
        return
    before = optimizer.__dict__.pop(_BEFORE)
    optimizer.__dict__.pop("step", None)
    if before is not None:
        optimizer.__dict__["step"] = before
    own_counts(optimizer)
