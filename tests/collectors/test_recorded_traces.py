"""Figures of recorded traces, computed independently of this program, reproduced exactly."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.model.trace import Trace
from analyzers.metrics import kernel_rows, trace_metrics
from collectors import read_trace
from tests.builders.trace import SHARED

H200 = SHARED / "traces" / "h200"
PUBLIC = SHARED / "traces" / "public"
ENGINES = SHARED / "engine_outputs" / "kineto_gpu"
FACTS: dict[str, dict[str, Any]] = (
    json.loads((H200 / "facts.json").read_text()) if (H200 / "facts.json").is_file() else {}
)
TRUTH: dict[str, dict[str, Any]] = (
    json.loads((ENGINES.parent / "ground_truth.json").read_text())
    if (ENGINES.parent / "ground_truth.json").is_file()
    else {}
)
pytestmark = pytest.mark.skipif(not FACTS, reason=f"no recorded traces in {SHARED}")


@functools.lru_cache(maxsize=2)
def read(path: Path) -> Trace:
    return read_trace(path)


def launch_calls(trace: Trace) -> dict[str, int]:
    launching = trace.launches[trace.launches["kind"].isin(["kernel", "graph"])]
    return dict(launching["name"].astype(str).value_counts())


def shared_correlation(trace: Trace) -> int:
    counts = trace.kernels["correlation"].value_counts()
    return int(counts[counts > 1].sum())


@pytest.mark.parametrize("name", FACTS)
def test_every_fact_of_a_recorded_trace(name: str) -> None:
    fact, path = FACTS[name], H200 / name
    trace = read(path)
    metrics = {name: metric.value for name, metric in trace_metrics(trace).items()}
    kernels = trace.kernels
    by_name = kernels.groupby("name", observed=True)["duration_ns"].sum()
    top = by_name.sort_values(ascending=False)[:5]
    found = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        "kernels": metrics["kernels"],
        "kernel_time_sum_ns": metrics["kernel_time_sum_ns"],
        "gpu_busy_union_ns": metrics["gpu_busy_ns"],
        "gpu_span_ns": metrics["gpu_span_ns"],
        "launch_calls": launch_calls(trace),
        "distinct_kernels": kernels["name"].nunique(),
        "streams": kernels["stream"].nunique(),
        "max_registers_per_thread": int(kernels["registers_per_thread"].max()),
        "cpu_ops_aten": int(trace.ops["name"].astype(str).str.startswith("aten::").sum()),
        "graph_kernels": int(kernels["graph_id"].notna().sum()),
        "kernels_sharing_correlation": shared_correlation(trace),
        "top5": [[str(n)[:120], int(t)] for n, t in top.items()],
    }
    if "comm_union_ns" in fact:
        found["comm_union_ns"] = metrics["comm_union_ns"]
        found["comm_exposed_ns"] = metrics["exposed_comm_ns"]
        found["comm_overlapped_ns"] = metrics["comm_union_ns"] - metrics["exposed_comm_ns"]
    else:
        assert metrics["comm_union_ns"] == 0
    nccl = kernels["name"].astype(str).str.startswith("nccl").sum()
    assert nccl == fact["nccl_kernels"]
    unchecked = {"events", "gz_bytes", "nccl_kernels"}
    assert found == {key: value for key, value in fact.items() if key not in unchecked}
    assert not trace.warnings
    assert trace.info.complete


@pytest.mark.parametrize("name", FACTS)
def test_every_recorded_kernel_is_attributed_and_steps_hold_equal_work(name: str) -> None:
    trace = read(H200 / name)
    assert trace.kernels["launch"].notna().all()
    steps = trace.steps()
    if name.startswith("streams_"):
        assert len(steps) == 0
        assert trace_metrics(trace)["kernels_per_step"].value is None
        return
    assert trace.kernels["op"].notna().all()
    metrics = trace_metrics(trace)
    assert metrics["kernels_per_step"].per_step == (FACTS[name]["kernels"] // 2,) * 2
    launches = sum(FACTS[name]["launch_calls"].values())
    assert sum(metrics["kernel_launches_per_step"].per_step) == launches
    assert sum(row.count for row in kernel_rows(trace, steps)) == FACTS[name]["kernels"] / 2


def test_graph_replays_own_their_kernels() -> None:
    trace = read(H200 / "bert_cudagraph.inductor.json.gz")
    graphs = trace.launches[trace.launches["kind"] == "graph"].index
    assert trace.kernels["launch"].isin(graphs).sum() == 134


def test_python_stacks_give_module_and_source() -> None:
    ops = read(H200 / "llama_prefill.eager.json.gz").ops
    assert ops["module"].notna().mean() > 0.95
    mlp = ops[ops["name"] == "aten::silu"]
    assert len(mlp) == 8
    assert set(mlp["module"].str.split(".").str[-1].str.rsplit("_", n=1).str[0]) == {
        "SiLUActivation"
    }
    assert set(mlp["source"].str.rsplit(":", n=1).str[0]) <= {
        "transformers/models/llama/modeling_llama.py",
        "transformers/activations.py",
    }


# File: kernels, busy ns, exposed communication ns, kernels without a launch.
PUBLIC_FACTS = {
    "hta_a100_resnet_ddp_rank0.json.gz": (2700, 155_215_315, 39_559_468, 0),
    "tl_h100_qwen0.5b.json.gz": (1465, 45_432_698, 0, 436),
    "tl_mi300_qwen0.5b.json.gz": (1516, 43_062_042, 0, 463),
    "tl_mi300_vllm_decode_hipgraph.json.gz": (425, 10_674_517, 0, 0),
    "tl_mi300_torch_compile_block.json.gz": (12, 12_549_021, 0, 0),
    "kineto_gpu_metrics_2021_05.json": (30, 48_000, 0, 0),
    "param_dlrm_8rank/rank0.json.gz": (245, 6_571_000, 5_537_000, 0),
    "param_dlrm_8rank/rank1.json.gz": (310, 12_302_000, 11_056_000, 64),
    "param_dlrm_8rank/rank7.json.gz": (246, 2_639_000, 1_580_000, 0),
}


@pytest.mark.parametrize("name", PUBLIC_FACTS)
def test_facts_of_public_traces(name: str) -> None:
    trace = read(PUBLIC / name)
    metrics = trace_metrics(trace)
    assert PUBLIC_FACTS[name] == (
        metrics["kernels"].value,
        metrics["gpu_busy_ns"].value,
        metrics["exposed_comm_ns"].value,
        metrics["kernels_without_launch"].value,
    )


def test_more_facts_of_the_a100_training_trace() -> None:
    trace = read(PUBLIC / "hta_a100_resnet_ddp_rank0.json.gz")
    metrics = trace_metrics(trace)
    assert launch_calls(trace) == {"cudaLaunchKernel": 2550, "cudaLaunchKernelExC": 150}
    assert metrics["kernel_time_sum_ns"].value == 162_532_340
    assert metrics["gpu_span_ns"].value == 660_551_005
    rows = kernel_rows(trace, trace.steps("no such range"))
    layout = next(row for row in rows if "nchwToNhwcKernel" in row.name)
    assert (layout.role, layout.count, layout.time_ns) == ("layout", 474, 12_616_974)


def test_absent_figures_of_an_amd_trace_are_unknown_not_zero() -> None:
    trace = read(PUBLIC / "tl_mi300_qwen0.5b.json.gz")
    for column in ("registers_per_thread", "shared_bytes", "occupancy_estimated"):
        assert trace.kernels[column].isna().all()
        assert trace.provenance[f"kernels.{column}"] == "unknown"
    assert set(trace.kernels["device"]) == {2}
    assert list(trace.devices["device"]) == [0]
    assert trace.kernels["grid_x"].isna().any()


def test_a_graph_decode_trace_is_busy_although_nothing_can_be_attributed() -> None:
    trace = read(PUBLIC / "tl_mi300_vllm_decode_hipgraph.json.gz")
    assert trace.kernels["correlation"].value_counts().iloc[0] == 421
    metrics = trace_metrics(trace)
    assert round(metrics["gpu_idle_fraction"].value, 4) == 0.0024
    assert round(metrics["attributed_time_fraction"].value, 3) == 0.027


def test_the_oldest_schema() -> None:
    trace = read(PUBLIC / "kineto_gpu_metrics_2021_05.json")
    assert trace_metrics(trace)["gpu_span_ns"].value == 11_227_000
    assert trace.kernels["op"].notna().all()
    assert trace.kernels["occupancy_estimated"].max() > 0
    assert trace.kernels["occupancy_theoretical"].isna().all()
    assert trace.devices["name"].astype(str).iloc[0] == "Tesla V100-DGXS-32GB"
    assert int(trace.devices["multiprocessors"].iloc[0]) == 80
    assert len(trace.steps("ProfilerStep#")) == 1


def test_ranks_are_read_from_the_file() -> None:
    trace = read(PUBLIC / "param_dlrm_8rank" / "rank7.json.gz")
    assert (trace.info.rank, trace.info.world_size) == (7, 8)
    assert set(trace.kernels["rank"]) == {7}


@pytest.mark.parametrize("name", [n for n in TRUTH if n.startswith("kineto_gpu/")])
def test_facts_of_engine_traces(name: str) -> None:
    trace = read(ENGINES.parent / name)
    fact = TRUTH[name]
    assert len(trace.kernels) == fact["kernel_events"]
    assert trace.kernels["name"].nunique() == fact["distinct_kernels"]
    assert round(trace.kernels["duration_ns"].sum() / 1000, 1) == fact["total_kernel_us"]


def test_launches_lie_inside_the_op_they_are_given_to() -> None:
    """Holds for a trace whose external ids repeat the correlation ids, so they must not be used."""
    trace = read(PUBLIC / "param_dlrm_8rank" / "rank1.json.gz")
    launches = trace.launches[trace.launches["op"].notna()]
    assert (launches["external_id"] == launches["correlation"]).mean() > 0.9
    op = trace.ops.iloc[launches["op"].astype(int)]
    start = launches["start_ns"].to_numpy()
    assert np.all(op["start_ns"].to_numpy() <= start)
    assert np.all(start < (op["start_ns"] + op["duration_ns"]).to_numpy())
    assert np.all(op["thread"].to_numpy() == launches["thread"].to_numpy())


def test_same_trace_whatever_the_file_is_called(tmp_path: Path) -> None:
    name = "unet.inductor.json.gz"
    plain = tmp_path / "anything"
    plain.write_bytes(gzip.decompress((H200 / name).read_bytes()))
    first, second = read(H200 / name), read_trace(plain)
    for table in ("kernels", "ops", "launches", "copies", "syncs", "ranges", "devices"):
        assert first.table(table).equals(second.table(table))
