"""How 64-bit numbers are written in JSON documents of the HTTP API: as text, because JavaScript has no such numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import PlainSerializer

LongId: TypeAlias = Annotated[int, PlainSerializer(str, return_type=str)]
"""An id of 64 bits."""


def integers_as_text(value: Any) -> Any:
    """Return plain data with all integers as text."""
    if isinstance(value, Mapping):
        return {name: integers_as_text(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [integers_as_text(each) for each in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


IntegersAsText = PlainSerializer(integers_as_text, return_type=dict[str, Any])
"""For a field with values by attribute."""
ChangesAsText = PlainSerializer(integers_as_text, return_type=list[dict[str, Any]])
"""For a field with changes of attributes."""
