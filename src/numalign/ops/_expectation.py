"""The incoming gradient of a loss, guessed: that of the last steps. The forward makes the gradient for it ahead.

Here lies the only state of the operators. It decides when a gradient is made, and never which.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

# The last incoming gradient, and whether the one before was the same (or there was none yet). A sum of losses with several
# factors shows another each time, and then nothing is guessed. Replaced as a whole, as threads may share it.
_seen: tuple[float, bool] = (1.0, True)


def expected() -> float | None:
    """The incoming gradient to make ready for, or None where the last two differ."""
    value, steady = _seen
    return value if steady else None


def seen(value: float) -> None:
    """An incoming gradient has come. Zero is not kept, as 0 and -0 are equal and the gradients they lead to are not."""
    global _seen  # noqa: PLW0603  # as above
    if value != 0 and math.isfinite(value):
        _seen = (value, value == _seen[0])


def in_plain_view(*tensors: Any) -> bool:
    """Whether these are tensors, or None, that nobody traces, transforms or watches."""
    if (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state() is not None
    ):
        return False
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return False
        if torch._C._functorch.is_legacy_batchedtensor(tensor):
            return False
    return True
