"""The witness: what the dispatcher saw while an operator ran. Proof that it ran where it was meant to run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from numalign.catalogue.evaluate import Values


class Witness(TorchDispatchMode):
    """Records the operators that reach the dispatcher, what they return, and how data left the device.

    PyTorch lets zero-dimensional CPU tensors take part in arithmetic on any device: it makes them of Python numbers. One
    that no tensor on the device went into is such a constant; one that an operator made from a tensor on the device is
    data, and so is a number that it read out of one, as ``item`` does. A truth value that it read out decides which way the
    code goes on, as a check of the arguments does, and carries no data.

    Args:
        device: Where the operator is meant to run.

    Attributes:
        operators: Names such as ``aten::nll_loss2d_forward``.
        returned: Dtype and device of every tensor returned, scalars too: ``float16 on cuda:0``; and type of every
            value read out of the device: ``bool on the host``.
        detours: Every way in which data left the device, in words, in the order in which they were seen.
    """

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wanted = torch.device(device).type
        self.operators: set[str] = set()
        self.returned: set[str] = set()
        self.detours: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().partition(".")[0]
        self.operators.add(name)
        from_device = any(tensor.device.type == self._wanted for tensor in _tensors((args, kwargs)))
        for tensor in _tensors(result):
            described = f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
            if tensor.device.type == self._wanted:
                self.returned.add(described)
            elif tensor.device.type == "cpu" and tensor.ndim == 0 and not from_device:
                self.returned.add(f"{described} (constant)")
            elif tensor.device.type == "cpu" and tensor.ndim == 0 and not tensor.dtype.is_floating_point:
                # Attention hands out the state of its random numbers like this.
                self.returned.add(f"{described} (state)")
            else:
                self.returned.add(described)
                self.detours[f"{name} returned a tensor on {tensor.device}, not on {self._wanted}"] = None
        if from_device and self._wanted != "cpu" and torch.Tag.data_dependent_output in func.tags:
            self.returned.add(f"{type(result).__name__} on the host")
            if not isinstance(result, bool):
                self.detours[f"{name} read a number out of a tensor on {self._wanted}"] = None
        return result


def off_device(device: str, witness: Witness, results: Values, warnings: list[str]) -> str:
    """Why this run does not count as one on ``device``; empty where it does.

    Three ways to leave a device are told: a result that lies elsewhere, an operator inside that took data elsewhere, and a
    backend's warning that it falls back to the CPU, which happens below the dispatcher.
    """
    wanted = torch.device(device).type
    for name, tensor in results.items():
        if tensor.device.type != wanted:
            return f"{name} lies on {tensor.device.type}, not on {wanted}"
    if witness.detours:
        return "; ".join(witness.detours)
    if wanted != "cpu":
        for text in warnings:
            if "fall back" in text or "fallback" in text:
                return text.splitlines()[0]
    return ""


def _tensors(tree: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
