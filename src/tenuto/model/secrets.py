"""Secrets as definitions speak of them: by name, never by value.

A step says ``{"secret": "hr-api-token", "prefix": "Bearer "}`` where a text is wanted. The value is looked up when an
attempt begins, by the worker that runs it, and masked in whatever the attempt leaves behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MASK = "***"
_SOUNDS_SECRET = re.compile(
    r"pass(?:word|wd|phrase)|secret|token|authori[sz]ation|credential|api[_-]?key|private[_-]?key|cookie", re.IGNORECASE
)
_SAYS_HOW_MANY = re.compile(r"(?:passwords|secrets|tokens|keys|cookies|[_-]count)$", re.IGNORECASE)
_NAMES_A_SECRET = {"secret", "prefix"}


class _Where(Enum):
    """Where in some data a reference may stand."""

    NOWHERE = 0
    HERE = 1
    BELOW = 2
    """Under each name, but not in the place of the whole: there ``secret`` is a name like any other."""
    ANYWHERE = 3

    @property
    def within(self) -> _Where:
        """Where it may stand in each part of such data."""
        return {_Where.BELOW: _Where.HERE, _Where.ANYWHERE: _Where.ANYWHERE}.get(self, _Where.NOWHERE)


_OF_PROGRAMS = {"env": _Where.BELOW, "stdin": _Where.HERE}
PLACES = {
    "executable": _OF_PROGRAMS,
    "powershell": _OF_PROGRAMS,
    "http.call": {"url": _Where.HERE, "headers": _Where.BELOW, "body": _Where.ANYWHERE},
    "sql": {"parameters": _Where.BELOW},
}
"""The arguments of each kind of step that take a reference. To every other, and to a job, such data is data."""


class SecretRef(BaseModel):
    """A text that is kept elsewhere."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secret: str = Field(min_length=1, max_length=200)
    """The name it is kept under."""
    prefix: str = Field(default="", max_length=200)
    """What goes before it, such as ``Bearer ``."""


Text = str | SecretRef
"""A text, given or kept as a secret."""


def names_a_secret(value: Any) -> bool:
    """Whether plain data may refer to a secret, at any depth; rather once too often than once too seldom."""
    if isinstance(value, Mapping):
        return _looks_like_one(value) or any(names_a_secret(part) for part in value.values())
    return isinstance(value, list | tuple) and any(names_a_secret(part) for part in value)


def masked(value: Any) -> Any:
    """Plain data without what stands under a name that sounds secret. What only names a secret may be seen, where
    a step takes such a name; anywhere else it is taken for the secret itself."""
    return _masked(value, _Where.NOWHERE)


def _masked(value: Any, references: _Where) -> Any:
    if isinstance(value, Mapping):
        if _is_reference(value, references):
            return dict(value)
        places = _places(value)
        if places is not None:
            rest = {name: part for name, part in value.items() if name != "arguments"}
            return {**_masked(rest, _Where.NOWHERE), "arguments": _parts(value["arguments"], places)}
        return _parts(value, dict.fromkeys(value, references.within))
    if isinstance(value, list | tuple):
        return [_masked(part, references.within) for part in value]
    return value


def _parts(value: Mapping[str, Any], references: Mapping[str, _Where]) -> dict[str, Any]:
    return {
        name: MASK
        if _SOUNDS_SECRET.search(str(name)) and not _may_be_seen(name, part, references.get(name, _Where.NOWHERE))
        else _masked(part, references.get(name, _Where.NOWHERE))
        for name, part in value.items()
    }


def _may_be_seen(name: str, part: Any, references: _Where) -> bool:
    """Nothing, yes or no, how many there are of something, or a reference."""
    if isinstance(part, Mapping):
        return _is_reference(part, references)
    if isinstance(part, int) and not isinstance(part, bool):
        return _SAYS_HOW_MANY.search(str(name)) is not None
    return part is None or isinstance(part, bool) or part in ("", [])


def _places(value: Mapping[str, Any]) -> Mapping[str, _Where] | None:
    """Of a step as it is stored: which of its arguments take references."""
    if not {"name", "kind", "target"} <= value.keys() or not isinstance(value.get("arguments"), Mapping):
        return None
    return PLACES.get(str(value["kind"]))


def _is_reference(value: Mapping[str, Any], references: _Where) -> bool:
    stands_here = references in (_Where.HERE, _Where.ANYWHERE)
    return stands_here and _looks_like_one(value) and all(isinstance(part, str) for part in value.values())


def _looks_like_one(value: Mapping[str, Any]) -> bool:
    return "secret" in value and value.keys() <= _NAMES_A_SECRET
