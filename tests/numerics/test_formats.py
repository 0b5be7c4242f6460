"""The formats' numbers, against what ml_dtypes and numpy say of the same dtypes and against their bit patterns."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from numalign.numerics import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FORMATS,
    Format,
    accumulate,
    format_named,
)
from numerics.slow_reference import SMALL_DTYPES, finite_magnitudes

EVERY_FORMAT = pytest.mark.parametrize("fmt", list(FORMATS.values()), ids=list(FORMATS))


@EVERY_FORMAT
def test_numbers_agree_with_ml_dtypes(fmt: Format) -> None:
    info = ml_dtypes.finfo(fmt.dtype)
    assert fmt.max_finite == float(info.max)
    assert fmt.smallest_normal == float(info.smallest_normal)
    assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    assert fmt.unit_roundoff == float(info.eps) / 2
    assert fmt.precision == info.nmant + 1
    assert fmt.dtype.name == fmt.name


@pytest.mark.parametrize("name", SMALL_DTYPES)
def test_numbers_agree_with_the_bit_patterns(name: str) -> None:
    fmt, magnitudes = format_named(name), finite_magnitudes(name)
    assert fmt.max_finite == magnitudes[-1]
    assert fmt.smallest_subnormal == magnitudes[1]
    assert fmt.exact_overflow == Fraction(magnitudes[-1]) + (Fraction(magnitudes[-1]) - Fraction(magnitudes[-2])) / 2
    assert 2.0**fmt.emax <= fmt.max_finite < 2.0 ** (fmt.emax + 1)
    assert fmt.overflow_is_even == (len(magnitudes) % 2 == 1)  # the last index is even, and so is its pattern


@pytest.mark.parametrize("name", SMALL_DTYPES)
def test_overflow_begins_where_casting_overflows(name: str) -> None:
    """float32 holds the overflow thresholds of all narrower formats, so casting from it rounds once."""
    fmt = format_named(name)
    threshold = np.float32(fmt.overflow)
    tried = np.array([np.nextafter(threshold, np.float32(0)), threshold, np.nextafter(threshold, np.float32(np.inf))])
    with np.errstate(over="ignore"):
        cast = tried.astype(fmt.dtype).astype(np.float64)
    assert (~np.isfinite(cast)).tolist() == fmt.overflows(tried.astype(np.float64)).tolist()
    assert (~np.isfinite(cast)).tolist() == [False, not fmt.overflow_is_even, True]
    assert np.isinf(cast[-1]) == fmt.has_inf


def test_overflow_of_known_formats() -> None:
    assert FLOAT16.overflow == 65520
    assert BFLOAT16.overflow == 2.0**128 - 2.0**119
    assert FLOAT32.overflow == 2.0**128 - 2.0**103
    assert FLOAT64.overflow == np.inf
    assert FLOAT64.exact_overflow == 2**1024 - 2**970
    assert FLOAT8_E5M2.overflow == 61440
    assert FLOAT8_E4M3FN.overflow == 464
    assert FLOAT8_E4M3FN.overflow_is_even


@EVERY_FORMAT
def test_nan_does_not_overflow_and_infinities_do(fmt: Format) -> None:
    assert fmt.overflows(np.array([np.nan, np.inf, -np.inf, 0.0])).tolist() == [False, True, True, False]


@EVERY_FORMAT
def test_a_format_is_found_by_its_name_and_cannot_be_changed(fmt: Format) -> None:
    assert format_named(fmt.name) is fmt
    with pytest.raises(dataclasses.FrozenInstanceError):
        fmt.precision = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "near"),
    [("flaot16", "float16"), ("bfloat", "bfloat16"), ("float8_e4m3", "float8_e4m3fn"), ("", "float64")],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"no floating-point format is named '{name}'; nearest: .*\b{near}\b"):
        format_named(name)


def test_accumulate_formats() -> None:
    assert accumulate(FLOAT64) is FLOAT64
    assert all(accumulate(fmt) is FLOAT32 for fmt in FORMATS.values() if fmt is not FLOAT64)
