"""JSON as the standard means it: no name twice in one object, and no NaN or Infinity.

Most readers take the last of two values silently; whoever wrote both meant something by each. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class NameTwice(ValueError):
    """An object of the text has a name twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r:.60} is there twice")
        self.name = name


def loads(text: str) -> Any:
    """The value of a JSON text, or a ValueError (a RecursionError if it is nested without end)."""
    return decoder().decode(text)


def decoder(
    *, parse_int: Callable[[str], Any] | None = None, parse_float: Callable[[str], Any] | None = None
) -> json.JSONDecoder:
    """Reads from anywhere in a text, as strictly; numbers as told."""
    return json.JSONDecoder(
        object_pairs_hook=each_once, parse_constant=_refused, parse_int=parse_int, parse_float=parse_float
    )


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its names and values: the hook of a reader."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise NameTwice(name)
            seen.add(name)
    return found


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is not a number JSON knows")
