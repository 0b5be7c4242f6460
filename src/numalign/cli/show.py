"""``numalign show``: a stored run again, in any format."""

from __future__ import annotations

from pathlib import Path

from numalign.cli.exits import of_run
from numalign.cli.options import Switch
from numalign.cli.output import OutputFormat
from numalign.cli.output import show as show_summary
from numalign.cli.runs import last_folder, summarise
from numalign.errors import UsageError
from numalign.evidence.store import Store
from numalign.scan.board import verdicts_of


def show(
    run: Path | None = None,
    /,
    *,
    last: Switch = False,
    output_format: OutputFormat = OutputFormat.TABLE,
) -> int:
    """Show a stored run again. Needs no torch and runs nothing. The exit status is that of the run.

    Parameters
    ----------
    run
        Folder of the run; without it, the newest under .numalign.
    last
        The newest run under .numalign, said aloud.
    output_format
        table, json or jsonl.
    """
    if run is not None and last:
        raise UsageError(f"got both {run} and --last; wanted one of them")
    folder = run or last_folder()
    with Store.open(folder) as store:
        summary = summarise(store, verdicts_of(store), store.path.parent)
    show_summary(summary, output_format)
    return of_run(summary)
