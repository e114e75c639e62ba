"""Child of `test_launch_cache`: launchers of generated kernels run up to the device, without one.

Its argument is a file of jobs as JSON: [kernel file, shape and dtype of each input, options]. What
Triton compiles anew lies in its cache afterwards.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from tests.builders.no_device import NoDevice


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
