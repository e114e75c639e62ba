"""`calibrate`: refused without a GPU, and a calibration on file is shown beside the table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from advisor.cli.calibrate import render_calibration
from advisor.cli.main import run
from advisor.hardware.calibration import (
    DeviceState,
    calibration_path,
    default_calibration,
    load_calibration,
    read_calibration,
    save_calibration,
)
from advisor.hardware.gpus import gpu_by_key
from advisor.report.text import render

H200 = gpu_by_key("h200")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to calibrate")
def test_without_a_gpu_it_says_so_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", "--out", str(tmp_path / "card.json")]) == 2
    said = capsys.readouterr().err
    assert "no GPU to calibrate" in said
    assert "prices come from the table" in said
    assert not list(tmp_path.iterdir())


def test_an_unknown_gpu_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200 MIG 1g.18gb")
    assert run(["calibrate", "--quick"]) == 2
    assert "'NVIDIA H200 MIG 1g.18gb' is not in the table of GPUs" in capsys.readouterr().err


def test_what_was_measured_stands_beside_the_table(tmp_path: Path) -> None:
    measured = msgspec.structs.replace(
        default_calibration(H200),
        device="NVIDIA H200",
        provenance="measured",
        graph_launch_ns=1_300,
        reduction_share=0.93,
        matrix_flops={"bfloat16": 712e12},
        state=DeviceState(sm_clock_hz=1_980_000_000, versions={"driver": "580.159"}),
    )
    path = save_calibration(measured, tmp_path / "card.json")
    text = render(render_calibration(H200, read_calibration(path, H200)))
    for part in ("NVIDIA H200", "4.27 TB/s", "1.3 µs", "712 TFLOP/s", "989.4 TFLOP/s", "93.0 %"):
        assert part in text


def test_a_stored_calibration_is_what_prices_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    measured = msgspec.structs.replace(
        default_calibration(H200), provenance="measured", launch_ns=9_999
    )
    assert load_calibration(H200).launch_ns != 9_999
    save_calibration(measured, calibration_path(H200))
    assert load_calibration(H200) == measured
