"""Tensors of more than 2^31 elements, by compiling alone: no address is a product of 32 bits.

Rows and columns are numbered in 32 bits (`apply` refuses sites that have more of either), so their
product, or that of one of them with a stride, is what could overflow. Triton's own intermediate
code says how wide each product is that an address depends on.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="compiling kernels needs triton")

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from advisor.model.configs import candidate_configs
from advisor.model.plan import FusionPlan
from advisor.pipeline.sizing import requests
from advisor.verify.resources import ResourceRequest
from tests.builders import gemm_plans, members, scan_plans
from tests.builders.quantised import both_orders
from tests.codegen import plans
from tests.codegen.test_random_eight_bits import quantised, residual

PLANS: dict[str, Callable[[], FusionPlan]] = {
    "norm": plans.norm,
    "labels": plans.loss_gradient,
    "strided": plans.strided,
    "sums over rows": plans.norm_gradient,
    "several column axes": lambda: plans.group_norm("float16", sizes=(8, 32), columns=(10, 4096)),
    "channels": lambda: plans.batch_norm("float16", sizes=(256,), columns=(32, 3136)),
    "read across": lambda: plans.turned("float16", sizes=(4096,), columns=4096),
    "dropout": lambda: residual("bfloat16"),
    "eight bits": lambda: quantised("bfloat16", "int8"),
    "both orders, rows": lambda: both_orders("rows", 8192, 4096),
    "both orders, all": lambda: both_orders("all", 8192, 4096),
    "both orders, squares": lambda: both_orders("squares", 8192, 4096),
    "horizontal": lambda: members.group(members.rms_norm(6, 40), members.bias_act(5, 70)),
    "product": lambda: gemm_plans.biased_gelu((2048, 768, 3072)),
    "scan": lambda: scan_plans.selective((1536, 64, 16)),
}
# Shares of columns, or of steps: where they begin is within the columns, or the steps.
WITHIN = {"split_columns", "split_steps"}
_VALUE = re.compile(r"(%\w+)(?::\d+)? = (.*)")
_PRODUCT = re.compile(r"arith\.muli (%\w+), (%\w+).*: (?:tensor<[\dx]*)?i32>?$")
_SAME = re.compile(r"(?:tt\.splat|tt\.broadcast|tt\.expand_dims|arith\.trunci) (%\w+)")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def kernels(plan: FusionPlan) -> Iterator[ResourceRequest]:
    """The kernels of the likeliest configuration of every scheme."""
    seen = set()
    for config in candidate_configs(plan, plan.sites[0]):
        if config.scheme not in seen:
            seen.add(config.scheme)
            yield from requests(plan, config)


def intermediate(path: Path, request: ResourceRequest) -> str:
    """Triton's code of a kernel before it is that of any GPU: the first stage of compiling."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel: Any = getattr(module, request.kernel)
    types = {n: request.signature.get(n, "constexpr") for n in kernel.arg_names}
    source = ASTSource(kernel, types, constexprs=request.constexprs)
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options, context = backend.parse_options({}), ir.context()
    stages: dict[str, Any] = {}
    ir.load_dialects(context)
    backend.load_dialects(context)
    given = backend.get_codegen_implementation(options), backend.get_module_map()
    raw = source.make_ir(target, options, *given, context)
    backend.add_stages(stages, options, source.language)
    return str(stages["ttir"](raw, {}))


def narrow_products(text: str) -> list[str]:
    """Products of 32 bits of two numbers that are known at run time only."""
    lines = (line.strip().split(" loc(")[0] for line in text.splitlines())
    values = {m[1]: m[2] for line in lines if (m := _VALUE.fullmatch(line))}

    def root(name: str) -> str:
        same = _SAME.match(values.get(name, ""))
        return root(same[1]) if same else name

    narrow = []
    for name, value in values.items():
        product = _PRODUCT.fullmatch(value)
        if product is None:
            continue
        factors = [root(factor) for factor in product.groups()]
        constant = any(values.get(f, "").startswith("arith.constant") for f in factors)
        if not constant and not WITHIN & {factor[1:] for factor in factors}:
            narrow.append(f"{name} = {value}")
    return narrow


@pytest.mark.parametrize("name", PLANS)
def test_no_address_is_a_product_of_32_bits(name: str) -> None:
    for request in kernels(PLANS[name]()):
        assert not narrow_products(intermediate(Path(request.source), request)), request.kernel


@pytest.mark.parametrize("name", ["norm", "strided"])
def test_a_product_of_32_bits_is_seen(name: str, tmp_path: Path) -> None:
    request = next(kernels(PLANS[name]()))
    path = tmp_path / "narrow.py"
    path.write_text(Path(request.source).read_text().replace(".to(tl.int64)", ""))
    assert narrow_products(intermediate(path, request))
