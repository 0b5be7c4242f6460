"""The mean or sum of the cross-entropy of class indices, and its gradient, in one pass through the logits. On the CPU.

For numbers e_c in proportion to exp(x_c), target class t, weight w and k = incoming gradient / divisor, let s be the sum of e_c
over every class but the target. The loss of one element and its gradient are

    w_t log1p(s / e_t),    k w_t e_c / (s + e_t) for c != t,    -k w_t s / (s + e_t) for c = t,

and nothing cancels. Any factor common to the e_c of one element will do, so each block takes those that cost least:

* for 16-bit results 2^(x_c log2(e)), when s + e_t turns out to be neither large nor small;
* else, with the classes innermost, the softmax, which PyTorch makes in one go;
* with the classes outermost exp(x_c), on the same condition. It needs no maximum, and no difference is rounded;
* exp(x_c - max x) where the others overflowed or vanished.

Nothing is kept per element. Who needs the gradient for another incoming gradient makes it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from torch import Tensor

from numalign.ops import _layout
from numalign.ops._elements import IndexTargets, fixed_order_sum
from numalign.ops._layout import GROUP_ELEMENTS, SHORT_CLASS_AXIS, Walk, counting, element_shape, fits_one_chunk, zeros
from numalign.ops._reduction import MEAN, NONE

_LOG2_E = math.log2(math.e)
_NARROW = (torch.float16, torch.bfloat16)

# What S = s + e_t must lie between, and e_t be at least, for e_c made without a maximum. Then no sum has overflowed, quotients
# stay clear of the ends of fp32, and e_t is none of the subnormal numbers, which are rounded. Other e_c may vanish, as for
# x = -inf. To look at S takes less than to look at every logit.
#
# For 16-bit results powers of 2 take the place of exponentials, which cost more on AVX2. x log2(e) is rounded, so e_c is off by
# 1.22 u32 |x_c|, the unit of what follows. With x_c = log S + log p_c, -13.9 <= log S <= 27.8, C <= 2^20 and log C <= 13.9:
#
# * S is off by sum p_c |x_c|. This is convex in log S, so largest at an end: 27.8 at the upper one, and at the lower one 13.9 and
#   the entropy of p, 27.8 again.
# * So an entry of the gradient is off by 55.6, which is 68 u32 or 0.0083 ulp of fp16. Where |x_c| > 27.8 there is an excess of
#   (-log p_c - 13.9) p_c |k|, and the target's entry has the sum of those. Each is at most exp(-14.9), all are 0.4 u32 |k|.
# * The loss l is off by (1 - p_t) |x_t| <= 27.8 l, as x_t = log S - l, and by the sum of p_c |x_c| over c != t: 27.8 l at the
#   upper end; at the lower one (13.9 + log C - log(1 - p_t)) l, where |x_t| is half as large. For l from 2^-14 on, where the
#   subnormal fp16 end, it comes to 55.6 l again. In bf16 l = exp(-80) is off by 150 u32, 0.0023 ulp.
_LEAST, _MOST, _FAINT = 2.0**-20, 2.0**40, 2.0**-100

# What k w_t must lie above, and its reciprocal below, to be divided by such a sum.
_TINY = 2.0**-60


def covers(logits: Tensor, reduction: int, smoothing: float) -> bool:
    """Whether this module does it: not single losses, smoothed ones, classes in more than one block, or other devices."""
    return logits.is_cpu and smoothing == 0 and reduction != NONE and fits_one_chunk(logits)


def loss_and_gradient(
    logits: Tensor,
    target: Tensor,
    targets: IndexTargets,
    reduction: int,
    empty_is_zero: bool,
    incoming: float | None,
    out_dtype: torch.dtype,
) -> tuple[Tensor, float, Tensor | None]:
    """The loss in ``out_dtype``, the divisor of a mean, and the gradient unless ``incoming`` is None."""
    divisor = _total_weight(target, targets)
    if empty_is_zero and divisor == 0:
        divisor = 1.0
    divides_by = divisor if reduction == MEAN else 1.0
    factor = None if incoming is None else _quotient(incoming, divides_by)
    total, result = _pass(logits, target, targets, factor, out_dtype)
    return scalar(_quotient(total, divides_by), out_dtype), divisor, result


def gradient(
    grad: Tensor, logits: Tensor, target: Tensor, targets: IndexTargets, divisor: Tensor, reduction: int
) -> Tensor:
    """What :func:`loss_and_gradient` returns for the incoming gradient ``grad``, 0-D, in the type of the loss."""
    factor = _quotient(grad.item(), divisor.item() if reduction == MEAN else 1.0)
    result = _pass(logits, target, targets, factor, grad.dtype)[1]
    assert result is not None
    return result


def _pass(
    logits: Tensor, target: Tensor, targets: IndexTargets, factor: float | None, out_dtype: torch.dtype
) -> tuple[float, Tensor | None]:
    """The weighted sum of the losses, and the gradient for k = ``factor``, if there is one."""
    # Where no gradient is made its strides are wanted all the same: they decide the blocks, and with them the sum.
    result = torch.empty_like(logits) if factor is not None else torch.empty_like(logits, device="meta")
    amount = None if factor is None else _constant(factor, targets.dtype)
    divides_first = factor is None or _is_moderate(factor, targets.weight)
    direct = _powers_of_2 if logits.dtype in _NARROW and out_dtype in _NARROW else _exponentials
    moderate = True  # until a block is not, which is likely to hold for those that follow
    total = 0.0
    for axis, part, out, area, matrix, flat, indices in _blocks(
        logits, result, target, targets.dtype, amount is not None
    ):
        classes, weight_of, ignored = targets.read(indices)
        numbers = counting(classes.numel())
        a, b = (numbers, classes) if axis == 0 else (classes, numbers)
        place = torch.add(a, b, alpha=matrix.shape[1])
        sums = None
        if moderate and (axis == 0 or direct is _powers_of_2):
            sums = _sums(direct, axis, part, area, matrix, flat, place)
            moderate = sums is not None
        if sums is None and axis == 1:
            sums = _sums(_softmax, axis, part, area, matrix, flat, place)
        others, whole, loss = sums or _shifted_sums(axis, part, area, matrix, flat, place)
        if amount is not None:
            # The place of the target holds 0, and is to be -k w_t s / (s + e_t).
            flat.scatter_(0, place, others.neg_())
            k = _amounts(amount, weight_of, ignored)
            if divides_first:
                k = torch.div(k, whole, out=whole)
            else:
                matrix.div_(whole.unsqueeze(axis))
                k = k.expand_as(whole)
            matrix.mul_(k if axis == 0 else k.unsqueeze(1))
            if area is not out:
                out.copy_(area)
        if weight_of is not None:
            loss.mul_(weight_of)
        if ignored is not None:
            loss.masked_fill_(ignored, 0.0)
        total += fixed_order_sum(loss).item()
    return total, None if factor is None else result


def _blocks(
    logits: Tensor, result: Tensor, target: Tensor, dtype: torch.dtype, filled: bool
) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """The axis of the classes; logits, result, a work area, the latter as (C, n) or (n, C) and 1-D; the targets (n). Per block.

    The work area is the result itself, if that is to be ``filled`` in and its type and strides allow.
    """
    shape = logits.shape
    if (
        len(shape) > 1
        and (shape[0] == 1 or (len(shape) == 2 and shape[1] >= SHORT_CLASS_AXIS))
        and 0 < logits.numel() <= _layout.BLOCK_LOGITS
        and logits.is_contiguous()
        and target.is_contiguous()
    ):
        # One block. A walk would take a tenth of the time of a small input.
        axis = 1 if len(shape) == 2 else 0
        if filled and logits.dtype == dtype:
            yield axis, logits, result, result, *_views(result, axis), target.view(-1)
            return
        area, matrix, flat = _take_spare(shape, dtype, axis)
        yield axis, logits, result, area, matrix, flat, target.view(-1)
        if not area.is_inference():
            _spare[:] = [(area, matrix, flat)]
        return
    walk = Walk([logits, result], [target.reshape(element_shape(logits))], dtype, reduces=True)
    (buffer,) = walk.buffers
    for (part, out), (indices,) in walk:
        if filled and out.dtype == dtype and out.dim() == 2 and out.is_contiguous():
            yield walk.axis, part, out, out, out, out.view(-1), indices
        else:
            area, matrix = buffer.view(part.shape)
            yield walk.axis, part, out, area, matrix, matrix.view(-1), indices


# The work area of the last input of one block, with its views. Making it is a twentieth of the time of a small input. Who uses
# it takes it out: another thread, or a call from a finalizer, finds none and makes its own.
_spare: list[tuple[Tensor, Tensor, Tensor]] = []


def _take_spare(shape: torch.Size, dtype: torch.dtype, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """A work area of this shape, as it is, as a matrix and as 1-D."""
    try:
        spare = _spare.pop()
    except IndexError:
        spare = None
    if spare is not None and spare[0].shape == shape and spare[0].dtype == dtype:
        return spare
    area = torch.empty(shape, dtype=dtype, device="cpu")
    return area, *_views(area, axis)


def _views(area: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """A contiguous block as (C, n) or (n, C), and as 1-D."""
    return area if axis == 1 else area.view(area.shape[1], -1), area.view(-1)


# How to fill the work area from the logits, or from itself where it holds them, as it does if they are narrower.


def _powers_of_2(source: Tensor, area: Tensor) -> None:
    assert source is area
    # A tensor, as a number would have to be made into one.
    area.mul_(_constant(_LOG2_E, area.dtype)).exp2_()


def _exponentials(source: Tensor, area: Tensor) -> None:
    torch.exp(source, out=area)


def _softmax(source: Tensor, area: Tensor) -> None:
    torch.softmax(source, -1, out=area)


def _sums(
    fill: Callable[[Tensor, Tensor], None],
    axis: int,
    logits: Tensor,
    area: Tensor,
    matrix: Tensor,
    flat: Tensor,
    place: Tensor,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """s, s + e_t and the losses without their weights, (n) each, of one block. Leaves e_c in the work area, but 0 for the target.

    None where a number is too large or too small for the way in which ``fill`` makes the e_c.
    """
    fill(logits if logits.dtype == area.dtype and logits.is_contiguous() else area.copy_(logits), area)
    power = flat.index_select(0, place)
    if not power.min().item() >= _FAINT:
        return None
    flat.scatter_(0, place, zeros(place.numel(), area.dtype))
    others = torch.sum(matrix, axis)
    loss = torch.div(others, power).log1p_()
    whole = power.add_(others)
    if fill is not _softmax:
        low, high = torch.aminmax(whole)
        if not (low.item() >= _LEAST and high.item() <= _MOST):
            return None
    return others, whole, loss


def _shifted_sums(
    axis: int, logits: Tensor, area: Tensor, matrix: Tensor, flat: Tensor, place: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`_sums` returns, for e_c = exp(x_c - max x)."""
    area.copy_(logits)
    matrix.sub_(torch.amax(matrix, axis, keepdim=True))
    distance = flat.index_select(0, place)
    power = torch.exp(distance)
    area.exp_()
    flat.scatter_(0, place, zeros(place.numel(), area.dtype))
    others = torch.sum(matrix, axis)
    # log1p of what exceeds 1: see _index_loss.
    loss = (power - 1.0).add_(others).log1p_().sub_(distance)
    return others, power.add_(others), loss


def _amounts(factor: Tensor, weight_of: Tensor | None, ignored: Tensor | None) -> Tensor:
    """k w_t, (n) or 0-D, 0 where ignored."""
    if weight_of is not None:
        factor = factor * weight_of
    elif ignored is not None:
        factor = factor.expand(ignored.shape)
    return factor if ignored is None else factor.masked_fill(ignored, 0.0)


def _is_moderate(factor: float, weight: Tensor | None) -> bool:
    """Whether k w_t can be divided by the sum of the exponentials before it meets one of them."""
    size = abs(factor)
    if weight is None:
        return _TINY <= size <= 1.0 / _TINY
    weight = weight[weight != 0].abs()
    return weight.numel() == 0 or all(_TINY <= size * w.item() <= 1.0 / _TINY for w in torch.aminmax(weight))


def _total_weight(target: Tensor, targets: IndexTargets) -> float:
    """The sum of the weights of all elements, as the accumulate type has it."""
    if targets.all_count_once or target.numel() == 0:
        total = float(target.numel())
        if total <= 2**24:
            return total
    else:
        total = 0.0
        for piece in target.reshape(-1).split(GROUP_ELEMENTS):
            _, weight_of, _ = targets.read(piece)
            total += piece.numel() if weight_of is None else fixed_order_sum(weight_of).item()
    return scalar(total, targets.dtype).item()


def _quotient(a: float, b: float) -> float:
    """a / b as floating-point arithmetic has it, where Python refuses to divide by 0."""
    return a / b if b != 0 else float(torch.tensor(a, dtype=torch.float64, device="cpu") / b)


@lru_cache(maxsize=8)
def _constant(value: float, dtype: torch.dtype) -> Tensor:
    """As :func:`scalar`. Kept, as k is the same from step to step. Never written to."""
    return scalar(value, dtype)


def scalar(value: float, dtype: torch.dtype) -> Tensor:
    """0-D, rounded. What ``torch.scalar_tensor`` might find too large for the type goes by way of fp64."""
    if abs(value) <= 2.0**15:
        return torch.scalar_tensor(value, dtype=dtype, device="cpu")
    return torch.scalar_tensor(value, dtype=torch.float64, device="cpu").to(dtype)
