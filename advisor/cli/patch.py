"""`fusion-advisor patch`: what a run kept as a package that needs no run."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.output import echo
from advisor.pipeline.patch import PACKAGE, package_name, patch_files, write_archive, write_folder
from advisor.report.text import counted, plain
from advisor.store import RunDirectory


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--only",
    multiple=True,
    metavar="ID",
    help="Only what was kept of this finding (its id, or its number in `show`), plan or action "
    "(may be repeated).",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default=Path(PACKAGE),
    show_default=True,
    metavar="DIR|FILE.zip",
    help="Where it goes: an empty folder, or a zip file, which is replaced.",
)
def patch(run: Path, only: tuple[str, ...], out: Path) -> None:
    """Write what apply kept in RUN as a Python package that needs no run directory.

    It holds the kept kernels as `generate` writes them, the actions and plans as data, the one line
    that applies them (`import fusion_patch; model = fusion_patch.apply(model)`, by the name of the
    folder), and a README with what was measured on what. Where only library calls and settings were
    kept, it has no kernel; where a kernel is the whole forward of a module, `forwards.diff` changes
    that source to call it.
    """
    package = package_name(out)
    files = patch_files(RunDirectory.at(run), only, package)
    if out.suffix == ".zip":
        write_archive(files, out)
    else:
        write_folder(files, out)
    kernels = sum(name.startswith("kernels/") for name in files)
    text = f"{out}: {counted(kernels, 'kernel')}, used by `import {package}`; README.md says how"
    echo(plain(f"{text}, and what was measured"))
