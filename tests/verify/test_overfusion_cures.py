"""The cures of the corpus: launches that still compute the same, pieces as the card took them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from advisor.model.remedies import REMEDIES, command_of
from analyzers.bucket_advice import best_pieces, step_ns

pytest.importorskip("triton", reason="the interpreter is Triton's")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cured() -> Any:
    """What a child says that interprets kernels."""
    child = Path(__file__).with_name("overfusion_cured.py")
    path = f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}"
    done = subprocess.run(
        [sys.executable, str(child)], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_kernel_launched_with_other_tiles_computes_the_same(cured: Any) -> None:
    assert all(cured["errors"].values()), cured["errors"]
    for family, errors in cured["errors"].items():
        for words, error in errors.items():
            assert error < 0.02, (family, words, error)


def test_cases_are_cured_from_end_to_end_but_for_the_clock(cured: Any) -> None:
    kinds = [tuple(dict.fromkeys(kinds)) for kinds in cured["kinds"].values()]
    assert kinds == [
        ("launch", "separate"), ("launch", "separate"), ("buckets",), ("split", "separate"),
    ]  # fmt: skip
    # The stub's clock: 2,000 ns as it is, 1,000 its members, 1,100 with any cure.
    assert cured["won"] == pytest.approx(0.9)
    assert "4 of 4 losing cases cured" in cured["text"]


# Sixteen layers and the transfer of their results, ns, as recorded on an H200; what one piece and
# sixteen took, without the profiler. The sixteen that are left out took a third more than the model
# says: it tells what is possible at best.
MEASURED = ((71_680, 1_213_024, 2_358_275, None), (11_232, 1_215_803, 1_390_946, 1_273_890),
            (279_201, 1_215_900, 5_679_847, 4_584_614))  # fmt: skip


@pytest.mark.parametrize(("layer", "transfer", "one", "sixteen"), MEASURED)
def test_pieces_take_what_they_took_on_a_gpu(
    layer: int, transfer: int, one: int, sixteen: int | None
) -> None:
    assert step_ns([layer] * 16, transfer, 3_000, 1) == pytest.approx(one, rel=0.01)
    if sixteen is not None:
        assert step_ns([layer] * 16, transfer, 3_000, 16) == pytest.approx(sixteen, rel=0.02)
    assert best_pieces([layer] * 16, transfer, 3_000) >= 4


def test_what_was_not_timed_wins_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("overfusion_cures")
    ways = (
        script.Way(kind="launch", words="untimed"),
        script.Way(kind="separate", words="apart", time_ns=1_100),
    )
    case = partial(script.Cured, cause="register_spill")
    report = script.Report(
        gpu="a GPU",
        causes="rules",
        cases=(
            case(case="cured", fused_ns=2_000, members_ns=1_000, ways=ways),
            case(case="not cured", why="no cure agrees with the members"),
            case(case="did not lose", fused_ns=1_000, members_ns=1_000, ways=ways),
        ),
    )
    text, won = script.summary(report)
    assert won == pytest.approx(0.45)
    assert "1 of 2 losing cases cured" in text
    assert "| register_spill | 1 | 90% | 90% | 1 separate |" in text
    assert "did not lose: lost nothing this time" in text


def test_every_cause_has_a_cure_and_the_last_resort_is_not_the_first() -> None:
    assert len(REMEDIES) == 16
    for cause, remedies in REMEDIES.items():
        kinds = [remedy.kind for remedy in remedies]
        assert kinds, cause
        assert "separate" not in kinds[:-1], cause


def test_a_finding_names_the_command_that_tries_its_cure() -> None:
    compiled = "triton_red_fused_add_gelu_0"
    assert command_of(compiled, "recompute") == "fusion-advisor unfuse RUN"
    assert command_of(compiled, "stale_config") == "fusion-advisor apply RUN --only retune"
    assert command_of("norm_gate", "register_spill") == (
        "fusion-advisor resources KERNEL.py --cure"
    )
    assert command_of("norm_gate", "widened_traffic") == ""
    # Anybody may call a kernel of their own fused.
    own = command_of("rms_norm_fused_kernel", "register_spill")
    assert own == "fusion-advisor resources KERNEL.py --cure"
