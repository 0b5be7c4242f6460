"""Cross-entropy for class indices, block by block, on any device.

With logits x, target class t, weight w, smoothing e and C classes, the loss of one element is

    (1 - e) w_t (L - d_t) + e / C sum_c w_c (L - d_c),    d_c = x_c - max x,    L = log sum_c exp(d_c).

Two numbers per element are kept for the backward: ``top`` = max x and ``others`` = the sum of exp(d_c) over every class but
the target. They tell more than one log-sum-exp: exp(x - top) keeps its relative accuracy when logits are in the thousands
(a rounded log-sum-exp of 1000 is off by 3e-5), and nothing is subtracted from 1 when the target's probability nears 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from numalign.ops._elements import (
    TotalWeight,
    accumulate_type,
    element_weights,
    fixed_order_sum,
    read_classes,
    sum_of_parts,
)
from numalign.ops._layout import Walk, class_axis, element_shape, fits_one_block
from numalign.ops._reduction import NONE, mean_divisor, reduced, scale


class IndexTargets:
    """How class indices, their weights and the smoothing are to be read; the same for forward and backward."""

    def __init__(
        self, logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float
    ) -> None:
        self.n_classes: int = logits.shape[class_axis(logits)]
        self.dtype = accumulate_type(logits.dtype)
        self.weight = None if weight is None else weight.to(self.dtype).contiguous()  # (C)
        self.smoothing = smoothing
        self._ignore_index = ignore_index
        self._shapes = (logits.shape, target.shape)

    def read(self, target: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Classes (n), weights (n) or None, and a mask (n) or None of ignored elements, of one block of targets."""
        classes, ignored, astray = read_classes(target, self.n_classes, self._ignore_index, self._shapes)
        return classes, element_weights(self.weight, classes, ignored, astray, self.dtype), ignored

    def weight_sum(self) -> float | Tensor:
        """The sum of the weights of all classes."""
        return float(self.n_classes) if self.weight is None else fixed_order_sum(self.weight)


def forward(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    empty_is_zero: bool,
    keep_powers: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The loss, ``top``, ``others``, the divisor of a mean (0-D) and ``powers``. The first in ``out_dtype``, the rest unrounded.

    ``powers`` holds the exponentials of a small input (see :func:`powers_size`) if they are to be kept, else nothing.
    """
    targets = IndexTargets(logits, target, weight, ignore_index, smoothing)
    shape = element_shape(logits)
    top = torch.empty(shape, dtype=targets.dtype, device=logits.device)
    others = torch.empty(shape, dtype=targets.dtype, device=logits.device)
    losses = [torch.empty(shape, dtype=out_dtype, device=logits.device)] if reduction == NONE else []
    walk = Walk([logits], [target.reshape(shape), top, others, *losses], targets.dtype, reduces=True, grouped=True)
    keep = powers_size(logits, keep_powers) > 0
    sums: list[Tensor] = []
    weights = TotalWeight(logits, targets.dtype)
    for (part,), (indices, m, o, *out) in walk:
        classes, weight_of, ignored = targets.read(indices)
        loss = _group_forward(walk, part, classes, m, o, targets, keep=keep)
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
    total = sum_of_parts(sums, logits, targets.dtype)
    result = losses[0] if losses else reduced(total, divisor, reduction, out_dtype)
    powers = walk.buffers[0].memory if keep else torch.empty(0, dtype=targets.dtype, device=logits.device)
    return result, top, others, divisor, powers


def powers_size(logits: Tensor, keep_powers: bool) -> int:
    """How many exponentials the forward keeps: all that fit into the work area of one block, or none.

    Small inputs are bound by the number of operators that are started, and the backward then needs half of them.
    """
    return logits.numel() if keep_powers and fits_one_block(logits) else 0


def _flat(view: Tensor) -> Tensor:
    """The tensor itself as (n) if its strides allow, else new memory of its size."""
    return view.view(-1) if view.is_contiguous() else view.new_empty(view.numel())


def _group_forward(
    walk: Walk,
    logits: Tensor,
    classes: Tensor,
    top_out: Tensor,
    others_out: Tensor,
    targets: IndexTargets,
    *,
    keep: bool,
) -> Tensor:
    """Fills in ``top`` and ``others``; returns the losses (n), without the weights unless there is smoothing."""
    top, others = _flat(top_out), _flat(others_out)
    distance = torch.empty_like(top)
    smooth = torch.zeros_like(top) if targets.smoothing > 0 else None
    per_element = [classes, top, others, distance, *([smooth] if smooth is not None else [])]
    block_forward = _block_forward if walk.whole else _split_forward
    for (part,), values in walk.blocks([logits], per_element):
        block_forward(walk, part, *values, weight=targets.weight)
    target_power = torch.exp(distance)
    if keep:
        (buffer,) = walk.buffers
        buffer.locate(buffer.matrix(logits.shape), classes, walk.chunks[0], whole=True).put(target_power)
    # log1p of what exceeds 1 is exact to the last digits in both regimes. Where the target is the maximum, distance is 0
    # and the argument is others itself. Where it is not, others >= 1 and all terms are non-negative.
    log_sum = target_power.sub_(1.0).add_(others).log1p_()
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
) -> None:
    """Fill in ``top``, ``others``, the target's d_t and sum_c w_c d_c, each (n), for a block with all its classes."""
    axis, (buffer,) = walk.axis, walk.buffers
    shifted = buffer.load(logits)
    torch.amax(shifted, axis, out=top)
    shifted.sub_(walk.across(top))
    if smooth is not None:
        torch.sum(shifted if weight is None else shifted * walk.along(weight), axis, out=smooth)
    place = buffer.locate(shifted, classes, walk.chunks[0], whole=True)
    place.take_into(distance)
    # The target leaves the sum after the exponential: exp(-inf) before it would do as well, but takes a slow path.
    shifted.exp_()
    place.put()
    torch.sum(shifted, axis, out=others)


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


def backward(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    top: Tensor,
    others: Tensor,
    divisor: Tensor,
    powers: Tensor,
    reduction: int,
    ignore_index: int,
    smoothing: float,
) -> Tensor:
    """d loss / d logits, in the type of the logits."""
    targets = IndexTargets(logits, target, weight, ignore_index, smoothing)
    shape = element_shape(logits)
    result = torch.empty_like(logits)
    factor = scale(grad, divisor, reduction)
    kept = powers.numel() > 0
    per_element = [target.reshape(shape), top, others, *([factor.reshape(shape)] if reduction == NONE else [])]
    # The powers lie as the forward has put them.
    walk = Walk([logits, result], per_element, targets.dtype, reduces=kept, grouped=True)
    for by_class, (indices, m, o, *k) in walk:
        classes, weight_of, ignored = targets.read(indices)
        factor_here = k[0].reshape(-1) if k else factor.expand(classes.shape)
        if ignored is not None:
            factor_here = factor_here.masked_fill(ignored, 0.0)
        amount = factor_here if weight_of is None else factor_here * weight_of
        values = [classes, m.reshape(-1), o.reshape(-1), factor_here, amount]
        for (part, out), block in walk.blocks(by_class, values):
            _block_backward(walk, part, out, *block, powers=powers if kept else None, targets=targets)
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
    powers: Tensor | None,
    targets: IndexTargets,
) -> None:
    """The gradient of one block, from k (``factor``) and k w_t (``amount``), both 0 where ignored, into ``out``."""
    (buffer,) = walk.buffers
    smoothing = targets.smoothing
    whole_amount = amount
    if smoothing > 0:
        even = factor * (smoothing / targets.n_classes)
        amount = amount * (1.0 - smoothing)
        whole_amount = amount + even * targets.weight_sum()
    target_power = None if walk.whole else _target_power(walk, logits, classes, top)
    for chunk in walk.chunks:
        grad = buffer.matrix(out.shape) if walk.whole else buffer.matrix(walk.chunk_of(out, chunk).shape)
        place = buffer.locate(grad, classes, chunk, whole=walk.whole)
        if powers is None:
            source = buffer.load(walk.chunk_of(logits, chunk)).sub_(walk.across(top)).exp_()
            power = place.take() if target_power is None else target_power
        else:
            source = powers.view(grad.shape)
            power = buffer.locate(source, classes, chunk, whole=True).take()
        total = power + others
        ratio = whole_amount / total
        torch.mul(source, walk.across(ratio), out=grad)
        true_class = ((ratio if smoothing == 0 else amount / total) * others).neg_()
        if smoothing > 0:
            every = walk.across(even)
            grad.sub_(every if targets.weight is None else every * walk.along(targets.weight[chunk]))
            excess = power / total * targets.weight_sum()
            excess.sub_(1.0 if targets.weight is None else targets.weight.index_select(0, classes))
            true_class.addcmul_(even, excess)
        place.put(true_class)
        buffer.store(walk.chunk_of(out, chunk))


def _target_power(walk: Walk, logits: Tensor, classes: Tensor, top: Tensor) -> Tensor:
    """exp(d_t), (n), when the classes do not fit into one block."""
    (buffer,) = walk.buffers
    distance = torch.empty_like(top)
    for chunk in walk.chunks:
        values = buffer.load(walk.chunk_of(logits, chunk))
        buffer.locate(values, classes, chunk, whole=False).take_into(distance)
    return distance.sub_(top).exp_()
