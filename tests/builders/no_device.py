"""A driver of Triton for a GPU that is named, not there: kernels are compiled as a launch would."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget


class NoDevice:
    """A driver that names its target; nothing is launched."""

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0
