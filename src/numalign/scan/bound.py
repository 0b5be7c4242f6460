"""The bound: how much error an operator may have that accumulates in the accumulate type and rounds once. In one place.

|y - s| <= ulp(s) / 2 + gamma_n(u_acc) sum|x_i|, in the probabilistic form of gamma, which holds for sums in any order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from numalign.numerics import FLOAT64, Format, accumulate, gamma_probabilistic

BOUND_FAILURE = 1e-10
"""Probability that one right sum of random roundings breaks the bound. A run judges some 10^4 sums, so that it calls a
right operator faulty less than once in 10^6 runs."""

Array = npt.NDArray[np.float64]


def accumulation_slack(magnitude: Array, n: int, fmt: Format) -> Array:
    """What n additions in the accumulate type, and n in the float64 of the reference itself, may add to one rounding.

    Args:
        magnitude: sum|x_i| of every entry.
        n: Number of terms.
        fmt: The output format, which decides the accumulate type.
    """
    accumulated = gamma_probabilistic(n, accumulate(fmt).unit_roundoff, BOUND_FAILURE)
    reference = gamma_probabilistic(n, FLOAT64.unit_roundoff, BOUND_FAILURE)
    return np.asarray((accumulated + reference) * np.where(np.isfinite(magnitude), magnitude, 0.0), dtype=np.float64)
