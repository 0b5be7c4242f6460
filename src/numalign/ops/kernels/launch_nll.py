"""The launches for the negative log-likelihood."""

from __future__ import annotations

import torch
from torch import Tensor

from numalign.ops._elements import accumulate_type
from numalign.ops._layout import element_shape
from numalign.ops._reduction import NONE, SUM
from numalign.ops.kernels import plan
from numalign.ops.kernels.picked import picked, put_back
from numalign.ops.kernels.start import ACCUMULATE, Axes, Tiling, added_up, compiled_for, on

_PICKED = Tiling(picked, (1024,), 1024, 1056, 4)


def nll_forward(
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Negative log-likelihood: see :func:`numalign.ops._nll.forward`. The divisor of a mean is there for sums as well."""
    x, dtype, shape = log_probabilities, accumulate_type(log_probabilities.dtype), element_shape(log_probabilities)
    target = target.reshape(shape)
    losses = torch.empty(shape, dtype=out_dtype, device=x.device) if reduction == NONE else None
    axes = Axes([x], [target] if losses is None else [target, losses])
    programs = axes.grid(_PICKED)
    partial = torch.empty(plan.HEADER.value + 2 * programs, dtype=dtype, device=x.device)
    with on(x):
        picked[(programs,)](
            x,
            target,
            None if weight is None else weight.contiguous(),
            losses,
            partial,
            axes.sizes,
            axes.by_class[0],
            axes.by_element[0],
            axes.by_element[-1],
            axes.n_elements,
            axes.n_classes,
            ignore_index,
            REDUCTION=reduction,
            HAS_WEIGHT=weight is not None,
            ACC=ACCUMULATE[dtype],
            DIMS=len(axes.sizes),
            WIDE=axes.wide,
            BLOCK=_PICKED.elements,
            **compiled_for(_PICKED.warps),
        )
    if losses is not None:
        return losses, torch.ones((), dtype=dtype, device=x.device)
    return added_up(partial, axes.n_elements, reduction, weight is not None, empty_is_zero, out_dtype)


def nll_total_weight(log_probabilities: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """The sum of the weights of all targets that are not ignored."""
    options = (SUM, ignore_index, False, accumulate_type(log_probabilities.dtype))
    return nll_forward(log_probabilities, target, weight, *options)[1]


def nll_backward(
    grad: Tensor,
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    divisor: Tensor,
    reduction: int,
    ignore_index: int,
) -> Tensor:
    """d loss / d log-probabilities: see :func:`numalign.ops._nll.backward`."""
    shape = element_shape(log_probabilities)
    gradient = torch.zeros_like(log_probabilities)
    target = target.reshape(shape)
    per_element = [target, grad.expand(shape)] if reduction == NONE else [target]
    axes = Axes([gradient], per_element)
    with on(gradient):
        put_back[(axes.grid(_PICKED),)](
            grad,
            gradient,
            target,
            None if weight is None else weight.contiguous(),
            divisor,
            axes.sizes,
            axes.by_class[0],
            axes.by_element[0],
            axes.by_element[-1],
            axes.n_elements,
            axes.n_classes,
            ignore_index,
            REDUCTION=reduction,
            HAS_WEIGHT=weight is not None,
            ACC=ACCUMULATE[accumulate_type(log_probabilities.dtype)],
            DIMS=len(axes.sizes),
            WIDE=axes.wide,
            BLOCK=_PICKED.elements,
            **compiled_for(_PICKED.warps),
        )
    return gradient
