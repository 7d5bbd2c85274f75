"""Parts shared by the routes: path and query parameters, request bodies, conversion of records, examples for OpenAPI.

The API writes states in Pascal case (``InProgress``), the rest of the code in snake case (``in_progress``). A name in a
path may contain a slash, written ``%2F``: the middleware replaces it by a NUL, so that it does not end the path
segment, and `NameConvertor` restores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, get_args
from urllib.parse import quote
from uuid import UUID

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from starlette.convertors import Convertor, register_url_convertor

from tenuto.errors import Invalid, quoted

Id = Annotated[UUID, Path(description="Id of the object.")]
Name = Annotated[str, Path(description="Name; write a slash in it as `%2F`.", examples=["nightly"])]
ExternalId = Annotated[str, Path(description="External id; write a slash in it as `%2F`.", examples=["mail"])]
NameFilter = Annotated[str | None, Query(max_length=200, description="Filter by a part of the name.")]
TextFilter = Annotated[str | None, Query(max_length=200)]

_STATE_FIELDS = ("state", "status", "decision", "last_state", "runtime_status")
_COUNT_FIELDS = ("open", "past")
"""Fields that hold a count for each state."""
_USER_FIELDS = ("input", "output", "error", "definition", "properties", "before", "after", "progress", "fields")
"""Fields with user data, which is returned unchanged."""


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


class Body(BaseModel):
    """Request body that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for numbers: pydantic would read them as 1 and 0."""
        if isinstance(value, bool):
            annotation = cls.model_fields[str(info.field_name)].annotation
            types = {annotation, *get_args(annotation)}
            if types & {int, float} and bool not in types:
                raise PydanticCustomError("number_type", "must be a number, not true or false")
        return value


class ReasonBody(Body):
    """Reason of a change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the supplier is down"}]})

    reason: str | None = Field(default=None, max_length=1000, description="Reason, stored with the change.")


class NoteBody(Body):
    """Note on a dead letter."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"note": "sent manually"}]})

    note: str | None = Field(default=None, max_length=4000, description="Note, stored with the dead letter.")


# --- records ----------------------------------------------------------------------------------------------------------


def to_wire(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with Pascal-case states and durations in seconds, at every depth; user data stays unchanged."""
    return {name: value if name in _USER_FIELDS else _value_to_wire(name, value) for name, value in record.items()}


def _value_to_wire(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return to_wire_state(value) if name in _STATE_FIELDS else str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {to_wire_state(key): each for key, each in value.items()} if name in _COUNT_FIELDS else to_wire(value)
    if isinstance(value, list | tuple):
        return [to_wire(each) if isinstance(each, Mapping) else each for each in value]
    return value


def to_wire_state(state: str) -> str:
    """Return ``InProgress`` for ``in_progress``."""
    return "".join(part.capitalize() for part in state.split("_"))


def parse_wire_state(text: str | None, states: type[StrEnum] | Iterable[str], *, field: str) -> str | None:
    """Return the state in snake case; accept both spellings."""
    if text is None:
        return None
    spellings = {spelling: state for state in states for spelling in (str(state), to_wire_state(str(state)))}
    if text not in spellings:
        allowed = ", ".join(sorted({to_wire_state(str(state)) for state in states}))
        raise Invalid(
            f"{field} {quoted(text, 60)} is unknown",
            code=f"request.{field}.unknown",
            field=field,
            remedy=f"use one of {allowed}",
        )
    return str(spellings[text])


# --- examples in the OpenAPI document ---------------------------------------------------------------------------------


def example(example: Any, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of a response by an example."""
    return {status: {"content": {"application/json": {"example": example}}}}


def example_page(item: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of a page by an example of its items."""
    return example({"items": [item], "next": None})
