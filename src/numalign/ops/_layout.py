"""How a loss walks through its logits: which axes, in which order, in blocks of which size.

This module knows shapes and strides. It does not know what is computed in a block.

Logits have shape (C), (N, C) or (N, C, d1, ..., dk). An *element* is one position of the target: everything but the class
axis. Nothing here copies: every tensor that is returned is a view of the one that was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import prod

import torch
from torch import Tensor

# One block holds this many logits in the accumulate type: 2 MiB in fp32. Measured on a 2-core AVX2 machine (512 KiB of L2 a
# core, 8 MiB of L3), fp16, C = 21 and C = 128256, forward + backward in ns per logit: 2^17 7.9 and 6.1, 2^18 6.0 and 4.1,
# 2^19 5.2 and 3.5, 2^20 5.3 and 3.4, 2^21 5.8 and 4.4, 2^22 6.8 and 4.5. Below, starting operators costs more than their
# arithmetic; above, the block leaves the cache.
BLOCK_LOGITS = 2**19

# What is done once per element is done for this many at a time: int64 indices of 1 MiB, fp32 values of half of it. With the
# 2 to 4 elements that a block of 128256 classes has, a third of the time would go into starting operators.
GROUP_ELEMENTS = 2**17

# Up to this many classes stay together in a block; more are split, so that no class count can exhaust the work area
# (64 MiB in all, of which the probability loss needs two blocks, its indices and its temporaries).
BLOCK_CLASSES = 2**20

# Reducing over an innermost class axis is slow when it is short (ns per logit at C = 21: maximum 1.2, sum 0.4 to 0.6, against
# 0.1 and 0.1 over the outer axis), and transposing while copying costs 0.6 once. From about this size on the copy loses.
SHORT_CLASS_AXIS = 96


def class_axis(logits: Tensor) -> int:
    """The axis of the classes: 0 for one unbatched sample, else 1."""
    return 0 if logits.dim() == 1 else 1


def element_shape(logits: Tensor) -> tuple[int, ...]:
    """The shape of the target: that of the logits without the class axis."""
    axis = class_axis(logits)
    return tuple(logits.shape[:axis]) + tuple(logits.shape[axis + 1 :])


def fits_one_chunk(logits: Tensor) -> bool:
    """Whether a single block holds all classes of an element."""
    return logits.shape[class_axis(logits)] <= BLOCK_CLASSES


@lru_cache(maxsize=256)
def _merge(sizes: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> tuple[list[int], list[list[int]]]:
    """Order element axes as the first tensor lies in memory, and merge neighbours where the strides of all tensors allow.

    Kept per shape: for small inputs this costs as much as the arithmetic. The lists are not to be changed.
    """
    merged_sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for i in sorted((i for i in range(len(sizes)) if sizes[i] != 1), key=lambda i: -strides[0][i]):
        if merged_sizes and all(m[-1] == s[i] * sizes[i] for m, s in zip(merged, strides, strict=True)):
            merged_sizes[-1] *= sizes[i]
            for axis, stride in zip(merged, strides, strict=True):
                axis[-1] = stride[i]
        else:
            merged_sizes.append(sizes[i])
            for axis, stride in zip(merged, strides, strict=True):
                axis.append(stride[i])
    return (merged_sizes, merged) if merged_sizes else ([1], [[1] for _ in strides])


class Axes:
    """Common element axes of several tensors: the order in which the first lies in memory, and as few as strides allow.

    So contiguous, channels-last, transposed and sliced logits are all read along their lines.

    Args:
        by_class: tensors shaped like the logits; the first one decides the order.
        by_element: tensors shaped like the target.
    """

    def __init__(self, by_class: Sequence[Tensor], by_element: Sequence[Tensor]) -> None:
        axis = class_axis(by_class[0])
        self.n_classes: int = by_class[0].shape[axis]
        own = [t.stride() for t in by_class]
        strides = (*(s[:axis] + s[axis + 1 :] for s in own), *(t.stride() for t in by_element))
        self.sizes, self._merged = _merge(element_shape(by_class[0]), strides)
        self._class_strides = [s[axis] for s in own]
        self._by_class, self._by_element = by_class, by_element
        # Whether neighbouring classes lie closer together in memory than neighbouring elements.
        self.class_is_innermost = self._class_strides[0] <= self._merged[0][-1] or self.sizes == [1]

    def classes(self, *, first: bool) -> list[Tensor]:
        """Views (C, e1, ..., ek) or (e1, ..., ek, C), k >= 1, of the tensors by class."""
        size = (self.n_classes, *self.sizes) if first else (*self.sizes, self.n_classes)
        views = []
        for tensor, own, strides in zip(self._by_class, self._class_strides, self._merged, strict=False):
            views.append(tensor.as_strided(size, (own, *strides) if first else (*strides, own)))
        return views

    def elements(self) -> list[Tensor]:
        """Views (e1, ..., ek) of the tensors by element."""
        merged = self._merged[len(self._by_class) :]
        return [t.as_strided(self.sizes, strides) for t, strides in zip(self._by_element, merged, strict=True)]


def class_chunks(n_classes: int) -> list[slice]:
    """The class axis in pieces that fit into one block."""
    edges = [*range(0, n_classes, BLOCK_CLASSES), n_classes]
    return [slice(a, b) for a, b in pairwise(edges)]


def _cut(sizes: Sequence[int], limit: int) -> tuple[int, int]:
    """Which element axis to cut, and into pieces of which length, for at most ``limit`` elements (at least one) a block.

    The axes after it stay whole, those before it are walked one by one. Pieces are even, so that no last block is tiny.
    """
    cut, inner = len(sizes) - 1, 1
    while cut > 0 and inner * sizes[cut] <= limit:
        inner *= sizes[cut]
        cut -= 1
    step = max(1, limit // max(1, inner))
    if not sizes[cut]:
        return cut, 1
    even = -(-sizes[cut] // -(-sizes[cut] // step))
    # Whole cache lines, for the vector units and so that no two threads write to one line.
    return cut, min(step, -(-even // 64) * 64) if inner == 1 and even > 64 else even


def _pieces(
    by_class: Sequence[Tensor], by_element: Sequence[Tensor], step: int, elements: int, offset: int
) -> Iterator[tuple[Sequence[Tensor], Sequence[Tensor]]]:
    """Cut tensors by class into pieces of ``step`` along one axis, and those by element likewise along their first."""
    if by_class[0].shape[offset] <= step:
        yield by_class, by_element
        return
    # unsafe_split differs from split in what autograd, which is not at work here, may assume; and it costs half.
    classes = zip(*(t.unsafe_split(step, offset) for t in by_class), strict=True)
    yield from zip(classes, zip(*(t.unsafe_split(elements) for t in by_element), strict=True), strict=True)


class Walk:
    """A pass through tensors in blocks of elements, each block converted into the accumulate type in turn.

    Args:
        by_class: tensors shaped like the logits; the first one decides the order.
        by_element: tensors shaped like the target.
        dtype: the accumulate type.
        reduces: whether a block is reduced over its classes, which wants them on the outer axis when they are few.
        buffers: how many blocks are held in the accumulate type at a time; with none, elements alone are counted.
        grouped: yield groups of blocks, which :meth:`blocks` takes apart, so that what is done once per element is not
            done in the small portions that a block of many classes has.
    """

    def __init__(
        self,
        by_class: Sequence[Tensor],
        by_element: Sequence[Tensor],
        dtype: torch.dtype,
        *,
        reduces: bool,
        buffers: int = 1,
        grouped: bool = False,
    ) -> None:
        axes = Axes(by_class, by_element)
        self.n_classes = axes.n_classes
        outermost = not axes.class_is_innermost or (reduces and self.n_classes < SHORT_CLASS_AXIS)
        self.axis = 0 if outermost else 1  # of the classes in a buffer, (C, n) or (n, C)
        self.class_dim = 0 if outermost else -1  # of the classes in a block, (C, e1, ...) or (e1, ..., C)
        self._classes, self._elements = axes.classes(first=outermost), axes.elements()
        self._sizes = axes.sizes
        limit = max(1, BLOCK_LOGITS // max(1, self.n_classes)) if buffers else BLOCK_LOGITS
        self._cut, self._step = _cut(self._sizes, limit)
        self._inner = prod(self._sizes[self._cut + 1 :])
        blocks = max(1, GROUP_ELEMENTS // max(1, self._step * self._inner)) if grouped else 1
        self._group = self._step * blocks
        self.chunks = class_chunks(self.n_classes)
        self.whole = len(self.chunks) <= 1
        width, elements = min(self.n_classes, BLOCK_CLASSES), min(limit, prod(self._sizes))
        self.buffers = [Buffer(by_class[0], elements, width, dtype, self.axis) for _ in range(buffers)]

    def __iter__(self) -> Iterator[tuple[Sequence[Tensor], Sequence[Tensor]]]:
        """The blocks or groups, in a fixed order: views of the tensors by class and of those by element."""
        if 0 in self._sizes or self.n_classes == 0:
            return
        offset = 1 - self.axis
        for leading in product(*(range(s) for s in self._sizes[: self._cut])):
            classes, elements = self._classes, self._elements
            for i in leading:
                classes = [t.select(offset, i) for t in classes]
                elements = [t.select(0, i) for t in elements]
            yield from _pieces(classes, elements, self._group, self._group, offset)

    def blocks(
        self, by_class: Sequence[Tensor], by_element: Sequence[Tensor]
    ) -> Iterator[tuple[Sequence[Tensor], Sequence[Tensor]]]:
        """The blocks of one group: views of tensors by class, as the walk yields them, and of flat ones by element, (n)."""
        return _pieces(by_class, by_element, self._step, self._step * self._inner, 1 - self.axis)

    def chunk_of(self, tensor: Tensor, chunk: slice) -> Tensor:
        """A piece of the class axis of a block."""
        if self.whole:
            return tensor
        return tensor.narrow(self.class_dim, chunk.start, chunk.stop - chunk.start)

    def of_class(self, block: Tensor, classes: Tensor) -> Tensor | None:
        """One class of each element, (n), of a block with all its classes; or None where strides do not allow it at once."""
        if block.dim() != 2:
            return None
        (size, other), (stride, across) = block.shape, block.stride()
        if self.class_dim != 0:
            size, other, stride, across = other, size, across, stride
        numbers = _counting(other, block.device)
        if across == 1:
            flat = torch.add(numbers, classes, alpha=stride)
        elif stride == 1:
            flat = torch.add(classes, numbers, alpha=across)
        else:
            return None
        return block.as_strided([(size - 1) * stride + (other - 1) * across + 1], [1]).index_select(0, flat)

    def across(self, per_element: Tensor) -> Tensor:
        """One value per element (n), shaped to meet a buffer."""
        return per_element.unsqueeze(self.axis)

    def along(self, per_class: Tensor) -> Tensor:
        """One value per class (C), shaped to meet a buffer."""
        return per_class.unsqueeze(1 - self.axis)


class Buffer:
    """Work memory for one block in the accumulate type: classes on one axis, elements on the other."""

    def __init__(self, like: Tensor, elements: int, width: int, dtype: torch.dtype, axis: int) -> None:
        self._axis = axis
        self.memory = torch.empty(elements * width, dtype=dtype, device=like.device)
        self._views: dict[torch.Size, tuple[Tensor, Tensor]] = {}

    def _view(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        views = self._views.get(shape)
        if views is None:
            memory = self.memory[: shape.numel()]
            matrix = memory.view(shape[0], -1) if self._axis == 0 else memory.view(-1, shape[-1])
            views = self._views[shape] = (memory.view(shape), matrix)
        return views

    def matrix(self, shape: torch.Size) -> Tensor:
        """The buffer for a block of this shape, as (C, n) or (n, C)."""
        return self._view(shape)[1]

    def load(self, source: Tensor) -> Tensor:
        """Convert a block, of any strides, into the buffer; returns it as (C, n) or (n, C)."""
        view, matrix = self._view(source.shape)
        view.copy_(source)
        return matrix

    def store(self, target: Tensor) -> None:
        """Round the buffer into a block, of any strides."""
        target.copy_(self._view(target.shape)[0])

    def locate(self, matrix: Tensor, classes: Tensor, chunk: slice, *, whole: bool) -> Place:
        """Where one class of each element, (n), lies in ``matrix``, if it lies in this piece of the class axis."""
        inside = None
        if not whole:
            inside = (classes >= chunk.start) & (classes < chunk.stop)
            classes = torch.where(inside, classes - chunk.start, 0)
        numbers = _counting(classes.numel(), classes.device)
        if self._axis == 0:
            flat = torch.add(numbers, classes, alpha=classes.numel())
        else:
            flat = torch.add(classes, numbers, alpha=matrix.shape[1])
        return Place(matrix.view(-1), flat, inside)


@lru_cache(maxsize=4)
def _counting(n: int, device: torch.device) -> Tensor:
    """0 .. n - 1. Kept, since making it costs as much as using it; never written to."""
    return torch.arange(n, device=device)


@lru_cache(maxsize=4)
def _zeros(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Kept as well, and dense: scattering one value that is expanded takes twice as long. Never written to."""
    return torch.zeros(n, dtype=dtype, device=device)


class Place:
    """One position per element in a flat buffer. A flat index_select and scatter_ take half the time of those along an axis.

    Both are done here and not in the logits' own layout: scattering into a tensor that is not contiguous copies all of it.
    """

    def __init__(self, memory: Tensor, flat: Tensor, inside: Tensor | None) -> None:
        self._memory, self._flat, self._inside = memory, flat, inside

    def take(self, elsewhere: Tensor | None = None) -> Tensor:
        """The values there, (n); for elements whose class is not in the buffer ``elsewhere``, or 0."""
        values = self._memory.index_select(0, self._flat)
        if self._inside is None:
            return values
        return torch.where(self._inside, values, 0.0 if elsewhere is None else elsewhere)

    def take_from(self, block: Tensor) -> Tensor:
        """The values of a contiguous block that was loaded into the buffer, (n)."""
        return block.view(-1).index_select(0, self._flat)

    def take_into(self, out: Tensor) -> None:
        """As :meth:`take`, into ``out``, which is left as it is where the class is not in the buffer."""
        if self._inside is None:
            torch.index_select(self._memory, 0, self._flat, out=out)
        else:
            out.copy_(self.take(out))

    def put(self, value: Tensor | None = None) -> None:
        """Write ``value``, (n), or 0."""
        new = _zeros(self._flat.numel(), self._memory.dtype, self._memory.device) if value is None else value
        if self._inside is not None:
            new = torch.where(self._inside, new, self._memory.index_select(0, self._flat))
        self._memory.scatter_(0, self._flat, new)
