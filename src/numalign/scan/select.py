"""Selection: what a user asks to have scanned, and patterns of case ids, operators and families."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from numalign.errors import UsageError
from numalign.evidence.records import Case


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What to scan, and how. The defaults scan the whole catalogue on the CPU.

    Attributes:
        select: Operators, cases or families to scan; patterns such as 'index_*'. Empty: all.
        ignore: Operators, cases or families to leave out.
        dtype: float16, bfloat16, float32 or float64. Empty: those each case is meant for.
        device: Where to run: cpu, cuda, xpu:1.
        direction: forward or backward. Empty: both.
        max_size: Largest size to run.
        repaired: Run each cell that a repaired operator takes part in a second time under repair().
        seed: Decides all random inputs.
        timeout: Seconds that one cell may take.
        threads: Threads that an operator on the CPU may use; a fixed number makes runs comparable.
        imports: Modules to import in every worker before the first cell, as an out-of-tree backend needs.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    device: tuple[str, ...] = ("cpu",)
    direction: tuple[str, ...] = ()
    max_size: int = 1 << 31
    repaired: bool = False
    seed: int = 0
    timeout: float = 60.0
    threads: int = 2
    imports: tuple[str, ...] = ()


def selected(case: Case, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns names the case, its operator or its family."""
    names = (case.id, case.operator, case.family)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def check_pattern(pattern: str, known: Sequence[Case]) -> None:
    """Make sure that ``pattern`` matches something.

    Raises:
        UsageError: If it does not; the message names near matches.
    """
    if not any(selected(case, (pattern,)) for case in known):
        names = sorted({name for case in known for name in (case.operator, case.family)})
        raise UsageError(f"no operator matches {pattern!r}{near(pattern, names)}; `numalign list` shows them all")


def near(name: str, known: Iterable[str]) -> str:
    """A question that names what is near to ``name``; empty where nothing is."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f", did you mean {' or '.join(matches)}?" if matches else ""
