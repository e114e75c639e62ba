"""The module of a patch that stands for whole forwards: each function a kernel, or None.

None means that something is otherwise than where the kernel was shown to be the forward, and that
the forward goes on as it is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from advisor.codegen.host import torch_argument
from advisor.codegen.layout import INDENT, docstring, statement
from advisor.codegen.operators import operator
from advisor.codegen.row_program import printable
from advisor.errors import IllegalFusionError
from advisor.model.forward import ForwardConstant, WholeForward
from advisor.model.plan import FusionPlan

HEAD = '''"""Kernels in place of whole forwards: `forwards.diff` calls them from modules' source.

Each function gives its kernel's result, or None where anything is otherwise than where the kernel
was shown to be that forward (types, sizes, device, constants): the forward then runs as written, as
it does within torch.func and in forward mode. A warning says so once for each, but for tensors on
another device, under autocast, and in compiled code. They have gradients, but none of gradients.
"""

import importlib
import importlib.util
import os
import warnings

import torch
from torch.autograd.forward_ad import unpack_dual

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
PLAIN = (torch.Tensor, torch.nn.Parameter)
UNUSED = set()


def load(plan_id):
    """A kernel of this package; None where there is no Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module(f".kernels.{plan_id}", __package__)


def fits(tensor, dtype, *shape):
    """Whether a tensor is what a kernel was written for; sizes that are None may be any."""
    return (
        type(tensor) in PLAIN
        and tensor.dtype == dtype
        and tensor.device.type == DEVICE
        and tensor.dim() == len(shape)
        and all(want in (None, size) for size, want in zip(tensor.shape, shape, strict=True))
        and tensor.is_contiguous()
        and (torch.compiler.is_compiling() or not followed(tensor))
    )


def unused(name, tensor, shown):
    """None: the forward runs as written. Said once, where a kernel might have been meant."""
    if torch.compiler.is_compiling() or name in UNUSED or not isinstance(tensor, torch.Tensor):
        return None
    if tensor.device.type != DEVICE or followed(tensor) or torch.is_autocast_enabled(DEVICE):
        return None
    UNUSED.add(name)
    warnings.warn(
        f"{name} is not used, the forward runs as written: the kernel needs Triton, {shown} on "
        f"{DEVICE}, contiguous, and the constants that the module had",
        stacklevel=3,
    )
    return None


def followed(tensor):
    """Whether torch.func or forward mode follows a tensor, for which a kernel has no rule."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return wrapped or unpack_dual(tensor).tangent is not None


def learns(*tensors):
    """Whether a gradient of one of them is wanted."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
'''


def function_name(plan: FusionPlan, forward: WholeForward) -> str:
    """`RMSNorm` of plan 8aa5... as `rms_norm_8aa56fbb`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", forward.type_name)
    return f"{words.lower()}_{plan.id[:8]}"


def forwards_text(found: Sequence[tuple[FusionPlan, WholeForward]]) -> str:
    """The module for all these; raises `IllegalFusionError` where a kernel is no operator."""
    parts = [HEAD]
    for plan_id in dict.fromkeys(plan.id for plan, _ in found):
        parts.append(f'\nKERNEL_{plan_id[:8]} = load("{plan_id}")\n')
    parts += [_function(plan, forward) for plan, forward in found]
    return "\n".join(parts)


def _function(plan: FusionPlan, forward: WholeForward) -> str:
    kernel = f"KERNEL_{plan.id[:8]}"
    constants = [item for item in forward.constants if item.holder == "argument"]
    parameters = ["module", *forward.arguments, *(item.name for item in constants)]
    names = {item.name: _local(item.name, item.holder, parameters) for item in forward.inputs}
    held = dict.fromkeys(item.name for item in forward.inputs if item.holder == "attribute")
    tests = [f"{kernel} is None", f'type(module).__name__ != "{forward.type_name}"']
    tests += [_differs(item) for item in forward.constants]
    tests += ["torch.is_autocast_enabled(DEVICE)"]
    tests += [f"not {text}" for text in _fits(plan, forward, names)]
    if not operator(plan).differentiable:
        tests.append(f"learns({', '.join(names.values())})")
    where = printable(f"{forward.file}, shown at {forward.module or 'the model itself'}")
    doc = f"`{forward.type_name}.forward` of {where}."
    name = function_name(plan, forward)
    lines = [
        "",
        *statement(f"def {name}({', '.join(parameters)}):"),
        *docstring(doc, 1),
        *(f'{INDENT}{names[name]} = getattr(module, "{name}", None)' for name in held),
        f"{INDENT}if (",
        *(f"{INDENT * 2}{'or ' if number else ''}{text}" for number, text in enumerate(tests)),
        f"{INDENT}):",
        f"{INDENT * 2}return unused(",
        f'{INDENT * 3}"{name}",',
        f"{INDENT * 3}{forward.arguments[0]},",
        *(f'{INDENT * 3}"{text}"' for text in _shown(forward)),
        f"{INDENT * 2})",
        *statement(f"result = {kernel}.fusion({', '.join(_arguments(plan, forward, names))})", 1),
        f"{INDENT}return {_result(plan, forward)}",
    ]
    return "\n".join(lines) + "\n"


def _shown(forward: WholeForward) -> list[str]:
    """The tensors that a kernel is for, as parts of a text: `x float32[.., 64], `."""
    found = []
    for item in {item.name: item for item in forward.inputs}.values():
        sizes = [str(size) for size in item.shape]
        if item.holder == "argument" and not forward.exact:
            sizes = ["..", *sizes[-1:]]
        found.append(f"{item.name} {item.dtype}[{', '.join(sizes)}]")
    return [f"{text}, " for text in found[:-1]] + found[-1:]


def _local(name: str, holder: str, parameters: Sequence[str]) -> str:
    """A tensor's name in the function; an attribute may be called like an argument."""
    taken = {*parameters, "result", "torch"}
    return f"own_{name}" if holder == "attribute" and name in taken else name


def _differs(item: ForwardConstant) -> str:
    held = item.name if item.holder == "argument" else f'getattr(module, "{item.name}", ...)'
    if item.value is None:
        return f"{held} is not None"
    if isinstance(item.value, str):
        return f"{held} != {item.value!r}"
    number = torch_argument(item.value) if math.isfinite(item.value) else f'float("{item.value}")'
    return f"{held} != {number}"


def _fits(plan: FusionPlan, forward: WholeForward, names: dict[str, str]) -> list[str]:
    """A test of each tensor; of arguments with any number of rows, that they have as many."""
    found, first = [], forward.arguments[0]
    for item in {item.name: item for item in forward.inputs}.values():
        free = item.holder == "argument" and not forward.exact
        sizes = [None] * (len(item.shape) - 1) + [item.shape[-1]] if free else list(item.shape)
        told = "".join(f", {size}" for size in sizes)
        found.append(f"fits({names[item.name]}, torch.{item.dtype}{told})")
    if not forward.exact:
        found += [f"{name}.shape == {first}.shape" for name in forward.arguments[1:]]
    return found


def _arguments(plan: FusionPlan, forward: WholeForward, names: dict[str, str]) -> list[str]:
    """The plan's inputs, with one dimension per axis."""
    if not plan.sites:
        raise IllegalFusionError("the plan has no site: nothing says how large its tensors are")
    sizes = plan.sites[0].sizes
    found = []
    for item, tensor in zip(plan.inputs, forward.inputs, strict=True):
        spans = plan.along(item)
        shape = [str(n) if along else "1" for n, along in zip(sizes, spans, strict=True)]
        if not forward.exact and spans[0]:
            shape[0] = "-1"
        found.append(f"{names[tensor.name]}.reshape({', '.join(shape)})")
    return found


def _result(plan: FusionPlan, forward: WholeForward) -> str:
    own = "result" if len(plan.outputs) == 1 else f"result[{forward.output}]"
    shape = f"{forward.arguments[0]}.shape"
    if forward.exact:
        shape = f"({', '.join(str(size) for size in forward.shape)},)"
    return f"{own}.reshape({shape})"
