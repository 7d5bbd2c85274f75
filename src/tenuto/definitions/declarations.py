"""Declarations from code and files: their effect on the stored definition, and the checks of a plan of many.

A stored definition has the current fields and the fields that code or a file declared last. A change by an operator
remains until a declaration changes. The module does not access the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, TypeVar
from uuid import UUID

from tenuto.errors import Conflict, Invalid
from tenuto.model.schedules import changed_fields
from tenuto.model.triggers import Trigger
from tenuto.model.triggers.descriptions import format_duration
from tenuto.model.triggers.trigger import ClockTrigger

Effect = Literal["created", "changed", "unchanged", "kept"]
"""``kept``: an operator changed the definition, and the declaration is the same as before."""
CHANGING_EFFECTS: tuple[Effect, ...] = ("created", "changed")
PREVIEW_RUN_COUNT = 3
MAX_UNDECLARED = 10_000


class Definition(Protocol):
    """A definition of a schedule or manifest."""

    @property
    def key(self) -> str: ...
    @property
    def trigger(self) -> Trigger: ...
    def to_fields(self) -> dict[str, Any]: ...


class StoredDefinition(Protocol):
    """A definition in the database."""

    @property
    def key(self) -> str: ...
    @property
    def definition(self) -> Definition: ...
    @property
    def id(self) -> UUID: ...
    @property
    def version(self) -> int: ...
    @property
    def enabled(self) -> bool: ...
    @property
    def origin(self) -> str: ...
    @property
    def declared(self) -> Mapping[str, Any] | None: ...
    @property
    def fields(self) -> Mapping[str, Any]: ...
    @property
    def trigger(self) -> Trigger: ...


class DeclaredEntry(Protocol):
    """A definition of a file with its location."""

    def locate_error(self, error: Invalid) -> Invalid: ...


@contextmanager
def locating_errors(declared: DeclaredEntry) -> Iterator[None]:
    """Add the location of the entry to errors raised within the block."""
    try:
        yield
    except Invalid as error:
        raise declared.locate_error(error) from error


def declaration_effect(current: StoredDefinition | None, declared: Mapping[str, Any]) -> Effect:
    """Return what a declaration would change."""
    if current is None:
        return "created"
    if current.fields == declared:
        return "unchanged"
    return "kept" if current.declared == declared else "changed"


F = TypeVar("F", bound=DeclaredEntry)
D = TypeVar("D", bound=Definition)
S = TypeVar("S", bound=StoredDefinition)


@dataclass(frozen=True, slots=True)
class PlannedChange(Generic[F, D, S]):
    """The effect of one definition of the files."""

    entry: F
    definition: D
    effect: Effect
    current: S | None
    differences: Mapping[str, tuple[Any, Any]]
    """The fields that differ, as (stored, declared)."""
    notes: Sequence[str]
    runs_before: Sequence[datetime]
    runs_after: Sequence[datetime]

    @property
    def key(self) -> str:
        return self.definition.key

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.definition.to_fields()


def plan_change(entry: F, new: D, effect: Effect, current: S | None, now: datetime) -> PlannedChange[F, D, S]:
    if current is None:
        runs_after, notes = new.trigger.preview(now, PREVIEW_RUN_COUNT), _jitter_notes(new.trigger)
        return PlannedChange(
            entry, new, effect, None, differences={}, notes=notes, runs_before=(), runs_after=runs_after
        )

    def preview(trigger: Trigger) -> Sequence[datetime]:
        return trigger.preview(now, PREVIEW_RUN_COUNT, str(current.id)) if current.enabled else ()

    runs_before = preview(current.trigger)
    return PlannedChange(
        entry,
        new,
        effect,
        current,
        differences=changed_fields(current.fields, new.to_fields()),
        notes=_notes(effect, current),
        runs_before=runs_before,
        runs_after=runs_before if effect == "kept" else preview(new.trigger),
    )


def _jitter_notes(trigger: Trigger) -> list[str]:
    """Explain that a preview is without jitter: the jitter depends on the id, which a new definition does not have."""
    if not isinstance(trigger, ClockTrigger) or not trigger.limits.jitter:
        return []
    jitter = format_duration(trigger.limits.jitter, one="1 ")
    return [f"after creation each run is up to {jitter} later than shown (jitter)"]


def _notes(effect: Effect, current: StoredDefinition) -> list[str]:
    notes = []
    if not current.enabled:
        notes.append("disabled, and remains disabled")
    if effect == "kept":
        notes.append("changed by an operator, and the declaration is unchanged: kept as it is")
    elif effect == "changed" and current.declared not in (None, current.fields):
        notes.append("changed by an operator since it was declared: the file replaces that change")
    if current.origin != "file" and effect != "kept":
        origin = "declared in code" if current.origin == "code" else "created by an operator"
        notes.append(f"{origin}: from now on managed by the file")
    return notes


def is_plan_applied(
    planned: Iterable[PlannedChange[Any, Any, Any]], deleted: Iterable[str], current: Mapping[str, StoredDefinition]
) -> bool:
    """Return whether the database is in the planned state, including the declarations that the plan records."""
    if any(name in current for name in deleted):
        return False
    for change in planned:
        stored = current.get(change.key)
        if change.effect != "kept" and (stored is None or change.fields != stored.declared):
            return False
        if change.effect in CHANGING_EFFECTS and (stored is None or change.fields != stored.fields):
            return False
    return True


def check_unchanged_since_plan(
    planned: Iterable[PlannedChange[Any, Any, Any]],
    deleted: Mapping[str, StoredDefinition],
    current: Mapping[str, StoredDefinition],
) -> None:
    """Raise `Conflict` if a definition has changed since the plan was made."""
    planned_from: dict[str, StoredDefinition | None] = {change.key: change.current for change in planned}
    for name, before in (planned_from | dict(deleted)).items():
        stored = current.get(name)
        if (stored and (stored.id, stored.version)) != (before and (before.id, before.version)):
            raise Conflict(
                f"{name!r} has changed since the plan was made",
                code="definition.changed_since_plan",
                remedy="make a new plan and review it",
            )
