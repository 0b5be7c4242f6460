"""Cross-entropy beside PyTorch's: time, error against fp64, and memory, from one run on this machine.

    python benchmarks/losses.py              # everything
    python benchmarks/losses.py --quick      # fp16 alone, fewer repeats

Times are of one forward and backward, the least of interleaved repeats. "ratio" is PyTorch's time over ours: above 1 we are
faster. Errors are the largest over the gradient, in ulp of the dtype, and that of the mean loss; "nan" means that the result
is not finite though the exact one fits. Inputs are random and larger than the caches unless the shape is small.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import numalign

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from ops import loss_reference as reference

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of the logits, and whether the classes lie innermost."""

    sizes: tuple[int, ...]
    channels_last: bool = False

    def __str__(self) -> str:
        return f"{self.sizes}{' channels last' if self.channels_last else ''}".replace(" ", "", len(self.sizes) - 1)

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
    arguments = [which, str(dtype).removeprefix("torch."), ",".join(map(str, sizes))]
    run = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=True)
    return float(run.stdout)


def times_and_errors(dtypes: list[torch.dtype], seconds: float) -> None:
    header = f"{'shape':30} {'dtype':9} {'eager':>7} {'ours':>7}  ns/logit  ratio"
    print(f"\n{header}   ulp of loss, gradient: {'eager':>6} {'ours':>16}")
    for shape in SHAPES:
        for dtype in dtypes:
            x, target = shape.make(dtype)
            stock, ours = least_times([F.cross_entropy, numalign.cross_entropy], x, target, seconds)
            unit = 1e9 / x.numel()
            exact = reference.cross_entropy(x, target)
            of_stock = errors(F.cross_entropy, x, target, exact)
            of_ours = errors(numalign.cross_entropy, x, target, exact)
            print(
                f"{shape!s:30} {str(dtype)[6:]:9} {stock * unit:7.2f} {ours * unit:7.2f}           {stock / ours:6.2f}"
                f"   {of_stock[0]:18.2f}, {of_stock[1]:10.2f} {of_ours[0]:6.2f}, {of_ours[1]:6.2f}",
                flush=True,
            )


def memory() -> None:
    print("\nbytes beyond logits and gradient, fp16 (allowed: 8 per element of the target and a work area of 64 MiB)")
    for sizes in ((8, 21, 512, 512), (1, 2, 128, 256, 256), (512, 128256)):
        elements = sizes[0]
        for n in sizes[2:]:
            elements *= n
        allowed = 8 * elements + 64 * 2**20
        stock, ours = (peak(which, torch.float16, sizes) / 2**20 for which in ("eager", "numalign"))
        print(
            f"{sizes!s:26} eager {stock:8.1f} MiB   ours {ours:8.1f} MiB   allowed {allowed / 2**20:8.1f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="threads of PyTorch; 1 is the least disturbed by other processes")
    parser.add_argument("--quick", action="store_true", help="fp16 alone, fewer repeats, no memory")
    arguments = parser.parse_args()
    quick = arguments.quick
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    dtypes = [torch.float16] if quick else [torch.float16, torch.bfloat16, torch.float32]
    times_and_errors(dtypes, 1.5 if quick else 2.0)
    if not quick and sys.platform == "linux":
        memory()


if __name__ == "__main__":
    main()
