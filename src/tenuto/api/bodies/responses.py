"""Responses that several routes share."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field


class Changed(BaseModel):
    """Whether a request changed something."""

    changed: bool = Field(description="False if the object was in this state already.")


class Cancellation(BaseModel):
    """Effect of a cancellation."""

    state: Literal["cancelled", "stopping"] = Field(description="`stopping`: it ends when its code has stopped.")


class StartedTask(BaseModel):
    """Id of a new task."""

    task_id: UUID


class StartedExecution(BaseModel):
    """Id of a new execution."""

    execution_id: UUID


class RetriedCount(BaseModel):
    """Number of retried items."""

    retried: int
