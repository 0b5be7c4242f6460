"""The public functions: ``cross_entropy`` and ``nll_loss``."""

from __future__ import annotations

import torch
from torch import Tensor

from numalign.ops import _arguments, _operators
from numalign.ops._probability_loss import promoted
from numalign.ops._reduction import reduction_code


def cross_entropy(
    input: Tensor,  # noqa: A002  # PyTorch's name for the argument
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Cross-entropy of logits, computed in the accumulate type and rounded once.

    For class indices t, with weights w (default 1) and smoothing e, the loss of one element is::

        l = -(1 - e) w_t log p_t - e / C sum_c w_c log p_c,    p = softmax(x)

    and ``mean`` is ``sum(l) / sum(w_t)`` over the elements that are not ignored. For class probabilities q it is
    ``-sum_c w_c ((1 - e) q_c + e / C) log p_c`` and ``mean`` divides by the number of elements.

    Args:
        input: logits x, (C), (N, C) or (N, C, d1, ..., dk); fp16, bf16, fp32 or fp64; any strides. Neither copied nor
            written to.
        target: class indices of any integer type, (), (N) or (N, d1, ..., dk); or probabilities of any floating type,
            shaped like the input.
        weight: (C), any floating type.
        ignore_index: class index that counts neither in the loss nor in the gradient.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        label_smoothing: e, from 0 to 1.
        empty: the mean over no elements: ``"nan"``, as PyTorch has it, or ``"zero"``.
        out_dtype: type of the result. Default: that of the input (promoted with target and weight for probabilities);
            fp32 under autocast. ``torch.float32`` keeps the loss unrounded for fp16 and bf16.

    Returns:
        The loss: shaped like the target of class indices for ``none``, else 0-D.

    Raises:
        ValueError: batch sizes that differ, a 0-D input, an unknown ``reduction`` or ``empty``.
        RuntimeError: other shapes that do not fit, wrong types, ``label_smoothing`` outside of 0 .. 1.
        IndexError: on the CPU, a target out of range. On other devices such an element makes the loss and its own
            gradient nan, as looking at the values would stall the host.
        NotImplementedError: an input that is not of floating type.

    **Error bound**, in ulp of the result's type, u32 = 2^-24, k = incoming gradient * weight / total weight:

    * fp16, bf16: loss 0.51 ulp; gradient 0.51 ulp + 4 u32 |k|.
    * fp32: loss 4 ulp; gradient 4 ulp + 4 u32 |k|. As p_t -> 1 the loss and the gradient of the true class keep their
      relative accuracy: it is that of x_c - x_t, u32 (|x_c - x_t| + 4), so 8 ulp at p_t = 1 - 1e-6.
    * fp64: as fp32, with the units of fp64.

    The bounds are for non-negative weights and do not depend on the number of elements. Results are the same, bit by bit,
    from run to run and for every number of threads.

    Memory beyond input and gradient: 8 bytes per element of the target (16 for fp64) and a work area of a few MiB; the work area
    alone for a mean or sum of class indices, without smoothing, on the CPU. In eager mode the gradient of these is made in the
    forward already, for the incoming gradient of the last steps; with another one it is made again in the backward, with the
    same bits.

    Differs from :func:`torch.nn.functional.cross_entropy`, which rounds the logarithm of the softmax, the sum, the total
    weight and their quotient to the input's type: in fp16 its mean is inf or nan, and its gradient zero, from some 2^15
    elements on. Any integer type is taken for class indices, and any floating type for the weight. Twice differentiable with
    respect to input and probabilities; forward-mode derivatives are not available.

    Source: the softmax and the double sum as in N. J. Higham et al., "Accurately computing the log-sum-exp and softmax
    functions", IMA J. Numer. Anal. 41 (2021).
    """
    _arguments.check_smoothing(label_smoothing)
    _arguments.check_out_dtype(out_dtype)
    return checked_cross_entropy(
        input,
        target,
        weight,
        reduction_code(reduction),
        ignore_index,
        label_smoothing,
        empty_is_zero=_arguments.empty_is_zero(empty),
        out_dtype=out_dtype,
    )


def nll_loss(
    input: Tensor,  # noqa: A002  # PyTorch's name for the argument
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    empty: str = "nan",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Negative log-likelihood, summed in the accumulate type and rounded once.

    The loss of one element is ``-w_t x_t``; ``mean`` is ``sum(-w_t x_t) / sum(w_t)`` over those not ignored.

    Args:
        input: log-probabilities x, (C), (N, C) or (N, C, d1, ..., dk); fp16, bf16, fp32 or fp64; any strides.
        target: class indices of any integer type, (), (N) or (N, d1, ..., dk).
        weight: (C), any floating type.
        ignore_index: class index that counts neither in the loss nor in the gradient.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        empty: the mean over no elements: ``"nan"``, as PyTorch has it, or ``"zero"``.
        out_dtype: type of the result; default that of the input, fp32 under autocast.

    Returns:
        The loss: shaped like the target for ``none``, else 0-D.

    Raises:
        ValueError, RuntimeError, IndexError, NotImplementedError: as :func:`cross_entropy`.

    **Error bound** for log-probabilities (inputs of one sign) and non-negative weights: loss 0.51 ulp in fp16 and bf16, 4 ulp in
    fp32; gradient 0.51 and 2 ulp. Bit-equal from run to run and for every number of threads.

    Differs from :func:`torch.nn.functional.nll_loss`, which keeps sum, total weight and quotient in the input's type.
    A logarithm that was rounded to fp16 before it came here stays rounded: prefer :func:`cross_entropy` on the logits.
    """
    _arguments.check_out_dtype(out_dtype)
    return checked_nll_loss(
        input,
        target,
        weight,
        reduction_code(reduction),
        ignore_index,
        empty_is_zero=_arguments.empty_is_zero(empty),
        out_dtype=out_dtype,
    )


def checked_cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    *,
    empty_is_zero: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Check the tensors and call the operator for the kind of target. The options are PyTorch's internal ones."""
    if weight is None and smoothing == 0:
        usual = _operators.usual_loss(logits, target, reduction, ignore_index, empty_is_zero, out_dtype)
        if usual is not None:
            return usual
    if weight is not None or not _arguments.fits_at_sight(logits.shape, logits.dtype, target.shape, target.dtype):
        _arguments.check_input(logits, target)
        if _arguments.is_probability_target(logits, target):
            _arguments.check_probability_target(logits, target, ignore_index)
            _arguments.check_weight(logits, weight, differentiable=True)
            dtype = out_dtype or _result_type(promoted(logits, target, weight), logits)
            soft: tuple[Tensor, ...] = _operators.soft_cross_entropy(
                logits, target, weight, reduction, smoothing, empty_is_zero, dtype
            )
            return soft[0]
        _arguments.check_index_target(logits, target)
        _arguments.check_weight(logits, weight, differentiable=False)
    dtype = out_dtype or _result_type(logits.dtype, logits)
    return _operators.index_loss(logits, target, weight, reduction, ignore_index, smoothing, empty_is_zero, dtype)


def checked_nll_loss(
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    *,
    empty_is_zero: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Check the tensors and call the operator. The options are PyTorch's internal ones."""
    _arguments.check_input(log_probabilities, target)
    _arguments.check_index_target(log_probabilities, target)
    _arguments.check_weight(log_probabilities, weight, differentiable=False)
    dtype = out_dtype or _result_type(log_probabilities.dtype, log_probabilities)
    outputs: tuple[Tensor, ...] = _operators.nll_loss(
        log_probabilities, target, weight, reduction, ignore_index, empty_is_zero, dtype
    )
    return outputs[0]


def _result_type(dtype: torch.dtype, like: Tensor) -> torch.dtype:
    """PyTorch's autocast runs both losses in fp32; here only the result needs to be."""
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(like.device.type):
        return torch.float32 if dtype in {torch.float16, torch.bfloat16} else dtype
    return dtype
