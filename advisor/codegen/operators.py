"""A kernel as an operator of PyTorch (`torch.library.triton_op`), with autocast and autograd."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.codegen.layout import INDENT, WIDTH, statement
from advisor.model.plan import FusionPlan

NAMESPACE = "fusion_advisor"

VISIBLE = '''
def visible(kernel):
    """A kernel that torch.compile and export see; the interpreter's functions stay as they are."""
    return torch.library.wrap_triton(kernel) if isinstance(kernel, triton.JITFunction) else kernel


def expected(tensors, dtypes):
    """Raise where a tensor is not of the dtype that the kernel was written for."""
    for tensor, dtype in zip(tensors, dtypes, strict=True):
        if tensor.dtype != dtype:
            raise TypeError(f"{tensor.dtype} where the kernel was written for {dtype}")
'''
DOC = '"""The kernel as an operator; inputs as for `fused`, dense ones are copied if need be."""'
AUTOCAST = """    if torch.is_autocast_enabled(in0.device.type):
        given = tuple(tensor.to(kind) for tensor, kind in zip(given, DTYPES, strict=True))
    return operation(*given)
"""


@dataclass(frozen=True)
class Operator:
    """What a file gets beside its kernel: helpers, kernels, text before and after its launcher."""

    helpers: tuple[str, ...] = ()
    device_code: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    wrap: str = ""
    differentiable: bool = False


def operator(plan: FusionPlan) -> Operator:
    """The operator of a plan; without a gradient its backward says so."""
    return Operator(
        before=(VISIBLE,),
        after=(_operation(plan), _no_gradient(plan)),
        wrap="visible",
    )


def operation_text(plan: FusionPlan, function: str, launcher: str, dtypes: str) -> list[str]:
    """One registered function of tensors that launches a kernel; `dtypes` names its constant."""
    names = [item.name for item in plan.inputs]
    typed = ", ".join(f"{name}: torch.Tensor" for name in names)
    one = len(plan.outputs) == 1
    result = "torch.Tensor" if one else f"tuple[{', '.join(['torch.Tensor'] * len(plan.outputs))}]"
    dense = ", ".join(f"{i.name}.contiguous()" if i.dense else i.name for i in plan.inputs)
    return [
        "",
        *assigned(dtypes, [f"torch.{item.dtype}" for item in plan.inputs]),
        "",
        "",
        f'@torch.library.triton_op("{NAMESPACE}::{_kernel(plan)}", mutates_args=())',
        *statement(f"def {function}({typed}) -> {result}:"),
        f"    {DOC}",
        *assigned("given", names, 1),
        f"    expected(given, {dtypes})",
        *statement(f"return {launcher}({dense}){'[0]' if one else ''}", 1),
    ]


def _operation(plan: FusionPlan) -> str:
    names = [item.name for item in plan.inputs]
    lines = [
        *operation_text(plan, "operation", "fused", "DTYPES"),
        "",
        "",
        *statement(f"def fusion({', '.join(names)}):"),
        '    """The operator; under autocast its inputs become what the kernel was written for."""',
        *assigned("given", names, 1),
    ]
    return "\n".join(lines) + "\n" + AUTOCAST


def assigned(name: str, items: list[str], depth: int = 0) -> list[str]:
    """A tuple under a name: on one line, or an item a line."""
    indent = INDENT * depth
    line = f"{indent}{name} = ({', '.join(items)}{',' if len(items) == 1 else ''})"
    if len(line) <= WIDTH:
        return [line]
    return [f"{indent}{name} = (", *(f"{indent}{INDENT}{item}," for item in items), f"{indent})"]


def _no_gradient(plan: FusionPlan) -> str:
    why = f"{_kernel(plan)} has no gradient kernel: call `reference` where a gradient is needed"
    lines = [
        "",
        "def _backward(ctx, *gradients):",
        *statement(f'raise NotImplementedError("{why}")', 1),
        "",
        "",
        "operation.register_autograd(_backward)",
    ]
    return "\n".join(lines) + "\n"


def _kernel(plan: FusionPlan) -> str:
    return f"{plan.family}_{plan.id[:8]}"
