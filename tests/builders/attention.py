"""Attention as model code writes it: spellings that can be fused, and what the call must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor
BATCH, HEADS, KV_HEADS, QUERIES, DIM = 2, 4, 2, 12, 16


@dataclass(frozen=True)
class Case:
    """A function of tensors, the shapes of its floating-point inputs, and what is expected.

    `extra` makes the other inputs (masks, say). `call` are arguments that the fused call must have.
    """

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    call: dict[str, Any]
    extra: Callable[[torch.dtype], Sequence[Tensor]] = lambda _: ()
    # Queries of the first batch that see no key and, as in padding, take no part in the loss.
    unused: int = 0

    @property
    def name(self) -> str:
        return self.function.__name__

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        made = [
            torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes
        ]
        # Representable in every dtype, so that all compute on the same numbers.
        made = [item.to(torch.bfloat16).to(dtype) for item in made]
        return [*made, *self.extra(dtype)]


def head_shape(heads: int = HEADS, length: int = QUERIES, dim: int = DIM) -> tuple[int, ...]:
    return (BATCH, heads, length, dim)


QKV = (head_shape(),) * 3
GROUPED = (head_shape(), head_shape(KV_HEADS), head_shape(KV_HEADS))
PLAIN = {"is_causal": False, "attn_mask": None}
CAUSAL = {"is_causal": True, "attn_mask": None}
MASKED = {"is_causal": False, "attn_mask": "tensor"}


def padding(_: torch.dtype) -> list[Tensor]:
    mask = torch.ones(BATCH, QUERIES, dtype=torch.bool)
    mask[0, 9:] = False
    mask[1, 4:] = False
    return [mask]


def padding_numbers(dtype: torch.dtype) -> list[Tensor]:
    return [padding(dtype)[0].to(torch.int64)]


def left_padding(_: torch.dtype) -> list[Tensor]:
    mask = torch.ones(BATCH, QUERIES, dtype=torch.bool)
    mask[0, :5] = False
    return [mask]


def tril_buffer(_: torch.dtype) -> list[Tensor]:
    return [torch.ones(16, 16).tril().view(1, 1, 16, 16)]


def positions(like: Tensor) -> Tensor:
    return torch.arange(QUERIES, device=like.device)


def causal(like: Tensor, length: int = QUERIES) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=like.device).tril()


def repeat_kv(x: Tensor, times: int) -> Tensor:
    batch, heads, length, dim = x.shape
    wide = x[:, :, None, :, :].expand(batch, heads, times, length, dim)
    return wide.reshape(batch, heads * times, length, dim)


def lowest(x: Tensor) -> float:
    return torch.finfo(x.dtype).min


def wide(x: Tensor) -> torch.dtype:
    """The dtype that models compute a softmax in."""
    return torch.promote_types(x.dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(DIM), dim=-1) @ v


def llama_eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = repeat_kv(k, HEADS // KV_HEADS), repeat_kv(v, HEADS // KV_HEADS)
    mask = torch.full((QUERIES, QUERIES), lowest(q), dtype=q.dtype, device=q.device)
    mask = torch.triu(mask, diagonal=1)[None, None].expand(BATCH, 1, -1, -1)
    scores = torch.matmul(q, k.transpose(2, 3)) * DIM**-0.5
    scores = scores + mask
    weights = functional.softmax(scores, dim=-1, dtype=wide(q)).to(q.dtype)
    weights = functional.dropout(weights, p=0.0, training=True)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def bert(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    extended = (1.0 - mask[:, None, None, :].to(q.dtype)) * lowest(q)
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(DIM)
    weights = torch.nn.Softmax(dim=-1)(scores + extended)
    context = torch.matmul(functional.dropout(weights, 0.1, False), v)
    return context.permute(0, 2, 1, 3).contiguous().view(BATCH, QUERIES, HEADS * DIM)


def gpt2_where(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2))
    scores = scores / torch.full([], DIM**0.5, dtype=scores.dtype, device=q.device)
    allowed = torch.tril(torch.ones((QUERIES, QUERIES), dtype=torch.bool, device=q.device)).view(
        1, 1, QUERIES, -1
    )
    low = torch.full([], lowest(scores), dtype=scores.dtype, device=q.device)
    scores = torch.where(allowed, scores.to(q.dtype), low)
    weights = functional.softmax(scores, dim=-1).type(v.dtype)
    return torch.matmul(weights, v)


def nano_gpt_buffer(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(bias[:, :, :QUERIES, :QUERIES] == 0, float("-inf"))
    y = functional.softmax(att, dim=-1) @ v
    return y.transpose(1, 2).contiguous().view(BATCH, QUERIES, HEADS * DIM)


def t5_relative_bias(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    distance = positions(q)[None, :] - positions(q)[:, None]
    bias = table[(distance + QUERIES).clamp(0, 23)].permute(2, 0, 1).unsqueeze(0)
    scores = torch.matmul(q, k.transpose(3, 2))
    scores += bias
    weights = functional.softmax(widened(scores), dim=-1).type_as(scores)
    return torch.matmul(weights, v)


def mistral_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = repeat_kv(k, HEADS // KV_HEADS), repeat_kv(v, HEADS // KV_HEADS)
    i, j = positions(q)[:, None], positions(q)[None, :]
    allowed = (j <= i) & (j > i - 4)
    mask = torch.where(allowed, q.new_zeros(()), lowest(q))
    scores = q @ k.mT * DIM**-0.5 + mask
    return functional.softmax(scores, dim=-1, dtype=wide(q)).to(q.dtype) @ v


def gqa_repeat_interleave(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.repeat_interleave(2, dim=1)
    v = torch.repeat_interleave(v, repeats=2, dim=1)
    return (q @ k.transpose(-2, -1)).mul(0.25).softmax(-1) @ v


def multi_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bkd->bhqk", q, k) * 0.25
    i = positions(q)
    scores = scores.masked_fill(i[None, :] > i[:, None], -torch.inf)
    return torch.einsum("bhqk,bkd->bhqd", scores.softmax(dim=-1), v)


def grouped_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.view(BATCH, KV_HEADS, 2, QUERIES, DIM)
    weights = torch.einsum("bkgqd,bksd->bkgqs", q, k).mul(DIM**-0.5).softmax(-1)
    return torch.einsum("bkgqs,bksd->bqkgd", weights, v).reshape(BATCH, QUERIES, -1)


def cross_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul((q * 0.25).matmul(k.transpose(2, 3)).softmax(-1), v)


def vit(x: Tensor) -> Tensor:
    qkv = x.reshape(BATCH, QUERIES, 3, HEADS, DIM).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    attn = (q * DIM**-0.5) @ k.transpose(-2, -1)
    return (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(BATCH, QUERIES, HEADS * DIM)


def boolean_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 4
    scores = torch.where(mask[:, None, None, :], scores, -torch.inf)
    return scores.softmax(-1) @ v


def two_masks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 4
    scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    scores = scores.masked_fill(
        torch.ones(QUERIES, QUERIES, device=q.device).triu(1).bool(), -torch.inf
    )
    return scores.softmax(-1) @ v


def filled_with_lowest(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 4
    seen = causal(q) & mask[:, None, None, :]
    return scores.masked_fill(~seen, -3e4).softmax(-1) @ v


def added_padding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    seen = causal(q) & mask[:, None, None, :]
    bias = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, lowest(q))
    return (q @ k.transpose(-2, -1) / 4 + bias).softmax(-1) @ v


def subtracted_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 4
    return (scores - (1.0 - mask[:, None, None, :].to(q.dtype)) * 1e4).softmax(-1) @ v


def flattened_bmm(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (x.reshape(BATCH * HEADS, QUERIES, DIM) for x in (q * 0.25, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(BATCH, HEADS, QUERIES, QUERIES)
    scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    weights = functional.softmax(scores.view(BATCH * HEADS, QUERIES, QUERIES), dim=-1)
    out = torch.bmm(weights, v)
    return out.view(BATCH, HEADS, QUERIES, DIM).transpose(1, 2).reshape(BATCH, QUERIES, -1)


def one_leading_axis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(torch.bmm(q, k.permute(0, 2, 1)).mul(0.125).softmax(2), v)


def no_leading_axis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.softmax(q @ k.t() / 4, dim=-1) @ v


def bloom_baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, v = (x.reshape(BATCH * HEADS, QUERIES, DIM) for x in (q, v))
    k = k.permute(0, 1, 3, 2).reshape(BATCH * HEADS, DIM, QUERIES)
    slopes = torch.tensor([2.0**-n for n in range(HEADS)], dtype=q.dtype, device=q.device)
    alibi = (
        slopes[None, :, None] * torch.arange(QUERIES, dtype=q.dtype, device=q.device)[None, None, :]
    )
    alibi = alibi.expand(BATCH, -1, -1).reshape(BATCH * HEADS, 1, QUERIES)
    scores = alibi.baddbmm(batch1=q, batch2=k, beta=1.0, alpha=0.25)
    scores = scores.view(BATCH, HEADS, QUERIES, QUERIES)
    scores = scores + torch.full(
        (QUERIES, QUERIES), lowest(q), dtype=q.dtype, device=q.device
    ).triu(1)
    weights = functional.softmax(scores, dim=-1, dtype=wide(q)).to(q.dtype)
    return torch.bmm(weights.view(BATCH * HEADS, QUERIES, QUERIES), v)


def megatron_baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(BATCH * HEADS, QUERIES, DIM) for x in (q, k, v))
    buffer = torch.zeros(BATCH * HEADS, QUERIES, QUERIES, dtype=q.dtype, device=q.device)
    scores = torch.baddbmm(buffer, q, k.transpose(1, 2), beta=0.0, alpha=0.25)
    return torch.bmm(scores.softmax(-1), v)


def alibi_slopes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    distance = positions(q)[None, :] - positions(q)[:, None]
    slopes = torch.tensor([2.0**-n for n in range(HEADS)], device=q.device).view(HEADS, 1, 1)
    scores = q @ k.transpose(-1, -2) * 0.25 + (slopes * distance).to(q.dtype)
    return scores.masked_fill(distance > 0, -torch.inf).softmax(-1) @ v


def einsum_heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / DIM**0.5
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), v)


def einsum_ellipsis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("... i d, ... j d -> ... i j", q * 0.25, k).softmax(dim=-1)
    return torch.einsum("... i j, ... j d -> ... i d", weights, v)


def keys_transposed_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.permute(0, 1, 3, 2).contiguous()
    return (torch.matmul(q, k) * 0.25).softmax(-1).matmul(v)


def written_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * 0.25
    weights = torch.exp(scores - scores.max(dim=-1, keepdim=True)[0])
    return (weights / weights.sum(dim=-1, keepdim=True)) @ v


def log_softmax_exp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.log_softmax(q @ k.mT * 0.25, dim=-1).exp() @ v


def scale_split(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * DIM**-0.25) @ (k * DIM**-0.25).transpose(-1, -2)).softmax(-1) @ v


def scale_after_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    bias = torch.where(
        mask[:, None, None, :], torch.zeros((), dtype=q.dtype, device=q.device), lowest(q)
    )
    return ((q @ k.mT + bias) * 0.25).softmax(-1) @ v


def learned_temperature(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
    return (q @ k.transpose(-2, -1) * scale.clamp(max=4.0).exp()).softmax(-1) @ v


def swin_window_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    attn = (q * 0.25) @ k.transpose(-2, -1) + bias.unsqueeze(0)
    attn = attn.view(1, BATCH, HEADS, QUERIES, QUERIES) + mask.unsqueeze(1).unsqueeze(0)
    attn = attn.view(-1, HEADS, QUERIES, QUERIES)
    return (attn.softmax(-1) @ v).transpose(1, 2).reshape(BATCH, QUERIES, -1)


def swin_mask(dtype: torch.dtype) -> list[Tensor]:
    mask = torch.zeros(BATCH, QUERIES, QUERIES, dtype=dtype)
    mask[1, :6, 6:] = mask[1, 6:, :6] = -100.0
    return [mask]


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2))
    scores.mul_(0.25)
    scores.masked_fill_(torch.ones(QUERIES, QUERIES, device=q.device).triu(1).bool(), -torch.inf)
    return functional.softmax(scores, dim=-1) @ v


def mask_made_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.full((QUERIES, QUERIES), float("-inf"), dtype=q.dtype, device=q.device)
    mask.triu_(1)
    return (q @ k.mT * 0.25 + mask).softmax(-1) @ v


def upcast_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(widened(q), widened(k).transpose(-1, -2)) * 0.25
    return torch.matmul(scores.softmax(-1).to(v.dtype), v)


def decode_one_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    allowed = positions(q)[None, :] <= torch.tensor([[QUERIES - 1]], device=q.device)
    return (q @ k.mT * 0.25).masked_fill(~allowed, -torch.inf).softmax(-1) @ v


def learned_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.25).softmax(-1) @ v


def clamped_below(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    bias = (1.0 - mask[:, None, None, :].to(q.dtype)) * lowest(q)
    scores = torch.max(
        q @ k.mT * 0.25 + bias, torch.tensor(lowest(q), dtype=q.dtype, device=q.device)
    )
    return scores.softmax(-1) @ v


def of_itself(x: Tensor) -> Tensor:
    weights = torch.einsum("bhid,bhjd->bhij", x, x).mul(0.25).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, x)


def divided_by_temperature(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    return (torch.matmul(q, k.transpose(-2, -1)) / scale.exp()).softmax(-1) @ v


def view_of_result(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q.matmul(k.mT).softmax(-1) @ v).view(BATCH * HEADS, QUERIES * DIM)


BIAS = (HEADS, QUERIES, QUERIES)
FLAT = ((BATCH, QUERIES, DIM),) * 3
GQA = {**PLAIN, "enable_gqa": True}
FUSED = (
    Case(plain, QKV, {**PLAIN, "scale": 0.25}),
    Case(llama_eager, GROUPED, {**CAUSAL, "enable_gqa": True, "scale": 0.25}),
    Case(bert, QKV, MASKED, padding_numbers),
    Case(gpt2_where, QKV, {**CAUSAL, "scale": 0.25}),
    Case(nano_gpt_buffer, QKV, MASKED, tril_buffer),
    Case(t5_relative_bias, (*QKV, (24, HEADS)), {**MASKED, "scale": 1.0}),
    Case(mistral_window, GROUPED, MASKED),
    Case(gqa_repeat_interleave, GROUPED, GQA),
    Case(
        multi_query, (head_shape(), *((BATCH, QUERIES, DIM),) * 2), {**CAUSAL, "enable_gqa": True}
    ),
    Case(grouped_einsum, GROUPED, GQA),
    Case(cross_attention, (head_shape(), head_shape(length=7), head_shape(length=7)), PLAIN),
    Case(vit, ((BATCH, QUERIES, 3 * HEADS * DIM),), {**PLAIN, "scale": 0.25}),
    Case(boolean_mask, QKV, MASKED, padding),
    Case(two_masks, QKV, MASKED, padding),
    Case(filled_with_lowest, QKV, MASKED, left_padding),
    Case(added_padding, QKV, MASKED, left_padding, unused=5),
    Case(subtracted_mask, QKV, MASKED, padding),
    Case(flattened_bmm, QKV, {**MASKED, "scale": 1.0}, padding),
    Case(one_leading_axis, FLAT, {**PLAIN, "scale": 0.125}),
    Case(no_leading_axis, ((QUERIES, DIM),) * 3, PLAIN),
    Case(bloom_baddbmm, QKV, {**MASKED, "scale": 0.25}),
    Case(megatron_baddbmm, QKV, {**PLAIN, "scale": 0.25}),
    Case(alibi_slopes, QKV, MASKED),
    Case(einsum_heads_last, QKV, PLAIN),
    Case(einsum_ellipsis, QKV, PLAIN),
    Case(keys_transposed_before, QKV, PLAIN),
    Case(written_softmax, QKV, PLAIN),
    Case(log_softmax_exp, QKV, PLAIN),
    Case(scale_split, QKV, {**PLAIN, "scale": 0.25}),
    Case(scale_after_mask, QKV, MASKED, padding),
    Case(learned_temperature, (*QKV, (HEADS, 1, 1)), PLAIN),
    Case(swin_window_mask, (*QKV, BIAS), MASKED, swin_mask),
    Case(in_place, QKV, CAUSAL),
    Case(mask_made_in_place, QKV, CAUSAL),
    Case(upcast_scores, QKV, PLAIN),
    Case(decode_one_query, (head_shape(length=1), head_shape(), head_shape()), PLAIN),
    Case(learned_queries, ((1, HEADS, 5, DIM), head_shape(), head_shape()), PLAIN),
    Case(clamped_below, QKV, MASKED, padding_numbers),
    Case(of_itself, QKV[:1], {**PLAIN, "scale": 0.25}),
    Case(divided_by_temperature, (*QKV, (1,)), {**PLAIN, "scale": 1.0}),
    Case(view_of_result, QKV, {**PLAIN, "scale": 1.0}),
)
