"""A kernel as a file of its own: it says where it is from, checks itself and times itself.

It holds what `render` writes, launched as one configuration says, and a program that
runs the check on a GPU or, with TRITON_INTERPRET=1, without one. `operators` adds a custom op.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.codegen.families import launcher, reference, site_launches
from advisor.codegen.gemm_host import random_operand
from advisor.codegen.host import column_names
from advisor.codegen.layout import WIDTH, statement, wrapped
from advisor.codegen.operators import Operator, operator
from advisor.codegen.program_text import (
    CHECK,
    EXACT,
    GRADIENT_CHECK,
    TIMING,
    main_text,
    ulps_text,
)
from advisor.codegen.row_program import (
    HELPER_TEXT,
    IMPORTS,
    check_renderable,
    device_code,
    header,
    helper_names,
    joined,
    printable,
)
from advisor.errors import IllegalFusionError
from advisor.model.gathers import gathers, index_names, table_axis, table_rows
from advisor.model.gemm import operands
from advisor.model.launch import LaunchConfig
from advisor.model.optable import FLOAT_DTYPES
from advisor.model.plan import FusionPlan, PlanInput, PlanOutput, Site
from advisor.model.tolerance import allowance, longest_sum, roundings, steps

MOST_PLACES = 12
# Elements of a checked shape: its float64 reference must fit beside everything else.
MOST_CHECKED, MOST_INTERPRETED_ROWS, MOST_INTERPRETED_COLUMNS = 1 << 22, 3, 1024
# Elements of a table on a GPU; in an interpreter few rows, some of which are named again.
MOST_TABLE, MOST_INTERPRETED_TABLE_ROWS = 1 << 26, 50
MOST_CHECKED_ROWS, MOST_INTERPRETED_DEPTH = 130, 40
INTERPRETED_BLOCK, MOST_INTERPRETED_STEPS = 128, 20
# From the coarsest type to the finest.
EPSILON = {
    "float8_e5m2": "2**-2",
    "float8_e4m3fn": "2**-3",
    "bfloat16": "2**-7",
    "float16": "2**-10",
    "float32": "2**-23",
}


@dataclass(frozen=True)
class Standalone:
    """How one kernel is exported: its launch, the words that say who chose it, extras."""

    plan: FusionPlan
    config: LaunchConfig
    chosen: str
    custom_op: bool = False


def render_standalone(export: Standalone) -> str:
    """The file of a kernel; the same arguments give the same bytes.

    Raises `IllegalFusionError` where no kernel can be generated, or the plan has no site.
    """
    plan, scheme = export.plan, export.config.scheme
    if not plan.sites:
        raise IllegalFusionError("the plan has no site: nothing says how large its tensors are")
    check_renderable(plan, scheme)
    made = operator(plan) if export.custom_op else Operator()
    helpers = sorted({*helper_names(plan, scheme), *made.helpers})
    options = ", ".join(f"{name}={value}" for name, value in export.config.options().items())
    kernels = [
        *(HELPER_TEXT[name] for name in helpers),
        *device_code(plan, scheme),
        *made.device_code,
    ]
    return joined(
        [
            header(plan, notes(export)),
            "import os\nimport sys\n\n" + IMPORTS,
            *kernels,
            *made.before,
            launcher(plan, scheme, options=options, wrap=made.wrap),
            reference(plan),
            *made.after,
            *_program(plan, export.config, made),
            *main_text(kernels, gradients=made.differentiable),
        ]
    )


# --- provenance -----------------------------------------------------------------------------------


def notes(export: Standalone) -> list[str]:
    """The lines of the docstring that say where a kernel is from, and who chose its launch."""
    plan = export.plan
    places = [place_text(site) for site in plan.sites[:MOST_PLACES]]
    more = len(plan.sites) - len(places)
    axes = "lanes × steps × columns" if plan.states else "rows × columns"
    axes = "rows × depth × columns" if plan.product is not None else axes
    lines = ["", f"Found by {printable(plan.rule)} at these places ({axes}, runs a step):"]
    lines += [line for place in places for line in wrapped(place, 1)]
    lines += [f"    and {more} more"] if more else []
    lines += ["", *wrapped(f"Launched as {export.config.label()}: {printable(export.chosen)}.")]
    return [
        *lines,
        "Run this file on a GPU, or with TRITON_INTERPRET=1 on a CPU: it checks and times itself.",
    ]


def place_text(site: Site) -> str:
    sizes = " × ".join(str(size) for size in site.sizes)
    at = site.location
    line = f":{at.line}" if at.line is not None else ""
    words = [printable(at.module or ""), printable(f"{at.file}{line}") if at.file else ""]
    where = ", ".join(word for word in words if word) or "source line unknown"
    return f"{sizes}, {site.executions:g}: {where}"


# --- the program ----------------------------------------------------------------------------------


def _program(plan: FusionPlan, config: LaunchConfig, made: Operator) -> list[str]:
    site = plan.sites[0]
    terms = longest_sum(plan, site.rows, site.columns)
    checked = _scan_shapes(site) if plan.states else (_shapes(site), _small(site))
    if plan.product is not None:
        checked = _gemm_shapes(site)
    lines = [
        "",
        "# --- this file as a program: checks, then times " + "-" * (WIDTH - 49),
        "",
        "# Sizes of the axes where it was first found, and those it is checked at.",
        f"SHAPE = {site.sizes}",
        *statement(f"CHECKED = {{'cuda': {checked[0]}, 'cpu': {checked[1]}}}".replace("'", '"')),
        "# Rows of the interpreter are short: there, short blocks.",
        f'LAUNCH = {{"cuda": {{}}, "cpu": {_small_launch(config)}}}',
        "# Of each output: the last place that errors are counted in, the error allowed, and what",
        "# is allowed at most where eager's own is as large; None for what must be equal; 1 for",
        "# integers that a few floats halfway between two of them may be rounded to otherwise.",
        "ALLOWED = (",
        *(f"    {allowed_errors(plan, output, terms)}," for output in plan.outputs),
        ")",
        "# Kernels compiled for SHAPE: parameters in order (:16: divisible by 16), warps, stages.",
        "COMPILED = {",
        *(
            line
            for each in ((plan, config), *made.compiled)
            for launch in compiled_entries(*each)
            for line in launch
        ),
        "}",
    ]
    checks = [GRADIENT_CHECK] if made.differentiable else []
    head = "\n".join(lines) + "\n"
    return [
        head,
        EXACT,
        _make_inputs(plan),
        ulps_text(plan.column_axes),
        CHECK,
        *checks,
        _timing(plan),
    ]


def _timing(plan: FusionPlan) -> str:
    """The program's timing; of a table what is read is counted, not the table."""
    if not gathers(plan):
        return TIMING
    read = [
        f"gathered(inputs[{place}], inputs[{int((item.gathered or '')[2:])}])"
        if item.gathered is not None
        else f"inputs[{place}]"
        for place, item in enumerate(plan.inputs)
    ]
    lines = statement(f"read = ({', '.join(read)})", 1)
    counted = TIMING.replace("(*inputs, *out)", "(*read, *out)")
    return counted.replace("    moved =", "\n".join(lines) + "\n    moved =", 1)


def _shapes(site: Site) -> tuple[tuple[int, ...], ...]:
    """The own shape with fewer rows, and ragged ones."""
    rows, (*outer, columns) = list(site.row_sizes), site.column_axes
    most = max(MOST_CHECKED // max(site.columns, 1), 1)
    for axis, size in enumerate(rows):
        others = math.prod(rows[axis + 1 :])
        rows[axis] = max(min(size, most // max(others, 1)), min(size, 1))
        most //= max(rows[axis], 1)
    odd = tuple(3 for _ in rows)
    found = ((*rows, *outer, columns), (*odd, *outer, max(columns - 1, 1)))
    return tuple(dict.fromkeys((*found, (*odd, *outer, columns // 2 + 1))))


def _scan_shapes(site: Site) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Few lanes and all steps, fewer of these than a block, and one; in an interpreter fewer."""
    *lanes, steps = site.row_sizes
    few = tuple(min(size, 5 - place) for place, size in enumerate(lanes[:2])) + (1,) * len(
        lanes[2:]
    )
    some = min(steps, MOST_INTERPRETED_STEPS)
    gpu = ((steps, site.columns), (steps + 3, max(site.columns - 1, 1)), (1, site.columns))
    cpu = ((some, site.columns), (some // 2 + 1, max(site.columns - 1, 1)))
    return tuple(tuple((*few, *sizes) for sizes in dict.fromkeys(each)) for each in (gpu, cpu))


def _gemm_shapes(site: Site) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Few rows of the own product, and sizes that fill no block; in an interpreter all are few."""
    *rows, depth = site.row_sizes
    few = (min(rows[0], MOST_CHECKED_ROWS), *(min(size, 3) for size in rows[1:]))
    odd = tuple(3 for _ in rows)
    small_depth, small = min(depth, MOST_INTERPRETED_DEPTH), min(site.columns, INTERPRETED_BLOCK)
    gpu = ((*few, depth, site.columns), (*odd, depth + 3, max(site.columns - 1, 1)))
    cpu = ((*odd, small_depth, small), (*odd, small_depth // 2 + 1, max(small - 1, 1)))
    return tuple(tuple(dict.fromkeys(each)) for each in (gpu, cpu))


def _small(site: Site) -> tuple[tuple[int, ...], ...]:
    rows = tuple(min(size, MOST_INTERPRETED_ROWS) for size in site.row_sizes)
    *outer, columns = site.column_axes
    left = MOST_INTERPRETED_COLUMNS
    for axis, size in enumerate(outer):
        outer[axis] = min(size, MOST_INTERPRETED_ROWS)
        left //= max(outer[axis], 1)
    columns = min(columns, max(left, 1))
    return ((*rows, *outer, columns), (*rows, *outer, max(columns - 1, 1)))


def compiled_entries(plan: FusionPlan, config: LaunchConfig) -> Iterator[list[str]]:
    """An entry of `COMPILED` for each kernel."""
    site = plan.sites[0]
    for one in site_launches(plan, config, site):
        kinds = [f"{kind}:16" if name in one.aligned else kind for name, kind in one.types.items()]
        signature = ", ".join([*kinds, *(str(value) for value in one.constants.values())])
        *lines, last = textwrap.wrap(signature, WIDTH - 12)
        yield [
            f'    "{one.kernel.name}": (',
            *(f'        "{line} "' for line in lines),
            f'        "{last}",',
            f"        {config.num_warps},",
            f"        {config.num_stages},",
            "    ),",
        ]


def _small_launch(config: LaunchConfig) -> str:
    if config.block_columns is None:
        return "{}"
    if config.scheme == "gemm":
        return '{"block_rows": 16, "block_columns": 32, "block_steps": 16}'
    stages = ', "num_stages": 1' if "num_stages" in config.options() else ""
    return f'{{"block_columns": {min(config.block_columns, INTERPRETED_BLOCK)}{stages}}}'


def allowed_errors(plan: FusionPlan, output: PlanOutput, terms: int) -> str:
    """The last place, the error and the most that are allowed, as a tuple; or None."""
    if steps(plan, output.value):
        return "1"
    if output.dtype not in EPSILON:
        return "None"
    kinds = (output.dtype, *roundings(plan, output.value))
    epsilon = next(text for kind, text in EPSILON.items() if kind in kinds)
    most = allowance(plan, output.value, terms, narrow=epsilon != EPSILON["float32"])
    return f"({epsilon}, {most.ulps:.1f}, {most.most_ulps:.1f})"


def _make_inputs(plan: FusionPlan) -> str:
    names = [*(f"size_{axis}" for axis in range(plan.row_axes)), *column_names(plan)]
    axes = ", ".join(names)
    lines = [
        "",
        "def make_inputs(sizes, device):",
        '    """Random inputs for sizes of the axes; strided ones are cut out of wider storage."""',
        "    torch.manual_seed(0)",
        f"    {axes} = sizes",
        "    return (",
        *(line for item in plan.inputs for line in statement(f"{_random(plan, item, names)},", 2)),
        "    )",
    ]
    if gathers(plan):
        lines[5:5] = _tables(plan)
    return "\n".join(lines) + "\n"


def _tables(plan: FusionPlan) -> list[str]:
    """How many rows the tables have, the same number for all that one index numbers."""
    site, found = plan.sites[0], dict[str, int]()
    most = max(MOST_TABLE // max(site.columns, 1), 1)
    for place, item in enumerate(plan.inputs):
        rows = table_rows(site, place)
        if item.gathered is not None and rows is not None:
            found[item.gathered] = min(rows, most, found.get(item.gathered, rows))
    few = MOST_INTERPRETED_TABLE_ROWS
    return [
        f'    rows_{name} = {{"cuda": {rows}, "cpu": {min(rows, few)}}}[device]'
        for name, rows in found.items()
    ]


def _random(plan: FusionPlan, item: PlanInput, names: list[str]) -> str:
    if item.name in operands(plan):
        return random_operand(plan, item)
    if item.gathered is not None:
        axes = [*("1" for _ in item.spans[:-1]), names[-1]]
        axes[table_axis(item)] = f"rows_{item.gathered}"
        return random_input(item, axes, (True,) * len(axes))
    below = f"rows_{item.name}" if item.name in index_names(plan) else ""
    return random_input(item, names, plan.along(item), below)


def random_input(
    item: PlanInput, names: list[str], along: tuple[bool, ...], below: str = ""
) -> str:
    """An expression for a random input; `names` are those of the sizes of its axes.

    Integers are `below` an expression, if there is one.
    """
    shape = [name if span else "1" for name, span in zip(names, along, strict=True)]
    cut = ""
    if not item.dense:
        cut = f"[..., :{shape[-1]}]" if item.unit_stride else "[..., ::2]"
        shape[-1] = f"{shape[-1]} + 3" if item.unit_stride else f"2 * {shape[-1]}"
    sizes = f"({', '.join(shape)}{',' if len(shape) == 1 else ''})"
    if item.dtype in FLOAT_DTYPES:
        return f"torch.randn({sizes}, device=device).to(torch.{item.dtype}){cut}"
    high = below or (2 if item.dtype == "bool" else 5)
    return f"torch.randint(0, {high}, {sizes}, device=device).to(torch.{item.dtype}){cut}"
