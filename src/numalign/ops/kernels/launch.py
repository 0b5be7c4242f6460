"""The kernels as implementations of the operators: which one, with which tiles, over which strides.

Nothing here looks at a value, so the host never waits for the device.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from numalign.ops._elements import accumulate_type
from numalign.ops._layout import class_axis, element_shape, merge
from numalign.ops._probability_loss import promoted
from numalign.ops._reduction import MEAN, NONE, SUM
from numalign.ops.kernels import arithmetic, index_loss, plan
from numalign.ops.kernels import soft as soft_loss
from numalign.ops.kernels.long_rows import long_rows
from numalign.ops.kernels.packed import packed
from numalign.ops.kernels.picked import picked, put_back
from numalign.ops.kernels.rows import rows
from numalign.ops.kernels.soft import soft
from numalign.ops.kernels.strided import strided

# The kernels' own constants, as plain numbers: comparing Triton's takes a microsecond each.
LOSS, LOSS_AND_GRADIENT, GRADIENT = (
    c.value for c in (index_loss.LOSS, index_loss.LOSS_AND_GRADIENT, index_loss.GRADIENT)
)
SOFT_LOSS, SOFT_GRADIENT, TARGET_GRADIENT = (
    c.value for c in (soft_loss.LOSS, soft_loss.GRADIENT, soft_loss.TARGET_GRADIENT)
)
_KINDS: dict[torch.dtype, int] = {
    torch.float16: arithmetic.NARROW.value,
    torch.bfloat16: arithmetic.NARROW.value,
    torch.float32: arithmetic.SINGLE.value,
    torch.float64: arithmetic.DOUBLE.value,
}


def _kind(inputs: torch.dtype, loss: torch.dtype) -> int:
    """How to compute: with care unless both are of 16 bits, and never in fp64 for the sake of the loss alone."""
    return max(_KINDS[inputs], min(_KINDS[loss], _KINDS[torch.float32]))


_ACCUMULATE = {torch.float32: tl.float32, torch.float64: tl.float64}

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


def _for_soft(n_classes: int, *, innermost: bool) -> Tiling:
    if innermost:
        tile = min(2048, triton.next_power_of_2(n_classes))
        elements = max(1, 512 // tile)
        return Tiling(soft, (elements, tile), elements, 2112, max(1, tile // 512))
    return Tiling(soft, (128, min(8, triton.next_power_of_2(n_classes))), 128, 2112, 1)


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


def _on(tensor: Tensor) -> AbstractContextManager[Any]:
    """Kernels start on the current device, whatever the device of their arguments."""
    device = tensor.device
    if device.type == "cpu":
        return nullcontext()
    module = torch.get_device_module(device)
    context: AbstractContextManager[Any] = (
        nullcontext() if module.current_device() == device.index else module.device(device)
    )
    return context


def _compiled_for(warps: int) -> dict[str, Any]:
    """Options of a launch. Which multiply-adds are fused is written in the kernels: see :mod:`arithmetic`."""
    return {"num_warps": warps, "enable_fp_fusion": False}


class _Start:
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
            self._compiled = self._kernel[self._grid](*tensors, *self._arguments, **_compiled_for(self._warps))


_PICKED = Tiling(picked, (1024,), 1024, 1056, 4)

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
        acc, has_weight = _ACCUMULATE[self.dtype], weight is not None
        ahead = remembers or expected is not None
        first = 1
        if reduction == MEAN and ahead:
            first = min(plan.MOST_PROGRAMS, triton.next_power_of_2(max(1, -(-axes.n_elements // plan.BLOCK))))
        self.sums_weight = has_weight and smoothing > 0
        self.plan_size = plan.HEADER.value + first + 2 * programs
        self.prepare = _Start(
            plan.prepare,
            first,
            (axes.sizes, axes.by_element[0], axes.n_elements, axes.n_classes, ignore_index, expected or 0.0)
            + (has_weight, remembers, reduction == MEAN, len(axes.sizes), axes.wide, acc, plan.BLOCK, first),
            4,
        )
        self.loss = _Start(
            tiling.kernel,
            programs,
            (axes.sizes, *axes.by_class, axes.by_element[0], axes.by_element[-1], axes.n_elements, axes.n_classes)
            + (ignore_index, what, reduction, empty_is_zero, remembers, has_weight, smoothing)
            + (_kind(logits.dtype, loss_dtype), acc, len(axes.sizes), axes.wide, first, *tiling.sizes),
            tiling.warps,
        )
        self.finish = _Start(
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
    with _on(logits):
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
    with _on(logits):
        launches.loss(logits, gradient, target, weight, launches.weight_sum(weight), grad, made_for, memory)


def _added_up(
    partial: Tensor, n_elements: int, reduction: int, has_weight: bool, empty_is_zero: bool, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Loss and divisor, from a plan without what is expected."""
    loss = torch.empty((), dtype=out_dtype, device=partial.device)
    sums = (partial.numel() - plan.HEADER.value) // 2
    options = (sums, n_elements, reduction, has_weight, False, False, empty_is_zero)
    with _on(partial):
        plan.finish[(1,)](
            partial, None, loss, *options, _ACCUMULATE[partial.dtype], plan.FINISH_BLOCK, 0, **_compiled_for(4)
        )
    return loss, partial[plan.DIVISOR.value].clone()


def nll_forward(
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Negative log-likelihood: see :func:`numalign.ops._nll.forward`. The divisor of a mean is there for sums as well."""
    x, dtype, shape = log_probabilities, accumulate_type(log_probabilities.dtype), element_shape(log_probabilities)
    target = target.reshape(shape)
    losses = torch.empty(shape, dtype=out_dtype, device=x.device) if reduction == NONE else None
    axes = Axes([x], [target] if losses is None else [target, losses])
    programs = axes.grid(_PICKED)
    partial = torch.empty(plan.HEADER.value + 2 * programs, dtype=dtype, device=x.device)
    with _on(x):
        picked[(programs,)](
            x,
            target,
            None if weight is None else weight.contiguous(),
            losses,
            partial,
            axes.sizes,
            axes.by_class[0],
            axes.by_element[0],
            axes.by_element[-1],
            axes.n_elements,
            axes.n_classes,
            ignore_index,
            REDUCTION=reduction,
            HAS_WEIGHT=weight is not None,
            ACC=_ACCUMULATE[dtype],
            DIMS=len(axes.sizes),
            WIDE=axes.wide,
            BLOCK=_PICKED.elements,
            **_compiled_for(_PICKED.warps),
        )
    if losses is not None:
        return losses, torch.ones((), dtype=dtype, device=x.device)
    return _added_up(partial, axes.n_elements, reduction, weight is not None, empty_is_zero, out_dtype)


def nll_total_weight(log_probabilities: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """The sum of the weights of all targets that are not ignored."""
    options = (SUM, ignore_index, False, accumulate_type(log_probabilities.dtype))
    return nll_forward(log_probabilities, target, weight, *options)[1]


def nll_backward(
    grad: Tensor,
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    divisor: Tensor,
    reduction: int,
    ignore_index: int,
) -> Tensor:
    """d loss / d log-probabilities: see :func:`numalign.ops._nll.backward`."""
    shape = element_shape(log_probabilities)
    gradient = torch.zeros_like(log_probabilities)
    target = target.reshape(shape)
    per_element = [target, grad.expand(shape)] if reduction == NONE else [target]
    axes = Axes([gradient], per_element)
    with _on(gradient):
        put_back[(axes.grid(_PICKED),)](
            grad,
            gradient,
            target,
            None if weight is None else weight.contiguous(),
            divisor,
            axes.sizes,
            axes.by_class[0],
            axes.by_element[0],
            axes.by_element[-1],
            axes.n_elements,
            axes.n_classes,
            ignore_index,
            REDUCTION=reduction,
            HAS_WEIGHT=weight is not None,
            ACC=_ACCUMULATE[accumulate_type(log_probabilities.dtype)],
            DIMS=len(axes.sizes),
            WIDE=axes.wide,
            BLOCK=_PICKED.elements,
            **_compiled_for(_PICKED.warps),
        )
    return gradient


def soft_forward(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    smoothing: float,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cross-entropy of class probabilities: see :func:`numalign.ops._probability_loss.forward`. Nothing is kept per element."""
    loss, divisor = _soft(
        SOFT_LOSS, logits, target, weight, reduction, smoothing, empty_is_zero=empty_is_zero, out_dtype=out_dtype
    )
    nothing = divisor.new_empty(0)
    return loss, nothing, nothing.clone(), divisor


def soft_backward(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    top: Tensor,
    others: Tensor,
    divisor: Tensor,
    reduction: int,
    smoothing: float,
) -> Tensor:
    """d loss / d logits."""
    out = torch.empty_like(logits)
    _soft(SOFT_GRADIENT, logits, target, weight, reduction, smoothing, out=out, grad=grad, divisor=divisor)
    return out


def soft_backward_target(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    top: Tensor,
    others: Tensor,
    divisor: Tensor,
    reduction: int,
    smoothing: float,
) -> Tensor:
    """d loss / d target."""
    out = torch.empty_like(target)
    _soft(TARGET_GRADIENT, logits, target, weight, reduction, smoothing, out=out, grad=grad, divisor=divisor)
    return out


def _soft(
    what: int,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    smoothing: float,
    *,
    out: Tensor | None = None,
    grad: Tensor | None = None,
    divisor: Tensor | None = None,
    empty_is_zero: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    kind = promoted(logits, target, weight)
    loss_dtype = grad.dtype if grad is not None else out_dtype
    dtype, shape = accumulate_type(kind), element_shape(logits)
    values = None
    if reduction == NONE:
        values = torch.empty(shape, dtype=out_dtype, device=logits.device) if grad is None else grad.expand(shape)
    axes = Axes([logits, target, logits if out is None else out], [] if values is None else [values])
    tiling = _for_soft(axes.n_classes, innermost=axes.class_is_innermost)
    programs = axes.grid(tiling)
    if divisor is None:
        divisor = torch.empty(plan.HEADER.value + 2 * programs, dtype=dtype, device=logits.device)
    with _on(logits):
        soft[(programs,)](
            logits,
            target,
            None if weight is None else weight.contiguous(),
            out,
            grad if values is None else values,
            divisor,
            axes.sizes,
            *axes.by_class,
            axes.by_element[0] if axes.by_element else (),
            axes.n_elements,
            axes.n_classes,
            PURPOSE=what,
            REDUCTION=reduction,
            HAS_WEIGHT=weight is not None,
            SMOOTHING=smoothing,
            KIND=_kind(kind, loss_dtype or kind),
            ACC=_ACCUMULATE[dtype],
            DIMS=len(axes.sizes),
            WIDE=axes.wide,
            ELEMENTS=tiling.sizes[0],
            CLASSES=tiling.sizes[1],
            **_compiled_for(tiling.warps),
        )
    if what != SOFT_LOSS:
        return logits, divisor
    if values is None:
        assert out_dtype is not None
        return _added_up(divisor, axes.n_elements, reduction, False, empty_is_zero, out_dtype)
    return values, torch.full((), float(axes.n_elements), dtype=dtype, device=logits.device)
