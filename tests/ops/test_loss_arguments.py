"""Bad arguments, empty inputs, and what must not be touched."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import numalign

X = torch.randn(4, 5)
X4 = torch.randn(2, 3, 2, 2)
T = torch.tensor([0, 1, 2, 3])
LONG = torch.int64


@pytest.mark.parametrize("function", [numalign.cross_entropy, numalign.nll_loss])
@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((X, T[:2]), {}, ValueError, r"batch_size \(4\).*\(2\).*\[4, 5\].*\[2\]"),
        ((X[:1], torch.tensor(0)), {}, ValueError, r"\[1, 5\]"),
        ((X4, torch.zeros(2, 2, 3, dtype=LONG)), {}, RuntimeError, r"\[2, 2, 2\], got \[2, 2, 3\]"),
        ((X4, torch.zeros(2, 1, 2, 2, dtype=LONG)), {}, RuntimeError, r"\[2, 1, 2, 2\]"),
        ((X, torch.zeros(4, 1, dtype=LONG)), {}, RuntimeError, r"\[4, 1\]"),
        ((X[0], T[:3]), {}, ValueError, r"\[5\].*\[3\]"),
        ((torch.tensor(1.0), torch.tensor(0.5)), {}, ValueError, "1 or more dimensions"),
        ((X, T.float()), {}, RuntimeError, "torch.float32"),
        ((X, T.bool()), {}, RuntimeError, "torch.bool"),
        ((X.long(), T), {}, NotImplementedError, "torch.int64"),
        ((X.to(torch.complex64), T), {}, NotImplementedError, "torch.complex64"),
        ((X[:, :0], T), {}, IndexError, r"\[4, 0\]"),
        ((X, T), {"reduction": "average"}, ValueError, "average"),
        ((X, T), {"empty": "one"}, ValueError, "one"),
        ((X, T), {"out_dtype": torch.int32}, RuntimeError, "torch.int32"),
        ((X, T, torch.ones(4)), {}, RuntimeError, r"all 5 classes.*\[4\]"),
        ((X4, torch.zeros(2, 2, 2, dtype=LONG), torch.ones(2)), {}, RuntimeError, r"all 3 classes.*\[2\]"),
        ((X, T, torch.ones(1, 5)), {}, RuntimeError, r"\[1, 5\]"),
        ((X, T, torch.ones(5, dtype=LONG)), {}, RuntimeError, "torch.int64"),
        ((X, T, torch.ones(5, requires_grad=True)), {}, RuntimeError, "not differentiable.*weight"),
    ],
)
def test_bad_arguments(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        function(*arguments, **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [({"label_smoothing": 1.5}, RuntimeError), ({"label_smoothing": -0.5}, RuntimeError)],
)
def test_bad_smoothing(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"between 0\.0 and 1\.0"):
        numalign.cross_entropy(X, T, **options)


def test_bad_probabilities() -> None:
    with pytest.raises(RuntimeError, match="floating point type"):
        numalign.cross_entropy(X, torch.zeros(4, 5, dtype=LONG))
    with pytest.raises(RuntimeError, match="ignore_index"):
        numalign.cross_entropy(X, X.softmax(1), ignore_index=0)
    with pytest.raises(RuntimeError, match="all 5 classes"):
        numalign.cross_entropy(X, X.softmax(1), torch.ones(4))


@pytest.mark.parametrize("function", [numalign.cross_entropy, numalign.nll_loss])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("value", [-1, 3, 2**40, -(2**40)])
def test_target_out_of_range(function: Callable[..., Any], reduction: str, value: int, path: str) -> None:
    target = torch.zeros(2, 2, 2, dtype=LONG)
    target[1, 0, 1] = value
    if path == "kernels":
        # To raise, the host would have to wait for the device.
        x = X4.clone().requires_grad_()
        loss = function(x, target, reduction=reduction)
        (grad,) = torch.autograd.grad(loss.sum(), x)
        bad = target == value
        assert torch.equal(loss.isnan(), bad if reduction == "none" else bad.any())
        # A mean has no divisor then.
        everywhere = torch.ones_like(bad) if reduction == "mean" else bad
        if function is numalign.cross_entropy:
            assert torch.equal(grad.isnan(), everywhere[:, None].expand_as(grad))
        else:
            assert torch.equal(grad.isnan().any(1), everywhere)
        assert torch.isfinite(function(X4, target, reduction="sum", ignore_index=value))
        return
    for ignore_index in (-100, 0):  # with nothing ignored, and with all others ignored
        with pytest.raises(IndexError, match=rf"Target {value} is out of bounds.*0 to 2.*\[2, 3, 2, 2\].*\[2, 2, 2\]"):
            function(X4, target, reduction=reduction, ignore_index=ignore_index)
    assert torch.isfinite(function(X4, target, reduction="sum", ignore_index=value))


def test_a_usual_step_does_not_hide_a_bad_one(path: str) -> None:
    """Which shapes and types are the usual ones is kept from step to step; all else is looked at again."""
    x = X4.clone().requires_grad_()
    target = torch.zeros(2, 2, 2, dtype=LONG)
    for _ in range(2):
        numalign.cross_entropy(x, target).backward()
    bad: list[tuple[type[Exception], torch.Tensor, dict[str, Any]]] = [
        (RuntimeError, target[:, :1], {}),
        (ValueError, target[:1], {}),
        (RuntimeError, target.float(), {}),
        (ValueError, target, {"reduction": "average"}),
        (ValueError, target, {"empty": "one"}),
        (RuntimeError, target, {"label_smoothing": 1.5}),
        (RuntimeError, target, {"out_dtype": torch.int32}),
        (RuntimeError, target, {"weight": torch.ones(4)}),
    ]
    if x.is_cpu and path != "kernels":
        bad.append((IndexError, target + 3, {}))
    for error, wrong, options in bad:
        with pytest.raises(error):
            numalign.cross_entropy(x, wrong, **options)


def test_ignored_target_may_be_any_value() -> None:
    target = torch.tensor([0, 255, 1, 255], dtype=torch.uint8)
    stock = F.cross_entropy(X, target.long(), ignore_index=255)
    torch.testing.assert_close(numalign.cross_entropy(X, target, ignore_index=255), stock)


@pytest.mark.parametrize("function", [numalign.cross_entropy, numalign.nll_loss])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("target", [T * 0 - 100, T[:0]])
def test_nothing_to_average(function: Callable[..., Any], target: torch.Tensor, smoothing: float) -> None:
    options = {"label_smoothing": smoothing} if function is numalign.cross_entropy else {}
    x = X[: len(target)].clone().requires_grad_()
    nan = function(x, target, **options)
    assert math.isnan(nan.item())
    (grad,) = torch.autograd.grad(nan, x)
    assert torch.equal(grad, torch.zeros_like(x))
    zero = function(x, target, empty="zero", **options)
    assert zero.item() == 0.0
    (grad,) = torch.autograd.grad(zero, x)
    assert torch.equal(grad, torch.zeros_like(x))
    assert function(x, target, reduction="sum", **options).item() == 0.0
    assert function(x, target, reduction="none", **options).shape == target.shape


def test_no_elements_with_probabilities() -> None:
    x = torch.randn(0, 5, requires_grad=True)
    assert math.isnan(numalign.cross_entropy(x, torch.rand(0, 5)).item())
    assert numalign.cross_entropy(x, torch.rand(0, 5), empty="zero").item() == 0.0
    assert math.isnan(numalign.cross_entropy(torch.rand(3, 0), torch.rand(3, 0)).item())
    assert numalign.cross_entropy(torch.rand(3, 0), torch.rand(3, 0), reduction="none").tolist() == [0.0] * 3
    assert math.isnan(numalign.cross_entropy(torch.rand(0, 0), T[:0]).item())


def test_all_weights_zero_is_not_empty() -> None:
    """As PyTorch: 0 / 0."""
    assert math.isnan(numalign.cross_entropy(X, T, torch.zeros(5)).item())


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_arguments_are_not_written_to(soft: bool, dtype: torch.dtype) -> None:
    x = torch.randn(6, 5, dtype=dtype).requires_grad_()
    target = torch.rand(6, 5, dtype=dtype) if soft else torch.tensor([0, 1, -100, 3, 4, -100])
    weight = torch.rand(5, dtype=dtype)
    before = x.detach().clone(), target.clone(), weight.clone()
    loss = numalign.cross_entropy(x, target, weight, label_smoothing=0.1)
    loss.backward(retain_graph=True)
    first = x.grad
    x.grad = None
    loss.backward()
    assert first is not None
    assert x.grad is not None
    assert torch.equal(first, x.grad)
    for now, then in zip((x, target, weight), before, strict=True):
        assert torch.equal(now, then)


def test_modules_pass_everything_on() -> None:
    weight = torch.rand(5)
    options: dict[str, Any] = {"ignore_index": 1, "reduction": "sum", "empty": "zero", "out_dtype": torch.float64}
    module = numalign.CrossEntropyLoss(weight, label_smoothing=0.2, **options)
    assert torch.equal(module(X, T), numalign.cross_entropy(X, T, weight, label_smoothing=0.2, **options))
    assert "label_smoothing=0.2" in repr(module)
    nll = numalign.NLLLoss(weight, **options)
    assert torch.equal(nll(X, T), numalign.nll_loss(X, T, weight, **options))
    assert "ignore_index=1" in repr(nll)
    assert list(module.state_dict()) == list(torch.nn.CrossEntropyLoss(weight).state_dict())
    assert numalign.CrossEntropyLoss()(X, T) == numalign.cross_entropy(X, T)


@pytest.mark.parametrize(
    "dtypes", [(torch.float16, torch.float32), (torch.float32, torch.float16), (torch.float32, torch.float64)]
)
def test_mixed_types_promote_as_in_pytorch(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    x, q = X.to(dtypes[0]), X.softmax(1).to(dtypes[1])
    ours, stock = numalign.cross_entropy(x, q), F.cross_entropy(x, q)
    assert ours.dtype == stock.dtype
    torch.testing.assert_close(ours, stock, rtol=1e-2, atol=0)
    assert numalign.cross_entropy(x, T, torch.ones(5, dtype=dtypes[1])).dtype == x.dtype
