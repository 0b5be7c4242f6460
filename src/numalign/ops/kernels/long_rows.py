"""Cross-entropy of class indices for rows of many classes that lie next to each other: language models.

A program takes one row at a time. Its lanes each keep a maximum and a sum of their own, of every eighth class or so, which
meet at the end of the row only. The row is read twice, the second time backwards, so that what was read last is still in the
cache; the gradient is written past it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from numalign.ops.kernels.arithmetic import (
    NONE,
    as_float,
    distance,
    exponential,
    natural,
    offset_of,
    power_of,
    read_target,
    shift_of,
)
from numalign.ops.kernels.index_loss import GRADIENT, LOSS, element_gradient, element_loss, incoming
from numalign.ops.kernels.plan import leave


@triton.jit(do_not_specialize=["ignore_index"], do_not_specialize_on_alignment=["per_element", "plan"])
def long_rows(
    logits, gradient, target, weight, class_weights, per_element, plan, memory,
    sizes, logits_strides, gradient_strides, target_strides, per_element_strides, n_elements, n_classes, ignore_index,
    PURPOSE: tl.constexpr, REDUCTION: tl.constexpr, EMPTY_IS_ZERO: tl.constexpr, REMEMBERS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr,
    DIMS: tl.constexpr, WIDE: tl.constexpr, PROGRAMS: tl.constexpr,
    SLOTS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """One launch; ``SLOTS`` x ``VECTOR`` classes at a time. The other arguments are those of :func:`strided`."""
    pid = tl.program_id(0)
    makes, k = incoming(
        plan, memory, per_element, n_elements, PURPOSE, REDUCTION, EMPTY_IS_ZERO, REMEMBERS, ACC, PROGRAMS
    )
    if PURPOSE == GRADIENT:
        if makes == 0:
            return
    one = tl.full((), 1, tl.int64 if WIDE else tl.int32)
    step = one * logits_strides[DIMS]
    gradient_step = one * gradient_strides[DIMS]
    weight_sum = as_float(n_classes, ACC)
    if HAS_WEIGHT and SMOOTHING > 0:
        weight_sum = tl.load(class_weights).to(ACC)
    TILE: tl.constexpr = SLOTS * VECTOR
    column = tl.arange(0, SLOTS)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    total = tl.zeros((), ACC)
    weights = tl.zeros((), ACC)
    for element in range(pid * one, n_elements, tl.num_programs(0)):
        x = logits + offset_of(element, sizes, logits_strides, DIMS, WIDE)
        t, w, counts = read_target(
            target, offset_of(element, sizes, target_strides, DIMS, WIDE), True, weight, n_classes, ignore_index,
            HAS_WEIGHT, ACC,
        )  # fmt: skip
        target_x = tl.load(x + t * step).to(ACC)
        tops = tl.full([SLOTS], -float("inf"), ACC)
        sums = tl.zeros([SLOTS], ACC)
        for first in range(0, n_classes, TILE):
            c = first + column
            v = tl.load(x + c * step, mask=c < n_classes, other=-float("inf"), eviction_policy="evict_last").to(ACC)
            new = tl.maximum(tops, tl.max(v, 1))
            shift = shift_of(new, KIND)
            e = power_of(v, shift[:, None], KIND)
            sums *= power_of(tops, shift, KIND)
            sums += tl.sum(tl.where(c == t, 0.0, e), 1)
            tops = new
        top = tl.max(tops, 0)
        shift = shift_of(top, KIND)
        others = tl.sum(sums * power_of(tops, shift, KIND), 0)
        smooth = tl.zeros((), ACC)
        if SMOOTHING > 0:
            shares = tl.zeros([SLOTS], ACC)
            for first in range(0, n_classes, TILE):
                c = first + column
                v = tl.load(x + c * step, mask=c < n_classes, other=0.0).to(ACC)
                share = natural(distance(v, shift, KIND), KIND)
                if HAS_WEIGHT:
                    share *= tl.load(weight + c, mask=c < n_classes, other=0.0).to(ACC)
                shares += tl.sum(tl.where(c < n_classes, share, 0.0), 1)
            smooth = tl.sum(shares, 0)
        d = distance(target_x, shift, KIND)
        power = exponential(d, KIND)
        inverse = 1.0 / (others + power)
        if PURPOSE != GRADIENT:
            loss = element_loss(others, power, d, inverse, smooth, w, counts, weight_sum, n_classes, SMOOTHING, KIND)
            if REDUCTION == NONE:
                at = offset_of(element, sizes, per_element_strides, DIMS, WIDE)
                tl.store(per_element + at, loss.to(per_element.dtype.element_ty))
            total += loss
            weights += w
        if PURPOSE != LOSS:
            factor = k
            if PURPOSE == GRADIENT and REDUCTION == NONE:
                factor = tl.load(per_element + offset_of(element, sizes, per_element_strides, DIMS, WIDE)).to(ACC)
            ratio, true, even = element_gradient(
                others, power, inverse, factor, w, counts, weight_sum, n_classes, SMOOTHING
            )
            out = gradient + offset_of(element, sizes, gradient_strides, DIMS, WIDE)
            if makes:
                for back in range(0, n_classes, TILE):
                    c = (n_classes - 1) // TILE * TILE - back + column
                    here = c < n_classes
                    v = tl.load(x + c * step, mask=here, other=-float("inf"), eviction_policy="evict_first").to(ACC)
                    g = ratio * power_of(v, shift, KIND)
                    if SMOOTHING > 0:
                        if HAS_WEIGHT:
                            g -= even * tl.load(weight + c, mask=here, other=0.0).to(ACC)
                        else:
                            g -= even
                    g = tl.where(c == t, true, g).to(gradient.dtype.element_ty)
                    tl.store(out + c * gradient_step, g, mask=here, eviction_policy="evict_first")
    if PURPOSE != GRADIENT and REDUCTION != NONE:
        leave(plan, total, weights, PROGRAMS)
