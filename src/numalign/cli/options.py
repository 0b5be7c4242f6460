"""The kinds of values that options take, and what is said where one is missing, empty or of another kind."""

from __future__ import annotations

import types
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from cyclopts import Parameter, Token

from numalign.errors import UsageError


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    try:
        return int(tokens[0].value)
    except ValueError as error:
        raise UsageError(f"{tokens[0].keyword} is {tokens[0].value!r}; wanted {wanted(int)}") from error


def _number(kind: Any, tokens: Sequence[Token]) -> float:
    try:
        return float(tokens[0].value)
    except ValueError as error:
        raise UsageError(f"{tokens[0].keyword} is {tokens[0].value!r}; wanted {wanted(float)}") from error


def _names(kind: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    names: list[str] = []
    for token in tokens:
        parts = [name.strip() for name in token.value.split(",")]
        if not all(parts):
            raise UsageError(f"{token.keyword} is {token.value!r}; wanted {wanted(tuple)}")
        names += parts
    return tuple(names)


Names = Annotated[tuple[str, ...], Parameter(converter=_names, negative=(), consume_multiple=False)]
"""Names with commas between them; the option may also be given again."""

Whole = Annotated[int, Parameter(converter=_whole)]
Number = Annotated[float, Parameter(converter=_number)]
Switch = Annotated[bool, Parameter(negative=())]


def wanted(kind: Any) -> str:
    """What an option of this type takes, in words."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return wanted(next(part for part in get_args(kind) if part is not type(None)))
    if origin is Annotated:
        return wanted(get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(member.value for member in kind)}"
    words = {bool: "no value", int: "a whole number", float: "a number", Path: "a folder"}
    return "names, with commas between them" if tuple in (kind, origin) else words.get(kind, "a value")
