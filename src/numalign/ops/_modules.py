"""The public modules, drop-in for those of ``torch.nn``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from numalign.ops._functional import cross_entropy, nll_loss


class CrossEntropyLoss(nn.Module):
    """:func:`numalign.cross_entropy` as a module. Arguments, shapes, errors and error bound are documented there.

    Differs from :class:`torch.nn.CrossEntropyLoss` in that it takes ``empty`` and ``out_dtype``, and none of the deprecated
    ``size_average`` and ``reduce``.
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        empty: str = "nan",
        out_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.empty = empty
        self.out_dtype = out_dtype

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002  # PyTorch's name for the argument
        """The loss of logits ``input`` against ``target``."""
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            empty=self.empty,
            out_dtype=self.out_dtype,
        )

    def extra_repr(self) -> str:
        """The options that are not at their defaults matter most, so all are shown."""
        return (
            f"ignore_index={self.ignore_index}, reduction={self.reduction!r}, label_smoothing={self.label_smoothing}, "
            f"empty={self.empty!r}, out_dtype={self.out_dtype}"
        )


class NLLLoss(nn.Module):
    """:func:`numalign.nll_loss` as a module. Arguments, shapes, errors and error bound are documented there.

    Differs from :class:`torch.nn.NLLLoss` in that it takes ``empty`` and ``out_dtype``, and none of the deprecated
    ``size_average`` and ``reduce``.
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        empty: str = "nan",
        out_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.empty = empty
        self.out_dtype = out_dtype

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002  # PyTorch's name for the argument
        """The loss of log-probabilities ``input`` against ``target``."""
        return nll_loss(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            empty=self.empty,
            out_dtype=self.out_dtype,
        )

    def extra_repr(self) -> str:
        """The options, as they were given."""
        return (
            f"ignore_index={self.ignore_index}, reduction={self.reduction!r}, empty={self.empty!r}, "
            f"out_dtype={self.out_dtype}"
        )
