"""Look-alikes of attention: refused, with a word of the reason, or left without a record (None)."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.builders.attention import DIM, HEADS, QKV, QUERIES, Case, causal, head_shape, padding

Tensor = torch.Tensor


def returned_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def entropy_of_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, (weights * weights).sum()


def scores_read_twice(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    return (scores * 0.25).softmax(-1) @ v, scores.amax()


def softmax_over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def weights_changed_after(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return weights.masked_fill(mask[:, None, None, :], 0.0) @ v


def head_mask(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) * scale) @ v


def written_between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    v = v * 1.0
    weights = (q @ k.mT).softmax(-1)
    out = weights @ v
    scores = q @ k.mT
    scores[..., 0] = 0.0
    return out + scores.softmax(-1) @ v


def query_overwritten(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = torch.tanh(q)
    scores = q @ k.mT
    q.zero_()
    return scores.softmax(-1) @ v + q


def scaled_then_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q * 0.25
    q.add_(1.0)
    return (q @ k.mT).softmax(-1) @ v


def copied_then_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.contiguous().transpose(-2, -1)
    k.mul_(2.0)
    return (q @ k).softmax(-1) @ v


def mask_overwritten(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.zeros(QUERIES, QUERIES, dtype=q.dtype)
    scores = q @ k.mT + mask
    mask[:, 0] = 1.0
    return scores.softmax(-1) @ v + mask.sum()


def masked_softly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(~mask[:, None, None, :], -5.0).softmax(-1) @ v


def scores_multiplied(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT * mask[:, None, None, :].to(q.dtype)).softmax(-1) @ v


def rectified(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.relu(q @ k.mT).softmax(-1) @ v


def negative_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * -0.25).softmax(-1) @ v


def wide_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return ((q @ k.mT).float() + bias).softmax(-1).to(q.dtype) @ v


def float_bias(_: torch.dtype) -> list[Tensor]:
    return [torch.linspace(-2, 2, QUERIES * QUERIES).view(QUERIES, QUERIES)]


def mixed_dtypes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).double() @ v.double()


def dropped_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.dropout(q @ k.mT, 0.1, True).softmax(-1) @ v


def weights_on_the_right(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.mT @ (q @ k.mT).softmax(-1)


def shared_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def masked_then_capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT).masked_fill(~causal(q), -torch.inf)
    return torch.tanh(scores / 5).mul(5).softmax(-1) @ v


def talking_heads(q: Tensor, k: Tensor, v: Tensor, mix: Tensor) -> Tensor:
    scores = torch.einsum("hg,bgqk->bhqk", mix, q @ k.mT)
    return scores.softmax(-1) @ v


def sigmoid_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(q @ k.mT) @ v


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def classifier(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, w).softmax(-1)


def router(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    values, index = (x @ w).softmax(-1).topk(2, dim=-1)
    return values, index


def weights_only(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT * 0.25).softmax(-1)


REFUSED: tuple[tuple[Case, str | None], ...] = (
    (Case(returned_weights, QKV, {}), "weights are also read by the graph's output"),
    (Case(entropy_of_weights, QKV, {}), "weights are also read by mul"),
    (Case(scores_read_twice, QKV, {}), "scores are also read by Tensor.amax"),
    (Case(softmax_over_queries, QKV, {}), "another axis"),
    (Case(weights_changed_after, QKV, {}, padding), "masked_fill changes the attention weights"),
    (Case(head_mask, (*QKV, (HEADS, 1, 1)), {}), "mul changes the attention weights"),
    (Case(query_overwritten, QKV, {}), "Tensor.zero_ writes in place"),
    (Case(scaled_then_written, QKV, {}), "Tensor.add_ writes in place"),
    (Case(copied_then_written, QKV, {}), "Tensor.mul_ writes in place"),
    (Case(masked_softly, QKV, {}, padding), "keep weight"),
    (Case(scores_multiplied, QKV, {}, padding), "mul between the product and the softmax"),
    (Case(rectified, QKV, {}), "relu between the product and the softmax"),
    (Case(negative_scale, QKV, {}), "not positive"),
    (Case(wide_bias, QKV, {}, float_bias), "mixed dtypes: the bias is float32"),
    (Case(mixed_dtypes, QKV, {}), "mixed dtypes"),
    (Case(dropped_scores, QKV, {}), "dropout between the product and the softmax"),
    (Case(weights_on_the_right, QKV, {}), "do not stand to the right"),
    (
        Case(shared_weights, ((QUERIES, DIM), (QUERIES, DIM), head_shape()), {}),
        "shared among several values",
    ),
    (Case(masked_then_capped, QKV, {}), "masked before they are capped"),
    (Case(talking_heads, (*QKV, (HEADS, HEADS)), {}), "einsum between the product"),
    (Case(sigmoid_attention, QKV, {}), None),
    (Case(linear_attention, QKV, {}), None),
    (Case(classifier, ((QUERIES, DIM), (7, DIM)), {}), None),
    (Case(router, ((QUERIES, DIM), (DIM, 7)), {}), None),
    (Case(weights_only, QKV[:2], {}), None),
)
