"""Puts the subcommands together and turns errors into one line and an exit code."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType

from cyclopts import App, CycloptsError

import numalign
from numalign.cli.exits import Exit
from numalign.cli.explain import explain
from numalign.cli.list import list_cases
from numalign.cli.output import messages_console
from numalign.cli.scan import scan
from numalign.cli.show import show
from numalign.cli.usage import check_empty, one_line, said_of
from numalign.errors import NumalignError

app = App(
    name="numalign",
    help="Finds, proves and repairs PyTorch operators that lose numbers in low precision.",
    version=numalign.__version__,
    help_format="plaintext",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.command(scan)
app.command(show)
app.command(explain)
app.command(list_cases, name="list")


def run(arguments: Sequence[str]) -> int:
    """Run one command line; gives its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        check_empty(arguments)
        result = app(list(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        messages_console().print(f"numalign: {said_of(error, app)}")
        return Exit.USAGE
    except NumalignError as error:
        messages_console().print(f"numalign: {one_line(str(error))}")
        return Exit.USAGE
    return int(result or Exit.CLEAN)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
