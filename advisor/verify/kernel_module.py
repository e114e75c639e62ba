"""Generated kernel files as Python modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from advisor.errors import InvalidRecordError
from advisor.verify.interpreter import mend_loops


def load_module(path: Path) -> ModuleType:
    """Import a kernel file that this program generated; a file loaded before is loaded anew.

    Raises `InvalidRecordError` for what is no Python file. Running it imports triton.
    """
    name = f"fusion_advisor_kernel_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidRecordError("not a generated kernel", where=str(path))
    mend_loops()
    module = importlib.util.module_from_spec(spec)
    # Compilers look up the module of a function by its name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
