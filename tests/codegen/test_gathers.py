"""Inputs that are rows of a table: kernels in every scheme, references, files, hostile plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("triton", reason="kernels need triton")

import torch

from advisor.codegen import abi, render
from advisor.codegen.families import reference, site_launches
from advisor.codegen.gradient import gradient
from advisor.codegen.standalone import Standalone, render_standalone
from advisor.errors import IllegalFusionError, InvalidRecordError
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import decode, encode
from advisor.model.configs import candidate_configs, default_config, schemes_of
from advisor.model.gathers import index_names
from advisor.model.halves import halves
from advisor.model.joining import join
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.model.prefix import prefix
from advisor.model.sectors import sector_bytes
from advisor.model.site_work import site_bytes
from advisor.pipeline.candidates import requests
from advisor.verify.cases import cases, make_inputs
from advisor.verify.interpret import evaluate
from advisor.verify.numerics import NumericsProcess
from advisor.verify.resources import resources_of
from advisor.verify.timing import site_inputs
from tests.builders.forked import Forked
from tests.builders.plan import PlanBuilder
from tests.codegen import plans
from tests.codegen.interpreter import Interpreter

CPU = torch.device("cpu")
Make = Callable[..., FusionPlan]
WAYS: tuple[tuple[Make, Scheme], ...] = (
    (plans.embedding_norm, "registers"),
    (plans.embedding_norm, "looped"),
    (plans.embedding_norm, "online"),
    (plans.embedding_norm, "split"),
    (plans.embedding_sums, "column_sums"),
    (lambda *a, **k: plans.embedding_sums(*a, rows=False, **k), "column_walk"),
    (plans.embedding_chain, "blocks"),
)


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    with Interpreter(tmp_path_factory.mktemp("interpreter")) as child:
        yield child


def config_of(plan: FusionPlan, scheme: Scheme) -> LaunchConfig:
    held = scheme == "registers" or (
        scheme == "column_sums" and "column_walk" not in schemes_of(plan)
    )
    shares = scheme in ("split", "column_sums")
    return LaunchConfig(
        scheme=scheme,
        block_rows=4 if scheme.startswith("column") or scheme == "blocks" else 2,
        block_columns=None if held else 32,
        splits=3 if shares else None,
        num_stages=1,
    )


# One size a type, all of them with FUSION_ADVISOR_MATRIX=1.
TYPES, COLUMNS = ("float32", "bfloat16", "float16"), (1, 37, 130)
WHOLE_MATRIX = bool(os.environ.get("FUSION_ADVISOR_MATRIX"))
CASES = list(product(TYPES, COLUMNS)) if WHOLE_MATRIX else list(zip(TYPES, COLUMNS, strict=True))


@pytest.mark.parametrize(("dtype", "columns"), CASES)
@pytest.mark.parametrize(("make", "scheme"), WAYS, ids=[scheme for _, scheme in WAYS])
def test_every_scheme_reads_the_rows_that_the_indices_name(
    make: Make, scheme: Scheme, dtype: str, columns: int, interpreter: Interpreter
) -> None:
    """Against float64; indices repeat, as eleven rows are named by twenty-one."""
    plan = make(dtype, columns=columns, sizes=(3, 7))
    assert scheme in schemes_of(plan)
    torch.manual_seed(0)
    inputs = site_inputs(plan, plan.sites[0], CPU)
    shapes = [(o.shape((3, 7), (columns,)), getattr(torch, o.dtype)) for o in plan.outputs]
    options = config_of(plan, scheme).options()
    del options["num_warps"]
    got = interpreter.run(render(plan, scheme).text, inputs, shapes, **options)
    epsilon = torch.finfo(getattr(torch, dtype)).eps
    for mine, exact in zip(got, evaluate(plan, inputs, "exact"), strict=True):
        error = (mine.double() - exact.expand(mine.shape)).abs().max()
        assert float(error) <= 8 * epsilon * (1 + float(exact.abs().max()))


@pytest.mark.parametrize(("make", "scheme"), WAYS, ids=[scheme for _, scheme in WAYS])
def test_beyond_a_table_nothing_is_read(
    make: Make, scheme: Scheme, interpreter: Interpreter
) -> None:
    """Not the memory beside it, where eager code stops: such rows are NaN, all others right."""
    plan = make("float32", columns=37, sizes=(3, 7))
    inputs = site_inputs(plan, plan.sites[0], CPU)
    table = next(n for n, item in enumerate(plan.inputs) if item.gathered is not None)
    place = int((plan.inputs[table].gathered or "")[2:])
    outside = torch.zeros(21, dtype=torch.bool)
    outside[[2, 9, 20]] = True
    wrong = inputs[place].clone()
    wrong.view(-1)[outside] = torch.tensor([-1, inputs[table].numel() // 37, 2**30]).to(wrong.dtype)
    inputs[place].view(-1)[outside] = 0
    shapes = [(o.shape((3, 7), (37,)), getattr(torch, o.dtype)) for o in plan.outputs]
    options = config_of(plan, scheme).options()
    del options["num_warps"]
    given = [wrong if number == place else one for number, one in enumerate(inputs)]
    got = interpreter.run(render(plan, scheme).text, given, shapes, **options)
    found = 0
    exactly = evaluate(plan, inputs, "exact")
    for output, mine, exact in zip(plan.outputs, got, exactly, strict=True):
        if output.space == "column":  # a sum over all rows
            assert mine.isnan().all()
            continue
        rows, wanted = mine.double().reshape(21, -1), exact.expand(mine.shape).reshape(21, -1)
        assert rows[outside].isnan().all()
        torch.testing.assert_close(rows[~outside], wanted[~outside], rtol=1e-5, atol=1e-5)
        found += 1
    assert found


@pytest.fixture(scope="module")
def verifier() -> Iterator[NumericsProcess]:
    with NumericsProcess("cpu") as process:
        yield process


@pytest.mark.parametrize(("make", "scheme"), WAYS[::2], ids=[scheme for _, scheme in WAYS[::2]])
def test_the_verifier_passes_a_right_kernel_and_fails_a_wrong_one(
    make: Make, scheme: Scheme, tmp_path: Path, verifier: NumericsProcess
) -> None:
    """Wrong: the row after the one that is named."""
    plan = make("float32", columns=24)
    path, kernel = tmp_path / "plan.json", tmp_path / f"{plan.id}.py"
    path.write_bytes(encode(plan))
    text = render(plan, scheme).text
    for right in (True, False):
        edited = text if right else text.replace("in0_value.to(tl.int64)", "(in0_value ^ 1)")
        assert right == (edited == text)
        kernel.write_text(edited)
        config = config_of(plan, scheme)
        found = verifier.verify(path, kernel, config, timeout_s=120)
        assert found.passed == right, [case.detail for case in found.cases if not case.passed]
        assert any(case.name == "no rows" for case in found.cases)


def test_indices_of_cases_are_rows_of_their_tables() -> None:
    plan = plans.embedding_norm(table_rows=2)
    seen = set()
    for number, case in enumerate(cases(plan, small=True, block_rows=2)):
        inputs = make_inputs(plan, case, CPU, number)
        for item, table in zip(plan.inputs, inputs, strict=True):
            if item.gathered is not None and inputs[int(item.gathered[2:])].numel():
                index = inputs[int(item.gathered[2:])]
                assert table.shape[item.spans.index(True)] == 2
                seen |= set(index.flatten().tolist())
    assert seen == {0, 1}


def test_the_reference_of_a_file_is_that_of_the_plan() -> None:
    plan = plans.embedding_norm("float32", dense=False)
    inputs = site_inputs(plan, plan.sites[0], CPU)
    space: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {}
    exec("import torch\n" + reference(plan), space)
    given, place = inputs[1].reshape(11, 64), inputs[0].reshape(6)
    want = evaluate(plan, inputs, "native")
    assert torch.equal(want[1].reshape(6, 64), given[place])
    for mine, wanted in zip(space["reference"](*inputs), want, strict=True):
        assert torch.equal(mine, wanted)


def test_a_file_checks_itself(tmp_path: Path, interpreting: Forked) -> None:
    plan = plans.embedding_norm(dense=False, table_rows=30_000)
    export = Standalone(plan, config_of(plan, "split"), "a test", custom_op=True)
    path = tmp_path / "kernel.py"
    path.write_text(render_standalone(export))
    assert 'rows_in0 = {"cuda": 30000, "cpu": 50}[device]' in path.read_text()
    assert "for tensor in (*read, *out)" in path.read_text()
    done = interpreting.run(str(path), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_of_a_table_as_much_is_counted_as_is_read_at_most() -> None:
    """Six rows of 64 bfloat16 numbers of each table, less where it has fewer; no table whole."""
    row = 64 * 2
    for table_rows in (2, 11, 10**6):
        plan = plans.embedding_norm(table_rows=table_rows)
        named = min(table_rows, 6) * row + min(table_rows, 3) * row
        indices = 6 * 8 + 3 * 4
        assert site_bytes(plan, plan.sites[0]) == named + indices + 2 * row + 2 * 6 * row
    whole = plans.embedding_norm(columns=64)
    odd = plans.embedding_norm(columns=63)
    assert sector_bytes(whole, whole.sites[0], LaunchConfig()) == site_bytes(whole, whole.sites[0])
    assert (
        sector_bytes(odd, odd.sites[0], LaunchConfig())
        == site_bytes(odd, odd.sites[0]) + (6 + 3) * 30
    )


def test_a_table_is_part_of_the_kernels_name_and_calling_convention() -> None:
    plan = plans.embedding_norm()
    assert "gathered" not in plans.layer_norm().signature()
    assert decode(encode(plan), FusionPlan, "plan") == plan
    dense = plans.embedding_norm(dense=False)
    assert dense.signature() != plan.signature()
    (kernel,) = abi.kernels(dense, "registers")
    assert [name for name in kernel.scalars if "stride" in name] == [
        "in1_stride_0",
        "in3_stride_1",
        "in2_stride_1",
    ]
    (launch,) = site_launches(dense, LaunchConfig(), dense.sites[0])
    assert (launch.scalars["in1_stride_0"], launch.scalars["in3_stride_1"]) == (67, 67)


def test_parts_of_a_plan_keep_the_indices_of_their_tables() -> None:
    plan = plans.embedding_norm("float32")
    for count in range(2, len(plan.ops)):
        part = prefix(plan, count)
        both = halves(plan, count)
        for found in (part, *(both or ())):
            if found is not None:
                assert index_names(found) <= {item.name for item in found.inputs}
                site_inputs(found, found.sites[0], CPU)


def test_what_reads_a_table_is_alone_and_has_no_gradient_kernel() -> None:
    plan = plans.embedding_norm()
    with pytest.raises(IllegalFusionError, match="the gradient of a table"):
        gradient(plan)
    make = PlanBuilder()
    words = make.input("float32", gathered=make.input("int64", (True, False)))
    made = make.plan(make.op("relu", words))
    with pytest.raises(InvalidRecordError, match="a member that reads rows of a table"):
        join([made, made], "0" * 16, "two").check()


def changed(plan: FusionPlan, position: int, **fields: object) -> FusionPlan:
    inputs = list(plan.inputs)
    inputs[position] = msgspec.structs.replace(inputs[position], **fields)
    return msgspec.structs.replace(plan, inputs=tuple(inputs))


@pytest.mark.parametrize(
    ("position", "fields", "reason"),
    [
        (1, {"gathered": "in1"}, "no input before it holds its index"),
        (1, {"gathered": "in2"}, "no input before it holds its index"),
        (1, {"gathered": "in0\nimport os"}, "no input before it holds its index"),
        (1, {"gathered": ""}, "no input before it holds its index"),
        (3, {"gathered": "in1"}, "its index is not one int32 or int64 a row"),
        (0, {"dtype": "float32"}, "its index is not one int32 or int64 a row"),
        (0, {"dtype": "uint8"}, "its index is not one int32 or int64 a row"),
        (0, {"spans": (True, True, True)}, "its index is not one int32 or int64 a row"),
        (0, {"spans": (False, False, False)}, "its index is not one int32 or int64 a row"),
        (2, {"reverse": True}, "is not read as it lies in memory"),
        (1, {"dtype": "int64"}, "no table of floats"),
        (1, {"spans": (False, True, True)}, "no table of floats"),
        (1, {"spans": (True, True, False)}, "no table of floats"),
        (3, {"unit_stride": False}, "lie side by side"),
        (3, {"reverse": True}, "lie side by side"),
    ],
)
def test_hostile_tables_are_refused(position: int, fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        changed(plans.embedding_norm(), position, **fields).check()


@pytest.mark.parametrize(
    "fields",
    [
        {"table_rows": ()},
        {"table_rows": (0, 11, 0, 0, 0, 0)},
        {"table_rows": (0, 11, 0, -1, 0, 0)},
        {"table_rows": (0, 11, 0, 2**41, 0, 0)},
        {"table_rows": (1, 11, 0, 11, 0, 0)},
        {"input_strides": ((3, 1, 0), (65, 0, 1), (0, 1, 0), (0, 67, 1), (0, 0, 1), (0, 0, 1))},
        {"input_strides": ((3, 1, 0), (64, 1, 1), (0, 1, 0), (0, 67, 1), (0, 0, 1), (0, 0, 1))},
        {"input_strides": ((3, 1, 0), (64, 0, 1), (0, 1, 0), (0, 63, 1), (0, 0, 1), (0, 0, 1))},
        {"input_strides": ((3, 1, 0), (64, 0, 2), (0, 1, 0), (0, 67, 1), (0, 0, 1), (0, 0, 1))},
    ],
)
def test_sites_that_say_something_else_of_a_table_are_refused(fields: dict[str, object]) -> None:
    plan = plans.embedding_norm()
    site = msgspec.structs.replace(plan.sites[0], **fields)
    with pytest.raises(InvalidRecordError, match="its tables do not fit the plan"):
        msgspec.structs.replace(plan, sites=(site,)).check()


def test_rows_of_a_site_without_tables_are_refused() -> None:
    plan = plans.layer_norm()
    site = msgspec.structs.replace(plan.sites[0], table_rows=(3, 0, 0, 0))
    with pytest.raises(InvalidRecordError, match="its tables do not fit the plan"):
        msgspec.structs.replace(plan, sites=(site,)).check()


@pytest.mark.usefixtures("forked_compilers")
@pytest.mark.parametrize("columns", [768, 4096])
def test_an_embedding_and_its_norm_spill_nothing_on_sm_90(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = plans.embedding_norm(sizes=(32, 512), columns=columns, table_rows=30_522)
    configs = dict.fromkeys(
        (default_config(plan, plan.sites[0]), *candidate_configs(plan, plan.sites[0])[:2])
    )
    wanted = [request for config in configs for request in requests(plan, config)]
    for (row,) in resources_of(wanted, [gpu_by_key("h200")]):
        assert row.error is None, row
        assert (row.spill_store_bytes, row.spill_load_bytes) == (0, 0), row
