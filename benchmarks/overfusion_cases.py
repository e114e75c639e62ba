"""The corpus of over-fusion as a user's runs would hold it: steps, and kernels' code by name.

Nothing of a case's name, family or label goes in.
"""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

from overfusion_corpus.frozen import Recording
from overfusion_corpus.model import Case
from overfusion_corpus.records import Compiled, Generated

from advisor.model.overfusion import KernelCode, Scalar
from advisor.model.step_record import StepRecord
from analyzers.overfusion.facts import step_facts
from collectors import read_trace

_SOURCES = Path(__file__).parent / "overfusion_corpus"
_CONSTANT = re.compile(r"(\w+): (\w+)")


def is_development(case: Case) -> bool:
    """Whether a case may be looked at while rules are written: by the hash of its group.

    Siblings, which differ in the knob alone, are in one half.
    """
    return hashlib.sha256(case.group.encode()).digest()[-1] % 2 == 0


def facts_of(recording: Recording, case: str, way: str, *, code: bool = True) -> StepRecord:
    """The steps of one way of a case; with `code`, what is known of its kernels as well."""
    codes = tuple(codes_of(recording, case, way).values()) if code else ()
    return step_facts(read_trace(recording.trace(case, way)), codes)


def codes_of(recording: Recording, case: str, way: str) -> dict[str, KernelCode]:
    """The kernels of one way by name: as their user wrote them, or as Inductor did."""
    result = recording.results[case]
    variant = result.fused if way == "fused" else result.members
    found = [written(compiled) for compiled in variant.launches]
    text = recording.code(case, way) or ""
    found += [generated(kernel, text) for kernel in variant.generated]
    return {kernel.name: kernel for kernel in found}


def written(compiled: Compiled) -> KernelCode:
    """A kernel of a user's file."""
    request = compiled.request
    return KernelCode(
        name=request.kernel,
        source=(_SOURCES / request.source).read_text(),
        constants=dict(request.constexprs),
        signature=dict(request.signature),
        aligned=tuple(request.aligned),
        num_warps=request.num_warps,
        num_stages=request.num_stages,
        resources=compiled.resources,
    )


def generated(kernel: Generated, text: str) -> KernelCode:
    """A kernel of Inductor's output: what its file says of it, and the chosen configuration."""
    constants: dict[str, Scalar] = {
        k: int(v) for k, v in _CONSTANT.findall(kernel.config) if v.isdigit()
    }
    warps = constants.pop("num_warps", None)
    stages = constants.pop("num_stages", None)
    signature, aligned = _meta(kernel.name, text)
    return KernelCode(
        name=kernel.name,
        source=text,
        constants={k: v for k, v in constants.items() if k.isupper() or "BLOCK" in k},
        signature=signature,
        aligned=aligned,
        num_warps=warps if isinstance(warps, int) else None,
        num_stages=stages if isinstance(stages, int) else None,
        resources=None,
    )


def _meta(name: str, text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Pointer types of a kernel's arguments, and those that divide by 16."""
    start = text.find(f"async_compile.triton('{name}'")
    found = re.search(r"'signature': (\{[^}]*\})", text[start:])
    divides = re.search(r"'configs': \[(\{[^}]*\})\]", text[start:])
    if start < 0 or found is None:
        return {}, ()
    signature = {str(k): str(v) for k, v in ast.literal_eval(found[1]).items()}
    names = list(signature)
    places = ast.literal_eval(divides[1]) if divides else {}
    aligned = tuple(names[place] for (place,), kinds in places.items() if kinds)
    return {k: v for k, v in signature.items() if v != "constexpr"}, aligned
