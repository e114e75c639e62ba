"""Runs profiled on the GPU keep what comparing them needs, and compare to a judgement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from advisor.cli.main import run as command
from advisor.store import RunDirectory
from analyzers.overfusion.kernel_source import read_kernel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_eager_and_compiled_runs_are_paired_and_the_shares_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for mode in ("eager", "compile"):
        runs.append(str(tmp_path / mode))
        assert (
            command(["profile", "sample:transformer_block", "--mode", mode, "--out", runs[-1]]) == 0
        )
    compiled = RunDirectory.at(Path(runs[1])).step()
    assert compiled is not None
    assert compiled.launches
    generated = {x.name for x in compiled.launches if x.name.startswith("triton_")}
    assert generated
    assert generated <= {code.name for code in compiled.codes}
    assert all(read_kernel(code) is not None for code in compiled.codes)
    capsys.readouterr()
    assert command(["compare", *runs, "--format", "json", "--accept", "graph_hash"]) == 0
    body = json.loads(capsys.readouterr().out)
    found = body["bisection"]
    assert sum(x["change_ns"] for x in found["shares"]) == found["after_ns"] - found["before_ns"]
    # Fusing this model does not hurt: nothing may be raised for the step as a whole.
    assert not [f for f in body["regressions"] if "side by side" in f["title"]]
