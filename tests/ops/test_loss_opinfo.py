"""PyTorch's own sample inputs of both losses, called by name and behind PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

import numalign
from ops import loss_reference as reference

NAMES = ["nn.functional.cross_entropy", "nn.functional.nll_loss"]
OURS: dict[str, Callable[..., torch.Tensor]] = {NAMES[0]: numalign.cross_entropy, NAMES[1]: numalign.nll_loss}
STOCK: dict[str, Callable[..., torch.Tensor]] = {NAMES[0]: F.cross_entropy, NAMES[1]: F.nll_loss}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def samples(name: str, dtype: torch.dtype) -> Iterator[Any]:
    torch.manual_seed(0)
    (info,) = [op for op in op_db if op.name == name]
    yield from info.sample_inputs(torch.get_default_device(), dtype, requires_grad=True)


def to_double(value: Any) -> Any:
    return value.detach().double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@pytest.mark.large
@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_sample_inputs(name: str, dtype: torch.dtype, repaired: bool) -> None:
    count = 0
    for sample in samples(name, dtype):
        x, (target, *rest), options = sample.input, sample.args, dict(sample.kwargs)
        target = target.detach()
        if rest:
            options["weight"] = rest[0]
        if not target.is_floating_point() and options.get("weight") is not None:
            options["weight"] = options["weight"].detach()
        exact_input = x.detach().double().requires_grad_()
        exact_options = {key: to_double(value) for key, value in options.items()}
        exact_loss = STOCK[name](exact_input, to_double(target), **exact_options)
        (exact_grad,) = torch.autograd.grad(exact_loss.sum(), exact_input)
        with numalign.repair() if repaired else nullcontext():
            loss = (STOCK if repaired else OURS)[name](x, target, **options)
            (grad,) = torch.autograd.grad(loss.sum(), x)
        ours = reference.cross_entropy(
            x, target, log_probabilities=name == NAMES[1], **{k: v for k, v in options.items() if v is not None}
        )
        if torch.isfinite(exact_loss).all():
            torch.testing.assert_close(ours.loss, exact_loss.detach())
            torch.testing.assert_close(ours.grad, exact_grad)
            # PyTorch's samples have weights of both signs.
            reference.check_loss(loss, ours, dtype, cancels=True)
            reference.check_grad(grad, ours, dtype)
        else:
            torch.testing.assert_close(loss, exact_loss.to(dtype), equal_nan=True)
            torch.testing.assert_close(grad, exact_grad.to(dtype), equal_nan=True)
        count += 1
    assert count > 15


@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_error_inputs(name: str, repaired: bool) -> None:
    """PyTorch 2.13 lists none for these two; when it does, they are tried."""
    (info,) = [op for op in op_db if op.name == name]
    if info.error_inputs_func is None:
        pytest.skip("PyTorch lists no error inputs for this operator")
    for bad in info.error_inputs(torch.get_default_device()):
        sample = bad.sample_input
        with numalign.repair() if repaired else nullcontext(), pytest.raises(bad.error_type):
            (STOCK if repaired else OURS)[name](sample.input, *sample.args, **sample.kwargs)


X = torch.randn(4, 5)
X4 = torch.randn(2, 3, 2, 2)
T = torch.tensor([0, 1, 2, 3])
OUT_OF_RANGE = [(X, torch.tensor([0, 1, 5, 2])), (X, torch.tensor([0, 1, -1, 2])), (X4, torch.full((2, 2, 2), 3))]
NO_CLASSES = (X[:, :0], T)


@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (OUT_OF_RANGE[0], {}),
        (OUT_OF_RANGE[1], {"reduction": "none"}),
        (OUT_OF_RANGE[2], {"reduction": "sum"}),
        ((X, T[:2]), {}),
        ((X[:1], torch.tensor(0)), {}),
        ((X4, torch.zeros(2, 2, 3, dtype=torch.int64)), {}),
        ((torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)), {}),
        ((X, torch.zeros(4, 1, dtype=torch.int64)), {}),
        ((X4, torch.zeros(2, 1, 2, 2, dtype=torch.int64)), {}),
        ((X, T.float()), {}),
        ((X, T.bool()), {}),
        ((X[0], T[:3]), {}),
        (NO_CLASSES, {}),
        ((X, T), {"reduction": "average"}),
        ((X, T), {"weight": torch.ones(4)}),
        ((X, T), {"weight": torch.ones(1, 5)}),
        ((X, T), {"weight": torch.ones(5, dtype=torch.int64)}),
        ((X4, torch.zeros(2, 2, 2, dtype=torch.int64)), {"weight": torch.ones(2)}),
        ((X, T), {"weight": torch.ones(5, requires_grad=True)}),
        ((X.long(), T), {}),
    ],
)
def test_errors_are_of_pytorchs_types(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any], repaired: bool, path: str
) -> None:
    if path == "kernels" and any(arguments is a for a in (*OUT_OF_RANGE, NO_CLASSES)):
        pytest.skip("PyTorch takes the context of a device down")
    with pytest.raises(Exception, match=r".") as stock:
        STOCK[name](*arguments, **options)
    with numalign.repair() if repaired else nullcontext(), pytest.raises(Exception, match=r".") as ours:
        (STOCK if repaired else OURS)[name](*arguments, **options)
    # On CUDA a wrong type of target is a NotImplementedError, a kind of RuntimeError; here it is what it is on the CPU.
    assert ours.type is stock.type or (path == "kernels" and issubclass(stock.type, ours.type))


@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize(
    ("target", "options"),
    [
        (X.softmax(1), {"ignore_index": 0}),
        (X.softmax(1), {"label_smoothing": 1.5}),
        (X.softmax(1), {"weight": torch.ones(4)}),
        (X.long(), {}),
        (T, {"label_smoothing": 1.5}),
    ],
)
def test_errors_of_cross_entropy(target: torch.Tensor, options: dict[str, Any], repaired: bool) -> None:
    with pytest.raises(Exception, match=r".") as stock:
        F.cross_entropy(X, target, **options)
    with numalign.repair() if repaired else nullcontext(), pytest.raises(Exception, match=r".") as ours:
        (F.cross_entropy if repaired else numalign.cross_entropy)(X, target, **options)
    assert ours.type is stock.type
