"""numalign finds, proves and repairs PyTorch operators that lose numbers in low precision.

This module holds the public names only. They are resolved on first use, so that ``import numalign`` loads no torch and
a stored run can be read on a machine that has none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numalign.ops import CrossEntropyLoss, NLLLoss, cross_entropy, nll_loss, repair, unrepair

__version__ = "0.1.0"

__all__ = ["CrossEntropyLoss", "NLLLoss", "__version__", "cross_entropy", "nll_loss", "repair", "unrepair"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        # Kept, as looking it up takes longer than some losses do.
        value = globals()[name] = getattr(import_module("numalign.ops"), name)
        return value
    raise AttributeError(f"module 'numalign' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
