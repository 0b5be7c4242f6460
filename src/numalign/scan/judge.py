"""The judge: orders cells and turns a track's observations into verdicts. Pure; it runs nothing and imports no torch.

A *sign* is one way in which a result can be wrong. For each sign the judge finds the smallest failing size: the ladder
brackets it, bisection closes the bracket. What a track still wants to know follows from its observations alone, so a
run that was killed goes on exactly where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import NamedTuple

from numalign.evidence.records import Arm, Case, Cell, Observation, Outcome, Plan, Track

NOISE_FACTOR = 4.0
"""An error counts as growing once it is four times the noise of the case's own intermediate roundings. Over the random
data of a ladder those vary by a factor of about two (a maximum over 64 entries against one over 2^20), never by four; a
low-precision accumulator passes four within two rungs of its stagnation."""

CERTAIN_FACTOR = 16.0
"""Somewhere on its ladder the error of a faulty track is sixteen times that noise. The largest of many roundings that an
exponential has stretched, as in the gradient of a softmax whose logarithm was rounded, grows with the logarithm of their
number: five times from 64 rows to 65536. A low-precision accumulator reaches hundreds of ulp there."""

MOST_NOISE = {"float16": 8.0, "bfloat16": 8.0, "float32": 32.0, "float64": 32.0}
"""Ulp that roundings between the input and the last one can explain at the smallest size, where hardly anything is added
up. Half an ulp of a logarithm l is abs(l) / 2 ulp of its exponential, and an operator forms few of them: with the
catalogue's abs(l) <= 8 stock PyTorch stays below 6 ulp in 16 bits, and below 17 in float32, whose cases reach further. More
than this is no noise but a wrong result."""

LEAST_NOISE = 1.0
"""Ulp of noise granted to a case whose terms are not exact: one rounding before the last one, half an ulp each."""


class Sign(NamedTuple):
    """One way to be wrong.

    Attributes:
        key: A word for ids.
        shows: Whether an observation has it, given the noise of its track in ulp.
        code: Its fault code, given the case and the failing observations, ascending in size.
    """

    key: str
    shows: Callable[[Observation, float], bool]
    code: Callable[[Case, Sequence[Observation]], str]


class Suspicion(NamedTuple):
    """A sign that showed on a track: what a reproducer still has to confirm.

    Attributes:
        sign: Key of the sign.
        code: Its fault code.
        track: The track.
        first_failing: At the smallest failing size.
        last_passing: At the largest size below it; None where the smallest size fails.
        rung: At the smallest failing size of the ladder, where the sign shows clearly even if additions come in another
            order each time.
        repaired: Whether ``repair()`` cures it; None where it changes nothing.
    """

    sign: str
    code: str
    track: Track
    first_failing: Observation
    last_passing: Observation | None
    rung: Observation
    repaired: bool | None


class Status(str, Enum):
    """What is known of a track."""

    CLEAN = "clean"
    FAULT = "fault"
    FORMAT_LIMIT = "format limit"
    UNSUPPORTED = "unsupported"
    INCOMPLETE = "incomplete"
    PENDING = "pending"


class Verdict(NamedTuple):
    """Everything that can be said of one track."""

    track: Track
    status: Status
    suspicions: tuple[Suspicion, ...]
    incomplete: tuple[Observation, ...]
    noise: float
    waiting: bool


DEATH_CODES = {
    Outcome.CRASHED: "NA501",
    Outcome.TIMEOUT: "NA503",
    Outcome.OUT_OF_MEMORY: "NA504",
    Outcome.RAISED: "NA903",
    Outcome.FALLBACK: "NA904",
    Outcome.UNSUPPORTED: "NA902",
}
"""The code of every way a cell can end without numbers."""


def _overflowed(observation: Observation, noise: float) -> bool:
    return any(result.infinite or result.nan for result in observation.results)


def _undefined(observation: Observation, noise: float) -> bool:
    return any(result.nan for result in observation.results)


def _all_zero(observation: Observation, noise: float) -> bool:
    return any(result.all_zero for result in observation.results)


def _flushed(observation: Observation, noise: float) -> bool:
    return any(result.flushed for result in observation.results) and not _all_zero(observation, noise)


def _imprecise(observation: Observation, noise: float) -> bool:
    """More error than float32 accumulation explains, and than the case's own roundings. What vanished is another sign."""
    return any(
        result.excess > 1 and result.error_ulp > NOISE_FACTOR * noise and not result.flushed
        for result in observation.results
    )


def _wrong(observation: Observation, noise: float) -> bool:
    """More error than any number of terms explains, in a place where there are few."""
    most = MOST_NOISE.get(observation.cell.dtype, max(MOST_NOISE.values()))
    return any(result.excess > 1 and result.error_ulp > most and not result.flushed for result in observation.results)


def _misplaced(observation: Observation, noise: float) -> bool:
    return any(result.misplaced for result in observation.results)


def _shown(sign: Sign, stock: Sequence[Observation], floor: float) -> list[Observation]:
    """The observations that have the sign, ascending in size; none where it may still be the case's own roundings."""
    failing = [o for o in stock if o.outcome is Outcome.RAN and sign.shows(o, floor)]
    if sign.shows is _wrong and failing and failing[0] is not next(o for o in stock if o.outcome is Outcome.RAN):
        return []  # right where there are few terms: then it is a matter of precision
    if sign.shows is _imprecise:
        worst = max((result.error_ulp for o in failing for result in o.results if not result.flushed), default=0.0)
        return failing if worst > CERTAIN_FACTOR * floor else []
    return failing


def _overflow_code(case: Case, failing: Sequence[Observation]) -> str:
    """By what the case pushes to its limit; a nan where a sum was pushed means that its divisor overflowed as well."""
    if case.stress == "sum" and not any(result.infinite for result in failing[0].results):
        return "NA102"
    return {"sum": "NA101", "divisor": "NA102", "square": "NA103", "exponential": "NA103"}[case.stress]


def _undefined_code(case: Case, failing: Sequence[Observation]) -> str:
    return "NA103" if case.stress in ("square", "exponential") else "NA102"


def _zero_code(case: Case, failing: Sequence[Observation]) -> str:
    """A gradient that vanished has a code of its own; a forward result that did was divided by an inf, from some n on."""
    if failing[0].cell.direction == "backward":
        return "NA301"
    return "NA203" if failing[0].cell.n == case.ladder(failing[0].cell.dtype)[0] else "NA102"


def _flushed_code(case: Case, failing: Sequence[Observation]) -> str:
    return "NA302" if failing[0].cell.direction == "backward" else "NA102"


def _precision_code(case: Case, failing: Sequence[Observation]) -> str:
    """Saturated, if the number of terms that count stands still, within one percent, while n grows by a tenth or more.

    Of n terms of about one size, n y / s seem to have been added: 2048 of any number of ones in float16, whether y is
    their sum or their mean.
    """
    if failing[0].cell.n == case.ladder(failing[0].cell.dtype)[0]:
        return "NA203"
    finite = [observation for observation in failing if not _overflowed(observation, 0)]
    if len(finite) < 2 or finite[-1].cell.n < 1.1 * finite[-2].cell.n:
        return "NA202"
    before, last = (_terms_that_count(observation) for observation in finite[-2:])
    return "NA201" if abs(last - before) <= 0.01 * abs(before) else "NA202"


def _terms_that_count(observation: Observation) -> float:
    worst = max(observation.results, key=lambda result: result.excess)
    right = float(worst.expected)
    return observation.cell.n * worst.observed_value / right if right else math.nan


SIGNS = (
    Sign("overflow", _overflowed, _overflow_code),
    Sign("undefined", _undefined, _undefined_code),
    Sign("zero", _all_zero, _zero_code),
    Sign("flushed", _flushed, _flushed_code),
    Sign("misplaced", _misplaced, lambda case, failing: "NA203"),
    Sign("wrong", _wrong, lambda case, failing: "NA203"),
    Sign("precision", _imprecise, _precision_code),
)
"""Every sign, the gravest first."""


def noise(case: Case, observations: Sequence[Observation]) -> float:
    """Ulp of error that the case has by its own intermediate roundings: what it shows at its smallest size.

    Nothing where every term is exact, because then a right operator rounds once.
    """
    if case.exact:
        return 0.0
    smallest = next((o for o in observations if o.outcome is Outcome.RAN), None)
    if smallest is None:
        return LEAST_NOISE
    most = MOST_NOISE.get(smallest.cell.dtype, max(MOST_NOISE.values()))
    return min(most, max([LEAST_NOISE, *(result.error_ulp for result in smallest.results)]))


def wanted(plan: Plan, track: Track, observations: Collection[Observation]) -> list[Cell]:
    """The cells that this track still needs, most urgent first; empty once its verdict is final.

    Under ``repair()`` the smallest size is run of every track; the others only where that one ran other operators, because
    elsewhere they compute what they computed before.
    """
    case = plan.case(track.case)
    done = {observation.cell for observation in observations}
    ladder = [track.cell(n) for n in sizes(plan, track)]
    missing = [cell for cell in ladder if cell not in done]
    if missing:
        return missing
    stock = _arm(observations, "stock")
    middles = {n for sign in SIGNS if (n := _middle(sign, case, stock)) is not None}
    if middles:
        return [track.cell(n) for n in sorted(middles)]
    if not plan.repaired:
        return []
    first = track.cell(sizes(plan, track)[0], "repaired")
    if first not in done:
        return [first]
    if not _repair_matters(observations):
        return []
    shown = [track.cell(n, "repaired") for n in sorted({*sizes(plan, track), *_brackets(case, stock)})]
    return [cell for cell in shown if cell not in done]


def _repair_matters(observations: Collection[Observation]) -> bool:
    """Whether the dispatcher saw other operators under ``repair()`` than without it, at the smallest size of both."""
    stock, repaired = _arm(observations, "stock"), _arm(observations, "repaired")
    return bool(stock and repaired) and stock[0].operators != repaired[0].operators


def sizes(plan: Plan, track: Track) -> list[int]:
    """The ladder of a track within the plan's largest size."""
    return [n for n in plan.case(track.case).ladder(track.dtype) if n <= plan.max_size]


def judge(plan: Plan, track: Track, observations: Collection[Observation]) -> Verdict:
    """The verdict on a track."""
    case = plan.case(track.case)
    stock, repaired = _arm(observations, "stock"), _arm(observations, "repaired")
    floor = noise(case, stock)
    died = tuple(o for o in (*stock, *repaired) if o.outcome not in (Outcome.RAN, Outcome.UNSUPPORTED))
    suspicions = tuple(s for sign in SIGNS if (s := _suspicion(sign, case, track, stock, repaired, floor)) is not None)
    waiting = bool(wanted(plan, track, observations))
    return Verdict(track, _status(stock, suspicions, died), _distinct(suspicions), died, floor, waiting)


def _status(stock: Sequence[Observation], suspicions: Sequence[Suspicion], died: Sequence[Observation]) -> Status:
    if suspicions:
        return Status.FAULT
    if died:
        return Status.INCOMPLETE
    if not stock:
        return Status.PENDING
    if all(observation.outcome is Outcome.UNSUPPORTED for observation in stock):
        return Status.UNSUPPORTED
    if any(result.format_limited for observation in stock for result in observation.results):
        return Status.FORMAT_LIMIT
    return Status.CLEAN


def _suspicion(
    sign: Sign, case: Case, track: Track, stock: Sequence[Observation], repaired: Sequence[Observation], floor: float
) -> Suspicion | None:
    failing = _shown(sign, stock, floor)
    if not failing:
        return None
    first = failing[0]
    passing = [o for o in stock if o.outcome is Outcome.RAN and o.cell.n < first.cell.n]
    ran = [o for o in repaired if o.outcome is Outcome.RAN]
    cured = not any(sign.shows(o, floor) for o in ran) if _repair_matters([*stock, *ran]) else None
    rung = next((o for o in failing if o.cell.n in case.ladder(track.dtype)), first)
    return Suspicion(sign.key, sign.code(case, failing), track, first, passing[-1] if passing else None, rung, cured)


def _distinct(suspicions: tuple[Suspicion, ...]) -> tuple[Suspicion, ...]:
    """One suspicion a code: a result that is nan from its first failure on is one fault, not two."""
    return tuple({suspicion.code: suspicion for suspicion in reversed(suspicions)}.values())[::-1]


def _middle(sign: Sign, case: Case, stock: Sequence[Observation]) -> int | None:
    """The size that halves the bracket of a sign; None once it is closed, or where nothing failed or nothing passed."""
    bracket = _bracket(sign, case, stock)
    if bracket is None or bracket[1] - bracket[0] <= 1:
        return None
    middle = (bracket[0] + bracket[1]) // 2
    return None if any(o.cell.n == middle for o in stock) else middle


def _bracket(sign: Sign, case: Case, stock: Sequence[Observation]) -> tuple[int, int] | None:
    """The largest passing size below the smallest failing one, and that one."""
    failing = _shown(sign, stock, noise(case, stock))
    if not failing:
        return None
    first = failing[0].cell.n
    passing = [o.cell.n for o in stock if o.outcome is Outcome.RAN and o.cell.n < first]
    return (passing[-1], first) if passing else None


def _brackets(case: Case, stock: Sequence[Observation]) -> set[int]:
    return {n for sign in SIGNS for n in (_bracket(sign, case, stock) or ())}


def _arm(observations: Collection[Observation], arm: Arm) -> list[Observation]:
    return sorted((o for o in observations if o.cell.arm == arm), key=lambda o: o.cell.n)
