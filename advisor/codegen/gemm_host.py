"""The launcher of a matrix product with what follows it, its reference and its random operands."""

from __future__ import annotations

from advisor.codegen import abi, host
from advisor.codegen.layout import docstring, statement
from advisor.codegen.strided import strided
from advisor.model.gemm import PRODUCT, operand, operands
from advisor.model.launch import GROUP_ROWS
from advisor.model.plan import FusionPlan, PlanInput

OPTIONS = "block_rows=128, block_columns=128, block_steps=32, num_warps=8, num_stages=3"
LAUNCHER_DOC = (
    "Launch the kernel; every input has one dimension per axis [rows..., depth, columns], of size "
    "1 where it is repeated."
)
REFERENCE_DOC = "What the kernel replaces: the product, then op by op."


def gemm_launcher(plan: FusionPlan, *, options: str | None = None, wrap: str = "") -> str:
    """The function that allocates what is missing and launches the kernel.

    `options` are its keyword arguments with their defaults, `wrap` a function that is applied to
    the kernel before it is launched.
    """
    inputs, (kernel,) = abi.input_names(plan), abi.kernels(plan, "gemm")
    rows = [f"size_{axis}" for axis in range(plan.row_axes - 1)]
    shapes = ", ".join(f"{item}.shape" for item in inputs)
    axes = ", ".join([*rows, "n_depth", "n_columns"])
    grid = "(triton.cdiv(n_rows, block_rows) * triton.cdiv(n_columns, block_columns),)"
    called = f"{wrap}({kernel.name})[grid](" if wrap else f"{kernel.name}[grid]("
    lines = [
        "",
        *statement(f"def fused({', '.join(inputs)}, *, out=None, {options or OPTIONS}):"),
        *docstring(LAUNCHER_DOC, 1),
        *statement(f"{axes} = torch.broadcast_shapes({shapes})", 1),
        "    if out is None:",
        "        out = (",
        *_allocation(plan, rows),
        "        )",
        f"    n_rows = {' * '.join(rows)}",
        "    if n_rows * n_columns:",
        *statement(f"grid = {grid}", 2),
        f"        {called}",
        *(f"            {argument}," for argument in _arguments(plan, kernel)),
        "        )",
        "    return out",
    ]
    return "\n".join(lines) + "\n"


def _allocation(plan: FusionPlan, rows: list[str]) -> list[str]:
    shape = ", ".join([*rows, "1", "n_columns"])
    device = f"{plan.inputs[0].name}.device"
    return [
        line
        for output in plan.outputs
        for line in statement(
            f"torch.empty(({shape}), dtype=torch.{output.dtype}, device={device}),", 3
        )
    ]


def _arguments(plan: FusionPlan, kernel: abi.KernelAbi) -> list[str]:
    outputs = {name: f"out[{place}]" for place, name in enumerate(abi.output_names(plan))}
    known = outputs | {
        name: f"{outputs.get(tensor.name, tensor.name)}.stride({axis})"
        for tensor in strided(plan)
        for axis, name in tensor.strides
    }
    constants = {
        "BLOCK_ROWS": "block_rows",
        "BLOCK_COLUMNS": "block_columns",
        "EVEN_ROWS": "n_rows % block_rows == 0",
        "EVEN_COLUMNS": "n_columns % block_columns == 0",
        "BLOCK_STEPS": "block_steps",
        "EVEN_STEPS": "n_depth % block_steps == 0",
        "GROUP_ROWS": str(GROUP_ROWS),
        "STAGES": "num_stages",
    }
    found = [known.get(name, name) for name in (*kernel.tensors, *kernel.scalars)]
    found += [f"{name}={constants[name]}" for name in kernel.constants]
    return [*found, "num_warps=num_warps", "num_stages=num_stages"]


# --- the reference --------------------------------------------------------------------------------


def gemm_reference(plan: FusionPlan) -> str:
    """The library's product and the same ops in PyTorch, with eager's own dtypes."""
    names = abi.input_names(plan)
    lines = ["", "def product(left, right):", *_product(plan), "", ""]
    lines += [*statement(f"def reference({', '.join(names)}):"), *docstring(REFERENCE_DOC, 1)]
    lines.append(f"    {PRODUCT} = product({', '.join(operands(plan))})")
    dtypes = {item.name: item.dtype for item in plan.inputs} | {PRODUCT: "float32"}
    for op in plan.ops:
        lines += statement(f"{op.name} = {host.typed(op, dtypes, '-1')}", 1)
        dtypes[op.name] = op.dtype
    results = [output.value for output in plan.outputs]
    text = f"return {', '.join(results)}{',' if len(results) == 1 else ''}"
    return "\n".join([*lines, *statement(text, 1)]) + "\n"


def _product(plan: FusionPlan) -> list[str]:
    """The body of `product`: in float32 as accurate as the plan asks for, whatever is allowed."""
    assert plan.product is not None
    multiply = "torch.mm(left.flatten(0, -3)[..., 0], right.reshape(right.shape[-2:]))"
    lines = docstring(
        "[rows..., depth, 1] times [1..., depth, columns] as [rows..., 1, columns] in float32.", 1
    )
    if operand(plan, plan.product.left).dtype == "float32":
        allowed = "torch.backends.cuda.matmul.allow_tf32"
        lines += [
            f"    before, {allowed} = {allowed}, {plan.product.tf32}",
            f"    found = {multiply}",
            f"    {allowed} = before",
        ]
    else:
        lines.append(f"    found = {multiply}")
    shape = "(*left.shape[:-2], 1, right.shape[-1])"
    return [*lines, f"    return found.to(torch.float32).reshape{shape}"]


# --- random operands ------------------------------------------------------------------------------


def random_operand(plan: FusionPlan, item: PlanInput) -> str:
    """An expression for a random operand, cut out of wider storage, its rows walked as one axis."""
    assert plan.product is not None
    left = item.name == plan.product.left
    rows = [f"size_{axis}" for axis in range(plan.row_axes - 1)]
    deep = f"size_{plan.row_axes - 1}"
    down, across = (" * ".join(rows), deep) if left else (deep, "n_columns")
    unit = plan.product.left_unit if left else plan.product.right_unit
    turned = unit == ("rows" if left else "depth")
    first, second = (across, down) if turned else (down, across)
    wider, cut = (f"{second} + 3", f"[:, :{second}]")
    if unit is None:
        wider, cut = f"2 * {second}", "[:, ::2]"
    made = f"torch.randn(({first}, {wider}), device=device).to(torch.{item.dtype}){cut}"
    made += ".t()" if turned else ""
    if left:
        sizes = f"({', '.join(rows)})" if len(rows) > 1 else f"({rows[0]},)"
        return f"{made}.unflatten(0, {sizes})[..., None]"
    return f"{made}[{', '.join(['None'] * (plan.row_axes - 1))}]"
