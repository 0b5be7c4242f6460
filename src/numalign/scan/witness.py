"""The witness: what the dispatcher saw while an operator ran. Proof that it ran where it was meant to run."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from numalign.catalogue.evaluate import Values


class Witness(TorchDispatchMode):
    """Records the operators that reach the dispatcher and the devices of the tensors they return.

    Attributes:
        operators: Names such as ``aten::nll_loss2d_forward``.
        devices: Device types of every tensor returned with at least one dimension; a zero-dimensional tensor on the CPU
            is
            how PyTorch passes scalars.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: set[str] = set()
        self.devices: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operators.add(func.name().partition(".")[0])
        self.devices.update(
            leaf.device.type for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.ndim
        )
        return result


def off_device(device: str, witness: Witness, results: Values, warnings: list[str]) -> str:
    """Why this run does not count as one on ``device``; empty where it does.

    Three ways to leave a device are told: a result that lies elsewhere, an operator inside that returned a tensor
    elsewhere, and a backend's warning that it falls back to the CPU, which happens below the dispatcher.
    """
    wanted = torch.device(device).type
    for name, tensor in results.items():
        if tensor.device.type != wanted:
            return f"{name} lies on {tensor.device.type}, not on {wanted}"
    if strays := witness.devices - {wanted}:
        return f"an operator inside returned a tensor on {', '.join(sorted(strays))}, not on {wanted}"
    if wanted != "cpu":
        for text in warnings:
            if "fall back" in text or "fallback" in text:
                return text.splitlines()[0]
    return ""
