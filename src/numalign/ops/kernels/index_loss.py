"""What the kernels of cross-entropy do once per element, whatever the layout of the logits."""

from __future__ import annotations

import triton
import triton.language as tl

from numalign.ops.kernels.arithmetic import (
    MEAN,
    NONE,
    distance,
    divide,
    log_ratio,
    minus_log1m,
    natural,
    power_of,
    shift_of,
)
from numalign.ops.kernels.plan import DIVISOR, EXPECTED, expected_divisor, is_made, remember

# What one launch is for.
LOSS = tl.constexpr(0)
LOSS_AND_GRADIENT = tl.constexpr(1)
GRADIENT = tl.constexpr(2)


@triton.jit
def incoming(plan, memory, grad, n_elements, PURPOSE: tl.constexpr, REDUCTION: tl.constexpr,
             EMPTY_IS_ZERO: tl.constexpr, REMEMBERS: tl.constexpr, ACC: tl.constexpr, PROGRAMS: tl.constexpr):  # fmt: skip
    """Whether a gradient is to be made, and k of every element: the incoming gradient over what a mean divides by.

    Args:
        grad: the incoming gradient of a backward.
        plan: for a backward of which nothing was made ahead, the divisor, 0-D.
    """
    makes = True
    k = tl.full((), 1.0, ACC)
    if PURPOSE == LOSS_AND_GRADIENT:
        k = tl.load(plan + EXPECTED)
        makes = k == k
        if REDUCTION == MEAN:
            k = divide(k, expected_divisor(plan, n_elements, EMPTY_IS_ZERO, ACC, PROGRAMS))
    elif PURPOSE == GRADIENT and REDUCTION != NONE:
        value = tl.load(grad).to(ACC)
        divisor = plan
        if REMEMBERS:
            makes = is_made(plan, value) == 0
            divisor = plan + DIVISOR
            if tl.program_id(0) == 0:
                remember(memory, value)
        k = value
        if REDUCTION == MEAN:
            k = divide(value, tl.load(divisor))
    return makes, k


@triton.jit
def class_weight(weight, c, inside, HAS_WEIGHT: tl.constexpr, ACC: tl.constexpr):
    """w_c, 1 without weights."""
    return tl.load(weight + c, mask=inside, other=0.0).to(ACC) if HAS_WEIGHT else 1.0


@triton.jit
def in_registers(x, t, weight, C: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr, KIND: tl.constexpr,
                 ACC: tl.constexpr):  # fmt: skip
    """Of the logits ``x`` of each class, a tuple: the sum of exp(d_c) over every class but the target, d_t, sum_c w_c d_c, and
    the exp(d_c), a tuple with 0 for the target."""
    top = x[0]
    for c in tl.static_range(1, C):
        top = tl.maximum(top, x[c])
    shift = shift_of(top, KIND)
    others = tl.zeros(t.shape, ACC)
    smooth = tl.zeros(t.shape, ACC)
    target_d = tl.zeros(t.shape, ACC)
    e = ()
    for c in tl.static_range(C):
        d = distance(x[c], shift, KIND)
        # Picked here, and not read again: a sector a target would be a third of what 20 classes are.
        target_d = tl.where(t == c, d, target_d)
        e = e + (tl.where(t == c, 0.0, power_of(x[c], shift, KIND)),)
        others += e[c]
        if SMOOTHING > 0:
            smooth += natural(d, KIND) * class_weight(weight, c, True, HAS_WEIGHT, ACC)
    return others, target_d, smooth, e


@triton.jit
def element_loss(others, power, d, inverse, smooth, w, counts, weight_sum, n_classes, SMOOTHING: tl.constexpr,
                 KIND: tl.constexpr):  # fmt: skip
    """(1 - e) w_t (L - d_t) + e / C sum_c w_c (L - d_c), and 0 where the element does not count.

    L - d_t = -log p_t. Where p_t > 1/2 it is -log(1 - q), q = others / (others + power), whose relative accuracy does not
    suffer as p_t nears 1. ``inverse`` is 1 / (others + power).
    """
    likely = others < power
    loss = tl.where(
        likely, minus_log1m(tl.where(likely, others * inverse, 0.0), KIND), log_ratio(others + power, d, KIND)
    )
    weighted = loss * w
    if SMOOTHING > 0:
        spread = weight_sum * (loss + natural(d, KIND)) - smooth
        weighted = (1.0 - SMOOTHING) * weighted + spread * SMOOTHING / n_classes
    return tl.where(counts, weighted, 0.0)


@triton.jit
def element_gradient(others, power, inverse, k, w, counts, weight_sum, n_classes, SMOOTHING: tl.constexpr):
    """What the gradient is made of: that of class c is ``ratio`` exp(d_c) - ``even`` w_c, that of the target ``true``.

    k (A p_c - (1 - e) w_t [c = t] - e / C w_c), A = (1 - e) w_t + e / C sum_c w_c, where for the target p_t - 1 is written as
    -others / (others + power): nothing cancels as p_t nears 1.
    """
    amount = tl.where(counts, k * w, 0.0)
    even = amount * 0.0
    if SMOOTHING > 0:
        even = tl.where(counts, k, 0.0) * SMOOTHING / n_classes
        sharp = amount * (1.0 - SMOOTHING)
        ratio = (sharp + even * weight_sum) * inverse
        true = even * (power * inverse * weight_sum - w) - sharp * (others * inverse)
    else:
        ratio = amount * inverse
        true = -amount * (others * inverse)
    return ratio, true, even
