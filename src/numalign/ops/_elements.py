"""What a loss needs per element of the target: its class, its weight, and sums whose bits do not depend on the threads."""

from __future__ import annotations

import torch
from torch import Tensor

from numalign.ops._layout import class_axis

# A sum of so many values is done by one thread; from 2^15 on PyTorch splits it by the number of threads, and its bits would
# follow that number.
_SERIAL_SUM = 2**15 - 64


def accumulate_type(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: fp64 for fp64, fp32 for everything narrower."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def fixed_order_sum(values: Tensor) -> Tensor:
    """The sum of a 1-D tensor, in an order that only its length decides."""
    while values.numel() > _SERIAL_SUM:
        whole = values.numel() // _SERIAL_SUM * _SERIAL_SUM
        parts = values[:whole].view(-1, _SERIAL_SUM).sum(-1)
        values = torch.cat([parts, values[whole:].sum(0, keepdim=True)]) if whole < values.numel() else parts
    return values.sum()


def sum_of_parts(parts: list[Tensor], like: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of 0-D partial sums, in their order; zero when there are none."""
    if not parts:
        return torch.zeros((), dtype=dtype, device=like.device)
    return parts[0] if len(parts) == 1 else fixed_order_sum(torch.stack(parts))


def read_classes(
    target: Tensor, n_classes: int, ignore_index: int, shapes: tuple[torch.Size, torch.Size]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The classes of a block of targets, made safe to index with.

    On the CPU a class out of range raises. Elsewhere looking at the values would stall the host, so such elements are
    flagged instead: their weight becomes nan, and with it the loss and the gradient. Nothing is ever read out of bounds.

    Args:
        target: (e1, ..., ek), any integer type, any strides. Not written to.
        n_classes: number of classes.
        ignore_index: class that marks an element as ignored.
        shapes: those of the logits and of the target, for the message.

    Returns:
        The classes as int64 (n), ignored elements set to 0; a mask of the ignored ones and a mask of those out of range,
        each None when known to be empty.

    Raises:
        IndexError: on the CPU, a class that is neither ignored nor in 0 .. n_classes - 1.
    """
    classes = target.reshape(-1).to(torch.int64)
    if target.device.type != "cpu":
        ignored = classes == ignore_index
        astray = ((classes < 0) | (classes >= n_classes)) & ~ignored
        return classes.masked_fill(ignored | astray, 0), ignored, astray
    low, high = _range(classes)
    if low >= 0 and high < n_classes and not low <= ignore_index <= high:
        return classes, None, None
    ignored = classes == ignore_index
    classes = classes.masked_fill(ignored, 0)
    low, high = _range(classes)
    if low < 0 or high >= n_classes:
        value = low if low < 0 else high
        raise IndexError(
            f"Target {value} is out of bounds: wanted a class from 0 to {n_classes - 1} "
            f"or ignore_index={ignore_index} (logits {list(shapes[0])}, target {list(shapes[1])})."
        )
    return classes, ignored, None


def all_in_range(target: Tensor, n_classes: int, ignore_index: int) -> bool:
    """Whether all targets are known to be int64, in range and not ignored. Looks at the values on the CPU alone."""
    if not target.is_cpu or target.dtype != torch.int64 or target.numel() == 0:
        return False
    low, high = torch.aminmax(target)
    lowest, highest = low.item(), high.item()
    return lowest >= 0 and highest < n_classes and not lowest <= ignore_index <= highest


def _range(classes: Tensor) -> tuple[int, int]:
    low, high = torch.aminmax(classes)
    return int(low), int(high)


def element_weights(
    table: Tensor | None, classes: Tensor, ignored: Tensor | None, astray: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """The weight of each element (n): 0 where ignored, nan where out of range; None when all are 1.

    Args:
        table: (C), in the accumulate type, or None.
        classes: (n), int64, in range.
        ignored: (n), bool, or None.
        astray: (n), bool, or None.
        dtype: the accumulate type.
    """
    if table is not None:
        weights = table.index_select(0, classes)
        if ignored is not None:
            weights.masked_fill_(ignored, 0.0)
    elif ignored is not None:
        weights = torch.logical_not(ignored).to(dtype)
    else:
        return None
    if astray is not None:
        weights.masked_fill_(astray, torch.nan)
    return weights


class TotalWeight:
    """The sum of the weights of all elements, block by block. Blocks without weights are counted on the host."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self._like, self._dtype = like, dtype
        self._count = 0
        self._parts: list[Tensor] = []

    def add(self, elements: int, weights: Tensor | None) -> None:
        """One block: the number of its elements, and their weights (n) or None for ones."""
        if weights is None:
            self._count += elements
        else:
            self._parts.append(fixed_order_sum(weights))

    def total(self) -> Tensor:
        """The sum so far, 0-D, in the accumulate type."""
        if not self._parts:
            return torch.full((), float(self._count), dtype=self._dtype, device=self._like.device)
        return sum_of_parts(self._parts, self._like, self._dtype) + float(self._count)


class IndexTargets:
    """How class indices, their weights and the smoothing are to be read; the same for forward and backward."""

    def __init__(
        self, logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float
    ) -> None:
        self.n_classes: int = logits.shape[class_axis(logits)]
        self.dtype = accumulate_type(logits.dtype)
        self.weight = None if weight is None else weight.to(self.dtype).contiguous()  # (C)
        self.smoothing = smoothing
        self._ignore_index = ignore_index
        self._shapes = (logits.shape, target.shape)
        # One look at all targets, where nothing is found in most cases, saves one at every block.
        self._plain = all_in_range(target, self.n_classes, ignore_index)

    def read(self, target: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Classes (n), weights (n) or None, and a mask (n) or None of ignored elements, of one block of targets."""
        if self._plain:
            classes = target if target.dim() == 1 else target.reshape(-1)
            return classes, None if self.weight is None else self.weight.index_select(0, classes), None
        classes, ignored, astray = read_classes(target, self.n_classes, self._ignore_index, self._shapes)
        return classes, element_weights(self.weight, classes, ignored, astray, self.dtype), ignored

    def weight_sum(self) -> float | Tensor:
        """The sum of the weights of all classes."""
        return float(self.n_classes) if self.weight is None else fixed_order_sum(self.weight)
