"""Bounds against sums that are really accumulated in low precision; limits of formats; growth."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
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
    allowed_error,
    blocked,
    exact_sum,
    flushed,
    format_limit,
    gamma,
    gamma_probabilistic,
    growth_slope,
    pairwise,
    round_array,
    rounded_sum,
    sequential,
    stagnation_length,
)

EVERY_FORMAT = pytest.mark.parametrize("fmt", list(FORMATS.values()), ids=list(FORMATS))
INF, NAN = math.inf, math.nan
Terms = npt.NDArray[Any]


def add_sequentially(x: Terms) -> Any:
    """Row sums of x, one column after the other, in its dtype."""
    total = x[:, 0].copy()
    for column in range(1, x.shape[1]):
        total += x[:, column]
    return total


def add_pairwise(x: Terms) -> Any:
    while x.shape[1] > 1:
        odd = x[:, x.shape[1] - x.shape[1] % 2 :]
        x = np.concatenate([x[:, 0 : x.shape[1] - 1 : 2] + x[:, 1::2], odd], axis=1)
    return x[:, 0]


def add_blocked(x: Terms) -> Any:
    return add_sequentially(np.stack([add_sequentially(x[:, i : i + 16]) for i in range(0, x.shape[1], 16)], axis=1))


ORDERS: dict[str, tuple[Callable[[Terms], Any], Callable[[int], int]]] = {
    "sequential": (add_sequentially, sequential),
    "pairwise": (add_pairwise, pairwise),
    "blocked": (add_blocked, lambda n: blocked(n, 16)),
}


class Depth:
    """An operand that counts the additions on the longest path behind it."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth

    def __add__(self, other: Depth) -> Depth:
        return Depth(max(self.depth, other.depth) + 1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 100, 255, 256, 257])
def test_path_lengths_are_those_of_a_counting_operand(order: str, n: int) -> None:
    add, length = ORDERS[order]
    counted = add(np.array([[Depth() for _ in range(n)]], dtype=object))[0].depth
    if order == "pairwise":  # an odd one out is carried up, never down
        assert counted == length(n) == math.ceil(math.log2(n))
    else:
        # Full blocks are the deepest; the last block's shorter path can only help.
        assert counted <= length(n) <= counted + (order == "blocked")
        assert order != "sequential" or counted == length(n)


def test_path_lengths_at_the_edges() -> None:
    assert [sequential(0), pairwise(0), blocked(0, 4)] == [0, 0, 0]
    assert [sequential(1), pairwise(1), blocked(1, 4)] == [0, 0, 0]
    assert blocked(100, 10) == 18
    assert blocked(100, 1) == sequential(100) == blocked(100, 100) == blocked(100, 1000)
    for refused in (lambda: sequential(-1), lambda: pairwise(-1), lambda: blocked(-1, 2), lambda: blocked(3, 0)):
        with pytest.raises(ValueError, match="wanted an integer of at least"):
            refused()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("data", ["positive", "mixed", "equal", "subnormal"])
@pytest.mark.parametrize(
    ("acc", "out"), [(FLOAT16, FLOAT16), (FLOAT32, FLOAT32), (FLOAT32, FLOAT16), (FLOAT32, BFLOAT16)]
)
def test_accumulated_sums_stay_within_the_bound(order: str, data: str, acc: Format, out: Format) -> None:
    add, length = ORDERS[order]
    rng = np.random.default_rng(5)
    for n in (1, 2, 17, 256, 1000):
        raw = {
            "positive": rng.random((40, n)),
            "mixed": rng.standard_normal((40, n)),
            "equal": np.broadcast_to(rng.random((40, 1)), (40, n)),
            "subnormal": rng.standard_normal((40, n)) * out.smallest_subnormal,
        }[data]
        x = round_array(raw, out)
        sums = round_array(add(x.astype(acc.dtype)).astype(np.float64), out)
        exact = [exact_sum(row) for row in x]
        magnitude = np.abs(x).sum(axis=1)
        reference = np.array([float(value) for value in exact])
        error = [abs(Fraction(y) - s) for y, s in zip(sums.tolist(), exact, strict=True)]
        bound = allowed_error(reference, magnitude, length(n), out, acc)
        assert all(e <= Fraction(b) * (1 + Fraction(1, 2**48)) for e, b in zip(error, bound.tolist(), strict=True))


def test_the_bound_condemns_a_low_precision_accumulator() -> None:
    """Not so wide that it lets the fault pass that it is for."""
    x = round_array(np.full((1, 4096), 0.1), FLOAT16)  # float16 stands still at 256
    y = add_sequentially(x.astype(np.float16)).astype(np.float64)
    s = np.array([float(exact_sum(x))])
    assert y.tolist() == [256]
    assert (np.abs(y - s) > allowed_error(s, s, sequential(4096), FLOAT16, FLOAT32)).all()
    once = np.array([rounded_sum(x, FLOAT16)])
    assert (np.abs(once - s) <= allowed_error(s, s, 0, FLOAT16, FLOAT32)).all()


def test_allowed_error_by_hand() -> None:
    u, v = 2.0**-11, 2.0**-24
    wanted = u * 3 + (1 + u) * (10 * v / (1 - 10 * v)) * 5
    assert float(allowed_error(-3.0, 5.0, 10, FLOAT16, FLOAT32)) == pytest.approx(wanted, rel=1e-15)
    assert float(allowed_error(0.0, 0.0, 10, FLOAT16, FLOAT32)) == 2.0**-25
    assert float(allowed_error(1.0, 1.0, 256, BFLOAT16, BFLOAT16)) == INF
    assert float(allowed_error(0.0, 0.0, 256, BFLOAT16, BFLOAT16)) == BFLOAT16.smallest_subnormal / 2
    assert np.isnan(allowed_error(NAN, 1.0, 1, FLOAT16, FLOAT32))
    assert allowed_error(np.ones((2, 1)), np.ones(3), 1, FLOAT16, FLOAT32).shape == (2, 3)
    with pytest.raises(ValueError, match=r"magnitude has the entry -1\.0"):
        allowed_error(1.0, -1.0, 1, FLOAT16, FLOAT32)


def test_gamma_by_hand() -> None:
    assert gamma(0, 2.0**-8) == 0
    assert gamma(128, 2.0**-8) == 1
    assert gamma(255, 2.0**-8) == 255
    assert gamma(256, 2.0**-8) == gamma(10**9, 2.0**-8) == INF
    for h, u in ((-1, 0.1), (1, 0.0), (1, 1.0), (1, NAN)):
        with pytest.raises(ValueError, match="wanted"):
            gamma(h, u)


@given(h=st.integers(0, 10**6), p=st.integers(20, 53))
def test_gamma_is_the_fraction(h: int, p: int) -> None:
    u = Fraction(1, 2**p)
    if h * u <= Fraction(1, 2):
        wanted = h * u / (1 - h * u)
        assert abs(Fraction(gamma(h, float(u))) - wanted) <= wanted / 2**51


def test_probabilistic_gamma_by_hand() -> None:
    u, h, failure = 2.0**-11, 400, 1e-3
    factor = math.sqrt(2 * math.log(2 * h / failure)) / (1 - u)
    assert gamma_probabilistic(h, u, failure) == pytest.approx(
        math.exp(factor * 20 * u + h * u * u / (1 - u)) - 1, rel=1e-12
    )
    # The failure probability comes out again: terms * 2 exp(-lambda^2 (1 - u)^2 / 2).
    assert 2 * h * math.exp(-((factor * (1 - u)) ** 2) / 2) == pytest.approx(failure)
    assert gamma_probabilistic(h, u, failure, terms=h) == gamma_probabilistic(h, u, failure)


def test_probabilistic_gamma_at_the_edges() -> None:
    u = FLOAT32.unit_roundoff
    assert gamma_probabilistic(0, u, 0.5) == 0
    assert gamma_probabilistic(10**18, 2.0**-8, 0.5) == INF
    assert gamma_probabilistic(20, u, 1e-10, terms=2**20) > gamma_probabilistic(20, u, 1e-10)
    assert gamma_probabilistic(100, u, 1e-20) > gamma_probabilistic(100, u, 1e-10)
    assert math.isfinite(gamma_probabilistic(2**20, u, 5e-324))
    n = 2**22
    assert gamma_probabilistic(n, u, 1e-10) < gamma(n, u) / 100
    assert gamma_probabilistic(4 * n, u, 1e-10) == pytest.approx(2 * gamma_probabilistic(n, u, 1e-10), rel=0.1)
    for h, unit, failure in ((-1, u, 0.5), (1, 0, 0.5), (1, u, 0), (1, u, 1), (1, u, NAN)):
        with pytest.raises(ValueError, match="wanted"):
            gamma_probabilistic(h, unit, failure)
    with pytest.raises(ValueError, match="terms is 0"):
        gamma_probabilistic(1, u, 0.5, terms=0)


@pytest.mark.parametrize(("fmt", "n"), [(FLOAT16, 1000), (FLOAT32, 20_000)])
def test_random_sums_stay_within_the_probabilistic_bound(fmt: Format, n: int) -> None:
    """Uniform in [-1, 1], where roundings are random. 100 sums, each with a chance of 10^-10."""
    x = round_array(np.random.default_rng(8).uniform(-1, 1, (100, n)), fmt)
    error = np.abs(add_sequentially(x.astype(fmt.dtype)).astype(np.float64) - [float(exact_sum(row)) for row in x])
    factor = gamma_probabilistic(sequential(n), fmt.unit_roundoff, 1e-10)
    assert (error <= factor * np.abs(x).sum(axis=1)).all()


@pytest.mark.parametrize("fmt", [FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FORMATS["float8_e5m2"]], ids=lambda fmt: fmt.name)
def test_counting_stops_at_the_stagnation_length(fmt: Format) -> None:
    one = np.ones((), dtype=fmt.dtype)
    count = np.zeros((), dtype=fmt.dtype)
    for _ in range(stagnation_length(fmt) + 50):
        count = (count + one).astype(fmt.dtype)
    assert float(count) == stagnation_length(fmt)


def test_known_stagnation_lengths() -> None:
    assert [stagnation_length(fmt) for fmt in (BFLOAT16, FLOAT16, FLOAT32, FLOAT64)] == [256, 2048, 16777216, 2**53]
    top = np.float32(16777216)
    assert top + np.float32(1) == top
    assert (top - np.float32(1)) + np.float32(1) == top


@EVERY_FORMAT
def test_flushed_begins_above_half_the_smallest_subnormal(fmt: Format) -> None:
    half = fmt.smallest_subnormal / 2
    above = float(np.nextafter(half, 1))
    exact = np.array([0.0, half, above, -above, 1.0, INF, NAN])
    assert flushed(np.zeros(7), exact, fmt).tolist() == [False, False, True, True, True, True, False]
    assert flushed(np.full(7, -0.0), exact, fmt).tolist() == [False, False, True, True, True, True, False]
    assert not flushed(np.full(7, fmt.smallest_subnormal), exact, fmt).any()
    assert not flushed(np.full(7, NAN), exact, fmt).any()


@EVERY_FORMAT
@given(exact=st.floats(allow_nan=False))
def test_right_rounding_is_never_flushed(fmt: Format, exact: float) -> None:
    assert not flushed(round_array(exact, fmt), exact, fmt).any()
    assert flushed(0.0, exact, fmt) == (float(round_array(exact, fmt)) != 0)


@EVERY_FORMAT
@given(exact=st.floats(allow_nan=False))
def test_a_format_limit_is_where_right_rounding_overflows(fmt: Format, exact: float) -> None:
    assert format_limit(exact, fmt) == (not math.isfinite(float(round_array(exact, fmt))))


def test_format_limits_of_float16() -> None:
    exact = np.array([[65504.0, 65519.99], [65520.0, -65520.0], [INF, NAN]])
    assert format_limit(exact, FLOAT16).tolist() == [[False, False], [True, True], [True, False]]


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0, -2.0])
def test_a_power_law_gives_its_exponent(slope: float) -> None:
    ns = 2 ** np.arange(4, 20)
    assert growth_slope(ns, 3.0 * ns.astype(np.float64) ** slope) == pytest.approx(slope, abs=1e-12)


def test_the_slope_is_that_of_polyfit() -> None:
    rng = np.random.default_rng(9)
    ns, errors = np.arange(1, 50), rng.random(49)
    assert growth_slope(ns, errors) == pytest.approx(np.polyfit(np.log(ns), np.log(errors), 1)[0])


def test_errors_without_a_logarithm_are_left_out() -> None:
    assert growth_slope([1, 2, 4, 8, 16], [0, 2, 4, INF, NAN]) == pytest.approx(1)
    assert math.isnan(growth_slope([1, 2], [0, 1]))
    assert math.isnan(growth_slope([2, 2], [1, 3]))
    assert math.isnan(growth_slope([], []))
    for ns, errors in (([1, 2], [1]), ([0, 1], [1, 1]), ([1, 2], [-1, 1]), ([[1]], [[1]])):
        with pytest.raises(ValueError, match="wanted"):
            growth_slope(ns, errors)
