"""The unit in the last place, and errors counted in it."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt

from numalign.numerics.float64_values import float64_values
from numalign.numerics.formats import Format
from numalign.numerics.rounding import round_array

Array = npt.NDArray[np.float64]


@overload
def ulp(x: float, fmt: Format) -> float: ...
@overload
def ulp(x: npt.NDArray[Any], fmt: Format) -> Array: ...
def ulp(x: float | npt.NDArray[Any], fmt: Format) -> float | Array:
    """The distance between neighbours of ``fmt`` around the real number ``x``.

    ulp(x) = 2^(max(e, emin) - p + 1) for 2^e <= |x| < 2^(e + 1). At a power of two this is the distance to the
    neighbour further from zero. Below the smallest normal number, zero included, it is the smallest subnormal. From
    2^emax on, infinity included, it stays that of the top binade, so that an error past the range has a finite unit.
    nan gives nan.

    Goldberg's definition, extended to the real numbers: Muller et al., Handbook of Floating-Point Arithmetic, 2nd ed.,
    chapter 2.

    Args:
        x: A number, or an array of any shape. It need not be a value of ``fmt``.
        fmt: The format whose neighbours are meant.

    Returns:
        A float for a number, an array of the same shape for an array. Exact: always a power of two.

    Raises:
        TypeError: If ``x`` is not real.
        ValueError: If float64 cannot hold ``x``.
    """
    values = float64_values(x, "x")
    with np.errstate(all="ignore"):
        spacing = np.where(np.isnan(values), np.nan, np.ldexp(1.0, last_place(values, fmt)))
    return spacing if isinstance(x, np.ndarray) else float(spacing)


def last_place(values: Array, fmt: Format) -> npt.NDArray[np.int32]:
    """log2 of the ulp of every value; that of the top binade for what is not finite."""
    # The exponent field of a float64, read four times faster than frexp would. It is -1023 for zero and subnormals and
    # 1024 for what is not finite, so that clipping puts both where they belong.
    exponent = ((np.ascontiguousarray(values).view(np.int64) >> 52) & 0x7FF) - 1023
    last = np.clip(exponent, fmt.emin, fmt.emax) - (fmt.precision - 1)
    return np.asarray(last, dtype=np.int32).reshape(values.shape)


def error_in_ulp(observed: npt.ArrayLike, exact: npt.ArrayLike, fmt: Format) -> Array:
    """|observed - exact| / ulp(exact): 0.5 at most for a result that was rounded once.

    Where either side is not finite, the first rule that fits decides:

    1. ``observed`` is what ``exact`` rounds to in ``fmt``: 0. So an infinity is right beside the same infinity and
       beside a finite value that overflows (float16: from 65520 on), nan is right beside nan, and in a format without
       infinities nan is right wherever the exact value overflows.
    2. Anything else: inf. A nan or an infinity where a number was due, the wrong infinity, a number where nan or an
       infinity was due.

    A finite ``observed`` beside a finite ``exact`` that overflows follows the formula, in ulps of the top binade: 65504
    beside 65536 is one ulp off. Whether a format limit is to be held against an operator, ``format_limit`` tells.

    Args:
        observed: Values of ``fmt``, any shape.
        exact: The reference, taken as exact. Shapes broadcast.
        fmt: The format that ``observed`` was rounded to.

    Returns:
        Array of the broadcast shape, in ulp of ``fmt``, never negative and never nan. Its relative error is at most
        2^-53, that of the one subtraction. A quotient past 2^1024, which takes a float64 as ``fmt``, is inf.

    Raises:
        TypeError: If either argument is not real.
        ValueError: If float64 cannot hold one of the values, or the shapes do not broadcast.
    """
    got, wanted = np.broadcast_arrays(float64_values(observed, "observed"), float64_values(exact, "exact"))
    rounded = round_array(wanted, fmt)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    finite = np.isfinite(got) & np.isfinite(wanted)
    # Scaled before they are subtracted, lest the difference of two large float64 overflow.
    scale = -last_place(wanted, fmt)
    with np.errstate(all="ignore"):
        distance = np.abs(np.ldexp(np.where(finite, got, 0.0), scale) - np.ldexp(np.where(finite, wanted, 0.0), scale))
    return np.where(finite, distance, np.where(same, 0.0, np.inf))
