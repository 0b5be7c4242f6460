"""What surrounds the kernels of cross-entropy: what they are to expect, and the sums of what their programs leave behind.

``memory``, one a device, holds what past steps have shown: [incoming gradient, whether the last two were equal, whether every
target counted].

``plan``, one a call, holds [incoming gradient to expect or nan, whether the gradient that was made for it has the right divisor,
the divisor; weights of the targets, by program of :func:`prepare`; sums of losses and then of weights, by program of the loss].

All decisions are taken on the device: the host waits for none.
"""

from __future__ import annotations

import triton
import triton.language as tl

from numalign.ops.kernels.arithmetic import MEAN, add_compensated, as_float, divide, offset_of, read_target

# Targets that one program looks at, at a time; and programs that share the look at all. Every program of the loss adds up as many
# numbers afterwards.
BLOCK = 1024
MOST_PROGRAMS = 128
# What ``finish`` adds up at a time. With 4096 numbers it takes 5 us on an H200, with 1056 it takes 3.
FINISH_BLOCK = 1024
EXPECTED = tl.constexpr(0)
RIGHT = tl.constexpr(1)
DIVISOR = tl.constexpr(2)
HEADER = tl.constexpr(3)
NOT_COUNTED = tl.constexpr(-1.0)


@triton.jit(do_not_specialize=["ignore_index", "expected"])
def prepare(
    plan, memory, target, weight, sizes, target_strides, n_elements, n_classes, ignore_index, expected,
    HAS_WEIGHT: tl.constexpr, FROM_MEMORY: tl.constexpr, COUNTS: tl.constexpr,
    DIMS: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Copy what is to be expected into ``plan``; and weigh the targets, if all of them counting is not to be expected."""
    pid = tl.program_id(0)
    if pid == 0:
        if FROM_MEMORY:
            steady = tl.load(memory + 1) != 0
            tl.store(plan, tl.where(steady, tl.load(memory), float("nan")).to(ACC))
        else:
            tl.store(plan, expected)
    if COUNTS:
        if FROM_MEMORY and not HAS_WEIGHT:
            if tl.load(memory + 2) != 0:
                tl.store(plan + HEADER + pid, NOT_COUNTED)
                return
        total = tl.zeros([BLOCK], ACC)
        lost = tl.zeros([BLOCK], ACC)
        first = pid * BLOCK
        if WIDE:
            first = pid.to(tl.int64) * BLOCK
        for start in range(first, n_elements, PROGRAMS * BLOCK):
            element = start + tl.arange(0, BLOCK)
            inside = element < n_elements
            offset = offset_of(element, sizes, target_strides, DIMS, WIDE)
            _, w, _ = read_target(target, offset, inside, weight, n_classes, ignore_index, HAS_WEIGHT, ACC)
            total, lost = add_compensated(total, lost, w)
        tl.store(plan + HEADER + pid, tl.sum(total + lost, 0))


@triton.jit
def expected_divisor(plan, n_elements, EMPTY_IS_ZERO: tl.constexpr, ACC: tl.constexpr, PROGRAMS: tl.constexpr):
    """What a mean will divide by, from what :func:`prepare` left: the sum of the weights, or the number of elements."""
    parts = tl.load(plan + HEADER + tl.arange(0, PROGRAMS))
    counted = tl.sum((parts == NOT_COUNTED).to(tl.int32), 0) == 0
    divisor = tl.where(counted, tl.sum(parts, 0), as_float(n_elements, ACC))
    return divisor_of(divisor, EMPTY_IS_ZERO)


@triton.jit
def divisor_of(weights, EMPTY_IS_ZERO: tl.constexpr):
    """The sum of the weights, or 1 where that is 0 and an empty mean is to be 0."""
    return tl.where(weights == 0, 1.0, weights) if EMPTY_IS_ZERO else weights


@triton.jit
def leave(plan, loss_sum, weight_sum, PROGRAMS: tl.constexpr):
    """Put the sums of one program of a loss where :func:`finish` finds them."""
    sums = plan + HEADER + PROGRAMS + tl.program_id(0)
    tl.store(sums, loss_sum)
    tl.store(sums + tl.num_programs(0), weight_sum)


@triton.jit
def finish(
    plan, memory, loss, n_sums, n_elements,
    REDUCTION: tl.constexpr, HAS_WEIGHT: tl.constexpr, AHEAD: tl.constexpr, REMEMBERS: tl.constexpr,
    EMPTY_IS_ZERO: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Add up the sums of a loss; divide and round once.

    A launch of its own: as the last step of the loss it would take registers that the loss has a use for.
    """
    sums = plan + HEADER + PROGRAMS
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], ACC)
    weights = tl.zeros([BLOCK], ACC)
    lost = tl.zeros([BLOCK], ACC)
    lost_weights = tl.zeros([BLOCK], ACC)
    count = tl.zeros([BLOCK], tl.int64)
    for start in range(0, n_sums, BLOCK):
        inside = start + lane < n_sums
        total, lost = add_compensated(total, lost, tl.load(sums + start + lane, mask=inside, other=0.0))
        w = tl.load(sums + n_sums + start + lane, mask=inside, other=0.0)
        weights, lost_weights = add_compensated(weights, lost_weights, w)
        count += w.to(tl.int64)
    all_losses = tl.sum(total + lost, 0)
    by = tl.sum(weights + lost_weights, 0)
    counted = tl.sum(count, 0)
    if not HAS_WEIGHT:
        # An integer, as float sums of ones end at 2^24; unless a class out of range made it nan.
        by = tl.where(by == by, as_float(counted, ACC), by)
    by = divisor_of(by, EMPTY_IS_ZERO)
    if AHEAD:
        right = tl.full((), 1.0, ACC)
        if REDUCTION == MEAN:
            expected = expected_divisor(plan, n_elements, EMPTY_IS_ZERO, ACC, PROGRAMS)
            if HAS_WEIGHT:
                by = expected
            right = (by == expected).to(ACC)
            if REMEMBERS and not HAS_WEIGHT:
                tl.store(memory + 2, (counted == n_elements).to(tl.float32))
        tl.store(plan + RIGHT, right)
    if REDUCTION == MEAN:
        all_losses = divide(all_losses, by)
    tl.store(loss, all_losses.to(loss.dtype.element_ty))
    tl.store(plan + DIVISOR, by)


@triton.jit
def is_made(plan, grad):
    """Whether the forward made the gradient for this incoming one, with the right divisor."""
    return (grad == tl.load(plan + EXPECTED)) & (tl.load(plan + RIGHT) == 1)


@triton.jit
def remember(memory, grad):
    """An incoming gradient has come. Zero is not kept, as 0 and -0 are equal and the gradients they lead to are not."""
    grad = grad.to(tl.float32)
    if (grad != 0) & (tl.abs(grad) < float("inf")):
        tl.store(memory + 1, (grad == tl.load(memory)).to(tl.float32))
        tl.store(memory, grad)
