"""Layout conversions: towards which layout a model is to change, if to any."""

from __future__ import annotations

import pytest

from advisor.pipeline.analyze import analyze
from tests.builders.trace import SHARED

PROBED = SHARED / "traces" / "h200" / "ncu_model_raw.csv.gz"


@pytest.mark.skipif(not PROBED.exists(), reason=f"no {PROBED}")
def test_a_model_in_channels_last_is_not_told_to_be() -> None:
    """One convolution of the recorded ResNet-18 runs a kernel that reads NCHW only."""
    report = analyze([PROBED])
    assert report.hardware.name == "NVIDIA H200"
    assert report.workload.gpu == "h200"
    (finding,) = [f for f in report.findings if f.rule == "layout-conversion"]
    assert "channels-last already" in finding.action
    assert "memory_format" not in finding.action
    # Kernels that ran one by one, with no host beside them: nothing to replay.
    assert finding.exposed_saving_ns is None
    assert not any("profiler slowed the host" in e.text for e in finding.evidence)


UNET = SHARED / "traces" / "h200" / "unet.eager.json.gz"


@pytest.mark.skipif(not UNET.exists(), reason=f"no {UNET}")
def test_a_model_in_channels_first_is_told_to_change() -> None:
    (finding,) = [f for f in analyze([UNET]).findings if f.rule == "layout-conversion"]
    assert finding.action == (
        "use channels_last for model and input: x.to(memory_format=torch.channels_last)"
    )
