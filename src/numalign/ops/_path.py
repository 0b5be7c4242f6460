"""Which implementation serves a tensor: kernels where the device has them, else the same in blocks of PyTorch's operators."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache, wraps
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from numalign.ops._layout import class_axis

# The first Triton that takes tuples, as which the kernels are given strides.
_LEAST_TRITON = (3, 3)
_TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

F = TypeVar("F", bound=Callable[..., Any])

kernel_devices: set[str] = {"cuda", "xpu"}
"""Device types that kernels serve: those of CUDA, ROCm and XPU builds of PyTorch."""


def kernels_for(logits: Tensor) -> ModuleType | None:
    """The module with the kernels, if they serve logits like these."""
    if logits.device.type not in kernel_devices or logits.dtype not in _TYPES or logits.shape[class_axis(logits)] == 0:
        return None
    return _kernels()


@lru_cache(maxsize=1)
def _kernels() -> ModuleType | None:
    # The distribution that holds the module ``triton`` has other names on ROCm and XPU.
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "pytorch-triton-xpu", "triton-xpu"):
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if tuple(int(n) for n in installed.split(".")[:2]) >= _LEAST_TRITON:
            return importlib.import_module("numalign.ops.kernels.launch")
    return None


def or_kernel(name: str, *, logits: int) -> Callable[[F], F]:
    """Let the kernel ``name`` do what a function of the same arguments does, for the logits that it serves.

    Args:
        name: of the function in :mod:`numalign.ops.kernels.launch`.
        logits: the position of the logits among the arguments, which are all positional.
    """

    def decorate(in_blocks: F) -> F:
        @wraps(in_blocks)
        def choose(*args: Any) -> Any:
            kernels = kernels_for(args[logits])
            return in_blocks(*args) if kernels is None else getattr(kernels, name)(*args)

        return choose  # type: ignore[return-value]

    return decorate
