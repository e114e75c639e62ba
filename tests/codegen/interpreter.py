"""Generated kernels run in Triton's interpreter, in one child process for many launches.

`Interpreter` is the parent's side; run as a script, this file is the child: it reads the path of a
job (`torch.save`d) from a line of standard input and answers with the path of the result.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from advisor.model.plan import FusionPlan

ROOT = Path(__file__).parents[2]
POISON = {torch.bool: False, torch.float16: 6.5e4}


class Interpreter:
    """Launches kernels in a child process that holds `TRITON_INTERPRET=1`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
        self.child = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()

    def run(
        self,
        source: str,
        inputs: Sequence[torch.Tensor],
        shapes: Sequence[tuple[tuple[int, ...], torch.dtype]],
        block_rows: int | None = 1,
        *,
        strided: Sequence[str] = (),
        **options: int,
    ) -> tuple[torch.Tensor, ...]:
        """What `fused` writes into poisoned tensors of `shapes`; its exception as an assertion.

        Outputs that are `strided` have their axes in reverse order in memory: all of them (`any`),
        or all but the last (`unit`); one that is `turned` has its last two exchanged.
        """
        self.count += 1
        job = self.folder / f"job{self.count}.pt"
        kernel = self.folder / f"kernel{self.count}.py"
        kernel.write_text(source)
        ways = strided or [""] * len(shapes)
        out = tuple(_poisoned(s, d, way) for (s, d), way in zip(shapes, ways, strict=True))
        if block_rows is not None:
            options["block_rows"] = block_rows
        torch.save({"kernel": str(kernel), "in": list(inputs), "out": out, "options": options}, job)
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(f"{job}\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline().strip()
        result = torch.load(answer, weights_only=True) if answer else {"error": "the child died"}
        if "error" in result:
            raise AssertionError(result["error"])
        return tuple(result["out"])


def ways_of(plan: FusionPlan) -> list[str]:
    """How each output of a plan lies where it is written, as `Interpreter.run` is told."""
    return [
        ("turned" if o.turned else "unit" if o.unit_stride else "any") if o.strided else ""
        for o in plan.outputs
    ]


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype, way: str) -> torch.Tensor:
    order = list(range(len(shape)))
    if way == "turned":
        order[-2:] = order[-2:][::-1]
    elif way:
        kept = 1 if way == "unit" else 0
        order = order[: len(order) - kept][::-1] + order[len(order) - kept :]
    made = torch.full([shape[axis] for axis in order], POISON.get(dtype, 77), dtype=dtype)
    return made.permute([order.index(axis) for axis in range(len(shape))])


def _launch(job: dict[str, Any]) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("kernel", job["kernel"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.fused(*job["in"], out=job["out"], **job["options"])
    return {"out": job["out"]}


def main() -> None:
    """Answer jobs until standard input ends."""
    import tests.builders.quick_interpreter  # noqa: F401
    from advisor.verify.interpreter import mend_loops

    mend_loops()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        path = Path(line.strip())
        try:
            result = _launch(torch.load(path, weights_only=True))
        except Exception:  # noqa: BLE001 - whatever the kernel raises is the answer
            result = {"error": traceback.format_exc()}
        torch.save(result, path.with_suffix(".out"))
        answers.write(f"{path.with_suffix('.out')}\n")


if __name__ == "__main__":
    main()
