"""The mean or sum of the cross-entropy of class indices, and its gradient, in one pass through the logits. On the CPU.

For numbers e_c in proportion to exp(x_c), target class t, weight w and k = incoming gradient / divisor, let s be the sum of e_c
over every class but the target. The loss of one element and its gradient are

    w_t log1p(s / e_t),    k w_t e_c / (s + e_t) for c != t,    -k w_t s / (s + e_t) for c = t,

and nothing cancels. Any factor common to the e_c of one element will do, so each block takes those that cost least:

* for 16-bit results 2^(x_c log2(e)), when no logit is large;
* else, with the classes innermost, the softmax, which PyTorch makes in one go;
* with the classes outermost exp(x_c), when no logit is large. It needs no maximum, and no difference is rounded;
* exp(x_c - max x) where the others could overflow or vanish.

Nothing is kept per element. Who needs the gradient for another incoming gradient makes it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from numalign.ops import _layout
from numalign.ops._elements import IndexTargets, fixed_order_sum
from numalign.ops._layout import GROUP_ELEMENTS, SHORT_CLASS_AXIS, Walk, counting, element_shape, fits_one_chunk, zeros
from numalign.ops._reduction import MEAN, NONE

# Logits up to here have exponentials between 1e-13 and 1e13, whose sums and quotients stay clear of the ends of fp32. For
# 16-bit results powers of 2 take the place of exponentials, which cost twice as much on AVX2: x log2(e) is rounded, and p is off
# by 1.22 u32 |x| for each of the two logits that it depends on, 73 u32 or 0.009 ulp of fp16 in all.
_LARGE = 30.0
_LOG2_E = math.log2(math.e)
_NARROW = (torch.float16, torch.bfloat16)

# What a softmax must be at least for its logarithm: above the subnormal numbers, which are rounded.
_FAINT = 2.0**-100

# The same for k w_t that is to be divided by a sum of such exponentials. Its reciprocal is the largest.
_TINY = 2.0**-60


def covers(logits: Tensor, reduction: int, smoothing: float) -> bool:
    """Whether this module does it: not single losses, smoothed ones, classes in more than one block, or other devices."""
    return reduction != NONE and smoothing == 0 and logits.is_cpu and fits_one_chunk(logits)


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
    result = torch.empty_like(logits, device="meta" if factor is None else None)
    amount = None if factor is None else _constant(factor, targets.dtype)
    moderate = factor is None or _is_moderate(factor, targets.weight)
    power_of_2 = logits.dtype in _NARROW and out_dtype in _NARROW
    total = 0.0
    for axis, part, out, area, matrix, indices in _blocks(logits, result, target, targets.dtype, factor is not None):
        classes, weight_of, ignored = targets.read(indices)
        power, others, loss, flat, place = _powers(axis, part, area, matrix, classes, power_of_2=power_of_2)
        if amount is not None:
            # The place of the target holds 0, and is to be -k w_t s / (s + e_t).
            ratio = power.add_(others)
            flat.scatter_(0, place, others.neg_())
            k = _amounts(amount, weight_of, ignored)
            if moderate:
                torch.div(k, ratio, out=ratio)
            else:
                matrix.div_(ratio.unsqueeze(axis))
                ratio = k.expand_as(ratio)
            matrix.mul_(ratio if axis == 0 else ratio.unsqueeze(1))
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
) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """The axis of the classes; logits, result, a work area, and the latter as (C, n) or (n, C); the targets (n). Per block.

    The work area is the result itself, if that is to be ``filled`` in and its type and strides allow.
    """
    shape = logits.shape
    if (
        len(shape) > 1
        and (shape[0] == 1 or (len(shape) == 2 and shape[1] >= SHORT_CLASS_AXIS))
        and logits.numel() <= _layout.BLOCK_LOGITS
        and logits.is_contiguous()
        and target.is_contiguous()
        and logits.numel() > 0
    ):
        # One block. A walk would take a tenth of the time of a small input.
        area = result if filled and logits.dtype == dtype else torch.empty(shape, dtype=dtype)
        if len(shape) == 2:
            yield 1, logits, result, area, area, target
        else:
            yield 0, logits, result, area, area.view(shape[1], -1), target.view(-1)
        return
    walk = Walk([logits, result], [target.reshape(element_shape(logits))], dtype, reduces=True)
    (buffer,) = walk.buffers
    for (part, out), (indices,) in walk:
        if filled and out.dtype == dtype and out.dim() == 2 and out.is_contiguous():
            yield walk.axis, part, out, out, out, indices
        else:
            area, matrix = buffer.view(part.shape)
            yield walk.axis, part, out, area, matrix, indices


def _powers(
    axis: int, logits: Tensor, area: Tensor, matrix: Tensor, classes: Tensor, *, power_of_2: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """e_t, s and the losses without their weights, (n) each, of one block. Leaves e_c in the work area, but 0 for the target.

    Also returned are the work area as 1-D and the places of the targets in it.
    """
    n = classes.numel()
    flat, stride = matrix.view(-1), matrix.shape[1]
    place = (
        torch.add(counting(n), classes, alpha=stride) if axis == 0 else torch.add(classes, counting(n), alpha=stride)
    )
    contiguous = logits.is_contiguous()
    direct = contiguous and logits.dtype == area.dtype
    source = logits if direct else area.copy_(logits)
    power = None
    if axis == 0 or power_of_2:
        low, high = torch.aminmax(logits if contiguous else source)
        if low.item() >= -_LARGE and high.item() <= _LARGE:
            if power_of_2:
                area.mul_(_LOG2_E).exp2_()
            else:
                torch.exp(source, out=area)
            power = flat.index_select(0, place)
    if power is None and axis == 1:
        torch.softmax(source, -1, out=area)
        power = flat.index_select(0, place)
        if not power.amin().item() >= _FAINT:
            power = None
    if power is not None:
        flat.scatter_(0, place, zeros(n, area.dtype))
        others = torch.sum(matrix, axis)
        return power, others, torch.div(others, power).log1p_(), flat, place
    area.copy_(logits)
    matrix.sub_(torch.amax(matrix, axis, keepdim=True))
    distance = flat.index_select(0, place)
    power = torch.exp(distance)
    area.exp_()
    flat.scatter_(0, place, zeros(n, area.dtype))
    others = torch.sum(matrix, axis)
    # log1p of what exceeds 1: see _index_loss.
    return power, others, (power - 1.0).add_(others).log1p_().sub_(distance), flat, place


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
    return a / b if b != 0 else float(torch.tensor(a, dtype=torch.float64) / b)


@lru_cache(maxsize=4)
def _constant(value: float, dtype: torch.dtype) -> Tensor:
    """As :func:`scalar`. Kept, as from step to step it is the same k. Never written to."""
    return scalar(value, dtype)


def scalar(value: float, dtype: torch.dtype) -> Tensor:
    """0-D, rounded. What ``torch.full`` might find too large for the type goes by way of fp64."""
    if abs(value) <= 2.0**15:
        return torch.full((), value, dtype=dtype)
    return torch.full((), value, dtype=torch.float64).to(dtype)
