"""Recorded plans of long rows, compiled for real GPUs without one: some configuration spills
nothing on each, where whole rows in registers do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compiling kernels needs triton")

from advisor.codegen import render
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import load
from advisor.model.configs import candidate_configs, default_config
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.pipeline.candidates import Candidate, requests, size, without_spills
from advisor.verify.resources import resources_of
from tests.codegen import plans

PLANS = Path(__file__).parents[2] / "sample_traces" / "runs" / "llama_train_compile" / "plans"
LOSS_GRADIENT, LOG_SOFTMAX = "9828151915a0ecfc", "78bad7e912d428d4"
pytestmark = pytest.mark.usefixtures("forked_compilers")
GPUS = tuple(gpu_by_key(key) for key in ("a100", "h200", "b200", "rtx4090", "mi300x"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("name", [LOSS_GRADIENT, LOG_SOFTMAX])
def test_32000_columns_spill_nowhere(name: str) -> None:
    """The likeliest streaming configuration, on five GPUs."""
    plan = load(PLANS / f"{name}.json", FusionPlan)
    config = candidate_configs(plan, plan.sites[0])[0]
    assert config.scheme in ("looped", "online")
    for rows in resources_of(requests(plan, config), GPUS):
        for row in rows:
            assert row.error is None, row
            assert (row.spill_store_bytes, row.spill_load_bytes) in ((0, 0), (0, None)), row
            assert row.occupancy is not None
            assert row.occupancy >= 0.25, row


def test_a_gradient_whose_rows_do_not_fit_in_registers_has_configurations_all_the_same() -> None:
    plan = load(PLANS / f"{LOSS_GRADIENT}.json", FusionPlan)
    fits = without_spills(plan, gpu_by_key("h200"))
    assert {config.scheme for config in fits} == {"looped"}
    tried = {config.scheme for config in candidate_configs(plan, plan.sites[0])}
    assert tried == {"looped", "registers"}


def test_the_pipeline_sizes_what_it_will_launch(tmp_path: Path) -> None:
    """A first choice that spills gives way; the file and the rows are those of the second."""
    plan = load(PLANS / f"{LOSS_GRADIENT}.json", FusionPlan)
    item = Candidate(plan)
    item.choose(LaunchConfig(num_warps=32), tmp_path)
    size({plan.id: item}, GPUS[:2], GPUS[1], lambda *_, **__: None)
    assert item.refused is None
    assert item.config is not None
    assert item.config in item.usable
    assert item.config.scheme == "looped"
    assert [row.config for row in item.resources] == [item.config.label()] * 2
    assert (tmp_path / f"{plan.id}.py").read_text() == render(plan, "looped").text


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("make", [plans.log_softmax, plans.log_sum_exp, plans.loss_gradient])
def test_what_is_launched_untried_over_50257_columns_spills_nothing(
    make: Callable[..., FusionPlan], dtype: str
) -> None:
    """No multiple of 16: columns are read one by one, and masked at the end of each row."""
    plan = make(dtype, sizes=(4096,), columns=50_257)
    gpus = [gpu_by_key(key) for key in ("h200", "a100", "rtx4090")]
    for rows in resources_of(requests(plan, default_config(plan, plan.sites[0])), gpus):
        for row in rows:
            assert row.error is None, row
            assert (row.spill_store_bytes, row.spill_load_bytes) == (0, 0), row
            assert row.occupancy is not None
            assert row.occupancy >= 0.125, row


@pytest.mark.parametrize(
    "plan",
    [
        plans.group_norm("float16", sizes=(8, 32), columns=(10, 4096)),
        plans.group_norm("float16", sizes=(8, 32), columns=(4096, 10), channels_last=True),
        plans.batch_norm("float16", sizes=(256,), columns=(32, 3136)),
        plans.turned("float16", sizes=(4096,), columns=4096),
    ],
    ids=["group norm", "channels last", "batch norm", "read across"],
)
def test_rows_of_several_axes_spill_nothing_on_sm_90(plan: FusionPlan) -> None:
    """The likeliest configurations at sizes of a UNet and of a ResNet."""
    h200 = gpu_by_key("h200")
    configs = candidate_configs(plan, plan.sites[0])[:4]
    wanted = [request for config in configs for request in requests(plan, config)]
    for (row,) in resources_of(wanted, [h200]):
        assert row.error is None, row
        assert (row.spill_store_bytes, row.spill_load_bytes) == (0, 0), row


@pytest.mark.parametrize("columns", [768, 4096, 8192])
@pytest.mark.parametrize("make", [plans.norm_gradient, plans.bias_gradient])
def test_sums_over_the_rows_spill_nothing_on_sm_90(
    make: Callable[..., FusionPlan], columns: int
) -> None:
    """The likeliest configurations, both kernels of each."""
    plan = make(sizes=(16_384,), columns=columns)
    h200 = gpu_by_key("h200")
    configs = candidate_configs(plan, plan.sites[0])[:3]
    wanted = [request for config in configs for request in requests(plan, config)]
    assert len(wanted) > len(configs)
    for (row,) in resources_of(wanted, [h200]):
        assert row.error is None, row
        assert (row.spill_store_bytes, row.spill_load_bytes) == (0, 0), row
        assert row.occupancy is not None
        assert row.occupancy >= 0.125, row


@pytest.mark.parametrize(
    "plan",
    [
        plans.norm_gradient(sizes=(64,), columns=2),
        plans.column_statistics(sizes=(1024, 1), columns=1),
    ],
    ids=lambda plan: plan.title,
)
def test_few_columns_that_one_warp_adds_up_spill_nothing(plan: FusionPlan) -> None:
    """The second kernel has as few warps as the first, and numbers of every reduction on hand."""
    every = candidate_configs(plan, plan.sites[0])
    config = next(c for c in every if (c.scheme, c.num_warps) == ("column_sums", 1))
    for rows in resources_of(requests(plan, config), GPUS):
        for row in rows:
            assert row.error is None, row
            assert not row.spill_store_bytes, row


@pytest.mark.parametrize("columns", [4095, 8176])
def test_whole_rows_beside_sums_over_them_have_a_launch(columns: int) -> None:
    """Odd columns are masked and read one by one: as many registers as twice the columns."""
    plan = plans.norm_gradient(sizes=(4096,), columns=columns)
    configs = candidate_configs(plan, plan.sites[0])[:2]
    assert without_spills(plan, gpu_by_key("h200"), configs)
