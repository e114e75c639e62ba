"""What a benchmark cannot do without, said on one line before it starts or writes anything."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

T = TypeVar("T")
RECORDED = "--table prints what was recorded"


def need_gpu(otherwise: str = "") -> None:
    """End the program with exit code 2 where PyTorch finds no GPU."""
    import torch

    if not torch.cuda.is_available():
        _end(f"a GPU is needed, PyTorch finds none{f'; {otherwise}' if otherwise else ''}")


def need_traces(folder: Path) -> None:
    """End the program where the larger recorded traces are not."""
    if not any(folder.glob("*.json.gz")):
        _end(f"no recorded traces in {folder}: set FUSION_ADVISOR_SHARED")


def need_results(found: Sequence[T], folder: Path) -> Sequence[T]:
    """What was found in a folder; ends the program before they are read, or replace a record."""
    if not found:
        _end(f"no results in {folder}: measure first")
    return found


def _end(why: str) -> NoReturn:
    sys.stderr.write(f"{why}\n")
    raise SystemExit(2)
