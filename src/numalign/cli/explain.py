"""``numalign explain``: what a fault code means and what to do about it."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from numalign.cli.exits import Exit
from numalign.cli.output import OutputFormat, results_console, write_rows
from numalign.errors import UsageError
from numalign.evidence.codes import CODES
from numalign.scan.select import near


def explain(code: str | None = None, /, *, output_format: OutputFormat = OutputFormat.TABLE) -> int:
    """Explain a fault code: cause, consequence, remedy, an example. Without a code, list them all.

    Parameters
    ----------
    code
        A code such as NA101.
    output_format
        table, json or jsonl.
    """
    if code is not None and code.upper() not in CODES:
        raise UsageError(f"unknown code {code!r}{near(code.upper(), CODES)}; `numalign explain` lists all")
    chosen = [CODES[code.upper()]] if code else list(CODES.values())
    if output_format is not OutputFormat.TABLE:
        write_rows([dict(entry._asdict()) for entry in chosen], "codes", output_format)
        return Exit.CLEAN
    console = results_console()
    if code is None:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for column in ("code", "fault"):
            table.add_column(column)
        for entry in chosen:
            table.add_row(entry.code, entry.title)
        console.print(table)
        console.print("\nnumalign explain NA101")
        return Exit.CLEAN
    entry = chosen[0]
    console.print(Text(f"{entry.code}  {entry.title}", style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 1, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold", max_width=100)
    for name in ("cause", "consequence", "remedy", "example"):
        table.add_row(name, getattr(entry, name))
    console.print(table)
    return Exit.CLEAN
