"""Changes to a model, its inputs and its optimizer: the same results, or a reason."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.apply.model.batch_norm import fold_batch_norms
from advisor.apply.model.channels_last import to_channels_last
from advisor.apply.model.multi_tensor import use_multi_tensor
from advisor.apply.model.optimizer import fuse_optimizer
from advisor.apply.model.step_graph import prepare_optimizer
from advisor.errors import IllegalFusionError


def with_statistics(module: nn.Module) -> nn.Module:
    """Batch norms that have seen data: a fold that ignored them would show."""
    torch.manual_seed(0)
    for item in module.modules():
        if isinstance(item, nn.modules.batchnorm._BatchNorm) and item.running_mean is not None:
            item.running_mean.normal_()
            assert item.running_var is not None
            item.running_var.uniform_(0.5, 2.0)
            if item.affine:
                nn.init.normal_(item.weight)
                nn.init.normal_(item.bias)
    return module.eval()


class Residual(nn.Module):
    """Two pairs; the skip connection reads what went into the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.first(x)))
        result: torch.Tensor = self.norm2(self.second(y)) + x
        return result


class Shared(Residual):
    """The first convolution's output is read twice, the second norm is called twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        z = self.norm1(y) + y
        result: torch.Tensor = self.norm2(self.norm2(self.second(z)))
        return result


class Returned(Residual):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        y = self.first(x)
        return self.norm1(y), y


def fold(module: nn.Module, x: torch.Tensor) -> tuple[int, str | None]:
    return fold_batch_norms(module, lambda: module(x))


def test_pairs_are_folded_and_give_what_they_gave() -> None:
    module, x = with_statistics(Residual()), torch.randn(2, 4, 8, 8)
    expected = module(x)
    assert fold(module, x) == (2, None)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in module.modules())
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [Shared, Returned])
def test_what_something_else_reads_or_calls_again_stays(kind: type[Residual]) -> None:
    module, x = with_statistics(kind()), torch.randn(2, 4, 8, 8)
    before = copy.deepcopy(module)
    assert fold(module, x) == (0, "no batch norm reads a convolution alone")
    torch.testing.assert_close(module(x), before(x), rtol=0, atol=0)


def test_statistics_of_a_training_module_are_not_constants() -> None:
    module = Residual().train()
    assert fold(module, torch.randn(2, 4, 8, 8))[1] == (
        "the module trains: its statistics change from step to step"
    )


@pytest.mark.parametrize(
    ("convolution", "norm", "shape"),
    [
        (nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), (2, 3, 9)),
        (nn.Conv2d(4, 6, 3, groups=2, stride=2), nn.BatchNorm2d(6, eps=0.1), (2, 4, 9, 9)),
        (nn.Conv3d(2, 4, 2, dilation=2), nn.BatchNorm3d(4), (1, 2, 6, 6, 6)),
    ],
)
def test_every_kind_of_convolution(
    convolution: nn.Module, norm: nn.Module, shape: tuple[int, ...]
) -> None:
    module, x = with_statistics(nn.Sequential(convolution, norm)), torch.randn(shape)
    expected = module(x)
    assert fold(module, x) == (1, None)
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


def test_a_norm_without_statistics_of_its_own_stays() -> None:
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    module = with_statistics(nn.Sequential(nn.Conv2d(4, 4, 1), norm))
    assert fold(module, torch.randn(2, 4, 4, 4))[0] == 0


def test_a_hooked_convolution_stays() -> None:
    module = with_statistics(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)))
    next(module.children()).register_forward_hook(lambda *_: None)
    assert fold(module, torch.randn(2, 4, 4, 4))[0] == 0


class Own(Residual):
    """Something of the first pair is used otherwise than one after the other."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.seen: Any = None
        # No module list: who replaces the norm in its parent does not reach it.
        self.hidden = (self.norm1,)
        if how == "two names":
            self.again = nn.ModuleList([self.norm1])
        if how == "patched":
            original = self.first.forward
            self.first.forward = lambda x: original(x).relu()  # type: ignore[method-assign, assignment]

    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x)
        if self.how == "stashed":
            self.seen = [y]
        norm = self.hidden[0] if self.how == "hidden" else self.norm1
        z = self.again[0](y) if self.how == "two names" else norm(y)
        if self.how == "weight":
            z = z + self.first.weight.sum()
        if self.how == "attribute":
            z = z * self.norm1.eps
        return SimpleNamespace(features=y, z=z) if self.how == "object" else z


@pytest.mark.parametrize(
    "how",
    ["two names", "patched", "stashed", "hidden", "weight", "attribute", "object", "nothing"],
)
def test_a_pair_of_which_something_else_is_used_is_folded_rightly_or_not(how: str) -> None:
    module, x = with_statistics(Own(how)), torch.randn(2, 4, 8, 8)
    expected = module(x)
    try:
        count, _ = fold(module, x)
    except IllegalFusionError:
        count = 0
    ours = module(x)
    if how == "object":
        torch.testing.assert_close(ours.features, expected.features, rtol=0, atol=0)
        ours, expected = ours.z, expected.z
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    assert count == (how in ("two names", "nothing"))


def test_an_output_without_a_batch_has_its_channels_elsewhere_for_the_norm() -> None:
    module = with_statistics(nn.Sequential(nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6)))
    x = torch.randn(3, 8)
    expected = module(x)
    assert fold(module, x)[0] == 0
    torch.testing.assert_close(module(x), expected, rtol=0, atol=0)


def test_double_precision_is_folded_in_double_precision() -> None:
    module = with_statistics(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))).double()
    x = torch.randn(2, 4, 4, 4, dtype=torch.float64)
    expected = module(x)
    assert fold(module, x) == (1, None)
    torch.testing.assert_close(module(x), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_what_an_optimizer_holds_follows_weights_into_their_layout(kind: Any) -> None:
    def trained(*, change: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module, x = nn.Conv2d(4, 8, 3), torch.randn(2, 4, 8, 8)
        settings = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = kind(module.parameters(), lr=0.01, **settings)
        for step in range(4):
            if step == 2 and change:
                assert to_channels_last(module, (), optimizer)[1] is None
                assert fuse_optimizer(optimizer) is None
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
        return list(module.parameters())

    for ours, theirs in zip(trained(change=True), trained(change=False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_convolution_that_has_not_run_has_no_layout_yet() -> None:
    x = torch.randn(1, 3, 4, 4)
    refused = to_channels_last(nn.LazyConv2d(4, 3), (x,))[1]
    assert refused == "a convolution has no weights before it has run"


def test_weights_and_images_become_channels_last_and_keep_their_values() -> None:
    module = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 1))
    image = torch.randn(2, 4, 8, 8)
    x = {"image": image, "other": torch.randn(3, 4), "n": 3}
    expected = module(image)
    converted, refused = to_channels_last(module, x)
    assert refused is None
    assert converted["image"].is_contiguous(memory_format=torch.channels_last)
    assert converted["other"] is x["other"]
    assert next(module.parameters()).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(module(converted["image"]), expected, rtol=1e-5, atol=1e-5)
    assert to_channels_last(module, converted)[1] == "its convolutions run channels-last already"


def test_a_model_without_convolutions_has_no_layout_to_choose() -> None:
    assert to_channels_last(nn.Linear(3, 3), ())[1] == "the module has no 2-D convolution"


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_a_fused_optimizer_takes_over_in_the_middle(kind: Any) -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(8, 8), nn.Linear(8, 8)
    theirs.load_state_dict(ours.state_dict())
    mine, plain = kind(ours.parameters(), lr=0.1), kind(theirs.parameters(), lr=0.1)
    for step in range(4):
        x = torch.randn(4, 8)
        for module, optimizer in ((ours, mine), (theirs, plain)):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
        if step == 1:
            assert fuse_optimizer(mine) is None
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert fuse_optimizer(mine) == f"{kind.__name__} is fused already"


def test_optimizers_without_a_fused_form_say_so() -> None:
    weights = [torch.zeros(3, requires_grad=True)]
    assert fuse_optimizer(torch.optim.RMSprop(weights)) == "RMSprop has no fused form"

    class Own(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__(weights, {})

    assert fuse_optimizer(Own()) == "Own is not an optimizer of PyTorch"


def test_an_optimizer_in_a_graph_has_its_rate_and_its_counts_in_memory() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.5)
    assert prepare_optimizer(optimizer) is None
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    rate = optimizer.param_groups[0]["lr"]
    with warnings.catch_warnings(action="ignore"):  # the optimizer itself steps on a GPU only
        schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [weight]}]
    empty = torch.optim.AdamW(groups)
    assert prepare_optimizer(empty) is None
    assert prepare_optimizer(torch.optim.LBFGS([weight])) == "LBFGS has no capturable form"


def test_sgd_in_a_graph_is_fused_since_its_other_forms_wait_for_the_rate() -> None:
    weight = nn.Parameter(torch.ones(3))
    sgd = torch.optim.SGD([weight], lr=0.5)
    assert prepare_optimizer(sgd) is None
    assert sgd.param_groups[0]["fused"]
    assert isinstance(sgd.param_groups[0]["lr"], torch.Tensor)
    weight.grad = torch.ones(3)
    sgd.step()
    assert weight.tolist() == [0.5] * 3
    ours = torch.optim.SGD([weight], lr=0.5)
    assert use_multi_tensor(ours) is None
    assert prepare_optimizer(ours) is None
    assert not ours.param_groups[0]["fused"]
    whole = torch.optim.SGD([weight], lr=0.5, differentiable=True)
    assert "differentiable" in (prepare_optimizer(whole) or "")
