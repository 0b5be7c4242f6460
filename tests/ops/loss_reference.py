"""The losses in fp64, in elementary operations, and the bounds that the repaired operators promise.

Nothing here calls the repaired operators, and they do not call this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

U32 = 2.0**-24


@dataclass(frozen=True)
class Reference:
    """The exact results, in fp64, for an incoming gradient, and the sizes that error bounds are made of."""

    loss: Tensor
    grad: Tensor
    loss_size: Tensor  # what the loss would be without cancellation between elements and classes
    factor: Tensor  # |incoming gradient * weight / total weight|, shaped to meet the gradient


def ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of ``dtype`` at these values, subnormals included."""
    info = torch.finfo(dtype)
    digits = round(-torch.log2(torch.tensor(info.eps)).item())
    lowest = round(torch.log2(torch.tensor(info.tiny, dtype=torch.float64)).item())
    _, exponent = torch.frexp(values.double().abs())
    exponent = torch.where(values == 0, lowest, (exponent - 1).clamp(min=lowest))
    return torch.ldexp(torch.ones_like(values, dtype=torch.float64), exponent - digits)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    incoming: Tensor | float = 1.0,
    log_probabilities: bool = False,
) -> Reference:
    """Cross-entropy of the given values, or (``log_probabilities``) the negative log-likelihood."""
    x = logits.detach().double()
    axis = 0 if x.dim() == 1 else 1
    x = x.movedim(axis, -1)
    n_classes = x.shape[-1]
    w = torch.ones(n_classes, dtype=torch.float64) if weight is None else weight.detach().double()
    soft = target.dtype.is_floating_point
    if soft:
        q = target.detach().double().movedim(axis, -1)
        valid = torch.ones(x.shape[:-1], dtype=torch.bool)
        of_element = torch.ones(x.shape[:-1], dtype=torch.float64)
    else:
        t = target.long().reshape(x.shape[:-1])
        valid = t != ignore_index
        t = t.masked_fill(~valid, 0)
        q = (torch.arange(n_classes) == t.unsqueeze(-1)).double()
        of_element = w[t].masked_fill(~valid, 0.0)
    total = of_element.sum()
    share = (q * (1.0 - label_smoothing) + label_smoothing / n_classes) * w
    if log_probabilities:
        terms = torch.where(share == 0, 0.0, -share * x)
        slope = -share
    else:
        shifted = x - x.amax(-1, keepdim=True)
        powers = shifted.exp()
        sums = powers.sum(-1, keepdim=True)
        terms = torch.where(share == 0, 0.0, share * (sums.log() - shifted))
        slope = powers / sums * share.sum(-1, keepdim=True) - share
    losses = terms.sum(-1).masked_fill(~valid, 0.0)
    sizes = terms.abs().sum(-1).masked_fill(~valid, 0.0)
    scale = torch.as_tensor(incoming, dtype=torch.float64)
    if reduction == "mean":
        loss, size, k = losses.sum() / total, sizes.sum() / total.abs(), (scale / total).expand_as(losses)
    elif reduction == "sum":
        loss, size, k = losses.sum(), sizes.sum(), scale.expand_as(losses)
    else:
        loss, size, k = losses, sizes, scale.expand_as(losses)
    k = k.masked_fill(~valid, 0.0).unsqueeze(-1)
    grad = torch.where(valid.unsqueeze(-1), k * slope, 0.0)
    factor = (k * share.abs().sum(-1, keepdim=True)).abs().expand_as(grad)
    return Reference(loss, grad.movedim(-1, axis), size, factor.movedim(-1, axis))


def worst(observed: Tensor, exact: Tensor, allowed: Tensor) -> float:
    """The largest error as a share of what is allowed there: at most 1 when the bound holds."""
    assert observed.shape == exact.shape
    if observed.numel() == 0:
        return 0.0
    observed = observed.detach().double()
    assert torch.isfinite(observed).all(), observed
    return float(((observed - exact).abs() / allowed).max())


def check_loss(observed: Tensor, exact: Reference, dtype: torch.dtype, *, cancels: bool = False) -> None:
    """The loss is within its bound. With weights of both signs (``cancels``), relative to the sum of the sizes."""
    ulps = 0.51 if dtype in {torch.float16, torch.bfloat16} else 4.0
    allowed = ulps * ulp(exact.loss, dtype)
    if cancels:
        unit = 2.0**-53 if dtype == torch.float64 else U32
        allowed = allowed + 8 * unit * exact.loss_size
    if dtype == torch.float64:
        allowed = allowed + 8 * 2.0**-53 * (exact.loss_size + 1.0)  # the reference rounds too, and lets p -> 1 cancel
    assert observed.dtype == dtype
    assert worst(observed, exact.loss, allowed) <= 1.0


def check_grad(observed: Tensor, exact: Reference, dtype: torch.dtype) -> None:
    """Each entry of the gradient is within its bound."""
    ulps = 0.51 if dtype in {torch.float16, torch.bfloat16} else 4.0
    unit = 8 * 2.0**-53 if dtype == torch.float64 else 4 * U32
    assert observed.dtype == dtype
    assert worst(observed, exact.grad, ulps * ulp(exact.grad, dtype) + unit * exact.factor) <= 1.0
