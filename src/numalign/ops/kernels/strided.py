"""Cross-entropy of class indices where neighbouring elements lie next to each other: images, volumes.

A program takes a block of elements, a few a lane, and walks through their classes: nothing is reduced across lanes. Up to
:data:`RESIDENT_CLASSES` logits of an element stay in registers and are read once. More are read twice, the second time
backwards, so that what was read last is still in the cache.
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
from numalign.ops.kernels.index_loss import (
    GRADIENT,
    LOSS,
    class_weight,
    element_gradient,
    element_loss,
    in_registers,
    incoming,
)
from numalign.ops.kernels.plan import leave


@triton.jit
def _load(pointer, inside, ACC: tl.constexpr, EVICT: tl.constexpr):
    return tl.load(pointer, mask=inside, other=-float("inf"), eviction_policy=EVICT).to(ACC)


@triton.jit
def _store(pointer, value, inside):
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=inside, eviction_policy="evict_first")


@triton.jit
def _first_pass(x, step, inside, t, weight, n_classes, SMOOTHING: tl.constexpr, HAS_WEIGHT: tl.constexpr,
                UNROLL: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """The largest logit, the sum of exp(d_c) over every class but the target, sum_c w_c d_c, and x_t."""
    top = tl.full(t.shape, -float("inf"), ACC)
    others = tl.zeros(t.shape, ACC)
    target_x = tl.zeros(t.shape, ACC)
    for first in range(0, n_classes, UNROLL):
        v = ()
        new = top
        for j in tl.static_range(UNROLL):
            v = v + (_load(x + (first + j) * step, inside & (first + j < n_classes), ACC, "evict_last"),)
            new = tl.maximum(new, v[j])
        shift = shift_of(new, KIND)
        others *= power_of(top, shift, KIND)
        for j in tl.static_range(UNROLL):
            target_x = tl.where(t == first + j, v[j], target_x)
            others += tl.where(t == first + j, 0.0, power_of(v[j], shift, KIND))
        top = new
    smooth = tl.zeros(t.shape, ACC)
    if SMOOTHING > 0:
        for c in range(n_classes):
            d = distance(_load(x + c * step, inside, ACC, "evict_last"), shift_of(top, KIND), KIND)
            smooth += natural(d, KIND) * class_weight(weight, c, True, HAS_WEIGHT, ACC)
    return top, others, smooth, target_x


@triton.jit(do_not_specialize=["ignore_index"], do_not_specialize_on_alignment=["per_element", "plan"])
def strided(
    logits, gradient, target, weight, class_weights, per_element, plan, memory,
    sizes, logits_strides, gradient_strides, target_strides, per_element_strides, n_elements, n_classes, ignore_index,
    PURPOSE: tl.constexpr, REDUCTION: tl.constexpr, EMPTY_IS_ZERO: tl.constexpr, REMEMBERS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr,
    DIMS: tl.constexpr, WIDE: tl.constexpr, PROGRAMS: tl.constexpr,
    C: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One launch. ``C`` is the number of classes if their logits are to stay in registers, else 0.

    Strides are those of the element axes, outermost first, and then that of the class axis, if the tensor has one.
    ``per_element`` holds the losses of a launch without reduction, or for a gradient the incoming one.
    """
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
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], ACC)
    weights = tl.zeros([BLOCK], ACC)
    for start in range(pid * one * BLOCK, n_elements, tl.num_programs(0) * BLOCK):
        inside = start + lane < n_elements
        x = logits + offset_of(start + lane, sizes, logits_strides, DIMS, WIDE)
        t, w, counts = read_target(
            target, offset_of(start + lane, sizes, target_strides, DIMS, WIDE), inside, weight, n_classes, ignore_index,
            HAS_WEIGHT, ACC,
        )  # fmt: skip
        if C > 0:
            v = ()
            for c in tl.static_range(C):
                v = v + (_load(x + c * step, inside, ACC, "evict_first"),)
            others, d, smooth, e = in_registers(v, t, weight, C, HAS_WEIGHT, SMOOTHING, KIND, ACC)
        else:
            top, others, smooth, target_x = _first_pass(
                x, step, inside, t, weight, n_classes, SMOOTHING, HAS_WEIGHT, UNROLL, KIND, ACC
            )
            shift = shift_of(top, KIND)
            d = distance(target_x, shift, KIND)
        power = exponential(d, KIND)
        inverse = 1.0 / (others + power)
        if PURPOSE != GRADIENT:
            loss = element_loss(others, power, d, inverse, smooth, w, counts, weight_sum, n_classes, SMOOTHING, KIND)
            if REDUCTION == NONE:
                at = offset_of(start + lane, sizes, per_element_strides, DIMS, WIDE)
                tl.store(per_element + at, loss.to(per_element.dtype.element_ty), mask=inside)
            total += loss
            weights += w
        if PURPOSE != LOSS:
            factor = k
            if PURPOSE == GRADIENT and REDUCTION == NONE:
                at = offset_of(start + lane, sizes, per_element_strides, DIMS, WIDE)
                factor = tl.load(per_element + at, mask=inside, other=0.0).to(ACC)
            ratio, true, even = element_gradient(
                others, power, inverse, factor, w, counts, weight_sum, n_classes, SMOOTHING
            )
            out = gradient + offset_of(start + lane, sizes, gradient_strides, DIMS, WIDE)
            if makes:
                if C > 0:
                    for c in tl.static_range(C):
                        g = ratio * e[c]
                        if SMOOTHING > 0:
                            g -= even * class_weight(weight, c, True, HAS_WEIGHT, ACC)
                        g = tl.where(t == c, true, g)
                        tl.store(
                            out + c * gradient_step,
                            g.to(gradient.dtype.element_ty),
                            mask=inside,
                            eviction_policy="evict_first",
                        )
                else:
                    for back in range(0, n_classes, UNROLL):
                        chunk = (n_classes - 1) // UNROLL * UNROLL - back
                        again = ()
                        for j in tl.static_range(UNROLL):
                            here = inside & (chunk + j < n_classes)
                            again = again + (_load(x + (chunk + j) * step, here, ACC, "evict_first"),)
                        for j in tl.static_range(UNROLL):
                            c = chunk + j
                            here = inside & (c < n_classes)
                            g = ratio * power_of(again[j], shift, KIND)
                            if SMOOTHING > 0:
                                g -= even * class_weight(weight, c, c < n_classes, HAS_WEIGHT, ACC)
                            g = tl.where(t == c, true, g)
                            tl.store(
                                out + c * gradient_step,
                                g.to(gradient.dtype.element_ty),
                                mask=here,
                                eviction_policy="evict_first",
                            )
    if PURPOSE != GRADIENT and REDUCTION != NONE:
        leave(plan, tl.sum(total, 0), tl.sum(weights, 0), PROGRAMS)
