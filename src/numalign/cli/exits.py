"""Exit codes of every command, in one place."""

from __future__ import annotations

from enum import IntEnum

from numalign.report.summary import Summary


class Exit(IntEnum):
    """What a command ends with. Never ``CLEAN`` when something was left untested."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    INCOMPLETE = 3
    NOTHING = 5
    BUG = 101


def of_run(summary: Summary) -> Exit:
    """The exit code of a run: a gap outweighs a finding, because it can hide more of them."""
    if summary.incomplete or summary.unconfirmed or not summary.complete:
        return Exit.INCOMPLETE
    return Exit.FINDINGS if summary.confirmed else Exit.CLEAN
