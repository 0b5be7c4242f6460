"""Two small models, and tasks that they learn within a hundred steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, PATCH, SIDE, VOID = 4, 8, 192, 255
WORDS, LENGTH = 32, 24


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.GELU())


class Enlarge(nn.Module):
    """``nn.Upsample(scale_factor=factor)``, whose compiled backward in 16 bits gives zeros on the CPU in PyTorch 2.13."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.factor, -1).repeat_interleave(self.factor, -2)


class UNet(nn.Module):
    """Works on patches: the full resolution is for the loss, and fp16 convolutions are slow on a CPU."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.PixelUnshuffle(PATCH), nn.Conv2d(PATCH**2, width, 1), block(width, width))
        self.below = nn.Sequential(nn.AvgPool2d(2), block(width, 2 * width), Enlarge(2))
        self.merge = block(3 * width, 2 * width)
        self.head = nn.Sequential(nn.Conv2d(2 * width, CLASSES, 1), Enlarge(PATCH))

    def forward(self, image: Tensor) -> Tensor:
        features = self.stem(image)
        logits: Tensor = self.head(self.merge(torch.cat([features, self.below(features)], 1)))
        return logits


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        between: Tensor = x + self.mlp(self.between(x))
        return between


class Transformer(nn.Module):
    """A language model; its logits are (batch * length, words)."""

    def __init__(self, width: int = 16, layers: int = 1) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        self.layers = nn.Sequential(*(Layer(width, 2) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, WORDS))

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.words(words) + self.places))
        return logits.flatten(0, 1)


Batch = tuple[Tensor, Tensor]


def image(random: torch.Generator) -> Batch:
    """Two images: smooth regions, each class in its grey under noise, void where two regions meet. 73728 pixels."""
    heights = F.interpolate(torch.randn(2, CLASSES, 6, 6, generator=random), size=(SIDE, SIDE), mode="bilinear")
    best, classes = heights.topk(2, 1)
    grey = classes[:, :1] - 1.5 + 0.3 * torch.randn(2, 1, SIDE, SIDE, generator=random)
    return grey, classes[:, 0].masked_fill(best[:, 0] - best[:, 1] < 0.05, VOID)


def text(random: torch.Generator) -> Batch:
    """8 sentences of a Markov chain: one of two words follows a word, with odds of 4 to 1."""
    follows = torch.stack([torch.randperm(WORDS, generator=torch.Generator().manual_seed(i)) for i in range(2)])
    words = [torch.randint(WORDS, (8,), generator=random)]
    for _ in range(LENGTH):
        rare = (torch.rand(8, generator=random) < 0.2).long()
        words.append(follows[rare, words[-1]])
    sentences = torch.stack(words, 1)
    return sentences[:, :-1], sentences[:, 1:].flatten()


@dataclass(frozen=True)
class Task:
    """A model, the batches that it sees in turn, the options of its loss, the rate of learning."""

    model: Callable[[], nn.Module]
    batches: Sequence[Batch]
    options: dict[str, Any]
    rate: float


TASKS = {
    "unet": (UNet, image, {"weight": torch.tensor([0.75, 1.0, 1.25, 1.5]), "ignore_index": VOID}, 0.03),
    "transformer": (Transformer, text, {}, 0.1),
}


@lru_cache
def task(name: str, device: str) -> Task:
    model, make, options, rate = TASKS[name]
    random = torch.Generator().manual_seed(0)
    batches = [tuple(t.to(device) for t in make(random)) for _ in range(8)]
    return Task(model, batches, {k: v.to(device) if isinstance(v, Tensor) else v for k, v in options.items()}, rate)
