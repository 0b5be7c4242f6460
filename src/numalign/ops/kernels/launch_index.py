"""The launches for cross-entropy of class indices: which kernel, with which tiles, over which strides.

Nothing here looks at a value, so the host never waits for the device.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
import triton
from torch import Tensor

from numalign.ops._elements import accumulate_type
from numalign.ops._layout import element_shape
from numalign.ops._reduction import MEAN, NONE
from numalign.ops.kernels import index_loss, plan
from numalign.ops.kernels.long_rows import long_rows
from numalign.ops.kernels.packed import packed
from numalign.ops.kernels.rows import rows
from numalign.ops.kernels.start import ACCUMULATE, Axes, Start, Tiling, kind_of, on
from numalign.ops.kernels.strided import strided

# The kernels' own constants, as plain numbers: comparing Triton's takes a microsecond each.
LOSS, LOSS_AND_GRADIENT, GRADIENT = (
    c.value for c in (index_loss.LOSS, index_loss.LOSS_AND_GRADIENT, index_loss.GRADIENT)
)

# The tables below are from one H200, fp16 and bf16, forward and backward by graph replay, as multiples of the floor (logits read
# once, gradient written once, targets read once).


def _for_index_loss(n_classes: int, dtype: torch.dtype, *, innermost: bool, dense: bool) -> Tiling:
    """The kernel for a layout.

    Args:
        n_classes: C.
        dtype: of the logits.
        innermost: whether neighbouring classes lie closer together than neighbouring elements.
        dense: whether there is one element axis, whose stride is C, and that of the classes is 1.
    """
    if not innermost:
        return _for_strided(n_classes)
    if dense and n_classes <= 32 and dtype != torch.float64:
        vector = min(16 // dtype.itemsize, 8)
        each = vector // gcd(vector, n_classes)
        if each * n_classes <= 256:
            return Tiling(packed, (n_classes, vector, each, 32), 32 * each, 2112, 1)
    tile = triton.next_power_of_2(n_classes)
    if tile <= 4096:
        # 1024 classes: one warp 1.34, two warps 1.54; the next row loaded early 1.34, not 1.47.
        elements = max(1, 1024 // tile)
        return Tiling(rows, (2, elements, tile), elements, 2112, max(1, tile // 1024))
    # 32000 classes: 512 x 8 by 8 warps 1.23, 1024 x 8 by 16 1.35, 2048 x 8 by 32 1.57. 128256: 1.55, 1.53, 1.40; 262144: 1.62,
    # 1.63, 1.57. The longer the row, the fewer of them may be under way for the cache to hold what is read twice.
    slots, warps = (512, 8) if n_classes <= 65536 else (2048, 32)
    return Tiling(long_rows, (slots, 8), 1, 1056, warps)


def _for_strided(n_classes: int) -> Tiling:
    # 21 classes in registers: 512 elements by 4 warps 1.34, 128 by 1 warp 1.40, 128 by 2 1.37, read twice 2.1. 2 classes: 1024 by
    # 8 warps 1.43, 512 by 4 1.47. 150 classes, read twice: 15 at a time, 256 by 2 warps 1.49, 128 by 1 1.62.
    if n_classes <= 4:
        return Tiling(strided, (n_classes, 1, 1024), 1024, 1056, 8)
    if n_classes <= 32:
        return Tiling(strided, (n_classes, 1, 512), 512, 1056, 4)
    return Tiling(strided, (0, 15, 256), 256, 1056, 2)


_memories: dict[torch.device, Tensor] = {}


def memory_of(device: torch.device) -> Tensor:
    """What past steps on a device have shown, on that device: see :mod:`numalign.ops.kernels.plan`."""
    memory = _memories.get(device)
    if memory is None:
        memory = torch.ones(3, device=device)
        # What is made while a graph is captured belongs to that graph.
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _memories[device] = memory
    return memory


class _IndexLoss:
    """The launches for cross-entropy of class indices: all but the addresses of the tensors.

    Args:
        what: LOSS, LOSS_AND_GRADIENT or GRADIENT.
        per_element: the losses of a launch without reduction, or the incoming gradients of its backward; else None.
        expected: the incoming gradient to make one for, or None.
        remembers: whether what is expected is what the device has seen.
        loss_dtype: that of the loss. Where it is fp32, exponentials of 16-bit logits are worth the care they take in fp32.
    """

    def __init__(
        self,
        what: int,
        logits: Tensor,
        target: Tensor,
        weight: Tensor | None,
        per_element: Tensor | None,
        reduction: int,
        ignore_index: int,
        smoothing: float,
        empty_is_zero: bool,
        expected: float | None,
        remembers: bool,
        loss_dtype: torch.dtype,
    ) -> None:
        by_element = [target] if per_element is None else [target, per_element]
        axes = Axes([logits, torch.empty_like(logits, device="meta")], by_element)
        tiling = _for_index_loss(axes.n_classes, logits.dtype, innermost=axes.class_is_innermost, dense=axes.dense)
        programs = axes.grid(tiling)
        self.dtype = accumulate_type(logits.dtype)
        acc, has_weight = ACCUMULATE[self.dtype], weight is not None
        ahead = remembers or expected is not None
        first = 1
        if reduction == MEAN and ahead:
            first = min(plan.MOST_PROGRAMS, triton.next_power_of_2(max(1, -(-axes.n_elements // plan.BLOCK))))
        self.sums_weight = has_weight and smoothing > 0
        self.plan_size = plan.HEADER.value + first + 2 * programs
        self.prepare = Start(
            plan.prepare,
            first,
            (axes.sizes, axes.by_element[0], axes.n_elements, axes.n_classes, ignore_index, expected or 0.0)
            + (has_weight, remembers, reduction == MEAN, len(axes.sizes), axes.wide, acc, plan.BLOCK, first),
            4,
        )
        self.loss = Start(
            tiling.kernel,
            programs,
            (axes.sizes, *axes.by_class, axes.by_element[0], axes.by_element[-1], axes.n_elements, axes.n_classes)
            + (ignore_index, what, reduction, empty_is_zero, remembers, has_weight, smoothing)
            + (kind_of(logits.dtype, loss_dtype), acc, len(axes.sizes), axes.wide, first, *tiling.sizes),
            tiling.warps,
        )
        self.finish = Start(
            plan.finish,
            1,
            (programs, axes.n_elements, reduction, has_weight, ahead, remembers, empty_is_zero)
            + (acc, plan.FINISH_BLOCK, first),
            4,
        )

    def weight_sum(self, weight: Tensor | None) -> Tensor | None:
        """sum_c w_c, if the smoothing asks for it."""
        return weight.to(self.dtype).sum() if self.sums_weight and weight is not None else None


# A model with a new size at every step has the oldest forgotten.
_MOST_KEPT = 1024
_index_losses: dict[tuple[Any, ...], _IndexLoss] = {}


def _index_loss(
    what: int, logits: Tensor, target: Tensor, weight: Tensor | None, per_element: Tensor | None, *options: Any
) -> _IndexLoss:
    key = (
        what,
        logits.shape,
        logits.stride(),
        logits.dtype,
        logits.device,
        target.stride(),
        target.dtype,
        None if weight is None else weight.dtype,
        None if per_element is None else (per_element.dtype, per_element.stride()),
        # Addresses are aligned to 16 bytes or not, which Triton makes different code for.
        (logits.data_ptr() | target.data_ptr() | (0 if weight is None else weight.data_ptr())) & 15,
        options,
    )
    found = _index_losses.get(key)
    if found is None:
        if len(_index_losses) >= _MOST_KEPT:
            _index_losses.pop(next(iter(_index_losses)))
        found = _index_losses[key] = _IndexLoss(what, logits, target, weight, per_element, *options)
    return found


def _placed(target: Tensor, logits: Tensor) -> Tensor:
    """The target in the shape of the element axes: that of a single element may be (1) or 0-D."""
    shape = element_shape(logits)
    return target if target.shape == shape else target.reshape(shape)


def _forward(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
    expected: float | None,
    memory: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The loss, the gradient for the incoming one that is expected, and the plan."""
    target = _placed(target, logits)
    weight = None if weight is None else weight.contiguous()
    single = reduction == NONE
    loss = torch.empty(element_shape(logits) if single else (), dtype=out_dtype, device=logits.device)
    ahead = not single and (expected is not None or memory is not None)
    options = (
        reduction,
        ignore_index,
        smoothing,
        empty_is_zero,
        expected if ahead else None,
        memory is not None,
        out_dtype,
    )
    per_element = loss if single else None
    launches = _index_loss(LOSS_AND_GRADIENT if ahead else LOSS, logits, target, weight, per_element, *options)
    gradient = torch.empty_like(logits) if ahead else None
    made_for = torch.empty(launches.plan_size, dtype=launches.dtype, device=logits.device)
    with on(logits):
        if ahead:
            launches.prepare(made_for, memory, target, weight)
        sums = launches.weight_sum(weight)
        launches.loss(logits, gradient, target, weight, sums, per_element, made_for, memory)
        if not single:
            launches.finish(made_for, memory, loss)
    return loss, gradient, made_for


def index_forward(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    empty_is_zero: bool,
    expected: float | None,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Cross-entropy of class indices: see :func:`numalign.ops._index_loss.forward`. Nothing is kept per element."""
    options = (reduction, ignore_index, smoothing, empty_is_zero, out_dtype)
    loss, gradient, made_for = _forward(logits, target, weight, *options, expected, None)
    divisor = made_for.new_ones(()) if reduction == NONE else made_for[plan.DIVISOR.value].clone()
    nothing = divisor.new_empty(0)
    return loss, nothing, nothing.clone(), divisor, logits.new_empty(0) if gradient is None else gradient


def index_ahead(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Loss, the gradient for the incoming one that the device has seen last, and the plan that says which that is."""
    options = (reduction, ignore_index, smoothing, empty_is_zero, out_dtype)
    return _forward(logits, target, weight, *options, None, memory_of(logits.device))


def index_settle(
    gradient: Tensor,
    made_for: Tensor,
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
) -> None:
    """Make the ``gradient`` of :func:`index_ahead` again, in place, unless the plan ``made_for`` came true."""
    _backward(
        gradient, made_for, memory_of(logits.device), grad, logits, target, weight, reduction, ignore_index, smoothing
    )


def divisor_of(made_for: Tensor) -> Tensor:
    """What a mean was divided by, 0-D, from the plan of :func:`index_ahead`."""
    return made_for[plan.DIVISOR.value]


def index_backward(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    top: Tensor,
    others: Tensor,
    divisor: Tensor,
    reduction: int,
    ignore_index: int,
    smoothing: float,
) -> Tensor:
    """d loss / d logits: see :func:`numalign.ops._index_loss.backward`."""
    gradient = torch.empty_like(logits)
    _backward(gradient, divisor, None, grad, logits, target, weight, reduction, ignore_index, smoothing)
    return gradient


def _backward(
    gradient: Tensor,
    made_for: Tensor,
    memory: Tensor | None,
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
) -> None:
    target = _placed(target, logits)
    weight = None if weight is None else weight.contiguous()
    per_element = grad.expand(target.shape) if reduction == NONE else None
    options = (reduction, ignore_index, smoothing, False, None, memory is not None, grad.dtype)
    launches = _index_loss(GRADIENT, logits, target, weight, per_element, *options)
    with on(logits):
        launches.loss(logits, gradient, target, weight, launches.weight_sum(weight), grad, made_for, memory)
