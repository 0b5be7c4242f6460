"""What the scan asks of a runner."""

from __future__ import annotations

from typing import Protocol

from numalign.evidence.records import Cell, Observation


class Runner(Protocol):
    """Runs cells somewhere. A cell that kills its worker costs that cell alone."""

    @property
    def slots(self) -> int:
        """How many cells can run at once."""
        ...

    def submit(self, cell: Cell) -> None:
        """Take a cell; returns at once."""
        ...

    def next(self) -> list[Observation]:
        """Wait until at least one submitted cell has ended, well or badly, and give all that have."""
        ...

    def close(self) -> None:
        """Stop all workers, whatever they are at."""
        ...
