"""Imported by the process that interpreting programs are forked from: what each would import."""

from __future__ import annotations

# Broadcasting shapes imports SymPy when it is first called.
import torch.fx.experimental.symbolic_shapes  # noqa: F401

import tests.builders.quick_interpreter  # noqa: F401
