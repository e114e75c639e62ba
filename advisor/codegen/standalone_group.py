"""A horizontal group as a file of its own: the same checks and timing, for all members at once."""

from __future__ import annotations

from advisor.codegen.horizontal import (
    horizontal_code,
    horizontal_header,
    horizontal_launcher,
    horizontal_reference,
)
from advisor.codegen.layout import WIDTH, statement
from advisor.codegen.program_text import CHECK, EXACT, TIMING, main_text, ulps_text
from advisor.codegen.row_program import IMPORTS, check_renderable, joined
from advisor.codegen.standalone import (
    INTERPRETED_BLOCK,
    MOST_INTERPRETED_COLUMNS,
    MOST_INTERPRETED_ROWS,
    Standalone,
    allowed_errors,
    compiled_entries,
    notes,
    random_input,
    render_standalone,
)
from advisor.errors import IllegalFusionError
from advisor.model.members import parts, split
from advisor.model.plan import FusionPlan, Site
from advisor.model.tolerance import longest_sum

NO_OPERATOR = (
    "a group of independent programs is no operator with a gradient: export its members' own plans"
)
ODD_ROWS = 3


def render_file(export: Standalone) -> str:
    """The file of a plan of any family; the same arguments give the same bytes.

    Raises `IllegalFusionError` where no kernel can be generated, or the plan has no site.
    """
    return _render_group(export) if export.plan.members else render_standalone(export)


def _render_group(export: Standalone) -> str:
    plan = export.plan
    if not plan.sites:
        raise IllegalFusionError("the plan has no site: nothing says how large its tensors are")
    if export.custom_op:
        raise IllegalFusionError(NO_OPERATOR)
    check_renderable(plan, export.config.scheme)
    options = ", ".join(f"{name}={value}" for name, value in export.config.options().items())
    kernels = list(horizontal_code(plan))
    return joined(
        [
            horizontal_header(plan, notes(export)),
            "import os\nimport sys\n\n" + IMPORTS,
            *kernels,
            horizontal_launcher(plan, options),
            horizontal_reference(plan),
            *_program(export),
            *main_text(kernels),
        ]
    )


def _program(export: Standalone) -> list[str]:
    plan, config = export.plan, export.config
    site = plan.sites[0]
    shape = tuple(own.sizes for _, own in parts(plan, site))
    odd = tuple(_odd(own) for _, own in parts(plan, site))
    small = tuple(_small(own) for _, own in parts(plan, site))
    block = min(config.block_columns or INTERPRETED_BLOCK, INTERPRETED_BLOCK)
    allowed = [
        allowed_errors(part, output, longest_sum(part, own.rows, own.columns))
        for part, own in parts(plan, site)
        for output in part.outputs
    ]
    lines = [
        "",
        "# --- this file as a program: checks, then times " + "-" * (WIDTH - 49),
        "",
        "# Sizes of every member where they were first found, and those that they are checked at.",
        *statement(f"SHAPE = ({_listed(shape)})"),
        *statement(f"ODD = ({_listed(odd)})"),
        *statement(f"SMALL = ({_listed(small)})"),
        'CHECKED = {"cuda": (SHAPE, ODD), "cpu": (SMALL,)}',
        f'LAUNCH = {{"cuda": {{}}, "cpu": {{"elements": {block}}}}}',
        "# Of each output: the last place that errors are counted in, the error allowed, and what",
        "# is allowed at most where eager's own is as large; None for what must be equal.",
        "ALLOWED = (",
        *(f"    {text}," for text in allowed),
        ")",
        "# Kernels compiled for SHAPE: parameters in order (:16: divisible by 16), warps, stages.",
        "COMPILED = {",
        *(line for entry in compiled_entries(plan, config) for line in entry),
        "}",
    ]
    checks = CHECK.replace("{'×'.join(map(str, sizes))} out", "{len(sizes)} members out")
    return ["\n".join(lines) + "\n", EXACT, _make_inputs(plan), ulps_text(1), checks, TIMING]


def _listed(sizes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(str(own) for own in sizes)


def _odd(site: Site) -> tuple[int, ...]:
    """Few rows, a column less: nothing divides anything."""
    return (*(ODD_ROWS for _ in site.row_sizes), max(site.columns - 1, 1))


def _small(site: Site) -> tuple[int, ...]:
    rows = (min(size, MOST_INTERPRETED_ROWS) for size in site.row_sizes)
    return (*rows, min(site.columns, MOST_INTERPRETED_COLUMNS))


def _make_inputs(plan: FusionPlan) -> str:
    lines = [
        "",
        "def make_inputs(sizes, device):",
        '    """Random inputs for the sizes of every member; strided ones with gaps."""',
        "    torch.manual_seed(0)",
    ]
    made: list[str] = []
    for number, part in enumerate(split(plan)):
        names = [f"size_{axis}_of_{number}" for axis in range(part.row_axes)]
        names.append(f"n_columns_of_{number}")
        lines.append(f"    {', '.join(names)} = sizes[{number}]")
        made += [
            line
            for item in part.inputs
            for line in statement(f"{random_input(item, names, part.along(item))},", 2)
        ]
    return "\n".join([*lines, "    return (", *made, "    )"]) + "\n"
