"""Cross-entropy on the CPU beside PyTorch's: time, error against fp64, and memory.

Times are of one forward and backward, the least of interleaved repeats. "ratio" is PyTorch's time over ours: above 1 we are
faster. Errors are the largest over the gradient, in ulp of the dtype, and that of the mean loss; "nan" means that the result
is not finite though the exact one fits. Inputs are random and larger than the caches unless the shape is small.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import numalign
from parts import Column, Part, Settings, dtype_name, number, shape_text
from peers import Loss
from timing import Record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from ops import loss_reference as reference


@dataclass(frozen=True)
class Shape:
    """Sizes of the logits, and whether the classes lie innermost."""

    sizes: tuple[int, ...]
    channels_last: bool = False

    def make(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Standard-normal logits and uniform targets."""
        torch.manual_seed(0)
        x = torch.randn(self.sizes).to(dtype)
        if self.channels_last:
            x = x.movedim(1, -1).contiguous().movedim(-1, 1)
        return x.requires_grad_(), torch.randint(0, self.sizes[1], (self.sizes[0], *self.sizes[2:]))


SHAPES = [
    Shape((1, 21, 64, 64)),
    Shape((2, 21, 256, 256)),
    Shape((2, 21, 256, 256), channels_last=True),
    Shape((1, 150, 256, 256)),
    Shape((1, 19, 512, 1024)),
    Shape((1, 2, 64, 96, 96)),
    Shape((512, 1000)),
    Shape((256, 32000)),
    Shape((64, 128256)),
]

PEAK = """
import re, sys, torch, torch.nn.functional as F, numalign
def high_water():  # not ru_maxrss: a new process starts with that of the one which started it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
function = {"numalign": numalign.cross_entropy, "eager": F.cross_entropy}[sys.argv[1]]
dtype, sizes = getattr(torch, sys.argv[2]), [int(n) for n in sys.argv[3].split(",")]
def step(sizes):
    x = torch.full(sizes, 0.5, dtype=dtype).requires_grad_()
    target = torch.ones([sizes[0], *sizes[2:]], dtype=torch.int64)
    before = high_water()
    function(x, target).backward()
    return high_water() - before - x.numel() * x.element_size()
step([1, sizes[1]] + [2] * (len(sizes) - 2))
print(step(sizes))
"""


def step(loss: Loss, x: Tensor, target: Tensor) -> Tensor:
    x.grad = None
    result = loss(x, target)
    result.backward()
    return result


def least_times(losses: list[Loss], x: Tensor, target: Tensor, seconds: float) -> list[float]:
    """The least time of each, all of them tried in turn for about ``seconds``."""
    best = [float("inf")] * len(losses)
    for loss in losses:
        step(loss, x, target)
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 5 or time.perf_counter() < end:
        for i, loss in enumerate(losses):
            start = time.perf_counter()
            step(loss, x, target)
            best[i] = min(best[i], time.perf_counter() - start)
        rounds += 1
    return best


def errors(loss: Loss, x: Tensor, target: Tensor, exact: reference.Reference) -> tuple[float, float]:
    """The error of the mean loss and the largest of the gradient, in ulp."""
    value = step(loss, x, target).detach().double()
    assert x.grad is not None
    of_loss = (value - exact.loss).abs() / reference.ulp(exact.loss, x.dtype)
    of_grad = (x.grad.double() - exact.grad).abs() / reference.ulp(exact.grad, x.dtype)
    return float(of_loss), float(of_grad.max())


def peak(which: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> float:
    """Bytes beyond logits and gradient at the high-water mark of a fresh process."""
    arguments = [which, dtype_name(dtype), ",".join(map(str, sizes))]
    run = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=True)
    return float(run.stdout)


def times(settings: Settings) -> Iterator[Record]:
    losses: dict[str, Loss] = {"eager": F.cross_entropy, "numalign": numalign.cross_entropy}
    seconds = (1.5 if settings.quick else 2.0) * min(1.0, settings.scale)
    for shape in SHAPES:
        sized = Shape(settings.scaled(shape.sizes), shape.channels_last)
        for dtype in settings.dtypes(torch.float16, torch.bfloat16, torch.float32):
            x, target = sized.make(dtype)
            stock, ours = least_times(list(losses.values()), x, target, seconds)
            exact = reference.cross_entropy(x, target)
            found = {name: errors(loss, x, target, exact) for name, loss in losses.items()}
            yield {
                "shape": list(sized.sizes),
                "channels_last": shape.channels_last,
                "dtype": dtype_name(dtype),
                "ns_per_logit": {"eager": stock * 1e9 / x.numel(), "numalign": ours * 1e9 / x.numel()},
                "ratio": stock / ours,
                "loss_ulp": {name: of_loss for name, (of_loss, _) in found.items()},
                "grad_ulp": {name: of_grad for name, (_, of_grad) in found.items()},
            }


def memory(settings: Settings) -> Iterator[Record]:
    for sizes in map(settings.scaled, ((8, 21, 512, 512), (1, 2, 128, 256, 256), (512, 128256))):
        stock, ours = (peak(which, torch.float16, sizes) for which in ("eager", "numalign"))
        allowed = 8 * (math.prod(sizes) // sizes[1]) + 64 * 2**20
        yield {"shape": list(sizes), "bytes": {"eager": stock, "numalign": ours}, "allowed": allowed}


def _mib(value: float) -> str:
    return f"{value / 2**20:.1f}"


PARTS = {
    "cpu": Part(
        "Forward and backward on the CPU: ns per logit; ulp of loss and of gradient.",
        (
            Column("shape", 30, lambda r: shape_text(r) + (" channels last" if r["channels_last"] else "")),
            Column("dtype", 8, lambda r: r["dtype"]),
            Column("eager", 7, lambda r: number(r["ns_per_logit"]["eager"])),
            Column("ours", 7, lambda r: number(r["ns_per_logit"]["numalign"])),
            Column("ratio", 6, lambda r: number(r["ratio"])),
            Column("loss: eager", 11, lambda r: number(r["loss_ulp"]["eager"])),
            Column("ours", 6, lambda r: number(r["loss_ulp"]["numalign"])),
            Column("gradient: eager", 15, lambda r: number(r["grad_ulp"]["eager"])),
            Column("ours", 6, lambda r: number(r["grad_ulp"]["numalign"])),
        ),
        times,
    ),
    "cpu_memory": Part(
        "MiB beyond logits and gradient, fp16 (allowed: 8 bytes per element of the target and a work area of 64 MiB).",
        (
            Column("shape", 30, shape_text),
            Column("eager", 8, lambda r: _mib(r["bytes"]["eager"])),
            Column("ours", 8, lambda r: _mib(r["bytes"]["numalign"])),
            Column("allowed", 8, lambda r: _mib(r["allowed"])),
        ),
        memory,
    ),
}
