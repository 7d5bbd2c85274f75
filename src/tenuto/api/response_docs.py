"""What the routes have in common in how they answer: examples for the OpenAPI document, and small bodies."""

from __future__ import annotations

from typing import Annotated, Any, get_args
from uuid import UUID

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

Id = Annotated[UUID, Path(description="Its id.")]
Search = Annotated[str | None, Query(max_length=200, description="Part of the name.")]
Text = Annotated[str | None, Query(max_length=200)]


class Body(BaseModel):
    """The body of a request: what it does not know it refuses."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, given: Any, info: ValidationInfo) -> Any:
        """In Python it is 1; nobody who sends it means that."""
        if isinstance(given, bool):
            meant = cls.model_fields[str(info.field_name)].annotation
            kinds = {meant, *get_args(meant)}
            if kinds & {int, float} and bool not in kinds:
                raise PydanticCustomError("number_type", "must be a number, not true or false")
        return given


class Why(Body):
    """Why something is done."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the supplier is down"}]})

    reason: str | None = Field(default=None, max_length=1000)


class Note(Body):
    """A note on a dead letter."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"note": "sent by hand"}]})

    note: str | None = Field(default=None, max_length=4000)


def answers(example: Any, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a route answers with, by an example."""
    return {status: {"content": {"application/json": {"example": example}}}}


def a_page(item: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """A page of such items."""
    return answers({"items": [item], "next": None})
