"""Correct rounding to nearest, ties to even, in one step from the exact value.

Casting is no substitute: ml_dtypes takes float64 to bfloat16 and to the 8-bit formats through float32, and so rounds
twice. 1 + 2^-8 + 2^-40 lies above the midpoint of 1 and 1 + 2^-7; by way of float32 it becomes that midpoint, and then
1.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from numalign.numerics.float64_values import float64_values
from numalign.numerics.formats import FLOAT64, Format


def round_array(values: npt.ArrayLike, fmt: Format) -> npt.NDArray[np.float64]:
    """The value of ``fmt`` nearest to every value, ties to even, as float64.

    RN(x) = 2^q * rint(x * 2^-q) with 2^q the distance between neighbours of ``fmt`` at x. Both scalings are by powers
    of two and exact, so that ``rint`` is the only rounding.

    Args:
        values: Any shape. Each is taken as exact.
        fmt: The format to round to.

    Returns:
        A new array of the same shape: correctly rounded, at most half an ulp away, zeros with the sign of the value.
        What overflows becomes an infinity of its sign, or nan where ``fmt`` has none; infinities the same. nan stays.

    Raises:
        TypeError: If the values are not real.
        ValueError: If float64 cannot hold one of them.
    """
    exact = float64_values(values, "values")
    if fmt.precision == FLOAT64.precision:
        return np.array(exact, dtype=np.float64)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.where(exact == 0, fmt.emin, np.frexp(exact)[1] - 1), fmt.emin)
        last = exponent - (fmt.precision - 1)
        rounded = np.ldexp(np.rint(np.ldexp(exact, -last)), last)
        past = np.abs(rounded) > fmt.max_finite
        return np.asarray(np.where(past, np.copysign(fmt.overflowed, exact), rounded), dtype=np.float64)


def round_exact(value: Fraction | float, fmt: Format) -> float:
    """The value of ``fmt`` nearest to ``value``, ties to even, as a float.

    Args:
        value: A float, an int of any size or a fraction, taken as exact.
        fmt: The format to round to.

    Returns:
        Correctly rounded, at most half an ulp away. What is rounded to zero keeps its sign. What overflows becomes an
        infinity of its sign, or nan where ``fmt`` has none; infinities the same. nan stays.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return value if fmt.has_inf else math.nan
    numerator, denominator = value.as_integer_ratio()
    sign = -1.0 if numerator < 0 or (isinstance(value, float) and math.copysign(1.0, value) < 0) else 1.0
    if numerator == 0:
        return math.copysign(0.0, sign)
    numerator = abs(numerator)
    last = max(_exponent(numerator, denominator), fmt.emin) - (fmt.precision - 1)
    significand = _nearest_even(numerator << max(-last, 0), denominator << max(last, 0))
    if significand << max(last, 0) > int(fmt.max_finite) << max(-last, 0):
        return math.copysign(fmt.overflowed, sign)
    return math.copysign(math.ldexp(significand, last), sign)


def _exponent(numerator: int, denominator: int) -> int:
    """floor(log2(numerator / denominator)), both positive."""
    guess = numerator.bit_length() - denominator.bit_length()
    below = numerator << max(-guess, 0) < denominator << max(guess, 0)
    return guess - 1 if below else guess


def _nearest_even(numerator: int, denominator: int) -> int:
    """The integer nearest to numerator / denominator, ties to even, both positive."""
    whole, rest = divmod(numerator, denominator)
    up = 2 * rest > denominator or (2 * rest == denominator and whole % 2 == 1)
    return whole + up
