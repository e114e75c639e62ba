"""The kernels of a Triton file, read without running it: parameters, configurations, signatures.

Triton functions carry no types. They are taken from `--signature`, else from a constant of the file
called `COMPILED` (which generated files have), else from annotations. Constants that a signature
leaves out come from the literal configurations of `triton.autotune` or from defaults.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.errors import UnreadableError, UsageError
from advisor.store.files import read_named
from advisor.verify._resource_worker import Constant
from advisor.verify.resources import ResourceRequest

MAX_FILE_BYTES = 4 << 20
REMEDY = "give a plan, a run directory, or a .py file with a function that triton.jit decorates"
_TYPE = re.compile(r"(\*?(?:[iu](?:1|8|16|32|64)|bf16|fp(?:16|32|64|8e\w+)))(:16)?")
_WORDS = {
    "int1": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
}  # fmt: skip
_DEFAULT_WARPS, _DEFAULT_STAGES = 4, 3


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel; `default` is None where there is none or it is no literal."""

    name: str
    constant: bool
    default: Constant = None
    annotation: str = ""


@dataclass(frozen=True)
class Tuned:
    """One configuration of `triton.autotune`."""

    constants: dict[str, Constant] = field(default_factory=dict)
    num_warps: int = _DEFAULT_WARPS
    num_stages: int = _DEFAULT_STAGES


@dataclass(frozen=True)
class FileKernel:
    """A kernel that no other kernel of the file calls.

    `configs` is None where its configurations are computed, not written as literals.
    """

    name: str
    parameters: tuple[Parameter, ...]
    configs: tuple[Tuned, ...] | None
    compiled: tuple[str, int, int] | None = None


def kernels_in(path: Path) -> tuple[FileKernel, ...]:
    """The kernels of a file; raises `UnreadableError` if it is no Python, `UsageError` if none."""
    data = read_named(path, MAX_FILE_BYTES, remedy=REMEDY)
    try:
        tree = ast.parse(data, filename=str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(
            "not a Python file", where=str(path), why=str(error), remedy=REMEDY
        ) from error
    jitted = [s for s in tree.body if isinstance(s, ast.FunctionDef) and _is_jitted(s)]
    names = {function.name for function in jitted}
    called = {name for function in jitted for name in _calls(function) if name in names}
    compiled = _compiled(tree)
    found = tuple(
        FileKernel(f.name, _parameters(f), _configs(f), compiled.get(f.name))
        for f in jitted
        if f.name not in called
    )
    if not found:
        raise UsageError(
            "the file has no Triton kernel",
            where=str(path),
            why="no function of it is decorated with triton.jit",
            remedy=REMEDY,
        )
    return found


def file_requests(
    path: Path,
    *,
    only: str | None,
    signature: str | None,
    warps: Sequence[int] = (),
    stages: Sequence[int] = (),
) -> tuple[ResourceRequest, ...]:
    """What to compile of a file: each kernel in each of its configurations.

    `warps` and `stages` take the place of those of the file. Raises `UsageError` where the types of
    a kernel cannot be told, naming the parameters, or where `only` is none of its kernels.
    """
    kernels = kernels_in(path)
    names = ", ".join(kernel.name for kernel in kernels)
    if only is not None:
        kernels = tuple(kernel for kernel in kernels if kernel.name == only)
        if not kernels:
            raise UsageError(
                f"no kernel is called {only[:60]!r}", where=str(path), remedy=f"there are: {names}"
            )
    if signature is not None and len(kernels) > 1:
        raise UsageError(
            "a signature is of one kernel", where=str(path), remedy=f"choose by --kernel: {names}"
        )
    return tuple(
        request
        for kernel in kernels
        for request in _requests(path, kernel, signature, warps, stages)
    )


def _requests(
    path: Path,
    kernel: FileKernel,
    signature: str | None,
    warps: Sequence[int],
    stages: Sequence[int],
) -> Iterator[ResourceRequest]:
    text, tuned = signature, kernel.configs or (Tuned(),)
    if text is None and kernel.compiled is not None:
        text, own_warps, own_stages = kernel.compiled
        tuned = (Tuned(num_warps=own_warps, num_stages=own_stages),)
    types, constants, aligned = _typed(path, kernel, text)
    for one in tuned:
        values = _defaults(kernel) | one.constants | constants
        missing = [p.name for p in kernel.parameters if p.name not in {*types, *values}]
        if missing:
            raise _cannot_tell(path, kernel, missing)
        for num_warps in warps or (one.num_warps,):
            for num_stages in stages or (one.num_stages,):
                yield ResourceRequest(
                    source=str(path),
                    kernel=kernel.name,
                    signature=types,
                    constexprs={n: v for n, v in values.items() if n not in types},
                    aligned=aligned,
                    num_warps=num_warps,
                    num_stages=num_stages,
                )


def _typed(
    path: Path, kernel: FileKernel, signature: str | None
) -> tuple[dict[str, str], dict[str, Constant], tuple[str, ...]]:
    """Types and constants by name, and what is divisible by 16, by a signature or annotations."""
    parameters = kernel.parameters
    if signature is None:
        items = {p.name: p.annotation for p in parameters if _TYPE.fullmatch(p.annotation)}
    else:
        given = [item.strip() for item in signature.split(",")]
        if len(given) != len(parameters):
            parameters = tuple(p for p in parameters if not p.constant)
        if len(given) != len(parameters):
            raise _cannot_tell(path, kernel, [p.name for p in kernel.parameters])
        items = {p.name: item for p, item in zip(parameters, given, strict=True)}
    types: dict[str, str] = {}
    constants: dict[str, Constant] = {}
    aligned = []
    for name, item in items.items():
        found = _TYPE.fullmatch(item)
        if found is None:
            constants[name] = _constant(path, kernel, name, item)
            continue
        types[name] = found[1]
        if found[2]:
            aligned.append(name)
    return types, constants, tuple(aligned)


def _constant(path: Path, kernel: FileKernel, name: str, text: str) -> Constant:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = ...
    if not isinstance(value, int | float | bool | str | None):
        raise UsageError(
            f"{text[:40]!r} is neither a type nor a constant",
            where=f"{path}: {kernel.name}, {name}",
            remedy="types are *fp16, *bf16, *fp32, i32, fp32, ...; constants 1024, 0.5, True",
        )
    return value


def _cannot_tell(path: Path, kernel: FileKernel, missing: Sequence[str]) -> UsageError:
    order = ", ".join(parameter.name for parameter in kernel.parameters)
    computed = " (its autotune configurations are computed, not literals)"
    return UsageError(
        f"cannot tell what {', '.join(missing)} of {kernel.name} "
        f"{'is' if len(missing) == 1 else 'are'}",
        where=str(path),
        why="Triton functions carry no types" + (computed if kernel.configs is None else ""),
        remedy=(
            f"give --signature with an item for each of ({order}): a type such as *fp16:16 or i32, "
            "`:16` where it is divisible by 16, or the value of a constant"
        ),
    )


# --- reading --------------------------------------------------------------------------------------


def _is_jitted(function: ast.FunctionDef) -> bool:
    return any(_name(decorator) == "jit" for decorator in function.decorator_list)


def _name(expression: ast.expr) -> str:
    """The last name of `a.b`, `b` or a call of one."""
    if isinstance(expression, ast.Call):
        expression = expression.func
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _calls(function: ast.FunctionDef) -> Iterator[str]:
    """Names of functions that a body calls or hands on, as to `tl.reduce`."""
    for node in ast.walk(ast.Module(function.body, [])):
        if isinstance(node, ast.Name):
            yield node.id


def _parameters(function: ast.FunctionDef) -> tuple[Parameter, ...]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    given = function.args.defaults
    defaults: list[ast.expr | None] = [*[None] * (len(arguments) - len(given)), *given]
    arguments += function.args.kwonlyargs
    defaults += function.args.kw_defaults
    return tuple(
        Parameter(
            argument.arg,
            argument.annotation is not None and _name(argument.annotation) == "constexpr",
            _literal(default),
            _annotated(argument.annotation),
        )
        for argument, default in zip(arguments, defaults, strict=True)
    )


def _annotated(annotation: ast.expr | None) -> str:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return _WORDS.get(_name(annotation), "") if annotation is not None else ""


def _literal(expression: ast.expr | None) -> Constant:
    if isinstance(expression, ast.Constant) and isinstance(expression.value, int | float | str):
        return expression.value
    return None


def _defaults(kernel: FileKernel) -> dict[str, Constant]:
    return {p.name: p.default for p in kernel.parameters if p.constant and p.default is not None}


def _configs(function: ast.FunctionDef) -> tuple[Tuned, ...] | None:
    """The configurations of `triton.autotune`; none without it, None where they are computed."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and _name(decorator) == "autotune":
            listed = [k.value for k in decorator.keywords if k.arg == "configs"]
            listed += decorator.args[:1]
            if not listed or not isinstance(listed[0], ast.List | ast.Tuple):
                return None
            found = [_tuned(item) for item in listed[0].elts]
            return None if None in found else tuple(one for one in found if one is not None)
    return ()


def _tuned(item: ast.expr) -> Tuned | None:
    if not isinstance(item, ast.Call) or _name(item) != "Config":
        return None
    try:
        first = ast.literal_eval(item.args[0]) if item.args else {}
        named = {k.arg: ast.literal_eval(k.value) for k in item.keywords if k.arg is not None}
    except ValueError:
        return None
    constants = named.pop("kwargs", first)
    warps, stages = named.get("num_warps", _DEFAULT_WARPS), named.get("num_stages", _DEFAULT_STAGES)
    if not isinstance(constants, dict) or not isinstance(warps, int) or not isinstance(stages, int):
        return None
    return Tuned(constants, warps, stages)


def _compiled(tree: ast.Module) -> dict[str, tuple[str, int, int]]:
    """The constant `COMPILED`: signature, warps and stages by kernel; empty where there is none."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _names(statement) == ["COMPILED"]:
            try:
                found = ast.literal_eval(statement.value)
            except ValueError:
                return {}
            return found if _is_compiled(found) else {}
    return {}


def _names(statement: ast.Assign) -> list[str]:
    return [target.id for target in statement.targets if isinstance(target, ast.Name)]


def _is_compiled(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str)
        and isinstance(entry, tuple)
        and [type(part) for part in entry] == [str, int, int]
        for name, entry in value.items()
    )
