"""Where runs lie, and how a stored one is read back."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from numalign.errors import StoreError
from numalign.evidence.store import FILE_NAME, Store
from numalign.report.summary import Summary
from numalign.scan.judge import Verdict

HOME = Path(".numalign")
"""Folder of all runs that were not given a folder of their own."""


def new_folder() -> Path:
    """A folder for a new run, named for the time in UTC, so that names sort by age."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    folder, again = HOME / stamp, 1
    while folder.exists():
        again += 1
        folder = HOME / f"{stamp}-{again}"
    return folder


def last_folder() -> Path:
    """The newest run.

    Raises:
        StoreError: If there is none here.
    """
    runs = sorted(store.parent for store in HOME.glob(f"*/{FILE_NAME}"))
    if not runs:
        raise StoreError(
            f"no run in {HOME.resolve()}; `numalign scan` makes one, or name the folder that --out was given"
        )
    return runs[-1]


def concluded(store: Store, verdicts: list[Verdict]) -> bool:
    """Whether every suspicion has been put to its reproducer."""
    proved = {(finding.track, finding.code) for finding in store.findings()}
    return {(s.track, s.code) for verdict in verdicts for s in verdict.suspicions} <= proved


def summarise(store: Store, verdicts: list[Verdict], folder: Path) -> Summary:
    """The summary of a run as it stands in its store. It is complete once nothing waits to be run or proved."""
    complete = concluded(store, verdicts) and not any(verdict.waiting for verdict in verdicts)
    return Summary(folder, store.plan(), verdicts, store.observations(), store.findings(), complete)
