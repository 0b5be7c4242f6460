"""What is measured of a result against its reference, on tensors whose errors are known."""

from __future__ import annotations

import math

import pytest
import torch

from numalign.evidence.records import Result
from numalign.numerics import format_named, round_array
from numalign.scan.measure import measured

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def of(value: list[float], exact: list[float], dtype: torch.dtype = torch.float16, n: int = 1) -> Result:
    reference = torch.tensor(exact, dtype=torch.float64)
    return measured("output", torch.tensor(value, dtype=torch.float64).to(dtype), reference, reference.abs(), n)


def test_a_value_rounded_once_is_within_its_bound() -> None:
    exact = torch.rand(1000, dtype=torch.float64) + 0.5
    for name, dtype in DTYPES.items():
        # PyTorch's cast from float64 goes through float32 and rounds twice.
        once = torch.from_numpy(round_array(exact.numpy(), format_named(name))).to(dtype)
        result = measured("output", once, exact, exact, 1)
        assert result.error_ulp <= 0.5
        assert result.excess <= 1


def test_one_ulp_is_one_ulp() -> None:
    assert of([1 + 2**-10], [1.0]).error_ulp == 1
    assert of([1 + 2**-7], [1.0], torch.bfloat16).error_ulp == 1
    assert of([1 + 2**-10], [1.0]).excess > 1


def test_the_slack_of_accumulation_grows_with_terms() -> None:
    few, many = (of([1 + 2**-10], [1.0], n=n).excess for n in (1, 10**6))
    assert many < few


def test_inf_is_right_only_past_the_format() -> None:
    wrong, limit = of([math.inf], [65519.0]), of([math.inf], [65520.0])
    assert (wrong.infinite, wrong.format_limited) == (1, 0)
    assert (limit.infinite, limit.format_limited) == (0, 1)
    assert limit.excess == 0


@pytest.mark.parametrize(
    ("value", "exact", "misplaced"),
    [
        (math.inf, 240000.0, 0),
        (math.nan, 240000.0, 1),
        (0.0, 240000.0, 1),
        (-math.inf, 240000.0, 1),
        (1.0, math.nan, 1),
        (1.0, math.inf, 1),
        (math.inf, math.inf, 0),
    ],
)
def test_at_the_format_limit_only_the_right_value_is_right(value: float, exact: float, misplaced: int) -> None:
    assert of([value], [exact]).misplaced == misplaced


def test_integers_are_compared_exactly() -> None:
    right = torch.tensor([3, 0, 5])
    assert measured("output", right, right.double(), right.double(), 8).error_ulp == 0
    assert measured("output", right + 1, right.double(), right.double(), 8).error_ulp > 1e6
    assert measured("output", right > 3, (right > 3).double(), right.double(), 8).error_ulp == 0


def test_nan_is_counted_apart() -> None:
    result = of([math.nan, 1.0], [2.0, 1.0])
    assert (result.nan, result.infinite, result.worst) == (1, 0, 0)
    assert math.isnan(result.observed_value)


def test_a_right_nan_is_right() -> None:
    result = of([math.nan], [math.nan])
    assert (result.nan, result.infinite, result.excess) == (0, 0, 0)


@pytest.mark.parametrize(("exact", "flushed"), [(2.0**-25, 0), (2.0**-24, 1), (1.0, 1), (0.0, 0)])
def test_zero_is_wrong_only_where_the_right_value_is_representable(exact: float, flushed: int) -> None:
    result = of([0.0], [exact])
    assert (result.flushed, result.nonzero_expected) == (flushed, flushed)
    assert result.all_zero == bool(flushed)


def test_partly_flushed_is_not_all_zero() -> None:
    result = of([0.0, 1.0], [1.0, 1.0])
    assert (result.flushed, result.nonzero_expected, result.all_zero) == (1, 2, False)


def test_the_worst_entry_keeps_its_place_beside_zeros() -> None:
    result = of([0, 0, 0, 3.0, 0, 1.0], [0, 0, 0, 1.0, 0, 1.0])
    assert (result.worst, result.observed, result.expected) == (3, "3.0", "1.0")


def test_bfloat16_is_rounded_straight_from_float64() -> None:
    """By way of float32 this would be a tie, and go to even."""
    assert of([1.0], [1 + 2**-8 + 2**-40], torch.bfloat16).rounded == repr(1 + 2**-7)


def test_an_empty_result_is_right() -> None:
    assert of([], []).excess == 0


def test_shapes_must_agree() -> None:
    one = torch.ones(1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"\(2,\).*\(1,\)"):
        measured("output", torch.ones(2), one, one, 1)


def test_equal_bits_have_equal_digests() -> None:
    assert of([1.0, 2.0], [1.0, 2.0]).digest == of([1.0, 2.0], [3.0, 4.0]).digest
    assert of([0.0], [0.0]).digest != of([-0.0], [0.0]).digest
