"""``numalign list``: the operators and cases that a scan knows."""

from __future__ import annotations

from numalign.cli.exits import Exit
from numalign.cli.options import Names
from numalign.cli.output import OutputFormat, results_console, write_rows
from numalign.evidence.records import Case
from numalign.report.layout import Column, Group, fits, print_groups, print_parts, print_table


def list_cases(
    *,
    select: Names = (),
    output_format: OutputFormat = OutputFormat.TABLE,
) -> int:
    """List operators and cases: what each makes, in which dtypes, directions and sizes.

    Parameters
    ----------
    select
        Operators, cases or families; patterns such as 'index_*'. Commas, or given again.
    output_format
        table, json or jsonl.
    """
    from numalign.catalogue import cases
    from numalign.scan.select import check_pattern, selected

    known = cases()
    for pattern in select:
        check_pattern(pattern, known)
    chosen = [case for case in known if selected(case, select or ("*",))]
    if output_format is not OutputFormat.TABLE:
        write_rows([_row(case) for case in chosen], "cases", output_format)
        return Exit.CLEAN
    console = results_console()
    columns = [
        Column("directions", words=True),
        Column("dtypes", words=True),
        Column("sizes", justify="right"),
        Column("unit", words=True),
    ]
    rows = [(case, _cells(case), case.why.partition(". ")[0]) for case in chosen]
    wide = [Column("family", words=True), Column("case", words=True), *columns, Column("what it shows", words=True)]
    table = [(case.family, case.id, *cells, why) for case, cells, why in rows]
    if fits(wide, table, console.width):
        print_table(console, wide, table)
    else:
        print_groups(
            console,
            columns,
            [Group(f"{case.id} ({case.family}): {why.rstrip('.')}", [cells]) for case, cells, why in rows],
        )
    operators = len({case.operator for case in chosen})
    console.print()
    counts = f"{operators} operators, {len(chosen)} cases"
    print_parts(console, [counts, f"numalign scan --select {chosen[0].operator}"], " · ")
    return Exit.CLEAN


def _cells(case: Case) -> tuple[str, str, str, str]:
    ladder = case.ladder("float16")
    span = f"{ladder[0]}..{ladder[-1]}" if len(ladder) > 1 else str(ladder[0])
    return ", ".join(case.directions), ", ".join(case.dtypes), span, case.unit


def _row(case: Case) -> dict[str, object]:
    return {
        "operator": case.operator,
        "case": case.id,
        "family": case.family,
        "directions": case.directions,
        "dtypes": case.dtypes,
        "sizes": case.sizes,
        "unit": case.unit,
        "why": case.why,
        "inputs": case.inputs,
        "call": case.call,
        "reference": case.reference or case.call,
    }
