"""Where results and messages go: results on stdout in the format asked for, everything else on stderr."""

from __future__ import annotations

import os
import sys
from enum import Enum

import msgspec
from rich.console import Console

from numalign.report import summary as summaries
from numalign.report import terminal
from numalign.report.summary import Summary

PIPE_WIDTH = 200
"""Columns for a table that goes to a file or a pipe, so that nothing is cut."""


class OutputFormat(str, Enum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class _ResultsConsole(Console):
    """Leaves a reader that has gone away to the command line, which has an exit code for it."""

    def on_broken_pipe(self) -> None:
        """Called by rich in place of raising."""
        raise BrokenPipeError


def results_console() -> Console:
    """Standard output. Off a terminal it is plain and wide; ``NO_COLOR`` is heeded."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return _ResultsConsole(width=width, highlight=False, markup=False)


def messages_console() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def show(summary: Summary, output_format: OutputFormat, seconds: float | None = None) -> None:
    """Print a run in the format asked for."""
    if output_format is OutputFormat.TABLE:
        terminal.render(summary, results_console(), seconds)
    elif output_format is OutputFormat.JSON:
        _write(msgspec.json.format(msgspec.json.encode(summaries.as_json(summary)), indent=2))
    else:
        for row in summaries.as_jsonl(summary):
            _write(msgspec.json.encode(row))


def write_rows(rows: list[dict[str, object]], key: str, output_format: OutputFormat) -> None:
    """Print plain rows as one JSON object under ``key``, or one line a row."""
    if output_format is OutputFormat.JSON:
        _write(msgspec.json.format(msgspec.json.encode({key: rows}), indent=2))
    else:
        for row in rows:
            _write(msgspec.json.encode(row))


def _write(line: bytes) -> None:
    sys.stdout.write(line.decode() + "\n")
