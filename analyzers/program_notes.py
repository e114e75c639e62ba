"""What is worth knowing of a row program beside its price: how it is walked, what it draws."""

from __future__ import annotations

from advisor.model.configs import default_config
from advisor.model.findings import Evidence
from advisor.model.optable import RANDOM
from advisor.model.plan import FusionPlan, Site
from advisor.model.sectors import writes_along_rows
from advisor.units import counted

_DRAWN = (
    "random numbers come from the seed that Inductor draws and each element's own index, so the "
    "mask is that of a compiled step (from PyTorch 2.13 on, of its kernels that reduce): another "
    "one than eager's, of the same probability; kernel and reference are compared under one mask"
)


def walk(plan: FusionPlan, site: Site) -> Evidence:
    """The iteration space, and how often memory is read."""
    scheme = "dealt" if plan.members else default_config(plan, site).scheme
    split = scheme == "split"
    reads = "two launches share it out and read" if split else "one pass reads"
    if scheme in ("looped", "online") and writes_along_rows(plan, site):
        reads = "programs of many rows, which read them again in a later pass: one launch reads"
    tensors = sum(item.counts is None for item in plan.inputs)
    text = (
        f"the ops share one iteration space of {counted(site.rows, 'row')} × "
        f"{counted(site.columns, 'column')}; {reads} {counted(tensors, 'tensor')} and "
        f"{'write' if split else 'writes'} {len(plan.outputs)}"
    )
    return Evidence(kind="dataflow", text=text, values={"rows": site.rows, "columns": site.columns})


def lookups(plan: FusionPlan) -> list[Evidence]:
    """Which tables are read where they lie, and what their bytes are."""
    tables = sum(item.gathered is not None for item in plan.inputs)
    if not tables:
        return []
    text = (
        f"rows of {counted(tables, 'table')} are read by index, not what a lookup copied of them; "
        "bytes count a row for every index, up to the whole table: at most so many are read. An "
        "index outside its table, at which eager code stops, gives NaN: nothing is read there"
    )
    return [Evidence(kind="legality", text=text, values={"tables": tables})]


def draws(plan: FusionPlan) -> list[Evidence]:
    """Where the mask of a dropout comes from, if there is one."""
    if not any(op.op == RANDOM for op in plan.ops):
        return []
    return [Evidence(kind="legality", text=_DRAWN, values={})]
