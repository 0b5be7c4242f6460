"""The losses and their gradients against fp64: the bounds that the docstrings promise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import numalign
from numalign.ops import _layout
from ops import loss_reference as reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LOW = [torch.float16, torch.bfloat16]


@dataclass
class Problem:
    """Random arguments of a loss."""

    logits: Tensor
    target: Tensor
    weight: Tensor | None
    options: dict[str, Any]


def layout_of(choice: str, values: Tensor) -> Tensor:
    """The same values with other strides."""
    if choice == "transposed" and values.dim() >= 2:
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if choice == "classes last" and values.dim() >= 3:
        return values.movedim(1, -1).contiguous().movedim(-1, 1)
    if choice == "batch last" and values.dim() >= 3:
        return values.movedim(0, -1).contiguous().movedim(-1, 0)
    if choice == "sliced":
        wide = values.new_full([2 * n + 1 for n in values.shape], torch.nan if values.is_floating_point() else 99)
        inner = wide[tuple(slice(1, None, 2) for _ in values.shape)]
        inner.copy_(values)
        return inner
    if choice == "expanded" and values.dim() >= 2:
        return values[:1].expand_as(values)
    return values


def random_problem(seed: int, dtype: torch.dtype) -> Problem:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    n_classes = rng.choice([1, 2, 3, 7, 21, 130])
    shape = rng.choice(
        [
            (n_classes,),
            (5, n_classes),
            (0, n_classes),
            (3, n_classes, 11),
            (2, n_classes, 5, 9),
            (2, n_classes, 2, 3, 4),
        ]
    )
    spread = rng.choice([0.1, 1.0, 10.0])
    logits = layout_of(
        rng.choice(["plain", "transposed", "classes last", "batch last", "sliced", "expanded"]),
        (torch.randn(shape, dtype=torch.float64) * spread).to(dtype),
    )
    elements = shape[:-1] if len(shape) == 1 else (shape[0], *shape[2:])
    options: dict[str, Any] = {
        "reduction": rng.choice(["none", "mean", "sum"]),
        "label_smoothing": rng.choice([0.0, 0.0, 0.1, 1.0]),
    }
    if rng.random() < 0.3:
        target = layout_of(rng.choice(["plain", "transposed", "sliced"]), torch.rand(shape).softmax(0).to(dtype))
    else:
        integer = rng.choice([torch.int64, torch.int32, torch.int16, torch.uint8])
        target = torch.randint(0, n_classes, elements).to(integer)
        options["ignore_index"] = rng.choice([-100, 0, 200, 255])
        if options["ignore_index"] != -100 and target.numel() > 1:
            target = target.masked_fill(
                torch.rand(target.shape) < 0.2, min(options["ignore_index"], torch.iinfo(integer).max)
            )
        if (target.long() != options["ignore_index"]).sum() == 0:
            options["reduction"] = "sum"
        target = layout_of(rng.choice(["plain", "transposed", "sliced"]), target) if target.dim() else target
    weight = None if rng.random() < 0.5 else torch.rand(n_classes).to(rng.choice([dtype, torch.float32])) + 0.125
    if dtype != torch.float64 and weight is not None and target.dtype.is_floating_point:
        weight = weight.to(dtype)
    if target.dtype.is_floating_point and target.numel() == 0:
        options["reduction"] = "sum"
    return Problem(logits, target, weight, options)


@pytest.fixture(params=["whole", "small blocks", "split classes"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Blocks as they are, and so small that even these problems need many, or must split the class axis."""
    if request.param != "whole":
        monkeypatch.setattr(_layout, "BLOCK_LOGITS", 64)
    if request.param == "split classes":
        monkeypatch.setattr(_layout, "BLOCK_CLASSES", 5)
    return str(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(24))
def test_random_problems(seed: int, dtype: torch.dtype, blocks: str) -> None:
    problem = random_problem(seed, dtype)
    x = problem.logits.detach().requires_grad_()
    loss = numalign.cross_entropy(x, problem.target, problem.weight, **problem.options)
    incoming = torch.rand_like(loss) + 0.5
    (grad,) = torch.autograd.grad(loss, x, incoming)
    exact = reference.cross_entropy(x, problem.target, problem.weight, incoming=incoming, **problem.options)
    assert grad.shape == x.shape
    reference.check_loss(loss, exact, dtype)
    reference.check_grad(grad, exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(12))
def test_random_negative_log_likelihoods(seed: int, dtype: torch.dtype, blocks: str) -> None:
    problem = random_problem(seed + 1000, dtype)
    problem.options.pop("label_smoothing")
    if problem.target.dtype.is_floating_point:
        pytest.skip("class probabilities are for cross_entropy")
    x = (-problem.logits.detach().abs()).requires_grad_()
    loss = numalign.nll_loss(x, problem.target, problem.weight, **problem.options)
    incoming = torch.rand_like(loss) + 0.5
    (grad,) = torch.autograd.grad(loss, x, incoming)
    exact = reference.cross_entropy(
        x, problem.target, problem.weight, incoming=incoming, log_probabilities=True, **problem.options
    )
    reference.check_loss(loss, exact, dtype)
    reference.check_grad(grad, exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_gradient_of_probabilities(seed: int, dtype: torch.dtype, blocks: str) -> None:
    torch.manual_seed(seed)
    x = torch.randn(3, 7, 5, dtype=torch.float64).to(dtype).transpose(0, 2)
    q = torch.rand(5, 7, 3, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.rand(7).to(dtype) if seed % 2 else None
    smoothing = 0.1 * (seed % 3)
    loss = numalign.cross_entropy(x, q, weight, label_smoothing=smoothing, reduction="sum")
    (grad,) = torch.autograd.grad(loss, q)
    exact = -torch.log_softmax(x.double(), 1) * (1.0 - smoothing)
    if weight is not None:
        exact = exact * weight.double()[:, None]
    # In fp64 the reference rounds as often as the operator does.
    ulps = 0.51 if dtype in LOW else 8.0 if dtype == torch.float32 else 32.0
    assert reference.worst(grad, exact, ulps * reference.ulp(exact, dtype)) <= 1.0


@pytest.mark.large
@pytest.mark.parametrize("side", [128, 181, 256, 512])
@pytest.mark.parametrize("dtype", LOW)
def test_mean_over_an_image(side: int, dtype: torch.dtype) -> None:
    """Stock PyTorch gives inf at 181 x 181 and nan with an all-zero gradient at 256 x 256 in fp16."""
    torch.manual_seed(side)
    x = torch.randn(1, 21, side, side).to(dtype).requires_grad_()
    target = torch.randint(0, 21, (1, side, side))
    loss = numalign.cross_entropy(x, target)
    (grad,) = torch.autograd.grad(loss, x)
    exact = reference.cross_entropy(x, target)
    assert 3.4 < exact.loss < 3.6
    reference.check_loss(loss, exact, dtype)
    reference.check_grad(grad, exact, dtype)


@pytest.mark.large
def test_stock_fails_where_we_do_not() -> None:
    """If this fails, PyTorch was repaired: good news, and the comparisons in the documents are out of date."""
    x = torch.zeros(1, 21, 256, 256, dtype=torch.float16)
    target = torch.zeros(1, 256, 256, dtype=torch.int64)
    assert not torch.isfinite(F.cross_entropy(x, target))
    assert abs(numalign.cross_entropy(x, target).item() - 3.0445) < 1e-3


@pytest.mark.large
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("shape", [(16384, 50), (2, 5, 32, 48, 48), (40, 30, 1025), (1, 2, 400, 401)])
def test_loss_scale(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A loss scale of 65536 saves what 1 / n alone would flush; n is large enough for 1 / n to be subnormal."""
    torch.manual_seed(len(shape))
    x = torch.randn(shape).to(dtype).requires_grad_()
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    loss = numalign.cross_entropy(x, target, out_dtype=torch.float32)
    (grad,) = torch.autograd.grad(loss * 65536.0, x)
    exact = reference.cross_entropy(x, target, incoming=65536.0)
    reference.check_loss(loss, exact, torch.float32)
    reference.check_grad(grad, exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("shape", [(400, 2), (400, 50), (2, 3, 200)])
def test_confident_predictions_keep_their_digits(shape: tuple[int, ...], soft: bool, dtype: torch.dtype) -> None:
    """p -> 1: log(sum) and p - 1 cancel unless the other classes are kept apart."""
    torch.manual_seed(0)
    x = torch.rand(shape, dtype=torch.float64) * 0.2
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    one_hot = F.one_hot(target, shape[1]).movedim(-1, 1)
    x = (x + one_hot * (13.6 + torch.log(torch.tensor(shape[1] - 1.0)))).to(dtype)
    exact = reference.cross_entropy(x, target, reduction="none")
    if dtype in {torch.float32, torch.float64}:
        assert 1e-6 < exact.loss.min() < exact.loss.max() < 1.6e-6
    z = x.clone().requires_grad_()
    loss = numalign.cross_entropy(z, one_hot.to(dtype) if soft else target, reduction="none", out_dtype=torch.float32)
    (grad,) = torch.autograd.grad(loss.sum(), z)
    assert reference.worst(loss, exact.loss, 8 * reference.ulp(exact.loss, torch.float32)) <= 1.0
    of_true = (grad.double() * one_hot).sum(1)
    exact_true = (exact.grad * one_hot).sum(1)
    ulps = 0.51 * reference.ulp(exact_true, dtype) if dtype in LOW else 8 * reference.ulp(exact_true, torch.float32)
    assert reference.worst(of_true, exact_true, ulps) <= 1.0


@pytest.mark.parametrize("offset", [1000.0, -1000.0, 30000.0])
def test_large_logits(offset: float) -> None:
    """A log-sum-exp kept in fp32 is off by 3e-5 at 1000; the maximum and a sum are not."""
    torch.manual_seed(0)
    x = (torch.randn(64, 30, dtype=torch.float64) + offset).float().requires_grad_()
    target = torch.randint(0, 30, (64,))
    loss = numalign.cross_entropy(x, target, reduction="none")
    (grad,) = torch.autograd.grad(loss.sum(), x)
    exact = reference.cross_entropy(x, target, reduction="none")
    reference.check_loss(loss, exact, torch.float32)
    reference.check_grad(grad, exact, torch.float32)


@pytest.mark.large
@pytest.mark.parametrize("dtype", LOW)
def test_subnormal_gradients_are_rounded_not_flushed(dtype: torch.dtype) -> None:
    x = torch.randn(1, 3, 512, 512).to(dtype).requires_grad_()
    target = torch.randint(0, 3, (1, 512, 512))
    (grad,) = torch.autograd.grad(numalign.cross_entropy(x, target), x)
    exact = reference.cross_entropy(x, target)
    if dtype == torch.float16:
        assert exact.grad.abs().max() < torch.finfo(dtype).tiny
    assert not torch.equal(grad, torch.zeros_like(grad))
    reference.check_grad(grad, exact, dtype)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("everywhere", [False, True])
def test_infinite_and_undefined_logits(bad: float, everywhere: bool, soft: bool) -> None:
    """As PyTorch, entry by entry, in loss and gradient."""
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    x[0, :] = bad if everywhere else x[0, :]
    x[1, 2] = bad
    x[2, 0] = bad
    target = torch.tensor([0, 2, 1, 3, 0, -100])
    x[5, 1] = bad
    q = torch.rand(6, 4)
    results = []
    for function in (numalign.cross_entropy, F.cross_entropy):
        z = x.clone().requires_grad_()
        loss = function(z, q if soft else target, reduction="none")
        (grad,) = torch.autograd.grad(loss.sum(), z)
        results.append((loss.detach(), grad))
    (loss, grad), (stock_loss, stock_grad) = results
    torch.testing.assert_close(loss, stock_loss, equal_nan=True)
    torch.testing.assert_close(grad, stock_grad, equal_nan=True)


@pytest.mark.parametrize("function", [numalign.cross_entropy, numalign.nll_loss])
def test_unrounded_result(function: Callable[..., Tensor]) -> None:
    x = -torch.rand(8, 3, 10).to(torch.bfloat16)
    target = torch.randint(0, 3, (8, 10))
    exact = reference.cross_entropy(x, target, log_probabilities=function is numalign.nll_loss)
    reference.check_loss(function(x, target, out_dtype=torch.float32), exact, torch.float32)
    assert function(x, target).dtype == torch.bfloat16


@pytest.mark.large
def test_more_classes_than_a_block_holds() -> None:
    """A class axis of two pieces and a bit; the target in each of them."""
    torch.manual_seed(0)
    n_classes = 2 * _layout.BLOCK_CLASSES + 17
    x = torch.randn(3, n_classes).half().requires_grad_()
    target = torch.tensor([5, _layout.BLOCK_CLASSES + 3, n_classes - 1])
    loss = numalign.cross_entropy(x, target, reduction="sum", out_dtype=torch.float32)
    (grad,) = torch.autograd.grad(loss, x)
    exact = reference.cross_entropy(x, target, reduction="sum")
    reference.check_loss(loss, exact, torch.float32)
    reference.check_grad(grad, exact, torch.float16)


def logits_of(kind: str, shape: tuple[int, ...], target: Tensor) -> Tensor:
    """Logits, fp64, that call for another representation of the exponentials each."""
    x = torch.randn(shape, dtype=torch.float64)
    if kind in {"high", "low"}:  # as far as there is no need of the maximum
        return x - x.logsumexp(1, keepdim=True) + (27.6 if kind == "high" else -13.7)
    if kind == "masked":
        absent = (torch.rand(shape) < 0.3) & (F.one_hot(target, shape[1]).movedim(-1, 1) == 0)
        return (x * 8).masked_fill(absent, -torch.inf)
    if kind == "large":
        return x * 4 + 1000.0
    if kind == "faint":
        return x * 150.0
    if kind == "confident":
        return x * 0.1 + F.one_hot(target, shape[1]).movedim(-1, 1) * (13.6 + math.log(shape[1]))
    assert kind == "plain"
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
@pytest.mark.parametrize("kind", ["plain", "high", "low", "masked", "large", "faint", "confident"])
@pytest.mark.parametrize("shape", [(1, 21, 9, 11), (3, 5, 40), (60, 130), (40, 7), (2, 3, 5, 200)])
def test_means_and_sums(
    shape: tuple[int, ...], kind: str, out_dtype: torch.dtype | None, dtype: torch.dtype, blocks: str
) -> None:
    torch.manual_seed(0)
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    x = logits_of(kind, shape, target).to(dtype).requires_grad_()
    for reduction, incoming in (("mean", 1.0), ("sum", 3.0), ("mean", 1e-20), ("mean", 1e22)):
        if dtype != torch.float64 and out_dtype is None and incoming not in {1.0, 3.0}:
            continue  # not of the result's type, or of no use in it
        loss = numalign.cross_entropy(x, target, reduction=reduction, out_dtype=out_dtype)
        (grad,) = torch.autograd.grad(loss, x, torch.tensor(incoming, dtype=loss.dtype))
        exact = reference.cross_entropy(
            x, target, reduction=reduction, incoming=torch.tensor(incoming, dtype=loss.dtype)
        )
        if exact.grad.abs().max() < torch.finfo(dtype).max:
            reference.check_grad(grad, exact, dtype)
        if exact.loss > torch.finfo(loss.dtype).max:
            assert loss.isposinf()
        elif dtype != torch.float64 or kind != "confident":  # where the reference has as few digits
            reference.check_loss(loss, exact, loss.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(400, 2), (400, 150), (2, 3, 200)])
def test_confident_predictions_keep_their_digits_in_a_sum(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """As for single losses, in the gradient of the true class: p - 1 would have no digit left in fp32."""
    torch.manual_seed(0)
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    x = logits_of("confident", shape, target).to(dtype).requires_grad_()
    loss = numalign.cross_entropy(x, target, reduction="sum", out_dtype=torch.float32)
    (grad,) = torch.autograd.grad(loss, x)
    exact = reference.cross_entropy(x, target, reduction="sum")
    one_hot = F.one_hot(target, shape[1]).movedim(-1, 1)
    of_true, exact_true = (grad.double() * one_hot).sum(1), (exact.grad * one_hot).sum(1)
    ulps = 0.51 * reference.ulp(exact_true, dtype) if dtype in LOW else 8 * reference.ulp(exact_true, torch.float32)
    assert reference.worst(of_true, exact_true, ulps) <= 1.0
    assert reference.worst(loss, exact.loss, 8 * reference.ulp(exact.loss, torch.float32)) <= 1.0
