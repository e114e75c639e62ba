"""Tiny traces: events in microseconds, as objects (`Timeline`) or as Kineto JSON (`kineto`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from advisor.model.trace import Trace, TraceBuilder

SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", Path(__file__).parents[2].parent / "shared"))
US = 1_000


class Timeline:
    """Adds launches, each with its own correlation id, and what they caused."""

    def __init__(self) -> None:
        self.builder = TraceBuilder(source="test")
        self.next_id = 1

    def launch(
        self,
        at: float,
        *,
        thread: int = 1,
        kind: str = "kernel",
        name: str = "cudaLaunchKernel",
        length: float = 1,
    ) -> int:
        """An API call; returns its correlation id."""
        self.next_id += 1
        self.builder.event(
            "launches",
            name=name,
            kind=kind,
            start_ns=round(at * US),
            duration_ns=round(length * US),
            thread=self.builder.thread(1, thread),
            correlation=self.next_id,
        )
        return self.next_id

    def kernel(
        self,
        start: float,
        length: float,
        *,
        name: str = "k",
        stream: int = 7,
        device: int = 0,
        correlation: int | None = None,
        **more: Any,
    ) -> None:
        """A kernel on the device, launched by the call with that correlation id."""
        self.builder.event(
            "kernels",
            name=name,
            start_ns=round(start * US),
            duration_ns=round(length * US),
            stream=stream,
            device=device,
            correlation=correlation,
            **more,
        )

    def copy(self, start: float, length: float, *, correlation: int | None = None) -> None:
        """A device-to-device copy."""
        self.builder.event(
            "copies",
            name="Memcpy DtoD",
            kind="copy",
            direction="DtoD",
            start_ns=round(start * US),
            duration_ns=round(length * US),
            stream=7,
            device=0,
            correlation=correlation,
        )

    def sync(self, start: float, length: float, *, thread: int = 1) -> None:
        """A blocking call of the host."""
        self._host("syncs", "cudaStreamSynchronize", start, length, thread, kind="stream")

    def range(self, name: str, start: float, length: float, *, thread: int = 1) -> None:
        """A user annotation on the host."""
        self._host("ranges", name, start, length, thread, side="host")

    def op(self, name: str, start: float, length: float, *, thread: int = 1, **more: Any) -> None:
        """A framework operator."""
        self._host("ops", name, start, length, thread, **more)

    def _host(
        self, table: str, name: str, start: float, length: float, thread: int, **more: Any
    ) -> None:
        self.builder.event(
            table,
            name=name,
            start_ns=round(start * US),
            duration_ns=round(length * US),
            thread=self.builder.thread(1, thread),
            **more,
        )

    def build(self) -> Trace:
        """The checked trace."""
        return self.builder.build()


def event(
    category: str, name: str, ts: float | str, dur: float | str, **args: Any
) -> dict[str, Any]:
    """One complete Kineto event on thread 1 of process 1."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def kineto(events: list[dict[str, Any]], **metadata: Any) -> bytes:
    """A Kineto file with these events, laid out as PyTorch 2.13 does."""
    head = json.dumps({"schemaVersion": 1, **metadata}, indent=2)[:-2]
    body = ",\n  ".join(json.dumps(e, indent=4) for e in events)
    return f'{head},\n  "traceEvents": [\n  {body}\n  ],\n  "traceName": "t.json"\n}}'.encode()
