"""Derivatives of the backward operators, in plain differentiable PyTorch: what double backward needs.

Second derivatives are asked for rarely, so these functions may hold full-size tensors in the accumulate type. They are
written in PyTorch's own operators, and so can be differentiated again, traced and vmapped.

Each takes ``ctx`` with the saved tensors and options of a backward operator and the gradient ``v`` of its result, and
returns one gradient per argument of that operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from numalign.ops._layout import class_axis
from numalign.ops._reduction import MEAN, NONE


def _by_class(weight: Tensor | None, like: Tensor) -> Tensor:
    """The weights (C), shaped to meet the logits; ones when there are none."""
    axis = class_axis(like)
    if weight is None:
        return torch.ones([1] * like.dim(), dtype=like.dtype, device=like.device)
    return weight.to(like.dtype).reshape([-1 if i == axis else 1 for i in range(like.dim())])


def _spread(grad: Tensor, divisor: Tensor, reduction: int, axis: int) -> Tensor:
    """k per element, with a class axis of size 1 where it is not 0-D."""
    k = grad.to(divisor.dtype)
    if reduction == MEAN:
        k = k / divisor
    return k.unsqueeze(axis) if reduction == NONE else k


def _collect(per_element: Tensor, divisor: Tensor, reduction: int, axis: int, dtype: torch.dtype) -> Tensor:
    """The gradient of the incoming gradient, from its value per element (with a class axis of size 1)."""
    if reduction == NONE:
        return per_element.squeeze(axis).to(dtype)
    total = per_element.sum()
    return (total / divisor if reduction == MEAN else total).to(dtype)


def _shares(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """b_c of class indices as a dense tensor, zero for ignored elements, and the mask of the others."""
    axis = class_axis(logits)
    classes = target.to(torch.int64).reshape(logits.shape[:axis] + logits.shape[axis + 1 :]).unsqueeze(axis)
    valid = classes != ignore_index
    classes = torch.where(valid, classes, 0)
    one = torch.zeros(logits.shape, dtype=dtype, device=logits.device).scatter(axis, classes, 1.0 - smoothing)
    b = (one + smoothing / logits.shape[axis]) * _by_class(weight, one)
    return torch.where(valid, b, 0.0), valid


def index_backward(ctx: Any, v: Tensor | None) -> tuple[Any, ...]:
    """Of k (B p - b), where b does not depend on anything that is differentiated."""
    if v is None:
        return (None,) * 10
    grad, logits, target, weight, _, _, divisor = ctx.saved_tensors
    reduction, ignore_index, smoothing = ctx.options
    axis = class_axis(logits)
    b, valid = _shares(logits, target, weight, ignore_index, smoothing, divisor.dtype)
    k = torch.where(valid, _spread(grad, divisor, reduction, axis), 0.0)
    to_grad, to_logits, _ = _softmax_part(v, logits, b, k, axis)
    return (
        _collect(to_grad, divisor, reduction, axis, grad.dtype) if ctx.needs_input_grad[0] else None,
        to_logits.to(logits.dtype) if ctx.needs_input_grad[1] else None,
        *(None,) * 8,
    )


def _softmax_part(v: Tensor, logits: Tensor, b: Tensor, k: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of sum_j v_j k (B p_j - b_j), B = sum_c b_c, with respect to k, the logits and b.

    With u = sum_j v_j p_j: B u - sum_j v_j b_j, k B p_j (v_j - u) and k (u - v_j).
    """
    v = v.to(b.dtype)
    p = torch.softmax(logits.to(b.dtype), axis)
    u = (v * p).sum(axis, keepdim=True)
    whole = b.sum(axis, keepdim=True)
    return whole * u - (v * b).sum(axis, keepdim=True), k * whole * p * (v - u), k * (u - v)


def _soft_shares(logits: Tensor, target: Tensor, weight: Tensor | None, smoothing: float, dtype: torch.dtype) -> Tensor:
    """q' = (1 - e) q + e / C, without the weights."""
    return target.to(dtype) * (1.0 - smoothing) + smoothing / max(1, logits.shape[class_axis(logits)])


def _onto_weight(per_class: Tensor, weight: Tensor, axis: int) -> Tensor:
    return per_class.sum([i for i in range(per_class.dim()) if i != axis]).to(weight.dtype)


def soft_backward(ctx: Any, v: Tensor | None) -> tuple[Any, ...]:
    """Of k (B p - b), b = w q'."""
    if v is None:
        return (None,) * 9
    grad, logits, target, weight, _, _, divisor = ctx.saved_tensors
    reduction, smoothing = ctx.options
    axis = class_axis(logits)
    q = _soft_shares(logits, target, weight, smoothing, divisor.dtype)
    w = _by_class(weight, q)
    to_grad, to_logits, to_b = _softmax_part(v, logits, w * q, _spread(grad, divisor, reduction, axis), axis)
    wanted = ctx.needs_input_grad
    return (
        _collect(to_grad, divisor, reduction, axis, grad.dtype) if wanted[0] else None,
        to_logits.to(logits.dtype) if wanted[1] else None,
        (to_b * w * (1.0 - smoothing)).to(target.dtype) if wanted[2] else None,
        _onto_weight(to_b * q, weight, axis) if wanted[3] else None,
        *(None,) * 5,
    )


def soft_backward_target(ctx: Any, v: Tensor | None) -> tuple[Any, ...]:
    """Of k (1 - e) w_c (-log p_c), which does not depend on the target."""
    if v is None:
        return (None,) * 9
    grad, logits, _, weight, _, _, divisor = ctx.saved_tensors
    reduction, smoothing = ctx.options
    axis = class_axis(logits)
    dtype = divisor.dtype
    log_p = torch.log_softmax(logits.to(dtype), axis)
    k = _spread(grad, divisor, reduction, axis)
    scaled = v.to(dtype) * (1.0 - smoothing)
    by_weight = scaled * _by_class(weight, log_p)
    wanted = ctx.needs_input_grad
    return (
        _collect(-(by_weight * log_p).sum(axis, keepdim=True), divisor, reduction, axis, grad.dtype)
        if wanted[0]
        else None,
        (k * (log_p.exp() * by_weight.sum(axis, keepdim=True) - by_weight)).to(logits.dtype) if wanted[1] else None,
        None,
        _onto_weight(-k * scaled * log_p, weight, axis) if wanted[3] else None,
        *(None,) * 5,
    )


def soft_weight(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor,
    top: Tensor,
    others: Tensor,
    divisor: Tensor,
    reduction: int,
    smoothing: float,
) -> Tensor:
    """d loss / d weight for class probabilities: sum over the elements of k q'_c (-log p_c)."""
    axis = class_axis(logits)
    log_p = torch.log_softmax(logits.to(divisor.dtype), axis)
    q = _soft_shares(logits, target, weight, smoothing, divisor.dtype)
    return _onto_weight(-_spread(grad, divisor, reduction, axis) * q * log_p, weight, axis)


def nll_backward(ctx: Any, v: Tensor | None) -> tuple[Any, ...]:
    """Of -k w_t at the target class: linear in the incoming gradient, and nothing else is differentiated."""
    if v is None:
        return (None,) * 7
    grad, logits, target, weight, divisor = ctx.saved_tensors
    reduction, ignore_index = ctx.options
    axis = class_axis(logits)
    b, _ = _shares(logits, target, weight, ignore_index, 0.0, divisor.dtype)
    per_element = -(v.to(divisor.dtype) * b).sum(axis, keepdim=True)
    return (_collect(per_element, divisor, reduction, axis, grad.dtype), *(None,) * 6)
