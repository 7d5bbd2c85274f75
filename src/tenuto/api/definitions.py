"""Definitions in the body of a request: read by the rules of definition files, told by their own fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tenuto.errors import Invalid
from tenuto.model.documents import Document

D = TypeVar("D")


def written(section: str, definition: dict[str, Any], read: Callable[[list[Document]], Sequence[D]]) -> D:
    """One definition, as it would stand in this section of a file."""
    document = Document("body", {section: [definition]})
    try:
        return read([document])[0]
    except Invalid as error:
        field = (error.field or "").rsplit(": ", 1)[-1].removeprefix(f"{section}[0]").lstrip(".")
        raise Invalid(error.message, field=field or None, remedy=error.remedy) from error


def version_of(if_match: str | None) -> int | None:
    """The version an ETag speaks of."""
    if if_match is None:
        return None
    text = if_match.strip().removeprefix("W/").strip('"').removeprefix("v")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Invalid("is no ETag of a definition", field="If-Match", remedy="send the ETag as you got it")
    return int(text)
