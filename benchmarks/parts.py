"""What a part of the benchmark is: records, one after another, and the columns in which they are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from timing import Record


@dataclass(frozen=True)
class Settings:
    """Where and how much. ``scale`` is the share of the elements, and of the time on the CPU, to try things out."""

    device: torch.device
    bandwidth: float  # of a copy, bytes per second
    quick: bool = False
    scale: float = 1.0
    peers: frozenset[str] | None = None  # None for all

    def dtypes(self, *dtypes: torch.dtype) -> tuple[torch.dtype, ...]:
        return dtypes[:1] if self.quick else dtypes

    def scaled(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """(N, C) with fewer rows, (N, C, ...) with smaller sides."""
        if len(sizes) == 2:
            return (max(1, int(sizes[0] * self.scale)), sizes[1])
        factor = self.scale ** (1 / (len(sizes) - 2))
        return (*sizes[:2], *(max(1, int(n * factor)) for n in sizes[2:]))


@dataclass(frozen=True)
class Column:
    """A column of a table. The first of a table is aligned to the left."""

    title: str
    width: int
    text: Callable[[Record], str]


@dataclass(frozen=True)
class Part:
    """A table that can be asked for by name."""

    about: str
    columns: tuple[Column, ...]
    records: Callable[[Settings], Iterator[Record]]

    def heading(self) -> str:
        return "\n".join(("", self.about, self._join([c.title for c in self.columns])))

    def line(self, record: Record) -> str:
        return self._join([column.text(record) for column in self.columns])

    def _join(self, cells: list[str]) -> str:
        first, *others = zip(cells, self.columns, strict=True)
        return "  ".join(
            (first[0].ljust(first[1].width), *(cell.rjust(column.width) for cell, column in others))
        ).rstrip()


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shape_text(record: Record) -> str:
    return f"({','.join(map(str, record['shape']))})"


def number(value: float | str | None, digits: int = 2) -> str:
    """A number, "-" for none, and the text of one that is not finite."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,.{digits}f}".replace(",", " ")
