"""The judge, on observations whose truth is known: it orders the right cells and draws the right verdicts. Nothing is run."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numalign.evidence.records import Case, Cell, Observation, Outcome, Plan, Result
from numalign.scan.judge import Status, Verdict, judge, wanted
from records import observation, plan_of, ramp

Operator = Callable[[Cell], Observation]


def played(
    case: Case, operator: Operator, *, dtype: str = "float16", direction: str = "forward", **changes: object
) -> tuple[Plan, Verdict, list[Observation]]:
    """Play a track to its end: run what the judge wants until it wants nothing."""
    plan = plan_of(case, dtypes=(dtype,), **changes)
    track = next(track for track in plan.tracks if track.direction == direction)
    seen: list[Observation] = []
    while cells := wanted(plan, track, seen):
        assert len(seen) < 200, "the judge never comes to an end"
        seen += [operator(cell) for cell in cells]
    return plan, judge(plan, track, seen), seen


def right(cell: Cell) -> Observation:
    return observation(cell, value=float(cell.n), expected=float(cell.n), error_ulp=0.5, excess=0.9)


def saturating(stop: int) -> Operator:
    """Ones summed in an accumulator that stands still at ``stop``."""

    def run(cell: Cell) -> Observation:
        value = float(min(cell.n, stop))
        spacing = 2.0 ** (math.floor(math.log2(cell.n)) - 10)
        error = (cell.n - value) / spacing
        return observation(cell, value=value, expected=float(cell.n), error_ulp=error, excess=2 * error)

    return run


def overflowing(inf_from: int, nan_from: int) -> Operator:
    def run(cell: Cell) -> Observation:
        value = 1.0 if cell.n < inf_from else math.inf if cell.n < nan_from else math.nan
        return observation(cell, value=value)

    return run


def codes(verdict: Verdict) -> dict[str, int]:
    return {suspicion.code: suspicion.first_failing.cell.n for suspicion in verdict.suspicions}


def test_a_right_operator_is_clean_after_its_ladder() -> None:
    _, verdict, seen = played(ramp(), right)
    assert verdict.status is Status.CLEAN
    assert [o.cell.n for o in seen] == [16, 64, 256, 1024]


@given(st.integers(17, 1023))
def test_bisection_finds_the_first_failing_size(stop: int) -> None:
    _, verdict, seen = played(ramp(), saturating(stop))
    failing = [o.cell.n for o in seen if o.results[0].excess > 1]
    assert verdict.suspicions[0].first_failing.cell.n == min(failing)
    assert verdict.suspicions[0].last_passing is not None
    assert verdict.suspicions[0].last_passing.cell.n == min(failing) - 1


@given(st.integers(17, 1000), st.integers(1, 500))
def test_overflow_of_the_sum_and_of_the_count_are_two_faults(inf_from: int, more: int) -> None:
    nan_from = min(inf_from + more, 1024)
    _, verdict, _ = played(ramp(), overflowing(inf_from, nan_from))
    assert codes(verdict) == {"NA101": inf_from, "NA102": nan_from}


def test_nan_from_the_first_failure_on_is_one_fault() -> None:
    _, verdict, _ = played(ramp(), overflowing(500, 500))
    assert codes(verdict) == {"NA102": 500}


@pytest.mark.parametrize(
    ("stress", "code"), [("sum", "NA101"), ("divisor", "NA102"), ("square", "NA103"), ("exponential", "NA103")]
)
def test_the_stress_names_the_overflow(stress: str, code: str) -> None:
    _, verdict, _ = played(ramp(stress=stress), overflowing(100, 10_000))
    assert codes(verdict) == {code: 100}


def test_a_standstill_is_saturation() -> None:
    _, verdict, _ = played(ramp(), saturating(100))
    assert codes(verdict).keys() == {"NA201"}


def test_an_error_that_grows_without_a_standstill_is_not() -> None:
    def drifting(cell: Cell) -> Observation:
        return observation(cell, value=0.9 * cell.n, expected=float(cell.n), error_ulp=cell.n / 16, excess=cell.n / 100)

    _, verdict, _ = played(ramp(exact=False), drifting)
    assert codes(verdict).keys() == {"NA202"}


def test_errors_of_a_few_ulp_at_every_size_are_intermediate_rounding() -> None:
    def composed(cell: Cell) -> Observation:
        return observation(cell, error_ulp=2.5 + (cell.n % 3), excess=5)

    _, verdict, _ = played(ramp(exact=False), composed)
    assert verdict.status is Status.CLEAN


def test_roundings_that_an_exponential_stretches_are_no_fault() -> None:
    def stretched(cell: Cell) -> Observation:
        return observation(cell, error_ulp=1.2 * math.log(cell.n), excess=1.2 * math.log(cell.n))

    _, verdict, _ = played(ramp(exact=False, sizes=(4, 64, 1024, 16384, 1 << 20)), stretched)
    assert verdict.status is Status.CLEAN


def test_the_same_few_ulp_are_a_fault_where_every_term_is_exact() -> None:
    def sloppy(cell: Cell) -> Observation:
        return observation(cell, error_ulp=2.5, excess=5)

    _, verdict, _ = played(ramp(exact=True), sloppy)
    assert codes(verdict).keys() == {"NA203"}


def test_a_wrong_factor_is_wrong_from_the_smallest_size_on() -> None:
    def doubled(cell: Cell) -> Observation:
        return observation(cell, value=2.0, error_ulp=1024.0, excess=2000)

    _, verdict, _ = played(ramp(exact=False), doubled)
    assert codes(verdict) == {"NA203": 16}


def test_an_answer_of_zero_divides_nothing() -> None:
    def off(cell: Cell) -> Observation:
        wrong = 1.0 if cell.n > 100 else 0.0
        return observation(cell, value=wrong, expected=0.0, error_ulp=1e6 * wrong, excess=1e6 * wrong)

    _, verdict, _ = played(ramp(), off)
    assert codes(verdict) == {"NA202": 101}


def test_an_error_within_the_bound_is_no_fault_however_it_grows() -> None:
    def tight(cell: Cell) -> Observation:
        return observation(cell, error_ulp=float(cell.n), excess=0.99)

    _, verdict, _ = played(ramp(), tight)
    assert verdict.status is Status.CLEAN


def test_a_zero_gradient_is_a_fault_of_the_backward_alone() -> None:
    def zero(cell: Cell) -> Observation:
        return observation(cell, value=0.0, zero=cell.n >= 300, error_ulp=200, excess=400 if cell.n >= 300 else 0)

    _, verdict, _ = played(ramp(grad=("x",)), zero, direction="backward")
    assert codes(verdict) == {"NA301": 300}
    _, verdict, _ = played(ramp(grad=("x",)), zero, direction="forward")
    assert "NA301" not in codes(verdict)


def test_a_format_limit_is_no_fault() -> None:
    def limited(cell: Cell) -> Observation:
        seen = observation(cell)
        (result,) = seen.results
        fields = {name: getattr(result, name) for name in result.__struct_fields__}
        return Observation(cell=cell, outcome=Outcome.RAN, results=(Result(**{**fields, "format_limited": 1}),))

    _, verdict, _ = played(ramp(), limited)
    assert verdict.status is Status.FORMAT_LIMIT
    assert not verdict.suspicions


@pytest.mark.parametrize(
    "outcome", [Outcome.CRASHED, Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY, Outcome.RAISED, Outcome.FALLBACK]
)
def test_a_cell_without_numbers_is_never_clean(outcome: Outcome) -> None:
    def dying(cell: Cell) -> Observation:
        return observation(cell, outcome=outcome) if cell.n == 256 else right(cell)

    _, verdict, seen = played(ramp(), dying)
    assert verdict.status is Status.INCOMPLETE
    assert [o.cell.n for o in verdict.incomplete] == [256]
    assert len(seen) == 4


def test_a_dtype_without_a_kernel_is_information() -> None:
    _, verdict, _ = played(ramp(), lambda cell: observation(cell, outcome=Outcome.UNSUPPORTED))
    assert verdict.status is Status.UNSUPPORTED


def test_a_failure_below_a_crash_is_still_found() -> None:
    def both(cell: Cell) -> Observation:
        return observation(cell, outcome=Outcome.CRASHED) if cell.n == 1024 else saturating(100)(cell)

    _, verdict, _ = played(ramp(), both)
    assert verdict.status is Status.FAULT
    assert verdict.incomplete


def mended(operator: Operator) -> Operator:
    """An operator that runs as it is, and under repair() is another one, which is right."""

    def run(cell: Cell) -> Observation:
        return operator(cell) if cell.arm == "stock" else observation(cell, operators=("numalign::sum",))

    return run


def test_the_repaired_arm_runs_what_failed_and_judges_it() -> None:
    _, verdict, seen = played(ramp(), mended(overflowing(500, 700)), repaired=True)
    assert {s.repaired for s in verdict.suspicions} == {True}
    assert {500, 499, 700, 699} <= {o.cell.n for o in seen if o.cell.arm == "repaired"}


def test_a_repair_that_cures_one_symptom_of_two_says_so() -> None:
    def zero_from(n: int) -> Operator:
        return lambda cell: observation(cell, value=0.0, zero=True) if cell.n >= n else observation(cell)

    def forward_only(cell: Cell) -> Observation:
        if cell.arm == "stock":
            return overflowing(500, 2000)(cell) if cell.n < 700 else zero_from(700)(cell)
        (result,) = zero_from(700)(cell).results
        return Observation(cell=cell, outcome=Outcome.RAN, results=(result,), operators=("numalign::sum",))

    _, verdict, _ = played(ramp(grad=("x",)), forward_only, direction="backward", repaired=True)
    assert {s.code: s.repaired for s in verdict.suspicions} == {"NA101": True, "NA301": False}


def test_what_repair_does_not_touch_gets_no_second_ladder() -> None:
    _, verdict, seen = played(ramp(), overflowing(500, 700), repaired=True)
    assert [o.cell.n for o in seen if o.cell.arm == "repaired"] == [16]
    assert {s.repaired for s in verdict.suspicions} == {None}


def test_the_largest_size_is_heeded() -> None:
    _, _, seen = played(ramp(), right, max_size=100)
    assert [o.cell.n for o in seen] == [16, 64]
