"""The launcher of a scan, and its reference step by step in PyTorch."""

from __future__ import annotations

from advisor.codegen import abi, host
from advisor.codegen.layout import docstring, statement
from advisor.codegen.strided import strided
from advisor.model.launch import Scheme
from advisor.model.plan import FusionPlan
from advisor.model.scan import PlanState, lane_axes

OPTIONS: dict[Scheme, str] = {
    "scan_steps": "block_rows=16, num_warps=4, num_stages=3, unroll=1",
    "scan_blocks": "block_rows=1, block_steps=64, num_warps=4, num_stages=1",
    "scan_chunks": "block_rows=16, splits=32, num_warps=4, num_stages=3, unroll=1",
}
LAUNCHER_DOC = (
    "Launch the kernel; every input has one dimension per axis [lanes..., steps, columns], of size "
    "1 where it is repeated."
)
STEP_DOC = "One step, op by op: what it reads of the one before, then what is written."
REFERENCE_DOC = "What the kernel replaces, step by step; tensors have one dimension per axis."


def scan_launcher(
    plan: FusionPlan, scheme: Scheme, *, options: str | None = None, wrap: str = ""
) -> str:
    """The function that allocates what is missing and launches the kernels of a scheme.

    `options` are its keyword arguments with their defaults, `wrap` a function that is applied to a
    kernel before it is launched.
    """
    inputs = abi.input_names(plan)
    lanes = [f"size_{axis}" for axis in range(lane_axes(plan))]
    axes = ", ".join([*lanes, "n_steps", "n_columns"])
    shapes = ", ".join(f"{item}.shape" for item in inputs)
    head = f"def fused({', '.join(inputs)}, *, out=None, {options or OPTIONS[scheme]}):"
    lines = [
        "",
        *statement(head),
        *docstring(LAUNCHER_DOC, 1),
        *statement(f"{axes} = torch.broadcast_shapes({shapes})", 1),
        "    if out is None:",
        "        out = (",
        *_allocation(plan, lanes),
        "        )",
        f"    n_lanes = {' * '.join(lanes)}",
        "    if n_lanes * n_columns:",
        "        block_columns = triton.next_power_of_2(n_columns)",
    ]
    if scheme == "scan_chunks":
        lines += _shares(plan)
    for kernel in abi.kernels(plan, scheme):
        grid = "triton.cdiv(n_lanes, block_rows),"
        if kernel.grid == "lanes and shares":
            grid = f"{grid} n_splits"
        if wrap:
            lines += [f"        grid = ({grid})", f"        {wrap}({kernel.name})[grid]("]
        else:
            lines.append(f"        {kernel.name}[({grid})](")
        lines += [f"            {argument}," for argument in _arguments(plan, kernel)]
        lines.append("        )")
    return "\n".join([*lines, "    return out"]) + "\n"


def _allocation(plan: FusionPlan, lanes: list[str]) -> list[str]:
    lines = []
    for output in plan.outputs:
        along = output.along(plan.row_axes, 1)
        names = zip([*lanes, "n_steps", "n_columns"], along, strict=True)
        shape = ", ".join(name if spans else "1" for name, spans in names)
        device = f"{plan.inputs[0].name}.device"
        text = f"torch.empty(({shape}), dtype=torch.{output.dtype}, device={device}),"
        lines += statement(text, 3)
    return lines


def _shares(plan: FusionPlan) -> list[str]:
    width = "n_columns" if plan.states[0].space == "tile" else "1"
    device = f"{plan.inputs[0].name}.device"
    lines = [
        "split_steps = max(triton.cdiv(n_steps, splits), 1)",
        "n_splits = max(triton.cdiv(n_steps, split_steps), 1)",
    ]
    options = f"dtype=torch.{abi.PARTIAL_DTYPE}, device={device}"
    lines += [f"{n} = torch.empty((n_splits, n_lanes * {width}), {options})" for n in abi.LINEAR]
    return [text for line in lines for text in statement(line, 2)]


def _arguments(plan: FusionPlan, kernel: abi.KernelAbi) -> list[str]:
    outputs = {name: f"out[{place}]" for place, name in enumerate(abi.output_names(plan))}
    known = {
        name: f"{outputs.get(tensor.name, tensor.name)}.stride({axis})"
        for tensor in strided(plan)
        for axis, name in tensor.strides
    }
    # A tensor's pointer is where it begins.
    known |= {f"{name}_offset": "0" for name in abi.input_names(plan)} | outputs
    shared = "split_steps" in kernel.scalars
    constants = {
        "BLOCK_ROWS": "block_rows",
        "BLOCK_COLUMNS": "block_columns",
        "EVEN_ROWS": "n_lanes % block_rows == 0",
        "EVEN_COLUMNS": "n_columns == block_columns",
        "STAGES": "num_stages",
        "BLOCK_STEPS": "block_steps",
        "UNROLL": "unroll",
        "EVEN_STEPS": f"n_steps % unroll == 0{' == split_steps % unroll' if shared else ''}",
    }
    found = [known.get(name, name) for name in (*kernel.tensors, *kernel.scalars)]
    found += [f"{name}={constants[name]}" for name in kernel.constants]
    return [*found, "num_warps=num_warps", "num_stages=num_stages"]


# --- the reference --------------------------------------------------------------------------------


def scan_reference(plan: FusionPlan) -> str:
    """The same ops in PyTorch, with eager's own dtypes."""
    names, axis = abi.input_names(plan), plan.row_axes - 1
    states = [state.name for state in plan.states]
    every = [n for n, output in enumerate(plan.outputs) if not output.last]
    lines = [*_one_step(plan, every), "", "", *statement(f"def reference({', '.join(names)}):")]
    lines += docstring(REFERENCE_DOC, 1)
    shapes = ", ".join(f"{name}.shape" for name in names)
    lines += statement(f"sizes = torch.broadcast_shapes({shapes})", 1)
    for state in plan.states:
        lines += statement(_first(plan, state), 1)
    lines += [f"    out{n} = []" for n in every]
    lines.append(f"    for step in range(sizes[{axis}]):")
    given = [_part(plan, n) for n in range(len(names))]
    made = ", ".join([*states, *(f"y{n}" for n in every)])
    made += "," if len(states) + len(every) == 1 else ""
    lines += statement(f"{made} = one_step({', '.join([*given, *states])})", 2)
    lines += [f"        out{n}.append(y{n})" for n in every]
    held = {state.value: state.name for state in plan.states}
    results = []
    for n, output in enumerate(plan.outputs):
        order = "[::-1]" if output.reverse else ""
        results.append(held[output.value] if output.last else f"torch.cat(out{n}{order}, {axis})")
    text = f"return {', '.join(results)}" + ("," if len(results) == 1 else "")
    return "\n".join([*lines, *statement(text, 1)]) + "\n"


def _one_step(plan: FusionPlan, every: list[int]) -> list[str]:
    states = [state.name for state in plan.states]
    parameters = ", ".join([*abi.input_names(plan), *states])
    lines = ["", *statement(f"def one_step({parameters}):"), *docstring(STEP_DOC, 1)]
    dtypes = {item.name: item.dtype for item in plan.inputs}
    dtypes |= {state.name: state.dtype for state in plan.states}
    for op in plan.ops:
        lines += statement(f"{op.name} = {host.typed(op, dtypes, '-1')}", 1)
        dtypes[op.name] = op.dtype
    results = [state.value for state in plan.states] + [plan.outputs[n].value for n in every]
    return [*lines, *statement(f"return {', '.join(results)}{',' if len(results) == 1 else ''}", 1)]


def _part(plan: FusionPlan, number: int) -> str:
    """An input of one step."""
    item, axis = plan.inputs[number], plan.row_axes - 1
    if not item.spans[axis]:
        return item.name
    return f"{item.name}.narrow({axis}, {'-1 - step' if item.reverse else 'step'}, 1)".replace(
        "-1 - step", f"sizes[{axis}] - 1 - step"
    )


def _first(plan: FusionPlan, state: PlanState) -> str:
    """A state before the first step, as large as it will be."""
    axis = plan.row_axes - 1
    last = f"sizes[{axis + 1}]" if state.space == "tile" else "1"
    shape = f"(*sizes[:{axis}], 1, {last})"
    if isinstance(state.initial, str) and state.initial in abi.input_names(plan):
        return f"{state.name} = {state.initial}.expand({shape})"
    number = host.torch_argument(state.initial)
    device = f"{plan.inputs[0].name}.device"
    return (
        f"{state.name} = torch.full({shape}, {number}, dtype=torch.{state.dtype}, device={device})"
    )
