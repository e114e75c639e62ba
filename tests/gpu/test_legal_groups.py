"""What may be fused is decided by the graph: the same groups with the card and without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from advisor.samples import SAMPLES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
TARGETS = [f"sample:{name}{kind}" for name, _, _ in SAMPLES for kind in ("", ":train")]


def profiling(target: str, out: Path, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "advisor.cli.main", "profile", target, "--gpu", "h200"]
    return subprocess.Popen(
        [*command, "--out", str(out)],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def groups(run: Path) -> set[str]:
    """Ids of the plans: a hash of the rule, the modules and the canonical subgraph."""
    return {plan["id"] for plan in json.loads((run / "report.json").read_text())["plans"]}


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_groups_are_legal_with_the_card_and_without_it(
    tmp_path: Path, target: str
) -> None:
    with_card = profiling(target, tmp_path / "with")
    without = profiling(target, tmp_path / "without", CUDA_VISIBLE_DEVICES="")
    assert (with_card.wait(), without.wait()) == (0, 0)
    assert groups(tmp_path / "with") == groups(tmp_path / "without")
