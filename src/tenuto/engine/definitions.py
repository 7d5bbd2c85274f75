"""Schedules are made, changed, switched and deleted here: each change one transaction, one version, one who and why.

What code or a file declares is kept beside what is in force. A declaration that has not changed since the last time
changes nothing, so what an operator has edited stays; one that has changed comes into force. Whether a schedule is
enabled is the operator's alone once it exists. Nothing is deleted because somebody did not declare it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.engine.declaring import Effect, effect_of
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.model import payloads
from tenuto.model.access import Actor
from tenuto.model.occurrences import Decision, first_undecided
from tenuto.model.schedules import Definition, Plan, check_names, refuse_cycles
from tenuto.model.steps import SCHEDULE
from tenuto.model.triggers import check_runs
from tenuto.store import auditing, schedules
from tenuto.store.database import UNIQUE_VIOLATION, Connection, Database, DatabaseError
from tenuto.store.schedules import Entry, Schedule, Version

DECLARED_IN = {"code": "code", "file": "a file"}
"""The origins of what is made again when it is not there, in words."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who changes something, when, why, and in what way."""

    actor: Actor
    now: datetime
    reason: str | None = None
    origin: str = "hand"

    def __post_init__(self) -> None:
        if self.reason is not None:
            payloads.storable_text(self.reason, field="reason", limit=1000)


async def create(
    database: Database, definition: Definition, author: Author, *, enabled: bool = True, id: UUID | None = None
) -> Schedule:
    """Make a schedule; refused if there is one of that name. Asking again with the same id makes one."""
    id = id or new_id()
    auditing.tell(target=definition.name)

    async def act(connection: Connection) -> None:
        await schedules.lock_circles(connection, definition)
        await check(connection, definition, author.now)
        if not await _insert(connection, id, definition, author, enabled=enabled, declared=None):
            existing = await schedules.locked(connection, definition.name)
            if existing is None or existing.id != id:  # else ours: only the reply was lost
                raise Conflict(f"there is a schedule named {definition.name!r}", field="name", remedy="edit that one")
            auditing.changed_nothing()

    await database.transaction(act)
    return await get(database, definition.name)


async def edit(
    database: Database, name: str, definition: Definition, author: Author, *, version: int | None = None
) -> Schedule:
    """Put a definition in the place of the present one; with ``version``, only if nobody has changed it since."""
    auditing.tell(target=name)

    async def act(connection: Connection) -> None:
        await schedules.lock_circles(connection, definition)
        there = await schedules.locked(connection, definition.name)
        if there is not None and there.updated_at == author.now and there.definition == definition:
            return  # by ourselves: only the reply was lost
        present = await _locked(connection, name)
        refuse_if_changed(present.version, version, name)
        if definition.name != name:
            _refuse_to_rename_what_is_declared(present)
            if users := await schedules.users_of(connection, name):
                raise Conflict(f"{name!r} is a step of {users[0]!r}", field="name", remedy="change that one first")
        await _change(connection, present, definition, author)

    try:
        await database.transaction(act)
    except DatabaseError as error:
        if error.state == UNIQUE_VIOLATION:
            raise Conflict(f"there is a schedule named {definition.name!r}", field="name") from error
        raise
    return await get(database, definition.name)


async def switch(database: Database, name: str, author: Author, *, enabled: bool) -> bool:
    """Enable or disable; False if it was so already. What fell due while it was disabled is not made up for."""
    auditing.tell(target=name)

    async def act(connection: Connection) -> bool:
        present = await _locked(connection, name)
        if present.enabled == enabled:
            auditing.changed_nothing()
            return present.updated_at == author.now  # by ourselves: only the reply was lost
        await _change(connection, present, present.definition, author, enabled=enabled)
        return True

    return await database.transaction(act)


async def delete(database: Database, name: str, author: Author, *, version: int | None = None) -> None:
    """Delete a schedule, unless it runs or is part of another. What it did stays on record. With ``version``, only if
    nobody has changed it since."""
    auditing.tell(target=name)
    deleted = False

    async def act(connection: Connection) -> None:
        nonlocal deleted
        if deleted and await schedules.locked(connection, name) is None:
            return  # by ourselves: only the reply was lost
        if version is not None:
            refuse_if_changed((await _locked(connection, name)).version, version, name)
        await delete_within(connection, name, author)
        deleted = True

    await database.transaction(act)


async def delete_within(connection: Connection, name: str, author: Author) -> None:
    """As `delete`, as part of a larger change."""
    present = await _locked(connection, name)
    if active := await schedules.active(connection, present.id):
        raise Conflict(f"{name!r} is running", remedy=f"wait for execution {active[0]}, or cancel it")
    if users := await schedules.users_of(connection, name):
        raise Conflict(f"{name!r} is a step of {users[0]!r}", remedy="change that one first")
    await _leave_overdue(connection, present, author, "the schedule was deleted")
    await schedules.give_up_queued(
        connection, present.id, "the schedule was deleted", author.now, author.actor.name, manual_too=True
    )
    await schedules.delete(connection, present.id)
    await _record(connection, present.id, present.version + 1, name, "deleted", author, _fields(present), None)


async def declare(database: Database, definition: Definition, author: Author) -> Effect:
    """Bring what code or a file declares into force, as far as it says something new."""
    id = new_id()
    auditing.tell(target=definition.name)

    async def act(connection: Connection) -> Effect:
        effect = await declare_within(connection, definition, author, id)
        if effect in ("unchanged", "kept"):
            auditing.changed_nothing()
        return effect

    return await database.transaction(act)


async def declare_within(connection: Connection, definition: Definition, author: Author, id: UUID) -> Effect:
    """As `declare`, as part of a larger change; the id is for a schedule that comes to be."""
    fields = definition.to_fields()
    await schedules.lock_circles(connection, definition)
    present = await schedules.locked(connection, definition.name)
    if present is None:
        # Only what is new is checked: a service must be able to start though one of its schedules is over by now.
        await check(connection, definition, author.now)
        if await _insert(connection, id, definition, author, enabled=True, declared=fields):
            return "created"
        present = await _locked(connection, definition.name)
    if present.id == id:
        return "created"  # by ourselves: only the reply was lost
    effect = effect_of(present, fields)
    if effect == "changed":
        await _change(connection, present, definition, author, declared=fields)
    elif effect == "unchanged" and present.declared != fields:
        await schedules.declare(connection, present.id, fields, author.origin)
    return effect


async def get(database: Database, name: str) -> Schedule:
    """The schedule of that name."""
    found = await schedules.named(database, name)
    if found is None:
        raise unknown(name)
    return found


def _refuse_to_rename_what_is_declared(present: Schedule) -> None:
    """A declaration is found again by its name: under another one it would be made a second time, and run twice."""
    if present.origin in DECLARED_IN:
        raise Conflict(
            f"{present.name!r} is declared in {DECLARED_IN[present.origin]}, and the name is how that finds it",
            field="name",
            remedy="rename it where it is declared; if it is declared no more, delete it and make it anew",
        )


def refuse_if_changed(version: int, wanted: int | None, name: str) -> None:
    """Refuse to go on if it is not the version somebody has looked at."""
    if wanted is not None and version != wanted:
        raise Conflict(f"{name!r} is at version {version}, not {wanted}", remedy="look at it again before changing it")


def unknown(name: str) -> NotFound:
    return NotFound(f"there is no schedule named {name!r}", remedy="see `tenuto schedule list`")


async def check(connection: Connection, definition: Definition, now: datetime) -> None:
    """What can only be said against a definition by looking at the present and at the other schedules."""
    check_names(definition)
    check_runs(definition.trigger, now)
    await check_steps(connection, definition)


async def check_steps(connection: Connection, definition: Definition) -> None:
    """That what it runs is there, and does not run it in turn."""
    targets = definition.plan.targets(SCHEDULE)
    if targets:
        plans: dict[str, Plan] = await schedules.plans_with_schedules(connection)
        refuse_cycles(definition.name, definition.plan, plans)
        missing = sorted(targets - await schedules.known(connection, targets))
        if missing:
            raise Invalid(f"there is no schedule named {missing[0]!r}", field="steps", remedy="make that one first")


# --- inside ---------------------------------------------------------------------------------------------------------


async def _locked(connection: Connection, name: str) -> Schedule:
    present = await schedules.locked(connection, name)
    if present is None:
        raise unknown(name)
    return present


async def _insert(
    connection: Connection,
    id: UUID,
    definition: Definition,
    author: Author,
    *,
    enabled: bool,
    declared: dict[str, Any] | None,
) -> bool:
    next_run = definition.trigger.next_after(author.now, str(id)) if enabled else None
    created = await schedules.insert(
        connection, id, definition, enabled=enabled, origin=author.origin, declared=declared, now=author.now,
        next_run=next_run,
    )  # fmt: skip
    if created:
        after = {**definition.to_fields(), "enabled": enabled}
        await _record(connection, id, 1, definition.name, "created", author, None, after)
    return created


async def _change(
    connection: Connection,
    present: Schedule,
    definition: Definition,
    author: Author,
    *,
    enabled: bool | None = None,
    declared: dict[str, Any] | None = None,
) -> None:
    """One change. A new trigger, and being switched on, work out the next run from now; all else leaves it."""
    switched = enabled is not None and enabled != present.enabled
    is_on = present.enabled if enabled is None else enabled
    before, after = _fields(present), {**definition.to_fields(), "enabled": is_on}
    if before == after and declared is None:
        auditing.changed_nothing()
        return
    check_names(definition, present.definition)
    retimed = before["trigger"] != after["trigger"]
    if retimed or (switched and is_on):  # one that has come to its end can still be edited and switched off
        check_runs(definition.trigger, author.now)
    if before["steps"] != after["steps"] or before["name"] != after["name"]:
        await check_steps(connection, definition)
    next_run = present.next_run_at
    if retimed or switched:
        if present.enabled:
            why = "the trigger was changed" if retimed else "it was disabled"
            await _leave_overdue(connection, present, author, why)
        else:
            await _leave_pause(connection, present, author)
        next_run = definition.trigger.next_after(author.now, str(present.id)) if is_on else None
    if switched and not is_on:
        await schedules.give_up_queued(
            connection, present.id, "the schedule was disabled", author.now, author.actor.name, manual_too=False
        )
    version = await schedules.change(
        connection, present.id, definition, enabled=is_on, origin=present.origin if declared is None else author.origin,
        declared=declared, now=author.now, next_run=next_run,
    )  # fmt: skip
    change = ("enabled" if is_on else "disabled") if switched else "edited"
    await _record(connection, present.id, version, definition.name, change, author, before, after)


async def _leave_overdue(connection: Connection, present: Schedule, author: Author, why: str) -> None:
    """A due instant that has not fired yet leaves its row in the ledger all the same."""
    if present.next_run_at is None or present.next_run_at > author.now:
        return
    decided_until = (await schedules.standing(connection, [present.id]))[present.id].decided_until
    due_at = first_undecided(present.definition.trigger, present.next_run_at, decided_until, str(present.id))
    await _write_missed(connection, present, author, due_at, f"{why} before it fired")


async def _leave_pause(connection: Connection, present: Schedule, author: Author) -> None:
    """What fell due while it was off leaves its row, too, when it is switched on or gets another trigger."""
    since, by = await schedules.off_since(connection, present.id)
    decided_until = (await schedules.standing(connection, [present.id]))[present.id].decided_until
    begins = since or present.updated_at  # nothing is on record of one that somebody wrote into the table
    due_at = present.next_after(begins if decided_until is None else max(begins, decided_until))
    await _write_missed(connection, present, author, due_at, f"it was disabled by {by}" if by else "it was disabled")


async def _write_missed(
    connection: Connection, present: Schedule, author: Author, due_at: datetime | None, reason: str
) -> None:
    """One row, for all that was due from that instant up to now."""
    if due_at is None or due_at > author.now:
        return
    following = present.next_after(due_at)
    until = author.now if following is not None and following <= author.now else None  # it stands for several
    entry = Entry(new_id(), present.id, present.name, due_at, until, "trigger", Decision.MISSED, None, reason, None)
    await schedules.write_ledger(connection, [entry], author.now, author.actor.name)


def _fields(present: Schedule) -> dict[str, Any]:
    return {**present.definition.to_fields(), "enabled": present.enabled}


async def _record(
    connection: Connection,
    id: UUID,
    version: int,
    name: str,
    change: str,
    author: Author,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
) -> None:
    auditing.tell_part(name, before, after, author.reason)
    await schedules.record_version(
        connection, Version(id, version, name, change, author.now, author.actor, author.reason, before, after)
    )
