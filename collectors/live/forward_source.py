"""What a module's `forward` reads besides tensors, by its source, and where its body begins.

Only what can be told for sure passes: arguments and attributes that are tensors or plain values,
functions and modules of the program, methods of the class. Everything else is a reason.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advisor.errors import IllegalFusionError
from advisor.model.forward import Excerpt, ForwardConstant, Scalar

CONTEXT = 3
_LIBRARIES = frozenset({"torch", "math", "builtins", "typing"})
MOST_FUNCTIONS = 20
SCALARS = (bool, int, float, str, type(None))
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.comprehension, ast.Assert)
# What a forward can read of a tensor to compute with its sizes.
_SIZES = frozenset({"shape", "size", "numel", "dim", "ndim", "stride", "nelement"})


@dataclass(frozen=True)
class ForwardSource:
    """A forward as written: its parameters, what decides its result, and where it is changed."""

    owner: str
    file: Path
    parameters: tuple[str, ...]
    constants: tuple[ForwardConstant, ...]
    depends_on_sizes: bool
    variable: str
    indent: int
    body: Excerpt
    imports: Excerpt


@dataclass
class _Seen:
    """What the functions of a forward read, gathered while they are walked."""

    module: nn.Module
    file: Path
    constants: dict[str, Scalar] = field(default_factory=dict)
    outside: dict[str, Scalar] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    depends_on_sizes: bool = False
    done: set[Any] = field(default_factory=set)


def read_forward(module: nn.Module, tensors: int) -> ForwardSource:
    """The forward of a module that is called with `tensors` tensors and nothing else.

    Raises `IllegalFusionError` with the reason where its source does not show what it computes.
    """
    owner, function = _forward_of(module)
    file, lines = _file_of(function)
    tree = _tree(file, lines)
    definition = _definition(tree, function)
    parameters, constants = _parameters(function, tensors)
    seen = _Seen(module, file)
    _walk(function, definition, seen)
    if hidden := sorted(_bound(definition).intersection(seen.outside)):
        raise IllegalFusionError(f"its forward has a name of its own for {hidden[0]}")
    held = [ForwardConstant(holder="attribute", name=n, value=v) for n, v in seen.constants.items()]
    held += [ForwardConstant(holder="argument", name=n, value=v) for n, v in seen.outside.items()]
    first = _first_statement(definition, lines)
    names = (f"fused{number or ''}" for number in range(len(seen.names) + 1))
    return ForwardSource(
        owner=owner,
        file=file,
        parameters=parameters,
        constants=(*constants, *sorted(held, key=lambda item: item.name)),
        depends_on_sizes=seen.depends_on_sizes,
        variable=next(name for name in names if name not in seen.names),
        indent=first.col_offset,
        body=_excerpt(lines, _above_comments(lines, first.lineno, definition)),
        imports=_excerpt(lines, _after_imports(tree, definition.lineno)),
    )


def _forward_of(module: nn.Module) -> tuple[str, types.FunctionType]:
    """The class that defines the forward of a module, and the function."""
    if "forward" in vars(module):
        raise IllegalFusionError("its forward was put on the module, not written in its class")
    owner = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    function = vars(owner)["forward"]
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        raise IllegalFusionError(f"{owner.__name__}.forward is wrapped by something else")
    if owner.__module__.partition(".")[0] == "torch":
        raise IllegalFusionError(f"{owner.__name__} is a module of PyTorch's own")
    return owner.__qualname__.rpartition(".")[2], function


def _file_of(function: types.FunctionType) -> tuple[Path, list[str]]:
    """The file that a function is written in, and its lines."""
    path = Path(function.__code__.co_filename).resolve()
    if "site-packages" in path.parts or "dist-packages" in path.parts:
        raise IllegalFusionError("its source belongs to an installed package")
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        raise IllegalFusionError(f"its source {path.name} cannot be read") from None
    if "\r" in text or not text.endswith("\n"):
        raise IllegalFusionError(f"the lines of {path.name} do not all end with a line feed alone")
    return path, text.removesuffix("\n").split("\n")


def _tree(file: Path, lines: list[str]) -> ast.Module:
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):  # it was changed since it was imported
        raise IllegalFusionError(f"its source {file.name} is no Python any more") from None


def _definition(tree: ast.Module, function: types.FunctionType) -> ast.FunctionDef:
    code = function.__code__
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            at = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            if at == code.co_firstlineno:
                if node.decorator_list:
                    raise IllegalFusionError(f"{function.__qualname__} has decorators")
                return node
    raise IllegalFusionError(f"{function.__qualname__} is not where its source says")


def _parameters(
    function: types.FunctionType, tensors: int
) -> tuple[tuple[str, ...], list[ForwardConstant]]:
    """The names of the tensor arguments, and the others with their defaults."""
    this, *given = inspect.signature(function).parameters.values()
    if this.name != "self":
        raise IllegalFusionError("its forward calls its module by another name than self")
    named, others = given[:tensors], given[tensors:]
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if len(named) < tensors or any(item.kind != plain for item in named):
        raise IllegalFusionError(f"its ops read {tensors} tensors that are no plain arguments")
    for item in others:
        if item.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise IllegalFusionError("its forward takes any number of arguments")
        if not _is_scalar(item.default):
            raise IllegalFusionError(f"its argument {item.name!r} is no tensor that its ops read")
    constants = [ForwardConstant(holder="argument", name=p.name, value=p.default) for p in others]
    return tuple(item.name for item in named), constants


def _walk(function: types.FunctionType, definition: ast.FunctionDef, seen: _Seen) -> None:
    """Take up everything that a function reads, and the functions of the program that it calls."""
    if function in seen.done:
        return
    seen.done.add(function)
    if len(seen.done) > MOST_FUNCTIONS:
        raise IllegalFusionError("its forward calls too many functions to look into")
    if set(function.__code__.co_freevars) - {"__class__"}:
        raise IllegalFusionError(f"{function.__name__} reads variables of a function around it")
    own = _bound(definition)
    this = next(iter(definition.args.args), None)
    name_of_self = this.arg if this is not None and _is_method(function, seen.module) else ""
    attributes: set[int] = set()
    for node in ast.walk(definition):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            raise IllegalFusionError(f"{function.__name__} writes variables outside itself")
        if isinstance(node, _BRANCHES):
            seen.depends_on_sizes = True
        if isinstance(node, ast.Attribute):
            seen.depends_on_sizes |= node.attr in _SIZES
            if isinstance(node.value, ast.Name) and node.value.id == name_of_self:
                attributes.add(id(node.value))
                _attribute(node, seen)
    for node in _body_nodes(definition):
        if not isinstance(node, ast.Name):
            continue
        seen.names.add(node.id)
        seen.depends_on_sizes |= node.id == "len"
        if node.id == name_of_self and id(node) not in attributes:
            raise IllegalFusionError(f"{function.__name__} hands its module on")
        if node.id not in own:
            _global(node.id, function, seen)


def _bound(definition: ast.FunctionDef) -> set[str]:
    """The names that a function binds: its arguments, and what it assigns."""
    nodes = list(ast.walk(definition))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _body_nodes(definition: ast.FunctionDef) -> Iterator[ast.AST]:
    """All nodes of a function's statements: not its annotations and defaults."""
    for statement in definition.body:
        yield from ast.walk(statement)


def _is_method(function: types.FunctionType, module: nn.Module) -> bool:
    return inspect.getattr_static(type(module), function.__name__, None) is function or any(
        vars(kind).get(function.__name__) is function for kind in type(module).__mro__
    )


def _attribute(node: ast.Attribute, seen: _Seen) -> None:
    """An attribute of the module: a tensor, a plain value, or a method that is looked into."""
    name = node.attr
    if not isinstance(node.ctx, ast.Load):
        raise IllegalFusionError(f"its forward writes self.{name}")
    static = inspect.getattr_static(type(seen.module), name, None)
    if isinstance(static, types.FunctionType):
        if name in vars(seen.module):
            raise IllegalFusionError(f"self.{name} was put on the module, not written in its class")
        _follow(static, seen)
        return
    if isinstance(static, property):
        raise IllegalFusionError(f"self.{name} is computed each time that it is read")
    value: Any = getattr(seen.module, name, seen)
    if isinstance(value, torch.Tensor):
        return
    if isinstance(value, nn.Module):
        raise IllegalFusionError(f"its forward calls self.{name}, a module of its own")
    if not _is_scalar(value):
        raise IllegalFusionError(f"its forward reads self.{name}, {_said(value)}")
    seen.constants[name] = value


def _global(name: str, function: types.FunctionType, seen: _Seen) -> None:
    """A name from outside a function: of PyTorch or Python, a plain value, or another function."""
    if name not in function.__globals__:
        if name == "super" or not hasattr(builtins, name):
            raise IllegalFusionError(f"its forward reads {name}, which is not looked into")
        return
    value = function.__globals__[name]
    if isinstance(value, torch.dtype):
        return
    if isinstance(value, SCALARS):
        _outside(name, value, function, seen)
        return
    if _home(value).partition(".")[0] in _LIBRARIES:
        return
    if not isinstance(value, types.FunctionType):
        raise IllegalFusionError(f"its forward reads {name}, which is not looked into")
    _follow(value, seen)


def _outside(name: str, value: Scalar, function: types.FunctionType, seen: _Seen) -> None:
    """A plain value of a file, which may be another one day: the patched forward hands it on."""
    if not _is_scalar(value):
        raise IllegalFusionError(f"its forward reads {name}, {_said(value)}")
    if _file_of(function)[0] != seen.file:
        raise IllegalFusionError(f"its forward reads {name} of another file")
    seen.outside[name] = value


def _is_scalar(value: Any) -> bool:
    """Whether a value can be on record and compared: finite, and of no class derived from these."""
    return type(value) in SCALARS and not (isinstance(value, float) and not math.isfinite(value))


def _said(value: Any) -> str:
    return str(value) if type(value) is float else f"a {type(value).__name__}"


def _home(value: Any) -> str:
    """The module that a function or class is of, or that it is; "" of all other objects."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, nn.Module) or not callable(value):
        return ""
    return str(getattr(value, "__module__", None) or "")


def _follow(function: types.FunctionType, seen: _Seen) -> None:
    file, lines = _file_of(function)
    _walk(function, _definition(_tree(file, lines), function), seen)


def _first_statement(definition: ast.FunctionDef, lines: list[str]) -> ast.stmt:
    """The first statement behind the docstring; it begins its line."""
    first, *rest = definition.body
    if rest and isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        first = rest[0]
    if set(lines[first.lineno - 1][: first.col_offset]) != {" "}:
        raise IllegalFusionError("its forward is on one line, or indented by tabs")
    return first


def _after_imports(tree: ast.Module, before: int) -> int:
    """The line behind the last import at the head of a file, else behind its docstring."""
    ends = [
        node.end_lineno or node.lineno
        for position, node in enumerate(tree.body)
        if (isinstance(node, (ast.Import, ast.ImportFrom)) or position == 0)
        and (node.end_lineno or node.lineno) < before
        and not isinstance(node, (ast.ClassDef, ast.FunctionDef))
    ]
    return max(ends, default=0) + 1


def _above_comments(lines: list[str], at: int, definition: ast.FunctionDef) -> int:
    """The first line of the comments that stand right above a line, or the line.

    Lines of a docstring may begin like one.
    """
    ends = [item.end_lineno or 0 for item in definition.body if item.lineno < at]
    while at - 1 > max(ends, default=definition.lineno) and lines[at - 2].lstrip().startswith("#"):
        at -= 1
    return at


def _excerpt(lines: list[str], at: int) -> Excerpt:
    """The lines around one, counted from 1, before which something is inserted."""
    first = max(at - CONTEXT, 1)
    return Excerpt(first=first, lines=tuple(lines[first - 1 : at - 1 + CONTEXT]), at=at)
