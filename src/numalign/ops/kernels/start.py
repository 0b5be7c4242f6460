"""What every launch needs: a choice of tiles, the element axes, a start past Triton's own, sums to be added up."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from numalign.ops._layout import class_axis, element_shape, merge
from numalign.ops.kernels import arithmetic, plan

_KINDS: dict[torch.dtype, int] = {
    torch.float16: arithmetic.NARROW.value,
    torch.bfloat16: arithmetic.NARROW.value,
    torch.float32: arithmetic.SINGLE.value,
    torch.float64: arithmetic.DOUBLE.value,
}


def kind_of(inputs: torch.dtype, loss: torch.dtype) -> int:
    """How to compute: with care unless both are of 16 bits, and never in fp64 for the sake of the loss alone."""
    return max(_KINDS[inputs], min(_KINDS[loss], _KINDS[torch.float32]))


ACCUMULATE = {torch.float32: tl.float32, torch.float64: tl.float64}

# Blocks that one lane adds up in a row, in plain fp32: 64 additions and the tree above them stay below 82 u, which is 0.01 ulp of
# fp16. Programs are as many as a GPU of some 132 multiprocessors holds at a time, or as that asks for.
_BLOCKS_IN_A_ROW = 64


@dataclass(frozen=True)
class Tiling:
    """A kernel, the sizes of its tiles, how many elements a program takes at a time, how many programs are enough, its warps."""

    kernel: Any
    sizes: tuple[int, ...]
    elements: int
    programs: int
    warps: int


class Axes:
    """The element axes of some tensors, as few as their strides allow: sizes, and strides with those of the class axis last."""

    def __init__(self, by_class: list[Tensor], by_element: list[Tensor]) -> None:
        axis = class_axis(by_class[0])
        own = [t.stride() for t in by_class]
        sizes, merged = merge(
            element_shape(by_class[0]), (*(s[:axis] + s[axis + 1 :] for s in own), *(t.stride() for t in by_element))
        )
        self.sizes = tuple(sizes)
        self.by_class = [(*m, s[axis]) for m, s in zip(merged, own, strict=False)]
        self.by_element = [tuple(m) for m in merged[len(by_class) :]]
        self.n_classes: int = by_class[0].shape[axis]
        self.n_elements: int = prod(sizes)
        *elements, classes = self.by_class[0]
        self.class_is_innermost = classes <= elements[-1] or self.n_elements == 1
        self.dense = len(sizes) == 1 and all(s == (self.n_classes, 1) for s in self.by_class)
        # A block may reach past the end before it is masked.
        reach = [self.n_elements, *(_extent(t) for t in (*by_class, *by_element))]
        self.wide = max(reach) + 2**20 >= 2**31

    def grid(self, tiling: Tiling) -> int:
        """How many programs to start."""
        blocks = -(-self.n_elements // tiling.elements)
        return max(1, min(blocks, tiling.programs), -(-blocks // _BLOCKS_IN_A_ROW))


def _extent(tensor: Tensor) -> int:
    return 1 + sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n)


def on(tensor: Tensor) -> AbstractContextManager[Any]:
    """Kernels start on the current device, whatever the device of their arguments."""
    device = tensor.device
    if device.type == "cpu":
        return nullcontext()
    module = torch.get_device_module(device)
    context: AbstractContextManager[Any] = (
        nullcontext() if module.current_device() == device.index else module.device(device)
    )
    return context


def compiled_for(warps: int) -> dict[str, Any]:
    """Options of a launch. Which multiply-adds are fused is written in the kernels: see :mod:`arithmetic`."""
    return {"num_warps": warps, "enable_fp_fusion": False}


class Start:
    """A kernel with all its arguments but the tensors.

    From its second call on it goes past Triton's look at the arguments, which takes longer than a small kernel. So it may be
    used only for tensors of the same types, strides and alignment.
    """

    def __init__(self, kernel: Any, programs: int, arguments: tuple[Any, ...], warps: int) -> None:
        self._kernel, self._arguments, self._warps = kernel, arguments, warps
        self._grid = (programs, 1, 1)
        self._compiled: Any = None

    def __call__(self, *tensors: Tensor | None) -> None:
        if self._compiled is not None:
            self._compiled[self._grid](*tensors, *self._arguments)
        else:
            self._compiled = self._kernel[self._grid](*tensors, *self._arguments, **compiled_for(self._warps))


def added_up(
    partial: Tensor, n_elements: int, reduction: int, has_weight: bool, empty_is_zero: bool, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Loss and divisor, from a plan without what is expected."""
    loss = torch.empty((), dtype=out_dtype, device=partial.device)
    sums = (partial.numel() - plan.HEADER.value) // 2
    options = (sums, n_elements, reduction, has_weight, False, False, empty_is_zero)
    with on(partial):
        plan.finish[(1,)](
            partial, None, loss, *options, ACCUMULATE[partial.dtype], plan.FINISH_BLOCK, 0, **compiled_for(4)
        )
    return loss, partial[plan.DIVISOR.value].clone()
