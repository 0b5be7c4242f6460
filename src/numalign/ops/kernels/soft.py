"""Cross-entropy of class probabilities, in tiles of elements by classes, whatever the strides.

With a = the class of the largest logit, b_c = w_c ((1 - e) q_c + e / C), B = sum_c b_c and S = sum_c exp(d_c):

    loss = sum_c b_c (L - d_c),    d loss / d x_j = k (B p_j - b_j),    d loss / d q_j = k (1 - e) w_j (L - d_j).

For a target that agrees with a, B p_a - b_a cancels. Written as k ((B - b_a) - B (S - exp(d_a)) / S), both differences summed
without a, it does not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from numalign.ops.kernels.arithmetic import (
    MEAN,
    NONE,
    distance,
    divide,
    exponential,
    log_ratio,
    minus_log1m,
    natural,
    offset_of,
    power_of,
    shift_of,
)
from numalign.ops.kernels.plan import leave

# What one launch is for.
LOSS = tl.constexpr(0)
GRADIENT = tl.constexpr(1)
TARGET_GRADIENT = tl.constexpr(2)


@triton.jit
def _leader(x, inside, step, n_classes, ELEMENTS: tl.constexpr, CLASSES: tl.constexpr, KIND: tl.constexpr,
            ACC: tl.constexpr):  # fmt: skip
    """The largest logit, its class (the first of several), and the sum of exp(d_c) over the others."""
    column = tl.arange(0, CLASSES)[None, :]
    top = tl.full([ELEMENTS], -float("inf"), ACC)
    leader = tl.zeros([ELEMENTS], tl.int32)
    others = tl.zeros([ELEMENTS], ACC)
    for first in range(0, n_classes, CLASSES):
        c = first + column
        here = inside[:, None] & (c < n_classes)
        v = tl.load(x + c * step, mask=here, other=-float("inf")).to(ACC)
        best = tl.max(v, 1)
        # The first that attains it; with nan among them none does, and the sum below says so.
        where = tl.min(tl.where(v == best[:, None], c, n_classes), 1)
        better = best > top
        new = tl.where(better, best, top)
        shift = shift_of(new, KIND)
        scale = power_of(top, shift, KIND)
        e = power_of(v, shift[:, None], KIND)
        gained = tl.sum(tl.where(better[:, None] & (c == where[:, None]), 0.0, e), 1)
        # The leader so far joins the others when another takes its place.
        others = tl.where(better, (others * scale) + scale, others) + gained
        leader = tl.where(better, where, leader)
        top = new
    return top, leader, others


@triton.jit
def _shares(q, weight, c, here, step, n_classes, HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr, ACC: tl.constexpr):
    """b_c of a tile, 0 outside."""
    b = tl.load(q + c * step, mask=here, other=0.0).to(ACC)
    if SMOOTHING > 0:
        b = b * (1.0 - SMOOTHING) + tl.full((), SMOOTHING, ACC) / n_classes
    if HAS_WEIGHT:
        b *= tl.load(weight + c, mask=c < n_classes, other=0.0).to(ACC)
    return tl.where(here, b, 0.0)


@triton.jit
def soft(
    logits, target, weight, out, per_element, plan,
    sizes, logits_strides, target_strides, out_strides, per_element_strides, n_elements, n_classes,
    PURPOSE: tl.constexpr, REDUCTION: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr,
    KIND: tl.constexpr, ACC: tl.constexpr, DIMS: tl.constexpr, WIDE: tl.constexpr,
    ELEMENTS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """One launch. ``per_element`` holds the losses of a launch without reduction, or the incoming gradient of a backward, whose
    divisor is in ``plan``."""
    pid = tl.program_id(0)
    one = tl.full((), 1, tl.int64 if WIDE else tl.int32)
    step = one * logits_strides[DIMS]
    target_step = one * target_strides[DIMS]
    out_step = one * out_strides[DIMS]
    column = tl.arange(0, CLASSES)[None, :]
    total = tl.zeros([ELEMENTS], ACC)
    count = tl.zeros([ELEMENTS], ACC)
    factor = tl.full([ELEMENTS], 1.0, ACC)
    if PURPOSE != LOSS and REDUCTION != NONE:
        k = tl.load(per_element).to(ACC)
        if REDUCTION == MEAN:
            k = divide(k, tl.load(plan))
        factor *= k
    for start in range(pid * one * ELEMENTS, n_elements, tl.num_programs(0) * ELEMENTS):
        element = start + tl.arange(0, ELEMENTS)
        inside = element < n_elements
        x = (logits + offset_of(element, sizes, logits_strides, DIMS, WIDE))[:, None]
        q = (target + offset_of(element, sizes, target_strides, DIMS, WIDE))[:, None]
        top, leader, others = _leader(x, inside, step, n_classes, ELEMENTS, CLASSES, KIND, ACC)
        shift = shift_of(top, KIND)
        lead = distance(top, shift, KIND)
        power = exponential(lead, KIND)
        inverse = 1.0 / (others + power)
        likely = others < power
        # L - d_a.
        loss_of_leader = tl.where(
            likely, minus_log1m(tl.where(likely, others * inverse, 0.0), KIND), log_ratio(others + power, lead, KIND)
        )
        if PURPOSE != LOSS and REDUCTION == NONE:
            at = offset_of(element, sizes, per_element_strides, DIMS, WIDE)
            factor = tl.load(per_element + at, mask=inside, other=0.0).to(ACC)
        if PURPOSE == LOSS:
            loss = tl.zeros([ELEMENTS], ACC)
            for first in range(0, n_classes, CLASSES):
                c = first + column
                here = inside[:, None] & (c < n_classes)
                b = _shares(q, weight, c, here, target_step, n_classes, HAS_WEIGHT, SMOOTHING, ACC)
                d = distance(tl.load(x + c * step, mask=here, other=0.0).to(ACC), shift[:, None], KIND)
                share = b * (loss_of_leader[:, None] + natural(lead[:, None] - d, KIND))
                loss += tl.sum(tl.where(here, share, 0.0), 1)
            if REDUCTION == NONE:
                at = offset_of(element, sizes, per_element_strides, DIMS, WIDE)
                tl.store(per_element + at, loss.to(per_element.dtype.element_ty), mask=inside)
            total += loss
            count += tl.where(inside, 1.0, 0.0)
        else:
            o = (out + offset_of(element, sizes, out_strides, DIMS, WIDE))[:, None]
            rest = tl.zeros([ELEMENTS], ACC)
            own = tl.zeros([ELEMENTS], ACC)
            if PURPOSE == GRADIENT:
                for first in range(0, n_classes, CLASSES):
                    c = first + column
                    here = inside[:, None] & (c < n_classes)
                    b = _shares(q, weight, c, here, target_step, n_classes, HAS_WEIGHT, SMOOTHING, ACC)
                    leads = c == leader[:, None]
                    rest += tl.sum(tl.where(leads, 0.0, b), 1)
                    own += tl.sum(tl.where(leads, b, 0.0), 1)
            whole = rest + own
            at_leader = factor * (rest - whole * (others * inverse))
            ratio = whole * factor * inverse
            for first in range(0, n_classes, CLASSES):
                c = first + column
                here = inside[:, None] & (c < n_classes)
                v = tl.load(x + c * step, mask=here, other=0.0).to(ACC)
                if PURPOSE == GRADIENT:
                    b = _shares(q, weight, c, here, target_step, n_classes, HAS_WEIGHT, SMOOTHING, ACC)
                    g = ratio[:, None] * power_of(v, shift[:, None], KIND) - b * factor[:, None]
                    g = tl.where(c == leader[:, None], at_leader[:, None], g)
                else:
                    d = distance(v, shift[:, None], KIND)
                    g = (loss_of_leader[:, None] + natural(lead[:, None] - d, KIND)) * (
                        factor[:, None] * (1.0 - SMOOTHING)
                    )
                    if HAS_WEIGHT:
                        g *= tl.load(weight + c, mask=c < n_classes, other=0.0).to(ACC)
                tl.store(o + c * out_step, g.to(out.dtype.element_ty), mask=here)
    if PURPOSE == LOSS and REDUCTION != NONE:
        leave(plan, tl.sum(total, 0), tl.sum(count, 0), 0)
