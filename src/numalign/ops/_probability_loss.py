"""Cross-entropy for class probabilities, block by block, on any device.

With logits x, target probabilities q, weights w and smoothing e, the loss of one element is

    sum_c b_c (L - d_c),    b_c = w_c ((1 - e) q_c + e / C),    d_c = x_c - max x,    L = log sum_c exp(d_c).

A mean divides by the number of elements. Kept for the backward are ``top`` = max x and ``others``, the sum of exp(d_c) over
every class but the first that attains the maximum, so that L = log1p(others).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from numalign.ops._elements import accumulate_type, fixed_order_sum, sum_of_parts
from numalign.ops._layout import Place, Walk, element_shape
from numalign.ops._path import or_kernel
from numalign.ops._reduction import NONE, mean_divisor, reduced, scale


class _Problem:
    """The arguments that forward and backward share, and what both compute in a block. Two buffers of work memory."""

    def __init__(
        self,
        by_class: Sequence[Tensor],
        by_element: Sequence[Tensor],
        weight: Tensor | None,
        smoothing: float,
        dtype: torch.dtype,
    ) -> None:
        self.walk = Walk(by_class, by_element, dtype, reduces=True, buffers=2)
        self.axis = self.walk.axis
        self.chunks = self.walk.chunks
        self._weight = None if weight is None else weight.to(dtype).contiguous()
        self._smoothing = smoothing
        self.first, self._second = self.walk.buffers

    def weighted(self, buffer: Tensor, chunk: slice) -> Tensor:
        """Times the weights of the classes, in place."""
        return buffer if self._weight is None else buffer.mul_(self.walk.along(self._weight[chunk]))

    def shares(self, target: Tensor, chunk: slice) -> Tensor:
        """b_c for one block and one piece of the class axis, in the second buffer."""
        shares = self._second.load(self.walk.chunk_of(target, chunk))
        if self._smoothing > 0:
            shares.mul_(1.0 - self._smoothing).add_(self._smoothing / self.walk.n_classes)
        return self.weighted(shares, chunk)

    def shifted(self, logits: Tensor, chunk: slice, top: Tensor) -> Tensor:
        """d_c for one block and one piece of the class axis, in the first buffer."""
        return self.first.load(self.walk.chunk_of(logits, chunk)).sub_(self.walk.across(top))

    def leader(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum over the classes and the first class that attains it, each (n)."""
        best, where = torch.max(self.first.load(self.walk.chunk_of(logits, self.chunks[0])), self.axis)
        for chunk in self.chunks[1:]:
            top, position = torch.max(self.first.load(self.walk.chunk_of(logits, chunk)), self.axis)
            better = (top > best) | (torch.isnan(top) & ~torch.isnan(best))
            where = torch.where(better, position + chunk.start, where)
            best = torch.where(better, top, best)
        return best, where

    def place(self, buffer: Tensor, chunk: slice, classes: Tensor) -> Place:
        """Where one class of each element lies in a buffer that holds this piece of the class axis."""
        return self.first.locate(buffer, classes, chunk, whole=self.walk.whole)


def promoted(logits: Tensor, target: Tensor, weight: Tensor | None) -> torch.dtype:
    """The type that PyTorch's product of the three has."""
    dtype = torch.promote_types(logits.dtype, target.dtype)
    return dtype if weight is None else torch.promote_types(dtype, weight.dtype)


@or_kernel("soft_forward", logits=0)
def forward(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    smoothing: float,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, ``top``, ``others`` and the divisor of a mean (0-D). The first in ``out_dtype``, the rest unrounded."""
    shape = element_shape(logits)
    dtype = accumulate_type(promoted(logits, target, weight))
    top = torch.zeros(shape, dtype=dtype, device=logits.device)
    others = torch.zeros_like(top)
    losses = torch.zeros(shape if reduction == NONE else (), dtype=out_dtype, device=logits.device)
    per_element = [top, others, *([losses] if reduction == NONE else [])]
    problem = _Problem([logits, target], per_element, weight, smoothing, dtype)
    sums: list[Tensor] = []
    for (x, q), outputs in problem.walk:
        loss, *saved = _block_forward(problem, x, q)
        if reduction == NONE:
            saved.append(loss)
        else:
            sums.append(fixed_order_sum(loss))
        for output, values in zip(outputs, saved, strict=True):
            output.copy_(values.view(output.shape))
    # Without classes there is no element count either: PyTorch divides 0 by 0 there as well.
    count = torch.full((), float(top.numel() if problem.walk.n_classes else 0), dtype=dtype, device=logits.device)
    divisor = mean_divisor(count, empty_is_zero=empty_is_zero)
    if reduction == NONE:
        return losses, top, others, divisor
    return reduced(sum_of_parts(sums, logits, dtype), divisor, reduction, out_dtype), top, others, divisor


def _block_forward(problem: _Problem, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, ``top`` and ``others``, each (n)."""
    top, leader = problem.leader(logits)
    others, loss, one = torch.zeros_like(top), torch.zeros_like(top), torch.ones_like(top)
    for chunk in problem.chunks:
        shifted = problem.shifted(logits, chunk, top).exp_()
        place = problem.place(shifted, chunk, leader)
        # exp(0) - 1, unless the maximum is infinite or undefined: then nan, which the sum must not lose.
        others = others + (place.take(one) - one)
        place.put()
        others = others + shifted.sum(problem.axis)
    log_sum = problem.walk.across(torch.log1p(others))
    for chunk in problem.chunks:
        shifted = problem.shifted(logits, chunk, top)
        loss = loss + shifted.neg_().add_(log_sum).mul_(problem.shares(target, chunk)).sum(problem.axis)
    return loss, top, others


# Gradient. With p_c = exp(d_c) / S, S = 1 + others, B = sum_c b_c and k = incoming gradient / divisor:
#
#   d loss / d x_j = k (B p_j - b_j),    d loss / d q_j = k (1 - e) w_j (L - d_j).
#
# For a = argmax x and a target that agrees with it, B p_a - b_a cancels. With B_o = B - b_a, summed without b_a, it is
# k (B_o - B others / S), which does not.


@or_kernel("soft_backward", logits=1)
def backward(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    top: Tensor,
    others: Tensor,
    divisor: Tensor,
    reduction: int,
    smoothing: float,
) -> Tensor:
    """d loss / d logits, in the type of the logits."""
    result = torch.empty_like(logits)
    arguments = (grad, logits, target, weight, top, others, divisor, reduction, smoothing, result)
    for problem, (x, q, out), k, m, o in _walk(*arguments):
        _, leader = problem.leader(x)
        rest, first = torch.zeros_like(m), torch.zeros_like(m)
        for chunk in problem.chunks:
            shares = problem.shares(q, chunk)
            place = problem.place(shares, chunk, leader)
            first = first + place.take()
            place.put()
            rest = rest + shares.sum(problem.axis)
        whole = rest + first
        ratio = problem.walk.across(whole * k / (1.0 + o))
        at_leader = k * (rest - whole * (o / (1.0 + o)))
        for chunk in problem.chunks:
            piece = problem.shifted(x, chunk, m).exp_().mul_(ratio)
            piece.sub_(problem.shares(q, chunk).mul_(problem.walk.across(k)))
            problem.place(piece, chunk, leader).put(at_leader)
            problem.first.store(problem.walk.chunk_of(out, chunk))
    return result


@or_kernel("soft_backward_target", logits=1)
def backward_target(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    top: Tensor,
    others: Tensor,
    divisor: Tensor,
    reduction: int,
    smoothing: float,
) -> Tensor:
    """d loss / d target, in the type of the target."""
    result = torch.empty_like(target)
    arguments = (grad, logits, target, weight, top, others, divisor, reduction, smoothing, result)
    for problem, (x, _, out), k, m, o in _walk(*arguments):
        log_sum, factor = problem.walk.across(torch.log1p(o)), problem.walk.across(k * (1.0 - smoothing))
        for chunk in problem.chunks:
            problem.weighted(problem.shifted(x, chunk, m).neg_().add_(log_sum).mul_(factor), chunk)
            problem.first.store(problem.walk.chunk_of(out, chunk))
    return result


def _walk(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    top: Tensor,
    others: Tensor,
    divisor: Tensor,
    reduction: int,
    smoothing: float,
    result: Tensor,
) -> Iterator[tuple[_Problem, Sequence[Tensor], Tensor, Tensor, Tensor]]:
    """The blocks of a backward: logits, targets and result of each, and k, ``top`` and ``others`` as (n)."""
    factor = scale(grad, divisor, reduction)
    per_element = [top, others, *([factor.reshape(top.shape)] if reduction == NONE else [])]
    problem = _Problem([logits, target, result], per_element, weight, smoothing, divisor.dtype)
    for by_class, by_element in problem.walk:
        m, o, *k = (t.reshape(-1) for t in by_element)
        yield problem, by_class, k[0] if k else factor.expand_as(m), m, o
