"""A kernel as an operator of PyTorch (`torch.library.triton_op`), with autocast and autograd."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from advisor.codegen.gradient import Gradient, gradient
from advisor.codegen.host import launcher
from advisor.codegen.layout import INDENT, WIDTH, statement
from advisor.codegen.row_program import device_code, helper_names, printable
from advisor.errors import IllegalFusionError
from advisor.model.configs import default_config
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan

NAMESPACE, WRAP = "fusion_advisor", "visible"

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


FITTED = '''
def fitted(gradient, like):
    """A gradient summed where the input was repeated, repeated where it is the same for all."""
    axes = [n for n, size in enumerate(like.shape) if size == 1 and gradient.shape[n] != 1]
    gradient = gradient.sum(axes, keepdim=True) if axes else gradient
    return gradient.expand(like.shape).to(like.dtype)
'''


@dataclass(frozen=True)
class Operator:
    """What a file gets beside its kernel: helpers, kernels, text before and after its launcher.

    `compiled` are the plans of the kernels with their launches.
    """

    helpers: tuple[str, ...] = ()
    device_code: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    wrap: str = ""
    compiled: tuple[tuple[FusionPlan, LaunchConfig], ...] = ()

    @property
    def differentiable(self) -> bool:
        """Whether it has a gradient kernel."""
        return bool(self.compiled)


def operator(plan: FusionPlan) -> Operator:
    """The operator of a plan; where no gradient can be derived, its backward says so."""
    try:
        found = gradient(plan)
    except IllegalFusionError as error:
        after = (_operation(plan), _no_gradient(plan, error.what))
        return Operator(before=(VISIBLE,), after=after, wrap=WRAP)
    backward = found.plan
    config = default_config(backward, backward.sites[0])
    options = ", ".join(f"{name}={value}" for name, value in config.options().items())
    launch = launcher(backward, config.scheme, name="fused_gradient", options=options, wrap=WRAP)
    return Operator(
        helpers=tuple(helper_names(backward, config.scheme)),
        device_code=tuple(device_code(backward, config.scheme)),
        before=(VISIBLE,),
        after=(launch, _operation(plan), FITTED, _gradient(plan, found)),
        wrap=WRAP,
        compiled=((backward, config),),
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


def _gradient(plan: FusionPlan, found: Gradient) -> str:
    """The gradient's operator, and what autograd calls."""
    names = [item.name for item in plan.inputs]
    arguments = [names[place] for place in found.given]
    arguments += [f"arriving[{position}]" for position in found.received]
    one = len(found.written) == 1
    results = ["None"] * len(names)
    for number, places in enumerate(found.written):
        for place in places:
            results[place] = f"fitted({'found' if one else f'found[{number}]'}, {names[place]})"
    lines = [
        *operation_text(found.plan, "gradients", "fused_gradient", "GRADIENT_DTYPES"),
        "",
        "",
        "def _keep(ctx, inputs, output):",
        "    ctx.save_for_backward(*inputs)",
        "",
        "",
        "def _backward(ctx, *arriving):",
        '    """The gradients of all inputs, from one kernel."""',
        *statement(f"{', '.join(names)}{',' if len(names) == 1 else ''} = ctx.saved_tensors", 1),
        *statement(f"found = gradients({', '.join(arguments)})", 1),
        "    return (",
        *(f"        {result}," for result in results),
        "    )",
        "",
        "",
        "operation.register_autograd(_backward, setup_context=_keep)",
    ]
    return "\n".join(lines) + "\n"


def _no_gradient(plan: FusionPlan, why: str) -> str:
    text = f"{_kernel(plan)} has no gradient kernel ({why}): call `reference` where one is needed"
    *lines, last = textwrap.wrap(printable(text), WIDTH - 12)
    body = [
        "",
        "def _backward(ctx, *arriving):",
        "    raise NotImplementedError(",
        *(f'        "{line} "' for line in lines),
        f'        "{last}"',
        "    )",
        "",
        "",
        "operation.register_autograd(_backward)",
    ]
    return "\n".join(body) + "\n"


def _kernel(plan: FusionPlan) -> str:
    return f"{plan.family}_{plan.id[:8]}"
