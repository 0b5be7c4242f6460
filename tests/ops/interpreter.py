"""Triton's interpreter with the roundings of a GPU.

As it comes it cuts bf16 off instead of rounding to nearest, and makes two roundings of a fused multiply-add.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


@cache
def make_faithful() -> None:
    """Once a process, as nothing else uses the interpreter."""
    cast = InterpreterBuilder.cast_impl

    def rounding_cast(self: Any, source: Any, to: Any) -> Any:
        if source.dtype.scalar == tl.float32 and to.scalar == tl.bfloat16:
            return TensorHandle(source.data.astype(ml_dtypes.bfloat16).view(np.uint16), to.scalar)
        return cast(self, source, to)

    def fused(self: Any, a: Any, b: Any, c: Any) -> Any:
        # The product of two fp32 is exact in fp64; the sum is rounded twice, once in 2^29 cases wrongly.
        wide = a.data.astype(np.float64) * b.data + c.data
        return TensorHandle(wide.astype(a.data.dtype), a.dtype.scalar)

    InterpreterBuilder.cast_impl = rounding_cast
    InterpreterBuilder.create_fp_trunc = rounding_cast
    InterpreterBuilder.create_fma = fused
