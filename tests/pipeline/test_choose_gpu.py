"""Which GPU prices are for, and that no card's figures stand under another's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.errors import InvalidRecordError, UsageError
from advisor.hardware.calibration import calibration_path
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import gpu_by_key
from advisor.hardware.learned import learned_path
from advisor.pipeline.facts import hardware_of
from advisor.pipeline.options import ProfileOptions
from advisor.pipeline.profile import DEFAULT_GPU, choose_gpu, profile
from advisor.store import RunDirectory

STRANGER = "NVIDIA Imaginary 9000"


def test_without_a_gpu_the_default_is_said() -> None:
    gpu, warnings = choose_gpu(None, None)
    assert gpu.key == DEFAULT_GPU
    assert [w.code for w in warnings] == ["gpu-assumed"]


def test_the_present_gpu_is_used_and_no_other() -> None:
    assert choose_gpu(None, "NVIDIA H200") == (gpu_by_key("h200"), [])
    assert choose_gpu("h200", "NVIDIA H200") == (gpu_by_key("h200"), [])
    with pytest.raises(UsageError, match="not the GPU of this machine"):
        choose_gpu("a100", "NVIDIA H200")


def test_an_unknown_gpu_is_priced_as_another_only_when_asked() -> None:
    with pytest.raises(UsageError, match="not in the GPU table"):
        choose_gpu(None, STRANGER)
    gpu, warnings = choose_gpu("h100", STRANGER)
    assert gpu == gpu_by_key("h100")
    assert [w.code for w in warnings] == ["gpu-unknown"]
    shown = hardware_of(gpu, STRANGER, present=True)
    assert shown.name == STRANGER
    assert (shown.key, shown.compute_capability, shown.l2_bytes) == (None, None, None)


def test_a_known_gpu_shows_the_figures_of_the_table() -> None:
    gpu = gpu_by_key("h200")
    assert hardware_of(gpu, "NVIDIA H200", present=True).l2_bytes == gpu.l2_bytes
    assert hardware_of(gpu, gpu.name).key == "h200"


@pytest.mark.parametrize("place", [calibration_path, learned_path])
def test_damaged_figures_of_a_gpu_are_told_before_anything_is_recorded(
    place: Callable[[Gpu], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = place(gpu_by_key("a100"))
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    options = ProfileOptions(target="absent.py:make", gpu="a100")
    with pytest.raises(InvalidRecordError, match="a100"):
        profile(options, RunDirectory.create_at(tmp_path / "run"), lambda *_: None)
