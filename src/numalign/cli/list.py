"""``numalign list``: the operators and cases that a scan knows."""

from __future__ import annotations

from rich.table import Table

from numalign.cli.exits import Exit
from numalign.cli.options import Names
from numalign.cli.output import OutputFormat, results_console, write_rows
from numalign.evidence.records import Case


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
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("family", "case", "directions", "dtypes"):
        table.add_column(column, no_wrap=True)
    table.add_column("sizes", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("what it shows", overflow="fold")
    for case in chosen:
        ladder = case.ladder("float16")
        span = f"{ladder[0]}..{ladder[-1]}" if len(ladder) > 1 else str(ladder[0])
        table.add_row(
            case.family,
            case.id,
            ", ".join(case.directions),
            ", ".join(case.dtypes),
            span,
            case.unit,
            case.why.partition(". ")[0],
        )
    console = results_console()
    console.print(table)
    operators = len({case.operator for case in chosen})
    console.print(f"\n{operators} operators, {len(chosen)} cases · numalign scan --select {chosen[0].operator}")
    return Exit.CLEAN


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
