"""How people train in low precision, and how they give the loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import numalign
from training.models import Task

Forward = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Recipe:
    """Types of the parameters that are updated and of the model that is run, autocast, and the scale of the loss."""

    parameters: torch.dtype = torch.float32
    model: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    scale: float = 1.0
    scaler: bool = False


SINGLE = Recipe()
RECIPES = {
    "fp16": Recipe(torch.float16, torch.float16, scale=1024.0),
    "fp16, fp32 master weights": Recipe(model=torch.float16, scale=1024.0, scaler=True),
    "bf16": Recipe(torch.bfloat16, torch.bfloat16),
    "autocast fp16": Recipe(autocast=torch.float16, scale=1024.0, scaler=True),
    "autocast bf16": Recipe(autocast=torch.bfloat16),
}

OURS = ("repair", "function", "module")


def criterion(way: str, options: dict[str, Any], model: torch.dtype) -> Forward:
    """The loss: PyTorch's (``stock``, the same under ``repair``), PyTorch's of logits in fp32 (``upcast``), or ours by name."""
    dtype = torch.float32 if way == "upcast" else model
    options = {k: v.to(dtype) if isinstance(v, Tensor) else v for k, v in options.items()}
    if way == "upcast":
        return lambda logits, target: F.cross_entropy(logits.float(), target, **options)
    if way == "function":
        return partial(numalign.cross_entropy, **options)
    if way == "module":
        return numalign.CrossEntropyLoss(**options)
    if way == "unrounded":
        return numalign.CrossEntropyLoss(**options, out_dtype=torch.float32)
    return nn.CrossEntropyLoss(**options)


def in_force(way: str) -> AbstractContextManager[Any]:
    return numalign.repair() if way == "repair" else nullcontext()


def unchanged(it: Any) -> Any:
    return it


class Trainer:
    """One run. ``wrap`` is applied to the forward of model and loss, ``parallel`` to the model."""

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        way: str,
        *,
        wrap: Callable[[Forward], Forward] = unchanged,
        parallel: Callable[[nn.Module], nn.Module] = unchanged,
    ) -> None:
        torch.manual_seed(0)
        device = task.batches[0][1].device
        own = task.model().to(device, recipe.parameters)
        self.model = own if recipe.model == recipe.parameters else copy.deepcopy(own).to(recipe.model)
        self.recipe, self.parameters = recipe, list(own.parameters())
        self.copies = [] if own is self.model else list(self.model.parameters())
        # Where no scaler undoes the scale, the learning rate does.
        rate = task.rate if recipe.scaler else task.rate / recipe.scale
        # Gradient descent with momentum: unlike Adam it heeds the size of a gradient.
        self.optimizer = torch.optim.SGD(self.parameters, rate, momentum=0.9)
        # It grows several times in a run, so that the incoming gradient of the loss changes.
        self.scaler = torch.amp.GradScaler(device.type, recipe.scale, growth_interval=30, enabled=recipe.scaler)
        model, loss = parallel(self.model), criterion(way, task.options, recipe.model)

        def forward(x: Tensor, target: Tensor) -> Tensor:
            with torch.autocast(device.type, recipe.autocast, enabled=recipe.autocast is not None):
                return loss(model(x), target)

        self.forward = wrap(forward)

    def step(self, x: Tensor, target: Tensor) -> Tensor:
        self.model.zero_grad()
        loss = self.forward(x.to(self.recipe.model) if x.is_floating_point() else x, target)
        scaled = self.scaler.scale(loss) if self.recipe.scaler else loss * self.recipe.scale
        scaled.backward()
        for own, its_copy in zip(self.parameters, self.copies, strict=bool(self.copies)):
            assert its_copy.grad is not None
            own.grad = its_copy.grad.float()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            for own, its_copy in zip(self.parameters, self.copies, strict=bool(self.copies)):
                its_copy.copy_(own)
        return loss.detach()


def curve(task: Task, recipe: Recipe, way: str, steps: int, **options: Any) -> Tensor:
    """The losses of a run."""
    with in_force(way):
        trainer = Trainer(task, recipe, way, **options)
        losses = [trainer.step(*task.batches[i % len(task.batches)]) for i in range(steps)]
    return torch.stack(losses).cpu()
