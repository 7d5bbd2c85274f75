"""JSON as the standard means it: no name twice in one object, and no NaN or Infinity.

Most readers take the last of two values silently; whoever wrote both meant something by each. Pure.
"""

from __future__ import annotations

import json
from typing import Any


class NameTwice(ValueError):
    """An object of the text has a name twice."""


def loads(text: str) -> Any:
    """The value of a JSON text, or a ValueError (a RecursionError if it is nested without end)."""
    return decoder().decode(text)


def decoder() -> json.JSONDecoder:
    """Reads from anywhere in a text, as strictly."""
    return json.JSONDecoder(object_pairs_hook=_each_once, parse_constant=_refused)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise NameTwice(f"{next(name for name in names if names.count(name) > 1)!r:.60} is there twice")
    return found


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is not a number JSON knows")
