"""Training in low precision, eager and in one process."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch

from training.follow import check_follows, controls
from training.models import TASKS, task
from training.recipes import OURS, RECIPES, Recipe, Trainer, curve, in_force

STEPS = 120
# Every recipe, and every way to give the loss, for each model.
RUNS = [
    *(("unet", recipe, way) for recipe, way in zip(RECIPES, cycle(OURS))),
    *(("transformer", recipe, way) for recipe, way in zip(RECIPES, cycle(reversed(OURS)))),
]


@pytest.mark.parametrize(("name", "recipe", "way"), RUNS)
def test_follows_the_fp32_run(name: str, recipe: str, way: str, device: str) -> None:
    low = RECIPES[recipe]
    run = curve(task(name, device), low, way, STEPS)
    assert run.dtype == (low.model if low.autocast is None else torch.float32)
    check_follows(run, controls(name, recipe, device, STEPS))


@pytest.mark.parametrize("recipe", ["fp16", "fp16, fp32 master weights"])
def test_stock_loss_of_as_many_pixels_trains_nothing(recipe: str, device: str) -> None:
    """Its total weight is inf in fp16: the loss is nan, and every gradient is zero."""
    moved = {}
    for way in ("stock", "repair"):
        with in_force(way):
            trainer = Trainer(task("unet", device), RECIPES[recipe], way)
            before = [p.clone() for p in trainer.parameters]
            losses = torch.stack([trainer.step(*batch) for batch in task("unet", device).batches])
        assert losses.isfinite().all() if way == "repair" else losses.isnan().all()
        moved[way] = [not torch.equal(p, q) for p, q in zip(before, trainer.parameters, strict=True)]
    assert not any(moved["stock"])
    assert all(moved["repair"])


@pytest.mark.parametrize("name", list(TASKS))
def test_scale_that_a_scaler_starts_with(name: str, device: str) -> None:
    """65536 is inf in fp16, where a gradient of an fp16 loss arrives. That costs one step; a loss in fp32 costs none."""
    recipe = Recipe(model=torch.float16, scale=65536.0, scaler=True)
    for way, skips in (("function", True), ("unrounded", False), ("upcast", False)):
        trainer = Trainer(task(name, device), recipe, way)
        before = [p.clone() for p in trainer.parameters]
        for i, batch in enumerate(task(name, device).batches):
            trainer.step(*batch)
            moved = [not torch.equal(p, q) for p, q in zip(before, trainer.parameters, strict=True)]
            assert not any(moved) if skips and i == 0 else all(moved)
        assert trainer.scaler.get_scale() == (32768.0 if skips else 65536.0)
