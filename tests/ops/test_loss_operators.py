"""The operators in PyTorch's machinery: derivatives, tracing, transforms, threads."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import numalign
from numalign.ops import _expectation, _layout, _operators

OPERATORS = torch.ops.numalign
DEVICE = torch.get_default_device().type
REDUCTIONS = ["none", "mean", "sum"]


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "x": torch.randn(2, 3, 2, dtype=torch.float64).transpose(0, 2).contiguous().transpose(0, 2).requires_grad_(),
        "t": torch.tensor([[0, -100], [2, 1]]),
        "w": torch.rand(3, dtype=torch.float64),
        "q": torch.rand(2, 3, 2, dtype=torch.float64, requires_grad=True),
    }


@pytest.mark.slow
@pytest.mark.large
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize(("weighted", "split"), [(False, False), (True, False), (True, True)])
def test_derivatives(
    inputs: dict[str, Tensor],
    reduction: str,
    smoothing: float,
    weighted: bool,
    split: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if split:
        monkeypatch.setattr(_layout, "BLOCK_LOGITS", 4)
        monkeypatch.setattr(_layout, "BLOCK_CLASSES", 2)
    weight = inputs["w"] if weighted else None
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}

    def of_indices(x: Tensor) -> Tensor:
        return numalign.cross_entropy(x, inputs["t"], weight, **options)

    def of_probabilities(x: Tensor, q: Tensor, *w: Tensor) -> Tensor:
        return numalign.cross_entropy(x, q, *w, **options)

    def of_log_probabilities(x: Tensor) -> Tensor:
        return numalign.nll_loss(x, inputs["t"], weight, reduction=reduction)

    soft = (inputs["x"], inputs["q"], *((inputs["w"].clone().requires_grad_(),) if weighted else ()))
    arguments: tuple[Tensor, ...]
    for function, arguments in (
        (of_indices, (inputs["x"],)),
        (of_probabilities, soft),
        (of_log_probabilities, (inputs["x"],)),
    ):
        assert torch.autograd.gradcheck(function, arguments)
        assert torch.autograd.gradgradcheck(function, arguments, fast_mode=not (weighted and reduction == "mean"))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_derivatives_without_spatial_axes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 4, shape[:-1])
    for reduction in REDUCTIONS:

        def of_indices(x: Tensor, reduction: str = reduction) -> Tensor:
            return numalign.cross_entropy(x, target, reduction=reduction, label_smoothing=0.1)

        assert torch.autograd.gradcheck(of_indices, (x,))
        assert torch.autograd.gradgradcheck(of_indices, (x,))


@pytest.mark.slow
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, None), (torch.bfloat16, 2.0)])
def test_opcheck(reduction: int, smoothing: float, dtype: torch.dtype, expected: float | None) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5).to(dtype).transpose(0, 2).requires_grad_()
    q = torch.rand(5, 4, 3).to(dtype).requires_grad_()
    t = torch.randint(0, 4, (5, 3))
    w = torch.rand(4)
    grad = torch.rand((5, 3) if reduction == 0 else ()).requires_grad_()
    check = torch.library.opcheck
    options = (reduction, -100, smoothing)
    check(OPERATORS.cross_entropy.default, (x, t, w, *options, False, expected, torch.float32))
    _, *saved, _ = OPERATORS.cross_entropy(x.detach(), t, w, *options, False, expected, torch.float32)
    check(OPERATORS.cross_entropy_backward.default, (grad, x, t, w, *saved, *options))
    check(OPERATORS.soft_cross_entropy.default, (x, q, None, reduction, 0.1, False, torch.float32))
    _, *saved = OPERATORS.soft_cross_entropy(x.detach(), q.detach(), None, reduction, 0.1, False, torch.float32)
    check(OPERATORS.soft_cross_entropy_backward.default, (grad, x, q, None, *saved, reduction, 0.1))
    check(OPERATORS.soft_cross_entropy_backward_target.default, (grad, x, q, None, *saved, reduction, 0.1))
    check(OPERATORS.nll_loss.default, (x, t, w, reduction, -100, False, torch.float32))
    _, divisor = OPERATORS.nll_loss(x.detach(), t, w, reduction, -100, False, torch.float32)
    check(OPERATORS.nll_loss_backward.default, (grad, x, t, w, divisor, reduction, -100))


def loss_and_grad(function: Callable[..., Tensor], x: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    z = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    loss = function(z, *args, **options)
    (grad,) = torch.autograd.grad(loss.sum(), z)
    return loss.detach(), grad


@pytest.mark.slow
@pytest.mark.large
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_graph_breaks(soft: bool, dynamic: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 7).half()
    target = torch.rand(2, 5, 3, 7).half() if soft else torch.randint(0, 5, (2, 3, 7))

    def both(x: Tensor, target: Tensor) -> Tensor:
        loss = numalign.cross_entropy(x * 2, target, label_smoothing=0.1, reduction="none")
        if not soft:
            loss = loss + numalign.nll_loss(x, target, reduction="none")
        return loss

    compiled = torch.compile(both, fullgraph=True, dynamic=dynamic)
    for ours, theirs in zip(loss_and_grad(compiled, x, target), loss_and_grad(both, x, target), strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, target), both(x, target))
    with torch.autocast(DEVICE):
        assert torch.compile(numalign.cross_entropy, fullgraph=True)(x, target).dtype == torch.float32


def test_autocast_returns_fp32_from_unchanged_logits() -> None:
    x = torch.randn(4, 5).bfloat16().requires_grad_()
    target = torch.tensor([0, 1, 2, 3])
    with torch.autocast(DEVICE):
        loss = numalign.cross_entropy(x, target)
        nll = numalign.nll_loss(x, target)
    assert loss.dtype == nll.dtype == torch.float32
    assert torch.equal(loss, numalign.cross_entropy(x, target, out_dtype=torch.float32))
    loss.backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16


def test_gradient_checkpointing() -> None:
    torch.manual_seed(0)
    weight = torch.randn(5, 8, requires_grad=True)
    features, target = torch.randn(6, 8), torch.randint(0, 5, (6,))

    def loss(features: Tensor) -> Tensor:
        return numalign.cross_entropy(features @ weight.t(), target)

    (plain,) = torch.autograd.grad(loss(features), weight)
    (again,) = torch.autograd.grad(checkpoint(loss, features, use_reentrant=False), weight)
    assert torch.equal(plain, again)


@pytest.mark.large
@pytest.mark.parametrize("soft", [False, True])
def test_function_transforms(soft: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    target = torch.rand(3, 4, 5, dtype=torch.float64) if soft else torch.randint(0, 5, (3, 4))
    expected = torch.stack([loss_and_grad(numalign.cross_entropy, x[i], target[i])[1] for i in range(3)])
    grad = torch.func.grad(numalign.cross_entropy)
    assert torch.equal(torch.stack([grad(x[i], target[i]) for i in range(3)]), expected)
    assert torch.equal(torch.func.vmap(grad)(x, target), expected)
    assert torch.equal(torch.func.vmap(grad, (1, 1))(x.transpose(0, 1), target.transpose(0, 1)), expected)
    losses = torch.func.vmap(numalign.cross_entropy)(x, target)
    assert torch.equal(losses, torch.stack([numalign.cross_entropy(x[i], target[i]) for i in range(3)]))

    def total(x: Tensor) -> Tensor:
        return torch.func.vmap(numalign.cross_entropy)(x, target).sum()

    assert torch.equal(torch.func.grad(total)(x), expected)
    hessian = torch.func.jacrev(grad)(x[0], target[0]).reshape(20, 20)
    torch.testing.assert_close(hessian, hessian.t())
    exact = torch.autograd.functional.hessian(lambda z: numalign.cross_entropy(z, target[0]), x[0]).reshape(20, 20)
    torch.testing.assert_close(hessian, exact)
    if not soft:
        by_row = torch.func.vmap(torch.func.grad(numalign.nll_loss))(x, target)
        assert torch.equal(
            by_row, torch.stack([loss_and_grad(numalign.nll_loss, x[i], target[i])[1] for i in range(3)])
        )


LARGE = [(1, 2, 40, 61, 67), (2, 21, 97, 131), (300, 1000), (3, 20001), (2, 3, 257, 263)]


@pytest.mark.large
@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("channels_last", [False, True])
def test_bits_do_not_depend_on_threads_or_repeats(
    shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype) * 8
    if channels_last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    target[torch.rand(target.shape) < 0.01] = -100
    weight = torch.rand(shape[1])
    soft = torch.rand(shape).to(dtype)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 4, 4):
            torch.set_num_threads(threads)
            run = (
                *loss_and_grad(numalign.cross_entropy, x, target, out_dtype=torch.float64),
                *loss_and_grad(numalign.cross_entropy, x, target, weight, label_smoothing=0.1, out_dtype=torch.float64),
                *loss_and_grad(numalign.cross_entropy, x, soft, out_dtype=torch.float64),
                *loss_and_grad(numalign.nll_loss, x, target, weight, out_dtype=torch.float64),
            )
            results.append(run)
    finally:
        torch.set_num_threads(before)
    for run in results[1:]:
        for ours, first in zip(run, results[0], strict=True):
            assert torch.equal(ours, first)


@pytest.mark.native
def test_a_default_device_is_for_others() -> None:
    """Arguments on the CPU are served there, and on the fast path, whatever ``torch.set_default_device`` says."""
    x, target, weight = torch.randn(2, 5, 6), torch.randint(0, 5, (2, 6)), torch.rand(5)
    q = torch.rand(2, 5, 6)

    def everything() -> list[Tensor]:
        _layout.counting.cache_clear()
        _layout.zeros.cache_clear()
        return [
            *loss_and_grad(numalign.cross_entropy, x, target),
            *loss_and_grad(numalign.cross_entropy, x.transpose(0, 2)[:, :, 0], target[0, 0].expand(6) % 5),
            *loss_and_grad(numalign.cross_entropy, x, target, weight, label_smoothing=0.1),
            *loss_and_grad(numalign.cross_entropy, x, target, reduction="none"),
            *loss_and_grad(numalign.cross_entropy, x, q, weight),
            *loss_and_grad(numalign.nll_loss, x, target, weight),
        ]

    expected = everything()
    with torch.device("meta"):
        elsewhere = everything()
        assert (
            type(numalign.cross_entropy(x.clone().requires_grad_(), target).grad_fn).__name__
            == "_GradientAheadBackward"
        )
    for ours, theirs in zip(elsewhere, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_deterministic_mode() -> None:
    torch.manual_seed(0)
    x, target = torch.randn(4, 5, 6), torch.randint(0, 5, (4, 6))
    plain = [*loss_and_grad(numalign.cross_entropy, x, target), *loss_and_grad(numalign.nll_loss, x, target)]
    torch.use_deterministic_algorithms(True)
    try:
        strict = [*loss_and_grad(numalign.cross_entropy, x, target), *loss_and_grad(numalign.nll_loss, x, target)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(plain, strict, strict=True))


def test_strides_do_not_change_the_gradient_of_an_element() -> None:
    torch.manual_seed(0)
    x, target = torch.randn(2, 5, 6, 7).half(), torch.randint(0, 5, (2, 6, 7))
    _, grad = loss_and_grad(numalign.cross_entropy, x, target)
    channels_last = x.contiguous(memory_format=torch.channels_last)
    _, other = loss_and_grad(numalign.cross_entropy, channels_last, target)
    assert other.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(other.contiguous(), grad, rtol=2**-10, atol=0)


MEMORY = """
import re, sys, torch, numalign
torch.manual_seed(0)
def peak():  # not ru_maxrss: a new process starts with that of the one which started it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
small = torch.randn(1, 40, 2**16).half().requires_grad_()
numalign.cross_entropy(small, torch.zeros(1, 2**16, dtype=torch.int64)).backward()
x = torch.full((1, 40, 2**21), 0.5, dtype=torch.float16).requires_grad_()
target = torch.ones(1, 2**21, dtype=torch.int64)
before = peak()
numalign.cross_entropy(x, target).backward(torch.tensor(float(sys.argv[1])).half())
extra = peak() - before - x.numel() * 2
assert extra > 0
print(extra)
"""


@pytest.mark.cpu
@pytest.mark.skipif(sys.platform != "linux", reason="reads the high-water mark of the resident set as Linux counts it")
@pytest.mark.parametrize("incoming", ["1", "2"])
def test_memory_beyond_logits_and_gradient(incoming: str) -> None:
    """A work area of 64 MiB; an fp32 copy of these logits is 320 MiB. A gradient made in vain is freed for the next one."""
    command = [sys.executable, "-c", MEMORY, incoming]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(output) <= 64 * 2**20


@pytest.mark.cpu
@pytest.mark.parametrize(("batch", "dtype"), [(3, torch.float32), (1, torch.float16)])
def test_work_memory_made_in_inference_mode_is_fit_for_training(batch: int, dtype: torch.dtype) -> None:
    x, target = torch.randn(batch, 4, 19).to(dtype), torch.randint(0, 4, (batch, 19))
    _layout.counting.cache_clear()
    _layout.zeros.cache_clear()
    with torch.inference_mode():
        quiet = numalign.cross_entropy(x, target)
    loss, grad = loss_and_grad(numalign.cross_entropy, x, target)
    assert torch.equal(loss, quiet)
    assert torch.isfinite(grad).all()


@pytest.mark.cpu  # Triton's interpreter is for one thread
def test_threads_do_not_share_work_memory() -> None:
    problems = [(torch.randn(1, 21, 40, 40).half(), torch.randint(0, 21, (1, 40, 40))) for _ in range(4)]
    wanted = [loss_and_grad(numalign.cross_entropy, x, target) for x, target in problems]

    def repeat(i: int) -> bool:
        outcomes = [loss_and_grad(numalign.cross_entropy, *problems[i]) for _ in range(50)]
        return all(torch.equal(a, b) for outcome in outcomes for a, b in zip(outcome, wanted[i], strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(repeat, range(4)))


def eager_losses() -> dict[str, tuple[Tensor, Tensor, dict[str, Any]]]:
    torch.manual_seed(0)
    x, t = torch.randn(2, 5, 37, 41) * 4, torch.randint(0, 5, (2, 37, 41))
    ignored = t.masked_fill(torch.rand(t.shape) < 0.1, -100)
    return {
        "plain": (x, t, {}),
        "sum": (x, t, {"reduction": "sum"}),
        "weights": (x, t, {"weight": torch.rand(5)}),
        "ignored": (x, ignored, {}),
        "ignored weights": (x, ignored, {"weight": torch.rand(5)}),
        "channels last": (x.contiguous(memory_format=torch.channels_last), t, {}),
        "sliced": (torch.cat([x, x], -1)[..., ::2], t, {}),
        "short target": (x, t.to(torch.uint8), {}),
        "rows": (torch.randn(300, 1000), torch.randint(0, 1000, (300,)), {}),
        "several blocks": (torch.randn(3, 2, 2**18 + 5), torch.randint(0, 2, (3, 2**18 + 5)), {"ignore_index": 1}),
        "one sample": (torch.randn(7), torch.tensor(3), {}),
    }


@pytest.mark.native
@pytest.mark.parametrize("case", list(eager_losses()))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_gradient_made_ahead_is_the_one_made_later(
    case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, target, options = eager_losses()[case]
    x = x.to(dtype)
    later = 0

    def counted(*args: Any) -> Tensor:
        nonlocal later
        later += 1
        return OPERATORS.cross_entropy_backward.default(*args)

    monkeypatch.setattr(_operators, "cross_entropy_backward", counted)
    for scale in (1.0, 1024.0, 60000.0 / 7):
        incoming = torch.tensor(scale).to(dtype)
        results = []
        for steady in (True, False):
            monkeypatch.setattr(_expectation, "_seen", (incoming.item(), steady))
            z = x.detach().requires_grad_()
            loss = numalign.cross_entropy(z, target, **options)
            before = later
            (first,) = torch.autograd.grad(loss, z, incoming, retain_graph=True)
            assert later - before == (0 if steady else 1)
            kept = first.clone()
            (second,) = torch.autograd.grad(loss, z, incoming, retain_graph=True)
            (other,) = torch.autograd.grad(loss, z, -incoming, retain_graph=True)
            first.fill_(7.0)
            loss.backward(incoming)
            assert z.grad is not None
            assert torch.equal(kept, second)
            assert torch.equal(kept, -other)
            assert torch.equal(kept, z.grad)
            results.append((loss.detach(), kept))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])
        assert results[0][1].stride() == results[1][1].stride()


@pytest.mark.cpu
@pytest.mark.parametrize(("reduction", "smoothing"), [(0, 0.0), (1, 0.0), (2, 0.0), (1, 0.1)])
def test_nothing_is_kept_per_element_beside_a_gradient_made_ahead(reduction: int, smoothing: float) -> None:
    x, target = torch.randn(3, 4, 5).half(), torch.randint(0, 4, (3, 5))
    options = (reduction, -100, smoothing)
    _, *saved, gradient = OPERATORS.cross_entropy(x, target, None, *options, False, 2.0, torch.float32)
    assert [t.numel() for t in saved] == [0, 0, 1] if gradient.numel() else [15, 15, 1]
    assert gradient.numel() == (x.numel() if reduction != 0 and smoothing == 0 else 0)
    grad = torch.full((3, 5) if reduction == 0 else (), 0.75)
    made = OPERATORS.cross_entropy_backward(grad, x, target, None, *saved, *options)
    _, *kept, _ = OPERATORS.cross_entropy(x, target, None, *options, False, None, torch.float32)
    assert torch.equal(made, OPERATORS.cross_entropy_backward(grad, x, target, None, *kept, *options))


@pytest.mark.parametrize("case", [*eager_losses(), "expanded", "permuted"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_loss_is_the_same_with_and_without_a_gradient(case: str, dtype: torch.dtype, path: str) -> None:
    torch.manual_seed(1)
    if case == "expanded":
        x, t = torch.randn(5, 1, 700).expand(5, 300, 700).movedim(0, 1), torch.randint(0, 5, (300, 700))
        options: dict[str, Any] = {}
    elif case == "permuted":
        x, t, options = torch.randn(40, 50, 30, 5).movedim(-1, 1).transpose(2, 3), torch.randint(0, 5, (40, 30, 50)), {}
    else:
        x, t, options = eager_losses()[case]
    x = x.to(dtype) if case != "expanded" else x[:1].to(dtype).expand_as(x)
    loss = numalign.cross_entropy(x.detach().requires_grad_(), t, **options)
    with torch.no_grad():
        alone = numalign.cross_entropy(x, t, **options)
    # The compiler lays lanes out by what a kernel stores, and with that changes the order in which they are added.
    bits = 2 if path == "kernels" else 0
    torch.testing.assert_close(loss, alone, rtol=bits * torch.finfo(dtype).eps, atol=0)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 5, 37, 41), (1, 130, 9), (300, 130)])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_one_contiguous_block_has_the_bits_of_any_other(
    shape: tuple[int, ...], scale: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, target = (torch.randn(shape) * scale).to(dtype), torch.randint(0, shape[1], (shape[0], *shape[2:]))
    strided = torch.cat([x, x], -1)[..., : shape[-1]]
    assert not strided.is_contiguous()
    for ours, theirs in zip(
        loss_and_grad(numalign.cross_entropy, x, target),
        loss_and_grad(lambda z, t: numalign.cross_entropy(torch.cat([z, z], -1)[..., : shape[-1]], t), x, target),
        strict=True,
    ):
        assert torch.equal(ours, theirs)


def test_who_watches_sees_the_operator() -> None:
    """The way past the dispatcher is for plain eager mode alone."""
    x, target = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 2, 3])
    seen: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    for mode in (Functions, Operators):
        seen.clear()
        with mode():
            watched = numalign.cross_entropy(x, target)
        assert "numalign.cross_entropy.default" in seen
        assert torch.equal(watched, numalign.cross_entropy(x, target))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(numalign.cross_entropy, (x, target), check_trace=False)
    assert "numalign::cross_entropy" in str(traced.graph)


@pytest.mark.native
def test_a_gradient_is_made_ahead_while_the_incoming_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_expectation, "_seen", (1.0, True))
    target = torch.tensor([0, 1, 2, 3])

    def step(scale: float) -> float | None:
        x = torch.ones(4, 5, requires_grad=True)
        (numalign.cross_entropy(x, target) * scale).backward()
        return _expectation.expected()

    assert [step(s) for s in (1.0, 64.0, 64.0, 2.0, 64.0, 2.0, 2.0)] == [1.0, None, 64.0, None, None, None, 2.0]
    for useless in (0.0, torch.inf, torch.nan):
        assert step(useless) == 2.0


def test_a_gradient_made_ahead_minds_writes_freed_graphs_and_second_derivatives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_expectation, "_seen", (1.0, True))
    x, target = torch.randn(4, 5, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 2, 3])
    loss = numalign.cross_entropy(x, target)
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    assert grad.requires_grad
    loss = numalign.cross_entropy(x, target)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    y = x * 1
    loss = numalign.cross_entropy(y, target)
    y.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()
    loss = numalign.cross_entropy(x, target)
    (many,) = torch.autograd.grad(loss, x, torch.ones(3, dtype=torch.float64), is_grads_batched=True)
    assert torch.equal(many, grad.detach().expand_as(many))
