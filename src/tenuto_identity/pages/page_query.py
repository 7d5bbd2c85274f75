"""What the pages share: the operations and the role of the viewer, and the parameters of addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid, NotFound
from tenuto.extension import PageRequest
from tenuto.model.access.actors import Role
from tenuto_identity.model.sync.explanation import HIDDEN
from tenuto_identity.operations.identity_operations import IdentityOperations

PAGE_SIZE = 50
_CAPITAL = re.compile("(?<=[a-z])[A-Z]")
MAX_ID = 2**63 - 1
_MAX_DIGITS = len(str(MAX_ID))
MAX_TEXT_LENGTH = 200


def operations(request: PageRequest) -> IdentityOperations:
    found: IdentityOperations = request.operations
    return found


def reveals(request: PageRequest) -> bool:
    """Return whether the viewer may see the values of sensitive attributes."""
    return request.role >= Role.ADMIN  # guard: identity.page_reveals


def text_of(request: PageRequest, name: str) -> str:
    """Return a query parameter without spaces around it; empty if it is not given."""
    text = request.query.get(name, "").strip()
    if len(text) > MAX_TEXT_LENGTH or "\x00" in text:
        raise Invalid(
            f"the parameter {name} is too long or contains a NUL character",
            code="identity.page.text_invalid",
            field=name,
            remedy=f"write at most {MAX_TEXT_LENGTH} characters",
        )
    return text


def choice_of(request: PageRequest, name: str, known: Iterable[str]) -> str:
    """Return a query parameter that has one of the known values; empty if it is not given."""
    text, values = text_of(request, name), list(known)
    if text and text not in values:
        raise Invalid(
            f"the value {text!r} of {name} is unknown",
            code="identity.page.choice_unknown",
            field=name,
            remedy=f"use one of: {', '.join(values)}",
        )
    return text


def number_of(request: PageRequest, name: str = "after") -> int:
    """Return the cursor of a list, a 64-bit id; 0 if it is not given."""
    return _parse_id(request.query.get(name) or "0", name)


def id_of(request: PageRequest, name: str) -> int:
    """Return an id in the path."""
    text = request.parameters[name]
    if not (_is_id(text) and int(text)):
        raise NotFound(
            f"there is no metaverse object {text[:80]!r}",
            code="identity.identity.not_found",
            remedy="search for it on the page Identities",
        )
    return int(text)


def uuid_of(request: PageRequest, name: str, what: str) -> UUID:
    """Return a UUID in the path."""
    try:
        return UUID(request.parameters[name])
    except ValueError:
        raise NotFound(
            f"there is no {what} {request.parameters[name][:80]!r}",
            code=f"identity.{what}.not_found",
            remedy=f"choose one in the list of {what}s",
        ) from None


def uuid_cursor(request: PageRequest, name: str = "after") -> UUID | None:
    """Return the cursor of a list, a UUID; None if it is not given."""
    text = request.query.get(name)
    if not text:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise _wrong_cursor(name) from None


def _parse_id(text: str, name: str) -> int:
    if not _is_id(text):
        raise _wrong_cursor(name)
    return int(text)


def _is_id(text: str) -> bool:
    """Return whether a text is a number of at most 64 bits. Its length is checked first: `int` refuses long texts."""
    return len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() and int(text) <= MAX_ID


def _wrong_cursor(name: str) -> Invalid:
    return Invalid(
        f"the parameter {name} is not the position in a list",
        code="identity.page.cursor_invalid",
        field=name,
        remedy="open the first page of the list",
    )


def values_text(values: Any) -> str:
    """Return the values of an attribute as one line of text."""
    if values is None:
        return ""
    if isinstance(values, list | tuple):
        return ", ".join(map(str, values))
    return str(values)


def before_and_after(diff: Any) -> tuple[str, str]:
    """Return the values of an attribute before and after a change; both hidden if the caller may not see them."""
    if isinstance(diff, list) and len(diff) == 2:
        return values_text(diff[0]), values_text(diff[1])
    return HIDDEN, HIDDEN


def label_of(change: str) -> str:
    """Return a change or an error in words: ``AttributeFlow`` is an attribute flow."""
    return _CAPITAL.sub(lambda found: f" {found[0].lower()}", change).replace("_", " ").strip().capitalize()


@dataclass(frozen=True, slots=True)
class Count:
    """A number with the change, error, type or system that it counts."""

    name: str
    label: str
    count: int


def counts_of(counts: Mapping[str, Any], name: str, *, in_words: bool = True) -> list[Count]:
    """Return one group of the counts of a run, the largest number first; names of users stay as they are."""
    found: Mapping[str, int] = counts.get(name) or {}
    ordered = sorted(((key, count) for key, count in found.items() if count), key=lambda each: (-each[1], each[0]))
    return [Count(key, label_of(key) if in_words else key, count) for key, count in ordered]
