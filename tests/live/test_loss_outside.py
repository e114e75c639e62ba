"""A loss that computes outside the model is seen to, and one that leaves the model out as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.pipeline.recording import unseen_warnings
from collectors.live.capture import capture
from collectors.live.loss_outside import WatchedLoss
from collectors.live.workload import Workload

MODEL, X = nn.Linear(8, 8), torch.rand(4, 8)


@pytest.mark.parametrize(
    ("loss", "code", "said"),
    [
        (lambda m: m(X).mean(), None, ""),
        (lambda m: m(X).view(-1).t().sum(), None, ""),
        (lambda m: m(X).square().mean(), "loss-not-captured", "(mean, pow)"),
        (
            lambda m: functional.cross_entropy(m(X), torch.zeros(4, dtype=torch.long)),
            "loss-not-captured",
            "(nll_loss, log_softmax)",
        ),
        (lambda _: MODEL(X).mean(), "no-graphs", "call the model that it is given"),
    ],
)
def test_what_a_loss_does_outside_the_model(
    loss: Callable[[Any], torch.Tensor], code: str | None, said: str
) -> None:
    watched = WatchedLoss(loss)
    optimizer = torch.optim.SGD(MODEL.parameters())
    work = Workload("t", "training", torch.device("cpu"), MODEL, optimizer=optimizer, loss=watched)
    found, _ = capture(work, generate_code=False)
    warnings = unseen_warnings(found, watched)
    assert [warning.code for warning in warnings] == ([code] if code else [])
    assert said in "".join(warning.message for warning in warnings)
    assert ("`apply` looks at model and loss" in "".join(w.message for w in warnings)) == (
        "nll_loss" in said
    )
