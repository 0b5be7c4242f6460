"""Exact sums and products, against ``fractions`` and ``math.fsum``."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numalign.numerics import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, FLOAT64, exact_dot, exact_sum, round_exact, rounded_sum
from numalign.numerics import sums as sums_module

finite = st.floats(allow_nan=False, allow_infinity=False)
subnormal = st.floats(min_value=-1e-307, max_value=1e-307)
terms = st.lists(finite | subnormal, max_size=40)
INF, NAN = math.inf, math.nan


def cancelling(values: list[float]) -> list[float]:
    """The values, and after them all but the last of their negatives."""
    return [*values, *(-value for value in values[:-1])]


@given(values=terms)
def test_sums_are_those_of_fractions(values: list[float]) -> None:
    assert exact_sum(values) == sum(map(Fraction, values))
    assert exact_sum(cancelling(values)) == (Fraction(values[-1]) if values else 0)


@given(pairs=st.lists(st.tuples(finite | subnormal, finite | subnormal), max_size=30))
def test_products_are_those_of_fractions(pairs: list[tuple[float, float]]) -> None:
    x, y = np.array(pairs).reshape(-1, 2).T
    assert exact_dot(x, y) == sum(Fraction(a) * Fraction(b) for a, b in pairs)


@given(values=terms)
def test_a_rounded_sum_is_rounded_once(values: list[float]) -> None:
    exact = sum(map(Fraction, values), start=Fraction(0))
    assert rounded_sum(values, FLOAT16) == round_exact(exact, FLOAT16)
    try:
        assert rounded_sum(values, FLOAT64) == math.fsum(values)
    except OverflowError:  # fsum gives up where an intermediate sum overflows
        assert rounded_sum(values, FLOAT64) == round_exact(exact, FLOAT64)


def test_extremes_of_significand_and_exponent() -> None:
    most = FLOAT64.max_finite
    assert exact_sum([most] * 5 + [-5e-324]) == 5 * Fraction(most) - Fraction(5e-324)
    assert exact_dot([most, -5e-324], [most, 5e-324]) == Fraction(most) ** 2 - Fraction(5e-324) ** 2
    assert exact_dot([-most, most], [most, most]) == 0


def test_many_equal_terms_of_full_width_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case that fills the bins most: all significand bits set, every term in one bin, in several chunks."""
    value = 2.0 - 2.0**-52
    n = 3 * 2**20 + 5
    assert exact_sum(np.full(n, value)) == n * Fraction(value)
    assert exact_sum(np.full(n, -value)) == -n * Fraction(value)
    assert exact_dot(np.full(n, value), np.full(n, -value)) == -n * Fraction(value) ** 2
    monkeypatch.setattr(sums_module, "_CHUNK", 7)
    assert exact_sum(np.arange(1000) * 0.1) == sum(map(Fraction, (np.arange(1000) * 0.1).tolist()))


def test_a_chunk_of_the_largest_halves_stays_exact_in_float64() -> None:
    assert sums_module._CHUNK << 31 <= 2**53


def test_a_million_terms_of_all_exponents_take_well_below_a_second() -> None:
    rng = np.random.default_rng(3)
    values = np.ldexp(rng.standard_normal(2**20), rng.integers(-1000, 1000, 2**20))
    values = np.concatenate([values, -values[::-1], [2.0**-1000]])
    start = time.perf_counter()
    assert exact_sum(values) == Fraction(1, 2**1000)
    assert time.perf_counter() - start < 2  # 0.2 s when nothing else runs
    assert exact_dot(values, np.ones_like(values)) == Fraction(1, 2**1000)


def test_a_sum_rounded_to_bfloat16_is_not_rounded_to_float64_first() -> None:
    assert rounded_sum([1, 2.0**-8, 2.0**-200], BFLOAT16) == 1 + 2.0**-7
    assert rounded_sum([1, 2.0**-8, -(2.0**-200)], BFLOAT16) == 1


def test_shapes() -> None:
    assert exact_sum(np.full((3, 4), 0.5)[:, ::2]) == 3
    assert exact_sum([]) == exact_dot([], []) == 0
    assert exact_dot(np.full((3, 4), 0.5), np.full((3, 4), 2)) == 12
    with pytest.raises(ValueError, match=r"x has shape \(2,\), y has shape \(3,\)"):
        exact_dot([1, 2], [1, 2, 3])


def test_narrow_dtypes_are_taken_as_they_are() -> None:
    tenth = np.array([0.1], dtype=BFLOAT16.dtype)
    assert exact_sum(np.repeat(tenth, 10)) == 10 * Fraction(float(tenth[0]))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([1, INF], INF), ([-INF, -INF, 2], -INF), ([INF, -INF], NAN), ([NAN, 1], NAN), ([NAN, INF], NAN)],
)
def test_infinities_and_nan(values: list[float], wanted: float) -> None:
    np.testing.assert_equal(rounded_sum(values, FLOAT16), wanted)
    assert math.isnan(rounded_sum(values, FLOAT8_E4M3FN))
    with pytest.raises(ValueError, match="infinite or nan"):
        exact_sum(values)
    with pytest.raises(ValueError, match=r"y has \d entries that are infinite or nan"):
        exact_dot(np.ones(len(values)), values)
