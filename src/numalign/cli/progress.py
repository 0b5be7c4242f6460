"""Progress on standard error: one live line on a terminal, a plain line every ten seconds elsewhere, nothing when
quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from numalign.scan.board import Progress

PLAIN_INTERVAL = 10.0
"""Seconds between lines off a terminal."""


class Reporter(Protocol):
    """What a scan tells of its progress."""

    def __call__(self, progress: Progress) -> None:
        """Take in one step."""
        ...


@contextmanager
def reporter(console: Console, *, quiet: bool) -> Iterator[Reporter]:
    """A reporter that suits the console."""
    if quiet:
        yield lambda progress: None
    elif console.is_terminal:
        with _bar(console) as bar:
            yield _Live(bar)
    else:
        yield _Plain(console)


def _bar(console: Console) -> Bar:
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[faults]} faulty tracks"),
        console=console,
        transient=True,
    )


class _Live:
    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._stage = ""
        self._task: TaskID | None = None

    def __call__(self, progress: Progress) -> None:
        if self._task is None or progress.stage != self._stage:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._stage = progress.stage
            self._task = self._bar.add_task(progress.stage, faults=progress.faults)
        self._bar.update(self._task, completed=progress.done, total=progress.known, faults=progress.faults)


class _Plain:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._due = self._began + PLAIN_INTERVAL

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + PLAIN_INTERVAL
        counts = f"{progress.done} of {progress.known} so far, {progress.faults} faulty tracks"
        self._console.print(f"{now - self._began:5.0f} s  {progress.stage}: {counts}")
