"""What may be fused is decided by the graph: the same groups with the card and without it.

Which of them a report proposes is decided by price, and so by what was measured on the card.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.samples import SAMPLES
from tests.builders.legal_groups import MARK

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
ROOT = Path(__file__).parents[2]
TARGETS = [f"sample:{name}{kind}" for name, _, _ in SAMPLES for kind in ("", ":train")]


def looking(target: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.builders.legal_groups", target],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def groups(child: subprocess.Popen[str]) -> list[Any]:
    """Phase and signature of every group of the workload's graphs, ordered."""
    said, _ = child.communicate()
    assert child.returncode == 0
    line = next(text for text in said.splitlines() if text.startswith(MARK))
    found: list[Any] = json.loads(line.removeprefix(MARK))
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_groups_are_legal_with_the_card_and_without_it(target: str) -> None:
    with_card, without = looking(target), looking(target, CUDA_VISIBLE_DEVICES="")
    expected, found = groups(with_card), groups(without)
    missing = [shown(group) for group in expected if group not in found]
    more = [shown(group) for group in found if group not in expected]
    assert not missing + more, "\n".join(["only with the card:", *missing, "without it:", *more])


def shown(group: tuple[str, str]) -> str:
    """A group in a line: its phase, what it reads, and its ops."""
    phase, signature = group
    program = json.loads(signature)
    inputs = [
        f"{item['dtype']}[{''.join(':' if span else '1' for span in item['spans'])}]"
        for item in program.pop("inputs")
    ]
    ops = [op.get("op") for op in program.pop("ops")]
    return f"{phase} {' '.join(inputs)} -> {' '.join(map(str, ops))} {program}"
