"""Correct rounding: exhaustively for the formats small enough, against ``fractions`` for the others."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

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
    format_named,
    round_array,
    round_exact,
)
from numerics.slow_reference import (
    SMALL_DTYPES,
    all_values,
    finite_magnitudes,
    same,
    same_arrays,
    slow_round,
    slow_round_float32,
)

SMALL = pytest.mark.parametrize("name", SMALL_DTYPES)
TINY = Fraction(1, 2**2000)

floats = st.floats(allow_nan=False, allow_infinity=False)
fractions = st.builds(
    lambda m, d, e: Fraction(m, d) * Fraction(2) ** e,
    st.integers(-(2**80), 2**80),
    st.integers(1, 2**70),
    st.integers(-200, 140),
)


@SMALL
def test_every_bit_pattern_rounds_to_itself(name: str) -> None:
    values, fmt = all_values(name), format_named(name)
    assert same_arrays(round_array(values, fmt), values)
    assert all(same(round_exact(value, fmt), value) for value in values.tolist())


@SMALL
def test_every_midpoint_rounds_to_even_and_its_sides_apart(name: str) -> None:
    fmt, magnitudes = format_named(name), np.array(finite_magnitudes(name))
    low, high = magnitudes[:-1], magnitudes[1:]
    middle = (low + high) / 2  # exact: one bit more than the format has
    even = np.where(np.arange(len(low)) % 2 == 0, low, high)
    for sign in (1.0, -1.0):
        assert same_arrays(round_array(sign * middle, fmt), sign * even)
        assert same_arrays(round_array(sign * np.nextafter(middle, 0), fmt), sign * low)
        assert same_arrays(round_array(sign * np.nextafter(middle, np.inf), fmt), sign * high)


@SMALL
def test_every_midpoint_of_fractions(name: str) -> None:
    fmt = format_named(name)
    for index, (low, high) in enumerate(pairwise(finite_magnitudes(name))):
        middle = (Fraction(low) + Fraction(high)) / 2
        assert round_exact(middle, fmt) == (low if index % 2 == 0 else high)
        assert round_exact(middle - TINY, fmt) == low
        assert round_exact(-middle - TINY, fmt) == -high


@SMALL
def test_the_edge_of_overflow(name: str) -> None:
    fmt = format_named(name)
    edge = Fraction(fmt.exact_overflow)
    for value in (edge - TINY, edge, edge + TINY, 2 * edge, Fraction(10) ** 400):
        assert same(round_exact(value, fmt), slow_round(value, name))
        assert same(round_exact(-value, fmt), slow_round(-value, name))
    near = np.array([np.nextafter(fmt.overflow, 0), fmt.overflow, np.nextafter(fmt.overflow, np.inf), 1e300])
    wanted = np.array([slow_round(Fraction(value), name) for value in near.tolist()])
    assert same_arrays(round_array(near, fmt), wanted)
    assert same_arrays(round_array(-near, fmt), -wanted)


@SMALL
@given(value=fractions)
def test_fractions_round_to_the_nearest_value_of_a_small_format(name: str, value: Fraction) -> None:
    assert round_exact(value, format_named(name)) == pytest.approx(slow_round(value, name), rel=0, abs=0, nan_ok=True)


@SMALL
@given(value=floats)
def test_floats_round_to_the_nearest_value_of_a_small_format(name: str, value: float) -> None:
    fmt, wanted = format_named(name), slow_round(Fraction(value), name)
    wanted = math.copysign(wanted, value)
    assert same(abs(float(round_array(value, fmt))), abs(wanted))
    assert same(float(round_array(value, fmt)), round_exact(value, fmt))


@given(value=fractions.filter(lambda value: abs(value) < 2**127))
def test_fractions_round_to_the_nearest_float32(value: Fraction) -> None:
    assert round_exact(value, FLOAT32) == slow_round_float32(value)


@given(value=fractions)
def test_fractions_round_to_the_nearest_float64(value: Fraction) -> None:
    assert (
        round_exact(value, FLOAT64) == value.numerator / value.denominator
    )  # Python's integers divide correctly rounded


@given(numerator=st.integers(-(2**60), 2**60), exponent=st.integers(-1140, -1060))
def test_fractions_round_to_the_nearest_subnormal_float64(numerator: int, exponent: int) -> None:
    value = Fraction(numerator, 3) * Fraction(2) ** exponent
    assert round_exact(value, FLOAT64) == value.numerator / value.denominator


@given(values=st.lists(floats))
def test_arrays_agree_with_the_hardware_where_it_rounds_once(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    for fmt in (FLOAT16, FLOAT32, FLOAT64):
        with np.errstate(all="ignore"):
            assert same_arrays(round_array(array, fmt), array.astype(fmt.dtype).astype(np.float64))


def test_many_random_float64_of_every_exponent() -> None:
    rng = np.random.default_rng(7)
    array = rng.integers(0, 2**64, 200_000, dtype=np.uint64).view(np.float64)
    array = np.concatenate([array, np.ldexp(rng.standard_normal(200_000), rng.integers(-160, 130, 200_000))])
    for fmt in (FLOAT16, FLOAT32):
        with np.errstate(all="ignore"):
            assert same_arrays(round_array(array, fmt), array.astype(fmt.dtype).astype(np.float64))


def test_rounding_to_bfloat16_does_not_pass_through_float32() -> None:
    """As the cast of ml_dtypes does: it gives 1."""
    trap = np.float64(1 + 2.0**-8 + 2.0**-40)
    assert float(round_array(trap, BFLOAT16)) == 1 + 2.0**-7
    assert round_exact(float(trap), BFLOAT16) == 1 + 2.0**-7


@SMALL
def test_no_midpoint_is_rounded_twice(name: str) -> None:
    """2^-30 relative above a midpoint: float32 would take each to the midpoint, and half of them then down."""
    fmt, magnitudes = format_named(name), np.array(finite_magnitudes(name))
    low, high = magnitudes[:-1], magnitudes[1:]
    middle = (low + high) / 2
    assert same_arrays(round_array(middle * (1 + 2.0**-30), fmt), high)
    assert same_arrays(round_array(middle * (1 - 2.0**-30), fmt), low)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_what_is_not_finite(fmt: object) -> None:
    assert isinstance(fmt, type(FLOAT16))
    special = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0])
    wanted = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0])
    if fmt is FLOAT8_E4M3FN:
        wanted[:2] = np.nan
        assert np.isnan(np.float32(np.inf).astype(fmt.dtype).astype(np.float64))
    if fmt is not FLOAT64:
        assert same_arrays(round_array(special, fmt), wanted)
    assert all(same(round_exact(x, fmt), y) for x, y in zip(special.tolist(), wanted.tolist(), strict=True))


def test_a_negative_value_that_vanishes_keeps_its_sign() -> None:
    assert same(round_exact(-TINY, FLOAT64), -0.0)
    assert same(float(round_array(-1e-300, FLOAT32)), -0.0)
    assert same(round_exact(Fraction(0), FLOAT16), 0.0)


def test_integers_past_float64() -> None:
    assert round_exact(10**400, FLOAT64) == math.inf
    assert round_exact(-(10**400), FLOAT16) == -math.inf
    assert round_exact(2**24 + 1, FLOAT32) == 2**24
    assert round_exact(2**53 + 3, FLOAT64) == 2**53 + 4


def test_shapes_and_the_input_are_kept() -> None:
    for fmt in (FLOAT16, FLOAT64):
        given_values = np.full((2, 3), 0.1)
        rounded = round_array(given_values[:, ::-1], fmt)
        rounded[:] = 0
        assert rounded.shape == (2, 3)
        assert (given_values == 0.1).all()
        assert round_array(np.empty((0, 4)), fmt).shape == (0, 4)


def test_it_works_where_floating_point_errors_raise() -> None:
    with np.errstate(all="raise"):
        assert float(round_array(5e-324, FLOAT16)) == 0
        assert float(round_array(1.7e308, FLOAT16)) == math.inf
