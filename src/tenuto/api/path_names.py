"""Names in paths: a name may hold a slash, which is then written ``%2F``.

The guard lets such a slash through as a NUL, so that it does not end the name; here it becomes a slash again.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Path
from starlette.convertors import Convertor, register_url_convertor


class NameConvertor(Convertor[str]):
    """One part of a path, as the name it stands for."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace("\x00", "/")

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("name", NameConvertor())

Name = Annotated[str, Path(description="Its name; a slash in it is written `%2F`.", examples=["nightly"])]
ExternalId = Annotated[str, Path(description="Its external id; a slash in it is written `%2F`.", examples=["mail"])]


def part(name: str) -> str:
    """A name as part of a path."""
    return quote(name, safe="")
