"""What is said of a command line that does not fit: what was got, what was wanted, what is near, what to do. One line."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from numalign.cli.options import wanted
from numalign.errors import UsageError
from numalign.scan.select import near

TAKES = {
    "scan": "options alone: name operators with --select",
    "list": "options alone: name operators with --select",
    "show": "one folder",
    "explain": "one code",
}
"""What each subcommand takes."""


def check_empty(arguments: Sequence[str]) -> None:
    """Refuse empty arguments: an unset variable of a shell script would otherwise widen or move what is run.

    Raises:
        UsageError: If there is one.
    """
    for before, argument in zip(("", *arguments), arguments, strict=False):
        name, given, value = argument.partition("=")
        if given and name.startswith("--") and not value.strip():
            raise UsageError(f"{name} is {value!r}; give it a value, or leave it out")
        if not argument.strip():
            what = before if before.startswith("-") else "an argument"
            raise UsageError(f"{what} is {argument!r}; give it a value, or leave it out")


def said_of(error: CycloptsError, app: App) -> str:
    """The line for an error of the command line's library."""
    command = error.command_chain[-1] if error.command_chain else ""
    more = f"`{' '.join(['numalign', *(error.command_chain or ())])} --help` shows all"
    match error:
        case UnknownCommandError(unused_tokens=[name, *_]):
            what, known = ("option", _options(app)) if name.startswith("-") else ("command", list(TAKES))
            text = f"unknown {what} {name!r}{near(name, known)}; wanted one of {', '.join(TAKES)}"
        case UnknownOptionError(token=token):
            name = token.keyword or token.value
            shown = name.partition("=")[0] if name.isprintable() else repr(name)
            known = [name for argument in error.argument_collection for name in argument.names]
            text = f"unknown option {shown} of {command}{near(name, known)}; {more}"
        case UnusedCliTokensError(unused_tokens=[token, *_]) if command in TAKES:
            text = f"got {token!r}, but {command} takes {TAKES[command]}; {more}"
        case MissingArgumentError(argument=argument) if argument is not None:
            text = f"{argument.name} has no value; wanted {wanted(argument.hint)}"
        case RepeatArgumentError(token=token):
            text = f"{token.keyword} is given more than once; wanted once"
        case CoercionError(token=token, target_type=kind) if token is not None:
            text = f"{token.keyword} is {token.value!r}{near(token.value, _values(kind))}; wanted {wanted(kind)}"
        case _:
            text = f"{one_line(str(error))}; {more}"
    return text


def one_line(text: str) -> str:
    """The text without line breaks, and with every other sign that does not print written out."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in " ".join(text.split()))


def _options(app: App) -> list[str]:
    return [*app.help_flags, *app.version_flags]


def _values(kind: Any) -> list[str]:
    return [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
