"""PyTorch's own loss operators, answered by the repaired ones. Each function has the schema of the operator it stands for.

This module knows PyTorch's schemas. When and for which devices the functions are put in place is in ``_repair``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from numalign.ops import _arguments, _nll
from numalign.ops._functional import checked_cross_entropy, checked_nll_loss
from numalign.ops._layout import class_axis
from numalign.ops._reduction import MEAN


def _cross_entropy_loss(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    # PyTorch takes a negative smoothing for none, and refuses one above 1.
    smoothing = max(0.0, label_smoothing)
    _arguments.check_smoothing(smoothing)
    return checked_cross_entropy(self, target, weight, reduction, ignore_index, smoothing)


def _nll_loss(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN, ignore_index: int = -100
) -> Tensor:
    return checked_nll_loss(self, target, weight, reduction, ignore_index)


def _nll_loss_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    _check(self, target, weight)
    loss, total_weight = _nll.forward(self, target, weight, reduction, ignore_index, False, self.dtype)
    return loss, total_weight.to(self.dtype)


def _nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    # The schema hands over total_weight in the input's type, where it may be inf. What it was made of is here too.
    _check(self, target, weight)
    divisor = _nll.total_weight(self, target, weight, ignore_index)
    return _nll.backward(grad_output, self, target, weight, divisor, reduction, ignore_index)


def _check(log_probabilities: Tensor, target: Tensor, weight: Tensor | None) -> None:
    _arguments.check_input(log_probabilities, target)
    _arguments.check_index_target(log_probabilities, target)
    if weight is not None:
        n_classes = log_probabilities.shape[class_axis(log_probabilities)]
        _arguments.check_weight(log_probabilities, weight.detach().reshape(n_classes), differentiable=True)


# Taken over at autograd, where PyTorch composes them of several low-precision steps, and where tracing would take them apart.
COMPOSITE: dict[str, Callable[..., Any]] = {
    "cross_entropy_loss": _cross_entropy_loss,
    "nll_loss_nd": _nll_loss,
    "nll_loss": _nll_loss,
    "nll_loss2d": _nll_loss,
}
# Kernels of a device, with PyTorch's autograd formula around them.
KERNELS: dict[str, Callable[..., Any]] = {
    "nll_loss_forward": _nll_loss_forward,
    "nll_loss_backward": _nll_loss_backward,
    "nll_loss2d_forward": _nll_loss_forward,
    "nll_loss2d_backward": _nll_loss_backward,
}


def stock(name: str, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's own composition of a composite operator."""
    return getattr(torch.ops.aten, name).default._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
