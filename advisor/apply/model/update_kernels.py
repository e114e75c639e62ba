"""Updates of all parameters of an optimizer as one launch: Adam, AdamW, SGD, Lion.

    Adam    m = m + (1 - b1) (g - m)          v = b2 v + (1 - b2) g^2
            p = p - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
    SGD     b = momentum b + (1 - dampening) g        p = p - lr (b, or g + momentum b: Nesterov)
    Lion    p = p - lr sign(b1 m + (1 - b1) g)        m = b2 m + (1 - b2) g

as in PyTorch (I. Loshchilov, F. Hutter, arXiv:1711.05101; I. Sutskever et al., ICML 2013), the last
by X. Chen et al., arXiv:2302.06675. Weight decay is taken off the parameter (AdamW, Lion) or added
to the gradient. Parameters are found through a
table in memory, so that the number of tensors is no part of the kernel: a row per parameter with
the addresses of what belongs to it and its size. A program works on one chunk of one parameter.
Everything is computed in float32. A scalar that is passed is rounded to it, and 1 - beta taken from
a rounded beta is wrong by 1e-5 where beta is 0.999: what is derived from Python's numbers is
derived on the host, in float64, and rounded once. Division and square roots are IEEE's, not the
approximations that are Triton's default. The step count, and a learning rate in memory, are read on
the device, so that a CUDA graph of the launch stays right.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Columns of the table: parameter, gradient, two moments (SGD and Lion have one), the largest second
# moment so far, the count of steps, the number of elements.
FIELDS = 7


@triton.jit
def _minus_exp(x):  # type: ignore[no-untyped-def]
    """1 - e^x for x <= 0, without cancellation where x is near 0."""
    u = tl.exp(x)
    # e^x - 1 = (u - 1) (x / ln u) with u = e^x (W. Kahan): errors of u cancel out. Far from 1 they
    # are small already, and below the normal numbers the logarithm of u is up to a percent off.
    far = u < 0.25
    near = (u - 1.0) * tl.div_rn(x, tl.log(tl.where((u == 1.0) | far, 0.5, u)))
    return tl.where(far, 1.0 - u, -tl.where(u == 1.0, x, near))


@triton.jit  # type: ignore[untyped-decorator]
def _place(table, chunks, fields: tl.constexpr, chunk: tl.constexpr):  # type: ignore[no-untyped-def]
    """(row of the table, first element of the chunk, elements of the parameter) of a program."""
    here = chunks + 2 * tl.program_id(0)
    entry = table + tl.load(here) * fields
    return entry, tl.load(here + 1).to(tl.int64) * chunk, tl.load(entry + 6)


@triton.jit  # type: ignore[untyped-decorator]
def _at(entry, field, dtype: tl.constexpr, aligned: tl.constexpr):  # type: ignore[no-untyped-def]
    """The pointer in one column of a row of the table."""
    pointer = tl.load(entry + field).to(tl.pointer_type(dtype))
    if aligned:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit  # type: ignore[untyped-decorator]
def _load(pointer, at, ok, masked: tl.constexpr):  # type: ignore[no-untyped-def]
    """Elements in float32, 0 where there is none."""
    if masked:
        return tl.load(pointer + at, mask=ok, other=0).to(tl.float32)
    return tl.load(pointer + at).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _store(pointer, at, value, ok, masked: tl.constexpr):  # type: ignore[no-untyped-def]
    if masked:
        tl.store(pointer + at, value, mask=ok)
    else:
        tl.store(pointer + at, value)


@triton.jit  # type: ignore[untyped-decorator]
def _adam_block(  # type: ignore[no-untyped-def]
    parameter,
    gradient,
    first,
    second,
    largest,
    at,
    ok,
    masked: tl.constexpr,
    rate,
    step_size,
    scale,
    keep1,
    keep2,
    fresh1,
    fresh2,
    epsilon,
    decay,
    decoupled: tl.constexpr,
    maximize: tl.constexpr,
    amsgrad: tl.constexpr,
):
    p = _load(parameter, at, ok, masked)
    g = _load(gradient, at, ok, masked)
    m = _load(first, at, ok, masked)
    v = _load(second, at, ok, masked)
    if maximize:
        g = -g
    if decoupled:
        p = p - rate * decay * p
    else:
        g = g + decay * p
    # From the nearer end, as torch.lerp: with a beta of 0 the gradient itself.
    m = tl.where(fresh1 < 0.5, m + fresh1 * (g - m), g - keep1 * (g - m))
    v = keep2 * v + fresh2 * g * g
    most = v
    if amsgrad:
        most = tl.maximum(_load(largest, at, ok, masked), v, propagate_nan=tl.PropagateNan.ALL)
        _store(largest, at, most, ok, masked)
    p = p - step_size * tl.div_rn(m, tl.sqrt_rn(most) * scale + epsilon)
    _store(parameter, at, p, ok, masked)
    _store(first, at, m, ok, masked)
    _store(second, at, v, ok, masked)


@triton.jit  # type: ignore[untyped-decorator]
def _sgd_block(  # type: ignore[no-untyped-def]
    parameter,
    gradient,
    first,
    at,
    ok,
    masked: tl.constexpr,
    rate,
    momentum,
    fresh,
    decay,
    has_momentum: tl.constexpr,
    nesterov: tl.constexpr,
    maximize: tl.constexpr,
):
    p = _load(parameter, at, ok, masked)
    g = _load(gradient, at, ok, masked)
    if maximize:
        g = -g
    g = g + decay * p
    if has_momentum:
        b = momentum * _load(first, at, ok, masked) + fresh * g
        _store(first, at, b, ok, masked)
        g = g + momentum * b if nesterov else b
    _store(parameter, at, p - rate * g, ok, masked)


@triton.jit  # type: ignore[untyped-decorator]
def _lion_block(  # type: ignore[no-untyped-def]
    parameter,
    gradient,
    first,
    at,
    ok,
    masked: tl.constexpr,
    rate,
    keep1,
    keep2,
    fresh1,
    fresh2,
    decay,
    maximize: tl.constexpr,
):
    p = _load(parameter, at, ok, masked)
    g = _load(gradient, at, ok, masked)
    m = _load(first, at, ok, masked)
    if maximize:
        g = -g
    # Rounded where PyTorch's two passes (mul, add with alpha) round: near 0 a sign depends on it.
    mixed = tl.fma(fresh1, g, keep1 * m)
    sign = tl.where(mixed > 0.0, 1.0, tl.where(mixed < 0.0, -1.0, mixed))  # NaN stays NaN
    _store(parameter, at, p - rate * decay * p - rate * sign, ok, masked)
    _store(first, at, tl.fma(fresh2, g, keep2 * m), ok, masked)


@triton.jit  # type: ignore[untyped-decorator]
def adam(  # type: ignore[no-untyped-def]
    table,
    chunks,
    rate,
    log_beta1,
    log_beta2,
    keep1,
    keep2,
    fresh1,
    fresh2,
    epsilon,
    decay,
    fields: tl.constexpr,
    chunk: tl.constexpr,
    block: tl.constexpr,
    parameters: tl.constexpr,
    gradients: tl.constexpr,
    states: tl.constexpr,
    aligned: tl.constexpr,
    rate_in_memory: tl.constexpr,
    decoupled: tl.constexpr,
    maximize: tl.constexpr,
    amsgrad: tl.constexpr,
):
    """One program updates `chunk` elements of one parameter, its moments with it.

    `keep` is beta, `fresh` 1 - beta.
    """
    entry, begin, size = _place(table, chunks, fields, chunk)
    count = tl.load(tl.load(entry + 5).to(tl.pointer_type(tl.float32)))
    parameter = _at(entry, 0, parameters, aligned)
    gradient = _at(entry, 1, gradients, aligned)
    first = _at(entry, 2, states, aligned)
    second = _at(entry, 3, states, aligned)
    largest = _at(entry, 4, states, aligned)
    if rate_in_memory:
        rate = tl.load(rate).to(tl.float32)
    step_size = tl.div_rn(rate, _minus_exp(count * log_beta1))
    scale = tl.div_rn(1.0, tl.sqrt_rn(_minus_exp(count * log_beta2)))
    for offset in range(0, chunk, block):
        at = begin + offset + tl.arange(0, block)
        if begin + chunk <= size:  # without a mask loads and stores are as wide as they can be
            _adam_block(
                parameter, gradient, first, second, largest, at, at < size, False, rate, step_size,
                scale, keep1, keep2, fresh1, fresh2, epsilon, decay, decoupled, maximize, amsgrad,
            )  # fmt: skip
        else:
            _adam_block(
                parameter, gradient, first, second, largest, at, at < size, True, rate, step_size,
                scale, keep1, keep2, fresh1, fresh2, epsilon, decay, decoupled, maximize, amsgrad,
            )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def sgd(  # type: ignore[no-untyped-def]
    table,
    chunks,
    rate,
    momentum,
    fresh,
    decay,
    fields: tl.constexpr,
    chunk: tl.constexpr,
    block: tl.constexpr,
    parameters: tl.constexpr,
    gradients: tl.constexpr,
    states: tl.constexpr,
    aligned: tl.constexpr,
    rate_in_memory: tl.constexpr,
    has_momentum: tl.constexpr,
    nesterov: tl.constexpr,
    maximize: tl.constexpr,
):
    """One program updates `chunk` elements of one parameter, and its momentum if it has one."""
    entry, begin, size = _place(table, chunks, fields, chunk)
    parameter = _at(entry, 0, parameters, aligned)
    gradient = _at(entry, 1, gradients, aligned)
    first = _at(entry, 2, states, aligned)
    if rate_in_memory:
        rate = tl.load(rate).to(tl.float32)
    for offset in range(0, chunk, block):
        at = begin + offset + tl.arange(0, block)
        if begin + chunk <= size:
            _sgd_block(
                parameter, gradient, first, at, at < size, False, rate, momentum, fresh, decay,
                has_momentum, nesterov, maximize,
            )  # fmt: skip
        else:
            _sgd_block(
                parameter, gradient, first, at, at < size, True, rate, momentum, fresh, decay,
                has_momentum, nesterov, maximize,
            )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def lion(  # type: ignore[no-untyped-def]
    table,
    chunks,
    rate,
    keep1,
    keep2,
    fresh1,
    fresh2,
    decay,
    fields: tl.constexpr,
    chunk: tl.constexpr,
    block: tl.constexpr,
    parameters: tl.constexpr,
    gradients: tl.constexpr,
    states: tl.constexpr,
    aligned: tl.constexpr,
    rate_in_memory: tl.constexpr,
    maximize: tl.constexpr,
):
    """One program updates `chunk` elements of one parameter, and its only moment."""
    entry, begin, size = _place(table, chunks, fields, chunk)
    parameter = _at(entry, 0, parameters, aligned)
    gradient = _at(entry, 1, gradients, aligned)
    first = _at(entry, 2, states, aligned)
    if rate_in_memory:
        rate = tl.load(rate).to(tl.float32)
    for offset in range(0, chunk, block):
        at = begin + offset + tl.arange(0, block)
        if begin + chunk <= size:
            _lion_block(
                parameter, gradient, first, at, at < size, False, rate, keep1, keep2, fresh1,
                fresh2, decay, maximize,
            )  # fmt: skip
        else:
            _lion_block(
                parameter, gradient, first, at, at < size, True, rate, keep1, keep2, fresh1,
                fresh2, decay, maximize,
            )  # fmt: skip
