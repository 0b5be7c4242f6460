"""The summary of a run: the counts, findings and gaps that every format shows. Plain data, taken from stored
records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numalign.evidence.records import Finding, Observation, Outcome, Plan, Track
from numalign.scan.judge import DEATH_CODES, Status, Verdict


class Summary(NamedTuple):
    """A run as a reader wants it.

    Attributes:
        folder: Where the run lies; paths of reproducers and drafts start here.
        plan: What was planned.
        verdicts: One a track, in the plan's order.
        observations: Every observation.
        findings: Confirmed and unconfirmed findings.
        complete: Whether nothing is left to run.
    """

    folder: Path
    plan: Plan
    verdicts: Sequence[Verdict]
    observations: Sequence[Observation]
    findings: Sequence[Finding]
    complete: bool

    @property
    def confirmed(self) -> list[Finding]:
        """Findings whose reproducer confirmed them, in the plan's order."""
        order = {track: i for i, track in enumerate(self.plan.tracks)}
        return sorted(
            (f for f in self.findings if f.confirmed), key=lambda f: (order[f.track], f.first_failing_n, f.code)
        )

    @property
    def unconfirmed(self) -> list[Finding]:
        """Suspicions whose reproducer did not confirm them."""
        return [finding for finding in self.findings if not finding.confirmed]

    @property
    def incomplete(self) -> list[Observation]:
        """Cells that ended without numbers, other than for want of a kernel."""
        return [observation for verdict in self.verdicts for observation in verdict.incomplete]

    @property
    def still_wrong(self) -> list[Finding]:
        """Confirmed findings that show under ``repair()`` too."""
        return [finding for finding in self.confirmed if finding.repaired is False]

    def tracks(self, status: Status) -> list[Track]:
        """The tracks of one status."""
        return [verdict.track for verdict in self.verdicts if verdict.status is status]


def as_json(summary: Summary) -> dict[str, Any]:
    """The summary as one JSON object.

    Non-finite numbers are the strings "inf", "-inf" and "nan", because JSON has none.
    """
    environment = summary.plan.environment
    return {
        "run": str(summary.folder),
        "complete": summary.complete,
        "environment": {name: getattr(environment, name) for name in environment.__struct_fields__},
        "seed": summary.plan.seed,
        "cells": len(summary.observations),
        "seconds": round(sum(observation.seconds for observation in summary.observations), 3),
        "tracks": dict(Counter(verdict.status.value for verdict in summary.verdicts)),
        "findings": [_finding(summary, finding) for finding in summary.confirmed],
        "unconfirmed": [_finding(summary, finding) for finding in summary.unconfirmed],
        "incomplete": [_gap(observation) for observation in summary.incomplete],
        "information": _information(summary),
        "repaired": _side_by_side(summary),
    }


def as_jsonl(summary: Summary) -> list[dict[str, Any]]:
    """One object a finding, for line-by-line tools."""
    return [_finding(summary, finding) for finding in summary.confirmed]


def _finding(summary: Summary, finding: Finding) -> dict[str, Any]:
    track = finding.track
    return {
        "id": finding.id,
        "code": finding.code,
        "title": finding.summary,
        "operator": track.operator,
        "case": track.case,
        "direction": track.direction,
        "dtype": track.dtype,
        "device": track.device,
        "unit": summary.plan.case(track.case).unit,
        "first_failing_n": finding.first_failing_n,
        "last_passing_n": finding.last_passing_n,
        "observed": _number(finding.observed),
        "expected": _number(finding.expected),
        "error_ulp": finding.error_ulp,
        "right_under_repair": finding.repaired,
        "reproducer": str(summary.folder / finding.reproducer),
        "confirmed": finding.confirmed,
        "draft": str(summary.folder / finding.draft) if finding.confirmed else None,
    }


def _gap(observation: Observation) -> dict[str, Any]:
    cell = observation.cell
    return {
        "code": DEATH_CODES[observation.outcome],
        "outcome": observation.outcome.value,
        "operator": cell.case.partition("/")[0],
        "case": cell.case,
        "direction": cell.direction,
        "dtype": cell.dtype,
        "device": cell.device,
        "arm": cell.arm,
        "n": cell.n,
        "detail": observation.detail,
    }


def _information(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "code": code,
            "case": track.case,
            "direction": track.direction,
            "dtype": track.dtype,
            "device": track.device,
        }
        for code, status in (("NA901", Status.FORMAT_LIMIT), ("NA902", Status.UNSUPPORTED))
        for track in summary.tracks(status)
    ]


def _side_by_side(summary: Summary) -> list[dict[str, Any]]:
    """Every cell that repair() changes, before and after."""
    stock = {_key(o): o for o in summary.observations if o.cell.arm == "stock"}
    rows = []
    for after in summary.observations:
        before = stock.get(_key(after))
        if after.cell.arm != "repaired" or before is None or before.operators == after.operators:
            continue  # the same operators ran, so there is no after
        rows.append(
            {
                "case": after.cell.case,
                "direction": after.cell.direction,
                "dtype": after.cell.dtype,
                "device": after.cell.device,
                "n": after.cell.n,
                "stock": _values(before),
                "repaired": _values(after),
            }
        )
    return sorted(rows, key=lambda row: (row["case"], row["dtype"], row["direction"], row["n"]))


def _values(observation: Observation) -> dict[str, Any]:
    if observation.outcome is not Outcome.RAN:
        return {"outcome": observation.outcome.value, "detail": observation.detail}
    return {
        result.tensor.name: {
            "observed": _number(result.observed),
            "expected": _number(result.expected),
            "rounded_once": _number(result.rounded),
            "error_ulp": round(result.error_ulp, 4),
            "not_finite": result.infinite + result.nan,
            "all_zero": result.all_zero,
        }
        for result in observation.results
    }


def _key(observation: Observation) -> tuple[str, str, str, str, int]:
    cell = observation.cell
    return cell.case, cell.dtype, cell.device, cell.direction, cell.n


def _number(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text
