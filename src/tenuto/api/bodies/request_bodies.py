"""Request bodies that several routes share. They refuse unknown fields."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


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


class RetryBody(NoteBody):
    """Note, and a new input if the failed one was wrong."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"note": "typo in the address", "input": {"to": "x@y.org"}}]}
    )

    input: dict[str, Any] | None = None
