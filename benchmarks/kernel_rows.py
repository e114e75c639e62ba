"""The rows of `kernels.py` as they are kept: one pattern at one shape, and a file of them."""

from __future__ import annotations

from pathlib import Path

from advisor.model.base import Record, decode
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan

TUNED = "max-autotune-no-cudagraphs"


class Row(Record, frozen=True, kw_only=True):
    """One pattern at one shape; `why` says why nothing of ours was timed.

    `covers` is (ops of the captured graph in our kernel, all of them); `configs` the median of
    every configuration tried; `others` of other ways to do it (Inductor tuned, Liger's kernels,
    PyTorch's own fused ones); `intervals` the spread of what was timed beside it. Caches are cold
    but for `warm_ns`, of which `predicted_ns` is the kernel model's; `launch_ns` is host time.
    `plan` is what our kernel was generated from, `launch` the configuration called `config`, `day`
    when it was timed and `triton` by which version compiled.
    """

    name: str
    shape: tuple[int, ...]
    gpu: str
    bytes: int | None = None
    covers: tuple[int, int] | None = None
    config: str | None = None
    ours_ns: int | None = None
    eager_ns: int | None = None
    inductor_ns: int | None = None
    copy_ns: int | None = None
    peak_ns: int | None = None
    warm_ns: int | None = None
    predicted_ns: int | None = None
    launch_ns: int | None = None
    error: float | None = None
    configs: dict[str, int] = {}
    others: dict[str, int] = {}
    intervals: dict[str, tuple[int, int]] = {}
    plan: FusionPlan | None = None
    launch: LaunchConfig | None = None
    day: str = ""
    triton: str = ""
    why: str = ""

    @property
    def key(self) -> str:
        """Identifies the row in the file of results."""
        return f"{self.name} {'x'.join(map(str, self.shape))}"


FIELDS = frozenset(Row.__struct_fields__)


class Results(Record, frozen=True, kw_only=True):
    """All rows recorded so far, and what recorded them."""

    versions: dict[str, str] = {}
    rows: tuple[Row, ...] = ()


def read(path: Path) -> Results:
    """The recorded rows; none yet if there is no file."""
    return decode(path.read_bytes(), Results, str(path)) if path.exists() else Results()
