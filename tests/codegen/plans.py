"""Row programs that every scheme is tried on: one, two and three levels of reductions."""

from __future__ import annotations

import msgspec

from advisor.model.plan import FusionPlan
from tests.builders.plan import PlanBuilder, rms_norm


def log_softmax(dtype: str = "bfloat16", *, sizes: tuple[int, ...] = (4,), columns: int = 64,
                factor: float = 1.0, power: str = "exp") -> FusionPlan:  # fmt: skip
    """`c (x - max x) - log Σ exp(c (x - max x))` with the maximum and the logarithm."""
    make = PlanBuilder()
    wide = make.cast(make.input(dtype), "float32")
    peak = make.op("amax", wide)
    apart = make.op("sub", wide, peak)
    if factor != 1.0:
        apart = make.op("mul", factor, apart)
    total = make.op("log", make.op("sum", make.op(power, apart)))
    out = make.op("sub", apart, total)
    return make.plan(out, peak, total, title="log-softmax", sizes=sizes, columns=columns)


def layer_norm(dtype: str = "bfloat16", *, written_out: bool = False, columns: int = 64,
               sizes: tuple[int, ...] = (4,)) -> FusionPlan:  # fmt: skip
    """`h = x + r; cast((h - mean h) rsqrt(var h + ε)) w + b`, with h and the row's statistics."""
    make = PlanBuilder()
    x, r = make.input(dtype), make.input(dtype)
    w, b = make.input(dtype, (False, True)), make.input(dtype, (False, True))
    h = make.op("add", x, r)
    wide = make.cast(h, "float32")
    mean = make.op("mean", wide)
    apart = make.op("sub", wide, mean)
    if written_out:
        spread = make.op("mean", make.op("mul", apart, apart))
    else:
        spread = make.op("var", wide, correction=0.0)
    scale = make.op("rsqrt", make.op("add", spread, 1e-5))
    scaled = make.cast(make.op("mul", apart, scale), dtype)
    out = make.op("add", make.op("mul", scaled, w), b)
    return make.plan(out, h, mean, scale, title="layer norm", sizes=sizes, columns=columns)


def loss_gradient(dtype: str = "bfloat16", *, columns: int = 64,
                  sizes: tuple[int, ...] = (4,)) -> FusionPlan:  # fmt: skip
    """The gradient of a cross-entropy over logits, added to another: labels, sums, exponentials."""
    make = PlanBuilder()
    other, labels = make.input(dtype), make.input("int64", (True, False))
    index, scale = make.input("int64", (False, True)), make.input("float32", (False, False))
    logits = make.input(dtype)
    peak, total = (make.input("float32", (True, False)) for _ in range(2))
    valid = make.op("ne", labels, -100)
    hit = make.op("eq", make.op("where", valid, labels, 0, dtype="int64"), index)
    weight = make.op("where", valid, scale, 0.0, dtype="float32")
    pick = make.op("mul", make.op("where", hit, -1.0, 0.0, dtype="float32"), weight)
    apart = make.op("sub", make.op("sub", make.cast(logits, "float32"), peak), total)
    part = make.op("mul", make.op("exp", apart), make.op("sum", pick))
    out = make.op("add", other, make.cast(make.op("sub", pick, part), dtype))
    return make.plan(out, title="loss gradient", sizes=sizes, columns=columns)


def rows_only(dtype: str = "bfloat16", *, columns: int = 64,
              sizes: tuple[int, ...] = (4,)) -> FusionPlan:  # fmt: skip
    """`max x + log Σ exp(x - max x)`, the smallest value and the mean: nothing but row values."""
    make = PlanBuilder()
    wide = make.cast(make.input(dtype), "float32")
    peak = make.op("amax", wide)
    total = make.op("sum", make.op("exp", make.op("sub", wide, peak)))
    value = make.op("add", peak, make.op("log", total))
    least, mean = make.op("amin", wide), make.op("mean", wide)
    return make.plan(value, least, mean, title="rows only", sizes=sizes, columns=columns)


def log_sum_exp(dtype: str = "bfloat16", *, columns: int = 64,
                sizes: tuple[int, ...] = (4,)) -> FusionPlan:  # fmt: skip
    """`m + log Σ exp(x - m)` as PyTorch writes it: m is 0 where the maximum is infinite."""
    make = PlanBuilder()
    wide = make.cast(make.input(dtype), "float32")
    peak = make.op("amax", wide)
    infinite = make.op("eq", make.op("abs", peak), "inf")
    shift = make.op("where", infinite, 0.0, peak, dtype="float32")
    total = make.op("sum", make.op("exp", make.op("sub", wide, shift)))
    value = make.op("add", make.op("log", total), shift)
    return make.plan(value, title="log-sum-exp", sizes=sizes, columns=columns)


def three_levels(dtype: str = "bfloat16", *, columns: int = 64,
                 sizes: tuple[int, ...] = (4,)) -> FusionPlan:  # fmt: skip
    """A softmax whose result is scaled by its own root mean square: no form has fewer passes."""
    make = PlanBuilder()
    wide = make.cast(make.input(dtype), "float32")
    power = make.op("exp", make.op("sub", wide, make.op("amax", wide)))
    share = make.op("div", power, make.op("sum", power))
    square = make.op("mean", make.op("mul", share, share))
    out = make.op("mul", share, make.op("rsqrt", make.op("add", square, 1e-4)))
    return make.plan(make.cast(out, dtype), title="three levels", sizes=sizes, columns=columns)


def strided(dtype: str = "bfloat16", *, columns: int = 64,
            sizes: tuple[int, ...] = (2, 3)) -> FusionPlan:  # fmt: skip
    """A masked softmax over two row axes: the mask repeats along one, the scores are cut out."""
    make = PlanBuilder(row_axes=2)
    scores = make.input(dtype, dense=False)
    mask = make.input("float32", (True, False, True), dense=False)
    wide = make.op("add", make.cast(scores, "float32"), mask)
    power = make.op("exp", make.op("sub", wide, make.op("amax", wide)))
    out = make.cast(make.op("div", power, make.op("sum", power)), dtype)
    return make.plan(out, title="strided", sizes=sizes, columns=columns)


def norm(dtype: str = "bfloat16", *, columns: int = 64,
         sizes: tuple[int, ...] = (4,)) -> FusionPlan:  # fmt: skip
    """An RMS norm: one level."""
    del sizes
    return rms_norm(columns=columns, dtype=dtype)


def norm_gradient(dtype: str = "bfloat16", *, columns: int = 64,
                  sizes: tuple[int, ...] = (4,)) -> FusionPlan:  # fmt: skip
    """Layer norm backward: dx = (g w - mean(g w) - x̂ mean(g w x̂)) / σ, dw = Σ g x̂, db = Σ g."""
    make = PlanBuilder()
    g, x, w = make.input(dtype), make.input(dtype), make.input(dtype, (False, True))
    mean, scale = (make.input("float32", (True, False)) for _ in range(2))
    wide = make.cast(g, "float32")
    hat = make.op("mul", make.op("sub", make.cast(x, "float32"), mean), scale)
    weighted = make.op("mul", wide, make.cast(w, "float32"))
    along = make.op("mul", hat, make.op("mean", make.op("mul", weighted, hat)))
    rest = make.op("sub", make.op("sub", weighted, make.op("mean", weighted)), along)
    dx = make.cast(make.op("mul", rest, scale), dtype)
    dw = make.cast(make.over_rows("sum", make.op("mul", wide, hat)), dtype)
    db = make.cast(make.over_rows("sum", wide), dtype)
    return make.plan(dx, dw, db, title="norm gradient", sizes=sizes, columns=columns)


def bias_gradient(dtype: str = "bfloat16", *, columns: int = 64,
                  sizes: tuple[int, ...] = (4,)) -> FusionPlan:  # fmt: skip
    """The gradient of `sigmoid(x + b)`: dx, and its sum over the rows added to another one."""
    make = PlanBuilder()
    g, x, other = make.input(dtype), make.input(dtype), make.input("float32", (False, True))
    share = make.op("sigmoid", make.cast(x, "float32"))
    slope = make.op("mul", share, make.op("sub", 1.0, share))
    dx = make.cast(make.op("mul", make.cast(g, "float32"), slope), dtype)
    db = make.op("add", make.over_rows("sum", make.cast(dx, "float32")), other)
    return make.plan(dx, db, title="bias gradient", sizes=sizes, columns=columns)


def column_statistics(dtype: str = "bfloat16", *, columns: int = 64,
                      sizes: tuple[int, ...] = (2, 2)) -> FusionPlan:  # fmt: skip
    """Of every column the mean, 1 / σ, the largest and the smallest value; of a row one value."""
    make = PlanBuilder(row_axes=2)
    x, factor = make.input(dtype, dense=False), make.input(dtype, (True, False, False), dense=False)
    wide = make.op("mul", make.cast(x, "float32"), make.cast(factor, "float32"))
    mean = make.over_rows("mean", wide)
    spread = make.over_rows("var", wide, correction=0.0)
    scale = make.op("rsqrt", make.op("add", spread, 0.1))
    high, low = make.over_rows("amax", wide), make.over_rows("amin", wide)
    row = make.op("neg", make.cast(factor, "float32"))
    return make.plan(mean, scale, high, low, row, title="column statistics", sizes=sizes,
                     columns=columns)  # fmt: skip


def group_norm(dtype: str = "bfloat16", *, sizes: tuple[int, ...] = (2, 4),
               columns: tuple[int, ...] = (4, 16), channels_last: bool = False,
               ) -> FusionPlan:  # fmt: skip
    """`silu(h w + b)` of groups of channels with a residual sum, and their statistics.

    Rows are [images, groups], columns [channels of a group, pixels], the other way round if
    `channels_last`; weights are indexed by group and channel.
    """
    make = PlanBuilder(row_axes=2, column_axes=2)
    place = (False, True) if channels_last else (True, False)
    x, r = (make.input(dtype, dense=not channels_last) for _ in range(2))
    w, b = (make.input(dtype, (False, True, True), segments=place) for _ in range(2))
    wide = make.cast(make.op("add", x, r), "float32")
    mean = make.op("mean", wide)
    scale = make.op("rsqrt", make.op("add", make.op("var", wide, correction=0.0), 1e-5))
    gain = make.op("mul", scale, w)
    shift = make.op("add", make.op("mul", make.op("neg", mean), gain), b)
    normed = make.op("add", make.op("mul", wide, gain), shift)
    out = make.cast(make.op("mul", normed, make.op("sigmoid", normed)), dtype)
    return make.plan(out, mean, scale, title="group norm", sizes=sizes, columns=columns,
                     strided=(out,) if channels_last else ())  # fmt: skip


def batch_norm(dtype: str = "bfloat16", *, sizes: tuple[int, ...] = (8,),
               columns: tuple[int, ...] = (3, 25)) -> FusionPlan:  # fmt: skip
    """`relu((h - mean h) rsqrt(var h + ε) w + b + r)` of every channel, with running statistics."""
    make = PlanBuilder(row_axes=1, column_axes=2)
    x, r = (make.input(dtype, dense=False) for _ in range(2))
    w, b, running = (make.input("float32", (True, False)) for _ in range(3))
    wide = make.cast(x, "float32")
    mean = make.op("mean", wide)
    spread = make.op("var", wide, correction=0.0)
    scale = make.op("rsqrt", make.op("add", spread, 1e-5))
    normed = make.op("mul", make.op("sub", wide, mean), scale)
    shifted = make.cast(make.op("add", make.op("mul", normed, w), b), dtype)
    out = make.op("relu", make.op("add", shifted, r))
    kept = make.op("add", make.op("mul", mean, 0.1), make.op("mul", running, 0.9))
    return make.plan(out, kept, title="batch norm", sizes=sizes, columns=columns,
                     strided=(out,))  # fmt: skip


def turned(dtype: str = "bfloat16", *, sizes: tuple[int, ...] = (48,), columns: int = 80,
           ) -> FusionPlan:  # fmt: skip
    """`gelu(xᵀ + y) w`, its tanh form, with x stored the other way round, and `xᵀ y`."""
    make = PlanBuilder()
    x, y = make.input(dtype, dense=False, unit_stride=False), make.input(dtype)
    w = make.input(dtype, (False, True))
    total = make.op("add", x, y)
    cube = make.op("mul", make.op("mul", total, total), total)
    inner = make.op("add", total, make.op("mul", cube, 0.044715))
    gate = make.op("sigmoid", make.op("mul", inner, 1.5957691))
    out = make.cast(make.op("mul", make.op("mul", total, gate), w), dtype)
    plan = make.plan(out, make.op("mul", x, y), title="turned", sizes=sizes, columns=columns)
    (site,) = plan.sites
    strides = ((1, sizes[0]), *site.input_strides[1:])
    site = msgspec.structs.replace(site, input_strides=strides)
    return msgspec.structs.replace(plan, sites=(site,))


def embeddings(make: PlanBuilder, dtype: str, *, dense: bool = True) -> tuple[str, str]:
    """Words and places of two row axes: an index for every row, one for the inner axis alone."""
    ids = make.input("int64", (True, True, False))
    words = make.input(dtype, gathered=ids, dense=dense)
    place = make.input("int32", (False, True, False), dense=False)
    return words, make.input(dtype, (False, True, True), gathered=place, dense=False)


def embedding_norm(dtype: str = "bfloat16", *, columns: int = 64, sizes: tuple[int, ...] = (2, 3),
                   dense: bool = True, table_rows: int = 11) -> FusionPlan:  # fmt: skip
    """`cast((h - mean h) rsqrt(var h + ε)) w + b`, h = words + places; the words are kept."""
    make = PlanBuilder(row_axes=2)
    words, places = embeddings(make, dtype, dense=dense)
    w, b = (make.input(dtype, (False, False, True)) for _ in range(2))
    wide = make.cast(make.op("add", words, places), "float32")
    mean, spread = make.op("mean", wide), make.op("var", wide, correction=0.0)
    scale = make.op("rsqrt", make.op("add", spread, 1e-5))
    scaled = make.cast(make.op("mul", make.op("sub", wide, mean), scale), dtype)
    out = make.op("add", make.op("mul", scaled, w), b)
    return make.plan(out, make.cast(words, dtype), title="embedding and norm", sizes=sizes,
                     columns=columns, table_rows=table_rows)  # fmt: skip


def embedding_sums(dtype: str = "bfloat16", *, columns: int = 64, sizes: tuple[int, ...] = (2, 3),
                   rows: bool = True) -> FusionPlan:  # fmt: skip
    """`Σ g x̂` over the rows, x̂ = h rsqrt(mean h² + ε) or h itself without `rows`, and `g h`."""
    make = PlanBuilder(row_axes=2)
    words, places = embeddings(make, dtype)
    g = make.cast(make.input(dtype), "float32")
    wide = make.cast(make.op("add", words, places), "float32")
    hat = wide
    if rows:
        square = make.op("mean", make.op("mul", wide, wide))
        hat = make.op("mul", wide, make.op("rsqrt", make.op("add", square, 1e-5)))
    dw = make.cast(make.over_rows("sum", make.op("mul", g, hat)), dtype)
    part = make.cast(make.op("mul", g, wide), dtype)
    return make.plan(dw, part, title="embedding sums", sizes=sizes, columns=columns)


def embedding_chain(dtype: str = "bfloat16", *, columns: int = 64, sizes: tuple[int, ...] = (2, 3),
                    ) -> FusionPlan:  # fmt: skip
    """`relu(words + places)`."""
    make = PlanBuilder(row_axes=2)
    out = make.op("relu", make.op("add", *embeddings(make, dtype)))
    return make.plan(out, title="embedding chain", sizes=sizes, columns=columns)
