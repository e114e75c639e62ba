"""A few cases of the corpus of over-fusion, recorded as all of them are."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
ROOT = Path(__file__).parents[2]
FAMILIES = ("norm_gate", "two_chains", "compiled_total")


def test_cases_are_recorded_labelled_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, archive = tmp_path / "out", tmp_path / "corpus.tgz"
    script = [sys.executable, str(ROOT / "benchmarks" / "overfusion_record.py"), "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*script, "--pack", str(archive), *FAMILIES], env=environment, check=False
    )
    assert done.returncode == 0, list((out / "failed").glob("*"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    frozen: Any = importlib.import_module("overfusion_corpus.frozen")
    found = frozen.unpack(tmp_path / "MANIFEST.json", tmp_path / "back")
    corpus: Any = importlib.import_module("overfusion_corpus")
    assert set(found.results) == {c.id for c in corpus.all_cases() if c.family in FAMILIES}
    for name, result in found.results.items():
        assert result.error < 0.05
        assert result.sized
        assert result.ratio[0] <= result.ratio[1] <= result.ratio[2]
        for variant in ("fused", "members"):
            assert found.trace(name, variant).exists()
        if result.case.engine == "inductor":
            assert result.fused.generated
            assert "def call(" in found.code(name, "fused")
    # The sum that is not split is one program on a card of many multiprocessors.
    alone = next(n for n in found.labels if n.startswith("compiled_total") and "False" in n)
    assert (found.labels[alone].verdict, found.labels[alone].cause) == (
        "regression",
        "too_few_programs",
    )
