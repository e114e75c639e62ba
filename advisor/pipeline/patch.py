"""A patch: what a run kept as a Python package of its own, with the one line that applies it.

It holds the records that `advisor.load` reads (`applied.json` with what was kept and nothing else,
`plans/ID.json`), the kernels as `generate` writes them, and a README with what was measured; where
a kernel is a module's whole `forward`, `forwards.diff` changes that source to call it. The
run directory is not needed; nothing in the package is executed but its `apply`.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from keyword import iskeyword
from pathlib import Path

import msgspec

from advisor import __version__
from advisor.codegen.forward_text import forwards_text, function_name
from advisor.codegen.operators import operator
from advisor.codegen.standalone import Standalone
from advisor.codegen.standalone_group import render_file
from advisor.errors import IllegalFusionError, UsageError
from advisor.model.actions import ANSWERS
from advisor.model.applied import Applied, SetVerdict
from advisor.model.base import encode
from advisor.model.forward import Forwards, WholeForward
from advisor.model.plan import FusionPlan
from advisor.pipeline.exports import chosen_launch
from advisor.pipeline.nothing_kept import nothing_kept
from advisor.report.markdown import to_markdown
from advisor.report.patch_document import patch_document
from advisor.report.source_diff import source_diff
from advisor.report.words import named
from advisor.store import RunDirectory, verify
from advisor.store.files import make_directory, write_atomic

PACKAGE = "fusion_patch"
PART = "a part of what was kept together: it was not measured alone"
NO_DIFF = "no source diff"
NOT_LOOKED_AT = "the run does not say whether it is the whole forward of a module"
BACKWARD = "it is part of the backward pass, which no forward holds"
NO_OPERATOR = "it cannot be an operator by itself"
# Entries of an archive carry a time; the earliest it can say, so that the same run gives the same.
_TIME = (1980, 1, 1, 0, 0, 0)
_MODULE = '''"""What fusion advisor kept of a run, as a package; README.md says what was measured.

    import NAME
    model = NAME.apply(model)                    # inference
    step = NAME.apply(model, optimizer, loss)    # training: step() is one step
"""

from pathlib import Path

HERE = Path(__file__).resolve().parent


def apply(model, optimizer=None, loss=None):
    """The model, or one training step of it, made to run as the run found best.

    Weights, batch norms and the optimizer are changed in place; `revert()` of the result takes
    compiled graphs, kernels and CUDA graphs out again.
    """
    import advisor  # what forwards.diff calls does without it

    return advisor.load(HERE).apply(model, optimizer, loss)
'''


def package_name(out: Path) -> str:
    """What a patch is imported as: the name of its folder, or `fusion_patch` in an archive.

    Raises `UsageError` where Python cannot import a folder of that name.
    """
    if out.suffix == ".zip":
        return PACKAGE
    name = out.resolve().name
    if not name.isidentifier() or iskeyword(name):
        raise UsageError(
            "Python cannot import a folder of that name",
            where=str(out),
            remedy=f"name it with letters, digits and underscores, such as {PACKAGE}",
        )
    return name


def patch_files(
    run: RunDirectory, only: Sequence[str] = (), package: str = PACKAGE
) -> dict[str, bytes]:
    """The files of the patch of a run by their names within it, of `only` these findings, plans or
    actions; it is imported as `package`. The same run gives the same bytes.

    Raises `UsageError` where nothing is kept, or nothing of what `only` names.
    """
    applied = kept_only(run, only)
    plans = {plan_id: run.plan(plan_id) for plan_id in applied.set.plans}
    files = {
        "__init__.py": _MODULE.replace("NAME", package).encode(),
        "applied.json": encode(applied),
    }
    for plan_id, plan in plans.items():
        files[f"plans/{plan_id}.json"] = encode(plan)
        files[f"kernels/{plan_id}.py"] = kernel_text(plan, applied).encode()
    changes, told = _source_changes(run.forwards(), tuple(plans.values()))
    if changes:
        files["forwards.py"] = forwards_text(changes).encode()
        named = [(forward, function_name(plan, forward)) for plan, forward in changes]
        files["forwards.diff"] = source_diff(named, package).encode()
    whole = applied.set.reason != PART
    document = patch_document(
        run.report().workload.target,
        _made(run),
        applied,
        told,
        whole=whole,
        changed=bool(changes),
        package=package,
    )
    files["README.md"] = to_markdown(document).encode()
    return dict(sorted(files.items()))


def _source_changes(
    known: Forwards | None, plans: Sequence[FusionPlan]
) -> tuple[list[tuple[FusionPlan, WholeForward]], dict[str, str]]:
    """The forwards that kernels are the whole of, and what the README says of each plan."""
    changes: list[tuple[FusionPlan, WholeForward]] = []
    told: dict[str, str] = {}
    for plan in plans:
        found = known.of(plan) if known is not None else None
        unknown = BACKWARD if plan.phase == "backward" else NOT_LOOKED_AT
        why = unknown if found is None else found.reason
        if found is not None and found.forwards and not _is_operator(plan):
            why = NO_OPERATOR
        if why or found is None:
            told[plan.id] = f"{NO_DIFF}: {why}"
            continue
        changes += [(plan, forward) for forward in found.forwards]
        told[plan.id] = "; ".join(
            f"forwards.diff puts it into {forward.type_name}.forward ({forward.file})"
            for forward in found.forwards
        )
    return changes, told


def _is_operator(plan: FusionPlan) -> bool:
    try:
        operator(plan)
    except IllegalFusionError:
        return False
    return True


def kept_only(run: RunDirectory, only: Sequence[str]) -> Applied:
    """The record of an application less all that was not kept, or is not in `only`."""
    applied = run.applied()
    if applied is None or applied.set.verdict != "kept":
        raise nothing_kept(applied, "nothing is kept in this run, so there is no patch", run.id)
    wanted = {named for name in only for named in _named(run, name)}
    plans = tuple(p for p in applied.set.plans if not only or p in wanted)
    actions = tuple(a for a in applied.set.actions if not only or a in wanted)
    if not plans and not actions:
        raise UsageError(
            f"nothing of {', '.join(only)[:80]} is kept in this run",
            where=run.id,
            remedy=f"kept are: {', '.join((*applied.set.actions, *applied.set.plans))}",
        )
    whole = (plans, actions) == (applied.set.plans, applied.set.actions)
    part = SetVerdict(verdict="kept", reason=PART, plans=plans, actions=actions)
    kept = applied.set if whole else part
    return msgspec.structs.replace(
        applied,
        plans=tuple(verdict for verdict in applied.plans if verdict.plan_id in plans),
        actions=tuple(verdict for verdict in applied.actions if verdict.kind in actions),
        set=kept,
        metrics_before=applied.metrics_before if whole else {},
        metrics_after=applied.metrics_after if whole else {},
    )


def _named(run: RunDirectory, name: str) -> set[str]:
    """The plans and actions that a name stands for: a finding's, by id or number, or itself."""
    finding = named(run.report()).get(name)
    if finding is None:
        return {name}
    ids = {i for way in finding.alternatives for i in way.plan_ids}
    return {finding.plan_id or "", *ids, *ANSWERS.get(finding.rule, ())}


def kernel_text(plan: FusionPlan, applied: Applied) -> str:
    """The kernel as a file of its own, with its gradient where one can be derived."""
    chosen = chosen_launch(plan, None, applied)
    try:
        return render_file(Standalone(plan, chosen.config, chosen.why, custom_op=True))
    except IllegalFusionError:
        return render_file(Standalone(plan, chosen.config, chosen.why))


def _made(run: RunDirectory) -> str:
    text = f"Made by fusion advisor {__version__} from the run {run.id}."
    if verify(run) is None:
        return text
    return f"{text} The run is not from the machine that wrote this: its figures are as it states."


def write_folder(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the patch into an absent or empty folder; raises `UsageError` for any other."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            "the folder is not empty",
            where=str(folder),
            remedy="name another with -o, or remove it first",
        )
    make_directory(folder, parents=True)
    for name, data in files.items():
        make_directory((folder / name).parent, parents=True)
        write_atomic(folder / name, data)


def write_archive(files: Mapping[str, bytes], path: Path) -> None:
    """Write the patch as a zip file with one folder, `fusion_patch`; a file there is replaced."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(f"{PACKAGE}/{name}", _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    make_directory(path.parent, parents=True)
    write_atomic(path, held.getvalue())
