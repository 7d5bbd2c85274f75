"""The result of an enqueue, which knows the type of the job's result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

from tenuto.model.work.tasks import NewTask

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Enqueued(Generic[T_co]):
    """Result of an enqueue. ``created`` is False if an open task already had the same key.

    The type parameter is the type of the job's result; `Tenuto.wait` returns the output as that type.
    """

    id: UUID
    created: bool = True
    load_output: Callable[[Any], T_co] | None = field(default=None, repr=False, compare=False)
    """Converts the stored output to the type that the job returns."""
    new_task: NewTask | None = field(default=None, repr=False, compare=False)
    """What was stored, if this call created the task with a new id."""
