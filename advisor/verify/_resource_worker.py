"""The compiling child of `advisor.verify.resources`: JSON jobs in, JSON answers out, by line.

Only here is Triton imported: interpreting and compiling do not go together in one process, a
compilation can run for minutes or crash, and the parent kills it when its time is up. An exception
ends the process; the parent reads it from standard error and starts another.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import importlib
import io
import os
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from advisor.model.base import Record
from advisor.verify.binaries import Usage, read_amdgcn, read_cubin

Constant = int | float | bool | str | None
READY = b"ready\n"
# What kernels of PyTorch's compiler call: jitted functions of its own.
_COMPILER_HELPERS = ("torch._inductor.runtime", "torch._inductor.runtime.triton_helpers")
_PR_SET_PDEATHSIG = 1
_BUILTIN_TYPES = {"int", "float", "bool", "str"}


class CompileJob(Record, frozen=True, kw_only=True):
    """A kernel of a file, compiled for one target; `aligned` names arguments divisible by 16."""

    source: str
    kernel: str
    signature: dict[str, str]
    constexprs: dict[str, Constant]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int
    backend: str
    arch: int | str
    warp_size: int
    max_registers: int | None = None


def kernels_of(path: Path) -> dict[str, Any]:
    """The `@triton.jit` functions of a file, made without running anything else of it.

    Kept are imports of triton, jitted functions and assignments made of kept names (constants); so
    launchers, references and their imports (torch) neither run nor need to be installed. Kernels of
    PyTorch's compiler, which call its helpers, need it.
    """
    tree = ast.parse(path.read_bytes(), filename=str(path))
    kept: list[ast.stmt] = []
    names: set[str] = set()
    for statement in tree.body:
        if (bound := _bound_names(statement, names)) is not None:
            kept.append(statement)
            names |= bound
    module: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    # The code keeps the file's name and lines, which is where Triton reads a kernel's source.
    exec(compile(ast.Module(kept, []), str(path), "exec"), module)
    return module


def _bound_names(statement: ast.stmt, known: set[str]) -> set[str] | None:
    """The names that a statement to keep binds, or None for one to leave out."""
    if isinstance(statement, ast.Import):
        if all(alias.name.split(".")[0] == "triton" for alias in statement.names):
            return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    elif isinstance(statement, ast.ImportFrom):
        module = statement.module or ""
        if module.split(".")[0] in ("triton", "__future__") or module in _COMPILER_HELPERS:
            return {alias.asname or alias.name for alias in statement.names}
    elif isinstance(statement, ast.FunctionDef):
        # Autotuning and heuristics wrap the jitted function; here the configuration is given.
        statement.decorator_list = [d for d in statement.decorator_list if _is_jit(d, known)]
        if statement.decorator_list and _evaluated(statement) <= known | _BUILTIN_TYPES:
            return {statement.name}
    elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if _uses(statement.value) <= known and all(isinstance(t, ast.Name) for t in targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
    return None


def _evaluated(function: ast.FunctionDef) -> set[str]:
    """The names that defining a function evaluates: in defaults and annotations."""
    every = function.args
    arguments = [*every.posonlyargs, *every.args, *every.kwonlyargs]
    found = [*every.defaults, *every.kw_defaults, *(one.annotation for one in arguments)]
    return {name for one in (*found, function.returns) if one is not None for name in _uses(one)}


def _is_jit(decorator: ast.expr, known: set[str]) -> bool:
    """True for `triton.jit`, `jit` imported from triton, or a call of one."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
    return name == "jit" and _uses(decorator) <= known


def _uses(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def compile_job(job: CompileJob) -> Usage:
    """Compile one job and read what it needs; whatever Triton raises goes through."""
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        compiled = compiled_kernel(job)
    if job.backend == "hip":
        usage = read_amdgcn(compiled.asm["amdgcn"])
    else:
        usage = read_cubin(compiled.asm["cubin"], log.getvalue())
    return msgspec.structs.replace(usage, shared_bytes=int(compiled.metadata.shared))


def compiled_kernel(job: CompileJob) -> Any:
    """What Triton makes of a job: `asm` by kind of text, and its `metadata`."""
    compiler = importlib.import_module("triton.compiler")
    targets = importlib.import_module("triton.backends.compiler")
    kernel: Any = kernels_of(Path(job.source)).get(job.kernel)
    if not hasattr(kernel, "arg_names"):
        raise ValueError(f"{job.source} has no kernel {job.kernel}")
    constants = {name: value for name, value in job.constexprs.items() if name in kernel.arg_names}
    missing = [n for n in kernel.arg_names if n not in constants and n not in job.signature]
    if missing:
        raise ValueError(f"{job.kernel}: no type for argument {', '.join(missing)}")
    if unknown := [name for name in job.aligned if name not in kernel.arg_names]:
        raise ValueError(f"{job.kernel} has no argument {', '.join(unknown)}")
    source = compiler.ASTSource(
        fn=kernel,
        signature={
            name: "constexpr" if name in constants else job.signature[name]
            for name in kernel.arg_names
        },
        constexprs=constants,
        attrs=_attributes(kernel.arg_names, constants, job.aligned),
    )
    options = {"num_warps": job.num_warps, "num_stages": job.num_stages}
    if job.max_registers is not None:
        options["maxnreg"] = job.max_registers
    target = targets.GPUTarget(job.backend, job.arch, job.warp_size)
    return compiler.compile(source, target=target, options=options)


def _attributes(
    names: Sequence[str], constants: Collection[str], aligned: Collection[str]
) -> dict[tuple[int], list[list[str | int]]]:
    """What a launch says of each argument, so that it finds what is compiled here.

    Triton tells what it has compiled by it too; from 3.7 on by an entry of each constant as well.
    """
    version = importlib.import_module("triton").__version__
    of_constants = tuple(map(int, version.split(".")[:2])) >= (3, 7)
    return {
        (number,): [["tt.divisibility", 16]] if name in aligned else []
        for number, name in enumerate(names)
        if of_constants or name not in constants
    }


def main() -> None:
    """Answer jobs until standard input ends."""
    if sys.platform == "linux":
        # A parent that is killed cannot stop a compilation that runs for minutes.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # compilers print; only answers may reach the parent's pipe
    importlib.import_module("triton")
    answers.write(READY)
    for line in sys.stdin.buffer:
        usage = compile_job(msgspec.json.decode(line, type=CompileJob))
        answers.write(msgspec.json.encode(usage) + b"\n")


if __name__ == "__main__":
    main()
