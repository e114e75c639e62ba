"""What may be fused is decided by the graph: the same groups with the card and without it.

Which of them a report proposes is decided by price, and so by what was measured on the card.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from advisor.samples import SAMPLES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
TARGETS = [f"sample:{name}{kind}" for name, _, _ in SAMPLES for kind in ("", ":train")]
GROUPS = """
import json, sys, torch
from advisor.pipeline.backend import programs_of
from collectors.live.capture import capture
from collectors.live.workload import load_workload
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
captured, _ = capture(load_workload(sys.argv[1], device), generate_code=False, eager=True)
lowered = [graph.lowered.graph for graph in captured.graphs]
programs = [(graph.phase, p) for graph in lowered for p in programs_of(graph)]
found = {(phase, program.signature()): [op.op for op in program.ops] for phase, program in programs}
print("GROUPS", json.dumps([[*key, ops] for key, ops in sorted(found.items())]))
"""


def looking(target: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", GROUPS, target],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def groups(child: subprocess.Popen[str]) -> list[Any]:
    """Phase, signature and ops of every group of the workload's graphs, ordered."""
    said, _ = child.communicate()
    assert child.returncode == 0
    line = next(text for text in said.splitlines() if text.startswith("GROUPS "))
    found: list[Any] = json.loads(line.removeprefix("GROUPS "))
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_groups_are_legal_with_the_card_and_without_it(target: str) -> None:
    with_card, without = looking(target), looking(target, CUDA_VISIBLE_DEVICES="")
    expected = groups(with_card)
    assert groups(without) == expected
