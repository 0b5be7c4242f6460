"""Measures an operator's result against its float64 reference: one record a tensor, no verdict."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from numalign.evidence.records import Result, TensorFacts
from numalign.numerics import FLOAT64, Format, format_limit, format_named, round_array, ulp
from numalign.scan.bound import accumulation_slack

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def facts(name: str, tensor: torch.Tensor) -> TensorFacts:
    """The name, dtype, device and shape of ``tensor``."""
    return TensorFacts(
        name=name, dtype=str(tensor.dtype).removeprefix("torch."), device=str(tensor.device), shape=tuple(tensor.shape)
    )


def measured(name: str, value: torch.Tensor, expected: torch.Tensor, magnitude: torch.Tensor, n: int) -> Result:
    """Measure ``value`` against ``expected``.

    Args:
        name: Name of the output or gradient.
        value: What the operator gave, on any device; its dtype is the format that errors are counted in.
        expected: The float64 reference, same shape, on the CPU.
        magnitude: sum |x_i| of every entry, float64, same shape, on the CPU.
        n: Number of terms of the longest sum.

    Raises:
        ValueError: If the shapes differ.
    """
    if value.shape != expected.shape:
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}, its reference {tuple(expected.shape)}; the case must agree"
        )
    tensor = facts(name, value)
    # Integers and truth values have no roundings: float64 holds them, and any difference is many of its ulp.
    fmt = format_named(tensor.dtype) if value.is_floating_point() else FLOAT64
    observed, exact, magnitudes = _array(value), _array(expected), _array(magnitude)
    # Most entries of a sparse gradient are zero and meant to be; they are right and need no more work.
    (kept,) = np.nonzero((observed != 0) | (exact != 0))  # nan is not 0 either
    observed, exact, magnitudes = observed[kept], exact[kept], magnitudes[kept]
    fits = np.isfinite(exact) & ~format_limit(exact, fmt)
    finite = np.isfinite(observed)
    target = np.where(fits, exact, 0.0)
    spacing = ulp(target, fmt)
    slack = accumulation_slack(magnitudes, n, fmt)
    distance = np.where(fits & finite, np.abs(np.where(finite, observed, 0.0) - target), 0.0)
    must_not_vanish = fits & (np.abs(exact) > 0.5 * fmt.smallest_subnormal + slack)
    vanished = must_not_vanish & (observed == 0)
    with np.errstate(divide="ignore", over="ignore"):
        # JSON has no inf: an error beyond float64 stays its largest number.
        errors = np.minimum(distance / spacing, FLOAT64.max_finite)
        excess = np.minimum(distance / (0.5 * spacing + slack), FLOAT64.max_finite)
    misplaced = _misplaced(observed, exact, fits, fmt)
    worst = _worst((fits & ~finite, misplaced, vanished), excess)
    shown = (observed[worst], exact[worst]) if kept.size else (0.0, 0.0)
    return Result(
        tensor=tensor,
        digest=_digest(value),
        error_ulp=float(errors.max(initial=0.0)),
        excess=float(excess.max(initial=0.0)),
        worst=int(kept[worst]) if kept.size else 0,
        observed=repr(float(shown[0])),
        expected=repr(float(shown[1])),
        rounded=repr(float(round_array(shown[1], fmt))),
        format_limited=int((np.isfinite(exact) & ~fits).sum()),
        misplaced=int(misplaced.sum()),
        infinite=int((fits & np.isinf(observed)).sum()),
        nan=int((fits & np.isnan(observed)).sum()),
        nonzero_expected=int(must_not_vanish.sum()),
        flushed=int(vanished.sum()),
    )


def _misplaced(observed: Array, exact: Array, fits: Mask, fmt: Format) -> Mask:
    """Entries whose right value is inf, nan or too large for the format, and that are not what it rounds to."""
    beyond = np.flatnonzero(~fits)
    rounded = round_array(exact[beyond], fmt)
    wrong = (observed[beyond] != rounded) & ~(np.isnan(observed[beyond]) & np.isnan(rounded))
    mask = np.zeros(fits.shape, dtype=np.bool_)
    mask[beyond[wrong]] = True
    return mask


def _worst(gravest: tuple[Mask, ...], excess: Array) -> int:
    """The entry to show: the first of the gravest kind that there is, else the one furthest past its bound."""
    for mask in gravest:
        if mask.any():
            return int(mask.argmax())
    return int(excess.argmax()) if excess.size else 0


def _array(tensor: torch.Tensor) -> Array:
    return np.asarray(tensor.detach().to("cpu", torch.float64).reshape(-1).numpy(), dtype=np.float64)


def _digest(tensor: torch.Tensor) -> str:
    raw = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(raw.tobytes()).hexdigest()[:16]
