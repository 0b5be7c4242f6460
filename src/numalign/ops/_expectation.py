"""The incoming gradient of a loss, guessed: that of the last steps. The forward makes the gradient for it ahead.

Here lies the only state of the operators. It decides when a gradient is made, and never which.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

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


def in_plain_view(tensor: Any) -> bool:
    """Whether this is a tensor on the CPU that nobody traces or transforms, and whose value may be looked at."""
    return (
        (type(tensor) is Tensor or type(tensor) is torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and _get_current_dispatch_mode() is None
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )
