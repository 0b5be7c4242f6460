"""Checks of what the caller gave: shapes, types, options. Values of targets are checked where they are read.

The exception types are PyTorch's. Every message says what was got, what was wanted, and the shapes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from numalign.ops._layout import class_axis, element_shape


def _got(logits: Tensor, target: Tensor) -> str:
    return f"got input {list(logits.shape)} of {logits.dtype} and target {list(target.shape)} of {target.dtype}"


def fits_at_sight(shape: torch.Size, dtype: torch.dtype, elements: torch.Size, target_dtype: torch.dtype) -> bool:
    """Whether this is the usual problem of class indices, which the checks below need not be tried for.

    Args:
        shape: of the logits.
        dtype: of the logits.
        elements: the shape of the target.
        target_dtype: of the target.
    """
    return (
        target_dtype is torch.int64
        and len(shape) > 1
        and len(elements) > 0
        and shape[0] == elements[0]
        and shape[1] > 0
        and shape[2:] == elements[1:]
        and dtype.is_floating_point
    )


def is_probability_target(logits: Tensor, target: Tensor) -> bool:
    """PyTorch's rule: a target of the input's own shape holds probabilities."""
    return logits.shape == target.shape


def check_input(logits: Tensor, target: Tensor) -> None:
    """The input is a floating tensor with a class axis.

    Raises:
        NotImplementedError: the input is not of floating type.
        ValueError: the input has no axis.
    """
    if not logits.dtype.is_floating_point:
        raise NotImplementedError(
            f"the loss is not implemented for {logits.dtype}: wanted a floating type; {_got(logits, target)}."
        )
    if logits.dim() == 0:
        raise ValueError(
            f"Expected 1 or more dimensions (got 0): wanted (C), (N, C) or (N, C, d1, ...); {_got(logits, target)}."
        )


def check_index_target(logits: Tensor, target: Tensor) -> None:
    """Class indices fit the input.

    Raises:
        ValueError: the batch sizes differ.
        RuntimeError: another axis differs, or the target is not of integer type.
        IndexError: there are targets but no classes.
    """
    wanted = element_shape(logits)
    shape = tuple(target.shape)
    if logits.dim() == 1:
        if shape not in {(), (1,)}:
            raise ValueError(f"For 1D input, the target must be 0D or have size 1; {_got(logits, target)}.")
    elif target.dim() == 0 or shape[0] != wanted[0]:
        batch = shape[0] if shape else 0
        raise ValueError(
            f"Expected input batch_size ({wanted[0]}) to match target batch_size ({batch}); {_got(logits, target)}."
        )
    elif shape != wanted:
        raise RuntimeError(f"Expected target size {list(wanted)}, got {list(shape)}; {_got(logits, target)}.")
    if target.dtype.is_floating_point or target.dtype.is_complex or target.dtype == torch.bool:
        raise RuntimeError(
            f"expected an integer target dtype for class indices, but got {target.dtype}; probabilities need the shape of "
            f"the input; {_got(logits, target)}."
        )
    if logits.shape[class_axis(logits)] == 0 and target.numel() > 0:
        raise IndexError(f"Target is out of bounds: the class axis of the input is empty; {_got(logits, target)}.")


def check_probability_target(logits: Tensor, target: Tensor, ignore_index: int) -> None:
    """Class probabilities fit the options.

    Raises:
        RuntimeError: the target is not of floating type, or an index is to be ignored.
    """
    if not target.dtype.is_floating_point:
        raise RuntimeError(
            f"Expected floating point type for target with class probabilities, got {target.dtype}; {_got(logits, target)}."
        )
    if ignore_index >= 0:
        raise RuntimeError(
            f"ignore_index is not supported for floating point target, got {ignore_index}; {_got(logits, target)}."
        )


def check_weight(logits: Tensor, weight: Tensor | None, *, differentiable: bool) -> None:
    """One weight of floating type per class.

    Raises:
        RuntimeError: another shape or type, or a weight that wants a gradient it cannot have.
    """
    if weight is None:
        return
    n_classes = logits.shape[class_axis(logits)]
    if weight.dim() != 1 or weight.shape[0] != n_classes:
        raise RuntimeError(
            f"weight tensor should be defined either for all {n_classes} classes or no classes but got weight tensor of "
            f"shape: {list(weight.shape)} (input {list(logits.shape)})."
        )
    if not weight.dtype.is_floating_point:
        raise RuntimeError(
            f"expected a floating type for weight but found {weight.dtype} (shape {list(weight.shape)})."
        )
    if weight.requires_grad and not differentiable:
        raise RuntimeError(
            "the loss is not differentiable with respect to argument 'weight' when targets are class indices. This input "
            f"cannot have requires_grad True (shape {list(weight.shape)})."
        )


def check_smoothing(label_smoothing: float) -> None:
    """The smoothing is a share.

    Raises:
        RuntimeError: it lies outside of 0 .. 1.
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")


def empty_is_zero(empty: str) -> bool:
    """What the mean over no elements is.

    Raises:
        ValueError: neither nan nor zero.
    """
    if empty not in {"nan", "zero"}:
        raise ValueError(f"{empty!r} is not a valid value for empty: wanted 'nan' or 'zero'.")
    return empty == "zero"


def check_out_dtype(out_dtype: torch.dtype | None) -> None:
    """The loss is floating.

    Raises:
        RuntimeError: the type asked for is not.
    """
    if out_dtype is not None and not out_dtype.is_floating_point:
        raise RuntimeError(f"out_dtype must be a floating type. Got: {out_dtype}")
