"""Small records for tests that need no operator to run."""

from __future__ import annotations

import math

from numalign.evidence.records import (
    Case,
    Cell,
    Environment,
    Observation,
    Outcome,
    Plan,
    Result,
    TensorFacts,
    Track,
)


def environment() -> Environment:
    return Environment(
        numalign="0",
        torch="0",
        python="3",
        platform="none",
        processor="none",
        cores=2,
        threads=2,
        devices=("cpu: none",),
    )


def ramp(**changes: object) -> Case:
    """A case that sums ones; its text is not run by the tests that use it."""
    fields = {
        "operator": "ramp",
        "name": "ones",
        "family": "reductions",
        "why": "Sums n ones.",
        "inputs": "x = torch.ones(n)",
        "call": "x.sum()",
        "sizes": (16, 64, 256, 1024),
        "exact": True,
        **changes,
    }
    return Case(**fields)  # type: ignore[arg-type]


def plan_of(*cases: Case, dtypes: tuple[str, ...] = ("float16",), **changes: object) -> Plan:
    """A plan with one track a case, dtype and direction, on the CPU."""
    fields = {
        "environment": environment(),
        "cases": cases,
        "tracks": tuple(
            Track(case=case.id, dtype=dtype, device="cpu", direction=direction)
            for case in cases
            for dtype in dtypes
            for direction in case.directions
        ),
        "max_size": 1 << 31,
        "repaired": False,
        "seed": 0,
        "timeout": 20.0,
        "threads": 1,
        **changes,
    }
    return Plan(**fields)  # type: ignore[arg-type]


def observation(
    cell: Cell,
    *,
    value: float = 1.0,
    expected: float = 1.0,
    error_ulp: float = 0.0,
    excess: float = 0.0,
    zero: bool = False,
    outcome: Outcome = Outcome.RAN,
    operators: tuple[str, ...] = ("aten::sum",),
) -> Observation:
    """An observation of one scalar."""
    if outcome is not Outcome.RAN:
        return Observation(cell=cell, outcome=outcome, detail="planted")
    result = Result(
        tensor=TensorFacts(name="output", dtype=cell.dtype, device="cpu", shape=()),
        digest="0",
        error_ulp=error_ulp,
        excess=excess,
        worst=0,
        observed=repr(value),
        expected=repr(expected),
        rounded=repr(expected),
        format_limited=0,
        misplaced=0,
        infinite=int(math.isinf(value)),
        nan=int(math.isnan(value)),
        nonzero_expected=1,
        flushed=int(zero),
    )
    return Observation(cell=cell, outcome=Outcome.RAN, results=(result,), operators=operators)
