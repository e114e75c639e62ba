"""`fusion-advisor generate`: the kernels of plans as files that run by themselves."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.output import echo
from advisor.errors import IllegalFusionError
from advisor.hardware.gpus import gpu_by_key
from advisor.pipeline.exports import chosen_launch, generate_files, named_plans
from advisor.report.text import plain


@click.command()
@click.argument("source", metavar="RUN|PLAN.json", type=click.Path(path_type=Path))
@click.option(
    "--only",
    multiple=True,
    metavar="ID",
    help="Only this plan, or the plans of this finding (its id, or its number in `show`; may be "
    "repeated).",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("kernels"),
    show_default=True,
    metavar="FOLDER",
    help="Where the files go; one of the same name is replaced.",
)
@click.option(
    "--gpu",
    metavar="NAME",
    help="Launch as measured on this GPU, or as the model thinks best for it.  "
    "[default: as its run measured it, else the model]",
)
@click.option(
    "--custom-op",
    is_flag=True,
    help="Each file also offers the kernel as a torch.library operator, with its gradient.",
)
def generate(
    source: Path, only: tuple[str, ...], out: Path, gpu: str | None, custom_op: bool
) -> None:
    """Write the kernel of every plan of RUN, or of PLAN.json, to a file of its own.

    A file holds the equation, shapes and places it is from, the Triton kernel, its launcher and a
    reference in PyTorch; it needs torch and triton, nothing of this tool. Run as a program, it
    checks itself against the reference and, on a GPU, times itself beside a copy of its bytes
    (TRITON_INTERPRET=1 checks it without a GPU). The same plan gives the same bytes.
    """
    card = gpu_by_key(gpu) if gpu is not None else None
    plans, run = named_plans(source, only)
    applied = run.applied() if run is not None else None
    chosen = [chosen_launch(plan, card, applied) for plan in plans]
    written, refused = generate_files(chosen, out, custom_op=custom_op)
    by_name = {f"{item.plan.id}.py": item for item in chosen}
    for path in written:
        item = by_name[path.name]
        echo(plain(f"{path}: {item.plan.title}; {item.config.label()}, {item.why}"))
    for plan, why in refused:
        echo(plain(f"no kernel for {plan.id} ({plan.title}): {why}", "yellow"))
    if not written:
        raise IllegalFusionError("nothing was written: no plan has a kernel", where=str(source))
