"""Steps of optimizers by one launch: what float64 gives, the state included; or a reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.model.multi_tensor import (
    SMALL_CHUNK,
    MultiTensorStep,
    own_step,
    use_multi_tensor,
)
from advisor.apply.model.optimizer import device_counts, fuse_optimizer, own_counts
from advisor.apply.model.update_rules import rule_of
from advisor.apply.recipe import UNCHANGED
from advisor.verify.binaries import read_cubin
from tests.builders.forked import Forked
from tests.builders.updates import Lion

ROOT = Path(__file__).parents[2]


def test_steps_are_as_near_to_float64_as_the_optimizers_own(interpreting: Forked) -> None:
    """Every rule, float32 and bfloat16, a parameter without gradient, kernels out and in again.

    With the scalars of a GPU, and a fused step that is as far from float64 as a GPU's.
    """
    done = interpreting.run(str(ROOT / "tests" / "builders" / "updates.py"), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    errors: dict[str, tuple[float, float]] = told["errors"]
    assert len(errors) == 13
    for name, (ours, own) in errors.items():
        assert ours <= max(2.0, 2 * own), (name, ours, own)
    names = ["step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "weight"]
    assert told["noticed"] == dict.fromkeys(names, True), "of a write autograd knew nothing"
    assert len(told["gaps"]) == 5
    for change, gap in told["gaps"].items():
        assert gap < 1e-6, (change, "tables of what lay at these addresses before were used")


def test_programs_are_divided_once_for_the_same_sizes() -> None:
    """A Python loop over a million programs in every step would cost more than the kernel saves."""
    step = MultiTensorStep(rule_of(torch.optim.SGD(weights(), lr=0.1)))  # type: ignore[arg-type]
    sizes = (1, SMALL_CHUNK, 0, 2 * SMALL_CHUNK + 1)
    chunks, chunk = step._division(sizes, torch.device("cpu"))
    assert chunk == SMALL_CHUNK
    assert chunks.view(-1, 2).tolist() == [[0, 0], [1, 0], [3, 0], [3, 1], [3, 2]]
    assert step._division(sizes, torch.device("cpu"))[0] is chunks
    assert step._division((), torch.device("cpu"))[0].numel() == 0
    for size in range(100):  # other parameters have gradients in every step
        step._division((size,), torch.device("cpu"))
    assert len(step._divided) < 20


def weights() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(3, 4))]


def test_what_has_no_kernel_says_so() -> None:
    replaced = torch.optim.SGD(weights(), lr=0.1)
    vars(replaced)["step"] = print
    wide = torch.optim.SGD([torch.nn.Parameter(torch.ones(2, dtype=torch.float64))], lr=0.1)
    gaps = torch.optim.SGD([torch.nn.Parameter(torch.ones(4, 4)[:, :2])], lr=0.1)
    (weight,) = weights()
    tied = torch.optim.SGD([weight, torch.nn.Parameter(weight.detach()[:1])], lr=0.1)
    relative = Lion(weights())
    vars(relative)["decoupled_wd"] = True
    refused = {
        "the weight decay of this Lion is a share of its first learning rate": relative,
        "Lion is cautious: its kernel takes every element of an update": Lion(
            weights(), caution=True
        ),
        "there is no kernel for the update of RMSprop": torch.optim.RMSprop(weights()),
        "the step of this SGD was replaced by something else": replaced,
        "a parameter is torch.float64 or sparse": wide,
        "a parameter has gaps in memory": gaps,
        "parameters share memory: one is updated from what the update of the other left": tied,
        "AdamW is differentiable: a kernel is not": torch.optim.AdamW(
            weights(), differentiable=True
        ),
    }
    for reason, optimizer in refused.items():
        assert use_multi_tensor(optimizer) == reason


def test_hooks_schedulers_and_the_way_back_are_the_optimizers_own() -> None:
    (weight,) = weights()
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    own = optimizer.step
    seen: list[Any] = []
    optimizer.register_step_post_hook(lambda *_: seen.append("hook"))
    assert use_multi_tensor(optimizer) is None
    assert optimizer.step is not own
    weight.grad = torch.ones(3, 4)
    optimizer.step()  # without state the step is its own
    schedule.step()
    assert seen == ["hook"]
    assert float(weight[0, 0]) == 0.5
    own_step(optimizer)
    assert optimizer.step is own
    optimizer.step()
    assert seen == ["hook", "hook"]


def test_what_comes_later_is_looked_at_before_a_launch() -> None:
    """Loaded counts of another type, parameters that no kernel takes, momenta that come late."""
    first, second = *weights(), *weights()
    adam = torch.optim.Adam([first, second], lr=0.1)
    for weight in (first, second):
        weight.grad = torch.ones(3, 4)
    adam.step()
    saved = adam.state_dict()
    for state in saved["state"].values():
        state["step"] = state["step"].double()
    assert use_multi_tensor(adam) is None
    saved["param_groups"][0]["fused"] = None
    adam.load_state_dict(saved)
    adam.step()  # a kernel would read half of each count
    assert float(first[0, 0]) == pytest.approx(0.8)
    wide = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    sgd = torch.optim.SGD([first, second], lr=0.1, momentum=0.9)
    assert use_multi_tensor(sgd) is None
    second.grad = None
    sgd.step()
    assert "no momentum yet" in str(fuse_optimizer(sgd))
    sgd.add_param_group({"params": [wide]})
    second.grad, wide.grad = torch.ones(3, 4), torch.full((2,), 1e-12, dtype=torch.float64)
    for _ in range(2):
        sgd.step()
    assert float(wide[0]) != 1.0


def test_the_first_step_is_bit_for_bit_what_was_asked_for() -> None:
    """Not a fused one: on a GPU that one's betas are float32, 1e-5 off in the second moment."""
    both = weights(), weights()
    plain, ours = (torch.optim.Adam(held, lr=0.1) for held in both)
    assert use_multi_tensor(ours) is None
    assert not ours.param_groups[0]["fused"]
    for (weight,), optimizer in zip(both, (plain, ours), strict=True):
        weight.grad = torch.linspace(-1, 1, 12).reshape(3, 4)
        optimizer.step()
    assert str(plain.state_dict()) == str(ours.state_dict())


@pytest.mark.parametrize("manner", ["foreach", "fused", "capturable"])
def test_counts_go_where_the_optimizers_own_step_reads_them(manner: str) -> None:
    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.ones(3, 4, device="cuda"))
        optimizer = torch.optim.Adam([weight])
        optimizer.param_groups[0][manner] = True
        state = optimizer.state[weight]
        state["step"] = torch.ones(())
        device_counts(optimizer)
        assert state["step"].device == weight.device
        own_counts(optimizer)
        assert state["step"].device.type == ("cpu" if manner == "foreach" else "cuda")


def test_it_takes_the_place_of_the_fused_step_in_a_recipe() -> None:
    recipe = UNCHANGED.with_action("fused_optimizer").with_action("multi_tensor")
    assert recipe.on_model == ("multi_tensor",)


@pytest.mark.parametrize("name", ["adam", "sgd", "lion"])
def test_kernels_compile_for_an_h200_with_wide_loads_and_no_spills(name: str) -> None:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from advisor.apply.model import update_kernels as u

    kinds = dict.fromkeys(("parameters", "gradients", "states"), tl.float32)
    constants: dict[str, Any] = {
        "fields": u.FIELDS, "chunk": 8192, "block": 1024, "aligned": True, "rate_in_memory": True,
        "maximize": False, **kinds,
    }  # fmt: skip
    own = {
        "adam": {"decoupled": True, "amsgrad": False},
        "sgd": {"has_momentum": True, "nesterov": True},
        "lion": {},
    }
    constants |= own[name]
    kernel = getattr(u, name)
    types = {"table": "*i64", "chunks": "*i32", "rate": "*fp32"}
    signature = {
        n: "constexpr" if n in constants else types.get(n, "fp32") for n in kernel.arg_names
    }
    source = ASTSource(kernel, signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    usage = read_cubin(made.asm["cubin"], "")
    assert usage.registers is not None
    assert usage.registers <= 64, "half of the warps at least"
    assert not usage.local_bytes
    assert "ld.global.v4.b32" in made.asm["ptx"]
    # Division and roots by IEEE; of approximations e^x alone, whose error cancels out.
    assert set(re.findall(r"(?:\w+\.)+(?:approx|full)\b", made.asm["ptx"])) <= {"ex2.approx"}
