"""Every table on terminals of every width: columns in line, numbers whole, nothing cut."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from numalign.catalogue import cases
from numalign.cli import list as list_command
from numalign.cli.explain import explain
from numalign.evidence.codes import CODES
from numalign.evidence.records import Finding, Observation, Outcome, Track
from numalign.report.summary import Summary
from numalign.report.terminal import grouped, number, render
from numalign.scan.judge import judge
from records import observation, plan_of, ramp

WIDTHS = (60, 80, 110, 145, 200)

LONG = ramp(
    operator="multilabel_soft_margin_loss",
    name="one-destination",
    grad=("x",),
    unit="window side",
    sizes=(64, 65536, 16777216),
)
SHORT = ramp(unit="pixels", sizes=(16384, 32761, 65536))

VALUES = {
    "float16": ("inf", "-1.52587890625e-05"),
    "bfloat16": ("256.0", "260.0"),
    "float32": ("16777216.0", "16814180.0"),
}
SIZES = {"float16": 65520, "bfloat16": 258, "float32": 16814179}


def finding(track: Track, code: str, *, repaired: bool | None, confirmed: bool = True) -> Finding:
    observed, expected = VALUES[track.dtype]
    return Finding(
        id=f"{track.case}-{code}-{track.dtype}",
        code=code,
        track=track,
        first_failing_n=SIZES[track.dtype],
        last_passing_n=None,
        rung=65536,
        observed=observed,
        expected=expected,
        error_ulp=None,
        summary=CODES[code].title,
        reproducer=f"reproducers/{track.case.replace('/', '-')}-{track.direction}-{track.dtype}-{code}.py",
        reproducer_output="",
        confirmed=confirmed,
        repaired=repaired,
    )


def cured(track: Track, code: str) -> bool | None:
    """In one case every dtype is cured of one fault, and one of them is not of the other."""
    return None if track.case == LONG.id else code != "NA201" or track.dtype != "float32"


@pytest.fixture(scope="module")
def run() -> Summary:
    """Two cases, three dtypes, every table: findings, before and after, cells that died, a suspicion not confirmed."""
    plan = plan_of(LONG, SHORT, dtypes=tuple(VALUES), repaired=True)
    findings = [
        finding(track, code, repaired=cured(track, code))
        for track in plan.tracks
        for code in ("NA102", "NA301" if track.direction == "backward" else "NA201")
    ]
    findings.append(finding(plan.tracks[0], "NA103", repaired=None, confirmed=False))
    seen: list[Observation] = []
    for track in plan.tracks:
        for n in plan.case(track.case).ladder(track.dtype):
            wrong = n > 30000
            value = (math.inf if n < 60000 else math.nan) if wrong else -1.52587890625e-05
            seen.append(observation(track.cell(n), value=value, expected=-1.52587890625e-05, zero=wrong))
            seen.append(
                observation(
                    track.cell(n, "repaired"), value=16814180.0, expected=16814180.0, operators=("numalign::sum",)
                )
            )
    lost = [o for o in seen if o.cell.track == plan.tracks[1] and o.cell.n == 16777216]
    for dead, outcome in zip(lost, (Outcome.CRASHED, Outcome.TIMEOUT), strict=True):
        died = observation(dead.cell, outcome=outcome)
        detail = "the process was ended by SIGSEGV; Fatal Python error: Segmentation fault"
        seen[seen.index(dead)] = msgspec.structs.replace(died, detail=detail)
    verdicts = [judge(plan, track, [o for o in seen if o.cell.track == track]) for track in plan.tracks]
    return Summary(Path(".numalign/20261130-095315"), plan, verdicts, seen, findings, False)


def shown(run: Summary, width: int) -> list[str]:
    out = io.StringIO()
    render(run, Console(file=out, width=width, markup=False, highlight=False), 97.0)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def right_edges(lines: list[str], what: str) -> set[int]:
    """Where ``what`` ends, in every line that holds it as a whole word."""
    return {match.end() for line in lines for match in re.finditer(rf"(?<![\w.-]){re.escape(what)}(?![\w.])", line)}


def part(lines: list[str], start: str, end: str = "") -> list[str]:
    first = next(i for i, line in enumerate(lines) if start in line)
    last = next(i for i, line in enumerate(lines) if i > first and line == end)
    return lines[first:last]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_longer_than_the_terminal(run: Summary, width: int) -> None:
    assert max(map(cell_len, shown(run, width))) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_findings_keep_their_numbers_whole_and_in_line(run: Summary, width: int) -> None:
    lines = shown(run, width)
    start = lines.index("") + 1
    findings = lines[start : lines.index("", start)]
    for n in map(grouped, SIZES.values()):
        assert right_edges(findings, n) <= right_edges(findings, "from n =")
        assert sum(n in line for line in findings) == 6
    narrow = findings[1].split()[0] == "dtype"
    for observed, expected in VALUES.values() if narrow else [VALUES["float16"]]:  # wide: of the first dtype that fails
        assert right_edges(findings, number(observed)) == right_edges(findings, "gives")
        assert right_edges(findings, number(expected)) >= right_edges(findings, "instead of")
    assert "STILL" in " ".join(findings)
    assert len({line.index("right") for line in findings if line.endswith(" right")}) == 1
    assert narrow == (width < 145)


@pytest.mark.parametrize("width", WIDTHS)
def test_before_and_after_keep_their_numbers_whole_and_in_line(run: Summary, width: int) -> None:
    for dtype in ("float16", "bfloat16"):
        table = part(shown(run, width), f"{SHORT.id}, {dtype}")
        for size in ("128 x 128", "181 x 181", "256 x 256"):
            assert right_edges(table, size) == right_edges(table, "pixels"), size
        stock = right_edges(table, "stock") if "arm" not in " ".join(table[:3]) else right_edges(table, "gives")
        assert right_edges(table, "-1.526e-05") & stock
        assert right_edges(table, "inf") == right_edges(table, "nan") == stock
        rounded = right_edges(table, grouped(16814180))
        assert right_edges(table, "once") <= rounded
        assert right_edges(table, "0.00") == right_edges(table, "ulp")


@pytest.mark.parametrize("width", WIDTHS)
def test_what_was_not_tested_keeps_its_numbers_whole(run: Summary, width: int) -> None:
    text = "\n".join(shown(run, width))
    gaps = text[text.index("not tested") :]
    assert grouped(16777216) in gaps
    for word in ("NA501", "NA503", "NA103", "backward", "SIGSEGV", "suspected"):
        assert word in gaps, word


@pytest.mark.parametrize("width", WIDTHS)
def test_commands_can_be_copied(run: Summary, width: int) -> None:
    lines = "\n".join(shown(run, width))
    for command in ("numalign scan --resume .numalign/20261130-095315", "numalign show .numalign/20261130-095315"):
        assert command in lines


def test_a_table_wider_than_the_terminal_runs_on(run: Summary) -> None:
    """At 30 columns the numbers alone have no room; none is cut for that."""
    assert shown(run, 30)[0].startswith("numalign 0")
    text = "\n".join(shown(run, 30))
    assert "…" not in text
    for n in SIZES.values():
        assert grouped(n) in text


def _list(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_command, "results_console", lambda: console)
    assert list_command.list_cases() == 0


def _explain(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numalign.cli.explain.results_console", lambda: console)
    assert explain() == 0
    for code in CODES:
        assert explain(code) == 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", [_list, _explain])
def test_lists_and_explanations_fit(
    command: Callable[[Console, pytest.MonkeyPatch], None], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    command(Console(file=out, width=width, markup=False, highlight=False), monkeypatch)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(cell_len, lines)) <= width
    assert "…" not in out.getvalue()
    if command is _list:
        text = " ".join(lines)
        for case in cases():
            ladder = case.ladder("float16")
            assert f"{ladder[0]}..{ladder[-1]}" in text or len(ladder) == 1
            assert case.id in text or f"{case.operator}/" in text
