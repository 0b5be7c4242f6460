"""Who computes a cross-entropy and its gradient, and how each is called. A peer that is not installed is named as such."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import torch
import torch.nn.functional as F
from torch import Tensor

import numalign
from timing import why

Loss = Callable[[Tensor, Tensor], Tensor]

PACKAGES = ("liger-kernel", "quack-kernels")


@dataclass(frozen=True)
class Peer:
    """From logits and target to the gradient of the mean loss, the loss made as well.

    ``waits`` says that it waits for the device on its way; ``overwrites`` that the gradient takes the place of the logits.
    """

    gradient: Callable[[Tensor, Tensor], Tensor]
    waits: bool = False
    overwrites: bool = False


def by_autograd(loss: Loss) -> Peer:
    return Peer(lambda logits, target: torch.autograd.grad(loss(logits, target), logits)[0])


def eager(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def eager_float(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), target)


def autocast(logits: Tensor, target: Tensor) -> Tensor:
    with torch.autocast(logits.device.type, logits.dtype):
        return F.cross_entropy(logits, target)


def _compiled(loss: Loss) -> Peer:
    # Sizes are constants, and each shape is the first: otherwise the second is compiled for any size, and the ninth not at all.
    torch._dynamo.reset()
    return by_autograd(torch.compile(loss, dynamic=False))


def _liger() -> Peer:
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        if logits.dim() > 2:  # it knows rows only
            logits = logits.movedim(1, -1).reshape(-1, logits.shape[1])
        return LigerCrossEntropyFunction.apply(logits, target.flatten(), None)[0]

    # It counts the targets on the host and writes the gradient over the logits, which the next iteration then starts from.
    return Peer(by_autograd(loss).gradient, waits=True, overwrites=True)


def _quack() -> Peer:
    from quack.cross_entropy import cross_entropy_fwd

    # The gradient of each row's loss by itself: neither divided by their number nor multiplied by what comes in.
    return Peer(lambda logits, target: cross_entropy_fwd(logits.detach(), target, return_dx=True)[-1])


def _quack_two_passes() -> Peer:
    from quack.cross_entropy import cross_entropy

    return by_autograd(cross_entropy)


_MAKERS: dict[str, Callable[[], Peer]] = {
    "numalign": lambda: by_autograd(numalign.cross_entropy),
    "eager": lambda: by_autograd(eager),
    "eager float": lambda: by_autograd(eager_float),
    "autocast": lambda: by_autograd(autocast),
    "compile": lambda: _compiled(eager),
    "compile float": lambda: _compiled(eager_float),
    "liger": _liger,
    "quack": _quack,
    "quack 2 passes": _quack_two_passes,
}

NAMES = tuple(_MAKERS)


def make(name: str) -> Peer | str:
    """The peer of that name, or the reason why there is none."""
    try:
        return _MAKERS[name]()
    except ModuleNotFoundError as error:
        return f"not installed ({error.name} is missing)"
    except Exception as error:
        return why(error)


def versions() -> dict[str, str | None]:
    """The installed versions of the peers that are packages of their own; None where one is not there."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
