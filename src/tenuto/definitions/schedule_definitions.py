"""Schedules, made and changed as all definitions are (`keeping`).

What is said here is what holds for them alone: they may run each other, but not in circles; and what fell due leaves
its row in the ledger, also when the schedule is switched, gets another trigger or goes.
"""

from __future__ import annotations

from datetime import datetime

from tenuto.definitions.versioned import Author, Keeping
from tenuto.errors import Conflict, Invalid
from tenuto.ids import new_id
from tenuto.model.occurrences import Decision, first_undecided
from tenuto.model.schedules import Definition, check_names, refuse_cycles
from tenuto.model.steps import SCHEDULE
from tenuto.postgres.database import Connection
from tenuto.store import schedules
from tenuto.store.schedules import Entry, Schedule

_DECLARED_IN = {"code": "code", "file": "a file"}
"""The origins of what is made again when it is not there, in words."""


class _Schedules(Keeping[Definition, Schedule]):
    kind = "schedule"
    key_field = "name"
    rows = schedules.ROWS

    def called(self, key: str) -> str:
        return f"schedule named {key!r}"

    async def one_at_a_time(self, connection: Connection, new: Definition) -> None:
        await schedules.lock_circles(connection, new)

    def check_names(self, new: Definition, before: Definition | None = None) -> None:
        check_names(new, before)

    async def check_others(self, connection: Connection, new: Definition, before: Definition | None = None) -> None:
        if before is not None and (before.name, before.plan) == (new.name, new.plan):
            return
        targets = new.plan.targets(SCHEDULE)
        if targets:
            refuse_cycles(new.name, new.plan, await schedules.plans_with_schedules(connection))
            missing = sorted(targets - await schedules.known(connection, targets))
            if missing:
                raise Invalid(f"there is no {self.called(missing[0])}", field="steps", remedy="make that one first")

    async def check_new_key(self, connection: Connection, present: Schedule, new: Definition) -> None:
        # A declaration is found again by its name: under another one it would be made a second time, and run twice.
        if present.origin in _DECLARED_IN:
            raise Conflict(
                f"{present.name!r} is declared in {_DECLARED_IN[present.origin]}, and the name is how that finds it",
                field="name",
                remedy="rename it where it is declared; if it is declared no more, delete it and make it anew",
            )
        await _refuse_if_used(connection, present.name, field="name")

    def retimed(self, present: Schedule, new: Definition) -> bool:
        return present.trigger.fields() != new.trigger.fields()

    async def settle(
        self, connection: Connection, present: Schedule, author: Author, *, retimed: bool, is_on: bool
    ) -> None:
        if not present.enabled:
            await _leave_pause(connection, present, author)
            return
        await _leave_overdue(connection, present, author, "the trigger was changed" if retimed else "it was disabled")
        if not is_on:
            await schedules.give_up_queued(
                connection, present.id, "the schedule was disabled", author.now, author.actor.name, manual_too=False
            )

    async def let_go(self, connection: Connection, present: Schedule, author: Author) -> None:
        if active := await schedules.active(connection, present.id):
            raise Conflict(f"{present.name!r} is running", remedy=f"wait for execution {active[0]}, or cancel it")
        await _refuse_if_used(connection, present.name)
        why = "the schedule was deleted"
        await _leave_overdue(connection, present, author, why)
        await schedules.give_up_queued(connection, present.id, why, author.now, author.actor.name, manual_too=True)


_KEPT = _Schedules()
create = _KEPT.create
edit = _KEPT.edit
switch = _KEPT.switch
delete = _KEPT.delete
delete_within = _KEPT.delete_within
declare = _KEPT.declare
declare_within = _KEPT.declare_within
get = _KEPT.get
unknown = _KEPT.unknown
retimed = _KEPT.retimed


# --- inside ---------------------------------------------------------------------------------------------------------


async def _refuse_if_used(connection: Connection, name: str, field: str | None = None) -> None:
    if users := await schedules.users_of(connection, name):
        raise Conflict(f"{name!r} is a step of {users[0]!r}", field=field, remedy="change that one first")


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
