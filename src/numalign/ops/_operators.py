"""The repaired operators as PyTorch operators: schemas, implementations, shapes for tracing, autograd, vmap.

This module knows the dispatcher. What is computed is in the modules it imports; a kernel for one device is added with
``torch.library.impl("numalign::<name>", "<device>")`` and takes the place of the blocked implementation there. In eager
mode on the CPU :func:`index_loss` passes the dispatcher by.

The operators are defined through :class:`torch.library.Library` rather than ``torch.library.custom_op``: in PyTorch 2.13 the
autograd formula of the latter does not run under ``torch.func.grad``, and a call costs 30 us more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from numalign.ops import _derivatives, _expectation, _index_loss, _native, _nll, _path, _probability_loss
from numalign.ops._arguments import fits_at_sight
from numalign.ops._elements import accumulate_type
from numalign.ops._layout import element_shape
from numalign.ops._path import kernels_for
from numalign.ops._reduction import NONE

# PyTorch leaves these without annotations.
_new_library: Any = torch.library.Library
_library = _new_library("numalign", "DEF")

_INDEX = "Tensor logits, Tensor target, Tensor? weight"
_SAVED = "Tensor top, Tensor others, Tensor divisor"
_FOUR = "(Tensor, Tensor, Tensor, Tensor)"
_SCHEMAS = (
    (
        f"cross_entropy({_INDEX}, int reduction, int ignore_index, float smoothing, bool empty_is_zero, float? expected,"
        " ScalarType out_dtype) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
    (
        f"cross_entropy_backward(Tensor grad, {_INDEX}, {_SAVED}, int reduction, int ignore_index, float smoothing)"
        " -> Tensor"
    ),
    f"soft_cross_entropy({_INDEX}, int reduction, float smoothing, bool empty_is_zero, ScalarType out_dtype) -> {_FOUR}",
    f"soft_cross_entropy_backward(Tensor grad, {_INDEX}, {_SAVED}, int reduction, float smoothing) -> Tensor",
    f"soft_cross_entropy_backward_target(Tensor grad, {_INDEX}, {_SAVED}, int reduction, float smoothing) -> Tensor",
    (
        f"nll_loss({_INDEX}, int reduction, int ignore_index, bool empty_is_zero, ScalarType out_dtype)"
        " -> (Tensor, Tensor)"
    ),
    f"nll_loss_backward(Tensor grad, {_INDEX}, Tensor divisor, int reduction, int ignore_index) -> Tensor",
)
for _schema in _SCHEMAS:
    _library.define(_schema)

# Counts the changes in what the operators return, sizes included, that the schemas do not show.
_REVISION = "1"

schema_digest = hashlib.sha256("\n".join((*_SCHEMAS, _REVISION)).encode()).hexdigest()[:8]
"""Tells the schemas of one version, and the sizes that come back, from those of another."""

cross_entropy = torch.ops.numalign.cross_entropy.default
cross_entropy_backward = torch.ops.numalign.cross_entropy_backward.default
soft_cross_entropy = torch.ops.numalign.soft_cross_entropy.default
soft_cross_entropy_backward = torch.ops.numalign.soft_cross_entropy_backward.default
soft_cross_entropy_backward_target = torch.ops.numalign.soft_cross_entropy_backward_target.default
nll_loss = torch.ops.numalign.nll_loss.default
nll_loss_backward = torch.ops.numalign.nll_loss_backward.default

Operator = Any  # torch._ops.OpOverload, which is not public


def _loss_shape(logits: Tensor, reduction: int, out_dtype: torch.dtype) -> Tensor:
    return logits.new_empty(element_shape(logits) if reduction == NONE else (), dtype=out_dtype)


def _fake_index(
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
    makes = _index_loss.makes_gradient(logits, reduction, smoothing, expected)
    keeps_nothing = _index_loss.keeps_nothing(logits, reduction, smoothing, expected)
    kept = logits.new_empty(0 if keeps_nothing else element_shape(logits), dtype=accumulate_type(logits.dtype))
    gradient = torch.empty_like(logits) if makes else logits.new_empty(0)
    return _loss_shape(logits, reduction, out_dtype), kept, torch.empty_like(kept), kept.new_empty(()), gradient


def _fake_soft(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    smoothing: float,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = accumulate_type(_probability_loss.promoted(logits, target, weight))
    kept = logits.new_empty(0 if kernels_for(logits) is not None else element_shape(logits), dtype=dtype)
    return _loss_shape(logits, reduction, out_dtype), kept, torch.empty_like(kept), kept.new_empty(())


def _fake_nll(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    return _loss_shape(logits, reduction, out_dtype), logits.new_empty((), dtype=accumulate_type(logits.dtype))


def _like_logits(grad: Tensor, logits: Tensor, target: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(logits)


def _like_target(grad: Tensor, logits: Tensor, target: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(target)


# Each formula below takes (ctx, incoming gradient) and returns one gradient per argument of its operator. ``top``, ``others``
# and ``divisor`` are constants to autograd: the backward operators' own derivatives account for all that the logits do.


def _backward_index(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 9
    reduction, ignore_index, smoothing = ctx.options[:3]
    return (cross_entropy_backward(grad, *ctx.saved_tensors, reduction, ignore_index, smoothing), *(None,) * 8)


def _backward_soft(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 7
    reduction, smoothing = ctx.options[:2]
    logits_wanted, target_wanted, weight_wanted = ctx.needs_input_grad[:3]
    arguments = (grad, *ctx.saved_tensors, reduction, smoothing)
    return (
        soft_cross_entropy_backward(*arguments) if logits_wanted else None,
        soft_cross_entropy_backward_target(*arguments) if target_wanted else None,
        _derivatives.soft_weight(*arguments) if weight_wanted else None,
        *(None,) * 4,
    )


def _backward_nll(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 7
    logits, target, weight, divisor = ctx.saved_tensors
    return (nll_loss_backward(grad, logits, target, weight, divisor, *ctx.options[:2]), *(None,) * 6)


def _save(n_tensors: int, keep: tuple[int, ...]) -> Callable[[Any, tuple[Any, ...], Any], None]:
    """Keep the leading tensor arguments, the named outputs and the options that follow the tensors."""

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*inputs[:n_tensors], *(outputs[i] for i in keep))
        ctx.options = inputs[n_tensors:]
        ctx.set_materialize_grads(False)
        if len(outputs) > 1:
            ctx.mark_non_differentiable(*outputs[1:])

    return save


def _each(operator: Operator, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    """vmap: one call per sample. The bits are those of a loop, whatever is batched."""
    results = []
    for i in range(info.batch_size):
        sample = [a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)]
        results.append(operator(*sample))
    if not isinstance(results[0], tuple):
        return torch.stack(results), 0
    return tuple(torch.stack(r) for r in zip(*results, strict=True)), (0,) * len(results[0])


def _below_autograd(operator: Operator, *args: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*args)


def _register(
    operator: Operator,
    implementation: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[[Any, tuple[Any, ...], Any], None],
    formula: Callable[..., Any],
) -> None:
    """Give an operator everything that eager mode, tracing, autograd and ``torch.func`` ask of it."""

    class Eager(torch.autograd.Function):
        # Without ``setup_context``: PyTorch inspects the signature on every call of a function that has it (50 us).
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            output = _below_autograd(operator, *args)
            save(ctx, args, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return formula(ctx, *grads)

    class Transformed(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            return _below_autograd(operator, *args)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            save(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return formula(ctx, *grads)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
            return _each(operator, info, in_dims, *args)

    eager: Any = Eager.apply
    apply: Any = Transformed.apply

    def autograd(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
            return eager(*args)
        return _below_autograd(operator, *args)

    def transformed(*args: Any) -> Any:
        return apply(*args)

    name = operator._schema.name
    Eager.__name__ = Transformed.__name__ = name.replace("::", "_")
    _library.impl(name.split("::")[1], implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake, lib=_library)
    _library.impl(name.split("::")[1], autograd, "Autograd")
    # The one place where the whole stack of torch.func transforms is still there for an autograd.Function to see.
    _library.impl(name.split("::")[1], transformed, "FuncTorchDynamicLayerFrontMode")


_register(cross_entropy, _index_loss.forward, _fake_index, _save(3, (1, 2, 3)), _backward_index)
_register(cross_entropy_backward, _index_loss.backward, _like_logits, _save(7, ()), _derivatives.index_backward)
_register(soft_cross_entropy, _probability_loss.forward, _fake_soft, _save(3, (1, 2, 3)), _backward_soft)
_register(
    soft_cross_entropy_backward, _probability_loss.backward, _like_logits, _save(7, ()), _derivatives.soft_backward
)
_register(
    soft_cross_entropy_backward_target,
    _probability_loss.backward_target,
    _like_target,
    _save(7, ()),
    _derivatives.soft_backward_target,
)
_register(nll_loss, _nll.forward, _fake_nll, _save(3, (1,)), _backward_nll)
_register(nll_loss_backward, _nll.backward, _like_logits, _save(5, ()), _derivatives.nll_backward)


class _GradientAhead(torch.autograd.Function):
    """The mean or sum of the cross-entropy in eager mode on the CPU, with the gradient made in the forward.

    No operator is called: that would take as long as a tenth of the arithmetic of a small input.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, weight: Tensor | None, options: tuple[int, int, bool, torch.dtype]
    ) -> Any:
        reduction, ignore_index, empty_is_zero, out_dtype = options
        guess = _expectation.expected()
        # As in PyTorch's own kernels: no tensor made in here has a history, and asking for it costs 0.5 us an operator.
        with torch._C._AutoDispatchBelowADInplaceOrView():
            loss, divisor, gradient = _native.loss_and_gradient(
                logits, target, weight, reduction, ignore_index, empty_is_zero, guess, out_dtype
            )
        ctx.save_for_backward(logits, target, weight)
        ctx.kept = guess, gradient, divisor, reduction, ignore_index
        ctx.set_materialize_grads(False)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """The gradient that was made ahead is given away: who asks again gets another one, and may write to both."""
        guess, gradient, *options = ctx.kept
        ctx.kept = None, None, *options
        logits, target, weight = (
            ctx.saved_tensors
        )  # which checks that the graph is not freed, and nothing was written to
        if grad is None:
            return None, None, None, None
        if grad.is_cpu and _expectation.in_plain_view(grad):
            value = grad.item()
            _expectation.seen(value)
            if value == guess and not torch.is_grad_enabled():
                return gradient, None, None, None
        del gradient
        total, reduction, ignore_index = options
        divisor = _native.scalar(total, accumulate_type(logits.dtype))
        saved = (logits, target, weight, divisor.new_empty(0), divisor.new_empty(0), divisor)
        return cross_entropy_backward(grad, *saved, reduction, ignore_index, 0.0), None, None, None


class _GradientAheadOnDevice(torch.autograd.Function):
    """The same where a kernel serves the device: which incoming gradient is likely, and whether it came, only that knows."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, weight: Tensor | None, *options: Any) -> Any:
        kernels: Any = kernels_for(logits)
        loss, gradient, made_for = kernels.index_ahead(logits, target, weight, *options)
        ctx.save_for_backward(logits, target, weight)
        ctx.kept = gradient, made_for, *options[:3]
        ctx.set_materialize_grads(False)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """The gradient that was made ahead is given away: who asks again gets another one, and may write to both."""
        gradient, made_for, *options = ctx.kept
        ctx.kept = None, made_for, *options
        logits, target, weight = ctx.saved_tensors
        if grad is None:
            return (None,) * 8
        kernels: Any = kernels_for(logits)
        if gradient is None or torch.is_grad_enabled() or not _expectation.in_plain_view(grad):
            divisor = kernels.divisor_of(made_for)
            nothing = divisor.new_empty(0)
            saved = (logits, target, weight, nothing, nothing, divisor)
            return (cross_entropy_backward(grad, *saved, *options), *(None,) * 7)
        kernels.index_settle(gradient, made_for, grad, logits, target, weight, *options)
        return (gradient, *(None,) * 7)


# Past what Function.apply does for torch.func, which is not at work in plain view.
_gradient_ahead: Any = super(torch.autograd.Function, _GradientAhead).apply
_gradient_ahead_on_device: Any = super(torch.autograd.Function, _GradientAheadOnDevice).apply


def usual_loss(
    logits: Tensor,
    target: Tensor,
    reduction: int,
    ignore_index: int,
    empty_is_zero: bool,
    out_dtype: torch.dtype | None,
) -> Tensor | None:
    """The loss by the shortest way, if this is the usual training step in eager mode on the CPU.

    Checks and choices cost a twentieth of the time of a small input, and from step to step they come out the same.
    """
    if (
        logits.is_cpu
        and logits.requires_grad
        and torch.is_grad_enabled()
        and "cpu" not in _path.kernel_devices
        and _expectation.in_plain_view(logits, target)
        and not torch._C._is_any_autocast_enabled()
        and _is_usual(logits.shape, logits.dtype, target.shape, target.dtype)
        and _native.covers(logits, reduction, 0.0)
    ):
        loss: Tensor = _gradient_ahead(
            logits, target, None, (reduction, ignore_index, empty_is_zero, out_dtype or logits.dtype)
        )
        return loss
    return None


@lru_cache(maxsize=256)
def _is_usual(shape: torch.Size, dtype: torch.dtype, elements: torch.Size, target_dtype: torch.dtype) -> bool:
    """Whether shapes and types pass every check. A False sends the caller on to the checks."""
    return fits_at_sight(shape, dtype, elements, target_dtype)


def index_loss(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    empty_is_zero: bool,
    out_dtype: torch.dtype,
) -> Tensor:
    """The loss that :data:`cross_entropy` returns, with the gradient made ahead where nobody is to see the operator."""
    if (
        reduction != NONE
        and logits.requires_grad
        and torch.is_grad_enabled()
        and _expectation.in_plain_view(logits, target, weight)
    ):
        ahead: Tensor
        if kernels_for(logits) is not None:
            options = (reduction, ignore_index, smoothing, empty_is_zero, out_dtype)
            ahead = _gradient_ahead_on_device(logits, target, weight, *options)
            return ahead
        if _native.covers(logits, reduction, smoothing):
            ahead = _gradient_ahead(logits, target, weight, (reduction, ignore_index, empty_is_zero, out_dtype))
            return ahead
    outputs: tuple[Tensor, ...] = cross_entropy(
        logits, target, weight, reduction, ignore_index, smoothing, empty_is_zero, None, out_dtype
    )
    return outputs[0]
