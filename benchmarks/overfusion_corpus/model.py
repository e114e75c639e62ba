"""What a case of the corpus is: a declared record, and a builder of two ways to compute the same.

`fused` is one kernel (or the compiler's choice), `members` what it replaced. Everything that a case
varies within its family is ONE knob; the neutral value of the knob is a sibling in the same family.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from advisor.model.base import Record
from advisor.model.overfusion import Cause, Scalar
from advisor.verify.resources import ResourceRequest

Engine = Literal["triton", "inductor", "library"]
Setting = int | float | bool | str
Tensors = tuple[torch.Tensor, ...]
Run = Callable[[], Tensors]


class Case(Record, frozen=True, kw_only=True):
    """One point of a family's sweep.

    `cause` is what the family plants: true of the case only if it loses and its sibling at
    `neutral` does not. `neutral` None: the fusion itself is the knob. `cause` None: nothing was
    planted, the case can only be told to lose or not.
    """

    id: str
    family: str
    engine: Engine
    cause: Cause | None
    knob: str
    value: Setting
    neutral: Setting | None
    sizes: dict[str, Setting]

    @property
    def group(self) -> str:
        """Siblings share it: the family and everything but the knob."""
        sizes = " ".join(f"{k}={v}" for k, v in sorted(self.sizes.items()) if k != self.knob)
        return f"{self.family} {sizes}"


@dataclass(frozen=True)
class Family:
    """Cases that differ in one knob (and in shape).

    `sweep` holds (sizes, values of the knob); `small` are sizes at which an interpreter takes
    seconds. `tolerance` is the largest error of a result relative to its largest value.
    """

    name: str
    engine: Engine
    cause: Cause | None
    knob: str
    neutral: Setting | None
    build: Callable[[Scope, Mapping[str, Any]], Pair]
    sweep: Sequence[tuple[Mapping[str, Setting], Sequence[Setting]]]
    why: str
    small: Mapping[str, Setting] = field(default_factory=dict)
    tolerance: float = 0.02

    def cases(self) -> list[Case]:
        """Every point of the sweep; in each group the first, then the neutral one."""
        return [
            self._case(sizes, value)
            for sizes, (first, *others) in self.sweep
            for value in (first, *sorted(others, key=lambda value: value != self.neutral))
        ]

    def _case(self, sizes: Mapping[str, Setting], value: Setting) -> Case:
        all_sizes = {**sizes, self.knob: value}
        words = "-".join(_word(v) for v in sizes.values())
        return Case(
            id="-".join(filter(None, (self.name, words, f"{self.knob}{_word(value)}"))),
            family=self.name,
            engine=self.engine,
            cause=self.cause,
            knob=self.knob,
            value=value,
            neutral=self.neutral,
            sizes=all_sizes,
        )


def _word(value: Setting) -> str:
    return str(value).replace(".", "p").replace("-", "m")


@dataclass(frozen=True)
class Pair:
    """Two ways to the same results; `moved_bytes` are external inputs and outputs, each once.

    `concurrent` says that the order on the GPU is part of the case (streams, copies): counters,
    which run one kernel at a time, then say nothing.
    """

    fused: Run
    members: Run
    moved_bytes: int
    concurrent: bool = False


class Launch(Record, frozen=True, kw_only=True):
    """One launch of a kernel of this corpus: what to compile, and how many programs ran."""

    request: ResourceRequest
    programs: int


@dataclass
class Scope:
    """Where a case runs. On `meta` nothing does: launches are only written down in `log`."""

    device: torch.device
    seed: int = 0
    log: list[Launch] | None = None

    @property
    def dry(self) -> bool:
        """True if there is no data."""
        return self.device.type == "meta"

    def random(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Standard normal values (integers: 0 to 199)."""
        if self.dry:
            return torch.empty(shape, dtype=dtype, device=self.device)
        self.seed += 1
        make = torch.Generator(device=self.device).manual_seed(self.seed)
        if not dtype.is_floating_point:
            return torch.randint(0, 200, shape, generator=make, device=self.device, dtype=dtype)
        return torch.randn(shape, generator=make, device=self.device, dtype=dtype)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Room for a result."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        *args: torch.Tensor | int | float,
        num_warps: int = 4,
        num_stages: int = 3,
        max_registers: int | None = None,
        **constants: Scalar,
    ) -> None:
        """Launch a Triton kernel: run-time arguments by position, constants by name."""
        if self.log is not None:
            request = _request(kernel, args, constants, num_warps, num_stages, max_registers)
            self.log.append(Launch(request=request, programs=math.prod(grid)))
        if self.dry:
            return
        options: dict[str, Any] = {"num_warps": num_warps, "num_stages": num_stages}
        if max_registers is not None:
            options["maxnreg"] = max_registers
        kernel[grid](*args, **constants, **options)

    def launches(self, run: Run) -> tuple[Launch, ...]:
        """What one run launches of this corpus's kernels."""
        self.log = []
        run()
        found, self.log = tuple(self.log), None
        return found


def _request(
    kernel: Any,
    args: Sequence[torch.Tensor | int | float],
    constants: Mapping[str, Scalar],
    num_warps: int,
    num_stages: int,
    max_registers: int | None,
) -> ResourceRequest:
    """The launch as Triton specialises it: divisible by 16, and integers of 1 as constants."""
    names = list(inspect.signature(kernel.fn).parameters)
    signature, aligned, fixed = {}, [], dict(constants)
    for name, value in zip(names, args, strict=False):
        if isinstance(value, torch.Tensor):
            signature[name] = f"*{_TYPES[value.dtype]}"
            if value.storage_offset() * value.element_size() % 16 == 0:
                aligned.append(name)
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1:
            fixed[name] = 1
        else:
            signature[name] = "i32" if value < 1 << 31 else "i64"
            if value % 16 == 0:
                aligned.append(name)
    return ResourceRequest(
        source=str(inspect.getsourcefile(kernel.fn)),
        kernel=kernel.fn.__name__,
        signature=signature,
        constexprs=fixed,
        aligned=tuple(aligned),
        num_warps=num_warps,
        num_stages=num_stages,
        max_registers=max_registers,
    )


_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.int8: "i8",
}

_OPS = torch.library.Library("fused_ops", "DEF")
_RUNNING: dict[str, Callable[[], None]] = {}
_DEFINED: set[str] = set()


def as_op(
    name: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    run: Callable[[], None],
) -> Run:
    """`run` as a registered op, as libraries of kernels do it: traces then hold its shapes.

    The op of a name is the one built last; a case builds each once.
    """
    overload = f"{name}_{len(inputs)}_{len(outputs)}"
    if overload not in _DEFINED:
        given = [f"Tensor x{i}" for i in range(len(inputs))]
        given += [f"Tensor({'abcdefgh'[i]}!) y{i}" for i in range(len(outputs))]
        _OPS.define(f"{overload}({', '.join(given)}) -> ()")
        _OPS.impl(overload, lambda *_: _RUNNING[overload](), "CompositeExplicitAutograd")
        _DEFINED.add(overload)
    _RUNNING[overload] = run
    call, results = getattr(torch.ops.fused_ops, overload), tuple(outputs)

    def fused() -> Tensors:
        call(*inputs, *outputs)
        return results

    return fused


def release() -> None:
    """Let go of the tensors of the case built last: its ops cannot be called any more."""
    _RUNNING.clear()


def size_of(*tensors: torch.Tensor) -> int:
    """Bytes of the elements of all."""
    return sum(t.numel() * t.element_size() for t in tensors)


DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "uint8": torch.uint8,
}
