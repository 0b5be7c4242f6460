"""The incoming gradient of a loss, guessed: that of the last steps. The forward makes the gradient for it ahead.

Here lies the only state of the operators. It decides when a gradient is made, and never which.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _get_tracing_state,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import is_legacy_batchedtensor
from torch.nn import Parameter
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

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


def _only_a_default_device() -> bool:
    """Whether every mode that sees calls is one of ``torch.set_default_device``, which leaves operators alone."""
    return all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def in_plain_view(*tensors: Any) -> bool:
    """Whether these are tensors, or None, that nobody traces, transforms or watches."""
    # Asked twice a step, with the processor's caches full of logits: hence no attributes of attributes.
    if (
        torch.compiler.is_compiling()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or (_len_torch_function_stack() and not _only_a_default_device())
        or _get_tracing_state() is not None
    ):
        return False
    for tensor in tensors:
        kind = type(tensor)
        if kind is Tensor or kind is Parameter:
            if is_legacy_batchedtensor(tensor):
                return False
        elif tensor is not None:
            return False
    return True
