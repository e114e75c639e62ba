"""Child of `test_launch_cache`: launchers of generated kernels run up to the device, without one.

Reads [kernel file, device function, plan's tensor shapes and dtypes, options] jobs as JSON from its
argument, and prints how many kernels Triton compiled anew.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class NoDevice:
    """A driver that names its target; nothing is launched."""

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def _prepared(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    del warmup
    return _run(self, *arguments, grid=grid, warmup=True, **options)


_run = JITFunction.run


def main() -> None:
    """Every launcher once; what it would launch is compiled, or found compiled."""
    driver.set_active(NoDevice())
    JITFunction.run = _prepared  # type: ignore[method-assign]
    for number, (path, shapes, options) in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        spec = importlib.util.spec_from_file_location(f"kernel{number}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        given = [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in shapes]
        module.fused(*given, **options)


if __name__ == "__main__":
    main()
