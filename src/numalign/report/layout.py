"""Tables that stay legible on any terminal: words wrap; numbers and names never do, and nothing is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

LEAST_WORDS = 20
"""Width below which a column of words becomes a tower of single ones."""

LONGEST_WORD = 36
"""A word beyond this, such as a path, is broken wherever the line ends."""

INDENT = 2
"""Spaces before the rows under a heading."""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        head: Its head; line breaks are kept.
        words: Whether it holds words, which may wrap, rather than numbers and names.
        justify: To which side.
    """

    head: str
    words: bool = False
    justify: Literal["left", "right"] = "left"


Row = Sequence[str | Text]


class Group(NamedTuple):
    """Rows with a heading in common, where a terminal is too narrow to say it in each of them."""

    heading: str | Text
    rows: Sequence[Row]


def fits(columns: Sequence[Column], rows: Sequence[Row], width: int) -> bool:
    """Whether a table of these columns is legible in ``width``."""
    return sum(_least(columns, rows)) + _gaps(columns, 2) <= width


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Row], indent: int = 0) -> None:
    """Print a table under its heads."""
    _print(console, columns, rows, _fit(columns, rows, console.width - indent), indent, heads=True)


def print_groups(console: Console, columns: Sequence[Column], groups: Sequence[Group]) -> None:
    """Print the heads once, then each group under its heading, all columns in line."""
    fit = _fit(columns, [row for group in groups for row in group.rows], console.width - INDENT)
    _print(console, columns, [], fit, INDENT, heads=True)
    for group in groups:
        console.print(group.heading)
        _print(console, columns, group.rows, fit, INDENT, heads=False)


def print_parts(console: Console, parts: Iterable[str], mark: str, style: str = "") -> None:
    """Print parts with ``mark`` between them, as many on a line as there is room for. None is broken, whatever its length."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(f"{lines[-1]}{mark}{part}") <= console.width:
            lines[-1] += f"{mark}{part}"
        else:
            lines.append(part)
    for line in lines:
        console.print(Text(line, style=style), no_wrap=True, overflow="ignore", crop=False)


class _Fit(NamedTuple):
    widths: list[int]
    gap: int


class _Whole(NamedTuple):
    """A table that is rendered in the width it needs, even where the terminal is narrower."""

    table: Padding
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.table, options.update_width(max(self.width, options.max_width)))


def _print(
    console: Console, columns: Sequence[Column], rows: Sequence[Row], fit: _Fit, indent: int, *, heads: bool
) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, fit.gap, 0, 0), show_header=heads)
    for column, width in zip(columns, fit.widths, strict=True):
        table.add_column(
            column.head, justify=column.justify, width=width, no_wrap=not column.words, overflow="fold", vertical="top"
        )
    for row in rows:
        table.add_row(*(_broken(cell, width) for cell, width in zip(row, fit.widths, strict=True)))
    needed = sum(fit.widths) + _gaps(columns, fit.gap) + indent
    console.print(_Whole(Padding(table, (0, 0, 0, indent), expand=False), needed), crop=False)


def _fit(columns: Sequence[Column], rows: Sequence[Row], room: int) -> _Fit:
    """Numbers as wide as they are; what is left goes to the words, to those that lack least first, so that prose wraps and
    names do not. Where words get no decent width, every column comes closer to the next, and words go down to single ones."""
    widths, gap = _least(columns, rows), 2
    if sum(widths) + _gaps(columns, gap) > room:
        widths, gap = _least(columns, rows, words=0), 1
    left = max(0, room - sum(widths) - _gaps(columns, gap))
    lacks = [most - width for most, width in zip(_most(columns, rows), widths, strict=True)]
    for i in sorted(range(len(widths)), key=lacks.__getitem__):
        given = min(left, lacks[i])
        widths[i] += given
        left -= given
    return _Fit(widths, gap)


def _gaps(columns: Sequence[Column], gap: int) -> int:
    return gap * (len(columns) - 1)


def _most(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [max(map(cell_len, _lines(column.head, cells))) for column, cells in _by_column(columns, rows)]


def _least(columns: Sequence[Column], rows: Sequence[Row], words: int = LEAST_WORDS) -> list[int]:
    least = []
    for (column, cells), most in zip(_by_column(columns, rows), _most(columns, rows), strict=True):
        if column.words:
            pieces = [piece for line in _lines(column.head, cells) for piece in _pieces(line)]
            longest = max(map(cell_len, pieces), default=0)
            least.append(min(most, max(words, min(longest, LONGEST_WORD))))
        else:
            least.append(most)
    return least


def _by_column(columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[tuple[Column, list[str]]]:
    for i, column in enumerate(columns):
        yield column, [str(row[i]) for row in rows]


def _lines(head: str, cells: Sequence[str]) -> list[str]:
    return [line for text in (head, *cells) for line in text.split("\n")]


def _pieces(line: str) -> list[str]:
    """Where words may break: at spaces, and a name of two parts after its slash."""
    return line.split(" ") if " " in line else line.replace("/", "/\n ").split("\n")


def _broken(cell: str | Text, width: int) -> str | Text:
    text = str(cell)
    if " " in text or cell_len(text) <= width or "/" not in text:
        return cell
    return text.replace("/", "/\n ")
