"""The ulp, against neighbours listed from the bit patterns and ``np.spacing``; errors in ulp and special cases."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numalign.numerics import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FORMATS,
    Format,
    error_in_ulp,
    format_named,
    round_array,
    ulp,
)
from numerics.slow_reference import SMALL_DTYPES, all_values, finite_magnitudes, slow_round

SMALL = pytest.mark.parametrize("name", SMALL_DTYPES)
EVERY_FORMAT = pytest.mark.parametrize("fmt", list(FORMATS.values()), ids=list(FORMATS))
finite = st.floats(allow_nan=False, allow_infinity=False)


@SMALL
def test_ulp_is_the_distance_to_the_next_value(name: str) -> None:
    magnitudes = np.array(finite_magnitudes(name))
    distance = np.diff(magnitudes)
    fmt = format_named(name)
    assert (ulp(magnitudes[:-1], fmt) == distance).all()
    assert (ulp(-magnitudes[:-1], fmt) == distance).all()
    assert (ulp((magnitudes[:-1] + magnitudes[1:]) / 2, fmt) == distance).all()
    assert ulp(fmt.max_finite, fmt) == distance[-1]


@given(values=st.lists(finite, min_size=1))
def test_ulp_is_numpy_spacing(values: list[float]) -> None:
    for fmt in (FLOAT16, FLOAT32, FLOAT64):
        array = round_array(np.array(values), fmt)
        array = array[np.abs(array) < fmt.max_finite]  # np.spacing of the largest is infinite
        # Of a negative float16, np.spacing is the distance towards zero.
        assert (ulp(array, fmt) == np.spacing(np.abs(array.astype(fmt.dtype))).astype(np.float64)).all()


@EVERY_FORMAT
def test_ulp_at_the_edges(fmt: Format) -> None:
    top = math.ldexp(1.0, fmt.emax - fmt.precision + 1)
    assert ulp(0.0, fmt) == ulp(-0.0, fmt) == fmt.smallest_subnormal
    assert ulp(fmt.smallest_subnormal, fmt) == fmt.smallest_subnormal
    assert ulp(5e-324, fmt) == fmt.smallest_subnormal
    assert ulp(np.nextafter(fmt.smallest_normal, 0), fmt) == fmt.smallest_subnormal
    assert ulp(fmt.smallest_normal, fmt) == fmt.smallest_subnormal
    assert ulp(np.nextafter(2 * fmt.smallest_normal, 0), fmt) == fmt.smallest_subnormal
    assert ulp(2 * fmt.smallest_normal, fmt) == 2 * fmt.smallest_subnormal
    assert ulp(1.0, fmt) == 2 * fmt.unit_roundoff
    assert ulp(np.nextafter(1.0, 0), fmt) == fmt.unit_roundoff
    assert ulp(fmt.max_finite, fmt) == ulp(1.7e308, fmt) == ulp(math.inf, fmt) == ulp(-math.inf, fmt) == top
    assert math.isnan(ulp(math.nan, fmt))


def test_ulp_keeps_the_shape() -> None:
    assert isinstance(ulp(1.0, FLOAT16), float)
    assert ulp(np.ones((2, 0, 3)), FLOAT16).shape == (2, 0, 3)
    assert ulp(np.ones((2, 3)), FLOAT16).tolist() == [[2.0**-10] * 3] * 2


@SMALL
@given(exact=finite, index=st.integers(min_value=0))
def test_error_is_the_exact_quotient(name: str, exact: float, index: int) -> None:
    magnitudes = finite_magnitudes(name)
    observed = magnitudes[index % len(magnitudes)]
    fmt = format_named(name)
    wanted = abs(Fraction(observed) - Fraction(exact)) / Fraction(ulp(exact, fmt))
    got = Fraction(float(error_in_ulp(observed, exact, fmt)))
    assert abs(got - wanted) <= wanted / 2**53


@given(observed=finite, exact=finite)
def test_error_in_ulp_of_float64(observed: float, exact: float) -> None:
    wanted = abs(Fraction(observed) - Fraction(exact)) / Fraction(ulp(exact, FLOAT64))
    got = float(error_in_ulp(observed, exact, FLOAT64))
    if wanted < 2**1023:
        assert abs(Fraction(got) - wanted) <= wanted / 2**53
    else:
        assert got >= 2.0**1022


def test_the_difference_of_the_largest_float64_does_not_overflow() -> None:
    assert float(error_in_ulp(-FLOAT64.max_finite, FLOAT64.max_finite, FLOAT64)) == 2.0**54 - 2


@EVERY_FORMAT
@given(values=st.lists(finite, min_size=1))
def test_one_rounding_is_half_an_ulp_at_most(fmt: Format, values: list[float]) -> None:
    exact = np.array(values)
    assert (error_in_ulp(round_array(exact, fmt), exact, fmt) <= 0.5).all()


@SMALL
def test_neighbours_are_one_ulp_apart(name: str) -> None:
    magnitudes, fmt = np.array(finite_magnitudes(name)), format_named(name)
    assert (error_in_ulp(magnitudes[1:], magnitudes[:-1], fmt) == 1).all()
    values = all_values(name)
    assert (error_in_ulp(values, values, fmt) == 0).all()


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("observed", "exact", "wanted"),
    [
        (INF, INF, 0),
        (-INF, -INF, 0),
        (NAN, NAN, 0),
        (INF, 65520.0, 0),  # the smallest that rounds to infinity
        (-INF, -65520.0, 0),
        (INF, 1e300, 0),
        (INF, 65519.9, INF),  # rounds to 65504
        (-INF, 65520.0, INF),
        (INF, -INF, INF),
        (INF, 3.5, INF),
        (NAN, 3.5, INF),
        (NAN, 1e300, INF),
        (NAN, INF, INF),
        (INF, NAN, INF),
        (3.5, NAN, INF),
        (0.0, NAN, INF),
        (65504.0, INF, INF),
        (65504.0, 65520.0, 0.5),
        (65504.0, 65536.0, 1),
        (0.0, 65536.0, 2048),
        (0.0, -0.0, 0),
        (2.0**-24, 0.0, 1),
    ],
)
def test_special_values_of_float16(observed: float, exact: float, wanted: float) -> None:
    assert float(error_in_ulp(observed, exact, FLOAT16)) == wanted


@pytest.mark.parametrize(
    ("observed", "exact", "wanted"),
    [
        (NAN, 465.0, 0),
        (NAN, INF, 0),
        (NAN, NAN, 0),
        (448.0, 464.0, 0.5),
        (NAN, 464.0, INF),
        (448.0, INF, INF),
        (INF, INF, INF),
    ],
)
def test_special_values_without_infinities(observed: float, exact: float, wanted: float) -> None:
    assert float(error_in_ulp(observed, exact, FLOAT8_E4M3FN)) == wanted


def test_arrays_broadcast_and_errors_stay_at_their_places() -> None:
    error = error_in_ulp(np.array([[1.0], [INF]]), np.array([1.0, 2.0, 1e300]), BFLOAT16)
    assert error.shape == (2, 3)
    assert error[0].tolist() == [0, 64, (1e300 - 1) / 2.0**120]
    assert error[1].tolist() == [INF, INF, 0]
    assert error_in_ulp(np.ones((0, 2)), np.ones((0, 2)), BFLOAT16).shape == (0, 2)
    with pytest.raises(ValueError, match="broadcast"):
        error_in_ulp(np.ones(2), np.ones(3), BFLOAT16)


def test_narrow_dtypes_are_taken_as_they_are() -> None:
    half = np.array([0.1, 3.0], dtype=BFLOAT16.dtype)
    assert error_in_ulp(half, half.astype(np.float64), BFLOAT16).tolist() == [0, 0]
    assert (ulp(half, BFLOAT16) == ulp(half.astype(np.float64), BFLOAT16)).all()


@given(exact=finite)
def test_the_slow_reference_knows_the_same_ulp(exact: float) -> None:
    rounded = slow_round(Fraction(exact), "bfloat16")
    if math.isfinite(rounded):
        assert abs(Fraction(rounded) - Fraction(exact)) * 2 <= Fraction(ulp(exact, BFLOAT16))
