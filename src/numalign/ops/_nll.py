"""Negative log-likelihood of class indices: a weighted sum of one value per element, block by block, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from numalign.ops._elements import IndexTargets, TotalWeight, fixed_order_sum, sum_of_parts
from numalign.ops._layout import Walk, element_shape
from numalign.ops._path import or_kernel
from numalign.ops._reduction import NONE, mean_divisor, reduced, scale


@or_kernel("nll_forward", logits=0)
def forward(
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The loss in ``out_dtype`` and, unrounded, the divisor of a mean (0-D): the total weight, unless that is 0."""
    targets = IndexTargets(log_probabilities, target, weight, ignore_index, 0.0)
    shape = element_shape(log_probabilities)
    losses = torch.empty(shape if reduction == NONE else (), dtype=out_dtype, device=log_probabilities.device)
    per_element = [target.reshape(shape), *([losses] if reduction == NONE else [])]
    walk = Walk([log_probabilities], per_element, targets.dtype, reduces=False, buffers=0)
    sums: list[Tensor] = []
    weights = TotalWeight(log_probabilities, targets.dtype)
    for (part,), (block, *outputs) in walk:
        classes, weight_of, ignored = targets.read(block)
        position = classes.view(block.shape).unsqueeze(walk.class_dim)
        loss = part.gather(walk.class_dim, position).view(-1).to(targets.dtype, copy=True).neg_()
        if weight_of is not None:
            loss.mul_(weight_of)
        if ignored is not None:
            loss.masked_fill_(ignored, 0.0)
        if reduction == NONE:
            outputs[0].copy_(loss.view(block.shape))
        else:
            sums.append(fixed_order_sum(loss))
        weights.add(loss.numel(), weight_of)
    divisor = mean_divisor(weights.total(), empty_is_zero=empty_is_zero)
    if reduction == NONE:
        return losses, divisor
    return reduced(sum_of_parts(sums, log_probabilities, targets.dtype), divisor, reduction, out_dtype), divisor


@or_kernel("nll_total_weight", logits=0)
def total_weight(log_probabilities: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """The sum of the weights of all targets that are not ignored, 0-D, in the accumulate type."""
    targets = IndexTargets(log_probabilities, target, weight, ignore_index, 0.0)
    weights = TotalWeight(log_probabilities, targets.dtype)
    per_element = [target.reshape(element_shape(log_probabilities))]
    for _, (block,) in Walk([log_probabilities], per_element, targets.dtype, reduces=False, buffers=0):
        classes, weight_of, _ = targets.read(block)
        weights.add(classes.numel(), weight_of)
    return weights.total()


# Gradient. loss = -w_t x_t, so d loss / d x_j = -k w_t [j = t] with k = incoming gradient / divisor: one value per element,
# rounded once, zero everywhere else.


@or_kernel("nll_backward", logits=1)
def backward(
    grad: Tensor,
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    divisor: Tensor,
    reduction: int,
    ignore_index: int,
) -> Tensor:
    """d loss / d log_probabilities, in their type. Of ``log_probabilities`` only shape, strides and type are used."""
    targets = IndexTargets(log_probabilities, target, weight, ignore_index, 0.0)
    shape = element_shape(log_probabilities)
    result = torch.zeros_like(log_probabilities)
    factor = scale(grad, divisor, reduction)
    per_element = [target.reshape(shape), *([factor.reshape(shape)] if reduction == NONE else [])]
    walk = Walk([result], per_element, targets.dtype, reduces=False, buffers=0)
    for (out,), (block, *k) in walk:
        classes, weight_of, ignored = targets.read(block)
        value = -(k[0].reshape(-1) if k else factor.expand(classes.shape))
        if weight_of is not None:
            value = value * weight_of
        if ignored is not None:
            value = value.masked_fill(ignored, 0.0)
        # index_put_ writes into any strides; scatter_ would copy a tensor that is not contiguous.
        grid = [
            torch.arange(n, device=out.device).view([-1 if i == axis else 1 for i in range(block.dim())])
            for axis, n in enumerate(block.shape)
        ]
        place = (classes.view(block.shape), *grid) if walk.class_dim == 0 else (*grid, classes.view(block.shape))
        out.index_put_(place, value.to(out.dtype).view(block.shape))
    return result
