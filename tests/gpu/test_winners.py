"""A search on a GPU ends in a file, and the next one starts from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor.hardware.gpus import find_gpu
from advisor.pipeline.candidates import Candidate, generate, size, time
from advisor.pipeline.winners import stored_winner
from advisor.store import RunDirectory
from advisor.verify.timing_process import TimingProcess
from tests.builders.plan import rms_norm

if not torch.cuda.is_available():
    pytest.skip("kernels are timed on a GPU only", allow_module_level=True)


def test_the_second_search_times_what_the_first_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = find_gpu(torch.cuda.get_device_name())
    if gpu is None:
        pytest.skip("this GPU is not in the table")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = RunDirectory.create_at(tmp_path / "run")
    plan = rms_norm(columns=1536)
    run.write_plan(plan)
    tried = []
    for _ in range(2):
        found = {plan.id: Candidate(plan)}
        generate(found, run.path / "kernels", lambda *_, **__: None)
        size(found, [gpu], gpu, lambda *_, **__: None)
        tried.append(len(found[plan.id].usable))
        with TimingProcess("cuda") as timer:
            time(found, run, timer, lambda *_, **__: None)
        assert found[plan.id].refused is None
        winner = stored_winner(plan, gpu)
        assert winner is not None
        assert winner.config == found[plan.id].config
    assert tried[0] > 1
    assert tried[1] == 1
