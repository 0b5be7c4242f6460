"""Arithmetic that the kernels share: exponentials, logarithms, sums, addresses, targets.

``KIND`` says how logits are computed with: :data:`NARROW` for fp16 and bf16, :data:`SINGLE` for fp32, :data:`DOUBLE` for fp64.
Distances from the largest logit of an element are in powers of two for NARROW and in powers of e otherwise.

Fused multiply-adds are written as such and the compiler is told to make no others: which it makes depends on the code around, and
the loss with a gradient is to have the bits of the loss without one.
"""

from __future__ import annotations

import triton
import triton.language as tl

NARROW = tl.constexpr(0)
SINGLE = tl.constexpr(1)
DOUBLE = tl.constexpr(2)

NONE = tl.constexpr(0)
MEAN = tl.constexpr(1)
SUM = tl.constexpr(2)

_LOG2E = tl.constexpr(1.4426950408889634)
# log2(e) = _LOG2E_HIGH + _LOG2E_LOW, the first of them exact in fp32.
_LOG2E_HIGH = tl.constexpr(1.44269502162933349609375)
_LOG2E_LOW = tl.constexpr(1.9259629911e-8)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def shift_of(top, KIND: tl.constexpr):
    """What :func:`distance` takes off, for the largest logit ``top``; finite where no logit has been seen yet."""
    top = tl.where(top == -float("inf"), 0.0, top)
    return top * _LOG2E if KIND == NARROW else top


@triton.jit
def distance(x, shift, KIND: tl.constexpr):
    """x - top. NARROW: one fused step; that the shift was rounded is common to all classes and cancels in p."""
    return tl.fma(x, _LOG2E, -shift) if KIND == NARROW else x - shift


@triton.jit
def exponential(d, KIND: tl.constexpr):
    """exp of a distance, to 3 u in fp32 (2.8 of them are those of the hardware's exp2) and so that -inf gives 0."""
    if KIND == NARROW:
        power = tl.exp2(d)
    elif KIND == DOUBLE:
        power = tl.exp(d)
    else:
        d = tl.where(d < -200.0, -200.0, d)
        y = d * _LOG2E_HIGH
        rest = tl.fma(d, _LOG2E_HIGH, -y) + d * _LOG2E_LOW
        power = tl.exp2(y)
        power = tl.fma(power, rest * _LN2, power)
    return power


@triton.jit
def power_of(x, shift, KIND: tl.constexpr):
    """exp(x - top). In fp32 with what the difference rounds away, which for logits of 14 is 8 u of the power."""
    d = distance(x, shift, KIND)
    power = exponential(d, KIND)
    if KIND == SINGLE:
        back = d - x
        lost = (x - (d - back)) - (shift + back)
        # Of an infinite logit nothing is lost.
        power = tl.where(tl.abs(d) < float("inf"), tl.fma(power, lost, power), power)
    return power


@triton.jit
def natural(d, KIND: tl.constexpr):
    """A distance in powers of e."""
    return d * _LN2 if KIND == NARROW else d


@triton.jit
def minus_log1m(q, KIND: tl.constexpr):
    """-log(1 - q) for 0 <= q <= 1/2, with relative accuracy as q nears 0.

    In fp32 q times a polynomial: the one of degree 8 whose relative error on [0, 1/2] is least (0.4 u; 1.7 u with the
    roundings of its evaluation, over 200001 points).
    """
    if KIND == DOUBLE:
        rest = 1.0 - q
        result = tl.where(rest == 1.0, q, tl.log(rest) * (q / tl.where(rest == 1.0, 1.0, rest - 1.0)))
    else:
        p = tl.full(q.shape, 1.4411076307296753, q.dtype)
        p = tl.fma(q, p, -1.695810317993164)
        p = tl.fma(q, p, 1.2576674222946167)
        p = tl.fma(q, p, -0.20353740453720093)
        p = tl.fma(q, p, 0.26961222290992737)
        p = tl.fma(q, p, 0.24280516803264618)
        p = tl.fma(q, p, 0.33370059728622437)
        p = tl.fma(q, p, 0.49999284744262695)
        result = q * tl.fma(q, p, 1.0)
    return result


@triton.jit
def log_ratio(total, d, KIND: tl.constexpr):
    """log total - d, d being a distance."""
    return (tl.log2(total) - d) * _LN2 if KIND == NARROW else tl.log(total) - d


@triton.jit
def add_compensated(total, lost, value):
    """``total`` + ``value``, with what that rounds away added to ``lost`` (Neumaier 1974)."""
    new = total + value
    swap = tl.abs(value) > tl.abs(total)
    large = tl.where(swap, value, total)
    small = tl.where(swap, total, value)
    rest = (large - new) + small
    # With inf or nan in the sum the rest is nan, and the sum says it already.
    return new, lost + tl.where(rest == rest, rest, 0.0)


@triton.jit
def as_float(n, ACC: tl.constexpr):
    """An integer argument, which may be a constant, as a number of the accumulate type, rounded once."""
    return n * tl.full((), 1.0, ACC)


@triton.jit
def divide(a, b):
    """a / b, rounded once. The operator `/` is 2 ulp off in fp32."""
    return a / b if b.dtype == tl.float64 else tl.div_rn(a, b)


@triton.jit
def offset_of(element, sizes, strides, DIMS: tl.constexpr, WIDE: tl.constexpr):
    """Where an element lies: its index taken apart along ``sizes``, times ``strides``, both outermost first."""
    rest = element
    offset = element * 0
    for i in tl.static_range(DIMS - 1):
        above = rest // sizes[DIMS - 1 - i]
        offset += (rest - above * sizes[DIMS - 1 - i]) * strides[DIMS - 1 - i]
        rest = above
    offset += rest * strides[0]
    return offset.to(tl.int64) if WIDE else offset


@triton.jit
def read_target(target, offset, inside, weight, n_classes, ignore_index, HAS_WEIGHT: tl.constexpr, ACC: tl.constexpr):
    """Class (0 if it is not one), weight, and whether it counts, of elements.

    The weight is 0 for ignored elements and nan for a class that is out of range, which is never read from.
    """
    t = tl.load(target + offset, mask=inside, other=0).to(tl.int64)
    counts = inside & (t != ignore_index)
    known = (t >= 0) & (t < n_classes)
    t = tl.where(known, t, 0).to(tl.int32)
    w = tl.load(weight + t, mask=inside, other=0.0).to(ACC) if HAS_WEIGHT else 1.0
    w = tl.where(known, w, float("nan")).to(ACC)
    return t, tl.where(counts, w, 0.0), counts
