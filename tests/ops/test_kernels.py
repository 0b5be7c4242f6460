"""What only the kernels do: compile, guess on the device, and never make the host wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import numalign
from ops import loss_reference as reference

pytestmark = pytest.mark.kernels

DEVICE = torch.get_default_device()
# One for each kernel: few classes and many, classes innermost, a row that fits and one that does not.
LAYOUTS = {
    "strided, in registers": ((2, 5, 37, 3), False),
    "strided, read twice": ((2, 40, 3, 7), False),
    "packed": ((2, 5, 7, 9), True),
    "rows": ((3, 70), False),
    "long rows": ((2, 4100), False),
}


def problem(layout: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape, innermost = LAYOUTS[layout]
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    if innermost:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x, torch.randint(0, shape[1], (shape[0], *shape[2:]))


def remembered(incoming: float, *, steady: bool, all_counted: bool = True) -> None:
    """Let the device have seen this in the last steps."""
    from numalign.ops.kernels import launch

    memory = launch.memory_of(torch.empty(0).device)
    memory.copy_(torch.tensor([incoming, float(steady), float(all_counted)]))


def step(x: Tensor, target: Tensor, incoming: float, **options: Any) -> tuple[Tensor, Tensor]:
    z = x.detach().requires_grad_()
    loss = numalign.cross_entropy(z, target, **options)
    (grad,) = torch.autograd.grad(loss, z, torch.tensor(incoming, dtype=loss.dtype))
    return loss.detach(), grad


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler is for Linux")
def test_every_kernel_compiles(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    program = Path(__file__).with_name("compile_kernels.py")
    run = subprocess.run(
        [sys.executable, str(program)],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert int(run.stdout) >= 40


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("ignored", [False, True])
def test_a_guess_decides_when_a_gradient_is_made_and_never_which(layout: str, ignored: bool) -> None:
    """Right, wrong, none, and right about the incoming gradient but wrong about how many targets count."""
    x, target = problem(layout, torch.float16)
    if ignored:
        target.view(-1)[0] = -100
    results = []
    for value, steady, counted in (
        (64.0, True, not ignored),
        (2.0, True, True),
        (64.0, False, True),
        (64.0, True, True),
    ):
        remembered(value, steady=steady, all_counted=counted)
        results.append(step(x, target, 64.0))
    exact = reference.cross_entropy(x, target, incoming=64.0)
    reference.check_loss(results[0][0], exact, torch.float16)
    reference.check_grad(results[0][1], exact, torch.float16)
    for loss, grad in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(grad, results[0][1])


def test_what_has_been_seen_is_expected() -> None:
    from numalign.ops.kernels import launch

    x, target = problem("rows", torch.float32)
    remembered(1.0, steady=True)
    memory = launch.memory_of(x.device)
    seen = []
    for incoming in (1.0, 64.0, 64.0, 0.0, float("inf"), 2.0):
        step(x, target, incoming)
        seen.append(memory[:2].tolist())
    assert seen == [[1, 1], [64, 0], [64, 1], [64, 1], [64, 1], [2, 0]]
    target[0] = -100
    step(x, target, 2.0)
    assert memory[2] == 0
    remembered(1.0, steady=True)


gpu = [pytest.mark.gpu, pytest.mark.skipif(DEVICE.type != "cuda", reason="needs --device cuda")]


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("bad", [False, True])
class TestOnAGPU:
    pytestmark = gpu

    def test_the_host_does_not_wait(self, layout: str, bad: bool) -> None:
        """Nor for a target out of range, which leaves the context alive."""
        x, target = problem(layout, torch.bfloat16)
        if bad:
            target.view(-1)[-1] = 10**9
        weight, one = torch.rand(x.shape[1]), torch.ones((), dtype=x.dtype)
        x.requires_grad_()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for options in ({}, {"weight": weight, "label_smoothing": 0.1}, {"reduction": "sum"}):
                loss = numalign.cross_entropy(x, target, **options)
                torch.autograd.grad(loss, x, one)
            torch.autograd.grad(numalign.nll_loss(x, target, weight), x, one)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert loss.isnan() == bad
        torch.cuda.synchronize()

    def test_graphs_replay(self, layout: str, bad: bool) -> None:
        """A captured step follows its inputs, and guesses anew at each replay."""
        x, target = problem(layout, torch.float16)
        other, incoming = torch.randn_like(x), torch.ones((), dtype=x.dtype)
        z = x.clone().requires_grad_()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.autograd.grad(numalign.cross_entropy(z, target), z, incoming)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = numalign.cross_entropy(z, target)
            (grad,) = torch.autograd.grad(loss, z, incoming)
        for values, scale in ((x, 1.0), (other, 1.0), (other, 64.0), (x, 64.0), (x, -2.0)):
            with torch.no_grad():
                z.copy_(values)
            incoming.fill_(scale)
            if bad:
                target.view(-1)[0] = -100
            graph.replay()
            exact = reference.cross_entropy(values, target, incoming=scale)
            reference.check_loss(loss, exact, torch.float16)
            reference.check_grad(grad, exact, torch.float16)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs --device cuda")
@pytest.mark.parametrize("shape", [(2**16 + 1, 2**15), (2, 2, 2**29 + 1), (2**26 + 1, 32)])
def test_more_than_2_to_the_31_logits(shape: tuple[int, ...]) -> None:
    """The first and the last elements, whose offsets no 32-bit integer holds."""
    x = torch.empty(shape, dtype=torch.bfloat16).normal_().requires_grad_()
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    losses = numalign.cross_entropy(x, target, reduction="none")
    losses.backward(torch.ones_like(losses))
    assert x.grad is not None
    ends = [slice(0, 3), slice(-3, None)]
    for end in ends:
        here = end if len(shape) == 2 else (slice(None), slice(None), end)
        of_target = end if len(shape) == 2 else (slice(None), end)
        exact = reference.cross_entropy(x.detach()[here], target[of_target], reduction="none")
        reference.check_loss(losses[of_target], exact, torch.bfloat16)
        reference.check_grad(x.grad[here], exact, torch.bfloat16)
    with torch.no_grad():
        mean = numalign.cross_entropy(x, target, out_dtype=torch.float32)
    assert abs(mean.item() - losses.double().mean().item()) < 2**-8 * mean.item()
