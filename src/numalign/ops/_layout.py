"""How a loss walks through its logits: which axes, in which order, in blocks of which size.

This module knows shapes and strides. It does not know what is computed in a block.

Logits have shape (C), (N, C) or (N, C, d1, ..., dk). An *element* is one position of the target: everything but the class
axis. Nothing here copies: every tensor that is returned is a view of the one that was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    return logits.size(class_axis(logits)) <= BLOCK_CLASSES


def merge(sizes: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> tuple[list[int], list[list[int]]]:
    """Element axes, as the first tensor lies in memory, neighbours merged where the strides of all tensors allow."""
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


def class_chunks(n_classes: int, block_classes: int) -> list[slice]:
    """The class axis in pieces that fit into one block."""
    edges = [*range(0, n_classes, block_classes), n_classes]
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


@dataclass(frozen=True)
class _Plan:
    """What a walk knows from shapes and strides alone."""

    axis: int  # of the classes in a buffer, (C, n) or (n, C)
    class_dim: int  # of the classes in a block, (C, e1, ...) or (e1, ..., C)
    sizes: list[int]  # of the element axes, merged
    classes: list[tuple[tuple[int, ...], tuple[int, ...]]]  # size and strides of the tensors by class
    elements: list[list[int]]  # strides of the tensors by element
    cut: int  # the element axis that is cut
    step: int  # into pieces of this length
    inner: int  # elements for each index of that axis
    group: int  # length of the pieces that are yielded, each of one or more blocks
    chunks: list[slice]
    block_elements: int


@lru_cache(maxsize=256)
def _plan(
    shape: tuple[int, ...],
    by_class: tuple[tuple[int, ...], ...],
    by_element: tuple[tuple[int, ...], ...],
    reduces: bool,
    buffered: bool,
    grouped: bool,
    block_logits: int,
    block_classes: int,
) -> _Plan:
    """Order element axes as the first tensor lies in memory, merge neighbours where the strides of all tensors allow, and cut.

    So contiguous, channels-last, transposed and sliced logits are all read along their lines. Kept per shape and strides: for
    small inputs this costs as much as the arithmetic. The lists are not to be changed.
    """
    axis = 0 if len(shape) == 1 else 1
    n_classes = shape[axis]
    strides = (*(s[:axis] + s[axis + 1 :] for s in by_class), *by_element)
    sizes, merged = merge(shape[:axis] + shape[axis + 1 :], strides)
    # Whether neighbouring classes lie closer together in memory than neighbouring elements.
    class_is_innermost = by_class[0][axis] <= merged[0][-1] or sizes == [1]
    outermost = not class_is_innermost or (reduces and n_classes < SHORT_CLASS_AXIS)
    classes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for own, others in zip(by_class, merged, strict=False):
        if outermost:
            classes.append(((n_classes, *sizes), (own[axis], *others)))
        else:
            classes.append(((*sizes, n_classes), (*others, own[axis])))
    limit = max(1, block_logits // max(1, n_classes)) if buffered else block_logits
    cut, step = _cut(sizes, limit)
    inner = prod(sizes[cut + 1 :])
    blocks = max(1, GROUP_ELEMENTS // max(1, step * inner)) if grouped else 1
    return _Plan(
        axis=0 if outermost else 1,
        class_dim=0 if outermost else -1,
        sizes=sizes,
        classes=classes,
        elements=merged[len(by_class) :],
        cut=cut,
        step=step,
        inner=inner,
        group=step * blocks,
        chunks=class_chunks(n_classes, block_classes),
        block_elements=min(limit, prod(sizes)),
    )


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
        logits = by_class[0]
        plan = _plan(
            logits.shape,
            tuple([t.stride() for t in by_class]),
            tuple([t.stride() for t in by_element]),
            reduces,
            buffers > 0,
            grouped,
            BLOCK_LOGITS,
            BLOCK_CLASSES,
        )
        self._plan = plan
        self.axis, self.class_dim, self.chunks = plan.axis, plan.class_dim, plan.chunks
        self.n_classes: int = logits.shape[class_axis(logits)]
        self.whole = len(self.chunks) <= 1
        self._classes = [t.as_strided(size, stride) for t, (size, stride) in zip(by_class, plan.classes, strict=True)]
        self._elements = [t.as_strided(plan.sizes, s) for t, s in zip(by_element, plan.elements, strict=True)]
        width = min(self.n_classes, BLOCK_CLASSES)
        self.buffers = [Buffer(logits, plan.block_elements, width, dtype, self.axis) for _ in range(buffers)]

    def __iter__(self) -> Iterator[tuple[Sequence[Tensor], Sequence[Tensor]]]:
        """The blocks or groups, in a fixed order: views of the tensors by class and of those by element."""
        plan = self._plan
        if 0 in plan.sizes or self.n_classes == 0:
            return
        offset = 1 - self.axis
        for leading in product(*(range(s) for s in plan.sizes[: plan.cut])):
            classes, elements = self._classes, self._elements
            for i in leading:
                classes = [t.select(offset, i) for t in classes]
                elements = [t.select(0, i) for t in elements]
            yield from _pieces(classes, elements, plan.group, plan.group, offset)

    def blocks(
        self, by_class: Sequence[Tensor], by_element: Sequence[Tensor]
    ) -> Iterator[tuple[Sequence[Tensor], Sequence[Tensor]]]:
        """The blocks of one group: views of tensors by class, as the walk yields them, and of flat ones by element, (n)."""
        step = self._plan.step
        return _pieces(by_class, by_element, step, step * self._plan.inner, 1 - self.axis)

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
        numbers = counting(other, block.device)
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

    def view(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """The buffer for a block of this shape, in that shape and as (C, n) or (n, C)."""
        views = self._views.get(shape)
        if views is None:
            memory = self.memory[: shape.numel()]
            matrix = memory.view(shape[0], -1) if self._axis == 0 else memory.view(-1, shape[-1])
            views = self._views[shape] = (memory.view(shape), matrix)
        return views

    def matrix(self, shape: torch.Size) -> Tensor:
        """The buffer for a block of this shape, as (C, n) or (n, C)."""
        return self.view(shape)[1]

    def load(self, source: Tensor) -> Tensor:
        """Convert a block, of any strides, into the buffer; returns it as (C, n) or (n, C)."""
        view, matrix = self.view(source.shape)
        view.copy_(source)
        return matrix

    def store(self, target: Tensor) -> None:
        """Round the buffer into a block, of any strides."""
        target.copy_(self.view(target.shape)[0])

    def locate(self, matrix: Tensor, classes: Tensor, chunk: slice, *, whole: bool) -> Place:
        """Where one class of each element, (n), lies in ``matrix``, if it lies in this piece of the class axis."""
        inside = None
        if not whole:
            inside = (classes >= chunk.start) & (classes < chunk.stop)
            classes = torch.where(inside, classes - chunk.start, 0)
        numbers = counting(classes.numel(), classes.device)
        if self._axis == 0:
            flat = torch.add(numbers, classes, alpha=classes.numel())
        else:
            flat = torch.add(classes, numbers, alpha=matrix.shape[1])
        return Place(matrix.view(-1), flat, inside)


@lru_cache(maxsize=4)
def counting(n: int, device: torch.device | str = "cpu") -> Tensor:
    """0 .. n - 1. Kept, since making it costs as much as using it; never written to."""
    return torch.arange(n, device=device)


@lru_cache(maxsize=4)
def zeros(n: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
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
        new = zeros(self._flat.numel(), self._memory.dtype, self._memory.device) if value is None else value
        if self._inside is not None:
            new = torch.where(self._inside, new, self._memory.index_select(0, self._flat))
        self._memory.scatter_(0, self._flat, new)
