"""Rounding and ulp by looking them up among all values of a format: slow, and independent of what is tested.

The values come from ml_dtypes' and numpy's own decoding of the bit patterns, never from ``numalign.numerics``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

SMALL_DTYPES: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
"""The formats that are small enough to list."""


@cache
def all_values(name: str) -> npt.NDArray[np.float64]:
    """The value of every bit pattern of a small format, in the order of the patterns."""
    dtype = np.dtype(SMALL_DTYPES[name])
    patterns = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):  # signalling nan
        return patterns.view(dtype).astype(np.float64)


@cache
def finite_magnitudes(name: str) -> list[float]:
    """Zero and all positive finite values of a small format, ascending. Even indices are even bit patterns."""
    values = all_values(name)
    positive = values[: len(values) // 2]
    finite = positive[np.isfinite(positive)].tolist()
    assert finite == sorted(finite)
    return finite


def slow_round(value: Fraction, name: str) -> float:
    """The value of a small format nearest to ``value``, ties to the even bit pattern."""
    magnitudes = finite_magnitudes(name)
    below = bisect_right(magnitudes, abs(value)) - 1
    sign = -1.0 if value < 0 else 1.0
    low = Fraction(magnitudes[below])
    at_top = below + 1 == len(magnitudes)
    high = 2 * low - Fraction(magnitudes[below - 1]) if at_top else Fraction(magnitudes[below + 1])
    twice = 2 * abs(value)
    up = twice > low + high or (twice == low + high and below % 2 == 1)
    if not up:
        return sign * magnitudes[below]
    if at_top:
        return math.nan if name == "float8_e4m3fn" else sign * math.inf
    return sign * magnitudes[below + 1]


def slow_round_float32(value: Fraction) -> float:
    """The float32 nearest to ``value`` among three neighbours, ties to the even bit pattern; |value| below 2^127."""
    with np.errstate(all="ignore"):
        guess = np.float32(float(value))
    candidates = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return float(
        min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(np.asarray(c).view(np.uint32)) & 1))
    )


def same(a: float, b: float) -> bool:
    """Equal, signs of zeros included, or both nan."""
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def same_arrays(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> bool:
    """``same``, for all entries."""
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all(nan | ((a == b) & (np.signbit(a) == np.signbit(b)))))
