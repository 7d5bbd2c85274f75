"""Words of the wire: states as the API writes them (``InProgress``), and as all inside do (``in_progress``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from tenuto.errors import Invalid

_STATES = ("state", "status", "decision", "last_state", "runtime_status")
_COUNTS = ("open", "past")
"""So many in each state."""
_AS_THEY_ARE = ("input", "output", "error", "definition", "properties", "before", "after", "progress", "fields")


def outward(word: str) -> str:
    """``in_progress`` as ``InProgress``."""
    return "".join(part.capitalize() for part in word.split("_"))


def told(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with its states in the words of the wire, at whatever depth, and spans of time in seconds.

    What somebody else has written (inputs, outputs, definitions) is passed on as it is.
    """
    return {name: value if name in _AS_THEY_ARE else _value(name, value) for name, value in record.items()}


def plain(value: Any, **called: str) -> dict[str, Any]:
    """A value of ours, field by field; some of them are called otherwise on the wire."""
    return {called.get(name, name): getattr(value, name) for name in value.__dataclass_fields__}


def _value(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return outward(value) if name in _STATES else str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {outward(key): each for key, each in value.items()} if name in _COUNTS else told(value)
    if isinstance(value, list | tuple):
        return [told(each) if isinstance(each, Mapping) else each for each in value]
    return value


def inward(word: str | None, known: type[StrEnum] | Iterable[str], *, field: str) -> str | None:
    """The word inside that a word of the wire stands for; either spelling will do."""
    if word is None:
        return None
    spellings = {spelling: each for each in known for spelling in (str(each), outward(str(each)))}
    if word not in spellings:
        allowed = ", ".join(sorted({outward(str(each)) for each in known}))
        raise Invalid(f"{word!r:.60} is none of them", field=field, remedy=f"use one of {allowed}")
    return str(spellings[word])
