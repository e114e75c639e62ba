"""Every legal group of a workload, in a line: python -m tests.builders.legal_groups TARGET."""

from __future__ import annotations

import json
import sys

import torch

from advisor.pipeline.graph_programs import programs_of
from collectors.live.capture import capture
from collectors.live.workload import load_workload

MARK = "GROUPS "


def legal_groups(target: str, device: torch.device) -> list[tuple[str, str]]:
    """(phase, signature) of every program that a plan may be for, ordered."""
    captured, _ = capture(load_workload(target, device), generate_code=False, eager=True)
    graphs = [item.lowered.graph for item in captured.graphs]
    return sorted(
        {(graph.phase, p.signature()) for graph in graphs for p in programs_of(graph).programs}
    )


if __name__ == "__main__":
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sys.stdout.write(f"\n{MARK}{json.dumps(legal_groups(sys.argv[1], here))}\n")
