"""The three reductions, and the one rounding at the end."""

from __future__ import annotations

import torch
from torch import Tensor

NONE, MEAN, SUM = 0, 1, 2
_NAMES = {"none": NONE, "mean": MEAN, "sum": SUM}


def reduction_code(name: str) -> int:
    """PyTorch's number for a reduction.

    Raises:
        ValueError: the name is not none, mean or sum.
    """
    if name not in _NAMES:
        raise ValueError(f"{name} is not a valid value for reduction: wanted one of {', '.join(_NAMES)}.")
    return _NAMES[name]


def reduced(total: Tensor, divisor: Tensor, reduction: int, dtype: torch.dtype) -> Tensor:
    """The sum or the mean of the losses, divided and rounded last.

    Args:
        total: 0-D, the weighted sum of the losses, in the accumulate type.
        divisor: 0-D, what a mean divides by, in the accumulate type.
        reduction: MEAN or SUM.
        dtype: the type of the result.
    """
    return (total / divisor if reduction == MEAN else total).to(dtype)


def mean_divisor(total_weight: Tensor, *, empty_is_zero: bool) -> Tensor:
    """What a mean divides by: the total weight, or 1 where that is 0 and an empty mean is to be 0 rather than nan."""
    return torch.where(total_weight == 0, 1.0, total_weight) if empty_is_zero else total_weight


def scale(grad: Tensor, divisor: Tensor, reduction: int) -> Tensor:
    """d(result)/d(loss of one element) times the incoming gradient, in the accumulate type: 0-D, or shaped like the target.

    The quotient stays in the accumulate type until it has met the probabilities. Rounded to fp16 before that, 1 / n is a
    subnormal from n = 16384 on and the loss scale cannot bring back what was lost.
    """
    grad = grad.to(divisor.dtype)
    return grad / divisor if reduction == MEAN else grad
