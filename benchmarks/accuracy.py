"""Errors of the mean cross-entropy and its gradient against fp64, up to sizes at which fp64 has to go by chunks.

The reference is made of elementary operations and calls nothing of numalign. Exact gradients are linear in the incoming one,
which is a power of 2: the number of pixels where the loss has fp32 or bf16 to hold it, so that the factor before a
probability is 1, and at most 2^15 where it has fp16. "ulp" is of the dtype of what is measured, subnormals included.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import numalign
from parts import Column, Part, Settings, dtype_name, number
from peers import Loss, eager_float
from timing import Record, release, why

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from ops.loss_reference import ulp

N_CLASSES = 21
CHUNK = 2**20
SIDES = (256, 1024, 4096)
FACT_SIDES = (64, 128, 181, 256, 512, 1024)


@dataclass(frozen=True)
class Found:
    """What a gradient is like."""

    ulps: float  # the largest error
    off: int  # entries further from the exact one, rounded, than its neighbours
    relative: float  # |error| / |exact|, over all entries
    state: str  # "ok", "all zero" or "not finite"


def chunks(logits: Tensor, target: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """By chunks of pixels of logits (C, n): which, the exact losses, and the exact gradient of their sum, in fp64."""
    for start in range(0, target.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        x, t = logits[:, part].double(), target[part].unsqueeze(0)
        shifted = x - x.amax(0)
        powers = shifted.exp()
        total = powers.sum(0)
        losses = total.log() - shifted.gather(0, t).squeeze(0)
        grad = powers / total
        yield part, losses, grad.scatter_add_(0, t, torch.full_like(t, -1, dtype=torch.float64))


def exact_loss(logits: Tensor, target: Tensor) -> Tensor:
    """The mean, 0-D, fp64."""
    sums = [losses.sum() for _, losses, _ in chunks(logits, target)]
    return torch.stack(sums).sum() / target.numel()


def _rank(values: Tensor) -> Tensor:
    """The place of a 16-bit number among all of them, in order, so that neighbours are 1 apart."""
    bits = values.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def gradient_errors(observed: Tensor, logits: Tensor, target: Tensor, incoming: float) -> Found:
    """The errors of the gradient (C, n) of the mean loss of logits (C, n)."""
    factor = incoming / target.numel()
    worst, off, error, size, zero, finite = 0.0, 0, 0.0, 0.0, True, True
    for part, _, slope in chunks(logits, target):
        exact, seen = slope * factor, observed[:, part]
        difference = seen.double() - exact
        worst = max(worst, float((difference.abs() / ulp(exact, seen.dtype)).nan_to_num(float("inf")).max()))
        off += int(((_rank(seen.contiguous()) - _rank(exact.to(seen.dtype))).abs() > 1).sum())
        error += float(difference.square().sum())
        size += float(exact.square().sum())
        zero = zero and not bool(seen.any())
        finite = finite and bool(seen.isfinite().all())
    return Found(worst, off, (error / size) ** 0.5, "not finite" if not finite else "all zero" if zero else "ok")


def repaired(logits: Tensor, target: Tensor, incoming: float) -> tuple[Tensor, Tensor]:
    with numalign.repair(logits.device.type):
        return stepped(F.cross_entropy, logits, target, incoming)


def stepped(loss: Loss, logits: Tensor, target: Tensor, incoming: float) -> tuple[Tensor, Tensor]:
    """Loss and gradient."""
    logits = logits.detach().requires_grad_()
    value = loss(logits, target)
    grad = torch.autograd.grad(value, logits, torch.full_like(value, incoming))[0]
    return value.detach(), grad


Stepped = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]

# By name: the loss and its gradient, and whether the loss has fp32.
PRODUCTS: dict[str, tuple[Stepped, bool]] = {
    "numalign": (partial(stepped, numalign.cross_entropy), False),
    "numalign, fp32 loss": (partial(stepped, partial(numalign.cross_entropy, out_dtype=torch.float32)), True),
    "repair()": (repaired, False),
    "eager": (partial(stepped, F.cross_entropy), False),
    "eager float": (partial(stepped, eager_float), True),
}


def _image(side: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Standard-normal logits (1, C, side, side), and targets."""
    torch.manual_seed(0)
    logits = torch.randn((1, N_CLASSES, side, side), device=device, dtype=dtype)
    return logits, torch.randint(N_CLASSES, (1, side, side), device=device)


def _sides(settings: Settings, sides: tuple[int, ...]) -> list[int]:
    return [max(1, int(side * settings.scale**0.5)) for side in sides]


def errors(settings: Settings) -> Iterator[Record]:
    for side in _sides(settings, SIDES):
        for dtype in settings.dtypes(torch.float16, torch.bfloat16):
            logits, target = _image(side, dtype, settings.device)
            flat, pixels = (logits.view(N_CLASSES, -1), target.view(-1)), target.numel()
            exact = exact_loss(*flat)
            for name, (step, single) in PRODUCTS.items():
                largest = 2.0**15 if dtype == torch.float16 and not single else 2.0**24
                incoming = min(2.0 ** (pixels.bit_length() - 1), largest)
                record: Record = {"pixels": pixels, "dtype": dtype_name(dtype), "name": name, "incoming": incoming}
                try:
                    loss, grad = step(logits, target, incoming)
                    found = gradient_errors(grad.view(N_CLASSES, -1), *flat, incoming)
                    record |= {
                        "loss": float(loss),
                        "exact_loss": float(exact),
                        "loss_dtype": dtype_name(loss.dtype),
                        "loss_ulp": float((loss.double() - exact).abs() / ulp(exact, loss.dtype)),
                        "grad_ulp": found.ulps,
                        "grad_off": found.off,
                        "grad_entries": grad.numel(),
                        "grad_relative": found.relative,
                        "grad_state": found.state,
                    }
                    del loss, grad
                except Exception as error:
                    record["error"] = why(error)
                yield record
            del logits, target, flat
            release(settings.device)


def facts(settings: Settings) -> Iterator[Record]:
    """Loss and gradient in fp16 as they come, without a loss scale."""
    for side in _sides(settings, FACT_SIDES):
        logits, target = _image(side, torch.float16, settings.device)
        flat = logits.view(N_CLASSES, -1), target.view(-1)
        exact = exact_loss(*flat)
        record: Record = {"side": side, "exact_loss": float(exact), "rounded_loss": float(exact.half()), "results": {}}
        for name in ("eager", "repair()", "numalign"):
            try:
                loss, grad = PRODUCTS[name][0](logits, target, 1.0)
                found = gradient_errors(grad.view(N_CLASSES, -1), *flat, 1.0)
                record["results"][name] = {
                    "loss": float(loss),
                    "grad": found.state,
                    "grad_relative": found.relative,
                    "grad_off": found.off,
                }
            except Exception as error:
                record["results"][name] = {"error": why(error)}
        yield record


def _of(key: str, digits: int) -> Callable[[Record], str]:
    return lambda r: "error" if "error" in r else number(r[key], digits)


def _result(name: str) -> tuple[Column, Column, Column]:
    title = name.replace("numalign", "ours")

    def text(key: str, digits: int | None) -> Callable[[Record], str]:
        def cell(record: Record) -> str:
            found = record["results"][name]
            if "error" in found:
                return "error"
            return found[key] if digits is None else number(found[key], digits)

        return cell

    return (
        Column(title, 8, text("loss", 3)),
        Column("gradient", 10, text("grad", None)),
        Column("off", 9, text("grad_off", 0)),
    )


PARTS = {
    "errors": Part(
        "Errors against fp64, 21 classes: in ulp; entries off by more than the last bit.",
        (
            Column("", 20, lambda r: r["name"]),
            Column("pixels", 10, lambda r: number(r["pixels"], 0)),
            Column("dtype", 8, lambda r: r["dtype"]),
            Column("incoming", 10, lambda r: number(r["incoming"], 0)),
            Column("loss", 8, _of("loss", 4)),
            Column("of loss", 12, _of("loss_ulp", 2)),
            Column("of gradient", 12, _of("grad_ulp", 2)),
            Column("off", 11, _of("grad_off", 0)),
            Column("gradient", 10, lambda r: r.get("grad_state", "-")),
        ),
        errors,
    ),
    "facts": Part(
        "float16, 21 classes, incoming gradient 1: loss, gradient, and entries of it off by more than the last bit.",
        (
            Column("pixels", 11, lambda r: f"{r['side']} x {r['side']}"),
            Column("fp64", 8, lambda r: number(r["exact_loss"], 4)),
            *_result("eager"),
            *_result("repair()"),
            *_result("numalign"),
        ),
        facts,
    ),
}
