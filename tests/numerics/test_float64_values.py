"""What is taken in as float64, and what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from numalign.numerics.float64_values import float64_values


@pytest.mark.parametrize(
    "values",
    [
        1.5,
        7,
        True,
        [1, 2.5],
        np.float32(0.1),
        np.array([2**53, -(2**53)]),
        np.array([255], dtype=np.uint8),
        np.array([0.1, np.nan], dtype=ml_dtypes.bfloat16),
        np.array([448], dtype=ml_dtypes.float8_e4m3fn),
        np.array([0.5, np.inf, np.nan], dtype=np.longdouble),
    ],
)
def test_what_float64_holds_is_taken_exactly(values: object) -> None:
    taken = float64_values(values, "x")  # type: ignore[arg-type]
    assert taken.dtype == np.float64
    assert taken.shape == np.shape(values)  # type: ignore[arg-type]
    np.testing.assert_array_equal(taken, np.asarray(values).astype(np.float64))


@pytest.mark.parametrize("integer", [2**53 + 1, -(2**53) - 1, 2**63])
def test_integers_that_would_be_rounded_are_refused(integer: int) -> None:
    with pytest.raises(ValueError, match=f"x holds {integer}, which float64 may not hold"):
        float64_values([integer], "x")


def test_long_doubles_that_would_be_rounded_are_refused() -> None:
    value = np.longdouble(1) + np.finfo(np.longdouble).eps
    if float(value) == value:
        pytest.skip("long double is float64 here")
    with pytest.raises(ValueError, match="x holds"):
        float64_values(value, "x")


@pytest.mark.parametrize("values", [1j, "1", [None], np.array(["2020-01-01"], dtype="M8[D]")])
def test_what_is_no_real_number_is_refused(values: object) -> None:
    with pytest.raises(TypeError, match="x has dtype"):
        float64_values(values, "x")  # type: ignore[arg-type]
