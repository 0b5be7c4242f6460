"""The launches for cross-entropy of class probabilities."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from numalign.ops._elements import accumulate_type
from numalign.ops._layout import element_shape
from numalign.ops._probability_loss import promoted
from numalign.ops._reduction import NONE
from numalign.ops.kernels import plan
from numalign.ops.kernels import soft as soft_loss
from numalign.ops.kernels.soft import soft
from numalign.ops.kernels.start import ACCUMULATE, Axes, Tiling, added_up, compiled_for, kind_of, on

SOFT_LOSS, SOFT_GRADIENT, TARGET_GRADIENT = (
    c.value for c in (soft_loss.LOSS, soft_loss.GRADIENT, soft_loss.TARGET_GRADIENT)
)


def _for_soft(n_classes: int, *, innermost: bool) -> Tiling:
    if innermost:
        tile = min(2048, triton.next_power_of_2(n_classes))
        elements = max(1, 512 // tile)
        return Tiling(soft, (elements, tile), elements, 2112, max(1, tile // 512))
    return Tiling(soft, (128, min(8, triton.next_power_of_2(n_classes))), 128, 2112, 1)


def soft_forward(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    smoothing: float,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cross-entropy of class probabilities: see :func:`numalign.ops._probability_loss.forward`. Nothing is kept per element."""
    loss, divisor = _soft(
        SOFT_LOSS, logits, target, weight, reduction, smoothing, empty_is_zero=empty_is_zero, out_dtype=out_dtype
    )
    nothing = divisor.new_empty(0)
    return loss, nothing, nothing.clone(), divisor


def soft_backward(
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
    """d loss / d logits."""
    out = torch.empty_like(logits)
    _soft(SOFT_GRADIENT, logits, target, weight, reduction, smoothing, out=out, grad=grad, divisor=divisor)
    return out


def soft_backward_target(
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
    """d loss / d target."""
    out = torch.empty_like(target)
    _soft(TARGET_GRADIENT, logits, target, weight, reduction, smoothing, out=out, grad=grad, divisor=divisor)
    return out


def _soft(
    what: int,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    smoothing: float,
    *,
    out: Tensor | None = None,
    grad: Tensor | None = None,
    divisor: Tensor | None = None,
    empty_is_zero: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    kind = promoted(logits, target, weight)
    loss_dtype = grad.dtype if grad is not None else out_dtype
    dtype, shape = accumulate_type(kind), element_shape(logits)
    values = None
    if reduction == NONE:
        values = torch.empty(shape, dtype=out_dtype, device=logits.device) if grad is None else grad.expand(shape)
    axes = Axes([logits, target, logits if out is None else out], [] if values is None else [values])
    tiling = _for_soft(axes.n_classes, innermost=axes.class_is_innermost)
    programs = axes.grid(tiling)
    if divisor is None:
        divisor = torch.empty(plan.HEADER.value + 2 * programs, dtype=dtype, device=logits.device)
    with on(logits):
        soft[(programs,)](
            logits,
            target,
            None if weight is None else weight.contiguous(),
            out,
            grad if values is None else values,
            divisor,
            axes.sizes,
            *axes.by_class,
            axes.by_element[0] if axes.by_element else (),
            axes.n_elements,
            axes.n_classes,
            PURPOSE=what,
            REDUCTION=reduction,
            HAS_WEIGHT=weight is not None,
            SMOOTHING=smoothing,
            KIND=kind_of(kind, loss_dtype or kind),
            ACC=ACCUMULATE[dtype],
            DIMS=len(axes.sizes),
            WIDE=axes.wide,
            ELEMENTS=tiling.sizes[0],
            CLASSES=tiling.sizes[1],
            **compiled_for(tiling.warps),
        )
    if what != SOFT_LOSS:
        return logits, divisor
    if values is None:
        assert out_dtype is not None
        return added_up(divisor, axes.n_elements, reduction, False, empty_is_zero, out_dtype)
    return values, torch.full((), float(axes.n_elements), dtype=dtype, device=logits.device)
