"""`fusion-advisor resources`: what kernels need on any GPU, by compiling them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from advisor.cli.output import echo, echo_json
from advisor.cli.sized import DEFAULT_GPUS, gpus_of, seconds
from advisor.errors import UsageError
from advisor.model.base import encode
from advisor.model.resources import ResourceTable
from advisor.pipeline.exports import named_plans
from advisor.pipeline.resource_table import plans_table, requests_table
from advisor.report.resources import render_resources
from advisor.report.text import plain
from advisor.verify.kernel_file import file_requests


@click.command()
@click.argument("source", metavar="PLAN.json|RUN|KERNEL.py", type=click.Path(path_type=Path))
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    default=(DEFAULT_GPUS,),
    show_default=True,
    metavar="NAMES",
    help="GPUs, separated by commas; none of them has to be here.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="ID",
    help="Only this plan or finding of RUN, this by id or number (repeatable).",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the N likeliest configurations of each GPU, each on all of them.  [default: all]",
)
@click.option(
    "--timeout",
    type=float,
    callback=seconds,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long one compilation may take.",
)
@click.option("--kernel", metavar="NAME", help="Of KERNEL.py: the kernel, where it has several.")
@click.option(
    "--signature",
    metavar="ITEMS",
    help='Of KERNEL.py: its parameters in order, as "*fp16:16, i32:16, 1024" (types, constants).',
)
@click.option(
    "--num-warps",
    "warps",
    multiple=True,
    type=click.Choice(["1", "2", "4", "8", "16", "32"]),
    help="Of KERNEL.py: warps of a program (repeatable).  [default: as the file says, or 4]",
)
@click.option(
    "--num-stages",
    "stages",
    multiple=True,
    type=click.IntRange(1, 8),
    help="Of KERNEL.py: stages of its loops (repeatable).  [default: as the file says, or 3]",
)
@click.option(
    "--cure",
    is_flag=True,
    help="Of KERNEL.py: where no launch is one to use, look for one and prove it by compiling.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def resources(
    source: Path,
    gpus: tuple[str, ...],
    only: tuple[str, ...],
    top: int | None,
    timeout: float,
    kernel: str | None,
    signature: str | None,
    warps: tuple[str, ...],
    stages: tuple[int, ...],
    cure: bool,
    as_json: bool,
) -> None:
    """Compile every configuration of a plan, or a Triton file, for GPUs, and say what it needs.

    Registers, spills, shared memory and occupancy with what bounds it, and which configuration to
    use or to avoid there, with the reason. No GPU is needed: Triton's own compilers do it, in
    processes with a time limit; results are cached. KERNEL.py is not run: its kernels are compiled
    for the types that --signature gives (files of `generate` know their own).
    """
    cards = gpus_of(gpus)
    is_file = source.suffix == ".py" and not source.is_dir()
    of_file = {"--kernel": kernel, "--signature": signature, "--num-warps": warps,
               "--num-stages": stages, "--cure": cure}  # fmt: skip
    _refuse({"--only": only, "--top": top} if is_file else of_file, source, is_file=is_file)
    if is_file:
        wanted = file_requests(
            source,
            only=kernel,
            signature=signature,
            warps=[int(number) for number in warps],
            stages=stages,
        )
        table = requests_table(wanted, cards, str(source), timeout_s=timeout, cure=cure)
    else:
        plans, _ = named_plans(source, only)
        table = plans_table(plans, cards, str(source), top=top, timeout_s=timeout)
    _print(table, as_json)
    if cure and not table.cures and not as_json:
        echo(plain("nothing to cure: every kernel has a launch that fits, or none that compiles"))


def _refuse(options: Mapping[str, object], source: Path, *, is_file: bool) -> None:
    """Raise `UsageError` for an option that would change nothing."""
    for name, value in options.items():
        if value:
            kind = "a Triton file" if is_file else "a plan or a run"
            raise UsageError(
                f"{name} has no meaning for {kind}", where=str(source), remedy="leave it out"
            )


def _print(table: ResourceTable, as_json: bool) -> None:
    if as_json:
        echo_json(encode(table))
    else:
        echo(render_resources(table))
