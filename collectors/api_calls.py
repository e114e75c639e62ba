"""What a runtime or driver API call does, by its name; version suffixes (`_v11060`) do not count.

Names: CUDA runtime and driver API references, HIP runtime API reference.
"""

from __future__ import annotations

import re
from typing import Literal

CallKind = Literal["kernel", "graph", "copy", "set", "other"]
SyncKind = Literal["device", "stream", "event", "stream_wait", "event_record"]

_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds|_spt)+$")
_KERNEL = frozenset(
    {
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "cudaLaunchCooperativeKernel",
        "cudaLaunchCooperativeKernelMultiDevice",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cuLaunchCooperativeKernel",
        "cuLaunchCooperativeKernelMultiDevice",
        "hipLaunchKernel",
        "hipLaunchKernelExC",
        "hipLaunchCooperativeKernel",
        "hipLaunchCooperativeKernelMultiDevice",
        "hipExtLaunchKernel",
        "hipModuleLaunchKernel",
        "hipModuleLaunchCooperativeKernel",
        "hipExtModuleLaunchKernel",
        "hipHccModuleLaunchKernel",
        "hipDrvLaunchKernelEx",
    }
)
_GRAPH = frozenset({"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"})
_SYNCS: tuple[tuple[str, SyncKind], ...] = (
    ("DeviceSynchronize", "device"),
    ("CtxSynchronize", "device"),
    ("StreamSynchronize", "stream"),
    ("EventSynchronize", "event"),
    ("StreamWaitEvent", "stream_wait"),
    ("EventRecord", "event_record"),
    ("EventRecordWithFlags", "event_record"),
)
_API = re.compile(r"(cuda|cu|hip)(?=[A-Z])")


def base_name(name: str) -> str:
    """The call without version suffixes."""
    return _SUFFIX.sub("", name)


def call_kind(name: str) -> CallKind:
    """What the call launches; `other` where nothing is known to be launched."""
    base = base_name(name)
    if base in _KERNEL:
        return "kernel"
    if base in _GRAPH:
        return "graph"
    if "Memcpy" in base:
        return "copy"
    return "set" if "Memset" in base else "other"


def sync_kind(name: str) -> SyncKind | None:
    """How the call orders host and device, None if it does not."""
    bare = _API.sub("", base_name(name), count=1)
    return next((kind for suffix, kind in _SYNCS if bare == suffix), None)
