"""What `resources` and `cliff` share: GPUs by name, launches as they are printed."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click
import msgspec

from advisor.errors import InvalidRecordError, UsageError
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import gpu_by_key
from advisor.model.launch import LaunchConfig

DEFAULT_GPUS = "a100,h200,b200,rtx4090,mi300x"

LONGEST_S = 86_400


def seconds(_: click.Context, option: click.Parameter, value: float) -> float:
    """A time limit of one second to a day; no number that is none."""
    if not 1 <= value <= LONGEST_S:
        raise click.BadParameter(f"{value:g} is no time of 1 to {LONGEST_S} seconds", param=option)
    return value


def gpus_of(names: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPUs of options that hold names separated by commas, each once."""
    wanted = [name.strip() for text in names for name in text.split(",") if name.strip()]
    found = tuple({gpu.key: gpu for gpu in map(gpu_by_key, wanted)}.values())
    if not found:
        raise UsageError("no GPU is named", remedy=f"such as --gpu {DEFAULT_GPUS}")
    return found


def launch_of(text: str) -> LaunchConfig:
    """A configuration as tables print it: `rows=2 warps=8`, `online cols=4096 warps=8 stages=3`.

    Raises `UsageError` for any other text.
    """
    words = re.sub(r"\bover (\d+)", r"splits=\1", text.strip()).split()
    named = [words.pop(0) for _ in range(len(words)) if "=" not in words[0]]
    scheme = "_".join(named) or "registers"
    fields = {"rows": "block_rows", "cols": "block_columns", "warps": "num_warps",
              "stages": "num_stages", "unroll": "unroll", "splits": "splits",
              "steps": "block_steps", "depth": "block_steps",
              "elements": "block_columns"}  # fmt: skip
    if not words:
        raise _no_launch(text)
    found: dict[str, int | str] = {"scheme": scheme}
    for word in words:
        name, _, value = word.partition("=")
        if name not in fields or not value.isdecimal():
            raise _no_launch(text)
        found[fields[name]] = int(value)
    try:
        config = msgspec.convert(found, LaunchConfig)
        config.check()
    except (msgspec.ValidationError, InvalidRecordError) as error:
        raise _no_launch(text, str(error)) from error
    return config


def _no_launch(text: str, why: str = "") -> UsageError:
    return UsageError(
        f"{text[:60]!r} is no launch",
        why=why,
        remedy="write it as `resources` prints it, such as 'rows=2 warps=8'",
    )
