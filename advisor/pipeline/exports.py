"""Plans that a command names, how each is launched, and their kernels as files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from advisor.codegen.standalone import Standalone
from advisor.codegen.standalone_group import render_file
from advisor.errors import IllegalFusionError, UsageError
from advisor.hardware.gpu import Gpu
from advisor.model.applied import Applied
from advisor.model.base import MAX_RECORD_BYTES, decode
from advisor.model.configs import default_config
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.pipeline.winners import known_winner, modelled_configs
from advisor.report.words import named
from advisor.store import RunDirectory
from advisor.store.files import make_directory, read_named, write_atomic

REMEDY = "give a run directory, or one of its plans: RUN/plans/ID.json"
NOT_TIMED = "the model's first choice, not timed"


@dataclass(frozen=True)
class Chosen:
    """A plan with how its kernel is launched, and the words that say who chose that."""

    plan: FusionPlan
    config: LaunchConfig
    why: str


def named_plans(
    path: Path, only: Sequence[str]
) -> tuple[tuple[FusionPlan, ...], RunDirectory | None]:
    """The plans of a run, or of one file, and the run that they are of, if they are of one.

    `only` names plans or findings of a run, these by id or by the number that `show` prints; a
    file is of a run where it is its `plans/ID.json`.
    Raises `UsageError` for a name that there is not, and for a run without plans.
    """
    if not path.is_dir():
        data = read_named(path, MAX_RECORD_BYTES, remedy=REMEDY)
        plan = decode(data, FusionPlan, str(path), REMEDY)
        if only and plan.id not in only:
            raise UsageError(
                f"{only[0]!r} is not the plan of this file",
                where=str(path),
                remedy=f"leave --only out: it holds {plan.id} alone",
            )
        return (plan,), _run_of(path)
    run = RunDirectory.at(path)
    known = run.plan_ids()
    if not known:
        raise UsageError(
            "the run has no plans", where=str(path), remedy="`fusion-advisor show` says why"
        )
    wanted = [found for name in only for found in _named(run, known, name)] or list(known)
    return tuple(run.plan(plan_id) for plan_id in dict.fromkeys(wanted)), run


def _run_of(path: Path) -> RunDirectory | None:
    """The run whose `plans/ID.json` a path is, None for any other file."""
    folder = path.resolve().parent
    if folder.name != "plans" or not (folder.parent / "report.json").is_file():
        return None
    return RunDirectory.at(folder.parent)


def _named(run: RunDirectory, known: Sequence[str], name: str) -> tuple[str, ...]:
    if name in known:
        return (name,)
    findings = named(run.report())
    if name in findings:
        finding = findings[name]
        ids = [finding.plan_id, *(i for way in finding.alternatives for i in way.plan_ids)]
        found = tuple(i for i in dict.fromkeys(ids) if i is not None and i in known)
        if found:
            return found
        raise UsageError(
            f"{finding.id} has no plan: no kernel answers it",
            where=run.id,
            remedy=f"what to do: {finding.action}",
        )
    near = get_close_matches(name, [*known, *findings], n=3, cutoff=0.5)
    raise UsageError(
        f"{name[:60]!r} is no plan or finding of this run",
        where=run.id,
        remedy=f"near: {', '.join(near)}" if near else "`fusion-advisor show` lists them",
    )


def chosen_launch(plan: FusionPlan, gpu: Gpu | None, applied: Applied | None) -> Chosen:
    """How a plan is launched: as measured, on the GPU asked for or in its run; else by the model.

    Raises `IllegalFusionError` for a plan without a site.
    """
    if not plan.sites:
        raise IllegalFusionError(
            f"plan {plan.id} has no site: nothing says how large its tensors are"
        )
    if gpu is not None:
        winner = known_winner(plan, gpu)
        if winner is not None:
            text = f"fastest of those timed on {winner.device} at {winner.shape}"
            return Chosen(plan, winner.config, text)
        return Chosen(plan, modelled_configs(plan, gpu)[0], f"{NOT_TIMED} on {gpu.name}")
    for verdict in applied.plans if applied is not None else ():
        if verdict.plan_id == plan.id and verdict.timings and applied is not None:
            text = f"fastest of those timed on {applied.device} at {verdict.timings[0].shape}"
            return Chosen(plan, verdict.configuration, text)
    return Chosen(plan, default_config(plan, plan.sites[0]), NOT_TIMED)


def generate_files(
    chosen: Sequence[Chosen], folder: Path, *, custom_op: bool
) -> tuple[list[Path], list[tuple[FusionPlan, str]]]:
    """One file a kernel in `folder`: (those written, plans without a kernel and why).

    Nothing is written before every source is there. Raises `UnreadableError` for a folder that
    cannot be written.
    """
    sources: dict[str, str] = {}
    refused: list[tuple[FusionPlan, str]] = []
    for item in chosen:
        export = Standalone(item.plan, item.config, item.why, custom_op)
        try:
            sources[item.plan.id] = render_file(export)
        except IllegalFusionError as error:
            refused.append((item.plan, error.what))
    written = []
    if sources:
        make_directory(folder, parents=True)
    for plan_id, text in sources.items():
        path = folder / f"{plan_id}.py"
        write_atomic(path, text.encode())
        written.append(path)
    return written, refused
