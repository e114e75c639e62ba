"""Spellings and oddities of Kineto files of all ages, on built files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.model.trace import Trace
from collectors import READERS, UnknownFormatError, api_calls, kineto, read_trace
from tests.builders.trace import event
from tests.builders.trace import kineto as file_of

HOURS_IN_US = 3600 * 10**6


def read(tmp_path: Path, events: list[dict[str, Any]], **metadata: Any) -> Trace:
    path = tmp_path / "trace.json"
    path.write_bytes(file_of(events, **metadata))
    return read_trace(path)


def test_a_launch_chain_in_any_order(tmp_path: Path) -> None:
    chain = [
        event("kernel", "sgemm", 30, 5, correlation=9, device=0, stream=7),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 40, 2, correlation=10, bytes=64),
        event("gpu_memset", "Memset (Device)", 50, 2, correlation=11, bytes=4),
        event("cuda_runtime", "cudaMemsetAsync", 7, 1, correlation=11),
        event("cuda_runtime", "cudaLaunchKernel_v7000", 3, 1, correlation=9),
        event("cuda_runtime", "cudaMemcpyAsync", 5, 1, correlation=10),
        event("cpu_op", "aten::mm", 1, 8, **{"External id": 4, "Input Dims": [[2, 3], [3, 2]]}),
        event("user_annotation", "ProfilerStep#3", 0, 60),
        event("cuda_runtime", "cudaStreamSynchronize", 9, 50),
        event("cuda_runtime", "cudaStreamWaitEvent", 8, 1),
    ]
    for order in (chain, chain[::-1]):
        trace = read(tmp_path, order)
        assert trace.kernels["op"].tolist() == [0]
        assert trace.launches["kind"].astype(str).tolist() == ["kernel", "copy", "set"]
        assert trace.copies["kind"].astype(str).tolist() == ["copy", "set"]
        assert trace.copies["direction"].tolist()[0] == "HtoD"
        assert trace.copies["direction"].isna().tolist() == [False, True]
        assert trace.copies["launch"].tolist() == [1, 2]
        assert trace.syncs["kind"].astype(str).tolist() == ["stream_wait", "stream"]
        assert trace.ops["input_shapes"].tolist() == ["[[2, 3], [3, 2]]"]
        assert len(trace.steps()) == 1


def test_fields_of_2026(tmp_path: Path) -> None:
    limits = {"activeBlocksPerMultiprocessor": 3, "limitingFactors": "WARPS|REGS"}
    inside = {
        "occupancy": limits,
        "graph id": 5,
        "graph node id": 77,
        "est. achieved occupancy %": 50,
    }
    collective = {
        "Collective name": "allreduce",
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "Group size": 2,
        "dtype": "BFloat16",
        "Process Group Name": "0",
    }
    trace = read(
        tmp_path,
        [
            event("kernel", "k", 20, 1, stream=7, **inside),
            event(
                "kernel",
                "ncclDevKernel_AllReduce",
                10,
                1,
                stream=8,
                **{"graph id": 0},
                **collective,
            ),
        ],
    )
    row = trace.kernels.iloc[1]
    assert (row["occupancy_limiter"], row["graph_id"], row["graph_node_id"]) == (
        "WARPS|REGS",
        5,
        77,
    )
    assert row["occupancy_estimated"] == 0.5
    assert trace.kernels["graph_id"].isna().tolist() == [True, False]
    (comm,) = trace.comms.to_dict("records")
    assert (comm["kernel"], comm["collective"], comm["dtype"]) == (0, "allreduce", "BFloat16")
    assert (comm["elements_in"], comm["group_size"], comm["group"]) == (8, 2, "0")


def test_fields_of_2021(tmp_path: Path) -> None:
    kernel = {"external id": 41, "theoretical occupancy %": 25, "grid": [1, 2, 1]}
    old = [
        event("Operator", "aten::mm", 1, 9, **{"External id": 41, "Input dims": [[4]]}),
        event("Runtime", "cudaLaunchKernel", 3, 1, correlation=5, **{"external id": 41}),
        event("Kernel", "sgemm", 20, 3, device=0, stream=7, correlation=5, **kernel),
        event("Operator", "ProfilerStep#2", 0, 50),
    ]
    for one in old[:2]:
        one["tid"] = "1"  # some threads are strings
    trace = read(tmp_path, old)
    assert trace.kernels["op"].tolist() == [0]
    assert trace.kernels["occupancy_estimated"].tolist() == [0.25]
    assert trace.kernels[["grid_x", "grid_y", "grid_z"]].iloc[0].tolist() == [1, 2, 1]
    assert trace.ops["input_shapes"].notna().all()
    assert trace.ops["name"].tolist() == ["aten::mm"]
    assert len(trace.steps()) == 1


def test_no_rank_no_devices_no_memsets_and_no_gpu_are_fine(tmp_path: Path) -> None:
    trace = read(tmp_path, [event("cpu_op", "aten::add", 1, 1)])
    assert (trace.info.rank, trace.info.world_size) == (0, 1)
    assert len(trace.devices) == len(trace.copies) == len(trace.kernels) == 0
    assert not trace.warnings


def test_events_without_an_honest_time_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            event("kernel", "good", 1, 1),
            event("kernel", "negative", 2, -1),
            event("kernel", "endless", 3, 25 * HOURS_IN_US),
            event("kernel", "untimed", "soon", 1),
            event("kernel", "huge", "1e40", 1),
        ],
    )
    assert trace.kernels["name"].tolist() == ["good"]
    counts = {w.code: w.count for w in trace.warnings}
    assert counts == {"event_untimed": 2, "duration_impossible": 2}


def test_the_seven_events_that_became_most_of_the_time(tmp_path: Path) -> None:
    events = [
        event("kernel", "k", 10 * i, 8, device=0, stream=7, correlation=i) for i in range(500)
    ]
    for i in range(0, 490, 70):
        events[i]["dur"] = 2_300_000
    trace = read(tmp_path, events)
    assert [(w.code, w.count) for w in trace.warnings] == [("duration_clipped", 7)]
    assert trace.kernels["duration_ns"].sum() == (493 * 8 + 7 * 10) * 1000


def test_null_and_oversized_numbers_are_absent(tmp_path: Path) -> None:
    odd = {"registers per thread": None, "shared memory": 2**80, "stream": None, "grid": "1,1,1"}
    trace = read(tmp_path, [event("kernel", "k", 1, 1, device=3, **odd)])
    row = trace.kernels.iloc[0]
    assert row[["registers_per_thread", "shared_bytes", "grid_x"]].isna().all()
    assert (row["device"], row["stream"]) == (3, 1)  # the row it is drawn in


def test_devices_and_versions_come_from_either_end_of_the_file(tmp_path: Path) -> None:
    devices = [
        {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    ]
    head = {"deviceProperties": devices, "cuda_driver_version": 13000, "record_shapes": 1}
    trace = read(tmp_path, [event("kernel", "k", 1, 1)], **head)
    assert trace.devices["multiprocessors"].tolist() == [132]
    assert trace.info.versions == {"cuda_driver_version": "13000"}
    assert trace.info.shapes_recorded
    behind = {"traceEvents": [event("kernel", "k", 1, 1)], "distributedInfo": {"rank": 3}}
    path = tmp_path / "tail.json"
    path.write_text(json.dumps(behind))
    assert read_trace(path).info.rank == 3


def test_nanoseconds_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "exact.json"
    text = file_of([event("kernel", "k", "TS", "DUR")])
    path.write_bytes(text.replace(b'"TS"', b"1790857026123456.789").replace(b'"DUR"', b"0.001"))
    trace = read_trace(path)
    assert trace.kernels["start_ns"].tolist() == [1790857026123456789]
    assert trace.kernels["duration_ns"].tolist() == [1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", "kernel"),
        ("cudaLaunchKernel_v7000", "kernel"),
        ("cudaLaunchKernelExC_v11060", "kernel"),
        ("cuLaunchKernelEx", "kernel"),
        ("cudaLaunchKernel_ptsz_v7000", "kernel"),
        ("hipExtModuleLaunchKernel", "kernel"),
        ("cudaGraphLaunch_v10000", "graph"),
        ("hipMemcpyWithStream", "copy"),
        ("cudaMemset2DAsync", "set"),
        ("cudaFuncSetAttribute", "other"),
        ("cudaLaunchHostFunc", "other"),
    ],
)
def test_what_calls_launch(name: str, kind: str) -> None:
    assert api_calls.call_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hipDeviceSynchronize", "device"),
        ("cuCtxSynchronize", "device"),
        ("cudaEventSynchronize_v3020", "event"),
        ("cudaEventRecordWithFlags", "event_record"),
        ("cudaStreamWaitEvent", "stream_wait"),
        ("cudaStreamIsCapturing", None),
    ],
)
def test_what_calls_wait(name: str, kind: str | None) -> None:
    assert api_calls.sync_kind(name) == kind


def test_two_readers_for_one_file_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = READERS[0]._replace(name="twin")
    monkeypatch.setattr("collectors.READERS", (*READERS, twin))
    with pytest.raises(UnknownFormatError, match="several formats: kineto, twin"):
        read(tmp_path, [event("kernel", "k", 1, 1)])


def test_sniffing_needs_no_name_and_no_metadata() -> None:
    assert kineto.sniff(b'\xef\xbb\xbf [ {"ph": "X", "cat": "cpu_op"')
    assert kineto.sniff(b'{"traceEvents": [{"cat": "kernel"')
    assert not kineto.sniff(b'[{"cat": "Session", "name": "model_run"}]')
    assert not kineto.sniff(b"")


def test_stacks_of_before_2022_give_the_line_of_the_program(tmp_path: Path) -> None:
    stack = "torch/nn/modules/linear.py(94): forward;model.py(31): forward;train.py(9): <module>"
    trace = read(
        tmp_path,
        [
            event("Operator", "aten::addmm", 1, 2, **{"Call stack": stack}),
            event("Operator", "aten::mul", 5, 2),
        ],
    )
    assert trace.ops["source"].tolist()[0] == "model.py:31"
    assert trace.ops["source"].isna().tolist() == [False, True]


def test_events_of_no_use_are_counted_by_kind(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            event("kernel", "k", 1, 1),
            {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "ts": 2},
            {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "ts": 3},
            event("cuda_sync", "Stream Sync", 3, 1),
            event("cuda_profiler_range", "k", 1, 1, smsp__inst_executed=7),
            event("overhead", "Activity Buffer Request", 1, 1),
        ],
    )
    assert {w.code: w.count for w in trace.warnings} == {
        "memory_event": 2,
        "sync_event": 1,
        "counter_range": 1,
    }
    assert len(trace.kernels) == 1


def test_categories_that_nobody_knows_are_learnt(tmp_path: Path) -> None:
    listed = [event(f"vendor_{i % 3}", "x", i, 1) for i in range(3_000)]
    listed.insert(1_500, event("kernel", "k", 1, 1))
    trace = read(tmp_path, listed)
    assert trace.kernels["name"].tolist() == ["k"]
    assert not trace.warnings


def test_endless_new_categories_are_read_all_the_same(tmp_path: Path) -> None:
    listed = [event(f"vendor_{i}", "x", i, 1) for i in range(2_000)]
    listed.append(event("kernel", "k", 1, 1))
    assert len(read(tmp_path, listed).kernels) == 1


def test_ids_and_categories_that_nobody_writes_cost_nothing(tmp_path: Path) -> None:
    kernel = event("kernel", "k", 1, 1) | {"pid": 10**30, "tid": -(10**30)}
    trace = read(tmp_path, [kernel, event("a\0b", "x", 1, 1), event("kernel", "k", 3, 1, device=0)])
    assert len(trace.kernels) == 2


@pytest.mark.parametrize(
    ("told", "rank", "world", "warned"),
    [
        ({"rank": 3, "world_size": 8}, 3, 8, False),
        ({"rank": 7, "world_size": 2}, 7, 8, True),
        ({"rank": -5, "world_size": 0}, 0, 1, True),
        ({"rank": 10**30, "world_size": "many"}, 0, 1, True),
        ({"backend": "nccl"}, 0, 1, True),
    ],
)
def test_a_rank_that_cannot_be_is_not_taken(
    told: dict[str, Any], rank: int, world: int, warned: bool, tmp_path: Path
) -> None:
    kernel = event("kernel", "k", 1, 1, device=0, stream=7)
    trace = read(tmp_path, [kernel], distributedInfo=told, deviceProperties=[{"id": 10**30}])
    assert (trace.info.rank, trace.info.world_size) == (rank, world)
    assert ("rank_assumed" in {w.code for w in trace.warnings}) is warned
