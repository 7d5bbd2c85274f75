"""Parameters that several routes share: ids and names in paths, filters in queries.

A name in a path may contain a slash, written ``%2F``: the middleware replaces it by a NUL, so that it does not end the
path segment, and `NameConvertor` restores it.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote
from uuid import UUID

from fastapi import Path, Query
from starlette.convertors import Convertor, register_url_convertor

Id = Annotated[UUID, Path(description="Id of the object.")]
Name = Annotated[str, Path(description="Name; write a slash in it as `%2F`.", examples=["nightly"])]
ExternalId = Annotated[str, Path(description="External id; write a slash in it as `%2F`.", examples=["mail"])]
NameFilter = Annotated[str | None, Query(max_length=200, description="Filter by a part of the name.")]
TextFilter = Annotated[str | None, Query(max_length=200)]


class NameConvertor(Convertor[str]):
    """Path segment that may contain an escaped slash."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace("\x00", "/")

    def to_string(self, value: str) -> str:
        return quote_path_part(value)


register_url_convertor("name", NameConvertor())


def quote_path_part(name: str) -> str:
    """Return a name as a path segment."""
    return quote(name, safe="")
