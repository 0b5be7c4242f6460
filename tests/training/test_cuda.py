"""What only a GPU has: graphs of a whole step, and a host that runs ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from training.conftest import GPU
from training.follow import check_follows, controls
from training.models import CLASSES, TASKS, task
from training.recipes import OURS, RECIPES, Trainer, criterion, in_force

pytestmark = GPU
STEPS, WARM_UP = 120, 3


@contextmanager
def on_another_stream() -> Iterator[None]:
    """As a warm-up before a capture has to be."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@pytest.mark.parametrize("name", list(TASKS))
@pytest.mark.parametrize("way", OURS)
def test_whole_step_in_a_graph(name: str, way: str) -> None:
    batches = task(name, "cuda").batches
    x, target = (t.clone() for t in batches[0])
    losses: list[Tensor] = []

    with in_force(way):
        trainer = Trainer(task(name, "cuda"), RECIPES["fp16"], way)
        with on_another_stream():
            losses += [trainer.step(*batches[i]) for i in range(WARM_UP)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = trainer.step(x, target)
    for i in range(WARM_UP, STEPS):
        for static, new in zip((x, target), batches[i % len(batches)], strict=True):
            static.copy_(new)
        graph.replay()
        losses.append(loss.clone())
    check_follows(torch.stack(losses).cpu(), controls(name, "fp16", "cuda", STEPS))


def logits_and_target(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    target = task("unet", "cuda").batches[0][1]
    return torch.randn(2, CLASSES, *target.shape[1:], device="cuda").to(dtype).requires_grad_(), target


@pytest.mark.parametrize("way", OURS)
def test_loss_in_a_graph_heeds_a_scale_that_changes(way: str) -> None:
    """A gradient that was made for another scale than comes is made again, which the graph has to provide for."""
    x, target = logits_and_target(torch.float16)
    loss = criterion(way, task("unet", "cuda").options, torch.float16)
    scale = torch.full((), 1024.0, device="cuda")

    def gradient() -> Tensor:
        return torch.autograd.grad(loss(x, target) * scale, x)[0]

    with in_force(way):
        with on_another_stream():
            for _ in range(WARM_UP):
                gradient()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = gradient()
        for value in (1024.0, 2048.0, 2048.0, 2048.0, 768.0):
            scale.fill_(value)
            graph.replay()
            replayed = captured.clone()
            assert torch.equal(replayed, gradient())


@pytest.mark.parametrize("way", OURS)
@pytest.mark.parametrize("recipe", list(RECIPES))
def test_host_never_waits(way: str, recipe: str) -> None:
    low = RECIPES[recipe]
    x, target = logits_and_target(low.autocast or low.model)
    loss = criterion(way, task("unet", "cuda").options, low.model)
    scales = [torch.full((), s, device="cuda") for s in (1024.0, 1024.0, 1024.0, 2048.0, 768.0)]

    def step(scale: Tensor) -> Tensor:
        with torch.autocast("cuda", low.autocast, enabled=low.autocast is not None):
            value = loss(x, target)
        (value * scale).backward()
        return value

    with in_force(way):
        step(scales[0])  # compiles
        torch.cuda.set_sync_debug_mode("error")
        try:
            for scale in scales:
                value = step(scale)
            with pytest.raises(RuntimeError, match="synchroniz"):
                value.item()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert value.isfinite()
