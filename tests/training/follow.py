"""Whether a run in low precision follows the fp32 run as closely as low precision lets it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from training.models import task
from training.recipes import RECIPES, SINGLE, curve

# Not a power of 2, which would round no gradient otherwise.
TWIN = 0.75


def distance(a: Tensor, b: Tensor) -> float:
    """The mean difference between the losses of two runs that saw the same batches."""
    return (a.double() - b.double()).abs().mean().item()


@dataclass(frozen=True)
class Controls:
    """What low precision costs outside the loss.

    ``upcast`` has the model in low precision and PyTorch's loss, of logits in fp32. ``twin`` is ``upcast`` with 3/4 of its
    scale: the same in exact arithmetic, and rounded otherwise in every gradient. Ours differs from ``upcast`` in less: its
    gradients are those of fp32, rounded once, but for 0.01 ulp.
    """

    single: Tensor
    upcast: Tensor
    twin: Tensor

    def bound(self, reported: Tensor) -> float:
        """How far a run may be from the fp32 run: as far as ``upcast`` is, and the noise from rounding, which ``twin`` shows.

        A loss in 16 bits is itself off by 0.51 ulp.
        """
        rounding = 0.51 * torch.finfo(reported.dtype).eps * self.single.mean().item()
        return distance(self.upcast, self.single) + distance(self.twin, self.upcast) + rounding


@lru_cache
def controls(name: str, recipe: str, device: str, steps: int) -> Controls:
    low = RECIPES[recipe]
    twin = replace(low, scale=TWIN * low.scale)
    runs = [curve(task(name, device), r, "upcast", steps) for r in (low, twin)]
    return Controls(single(name, device, steps), *runs)


@lru_cache
def single(name: str, device: str, steps: int) -> Tensor:
    return curve(task(name, device), SINGLE, "upcast", steps)


def check_follows(run: Tensor, by: Controls) -> None:
    bound = by.bound(run)
    learned = (by.single[:8].mean() - by.single[-8:].mean()).item()
    assert bound < 0.02 * learned  # or else a run that learns nothing could pass
    assert distance(run, by.single) <= bound
