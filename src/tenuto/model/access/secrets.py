"""Secret references in definitions, and redaction of sensitive fields in plain data.

A step contains ``{"secret": "hr-api-token", "prefix": "Bearer "}`` in the place of a text. The worker reads the value
when an attempt starts and redacts it in everything the attempt records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

REDACTED = "***"
_SENSITIVE_NAME = re.compile(
    r"pass(?:word|wd|phrase)|secret|token|authori[sz]ation|credential|api[_-]?key|private[_-]?key|cookie", re.IGNORECASE
)
_COUNT_NAME = re.compile(r"(?:passwords|secrets|tokens|keys|cookies|[_-]count)$", re.IGNORECASE)
_REFERENCE_KEYS = {"secret", "prefix"}


class _ReferencePlace(Enum):
    """Where a value may contain a secret reference."""

    NOWHERE = 0
    HERE = 1
    BELOW = 2
    """In each field, but not instead of the value: there ``secret`` is an ordinary field name."""
    ANYWHERE = 3

    @property
    def within(self) -> _ReferencePlace:
        """The place that applies to each part of the value."""
        return {
            _ReferencePlace.BELOW: _ReferencePlace.HERE,
            _ReferencePlace.ANYWHERE: _ReferencePlace.ANYWHERE,
        }.get(self, _ReferencePlace.NOWHERE)


_PROGRAM_PLACES = {"env": _ReferencePlace.BELOW, "stdin": _ReferencePlace.HERE}
REFERENCE_PLACES = {
    "executable": _PROGRAM_PLACES,
    "powershell": _PROGRAM_PLACES,
    "http.call": {
        "url": _ReferencePlace.HERE,
        "headers": _ReferencePlace.BELOW,
        "body": _ReferencePlace.ANYWHERE,
    },
    "sql": {"parameters": _ReferencePlace.BELOW},
}
"""The arguments of each step kind that accept references. In all other arguments, and for jobs, such data is data."""


class SecretRef(BaseModel):
    """A reference to a stored secret."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secret: str = Field(min_length=1, max_length=200)
    """The name of the secret."""
    prefix: str = Field(default="", max_length=200)
    """Text before the value, such as ``Bearer ``."""


TextOrSecret = str | SecretRef


def may_refer_to_secret(value: Any) -> bool:
    """Return whether plain data may contain a secret reference at any depth. May err towards True."""
    if isinstance(value, Mapping):
        return _has_reference_shape(value) or any(may_refer_to_secret(part) for part in value.values())
    return isinstance(value, list | tuple) and any(may_refer_to_secret(part) for part in value)


def redact_sensitive_fields(value: Any) -> Any:
    """Return plain data with the values of sensitive names redacted. Secret references stay readable where a step
    accepts them; elsewhere they are redacted too."""
    return _redact(value, _ReferencePlace.NOWHERE)


def _redact(value: Any, references: _ReferencePlace) -> Any:
    if isinstance(value, Mapping):
        if _is_reference(value, references):
            return dict(value)
        places = _step_reference_places(value)
        if places is not None:
            rest = {name: part for name, part in value.items() if name != "arguments"}
            return {
                **_redact(rest, _ReferencePlace.NOWHERE),
                "arguments": _redact_fields(value["arguments"], places),
            }
        return _redact_fields(value, dict.fromkeys(value, references.within))
    if isinstance(value, list | tuple):
        return [_redact(part, references.within) for part in value]
    return value


def _redact_fields(value: Mapping[str, Any], references: Mapping[str, _ReferencePlace]) -> dict[str, Any]:
    def redact_field(name: str, part: Any) -> Any:
        place = references.get(name, _ReferencePlace.NOWHERE)
        if _SENSITIVE_NAME.search(str(name)) and not _is_harmless(name, part, place):
            return REDACTED
        return _redact(part, place)

    return {name: redact_field(name, part) for name, part in value.items()}


def _is_harmless(name: str, part: Any, references: _ReferencePlace) -> bool:
    """Return whether the value is empty, a boolean, a count or a reference."""
    if isinstance(part, Mapping):
        return _is_reference(part, references)
    if isinstance(part, int) and not isinstance(part, bool):
        return _COUNT_NAME.search(str(name)) is not None
    return part is None or isinstance(part, bool) or part in ("", [])


def _step_reference_places(value: Mapping[str, Any]) -> Mapping[str, _ReferencePlace] | None:
    """Return the arguments that accept references, if the value is a stored step."""
    if not {"name", "kind", "target"} <= value.keys() or not isinstance(value.get("arguments"), Mapping):
        return None
    return REFERENCE_PLACES.get(str(value["kind"]))


def _is_reference(value: Mapping[str, Any], references: _ReferencePlace) -> bool:
    allowed = references in (_ReferencePlace.HERE, _ReferencePlace.ANYWHERE)
    return allowed and _has_reference_shape(value) and all(isinstance(part, str) for part in value.values())


def _has_reference_shape(value: Mapping[str, Any]) -> bool:
    return "secret" in value and value.keys() <= _REFERENCE_KEYS
