"""Cross-entropy for class indices, block by block, on any device.

With logits x, target class t, weight w, smoothing e and C classes, the loss of one element is

    (1 - e) w_t (L - d_t) + e / C sum_c w_c (L - d_c),    d_c = x_c - max x,    L = log sum_c exp(d_c).

Two numbers per element are kept for the backward: ``top`` = max x and ``others`` = the sum of exp(d_c) over every class but
the target. They tell more than one log-sum-exp: exp(x - top) keeps its relative accuracy when logits are in the thousands
(a rounded log-sum-exp of 1000 is off by 3e-5), and nothing is subtracted from 1 when the target's probability nears 1.

The forward may be told to expect an incoming gradient, and then makes the gradient as well. Nothing is kept per element in that
case, and a backward with another incoming gradient does all of it once more. On the CPU
``_native`` does means and sums, where it can.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from numalign.ops import _native
from numalign.ops._elements import IndexTargets, TotalWeight, fixed_order_sum, sum_of_parts
from numalign.ops._layout import Place, Walk, element_shape, fits_one_chunk
from numalign.ops._path import kernels_for, or_kernel
from numalign.ops._reduction import NONE, mean_divisor, reduced, scale


@or_kernel("index_forward", logits=0)
def forward(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    empty_is_zero: bool,
    expected: float | None,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The loss in ``out_dtype``; ``top``, ``others`` and the divisor of a mean (0-D), unrounded; and a gradient or nothing.

    If :func:`makes_gradient`, the last is d loss / d logits for the incoming gradient ``expected``, bit by bit what
    :func:`backward` returns. If :func:`keeps_nothing`, ``top`` and ``others`` are empty.
    """
    if _native.covers(logits, reduction, smoothing):
        loss, total, gradient = _native.loss_and_gradient(
            logits, target, weight, reduction, ignore_index, empty_is_zero, expected, out_dtype
        )
        divisor = _native.scalar(total, torch.float32)
        return (
            loss,
            divisor.new_empty(0),
            divisor.new_empty(0),
            divisor,
            logits.new_empty(0) if gradient is None else gradient,
        )
    targets = IndexTargets(logits, target, weight, ignore_index, smoothing)
    shape = element_shape(logits)
    top = torch.empty(shape, dtype=targets.dtype, device=logits.device)
    others = torch.empty_like(top)
    losses = [torch.empty(shape, dtype=out_dtype, device=logits.device)] if reduction == NONE else []
    walk = Walk([logits], [target.reshape(shape), top, others, *losses], targets.dtype, reduces=True, grouped=True)
    weights = TotalWeight(logits, targets.dtype)
    sums: list[Tensor] = []
    for parts, (indices, m, o, *out) in walk:
        classes, weight_of, ignored = targets.read(indices)
        loss = _group_forward(walk, parts, classes, m, o, targets)
        if weight_of is not None and smoothing == 0:
            loss.mul_(weight_of)
        if ignored is not None:
            loss.masked_fill_(ignored, 0.0)
        for losses_here in out:
            losses_here.copy_(loss.view(losses_here.shape))
        if not out:
            sums.append(fixed_order_sum(loss))
            weights.add(loss.numel(), weight_of)
    divisor = mean_divisor(weights.total(), empty_is_zero=empty_is_zero)
    loss = losses[0] if losses else reduced(sum_of_parts(sums, logits, targets.dtype), divisor, reduction, out_dtype)
    if expected is None or not makes_gradient(logits, reduction, smoothing, expected):
        return loss, top, others, divisor, logits.new_empty(0)
    grad = torch.full((), expected, dtype=targets.dtype, device=logits.device)
    gradient = backward(grad, logits, target, weight, top, others, divisor, reduction, ignore_index, smoothing)
    return loss, divisor.new_empty(0), divisor.new_empty(0), divisor, gradient


def makes_gradient(logits: Tensor, reduction: int, smoothing: float, expected: float | None) -> bool:
    """Whether the forward makes the gradient: not for single losses, smoothed ones, or classes in more than one block."""
    if expected is None or reduction == NONE:
        return False
    return kernels_for(logits) is not None or (smoothing == 0 and fits_one_chunk(logits))


def keeps_nothing(logits: Tensor, reduction: int, smoothing: float, expected: float | None) -> bool:
    """Whether the backward is left to make everything again: on the CPU also where no gradient was made ahead."""
    return (
        kernels_for(logits) is not None
        or _native.covers(logits, reduction, smoothing)
        or makes_gradient(logits, reduction, smoothing, expected)
    )


def amounts(factor: Tensor, classes: Tensor, weight_of: Tensor | None, ignored: Tensor | None) -> tuple[Tensor, Tensor]:
    """k and k w_t, (n) both, 0 where ignored, of k that is (n) or 0-D."""
    factor = factor.expand(classes.shape)
    if ignored is not None:
        factor = factor.masked_fill(ignored, 0.0)
    return factor, factor if weight_of is None else factor * weight_of


def _flat(view: Tensor) -> Tensor:
    """The tensor itself as (n) if its strides allow, else new memory of its size."""
    return view.view(-1) if view.is_contiguous() else view.new_empty(view.numel())


def _group_forward(
    walk: Walk,
    by_class: Sequence[Tensor],
    classes: Tensor,
    top_out: Tensor,
    others_out: Tensor,
    targets: IndexTargets,
) -> Tensor:
    """Fills in ``top`` and ``others``; returns the losses (n), without the weights unless there is smoothing."""
    top, others = _flat(top_out), _flat(others_out)
    distance = torch.empty_like(top)
    smooth = torch.zeros_like(top) if targets.smoothing > 0 else None
    per_element = [classes, top, others, distance, *([smooth] if smooth is not None else [])]
    block_forward = _block_forward if walk.whole else _split_forward
    for (logits,), values in walk.blocks(by_class, per_element):
        block_forward(walk, logits, *values, weight=targets.weight)
    # log1p of what exceeds 1 is exact to the last digits in both regimes. Where the target is the maximum, distance is 0
    # and the argument is others itself. Where it is not, others >= 1 and all terms are non-negative.
    log_sum = torch.exp(distance).sub_(1.0).add_(others).log1p_()
    loss = torch.sub(log_sum, distance, out=distance)
    if smooth is not None:
        if targets.weight is not None:
            loss.mul_(targets.weight.index_select(0, classes))
        spread = log_sum.mul_(targets.weight_sum()).sub_(smooth).mul_(targets.smoothing / targets.n_classes)
        loss.mul_(1.0 - targets.smoothing).add_(spread)
    for view, filled in ((top_out, top), (others_out, others)):
        if not view.is_contiguous():
            view.copy_(filled.view(view.shape))
    return loss


def _block_forward(
    walk: Walk,
    logits: Tensor,
    classes: Tensor,
    top: Tensor,
    others: Tensor,
    distance: Tensor,
    smooth: Tensor | None = None,
    *,
    weight: Tensor | None,
) -> Place:
    """Fill in ``top``, ``others``, the target's d_t and sum_c w_c d_c, each (n), for a block with all its classes.

    Leaves exp(d_c) in the buffer, but 0 for the target, whose place is returned.
    """
    axis, (buffer,) = walk.axis, walk.buffers
    shifted = buffer.load(logits)
    torch.amax(shifted, axis, out=top)
    shifted.sub_(walk.across(top))
    if smooth is not None:
        torch.sum(shifted if weight is None else shifted * walk.along(weight), axis, out=smooth)
    place = buffer.locate(shifted, classes, walk.chunks[0], whole=True)
    _distance(walk, logits, classes, top, place, out=distance)
    # The target leaves the sum after the exponential: exp(-inf) before it would do as well, but takes a slow path.
    shifted.exp_()
    place.put()
    torch.sum(shifted, axis, out=others)
    return place


def _distance(walk: Walk, logits: Tensor, classes: Tensor, top: Tensor, place: Place, *, out: Tensor) -> None:
    """d_t, (n), of a block with all its classes, whose ``place`` in the buffer holds it as well.

    Read from the logits where their strides allow. To read some of the buffer moves its lines between the cores, and the
    exponential that follows takes up to twice as long.
    """
    values = place.take_from(logits) if logits.is_contiguous() else walk.of_class(logits, classes)
    if values is None:
        place.take_into(out)
    else:
        torch.sub(values, top, out=out)


def _split_forward(
    walk: Walk,
    logits: Tensor,
    classes: Tensor,
    top: Tensor,
    others: Tensor,
    distance: Tensor,
    smooth: Tensor | None = None,
    *,
    weight: Tensor | None,
) -> None:
    """As :func:`_block_forward`, for more classes than a block holds: once for the maximum, once for the sums."""
    axis, (buffer,) = walk.axis, walk.buffers
    top.fill_(-torch.inf)
    for chunk in walk.chunks:
        torch.maximum(top, torch.amax(buffer.load(walk.chunk_of(logits, chunk)), axis), out=top)
    others.zero_()
    for chunk in walk.chunks:
        shifted = buffer.load(walk.chunk_of(logits, chunk)).sub_(walk.across(top))
        if smooth is not None:
            smooth.add_(torch.sum(shifted if weight is None else shifted * walk.along(weight[chunk]), axis))
        place = buffer.locate(shifted, classes, chunk, whole=False)
        place.take_into(distance)
        shifted.exp_()
        place.put()
        others.add_(torch.sum(shifted, axis))


# Gradient. With p_c = exp(d_c) / S, S = sum_c exp(d_c) = others + exp(d_t), and k = incoming gradient / divisor:
#
#   d loss / d x_j = k ( A p_j - (1 - e) w_t [j = t] - (e / C) w_j ),    A = (1 - e) w_t + (e / C) sum_c w_c.
#
# For the target class the first two terms cancel as p_t -> 1. Written with p_t = 1 - others / S they do not:
#
#   d loss / d x_t = k ( -(1 - e) w_t others / S + (e / C) (p_t sum_c w_c - w_t) ).


@or_kernel("index_backward", logits=1)
def backward(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    top: Tensor,
    others: Tensor,
    divisor: Tensor,
    reduction: int,
    ignore_index: int,
    smoothing: float,
) -> Tensor:
    """d loss / d logits, in the type of the logits."""
    if _native.covers(logits, reduction, smoothing):
        return _native.gradient(grad, logits, target, weight, divisor, reduction, ignore_index)
    targets = IndexTargets(logits, target, weight, ignore_index, smoothing)
    if top.numel() != target.numel():
        options = (reduction, ignore_index, smoothing, False, None, targets.dtype)
        _, top, others, _, _ = forward(logits, target, weight, *options)
    shape = element_shape(logits)
    result = torch.empty_like(logits)
    factor = scale(grad, divisor, reduction)
    per_element = [target.reshape(shape), top, others, *([factor.reshape(shape)] if reduction == NONE else [])]
    walk = Walk([logits, result], per_element, targets.dtype, reduces=False, grouped=True)
    for by_class, (indices, m, o, *k) in walk:
        classes, weight_of, ignored = targets.read(indices)
        factor_here, amount = amounts(k[0].reshape(-1) if k else factor, classes, weight_of, ignored)
        values = [classes, m.reshape(-1), o.reshape(-1), factor_here, amount]
        for (part, out), block in walk.blocks(by_class, values):
            _block_backward(walk, part, out, *block, targets=targets)
    return result


def _block_backward(
    walk: Walk,
    logits: Tensor,
    out: Tensor,
    classes: Tensor,
    top: Tensor,
    others: Tensor,
    factor: Tensor,
    amount: Tensor,
    *,
    targets: IndexTargets,
) -> None:
    """The gradient of one block, from k (``factor``) and k w_t (``amount``), both 0 where ignored, into ``out``."""
    (buffer,) = walk.buffers
    power = None if walk.whole else _target_power(walk, logits, classes, top)
    for chunk in walk.chunks:
        grad = buffer.load(walk.chunk_of(logits, chunk)).sub_(walk.across(top))
        place = buffer.locate(grad, classes, chunk, whole=walk.whole)
        if power is None:
            power = torch.empty_like(top)
            _distance(walk, logits, classes, top, place, out=power)
            power.exp_()
        grad.exp_()
        piece = walk.chunk_of(out, chunk)
        if targets.smoothing == 0:
            _finish_gradient(walk, place, piece, amount, power, others)
        else:
            _finish_smooth_gradient(walk, place, piece, factor, amount, power, others, classes, chunk, targets)


def _finish_gradient(walk: Walk, place: Place, out: Tensor, amount: Tensor, power: Tensor, others: Tensor) -> None:
    """The gradient of a piece of the class axis into ``out``, from exp(d_c) in the buffer, exp(d_t) in ``power``, and k w_t."""
    (buffer,) = walk.buffers
    ratio = power + others
    torch.div(amount, ratio, out=ratio)
    buffer.matrix(out.shape).mul_(walk.across(ratio))
    place.put(ratio.mul_(others).neg_())
    buffer.store(out)


def _finish_smooth_gradient(
    walk: Walk,
    place: Place,
    out: Tensor,
    factor: Tensor,
    amount: Tensor,
    power: Tensor,
    others: Tensor,
    classes: Tensor,
    chunk: slice,
    targets: IndexTargets,
) -> None:
    """As :func:`_finish_gradient`, with the smoothing, from k (``factor``) as well."""
    (buffer,) = walk.buffers
    grad, total = buffer.matrix(out.shape), power + others
    even = factor * (targets.smoothing / targets.n_classes)
    amount = amount * (1.0 - targets.smoothing)
    grad.mul_(walk.across((amount + even * targets.weight_sum()) / total))
    every = walk.across(even)
    grad.sub_(every if targets.weight is None else every * walk.along(targets.weight[chunk]))
    excess = power / total * targets.weight_sum()
    excess.sub_(1.0 if targets.weight is None else targets.weight.index_select(0, classes))
    place.put((amount / total).mul_(others).neg_().addcmul_(even, excess))
    buffer.store(out)


def _target_power(walk: Walk, logits: Tensor, classes: Tensor, top: Tensor) -> Tensor:
    """exp(d_t), (n), when the classes do not fit into one block."""
    (buffer,) = walk.buffers
    distance = torch.empty_like(top)
    for chunk in walk.chunks:
        values = buffer.load(walk.chunk_of(logits, chunk))
        buffer.locate(values, classes, chunk, whole=False).take_into(distance)
    return distance.sub_(top).exp_()
