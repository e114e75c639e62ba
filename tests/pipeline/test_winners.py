"""Searched configurations are kept by GPU, kernel and size, and used first the next time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.errors import InvalidRecordError
from advisor.hardware.gpus import gpu_by_key
from advisor.model.applied import KernelTiming, Timing
from advisor.model.base import encode, load
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.model.winners import Winner, Winners, bucket_of, kernel_key
from advisor.pipeline.winners import (
    SHIPPED,
    choices,
    known_winner,
    modelled_configs,
    remember,
    shipped_winner,
    stored_winner,
    winner_of,
    winner_path,
)
from benchmarks.kernel_rows import Results, Row, read
from benchmarks.winners import ROWS, RUNS, table_of
from tests.builders.plan import rms_norm

H200, A100 = gpu_by_key("h200"), gpu_by_key("a100")
CONFIG = LaunchConfig(block_rows=4, num_warps=16)
# Every tenth of the kernels that ship is compiled, all with FUSION_ADVISOR_MATRIX=1.
STRIDE = 1 if os.environ.get("FUSION_ADVISOR_MATRIX") else 10
RUN = RUNS / "llama_prefill_eager"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def won(plan: FusionPlan, *, triton: str = "3.7.1") -> Winner:
    took = Timing(median_ns=9_000, low_ns=8_900, high_ns=9_100, samples=5)
    timing = KernelTiming(shape="4096×2048", config=CONFIG.label(), bytes=1 << 25, kernel=took)
    return winner_of(
        plan, H200, CONFIG, timing, device="NVIDIA H200", triton=triton, created="2026-11-29"
    )


def test_a_winner_is_found_for_its_gpu_kernel_and_sizes_only() -> None:
    plan = rms_norm(columns=2048)
    assert remember(won(plan), plan, H200) == winner_path(plan, H200)
    assert stored_winner(plan, H200) == won(plan)
    assert stored_winner(plan, A100) is None
    assert stored_winner(rms_norm(columns=2049), H200) is None
    assert stored_winner(rms_norm(columns=1025), H200) == won(plan), "the same bucket"
    assert stored_winner(rms_norm(columns=2048, dtype="float16"), H200) is None
    elsewhere = msgspec.structs.replace(plan, id="f" * 16, title="the same kernel elsewhere")
    assert stored_winner(elsewhere, H200) == won(plan)


def test_the_search_starts_where_the_last_one_ended() -> None:
    plan = rms_norm(columns=2048)
    modelled = modelled_configs(plan, H200)
    assert choices(plan, H200, "3.7.1") == modelled
    remember(won(plan), plan, H200)
    assert choices(plan, H200, "3.7.1") == (CONFIG,)
    again = choices(plan, H200, "3.8.0")
    assert again[0] == CONFIG
    assert set(again) == {CONFIG, *modelled}, "another compiler: the search goes on"


def test_a_damaged_winner_is_searched_again_and_a_folder_may_be_shut(tmp_path: Path) -> None:
    plan = rms_norm(columns=2048)
    path = remember(won(plan), plan, H200)
    assert path is not None
    path.write_bytes(b"{}")
    assert known_winner(plan, H200) is None
    assert remember(won(plan), plan, H200, Path("/proc/none")) is None


def test_what_ships_is_what_was_measured() -> None:
    """The committed table is the one that the recorded runs give; every entry was timed."""
    table = load(SHIPPED / "h200.json", Winners)
    assert table == table_of(sorted(RUNS.iterdir()), ROWS, H200), "python benchmarks/winners.py"
    assert all((winner.copy_bandwidth_fraction or 0) >= 0.9 for winner in table.winners)
    plan = load(RUN / "plans" / "3fe649bf68e9e1d6.json", FusionPlan)
    found = shipped_winner(plan, H200)
    assert found is not None
    assert (found.config, found.kernel_ns) == (LaunchConfig(block_rows=2, num_warps=8), 9136)
    assert choices(plan, H200, "3.7.1")[0] == found.config
    assert shipped_winner(plan, A100) is None, "nothing was measured there"


@pytest.mark.parametrize(("copied_ns", "ships"), [(9_000, True), (8_000, False)])
def test_what_the_benchmark_found_near_a_copy_ships(
    copied_ns: int, ships: bool, tmp_path: Path
) -> None:
    plan = rms_norm(columns=2048)
    found: dict[str, Any] = {
        "config": CONFIG.label(),
        "launch": CONFIG,
        "ours_ns": 9_500,
        "copy_ns": copied_ns,
    }
    row = Row(
        name="rmsnorm", shape=(4096, 2048), gpu="NVIDIA H200", plan=plan, triton="3.6.0", **found
    )
    rows = tmp_path / "kernels.json"
    rows.write_bytes(encode(Results(rows=(row,))))
    table = table_of([], rows, H200)
    shipped = [(w.kernel, w.config, w.kernel_ns, w.triton) for w in table.winners]
    assert shipped == ([(kernel_key(plan), CONFIG, 9_500, "3.6.0")] if ships else [])
    assert table_of([], rows, A100).winners == ()


@pytest.mark.usefixtures("forked_compilers")
def test_no_winner_that_ships_spills() -> None:
    pytest.importorskip("triton", reason="compiling needs triton")
    from advisor.pipeline.sizing import judged, requests
    from advisor.verify.resources import resources_of

    stored = [load(path, FusionPlan) for path in RUNS.glob("*/plans/*.json")]
    stored += [row.plan for row in read(ROWS).rows if row.plan is not None]
    plans = {(kernel_key(plan), bucket_of(plan.sites[0])): plan for plan in stored if plan.sites}
    for winner in load(SHIPPED / "h200.json", Winners).winners[::STRIDE]:
        plan = plans[winner.kernel, winner.bucket]
        for (row,) in resources_of(requests(plan, winner.config), [H200]):
            assert judged(row, H200, plan, winner.config)[0] == "use", (plan.title, row)


def test_a_table_with_two_winners_for_one_kernel_is_refused() -> None:
    winner = won(rms_norm(columns=2048))
    with pytest.raises(InvalidRecordError, match="two winners"):
        Winners(gpu="h200", winners=(winner, winner)).check()
    with pytest.raises(InvalidRecordError, match="another GPU"):
        Winners(gpu="a100", winners=(winner,)).check()


@pytest.mark.usefixtures("forked_compilers")
def test_apply_times_what_an_earlier_search_found_and_nothing_else(tmp_path: Path) -> None:
    """The pipeline's own sizing, with the real compiler: one configuration is left to time."""
    pytest.importorskip("triton", reason="compiling needs triton")
    from advisor.pipeline.candidates import Candidate, size
    from advisor.verify.toolchain import triton_version

    plan = rms_norm(columns=2048)
    remember(won(plan, triton=triton_version()), plan, H200)
    item = Candidate(plan)
    item.choose(LaunchConfig(num_warps=4), tmp_path)
    size({plan.id: item}, [H200], H200, lambda *_, **__: None)
    assert item.usable == (CONFIG,)
    assert item.config == CONFIG
    other = Candidate(rms_norm(columns=512))
    other.choose(LaunchConfig(num_warps=4), tmp_path)
    size({other.plan.id: other}, [H200], H200, lambda *_, **__: None)
    assert len(other.usable) > 1
