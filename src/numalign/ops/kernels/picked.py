"""Negative log-likelihood of class indices: one value an element is read, and one written back."""

from __future__ import annotations

import triton
import triton.language as tl

from numalign.ops.kernels.arithmetic import MEAN, NONE, divide, offset_of, read_target
from numalign.ops.kernels.plan import leave


@triton.jit(do_not_specialize=["ignore_index"])
def picked(
    log_probabilities, target, weight, losses, plan,
    sizes, strides, target_strides, loss_strides, n_elements, n_classes, ignore_index,
    REDUCTION: tl.constexpr, HAS_WEIGHT: tl.constexpr, ACC: tl.constexpr, DIMS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """-w_t x_t of each element into ``losses``, or their sum and that of the weights into ``plan``."""
    pid = tl.program_id(0)
    one = tl.full((), 1, tl.int64 if WIDE else tl.int32)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], ACC)
    weights = tl.zeros([BLOCK], ACC)
    for start in range(pid * one * BLOCK, n_elements, tl.num_programs(0) * BLOCK):
        inside = start + lane < n_elements
        at = offset_of(start + lane, sizes, target_strides, DIMS, WIDE)
        t, w, counts = read_target(target, at, inside, weight, n_classes, ignore_index, HAS_WEIGHT, ACC)
        x = log_probabilities + offset_of(start + lane, sizes, strides, DIMS, WIDE) + t * (one * strides[DIMS])
        loss = tl.where(counts, -tl.load(x, mask=inside, other=0.0).to(ACC) * w, 0.0)
        if REDUCTION == NONE:
            at = offset_of(start + lane, sizes, loss_strides, DIMS, WIDE)
            tl.store(losses + at, loss.to(losses.dtype.element_ty), mask=inside)
        total += loss
        weights += w
    if REDUCTION != NONE:
        leave(plan, tl.sum(total, 0), tl.sum(weights, 0), 0)


@triton.jit(do_not_specialize=["ignore_index"])
def put_back(
    grad, gradient, target, weight, divisor,
    sizes, strides, target_strides, grad_strides, n_elements, n_classes, ignore_index,
    REDUCTION: tl.constexpr, HAS_WEIGHT: tl.constexpr, ACC: tl.constexpr, DIMS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """-k w_t at the class of each element; the rest of ``gradient`` is zero already."""
    one = tl.full((), 1, tl.int64 if WIDE else tl.int32)
    lane = tl.arange(0, BLOCK)
    k = tl.zeros([BLOCK], ACC)
    if REDUCTION != NONE:
        incoming = tl.load(grad).to(ACC)
        if REDUCTION == MEAN:
            incoming = divide(incoming, tl.load(divisor))
        k += incoming
    for start in range(tl.program_id(0) * one * BLOCK, n_elements, tl.num_programs(0) * BLOCK):
        inside = start + lane < n_elements
        at = offset_of(start + lane, sizes, target_strides, DIMS, WIDE)
        t, w, counts = read_target(target, at, inside, weight, n_classes, ignore_index, HAS_WEIGHT, ACC)
        if REDUCTION == NONE:
            k = tl.load(grad + offset_of(start + lane, sizes, grad_strides, DIMS, WIDE), mask=inside, other=0.0).to(ACC)
        value = tl.where(counts, -k * w, 0.0).to(gradient.dtype.element_ty)
        out = gradient + offset_of(start + lane, sizes, strides, DIMS, WIDE) + t * (one * strides[DIMS])
        tl.store(out, value, mask=inside)
