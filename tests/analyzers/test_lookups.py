"""What is said of row programs that read a table, and what their lookups cost today."""

from __future__ import annotations

import torch
from torch.nn import functional

from analyzers.naming import describe
from analyzers.program_cost import nodes_bytes
from analyzers.program_notes import lookups
from analyzers.row_plans import canonical_program, plan_of
from analyzers.row_programs import find_row_programs
from tests.builders.captured import captured
from tests.codegen import plans

ROWS, WIDTH, TABLE = 4 * 16, 32, 5000


def normed(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    read = functional.embedding(ids, table)
    return read * torch.rsqrt((read * read).mean(-1, keepdim=True) + 1e-6)


def test_a_lookup_reads_rows_of_its_table_not_all_of_it() -> None:
    inputs = torch.randint(0, TABLE, (4, 16)), torch.randn(TABLE, WIDTH)
    (graph,) = captured(normed, *inputs).graphs
    found = find_row_programs(graph.lowered.graph)
    (group,) = found.whole
    (lookup,) = (lookup.node for lookup in group.space.lookups.values())
    row = WIDTH * 4
    assert lookup in group.own
    assert nodes_bytes(found.flow, {lookup}) == 2 * ROWS * row + ROWS * 8
    assert nodes_bytes(found.flow, set(group.members)) == 2 * ROWS * row + ROWS * 8
    plan = plan_of([canonical_program(found.flow, group)], "inference", "")
    assert describe(plan) == "embedding + RMS norm"
    assert plan.sites[0].table_rows == (0, TABLE)


def test_what_bytes_of_tables_are_and_what_is_not_noticed_is_said() -> None:
    (told,) = lookups(plans.embedding_norm())
    assert "rows of 2 tables are read by index" in told.text
    assert "at most so many are read" in told.text
    assert "gives NaN: nothing is read there" in told.text
    assert lookups(plans.layer_norm()) == []
