"""The same training with its step compiled, checkpointed, or shared between processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from training.distributed import train
from training.follow import Controls, check_follows, controls
from training.models import task
from training.recipes import OURS, RECIPES, Forward, curve

STEPS = 60
RUNS = [("unet", "fp16, fp32 master weights", "repair"), ("transformer", "autocast fp16", "function")]


@pytest.mark.parametrize(("name", "recipe", "way"), RUNS)
def test_compiled(name: str, recipe: str, way: str, device: str) -> None:
    torch._dynamo.reset()
    run = curve(task(name, device), RECIPES[recipe], way, STEPS, wrap=partial(torch.compile, fullgraph=True))
    check_follows(run, controls(name, recipe, device, STEPS))


@pytest.mark.parametrize(("name", "recipe", "way"), RUNS)
def test_checkpointed(name: str, recipe: str, way: str, device: str) -> None:
    """Model and loss are run once more in the backward."""
    calls = 0

    def checkpointed(forward: Forward) -> Forward:
        def counted(x: Tensor, target: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return forward(x, target)

        return partial(checkpoint, counted, use_reentrant=False)

    run = curve(task(name, device), RECIPES[recipe], way, STEPS, wrap=checkpointed)
    assert calls == 2 * STEPS
    check_follows(run, controls(name, recipe, device, STEPS))


def test_data_parallel(device: str, tmp_path: Path) -> None:
    """Two processes on the CPU, one on the GPU; all see the batches in an order of their own."""
    processes = 2 if device == "cpu" else 1
    torch.multiprocessing.spawn(train, (processes, device, tmp_path), processes)
    for rank in range(processes):
        runs = torch.load(tmp_path / f"{rank}.pt")
        by = Controls(*(runs[control] for control in ("single", "upcast", "twin")))
        for way in OURS:
            check_follows(runs[way], by)
