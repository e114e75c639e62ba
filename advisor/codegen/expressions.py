"""The op table of code generation: how each op is written in Triton and in PyTorch.

`{0}`, `{1}`, `{2}` stand for the operands, which are register tiles of float32 (or an integer type)
in Triton and tensors in PyTorch. Low-precision values are widened on load and rounded only where
the program casts or stores, as Inductor and eager's own fused kernels do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spelling:
    """One op in both languages; `helper` names the function of `HELPERS` that the text calls."""

    triton: str
    torch: str
    helper: str | None = None


# e^x is 2^(x / ln 2), which is what a GPU computes. `tl.exp` scales around it for results below the
# smallest normal number: three instructions more.
LOG2_E = 1.4426950408889634
POINTWISE: dict[str, Spelling] = {
    "neg": Spelling("-{0}", "-{0}"),
    "abs": Spelling("tl.abs({0})", "torch.abs({0})"),
    "exp": Spelling(f"tl.exp2({{0}} * {LOG2_E})", "torch.exp({0})"),
    "exp2": Spelling("tl.exp2({0})", "torch.exp2({0})"),
    "expm1": Spelling("expm1({0})", "torch.expm1({0})", "expm1"),
    "log": Spelling("tl.log({0})", "torch.log({0})"),
    "log2": Spelling("tl.log2({0})", "torch.log2({0})"),
    "log1p": Spelling("log1p({0})", "torch.log1p({0})", "log1p"),
    "sqrt": Spelling("tl.sqrt_rn({0})", "torch.sqrt({0})"),
    "rsqrt": Spelling("tl.rsqrt({0})", "torch.rsqrt({0})"),
    "reciprocal": Spelling("1.0 / {0}", "torch.reciprocal({0})"),
    "sin": Spelling("tl.sin({0})", "torch.sin({0})"),
    "cos": Spelling("tl.cos({0})", "torch.cos({0})"),
    "tanh": Spelling("tanh({0})", "torch.tanh({0})", "tanh"),
    "sigmoid": Spelling("sigmoid({0})", "torch.sigmoid({0})", "sigmoid"),
    "erf": Spelling("tl.erf({0})", "torch.erf({0})"),
    "relu": Spelling("tl.maximum({0}, 0.0, propagate_nan=tl.PropagateNan.ALL)", "torch.relu({0})"),
    "floor": Spelling("tl.floor({0})", "torch.floor({0})"),
    "ceil": Spelling("tl.ceil({0})", "torch.ceil({0})"),
    "round": Spelling("nearest({0})", "torch.round({0})", "nearest"),
    "sign": Spelling("tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))", "torch.sign({0})"),
    "logical_not": Spelling("{0} == 0", "torch.logical_not({0})"),
    "isnan": Spelling("{0} != {0}", "torch.isnan({0})"),
    "isinf": Spelling('tl.abs({0}) == float("inf")', "torch.isinf({0})"),
    "add": Spelling("{0} + {1}", "{0} + {1}"),
    "sub": Spelling("{0} - {1}", "{0} - {1}"),
    "mul": Spelling("{0} * {1}", "{0} * {1}"),
    "div": Spelling("{0} / {1}", "{0} / {1}"),
    "pow": Spelling("power({0}, {1})", "torch.pow({0}, {1})", "power"),
    "maximum": Spelling(
        "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)", "maximum({0}, {1})"
    ),
    "minimum": Spelling(
        "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)", "minimum({0}, {1})"
    ),
    "eq": Spelling("{0} == {1}", "{0} == {1}"),
    "ne": Spelling("{0} != {1}", "{0} != {1}"),
    "lt": Spelling("{0} < {1}", "{0} < {1}"),
    "le": Spelling("{0} <= {1}", "{0} <= {1}"),
    "gt": Spelling("{0} > {1}", "{0} > {1}"),
    "ge": Spelling("{0} >= {1}", "{0} >= {1}"),
    "logical_and": Spelling("({0} != 0) & ({1} != 0)", "({0} != 0) & ({1} != 0)"),
    "logical_or": Spelling("({0} != 0) | ({1} != 0)", "({0} != 0) | ({1} != 0)"),
    "where": Spelling("tl.where({0}, {1}, {2})", "torch.where({0}, {1}, {2})"),
    "fma": Spelling("tl.fma({0}, {1}, {2})", "{0} * {1} + {2}"),
}

# Arithmetic of booleans in PyTorch's sense: one-bit integers would wrap around.
BOOLEAN: dict[str, str] = {
    "add": "logical_or",
    "mul": "logical_and",
    "maximum": "logical_or",
    "minimum": "logical_and",
}

# `{0}` is the operand with lanes past the last column set to the identity of the reduction; in
# PyTorch, `{columns}` are the dimensions that are reduced.
REDUCTIONS: dict[str, Spelling] = {
    "sum": Spelling("tl.sum({0}, axis=1)[:, None]", "{0}.sum({columns}, keepdim=True)"),
    "mean": Spelling(
        "tl.sum({0}, axis=1)[:, None] / n_columns", "{0}.mean({columns}, keepdim=True)"
    ),
    "amax": Spelling(
        "tl.reduce({0}, 1, max_nan)[:, None]", "{0}.amax({columns}, keepdim=True)", "max_nan"
    ),
    "amin": Spelling(
        "tl.reduce({0}, 1, min_nan)[:, None]", "{0}.amin({columns}, keepdim=True)", "min_nan"
    ),
}
# The device function that a reduction of whole rows calls, beside those of the table.
SQUARED_DEVIATIONS = "squared_deviations"
IDENTITY: dict[str, str] = {
    "sum": "0.0",
    "mean": "0.0",
    "amax": 'float("-inf")',
    "amin": 'float("inf")',
}

TRITON_DTYPES: dict[str, str] = {
    "bool": "tl.int1",
    "uint8": "tl.uint8",
    "int8": "tl.int8",
    "int16": "tl.int16",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "float8_e4m3fn": "tl.float8e4nv",
    "float8_e5m2": "tl.float8e5",
}
POINTER_TYPES: dict[str, str] = {
    "bool": "*i1",
    "uint8": "*u8",
    "int8": "*i8",
    "int16": "*i16",
    "int32": "*i32",
    "int64": "*i64",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float8_e4m3fn": "*fp8e4nv",
    "float8_e5m2": "*fp8e5",
}

# Device functions for what Triton's portable namespace lacks. Errors are relative, in float32.
HELPERS: dict[str, str] = {
    "squared_deviations": '''
@triton.jit
def squared_deviations(x, ok, n_columns):
    """Sum of squared deviations from the mean of each row, [rows, 1], where x is `ok`."""
    mean = tl.sum(tl.where(ok, x, 0.0), axis=1)[:, None] / n_columns
    apart = tl.where(ok, x - mean, 0.0)
    return tl.sum(apart * apart, axis=1)[:, None]
''',
    "max_nan": '''
@triton.jit
def max_nan(a, b):
    """The larger of two values; NaN wins, as in torch.amax."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    "min_nan": '''
@triton.jit
def min_nan(a, b):
    """The smaller of two values; NaN wins, as in torch.amin."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    "tanh": '''
@triton.jit
def tanh(x):
    """tanh x: Taylor series to x^13 below 0.4 (next term < 4e-9), else from e^-2|x|."""
    s = x * x
    p = 0.0035921280365 * s - 0.0088632355299
    p = p * s + 0.0218694885362
    p = p * s - 0.0539682539683
    p = p * s + 0.1333333333333
    p = p * s - 0.3333333333333
    near = x + x * s * p
    t = tl.exp2(-2.8853900817779268 * tl.abs(x))
    root = tl.rsqrt(1.0 + t)
    far = (1.0 - t) * (root * root)
    return tl.where(tl.abs(x) < 0.4, near, tl.where(x < 0, -far, far))
''',
    "tanh_16": '''
@triton.jit
def tanh_16(x):
    """tanh x for results of 16 bits: x below 0.02 (x^2 / 3 < 2^-12 off), else from e^-2|x|."""
    t = tl.exp2(-2.8853900817779268 * tl.abs(x))
    root = tl.rsqrt(1.0 + t)
    far = (1.0 - t) * (root * root)
    return tl.where(tl.abs(x) < 0.02, x, tl.where(x < 0, -far, far))
''',
    "divided": '''
@triton.jit
def divided(x, by):
    """x / by, for one divisor of many: by its reciprocal, of what neither over- nor underflows.

    Scaled by 2^100 below 2^-100: whatever that takes out of range has a quotient beyond it as well.
    """
    size = tl.abs(by)
    small, large = size < 7.8886091e-31, size > 1.2676506e30
    scale = tl.where(small, 1.2676506e30, tl.where(large, 7.8886091e-31, 1.0))
    return (x * scale) * (1.0 / (by * scale))
''',
    "inverse": '''
@triton.jit
def inverse(x):
    """1 / x of what is not negative, without the scaling of a division."""
    root = tl.rsqrt(x)
    return root * root
''',
    "draw": '''
@triton.jit
def draw(seed, index):
    """What `tl.rand` gives: the first word of Philox-4x32-10 of an element's index, in [0, 1).

    Products of 64 bits give both halves at once, where `tl.rand` multiplies twice.
    """
    key_0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    key_1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    word_0 = index.to(tl.uint32)
    word_1, word_2, word_3 = word_0 * 0, word_0 * 0, word_0 * 0
    for _ in tl.static_range(10):
        left = word_0.to(tl.uint64) * 0xD2511F53
        right = word_2.to(tl.uint64) * 0xCD9E8D57
        word_0 = (right >> 32).to(tl.uint32) ^ word_1 ^ key_0
        word_1 = right.to(tl.uint32)
        word_2 = (left >> 32).to(tl.uint32) ^ word_3 ^ key_1
        word_3 = left.to(tl.uint32)
        key_0 = key_0 + 0x9E3779B9
        key_1 = key_1 + 0xBB67AE85
    whole = word_0.to(tl.int32, bitcast=True)
    return tl.where(whole < 0, -whole - 1, whole) * 4.6566127342e-10
''',
    "erf_beside": '''
@triton.jit
def erf_beside(x):
    """erf x to 1e-7, for a sum with 1: 1 - 2^(-|x| p(|x|)), p fitted to -log2(1 - erf x) / x.

    From 4 on, 1 - erf x is below what a float32 beside 1 holds.
    """
    a = tl.minimum(tl.abs(x), 4.0, propagate_nan=tl.PropagateNan.ALL)
    p = 4.5358596e-05 * a - 4.4550764e-04
    p = p * a + 1.4894416e-03
    p = p * a + 7.7462959e-04
    p = p * a - 2.8253680e-02
    p = p * a + 1.4848162e-01
    p = p * a + 9.1841638e-01
    p = p * a + 1.6279086e+00
    size = 1.0 - tl.exp2(-a * p)
    return tl.where(x < 0, -size, size)
''',
    "sigmoid": '''
@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), as the square of a reciprocal root."""
    root = tl.rsqrt(1.0 + tl.exp2(-1.4426950408889634 * x))
    return root * root
''',
    "nearest": '''
@triton.jit
def nearest(x):
    """The nearest integer, ties to even: beside 2^23 a float32 has no fraction bits left."""
    size = (tl.abs(x) + 8388608.0) - 8388608.0
    whole = tl.where(x.to(tl.int32, bitcast=True) < 0, -size, size)
    return tl.where(tl.abs(x) < 8388608.0, whole, x)
''',
    "expm1": '''
@triton.jit
def expm1(x):
    """e^x - 1 without cancellation: (u - 1) (x / ln u) with u = e^x (W. Kahan)."""
    u = tl.exp(x)
    inner = (u - 1.0) * (x / tl.log(u))
    large = tl.where(u - 1.0 == -1.0, -1.0, tl.where(u == float("inf"), u, inner))
    return tl.where(u == 1.0, x, large)
''',
    "log1p": '''
@triton.jit
def log1p(x):
    """ln(1 + x) without cancellation: ln u (x / (u - 1)) with u = 1 + x (W. Kahan)."""
    u = 1.0 + x
    inner = tl.log(u) * (x / (u - 1.0))
    return tl.where(u == 1.0, x, tl.where(u == float("inf"), u, inner))
''',
    "power": '''
@triton.jit
def upper_bits(x):
    """The leading 12 bits of the significand: products of two such values are exact in float32."""
    return (x.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)


@triton.jit
def power(a, b):
    """a^b = 2^(b log2 |a|), the logarithm and its product with b carried in two float32 parts.

    With |a| = m 2^e, 0.7 <= m < 1.42 and s = (m - 1) / (m + 1): ln m = 2 (s + s^3/3 + s^5/5 + ...).
    Zeros, infinities, NaN and negative bases as in IEEE 754.
    """
    a, b = tl.broadcast(a.to(tl.float32), b.to(tl.float32))
    size = tl.abs(a)
    tiny = size < 1.1754944e-38
    bits = tl.where(tiny, size * 16777216.0, size).to(tl.int32, bitcast=True)
    e = (bits - 0x3F3504F3) >> 23
    m = (bits - (e << 23)).to(tl.float32, bitcast=True)
    e = e.to(tl.float32) - tl.where(tiny, 24.0, 0.0)
    f, d = m - 1.0, m + 1.0
    s = f / d
    s1, d1 = upper_bits(s), upper_bits(d)
    s2 = ((f - s1 * d1) - s1 * ((d - d1) + (m - (d - 1.0)))) / d
    q = s * s
    tail = s * q * (0.3333333333 + q * (0.2 + q * (0.1428571429 + q * (0.1111111111 + q * 0.0909))))
    near = 2.885009765625 * s1
    high = e + near
    low = (near - (high - e)) + 3.8031628e-4 * s1 + 2.8853901 * (s2 + tail)
    b1, high1 = upper_bits(b), upper_bits(high)
    large = b1 * high1
    small = b1 * (high - high1) + (b - b1) * high + b * low
    n = tl.floor(large + small + 0.5)
    half = tl.floor(n * 0.5)
    finite = tl.exp2((large - n) + small) * tl.exp2(half) * tl.exp2(n - half)
    infinite = float("inf")
    beyond = tl.where(large > 1000.0, infinite, tl.where(large < -1000.0, 0.0, finite))
    at_end = (size == 0.0) | (size == infinite)
    end = tl.where((size == infinite) == (b > 0), infinite, 0.0)
    result = tl.where(at_end, end, tl.where(size == 1.0, 1.0, beyond))
    whole = tl.floor(b)
    odd = (whole == b) & (whole - 2.0 * tl.floor(whole * 0.5) == 1.0)
    result = tl.where(odd & (a.to(tl.int32, bitcast=True) < 0), -result, result)
    undefined = (a < 0) & (size < infinite) & (whole != b)
    result = tl.where(undefined | (a != a) | (b != b), float("nan"), result)
    return tl.where((b == 0.0) | (a == 1.0), 1.0, result)
''',
}


def reducer(op: str) -> str | None:
    """The device function that a reduction of whole rows calls, if it calls one."""
    if op == "var":
        return SQUARED_DEVIATIONS
    return REDUCTIONS[op].helper if op in REDUCTIONS else None
