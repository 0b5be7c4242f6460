"""``numalign scan``: measure operators against float64, find where they fail, prove it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from numalign.cli.exits import Exit, of_run
from numalign.cli.options import Names, Number, Switch, Whole
from numalign.cli.output import OutputFormat, messages_console, show
from numalign.cli.progress import reporter
from numalign.cli.runs import concluded, new_folder, summarise
from numalign.errors import UsageError
from numalign.evidence.store import Store
from numalign.scan.select import Selection

DEFAULT = Selection()

JOBS_PER_CORE = 4
"""More worker processes than this wait for one another, and for memory, which they share in equal parts."""


def scan(
    *,
    select: Names = DEFAULT.select,
    ignore: Names = DEFAULT.ignore,
    dtype: Names = DEFAULT.dtype,
    device: Names = DEFAULT.device,
    direction: Names = DEFAULT.direction,
    max_size: Whole = DEFAULT.max_size,
    repaired: Switch = DEFAULT.repaired,
    seed: Whole = DEFAULT.seed,
    timeout: Number = DEFAULT.timeout,
    threads: Whole = DEFAULT.threads,
    imports: Annotated[Names, Parameter(name="--import")] = DEFAULT.imports,
    jobs: Whole | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    output_format: OutputFormat = OutputFormat.TABLE,
    quiet: Annotated[Switch, Parameter(name=("--quiet", "-q"))] = False,
) -> int:
    """Measure operators against float64, find the smallest size at which each fails, and prove it with a reproducer.

    Exit status: 0 clean, 1 findings, 2 usage, 3 something could not be tested, 5 nothing selected.

    Parameters
    ----------
    select
        Operators, cases or families to scan; patterns such as 'index_*'. Commas, or given again.
    ignore
        Operators, cases or families to leave out. Commas, or given again.
    dtype
        float16, bfloat16, float32 or float64; without it, those each case is meant for.
    device
        Where to run: cpu, cuda, xpu:1.
    direction
        forward or backward; without it, both.
    max_size
        Largest size to run.
    repaired
        Run each cell that a repaired operator takes part in a second time under numalign.repair(), and show both.
    seed
        Decides all random inputs.
    timeout
        Seconds that one cell may take. The first cell of a worker also warms PyTorch up, which takes some two more.
    threads
        Threads that an operator on the CPU may use.
    imports
        Module to import in every worker before the first cell, as an out-of-tree backend needs. Commas, or given again.
    jobs
        Worker processes; without it, the number of cores.
    out
        Folder for the run; without it, a new one under .numalign.
    resume
        Folder of a run to go on with.
    output_format
        table, json or jsonl.
    quiet
        No progress on standard error.
    """
    began = time.perf_counter()
    selection = Selection(
        select=select,
        ignore=ignore,
        dtype=dtype,
        device=device,
        direction=direction,
        max_size=max_size,
        repaired=repaired,
        seed=seed,
        timeout=timeout,
        threads=threads,
        imports=imports,
    )
    most = JOBS_PER_CORE * (os.cpu_count() or 1)
    if jobs is not None and not 1 <= jobs <= most:
        raise UsageError(f"--jobs is {jobs}; wanted a whole number from 1 to {most}, {JOBS_PER_CORE} a core")
    store = _new(selection, out) if resume is None else _old(selection, out, resume)
    if store is None:
        messages_console().print("numalign: nothing to run: the options leave no case; `numalign list` shows them all")
        return Exit.NOTHING
    with store:
        return _run(store, jobs or os.cpu_count() or 1, output_format, quiet=quiet, began=began)


def _new(selection: Selection, out: Path | None) -> Store | None:
    """The store of a new run; None where nothing is selected."""
    from numalign.scan.plan import make_plan

    plan = make_plan(selection)
    return Store.create(out or new_folder(), plan) if plan.tracks else None


def _old(selection: Selection, out: Path | None, folder: Path) -> Store:
    """The store of a run to go on with, on what it was made with."""
    from numalign.scan.plan import check_resumable

    given = [
        field.name for field in fields(Selection) if getattr(selection, field.name) != getattr(DEFAULT, field.name)
    ]
    given += ["out"] if out is not None else []
    if given:
        options = ", ".join(f"--{name.replace('_', '-').replace('imports', 'import')}" for name in given)
        raise UsageError(
            f"--resume goes on with the plan stored in {folder}, which {options} cannot change; start a new run"
        )
    store = Store.open(folder, write=True)
    check_resumable(store.plan())
    return store


def _run(store: Store, jobs: int, output_format: OutputFormat, *, quiet: bool, began: float) -> int:
    from numalign.scan.run import conclude, scan
    from numalign.scan.runners.local import LocalRunner

    folder = store.path.parent
    messages = messages_console()
    runner = LocalRunner(store.plan(), jobs)
    try:
        with reporter(messages, quiet=quiet) as report:
            verdicts = scan(store, runner, report)
            if not concluded(store, verdicts):
                conclude(store, verdicts, folder, jobs, report)
    except KeyboardInterrupt:
        for again in (signal.SIGINT, signal.SIGTERM):  # what has to be said and closed takes a moment
            signal.signal(again, signal.SIG_IGN)
        stored = len(store.observations())
        messages.print(f"numalign: interrupted, {stored} cells are stored; go on with: numalign scan --resume {folder}")
        return Exit.INCOMPLETE
    finally:
        runner.close()
    summary = summarise(store, verdicts, folder)
    show(summary, output_format, time.perf_counter() - began)
    return of_run(summary)
