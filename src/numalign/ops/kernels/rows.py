"""Cross-entropy of class indices where the classes of an element lie next to each other: language models, channels-last images.

The lanes of a program share the classes of a few rows, which stay in registers and are read once.
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
def rows(
    logits, gradient, target, weight, class_weights, per_element, plan, memory,
    sizes, logits_strides, gradient_strides, target_strides, per_element_strides, n_elements, n_classes, ignore_index,
    PURPOSE: tl.constexpr, REDUCTION: tl.constexpr, EMPTY_IS_ZERO: tl.constexpr, REMEMBERS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr,
    DIMS: tl.constexpr, WIDE: tl.constexpr, PROGRAMS: tl.constexpr,
    STAGES: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One launch; a row fits into ``TILE``. The other arguments are those of :func:`strided`."""
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
    column = tl.arange(0, TILE)[None, :]
    total = tl.zeros([ROWS], ACC)
    weights = tl.zeros([ROWS], ACC)
    for start in tl.range(pid * one * ROWS, n_elements, tl.num_programs(0) * ROWS, num_stages=STAGES):
        element = start + tl.arange(0, ROWS)
        inside = element < n_elements
        x = logits + offset_of(element, sizes, logits_strides, DIMS, WIDE)
        t, w, counts = read_target(
            target, offset_of(element, sizes, target_strides, DIMS, WIDE), inside, weight, n_classes, ignore_index,
            HAS_WEIGHT, ACC,
        )  # fmt: skip
        target_x = tl.load(x + t * step, mask=inside, other=0.0).to(ACC)
        x = x[:, None]
        smooth = tl.zeros([ROWS], ACC)
        here = inside[:, None] & (column < n_classes)
        v = tl.load(x + column * step, mask=here, other=-float("inf"), eviction_policy="evict_last").to(ACC)
        top = tl.max(v, 1)
        shift = shift_of(top, KIND)
        e = tl.where(column == t[:, None], 0.0, power_of(v, shift[:, None], KIND))
        others = tl.sum(e, 1)
        if SMOOTHING > 0:
            share = natural(distance(v, shift[:, None], KIND), KIND)
            if HAS_WEIGHT:
                share *= tl.load(weight + column, mask=column < n_classes, other=0.0).to(ACC)
            smooth = tl.sum(tl.where(here, share, 0.0), 1)
        d = distance(target_x, shift, KIND)
        power = exponential(d, KIND)
        inverse = 1.0 / (others + power)
        if PURPOSE != GRADIENT:
            loss = element_loss(others, power, d, inverse, smooth, w, counts, weight_sum, n_classes, SMOOTHING, KIND)
            if REDUCTION == NONE:
                at = offset_of(element, sizes, per_element_strides, DIMS, WIDE)
                tl.store(per_element + at, loss.to(per_element.dtype.element_ty), mask=inside)
            total += loss
            weights += w
        if PURPOSE != LOSS:
            factor = k
            if PURPOSE == GRADIENT and REDUCTION == NONE:
                at = offset_of(element, sizes, per_element_strides, DIMS, WIDE)
                factor = tl.load(per_element + at, mask=inside, other=0.0).to(ACC)
            ratio, true, even = element_gradient(
                others, power, inverse, factor, w, counts, weight_sum, n_classes, SMOOTHING
            )
            out = (gradient + offset_of(element, sizes, gradient_strides, DIMS, WIDE))[:, None]
            if makes:
                g = ratio[:, None] * e
                if SMOOTHING > 0:
                    if HAS_WEIGHT:
                        class_weight = tl.load(weight + column, mask=column < n_classes, other=0.0).to(ACC)
                        g -= even[:, None] * class_weight
                    else:
                        g -= even[:, None]
                g = tl.where(column == t[:, None], true[:, None], g)
                tl.store(
                    out + column * gradient_step,
                    g.to(gradient.dtype.element_ty),
                    mask=here,
                    eviction_policy="evict_first",
                )
    if PURPOSE != GRADIENT and REDUCTION != NONE:
        leave(plan, tl.sum(total, 0), tl.sum(weights, 0), PROGRAMS)
