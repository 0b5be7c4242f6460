"""The terminal: what is wrong, from which size on, why, and what to do next, on the first screen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from numalign.evidence.records import Arm, Direction, Finding, Observation, Outcome, Result
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
    console.print(_headline(summary, seconds))
    console.print()
    if summary.confirmed:
        console.print(_findings(summary))
        console.print()
    for part in _side_by_side(summary):
        console.print(part)
        console.print()
    if summary.incomplete or summary.unconfirmed:
        console.print(_gaps(summary))
        console.print()
    console.print(_counts(summary))
    console.print(_outcome(summary), soft_wrap=True)
    console.print(_next_steps(summary), soft_wrap=True)


def _headline(summary: Summary, seconds: float | None) -> Text:
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
    return Text(" · ".join(parts), style="bold")


def _findings(summary: Summary) -> RenderableType:
    """A row a case, direction and fault; the dtypes side by side, each with its smallest failing size."""
    dtypes = [name for name in DTYPE_ORDER if any(finding.track.dtype == name for finding in summary.confirmed)]
    devices = len({track.device for track in summary.plan.tracks}) > 1
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    # Where the terminal is narrow, words wrap; numbers never do.
    table.add_column("operator", overflow="fold")
    table.add_column("direction", no_wrap=True)
    table.add_column("fault")
    if devices:
        table.add_column("device", no_wrap=True)
    for dtype in dtypes:
        table.add_column(f"{dtype}\nfrom n =", justify="right", no_wrap=True)
    for head, justify in (("unit", "left"), ("gives", "right"), ("instead of", "right")):
        table.add_column(head, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    if summary.plan.repaired:
        table.add_column("under\nrepair()", no_wrap=True)
    groups: dict[tuple[str, str, str, str], dict[str, Finding]] = {}
    for finding in summary.confirmed:
        track = finding.track
        groups.setdefault((track.case, track.direction, finding.code, track.device), {})[track.dtype] = finding
    previous = ""
    for (case, direction, code, device), group in groups.items():
        first = next(group[dtype] for dtype in dtypes if dtype in group)
        row: list[str | Text] = [
            "" if case == previous else case,
            direction,
            Text(f"{code} {first.summary}", style="red"),
        ]
        row += [device] if devices else []
        row += [grouped(group[dtype].first_failing_n) if dtype in group else "" for dtype in dtypes]
        row += [summary.plan.case(case).unit, number(first.observed), number(first.expected)]
        if summary.plan.repaired:
            row.append(_under_repair(group.values()))
        table.add_row(*row)
        previous = case
    return table


def _under_repair(findings: Iterable[Finding]) -> Text:
    said = {finding.repaired for finding in findings}
    if False in said:
        return Text("STILL WRONG", style="bold red")
    return Text("right", style="green") if True in said else Text("-")


def _side_by_side(summary: Summary) -> Iterator[RenderableType]:
    """Before and after, for every case and dtype that is wrong as PyTorch is and has a repaired arm."""
    wrong = dict.fromkeys(
        (finding.track.case, finding.track.dtype) for finding in summary.confirmed if finding.repaired is not None
    )
    for case, dtype in wrong:
        seen = {
            (o.cell.n, o.cell.arm, o.cell.direction): o
            for o in summary.observations
            if (o.cell.case, o.cell.dtype) == (case, dtype)
        }
        ladder = set(summary.plan.case(case).ladder(dtype))
        both = sorted({n for n, arm, _ in seen if arm == "repaired" and n in ladder})
        if both:
            yield _comparison(summary, case, dtype, both, seen)


def _comparison(
    summary: Summary, case: str, dtype: str, ladder: Sequence[int], seen: dict[tuple[int, Arm, Direction], Observation]
) -> RenderableType:
    unit = summary.plan.case(case).unit
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for head in (unit, "stock", "gradient", "repaired", "gradient", "fp64, rounded once", "error, ulp"):
        table.add_column(head, justify="left" if head == "gradient" else "right", no_wrap=True)
    for n in ladder:
        row: list[str | Text] = [sized(n, unit)]
        arms: tuple[Arm, ...] = ("stock", "repaired")
        for arm in arms:
            row += [_forward_text(seen.get((n, arm, "forward"))), _gradient_text(seen.get((n, arm, "backward")))]
        after = seen.get((n, "repaired", "forward"))
        row.append(number(after.results[0].rounded) if after and after.results else "")
        row.append(f"{after.results[0].error_ulp:.2f}" if after and after.results else "")
        table.add_row(*row)
    return Group(Text(f"{case}, {dtype}", style="bold"), Padding(table, (0, 0, 0, 2)))


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


def _gaps(summary: Summary) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("not tested", "direction", "dtype", "arm"):
        table.add_column(column, no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("code", no_wrap=True)
    table.add_column("what happened", overflow="fold")
    gaps = summary.incomplete
    for observation in gaps[:MOST_GAPS]:
        cell = observation.cell
        what = Text(f"{observation.outcome.value}: {observation.detail}", style="yellow")
        table.add_row(
            cell.case, cell.direction, cell.dtype, cell.arm, grouped(cell.n), DEATH_CODES[observation.outcome], what
        )
    if len(gaps) > MOST_GAPS:
        table.add_row(f"and {len(gaps) - MOST_GAPS} more")
    for finding in summary.unconfirmed:
        track = finding.track
        what = Text(f"suspected {finding.code}, but {finding.reproducer} did not confirm it", style="yellow")
        table.add_row(
            track.case, track.direction, track.dtype, "stock", grouped(finding.first_failing_n), finding.code, what
        )
    return table


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
    if not summary.complete:
        text += f"; INCOMPLETE, go on with: numalign scan --resume {summary.folder}"
    return Text(text)


def _next_steps(summary: Summary) -> Text:
    parts = [
        f"{summary.folder}{' (reproducers, drafts)' if summary.confirmed else ''}",
        f"numalign show {summary.folder}",
    ]
    if summary.confirmed:
        parts.append(f"numalign explain {summary.confirmed[0].code}")
    return Text(" · ".join(parts))


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
