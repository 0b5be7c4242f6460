"""The terminal: what is wrong, from which size on, why, and what to do next, on the first screen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from numalign.evidence.records import Arm, Direction, Finding, Observation, Outcome, Result
from numalign.report.layout import INDENT, Column, Group, Row, fits, print_groups, print_parts, print_table
from numalign.report.summary import Summary
from numalign.scan.judge import DEATH_CODES, Status

THIN_SPACE = "\N{NARROW NO-BREAK SPACE}"

DTYPE_ORDER = ("float16", "bfloat16", "float32", "float64")

MOST_GAPS = 12
"""Rows of cells without numbers that are shown; the rest is counted."""


def render(summary: Summary, console: Console, seconds: float | None = None) -> None:
    """Print a run.

    Args:
        summary: The run.
        console: Where to print.
        seconds: How long this call took, where it ran anything.
    """
    print_parts(console, _headline(summary, seconds), " · ", style="bold")
    console.print()
    if summary.confirmed:
        _print_findings(console, summary)
        console.print()
    for case, dtype in _repaired_cases(summary):
        _print_comparison(console, summary, case, dtype)
        console.print()
    if summary.incomplete or summary.unconfirmed:
        _print_gaps(console, summary)
        console.print()
    console.print(_counts(summary))
    console.print(_outcome(summary))
    if not summary.complete:
        print_parts(console, ["INCOMPLETE, go on with:", f"numalign scan --resume {summary.folder}"], " ")
    print_parts(console, _next_steps(summary), " · ")


def _headline(summary: Summary, seconds: float | None) -> list[str]:
    environment = summary.plan.environment
    devices = ", ".join(dict.fromkeys(track.device for track in summary.plan.tracks))
    parts = [
        f"numalign {environment.numalign}",
        f"torch {environment.torch}",
        f"{devices}, {environment.threads} threads",
        f"{grouped(len(summary.observations))} cells",
        f"seed {summary.plan.seed}",
    ]
    if seconds is not None:
        parts.append(f"done in {seconds:.0f} s")
    return parts


def _print_findings(console: Console, summary: Summary) -> None:
    """A row a case, direction and fault, the dtypes side by side, each with its smallest failing size; where the terminal is
    narrow, a heading a case, direction and fault, and a row a dtype."""
    dtypes = [name for name in DTYPE_ORDER if any(finding.track.dtype == name for finding in summary.confirmed)]
    devices = len({track.device for track in summary.plan.tracks}) > 1
    groups: dict[tuple[str, str, str, str], dict[str, Finding]] = {}
    for finding in summary.confirmed:
        track = finding.track
        groups.setdefault((track.case, track.direction, finding.code, track.device), {})[track.dtype] = finding
    columns = [Column("operator", words=True), Column("direction"), Column("fault", words=True)]
    columns += [Column("device")] if devices else []
    columns += [Column(f"{dtype}\nfrom n =", justify="right") for dtype in dtypes]
    columns += [Column("unit", words=True), *_VALUES]
    columns += [_UNDER_REPAIR] if summary.plan.repaired else []
    rows, previous = [], ""
    for (case, direction, _, device), group in groups.items():
        first = next(group[dtype] for dtype in dtypes if dtype in group)
        row: list[str | Text] = ["" if case == previous else case, direction, _fault(first)]
        row += [device] if devices else []
        row += [grouped(group[dtype].first_failing_n) if dtype in group else "" for dtype in dtypes]
        row += [summary.plan.case(case).unit, number(first.observed), number(first.expected)]
        row += [_under_repair(group.values())] if summary.plan.repaired else []
        rows.append(row)
        previous = case
    if fits(columns, rows, console.width):
        print_table(console, columns, rows)
        return
    columns = [Column("dtype"), Column("from n =", justify="right"), *_VALUES]
    columns += [_UNDER_REPAIR] if summary.plan.repaired else []
    stacked = []
    for (case, direction, _, device), group in groups.items():
        ordered = [group[dtype] for dtype in dtypes if dtype in group]
        where = f"{case} ({summary.plan.case(case).unit}), {direction}{f', {device}' if devices else ''}: "
        stacked.append(
            Group(
                Text.assemble(where, _fault(ordered[0])),
                [_dtype_row(finding, summary.plan.repaired) for finding in ordered],
            )
        )
    print_groups(console, columns, stacked)


_VALUES = (Column("gives", justify="right"), Column("instead of", justify="right"))
_UNDER_REPAIR = Column("under\nrepair()", words=True)


def _dtype_row(finding: Finding, repaired: bool) -> Row:
    row: list[str | Text] = [finding.track.dtype, grouped(finding.first_failing_n)]
    row += [number(finding.observed), number(finding.expected)]
    return [*row, _under_repair([finding])] if repaired else row


def _fault(finding: Finding) -> Text:
    return Text(f"{finding.code} {finding.summary}", style="red")


def _under_repair(findings: Iterable[Finding]) -> Text:
    said = {finding.repaired for finding in findings}
    if False in said:
        return Text("STILL WRONG", style="bold red")
    return Text("right", style="green") if True in said else Text("-")


def _repaired_cases(summary: Summary) -> list[tuple[str, str]]:
    """Every case and dtype that is wrong as PyTorch is and has a repaired arm."""
    wrong = (f for f in summary.confirmed if f.repaired is not None)
    return list(dict.fromkeys((finding.track.case, finding.track.dtype) for finding in wrong))


def _print_comparison(console: Console, summary: Summary, case: str, dtype: str) -> None:
    """Before and after, side by side; where the terminal is narrow, one under the other."""
    seen = {
        (o.cell.n, o.cell.arm, o.cell.direction): o
        for o in summary.observations
        if (o.cell.case, o.cell.dtype) == (case, dtype)
    }
    ladder = set(summary.plan.case(case).ladder(dtype))
    both = sorted({n for n, arm, _ in seen if arm == "repaired" and n in ladder})
    unit = summary.plan.case(case).unit
    beside = [_number_column(unit), *_arm_columns("stock"), *_arm_columns("repaired"), *_JUDGED]
    rows: list[Row] = []
    for n in both:
        stock, repaired = (_arm(seen, n, arm) for arm in ARMS)
        rows.append([sized(n, unit), *stock, *repaired, *_judged(seen.get((n, "repaired", "forward")))])
    console.print(Text(f"{case}, {dtype}", style="bold"))
    if fits(beside, rows, console.width - INDENT):
        print_table(console, beside, rows, indent=INDENT)
        return
    under = [_number_column(unit), Column("arm"), *_arm_columns("gives"), *_JUDGED]
    rows = [
        [sized(n, unit) if arm == "stock" else "", arm, *_arm(seen, n, arm), *_judged(seen.get((n, arm, "forward")))]
        for n in both
        for arm in ARMS
    ]
    print_table(console, under, rows, indent=INDENT)


ARMS: tuple[Arm, ...] = ("stock", "repaired")


def _number_column(head: str) -> Column:
    return Column(head, justify="right")


def _arm_columns(head: str) -> tuple[Column, Column]:
    return _number_column(head), Column("gradient")


_JUDGED = (_number_column("fp64,\nrounded once"), _number_column("error,\nulp"))


def _arm(seen: Mapping[tuple[int, Arm, Direction], Observation], n: int, arm: Arm) -> Row:
    return _forward_text(seen.get((n, arm, "forward"))), _gradient_text(seen.get((n, arm, "backward")))


def _judged(observation: Observation | None) -> Row:
    """What is right, and how far from it the result is; nothing of that where it is not finite."""
    if observation is None or not observation.results:
        return "", ""
    result = observation.results[0]
    return number(result.rounded), "" if result.infinite or result.nan else f"{result.error_ulp:.2f}"


def _forward_text(observation: Observation | None) -> Text:
    if observation is None:
        return Text("")
    if observation.outcome is not Outcome.RAN:
        return Text(observation.outcome.value, style="yellow")
    result = observation.results[0]
    style = "bold red" if result.infinite or result.nan else ""
    return Text(number(result.observed), style=style)


def _gradient_text(observation: Observation | None) -> Text:
    if observation is None:
        return Text("")
    if observation.outcome is not Outcome.RAN:
        return Text(observation.outcome.value, style="yellow")
    return max((_gradient_word(result) for result in observation.results), key=lambda text: text.style == "bold red")


def _gradient_word(result: Result) -> Text:
    for shows, word in (
        (result.nan, "nan"),
        (result.infinite, "inf"),
        (result.all_zero, "all zero"),
        (result.flushed, "flushed"),
    ):
        if shows:
            return Text(word, style="bold red")
    return Text(
        "ok" if result.excess <= 1 else f"{result.error_ulp:.2g} ulp", style="green" if result.excess <= 1 else ""
    )


def _print_gaps(console: Console, summary: Summary) -> None:
    gaps = summary.incomplete
    rows = []
    for observation in gaps[:MOST_GAPS]:
        cell, said = observation.cell, f"{observation.outcome.value}: {observation.detail}"
        rows.append(
            (cell.case, cell.direction, cell.dtype, cell.arm, cell.n, DEATH_CODES[observation.outcome], said),
        )
    for finding in summary.unconfirmed:
        track, said = finding.track, f"suspected, but {finding.reproducer} did not confirm it"
        rows.append((track.case, track.direction, track.dtype, "stock", finding.first_failing_n, finding.code, said))
    tail = [Column("n", justify="right"), Column("code"), Column("what happened", words=True)]
    columns = [Column("not tested", words=True), Column("direction"), Column("dtype"), Column("arm"), *tail]
    ends = [(grouped(n), code, Text(said, style="yellow")) for *_, n, code, said in rows]
    table = [(*row[:4], *end) for row, end in zip(rows, ends, strict=True)]
    if fits(columns, table, console.width):
        print_table(console, columns, table)
    else:
        groups: dict[str, list[Row]] = {}
        for row, end in zip(rows, ends, strict=True):
            groups.setdefault(f"not tested: {', '.join(row[:4])}", []).append(end)
        print_groups(console, tail, [Group(heading, ends) for heading, ends in groups.items()])
    if len(gaps) > MOST_GAPS:
        console.print(f"and {len(gaps) - MOST_GAPS} more cells that were not tested")


def _counts(summary: Summary) -> Text:
    words = {
        Status.FAULT: "faulty",
        Status.CLEAN: "clean",
        Status.FORMAT_LIMIT: "clean up to the format's limit (NA901)",
        Status.UNSUPPORTED: "without a kernel (NA902)",
        Status.INCOMPLETE: "not tested to the end",
        Status.PENDING: "not run yet",
    }
    counts = [(len(summary.tracks(status)), word) for status, word in words.items()]
    return Text(
        f"{len(summary.plan.tracks)} tracks: " + ", ".join(f"{count} {word}" for count, word in counts if count)
    )


def _outcome(summary: Summary) -> Text:
    faults = len(summary.confirmed)
    text = f"{faults} fault{'' if faults == 1 else 's'}{', each confirmed by its reproducer' if faults else ''}"
    covered = sum(finding.repaired is not None for finding in summary.confirmed)
    if covered:
        text += f"; {covered} in operators that repair() covers, {len(summary.still_wrong)} of them still wrong there"
    return Text(text)


def _next_steps(summary: Summary) -> list[str]:
    parts = [
        f"{summary.folder}{' (reproducers, drafts)' if summary.confirmed else ''}",
        f"numalign show {summary.folder}",
    ]
    if summary.confirmed:
        parts.append(f"numalign explain {summary.confirmed[0].code}")
    return parts


def grouped(n: int) -> str:
    """A size with its digits in groups of three."""
    return f"{n:,}".replace(",", THIN_SPACE)


def sized(n: int, unit: str) -> str:
    """A size as its unit is thought of: pixels of a square as h x w."""
    side = math.isqrt(n)
    return f"{side} x {side}" if unit == "pixels" and side * side == n else grouped(n)


def number(text: str) -> str:
    """A value to four significant digits, more where it is a whole number."""
    value = float(text)
    if value.is_integer() and abs(value) < 1e9:
        return grouped(int(value)) if math.copysign(1, value) > 0 or value else "-0"
    return f"{value:.4g}"
