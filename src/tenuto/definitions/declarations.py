"""Declarations, whatever they define: what one would do to what is in force, and what a plan of many must heed.

Schedules and manifests are kept alike: as they are in force, and as code or a file declared them last. What an operator
has changed by hand stays until a declaration says something new. Nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, TypeVar
from uuid import UUID

from tenuto.errors import Conflict, Invalid
from tenuto.model.schedules import changes
from tenuto.model.triggers import Trigger
from tenuto.model.triggers.descriptions import span
from tenuto.model.triggers.trigger import Timed

Effect = Literal["created", "changed", "unchanged", "kept"]
"""``kept``: an operator has changed it, and the declaration says what it said before."""
DOES_SOMETHING: tuple[Effect, ...] = ("created", "changed")
RUNS_SHOWN = 3
MAX_OTHERS = 10_000


class Defining(Protocol):
    """A definition as somebody wrote it down."""

    @property
    def key(self) -> str: ...
    @property
    def trigger(self) -> Trigger: ...
    def to_fields(self) -> dict[str, Any]: ...


class InForce(Protocol):
    """What there is under a key."""

    @property
    def key(self) -> str: ...
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


class Blamed(Protocol):
    """A definition of a file, which knows where it stands."""

    def refused(self, error: Invalid) -> Invalid: ...


@contextmanager
def blaming(declared: Blamed) -> Iterator[None]:
    """What is refused within is told with the place in the file."""
    try:
        yield
    except Invalid as error:
        raise declared.refused(error) from error


def effect_of(present: InForce | None, declared: Mapping[str, Any]) -> Effect:
    """What a declaration would do."""
    if present is None:
        return "created"
    if present.fields == declared:
        return "unchanged"
    return "kept" if present.declared == declared else "changed"


F = TypeVar("F", bound=Blamed)
D = TypeVar("D", bound=Defining)
S = TypeVar("S", bound=InForce)


@dataclass(frozen=True, slots=True)
class Change(Generic[F, D, S]):
    """What would become of one definition of the files."""

    declared: F
    definition: D
    effect: Effect
    present: S | None
    differences: Mapping[str, tuple[Any, Any]]
    """The fields in which what is in force and what the file says differ."""
    notes: Sequence[str]
    runs_before: Sequence[datetime]
    runs_after: Sequence[datetime]

    @property
    def key(self) -> str:
        return self.definition.key

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.definition.to_fields()


def change_of(declared: F, new: D, effect: Effect, present: S | None, now: datetime) -> Change[F, D, S]:
    """What would become of a definition: what is in force beside what is declared."""
    if present is None:
        coming, notes = new.trigger.preview(now, RUNS_SHOWN), _without_a_place(new.trigger)
        return Change(declared, new, effect, None, differences={}, notes=notes, runs_before=(), runs_after=coming)

    def runs(trigger: Trigger) -> Sequence[datetime]:
        return trigger.preview(now, RUNS_SHOWN, str(present.id)) if present.enabled else ()

    before = runs(present.trigger)
    return Change(
        declared,
        new,
        effect,
        present,
        differences=changes(present.fields, new.to_fields()),
        notes=_notes(effect, present),
        runs_before=before,
        runs_after=before if effect == "kept" else runs(new.trigger),
    )


def _without_a_place(trigger: Trigger) -> list[str]:
    """What is not made yet has no place within its jitter, so its runs are foretold without it."""
    if not isinstance(trigger, Timed) or not trigger.bounds.jitter:
        return []
    return [f"each run comes up to {span(trigger.bounds.jitter, one='1 ')} later than shown, once it has its place"]


def _notes(effect: Effect, present: InForce) -> list[str]:
    notes = []
    if not present.enabled:
        notes.append("disabled, and stays so")
    if effect == "kept":
        notes.append("changed by an operator, and the file says nothing new: it stays as it is")
    elif effect == "changed" and present.declared not in (None, present.fields):
        notes.append("changed by an operator since it was declared: the file replaces that")
    if present.origin != "file" and effect != "kept":
        made = "declared in code" if present.origin == "code" else "made by hand"
        notes.append(f"{made}: from now on the file keeps it")
    return notes


def is_done(planned: Iterable[Change[Any, Any, Any]], deleted: Iterable[str], present: Mapping[str, InForce]) -> bool:
    """Whether everything is as the plan wants it. A plan that changes nothing may still have something to note."""
    if any(name in present for name in deleted):
        return False
    for change in planned:
        there = present.get(change.key)
        if change.effect != "kept" and (there is None or change.fields != there.declared):
            return False
        if change.effect in DOES_SOMETHING and (there is None or change.fields != there.fields):
            return False
    return True


def refuse_changed_since(
    planned: Iterable[Change[Any, Any, Any]], deleted: Mapping[str, InForce], present: Mapping[str, InForce]
) -> None:
    """Refuse a plan that was made of something else than what is there by now."""
    seen: dict[str, InForce | None] = {change.key: change.present for change in planned}
    for name, before in (seen | dict(deleted)).items():
        there = present.get(name)
        if (there and (there.id, there.version)) != (before and (before.id, before.version)):
            raise Conflict(f"{name!r} was changed while this was planned", remedy="plan again, and look")
