"""Takes numbers in as float64, and refuses those that float64 would have to round."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def float64_values(values: npt.ArrayLike, name: str) -> npt.NDArray[np.float64]:
    """``values`` as a float64 array of the same shape, exactly.

    Args:
        values: Floats, integers or booleans of any numpy or ml_dtypes dtype, or nested sequences of them.
        name: What the caller calls them, for the message.

    Raises:
        TypeError: If the dtype is not a real one, such as complex numbers or objects.
        ValueError: If float64 cannot hold one of the values: a long double, or an integer past 2^53.
    """
    given = np.asarray(values)
    if given.dtype == np.float64:
        return np.asarray(given, dtype=np.float64)
    if given.dtype.kind in "cOSUMm":
        raise TypeError(f"{name} has dtype {given.dtype}; wanted real numbers that float64 holds exactly")
    with np.errstate(all="ignore"):  # signalling nan, and long doubles past float64, which are refused below
        widened = np.asarray(given.astype(np.float64))
    if given.dtype.kind in "iu" and given.dtype.itemsize == 8:
        inexact = (given > 2**53) | (given < -(2**53))
    elif given.dtype.kind == "f" and given.dtype.itemsize > 8:
        inexact = (widened != given) & ~np.isnan(widened)
    else:
        return widened
    if inexact.any():
        raise ValueError(
            f"{name} holds {given[inexact].flat[0]}, which float64 may not hold; wanted values that it holds exactly"
        )
    return widened
