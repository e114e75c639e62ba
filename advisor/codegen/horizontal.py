"""Horizontal plans as Triton source: one launch whose programs are dealt to several members.

The members have no dataflow between them. Each kind of member has a body, a device function of its
own; the kernel finds out by its program's number which member it works for, takes that member's
pointers and sizes, and calls the body. Members of equal equations share one body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.codegen import abi
from advisor.codegen.host import reference_body
from advisor.codegen.launches import Launch, pointer_types, program_launches
from advisor.codegen.layout import docstring, statement, wrapped
from advisor.codegen.row_program import (
    HELPER_TEXT,
    IMPORTS,
    KernelSource,
    block_body,
    check_renderable,
    held_body,
    helper_names,
    joined,
    printable,
)
from advisor.codegen.streamed import kernel_text
from advisor.model.block_configs import has_reductions
from advisor.model.comparisons import as_compared
from advisor.model.dealing import Block, block_of, programs_of
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.members import Member, bodies, first_inputs, first_outputs, parts, split
from advisor.model.plan import FusionPlan, Site
from advisor.model.site_work import computed, equation

LAUNCHER_DOC = (
    "Launch the kernel for all members; every input has one dimension per axis of its member, of"
    " size 1 where it is repeated."
)
REFERENCE_DOC = "What the kernel replaces, member by member."
OPTIONS = "elements=2048, num_warps=4"
NUMBER = "program"


@dataclass(frozen=True)
class _Body:
    """One body: the members that it serves, as the first of them, and its device function."""

    number: int
    members: range
    part: FusionPlan
    member: Member
    abi: abi.KernelAbi

    @property
    def name(self) -> str:
        return f"body_{self.number}"

    def constant(self, name: str) -> str:
        """The kernel's name for a constant of the body."""
        return f"{name}_{self.number}"


def render_horizontal(plan: FusionPlan) -> KernelSource:
    """The source of a horizontal plan; the same plan gives the same text.

    Raises `IllegalFusionError` for a dtype without a Triton spelling.
    """
    check_renderable(plan, "dealt")
    parts = [
        horizontal_header(plan),
        IMPORTS,
        *horizontal_code(plan),
        horizontal_launcher(plan),
        horizontal_reference(plan),
    ]
    return KernelSource(text=joined(parts), kernels=(horizontal_abi(plan).name,), scheme="dealt")


def horizontal_code(plan: FusionPlan) -> list[str]:
    """Helpers, bodies and the kernel."""
    found = _bodies(plan)
    helpers = {name for body in found for name in helper_names(body.part, _scheme(body.part))}
    texts = [HELPER_TEXT[name] for name in sorted(helpers)]
    return [*texts, *(_body_text(body) for body in found), _kernel(plan, found)]


# --- the calling convention -----------------------------------------------------------------------


def horizontal_abi(plan: FusionPlan) -> abi.KernelAbi:
    """All tensors of all members, then each member's sizes and strides, and where it ends."""
    found = _bodies(plan)
    scalars: list[str] = []
    for body in found:
        for number in body.members:
            names = _names(plan, number)
            scalars += [names[name] for name in body.abi.scalars]
            scalars.append(_end(number))
    return abi.KernelAbi(
        name=f"horizontal_{plan.id[:8]}",
        reads=tuple(item.name for item in plan.inputs),
        writes=abi.output_names(plan),
        scalars=tuple(scalars),
        constants=tuple(body.constant(name) for body in found for name in body.abi.constants),
    )


def horizontal_launches(plan: FusionPlan, config: LaunchConfig, site: Site) -> tuple[Launch, ...]:
    """The one launch with its arguments at a site."""
    kernel, elements = horizontal_abi(plan), config.block_columns or 1
    scalars: dict[str, int] = {}
    constants: dict[str, int | bool] = {}
    end = 0
    members = parts(plan, site)
    for body in _bodies(plan):
        block = block_of(body.part, body.member, elements)
        even = []
        for number in body.members:
            part, own = members[number]
            (launch,) = program_launches(part, _as_alone(body.part, block, config), own)
            names = _names(plan, number)
            scalars |= {names[name]: value for name, value in launch.scalars.items()}
            end += programs_of(part, block, own)
            scalars[_end(number)] = end
            even.append(launch.constants)
        for name in body.abi.constants:
            values = [one[name] for one in even]
            constants[body.constant(name)] = all(values) if name.startswith("EVEN") else values[0]
        constants[body.constant("BLOCK_COLUMNS")] = block.columns
        if has_reductions(body.part):
            whole = all(members[n][1].columns == block.columns for n in body.members)
            constants[body.constant("EVEN_COLUMNS")] = whole
    return (
        Launch(
            kernel=kernel,
            types=pointer_types(plan) | dict.fromkeys(kernel.scalars, "i32"),
            scalars={name: scalars[name] for name in kernel.scalars},
            constants={name: constants[name] for name in kernel.constants},
            grid=(end, 1, 1),
            workspace={},
        ),
    )


def _as_alone(part: FusionPlan, block: Block, config: LaunchConfig) -> LaunchConfig:
    """How a member would be launched by itself in the same blocks."""
    if has_reductions(part):
        return LaunchConfig(block_rows=block.rows, num_warps=config.num_warps)
    return LaunchConfig(
        scheme="blocks",
        block_rows=block.rows,
        block_columns=block.columns,
        num_warps=config.num_warps,
    )


def _scheme(part: FusionPlan) -> Scheme:
    return "registers" if has_reductions(part) else "blocks"


def _bodies(plan: FusionPlan) -> list[_Body]:
    members = split(plan)
    found = []
    for number, run in enumerate(bodies(plan)):
        part = members[run[0]]
        (kernel,) = abi.kernels(part, _scheme(part))
        found.append(_Body(number, run, part, plan.members[run[0]], kernel))
    return found


def _names(plan: FusionPlan, number: int) -> dict[str, str]:
    """The kernel's names for the parameters of one member, by its own names."""
    reads, writes = first_inputs(plan)[number], first_outputs(plan)[number]
    member = plan.members[number]
    tensors = {f"in{place}": f"in{reads + place}" for place in range(member.inputs)}
    tensors |= {f"out{place}": f"out{writes + place}" for place in range(member.outputs)}
    part = split(plan)[number]
    (kernel,) = abi.kernels(part, _scheme(part))
    scalars = {}
    for name in kernel.scalars:
        tensor, stride, axis = name.partition("_stride_")
        scalars[name] = f"{tensors[tensor]}_stride_{axis}" if stride else f"{name}_of_{number}"
    return tensors | scalars


def _end(number: int) -> str:
    """The parameter that says where the programs of a member end."""
    return f"end_{number}"


# --- device code ----------------------------------------------------------------------------------


def _body_text(body: _Body) -> str:
    """A device function: the statements of one member, whose program number is given."""
    kernel = abi.KernelAbi(
        name=body.name,
        reads=(NUMBER, *body.abi.reads),
        writes=body.abi.writes,
        scalars=body.abi.scalars,
        constants=body.abi.constants,
    )
    reduces = has_reductions(body.part)
    part = body.part
    statements = held_body(part, NUMBER, large=False) if reduces else block_body(part, NUMBER)
    what = "BLOCK_ROWS whole rows" if reduces else "a block"
    return kernel_text(kernel, f"One program of a member computes {what}.", statements)


def _kernel(plan: FusionPlan, found: Sequence[_Body]) -> str:
    """Which member a program works for, and the call of its body."""
    lines = ["program = tl.program_id(0)"]
    for place, body in enumerate(found):
        last = place == len(found) - 1
        first = body.members[0]
        begin = _end(first - 1) if first else "0"
        if place:
            lines.append("else:" if last else f"elif program < {_end(body.members[-1])}:")
        elif not last:
            lines.append(f"if program < {_end(body.members[-1])}:")
        depth = "    " if len(found) > 1 else ""
        lines += [depth + line for line in _call(plan, body, begin)]
    title = printable(plan.title or "Horizontal group")
    return kernel_text(
        horizontal_abi(plan), f"{title}; each program works for one of its members.", lines
    )


def _call(plan: FusionPlan, body: _Body, begin: str) -> list[str]:
    """The arguments of the member that a program belongs to, and the call."""
    wanted = (*body.abi.reads, *body.abi.writes, *body.abi.scalars)
    first = _names(plan, body.members[0])
    constants = [f"{name}={body.constant(name)}" for name in body.abi.constants]
    if len(body.members) == 1:
        values = [first[name] for name in wanted]
        offset = "program" if begin == "0" else f"program - {begin}"
        return [f"{body.name}({', '.join((offset, *values, *constants))})"]
    # Names of one body's own: branches may not give one name two types.
    own = [body.constant(f"{name}_body") for name in wanted]
    later, start = body.constant("later"), body.constant("begin")
    lines = [f"{start} = {begin}"]
    lines += [f"{here} = {first[name]}" for here, name in zip(own, wanted, strict=True)]
    for number in body.members[1:]:
        names = _names(plan, number)
        lines.append(f"{later} = program >= {_end(number - 1)}")
        lines.append(f"{start} = tl.where({later}, {_end(number - 1)}, {start})")
        lines += [
            f"{here} = tl.where({later}, {names[name]}, {here})"
            for here, name in zip(own, wanted, strict=True)
        ]
    return [*lines, f"{body.name}({', '.join((f'program - {start}', *own, *constants))})"]


# --- the host -------------------------------------------------------------------------------------


def horizontal_launcher(plan: FusionPlan, options: str = OPTIONS) -> str:
    """The function that allocates what is missing and launches the kernel."""
    inputs = ", ".join(item.name for item in plan.inputs)
    lines = ["", *statement(f"def fused({inputs}, *, out=None, {options}):")]
    lines += docstring(LAUNCHER_DOC, 1)
    for number, part in enumerate(split(plan)):
        lines += _sizes(plan, number, part)
    lines += ["    if out is None:", "        out = ("]
    for number, part in enumerate(split(plan)):
        reads = first_inputs(plan)[number]
        sizes = [*_size_names(part, number), f"n_columns_of_{number}"]
        for output in part.outputs:
            along = output.along(part.row_axes, 1)
            shape = ", ".join(
                name if spans else "1" for name, spans in zip(sizes, along, strict=True)
            )
            text = f"torch.empty(({shape}), dtype=torch.{output.dtype}, device=in{reads}.device),"
            lines += statement(text, 3)
    lines.append("        )")
    last = len(plan.members) - 1
    for body in _bodies(plan):
        lines += _dealt(body)
    kernel = horizontal_abi(plan)
    lines += [f"    if {_end(last)}:", f"        {kernel.name}[({_end(last)},)]("]
    lines += [line for text in _arguments(plan, kernel) for line in statement(f"{text},", 3)]
    return "\n".join([*lines, "        )", "    return out"]) + "\n"


def _size_names(part: FusionPlan, number: int) -> list[str]:
    return [f"size_{axis}_of_{number}" for axis in range(part.row_axes)]


def _sizes(plan: FusionPlan, number: int, part: FusionPlan) -> list[str]:
    reads = first_inputs(plan)[number]
    given = [f"in{reads + place}" for place in range(plan.members[number].inputs)]
    axes = [*_size_names(part, number), f"n_columns_of_{number}"]
    shapes = ", ".join(f"{name}.shape" for name in given)
    lines = statement(f"{', '.join(axes)} = torch.broadcast_shapes({shapes})", 1)
    lines.append(f"    n_rows_of_{number} = {' * '.join(axes[:-1])}")
    for name, item in zip(given, part.inputs, strict=True):
        if item.dense:
            lines += [
                f"    if not {name}.is_contiguous():",
                f'        raise ValueError("{name} must be contiguous")',
            ]
    return lines


def _dealt(body: _Body) -> list[str]:
    """The block of a body's programs, and where the programs of each of its members end."""
    rows, columns = body.constant("block_rows"), body.constant("block_columns")
    reduces, width = has_reductions(body.part), body.member.width
    lines = [
        f"    {columns} = {width}" if reduces else f"    {columns} = min({width}, elements)",
        f"    {rows} = max(elements // {columns}, 1)",
    ]
    for number in body.members:
        count = f"triton.cdiv(n_rows_of_{number}, {rows})"
        if not reduces:
            count += f" * triton.cdiv(n_columns_of_{number}, {columns})"
        before = f"{_end(number - 1)} + " if number else ""
        lines += statement(f"{_end(number)} = {before}{count}", 1)
    return lines


def _arguments(plan: FusionPlan, kernel: abi.KernelAbi) -> list[str]:
    outputs = {name: f"out[{place}]" for place, name in enumerate(kernel.writes)}
    known = dict(outputs)
    for name in kernel.scalars:
        tensor, stride, axis = name.partition("_stride_")
        if stride:
            known[name] = f"{outputs.get(tensor, tensor)}.stride({axis})"
    found = [known.get(name, name) for name in (*kernel.tensors, *kernel.scalars)]
    for body in _bodies(plan):
        rows, columns = body.constant("block_rows"), body.constant("block_columns")
        even_rows = [f"n_rows_of_{number} % {rows} == 0" for number in body.members]
        held = f"== {columns}" if has_reductions(body.part) else f"% {columns} == 0"
        even_columns = [f"n_columns_of_{number} {held}" for number in body.members]
        values = {
            "BLOCK_ROWS": rows,
            "BLOCK_COLUMNS": columns,
            "EVEN_ROWS": _all(even_rows),
            "EVEN_COLUMNS": _all(even_columns),
        }
        found += [f"{body.constant(name)}={values[name]}" for name in body.abi.constants]
    return [*found, "num_warps=num_warps"]


def _all(tests: Sequence[str]) -> str:
    return tests[0] if len(tests) == 1 else f"all(({', '.join(tests)}))"


def horizontal_reference(plan: FusionPlan) -> str:
    """The same ops in PyTorch, member by member."""
    parameters = ", ".join(item.name for item in plan.inputs)
    lines = ["", *statement(f"def reference({parameters}):"), *docstring(REFERENCE_DOC, 1)]
    lines.append("    found = ()")
    own: list[str] = []
    for body in _bodies(plan):
        parameters = ", ".join(item.name for item in body.part.inputs)
        own += [
            "",
            *statement(f"def _{body.name}({parameters}):"),
            *reference_body(as_compared(body.part)),
            "",
        ]
        for number in body.members:
            names = _names(plan, number)
            given = ", ".join(names[item.name] for item in body.part.inputs)
            lines += statement(f"found += _{body.name}({given})", 1)
    lines.append("    return found")
    return "\n".join([*own, *lines]) + "\n"


# --- prose ----------------------------------------------------------------------------------------


def horizontal_header(plan: FusionPlan, notes: Sequence[str] = ()) -> str:
    """The docstring of a module: the equations of each body and whom it serves."""
    lines = [*wrapped('"""' + printable(plan.title or "Horizontal group"))]
    for body in _bodies(plan):
        numbers = body.members
        which = f"Member {numbers[0]}:"
        if len(numbers) > 1:
            which = f"Members {numbers[0]} to {numbers[-1]}, each:"
        lines += ["", which, ""]
        lines += [f"    {op.name} = {equation(op)}" for op in body.part.ops]
        axes = [*(f"rows {axis}" for axis in range(body.part.row_axes)), "columns"]
        lines += ["", f"    over {', '.join(axes)}, from"]
        for item in body.part.inputs:
            shape = [name if span else "1" for name, span in zip(axes, item.spans, strict=True)]
            layout = ("" if item.dense else ", strided") + computed(item)
            lines.append(f"    {item.name}: [{', '.join(shape)}] {item.dtype}{layout}")
        for position, output in enumerate(body.part.outputs):
            space = "[rows, columns]" if output.space == "tile" else "[rows]"
            lines.append(f"    out{position} = {output.value}: {space} {output.dtype}")
    lines += [
        *notes,
        "",
        "Tensors of the members follow each other in the arguments.",
        f"Generated by fusion-advisor from plan {plan.id}: the same plan gives the same bytes.",
        '"""',
        "",
    ]
    return "\n".join(lines)
