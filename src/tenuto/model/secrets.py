"""Secrets as definitions speak of them: by name, never by value.

A step says ``{"secret": "hr-api-token", "prefix": "Bearer "}`` where a text is wanted. The value is looked up when an
attempt begins, by the worker that runs it, and masked in whatever the attempt leaves behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MASK = "***"
_SOUNDS_SECRET = re.compile(
    r"pass(?:word|wd|phrase)|secret|token|authori[sz]ation|credential|api[_-]?key|private[_-]?key|cookie", re.IGNORECASE
)
_NAMES_A_SECRET = {"secret", "prefix"}


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
    """Whether plain data refers to a secret, at any depth."""
    if isinstance(value, Mapping):
        return _is_reference(value) or any(names_a_secret(part) for part in value.values())
    return isinstance(value, list | tuple) and any(names_a_secret(part) for part in value)


def _is_reference(value: Mapping[str, Any]) -> bool:
    return "secret" in value and value.keys() <= _NAMES_A_SECRET


def masked(value: Any) -> Any:
    """Plain data without what stands under a name that sounds secret. What only names a secret may be seen."""
    if isinstance(value, Mapping):
        if _is_reference(value):
            return dict(value)
        return {
            name: MASK if _SOUNDS_SECRET.search(str(name)) and not _may_be_seen(part) else masked(part)
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(part) for part in value]
    return value


def _may_be_seen(part: Any) -> bool:
    """Nothing, yes or no, a number of something, or a reference."""
    if isinstance(part, Mapping):
        return _is_reference(part)
    return part is None or isinstance(part, bool) or part in ("", [])
