"""Kernel names as people say them: no parameters, no namespaces that tell nothing, no templates.

`void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<… MulFunctor<float>>>`
becomes `vectorized_elementwise_kernel[MulFunctor]`. This is no complete demangler, and two kernels
may get the same short name.
"""

from __future__ import annotations

import re

_LONGEST = 80
# A name can be hostile: longer ones are cut before any pattern sees them.
_READ = 8_192
_MANGLED = re.compile(r"_Z[A-Z]*\d|_ZN")
_LENGTH = re.compile(r"\d+")
_TYPE_END = re.compile(r"::type\s+")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\{anonymous\}::|_GLOBAL__N_\w*::")
_NAMESPACES = re.compile(
    r"^(at::native::|at_cuda_detail::|at::cuda::|cub::detail::\w+::|cub::|c10::|cutlass::)+"
)
_TAIL = re.compile(r"(\.kd|_execute_kernel(_kernel)?)(__5x_\w+|_trt|_cudnn\w*)?$|__5x_cublas$")
_TENSILE = re.compile(r"^(Cijk_[A-Za-z]+_[A-Za-z]+_\w+?)_.*?(MT\d+x\d+x\d+)")
# Kernels that are shells: what they run is among their template arguments.
_SHELL = re.compile(
    r"elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|kentry|device_kernel|\bKernel2?$"
)
_INNER = re.compile(
    r"\b(?!(?:vectorized_|unrolled_)?elementwise_kernel|gpu_kernel_impl|reduce_kernel|ReduceOp\b"
    r"|[AB]?Unary\w*Functor|BinaryFunctor|TensorList\w*|OpaqueType|FusedOptimizerTensor\w*)"
    r"(\w*(?:Functor\w*|_kernel_cuda|_kernel_impl|KernelImpl\w*|_kernel|Ops|_functor|Kernel|launch_\w+"
    r"|Fwd\w*|Bwd\w*|_calc_\w+|_cuda_out|gemm_\w+|prop_\w+|grad_\w+))\b"
)
_GENERIC = ("kernel", "device", "operation", "tensor_operation")


def short_name(name: str) -> str:
    """The name without what only a compiler needs, at most 80 characters."""
    text = name[:_READ]
    if _MANGLED.match(text):
        return _cut(_from_mangled(text))
    tensile = _TENSILE.match(text)
    if tensile:
        return _cut(f"{tensile[1]} {tensile[2]}")
    if text.startswith(("/", "{", "PWN(", "Reformatting")) or " + " in text:
        return _cut(text)  # layers of an engine, no functions
    text = _TYPE_END.split(text, maxsplit=1)[-1] if text.startswith("std::enable_if") else text
    text = _ANONYMOUS.sub("", text.removeprefix("void ").removeprefix("__global__ ")).strip()
    head, arguments = _split(text)
    base = _NAMESPACES.sub("", head)
    base = _TAIL.sub("", base)
    inner = _inner(arguments) if _SHELL.search(base) else ""
    return _cut(f"{base}[{inner}]" if inner else base or text)


def _split(text: str) -> tuple[str, str]:
    """(name, template arguments): `f<a, b>(c)` gives f and `a, b`."""
    first = re.search(r"[<(]", text)
    if first is None:
        return text, ""
    return text[: first.start()], text[first.start() + 1 :] if first.group() == "<" else ""


def _inner(arguments: str) -> str:
    """The functor or kernel that a shell is instantiated for."""
    found = _INNER.findall(arguments)
    return str(found[0]).removesuffix("_kernel_cuda").removesuffix("_kernel_impl") if found else ""


def _from_mangled(text: str) -> str:
    """The nested name in an Itanium-mangled symbol, and for a shell the type it wraps."""
    words = _words(text)
    nested = _nested(text)
    path = [w for w in nested if w not in _GENERIC and not w.startswith("_GLOBAL__N_")]
    base = "::".join(path) or text
    if path and _SHELL.search(path[-1]):
        rest = words[len(nested) :]
        # Namespaces are lower case; the length before `E` is an integer argument.
        inner = next((w for w in rest if len(w) > 2 and w[0].isupper()), "")
        return f"{base}[{inner}]" if inner else base
    return base


def _nested(text: str) -> list[str]:
    """The identifiers before the first template argument or parameter."""
    position = text.find("N") + 1 if text.startswith("_ZN") else 2
    found: list[str] = []
    while (number := _LENGTH.match(text, position)) is not None:
        word, position = _word(text, number)
        found.append(word)
    return found


def _words(text: str) -> list[str]:
    """All length-prefixed identifiers, in order."""
    found, position = [], 2
    while (number := _LENGTH.search(text, position)) is not None:
        word, end = _word(text, number)
        whole = len(word) == int(number.group()[-4:]) and word[:1].isidentifier()
        if whole:
            found.append(word)
        position = end if whole else number.end()
    return found


def _word(text: str, number: re.Match[str]) -> tuple[str, int]:
    end = number.end() + int(number.group()[-4:])
    return text[number.end() : end], end


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
