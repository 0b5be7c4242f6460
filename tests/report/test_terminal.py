"""What a run looks like on a terminal."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from numalign.evidence.records import Finding, Observation, Outcome, Plan
from numalign.report.summary import Summary, as_json
from numalign.report.terminal import number, render, sized
from numalign.scan.judge import judge
from records import observation, plan_of, ramp


def summary(observations: list[Observation], plan: Plan, findings: list[Finding], complete: bool = True) -> Summary:
    verdicts = [judge(plan, track, [o for o in observations if o.cell.track == track]) for track in plan.tracks]
    return Summary(Path("runs/one"), plan, verdicts, observations, findings, complete)


def printed(one: Summary) -> str:
    out = io.StringIO()
    render(one, Console(file=out, width=200, markup=False, highlight=False))
    return out.getvalue()


def finding(plan: Plan, code: str, n: int, repaired: bool | None) -> Finding:
    return Finding(
        id=f"ramp-{code}",
        code=code,
        track=plan.tracks[0],
        first_failing_n=n,
        last_passing_n=n - 1,
        rung=256,
        observed="inf",
        expected="1.0",
        error_ulp=0.0,
        summary="overflow in the sum",
        reproducer=f"reproducers/ramp-{code}.py",
        reproducer_output="RESULT: confirmed",
        confirmed=True,
        repaired=repaired,
        draft="drafts/ramp.md",
    )


@pytest.fixture
def repaired_run() -> Summary:
    plan = plan_of(ramp(), repaired=True)
    track = plan.tracks[0]
    seen = [observation(track.cell(n), value=math.inf if n > 100 else 1.0) for n in (16, 64, 256, 1024)]
    seen += [observation(track.cell(n, "repaired"), operators=("numalign::sum",)) for n in (16, 64, 256, 1024)]
    return summary(seen, plan, [finding(plan, "NA101", 101, True)])


def test_the_first_screen_says_what_since_when_and_what_next(repaired_run: Summary) -> None:
    text = printed(repaired_run)
    assert "float16" in text
    row = next(line for line in text.splitlines() if "NA101 overflow in the sum" in line)
    for part in ("ramp/ones", "forward", "101", "inf", "1", "right"):
        assert part in row
    assert (
        "1 fault, each confirmed by its reproducer; 1 in operators that repair() covers, 0 of them still wrong there"
        in text
    )
    assert "numalign explain NA101" in text.splitlines()[-1]
    assert "numalign show runs/one" in text.splitlines()[-1]


def test_before_and_after_stand_side_by_side(repaired_run: Summary) -> None:
    lines = printed(repaired_run).splitlines()
    start = next(i for i, line in enumerate(lines) if line == "ramp/ones, float16")
    table = {line.split()[0]: line.split()[1:] for line in lines[start + 2 : start + 6]}
    assert table["16"][:2] == ["1", "1"]
    assert table["256"][:2] == ["inf", "1"]


def test_a_cell_that_was_lost_is_named(repaired_run: Summary) -> None:
    plan = plan_of(ramp())
    track = plan.tracks[0]
    seen = [
        observation(track.cell(n), outcome=Outcome.CRASHED if n == 64 else Outcome.RAN) for n in (16, 64, 256, 1024)
    ]
    text = printed(summary(seen, plan, []))
    row = next(line for line in text.splitlines() if "crashed: planted" in line)
    assert "NA501" in row
    assert "64" in row
    assert "1 not tested to the end" in text


def test_an_incomplete_run_says_how_to_go_on() -> None:
    plan = plan_of(ramp())
    text = printed(summary([], plan, [], complete=False))
    assert "INCOMPLETE, go on with: numalign scan --resume runs/one" in text
    assert "1 not run yet" in text


def test_json_has_no_bare_infinities(repaired_run: Summary) -> None:
    (row,) = as_json(repaired_run)["findings"]
    assert row["observed"] == "inf"
    assert row["expected"] == 1.0


def test_sizes_and_numbers_read_well() -> None:
    assert sized(65536, "pixels") == "256 x 256"
    assert sized(65537, "pixels") == "65\N{NARROW NO-BREAK SPACE}537"
    assert number("1.52587890625e-05") == "1.526e-05"
    assert number("2048.0") == "2\N{NARROW NO-BREAK SPACE}048"
    assert number("inf") == "inf"
    assert number("nan") == "nan"
    assert number("-0.0") == "-0"
