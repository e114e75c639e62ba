"""What is installed here, found without importing it: metadata, child processes, files.

Anything that may hang or crash (a driver, a framework) is asked in a child with a time limit.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

import msgspec

from advisor.errors import INSTALL, INSTALL_TORCH
from advisor.model.base import Record

CHILD_TIMEOUT_S = 60
COUNTER_TIMEOUT_S = 120
SUPPORTED_PYTHON = ((3, 10), (3, 13))

TORCH_CODE = """
import json, torch
found = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "devices": [
        [torch.cuda.get_device_name(i), "%d.%d" % torch.cuda.get_device_capability(i)]
        for i in range(torch.cuda.device_count() if found else 0)
    ],
}))
"""
NVML_CODE = """
import json, pynvml
pynvml.nvmlInit()
print(json.dumps({
    "driver": str(pynvml.nvmlSystemGetDriverVersion()), "devices": pynvml.nvmlDeviceGetCount(),
}))
"""
COUNTED_CODE = "import torch; torch.ones(1 << 20, device='cuda').add(1).sum().item()"

State = Literal["ok", "limited", "missing"]


class Check(Record, frozen=True, kw_only=True):
    """One part: whether it is usable, what was found, what its absence disables, how to get it."""

    name: str
    state: State
    detail: str
    disables: str = ""
    remedy: str = ""


def all_checks() -> tuple[Check, ...]:
    """Every check, in the order in which a run needs the parts."""
    torch = ask(TORCH_CODE) if version("torch") else "not installed"
    gpu = gpu_check(torch)
    return (
        python_check(),
        package_check("pandas", "reading traces", f"{INSTALL} pandas"),
        package_check("dash", "serve", f"{INSTALL} dash"),
        torch_check(torch),
        package_check("triton", "apply: no kernel can be compiled or checked", INSTALL_TORCH),
        ptxas_check(),
        compiler_check("C compiler", "CC", ("gcc", "clang"), "running kernels on a GPU"),
        compiler_check("C++ compiler", "CXX", ("g++", "clang++"), "torch.compile on the CPU"),
        header_check(),
        gpu,
        nvml_check(),
        counter_check(gpu.state == "ok"),
    )


def version(distribution: str) -> str | None:
    """The installed version of a distribution, None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def ask(code: str, timeout_s: int = CHILD_TIMEOUT_S) -> dict[str, Any] | str:
    """The JSON object that a Python child prints last, or one line that says why there is none."""
    done = run([sys.executable, "-c", code], timeout_s)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return lines[-1] if lines else f"exit status {done.returncode}"
    try:
        return msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=dict[str, Any])
    except msgspec.MsgspecError:
        return "the answer could not be read"


def run(command: list[str], timeout_s: int) -> subprocess.CompletedProcess[str]:
    """Run a child without input; one that cannot start or end has status 127 and says so."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 127, "", f"no answer within {timeout_s} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", error.strerror or str(error))


def python_check() -> Check:
    """The interpreter, against the versions that are tested."""
    low, high = SUPPORTED_PYTHON
    supported = low <= sys.version_info[:2] <= high
    return Check(
        name="Python",
        state="ok" if supported else "limited",
        detail=platform.python_version(),
        disables="" if supported else "nothing for certain: this version is not tested",
    )


def package_check(distribution: str, disables: str, remedy: str) -> Check:
    """An installed distribution, by its metadata alone."""
    found = version(distribution)
    if found is None:
        return Check(
            name=distribution, state="missing", detail="not installed", disables=disables,
            remedy=remedy,
        )  # fmt: skip
    return Check(name=distribution, state="ok", detail=found)


def torch_check(answer: dict[str, Any] | str) -> Check:
    """PyTorch as its own child reports it: version and the platform it was built for."""
    if isinstance(answer, str):
        return Check(
            name="torch", state="missing", detail=answer, remedy=INSTALL_TORCH,
            disables="profile and apply: no workload can run; reading and reporting can",
        )  # fmt: skip
    built_for = (
        (answer["cuda"] and f"CUDA {answer['cuda']}")
        or (answer["hip"] and f"ROCm {answer['hip']}")
        or "CPU"
    )
    return Check(name="torch", state="ok", detail=f"{answer['version']}, built for {built_for}")


def gpu_check(answer: dict[str, Any] | str) -> Check:
    """The devices that PyTorch sees."""
    devices = [] if isinstance(answer, str) else answer["devices"]
    if not devices:
        return Check(
            name="GPU", state="missing", detail="none visible to PyTorch",
            disables="timing: kernels are sized and checked in the interpreter, none is kept",
            remedy="run on a machine with a GPU, or name one with --gpu to plan for it",
        )  # fmt: skip
    return Check(name="GPU", state="ok", detail=", ".join(f"{name} ({cc})" for name, cc in devices))


def nvml_check() -> Check:
    """NVIDIA's management library, through its driver."""
    answer = ask(NVML_CODE) if version("nvidia-ml-py") else "nvidia-ml-py is not installed"
    if isinstance(answer, str):
        return Check(
            name="NVML", state="missing", detail=answer,
            disables="clocks, power, throttle reasons and bandwidth counters in profile",
            remedy="install the NVIDIA driver",
        )  # fmt: skip
    return Check(
        name="NVML",
        state="ok",
        detail=f"driver {answer['driver']}, devices: {answer['devices']}",
    )


def ptxas_check() -> Check:
    """The assembler that Triton ships, else one on the path."""
    path = bundled_ptxas() or shutil.which("ptxas")
    if path is None:
        return Check(
            name="ptxas", state="missing", detail="neither in Triton nor on the path",
            disables="registers, spills and occupancy of generated kernels", remedy=INSTALL_TORCH,
        )  # fmt: skip
    found = re.search(r"V(\d+\.\d+\.\d+)", run([path, "--version"], CHILD_TIMEOUT_S).stdout)
    return Check(name="ptxas", state="ok", detail=found[1] if found else "version unknown")


def bundled_ptxas() -> str | None:
    """The path of Triton's own ptxas; the package is located, not imported."""
    spec = util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    return str(path) if path.is_file() else None


def compiler_check(name: str, variable: str, names: tuple[str, ...], disables: str) -> Check:
    """A compiler, looked up as Triton and Inductor do: the environment variable, then the path."""
    wanted = (os.environ[variable],) if os.environ.get(variable) else names
    path = next((found for found in map(shutil.which, wanted) if found), None)
    if path is None:
        return Check(
            name=name, state="missing", detail=f"none of {', '.join(wanted)}", disables=disables,
            remedy=f"install {names[0]}, or set {variable}",
        )  # fmt: skip
    return Check(name=name, state="ok", detail=path)


def header_check() -> Check:
    """Python's C headers, which Triton's launcher is compiled against."""
    path = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not path.is_file():
        return Check(
            name="Python headers", state="missing", detail=f"no {path}",
            disables="running kernels on a GPU", remedy="install python3-dev",
        )  # fmt: skip
    return Check(name="Python headers", state="ok", detail=str(path.parent))


def counter_check(gpu_visible: bool) -> Check:
    """Nsight Compute, and whether this user may read the hardware counters."""
    path = shutil.which("ncu")
    disables = "measured DRAM and spill traffic: both are modelled instead"
    if path is None:
        return Check(
            name="Nsight Compute", state="missing", detail="no ncu on the path", disables=disables,
            remedy="install Nsight Compute and put ncu on the path",
        )  # fmt: skip
    if not gpu_visible:
        return Check(
            name="Nsight Compute", state="limited", detail=f"{path}; not tried without a GPU",
            disables=disables,
        )  # fmt: skip
    fault = counter_fault(path)
    if fault:
        return Check(
            name="Nsight Compute", state="limited", detail=fault, disables=disables,
            remedy="allow counters to users: NVreg_RestrictProfilingToAdminUsers=0",
        )  # fmt: skip
    return Check(name="Nsight Compute", state="ok", detail=f"{path}, counters readable")


def counter_fault(ncu: str) -> str:
    """Why a one-kernel program cannot be counted; empty if it can."""
    command = [ncu, "--metrics", "dram__bytes_read.sum", sys.executable, "-c", COUNTED_CODE]
    done = run(command, COUNTER_TIMEOUT_S)
    text = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in text:
        return "ERR_NVGPUCTRPERM: only administrators may read the counters"
    if "dram__bytes_read.sum" in text:
        return ""
    return done.stderr.strip().rpartition("\n")[2] or "ncu recorded no kernel"
