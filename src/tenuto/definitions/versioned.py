"""Definitions are made, changed, switched, declared and deleted here: each change one transaction, one version, one who
and why.

Schedules and manifests are kept alike. What may be said against one, and what a change means for what is due, each kind
says for itself (`definitions`, `manifesting`).

What code or a file declares is kept beside what is in force. A declaration that has not changed since the last time
changes nothing, so what an operator has edited stays; one that has changed comes into force. Whether something is
enabled is the operator's alone once it exists. Nothing is deleted because somebody did not declare it.

A transaction whose reply was lost is tried again, so each act remembers outside of itself what it did the first time:
what it then finds done was done by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from tenuto.definitions.declarations import DOES_SOMETHING, Defining, Effect, InForce, effect_of
from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.model import stored_values
from tenuto.model.actors import Actor
from tenuto.model.triggers import check_runs
from tenuto.postgres.database import UNIQUE_VIOLATION, Connection, Database, DatabaseError
from tenuto.store.access import audit_recorder
from tenuto.store.definition_rows import Kept, Version


@dataclass(frozen=True, slots=True)
class Author:
    """Who changes something, when, why, and in what way."""

    actor: Actor
    now: datetime
    reason: str | None = None
    origin: str = "hand"

    def __post_init__(self) -> None:
        if self.reason is not None:
            stored_values.storable_text(self.reason, field="reason", limit=1000)


D = TypeVar("D", bound=Defining)
D_co = TypeVar("D_co", bound=Defining, covariant=True)


class Stored(InForce, Protocol[D_co]):
    """A definition as it is in force, with what somebody wrote down."""

    @property
    def definition(self) -> D_co: ...
    @property
    def next_run_at(self) -> datetime | None: ...


S = TypeVar("S", bound=Stored[Any])


class Keeping(ABC, Generic[D, S]):
    """How one kind of definition is kept."""

    kind: str
    key_field: str
    """What its key is called: of a schedule ``name``."""
    rows: Kept[D, S]

    # --- what each kind says for itself -----------------------------------------------------------------------------

    def called(self, key: str) -> str:
        """One of them, in words."""
        return f"{self.kind} {key!r}"

    @abstractmethod
    async def one_at_a_time(self, connection: Connection, new: D) -> None:
        """Take the lock under which definitions that refer to others come to be and change, if this is one: two at once
        could close a circle that neither sees. Before any row is held; a larger change has taken it by then."""

    @abstractmethod
    def check_names(self, new: D, before: D | None = None) -> None:
        """Refuse names nobody could type, but for those of ``before``."""

    @abstractmethod
    async def check_others(self, connection: Connection, new: D, before: D | None = None) -> None:
        """That what it refers to is there, and does not lead back to it; unless that was so ``before``."""

    @abstractmethod
    async def check_new_key(self, connection: Connection, present: S, new: D) -> None:
        """Refuse another key where that cannot be."""

    @abstractmethod
    def retimed(self, present: S, new: D) -> bool:
        """Whether it would have a new reason to run."""

    @abstractmethod
    async def settle(self, connection: Connection, present: S, author: Author, *, retimed: bool, is_on: bool) -> None:
        """What becomes of what is due or waits, before it is switched or has a new reason to run."""

    @abstractmethod
    async def let_go(self, connection: Connection, present: S, author: Author) -> None:
        """Refuse to delete what is still needed; else settle what is due or waits."""

    # --- finding ----------------------------------------------------------------------------------------------------

    async def get(self, database: Database, key: str) -> S:
        """The one of that key."""
        found = await self.rows.named(database, key)
        if found is None:
            raise self.unknown(key)
        return found

    def unknown(self, key: str) -> NotFound:
        return NotFound(f"there is no {self.called(key)}", remedy=f"see `tenuto {self.kind} list`")

    # --- changing ---------------------------------------------------------------------------------------------------

    async def create(
        self, database: Database, new: D, author: Author, *, enabled: bool = True, id: UUID | None = None
    ) -> S:
        """Make one; refused if there is one of its key. Asking again with the same id makes one."""
        id = id or new_id()
        audit_recorder.tell(target=new.key)

        async def act(connection: Connection) -> None:
            await self.one_at_a_time(connection, new)
            await self._check(connection, new, author.now)
            if not await self._insert(connection, id, new, author, enabled=enabled, declared=None):
                existing = await self.rows.locked(connection, new.key)
                if existing is None or existing.id != id:
                    raise self._taken(new.key, "edit that one")
                audit_recorder.changed_nothing()

        try:
            await database.transaction(act)
        except DatabaseError as error:
            if error.state == UNIQUE_VIOLATION:  # of its first version: there has been one with this id
                deleted = f"the {self.kind} that was made by this request has been deleted since"
                raise Conflict(deleted, field="request_id", remedy="make it anew with another") from error
            raise
        return await self.get(database, new.key)

    async def edit(self, database: Database, key: str, new: D, author: Author, *, version: int | None = None) -> S:
        """Put a definition in the place of the present one; with ``version``, only if nobody has changed it since."""
        audit_recorder.tell(target=key)
        edited = False

        async def act(connection: Connection) -> None:
            nonlocal edited
            await self.one_at_a_time(connection, new)
            if edited and (there := await self.rows.locked(connection, new.key)) and there.definition == new:
                return
            present = await self._locked(connection, key)
            if new.key != key:
                await self.check_new_key(connection, present, new)
            _refuse_if_changed(present, version)
            edited = await self._change(connection, present, new, author)

        try:
            await database.transaction(act)
        except DatabaseError as error:
            if error.state == UNIQUE_VIOLATION:
                raise self._taken(new.key, "choose another") from error
            raise
        return await self.get(database, new.key)

    async def switch(self, database: Database, key: str, author: Author, *, enabled: bool) -> bool:
        """Enable or disable; False if it was so already. What fell due while it was disabled is not made up for."""
        audit_recorder.tell(target=key)
        switched = False

        async def act(connection: Connection) -> bool:
            nonlocal switched
            present = await self._locked(connection, key)
            if present.enabled != enabled:
                switched = await self._change(connection, present, present.definition, author, enabled=enabled)
            elif not switched:
                audit_recorder.changed_nothing()
            return switched

        return await database.transaction(act)

    async def delete(self, database: Database, key: str, author: Author, *, version: int | None = None) -> None:
        """Delete one that nothing needs any more. What it did stays on record. With ``version``, only if nobody has
        changed it since."""
        audit_recorder.tell(target=key)
        deleted: UUID | None = None

        async def act(connection: Connection) -> None:
            nonlocal deleted
            present = await self.rows.locked(connection, key)
            if deleted is not None and (present is None or present.id != deleted):
                return
            if present is None:
                raise self.unknown(key)
            _refuse_if_changed(present, version)
            await self._delete(connection, present, author)
            deleted = present.id

        await database.transaction(act)

    async def delete_within(self, connection: Connection, key: str, author: Author) -> None:
        """As `delete`, as part of a larger change."""
        await self._delete(connection, await self._locked(connection, key), author)

    # --- declaring --------------------------------------------------------------------------------------------------

    async def declare(self, database: Database, new: D, author: Author) -> Effect:
        """Bring what code or a file declares into force, as far as it says something new."""
        id = new_id()
        audit_recorder.tell(target=new.key)
        told: Effect | None = None

        async def act(connection: Connection) -> Effect:
            nonlocal told
            effect = await self.declare_within(connection, new, author, id)
            if told is None or effect != "unchanged":
                told = effect
            if told not in DOES_SOMETHING:
                audit_recorder.changed_nothing()
            return told

        return await database.transaction(act)

    async def declare_within(self, connection: Connection, new: D, author: Author, id: UUID) -> Effect:
        """As `declare`, as part of a larger change; the id is for one that comes to be."""
        fields = new.to_fields()
        await self.one_at_a_time(connection, new)
        present = await self.rows.locked(connection, new.key)
        if present is None:
            # Only what is new is checked: a service must be able to start though something it declares is over by now.
            await self._check(connection, new, author.now)
            if await self._insert(connection, id, new, author, enabled=True, declared=fields):
                return "created"
            present = await self._locked(connection, new.key)
        effect = effect_of(present, fields)
        if effect == "changed":
            await self._change(connection, present, new, author, declared=fields)
        elif effect == "unchanged" and present.declared != fields:
            await self.rows.declare(connection, present.id, fields, author.origin)
        return effect

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _check(self, connection: Connection, new: D, now: datetime) -> None:
        """What can only be said against a definition by looking at the present and at the others."""
        self.check_names(new)
        check_runs(new.trigger, now)
        await self.check_others(connection, new)

    def _taken(self, key: str, remedy: str) -> Conflict:
        return Conflict(f"there is a {self.called(key)}", field=self.key_field, remedy=remedy)

    async def _locked(self, connection: Connection, key: str) -> S:
        present = await self.rows.locked(connection, key)
        if present is None:
            raise self.unknown(key)
        return present

    async def _insert(
        self,
        connection: Connection,
        id: UUID,
        new: D,
        author: Author,
        *,
        enabled: bool,
        declared: dict[str, Any] | None,
    ) -> bool:
        next_run = new.trigger.next_after(author.now, str(id)) if enabled else None
        created = await self.rows.insert(
            connection, id, new, enabled=enabled, origin=author.origin, declared=declared, now=author.now,
            next_run=next_run,
        )  # fmt: skip
        if created:
            after = {**new.to_fields(), "enabled": enabled}
            await self._record(connection, id, 1, new.key, "created", author, None, after)
        return created

    async def _change(
        self,
        connection: Connection,
        present: S,
        new: D,
        author: Author,
        *,
        enabled: bool | None = None,
        declared: dict[str, Any] | None = None,
    ) -> bool:
        """One change; False if there is none. A new reason to run, and being switched on, work out the next run anew;
        all else leaves it."""
        is_on = present.enabled if enabled is None else enabled
        switched = is_on != present.enabled
        before, after = _state(present), {**new.to_fields(), "enabled": is_on}
        if before == after and declared is None:
            audit_recorder.changed_nothing()
            return False
        self.check_names(new, present.definition)
        retimed = self.retimed(present, new)
        if retimed or (switched and is_on):  # one that has come to its end can still be edited and switched off
            check_runs(new.trigger, author.now)
        await self.check_others(connection, new, present.definition)
        next_run = present.next_run_at
        if retimed or switched:
            await self.settle(connection, present, author, retimed=retimed, is_on=is_on)
            next_run = new.trigger.next_after(author.now, str(present.id)) if is_on else None
        version = await self.rows.change(
            connection, present.id, new, enabled=is_on, origin=present.origin if declared is None else author.origin,
            declared=declared, now=author.now, next_run=next_run,
        )  # fmt: skip
        change = ("enabled" if is_on else "disabled") if switched else "edited"
        await self._record(connection, present.id, version, new.key, change, author, before, after)
        return True

    async def _delete(self, connection: Connection, present: S, author: Author) -> None:
        await self.let_go(connection, present, author)
        await self.rows.delete(connection, present.id)
        next_version, before = present.version + 1, _state(present)
        await self._record(connection, present.id, next_version, present.key, "deleted", author, before, None)

    async def _record(
        self,
        connection: Connection,
        id: UUID,
        version: int,
        key: str,
        change: str,
        author: Author,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        audit_recorder.tell_part(key, before, after, author.reason)
        await self.rows.record_version(
            connection, Version(id, version, key, change, author.now, author.actor, author.reason, before, after)
        )


def _state(present: InForce) -> dict[str, Any]:
    return {**present.fields, "enabled": present.enabled}


def _refuse_if_changed(present: Stored[Any], wanted: int | None) -> None:
    """Refuse to go on if it is not the version somebody has looked at."""
    if wanted is not None and present.version != wanted:
        raise Conflict(
            f"{present.key!r} is at version {present.version}, not {wanted}",
            remedy="look at it again before changing it",
        )
