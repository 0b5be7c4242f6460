"""Cross-entropy of class indices for few classes that lie next to each other without gaps: channels-last images, short rows.

A lane takes as many neighbouring elements as make up whole vectors of 16 bytes, reads them as such, and takes them apart in
its registers. So it works alone on its elements, as in :mod:`strided`, and memory is still read and written in vectors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from numalign.ops.kernels.arithmetic import NONE, as_float, exponential, read_target
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
def _unpack(tile, LANES: tl.constexpr, VECTOR: tl.constexpr):
    """The columns of a (LANES, VECTOR) tile, a tuple."""
    if VECTOR == 2:
        columns = tl.split(tile)
    else:
        even, odd = tl.split(tl.reshape(tile, [LANES, VECTOR // 2, 2]))
        evens = _unpack(even, LANES, VECTOR // 2)
        odds = _unpack(odd, LANES, VECTOR // 2)
        columns = ()
        for i in tl.static_range(VECTOR // 2):
            columns = columns + (evens[i], odds[i])
    return columns


@triton.jit
def _pack(columns, FIRST: tl.constexpr, STEP: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr):
    """The (LANES, VECTOR) tile of every ``STEP``-th of the columns, from ``FIRST`` on."""
    if VECTOR == 2:
        tile = tl.join(columns[FIRST], columns[FIRST + STEP])
    else:
        even = _pack(columns, FIRST, 2 * STEP, LANES, VECTOR // 2)
        odd = _pack(columns, FIRST + STEP, 2 * STEP, LANES, VECTOR // 2)
        tile = tl.reshape(tl.join(even, odd), [LANES, VECTOR])
    return tile


@triton.jit(do_not_specialize=["ignore_index"], do_not_specialize_on_alignment=["per_element", "plan"])
def packed(
    logits, gradient, target, weight, class_weights, per_element, plan, memory,
    sizes, logits_strides, gradient_strides, target_strides, per_element_strides, n_elements, n_classes, ignore_index,
    PURPOSE: tl.constexpr, REDUCTION: tl.constexpr, EMPTY_IS_ZERO: tl.constexpr, REMEMBERS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr,
    DIMS: tl.constexpr, WIDE: tl.constexpr, PROGRAMS: tl.constexpr,
    C: tl.constexpr, VECTOR: tl.constexpr, EACH: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One launch, ``EACH`` elements of ``C`` classes a lane, ``VECTOR`` logits at a time. The rest as in :func:`strided`.

    One element axis, along which logits and gradient have stride C.
    """
    pid = tl.program_id(0)
    makes, k = incoming(
        plan, memory, per_element, n_elements, PURPOSE, REDUCTION, EMPTY_IS_ZERO, REMEMBERS, ACC, PROGRAMS
    )
    if PURPOSE == GRADIENT:
        if makes == 0:
            return
    one = tl.full((), 1, tl.int64 if WIDE else tl.int32)
    weight_sum = as_float(n_classes, ACC)
    if HAS_WEIGHT and SMOOTHING > 0:
        weight_sum = tl.load(class_weights).to(ACC)
    total = tl.zeros([LANES], ACC)
    weights = tl.zeros([LANES], ACC)
    end = n_elements * one * C
    for start in range(pid * one * LANES * EACH, n_elements, tl.num_programs(0) * LANES * EACH):
        lane = tl.arange(0, LANES) * EACH
        place = start * C + lane[:, None] * C + tl.arange(0, VECTOR)[None, :]
        x = ()
        for i in tl.static_range(EACH * C // VECTOR):
            here = place + i * VECTOR
            x = x + _unpack(tl.load(logits + here, mask=here < end, other=0.0), LANES, VECTOR)
        g = ()
        for i in tl.static_range(EACH):
            element = start + lane + i
            inside = element < n_elements
            t, w, counts = read_target(
                target, element * target_strides[0], inside, weight, n_classes, ignore_index, HAS_WEIGHT, ACC
            )
            v = ()
            for c in tl.static_range(C):
                v = v + (x[i * C + c].to(ACC),)
            others, d, smooth, e = in_registers(v, t, weight, C, HAS_WEIGHT, SMOOTHING, KIND, ACC)
            power = exponential(d, KIND)
            inverse = 1.0 / (others + power)
            if PURPOSE != GRADIENT:
                loss = element_loss(
                    others, power, d, inverse, smooth, w, counts, weight_sum, n_classes, SMOOTHING, KIND
                )
                if REDUCTION == NONE:
                    at = per_element + element * per_element_strides[0]
                    tl.store(at, loss.to(per_element.dtype.element_ty), mask=inside)
                total += loss
                weights += w
            if PURPOSE != LOSS:
                factor = k
                if PURPOSE == GRADIENT and REDUCTION == NONE:
                    factor = tl.load(per_element + element * per_element_strides[0], mask=inside, other=0.0).to(ACC)
                ratio, true, even = element_gradient(
                    others, power, inverse, factor, w, counts, weight_sum, n_classes, SMOOTHING
                )
                for c in tl.static_range(C):
                    value = ratio * e[c]
                    if SMOOTHING > 0:
                        value -= even * class_weight(weight, c, True, HAS_WEIGHT, ACC)
                    g = g + (tl.where(t == c, true, value).to(gradient.dtype.element_ty),)
        if PURPOSE != LOSS:
            if makes:
                for i in tl.static_range(EACH * C // VECTOR):
                    here = place + i * VECTOR
                    tl.store(gradient + here, _pack(g, i * VECTOR, 1, LANES, VECTOR), mask=here < end)
    if PURPOSE != GRADIENT and REDUCTION != NONE:
        leave(plan, tl.sum(total, 0), tl.sum(weights, 0), PROGRAMS)
