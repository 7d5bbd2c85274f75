"""Stopping one-shots: one by `cancelling`, as any task; all of them in one transaction.

A wipe holds what it finds before it touches it, so that nothing can slip from one state into another between looking
and acting. What nobody runs ends through `finish`; what runs is asked to stop, and is out of the registry from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from tenuto.engine import cancelling
from tenuto.errors import Conflict, NotFound
from tenuto.model.access import Actor
from tenuto.model.tasks import Settlement, Task, cancelled
from tenuto.store import auditing, finishing, oneshots
from tenuto.store.database import Connection, Database

SOME = 5000
"""How many are ended with one statement; all of them still in one transaction."""


@dataclass(slots=True)
class Wiped:
    """What a wipe has removed from the registry."""

    terminated: list[UUID] = field(default_factory=list)
    """All of them."""
    stopping: list[UUID] = field(default_factory=list)
    """Those among them that were running, and end as soon as their code has stopped."""


async def cancel(database: Database, id: UUID, by: Actor) -> Literal["terminated", "stopping", "ended"]:
    """Stop a one-shot, or find that it has ended already: it is not in the registry either way."""
    standing = await oneshots.standing(database, id)
    if standing is None:
        raise unknown(id)
    if standing == "ended":
        return "ended"
    try:
        return "terminated" if await cancelling.cancel(database, id, by) == "cancelled" else "stopping"
    except Conflict:
        if await oneshots.standing(database, id) == "ended":  # by itself, between looking and acting
            return "ended"
        raise


async def wipe(database: Database, by: Actor) -> Wiped:
    """Stop every one-shot there is: all of them, or, if that fails, none."""
    now = database.clock.now()
    tries: list[Wiped] = []

    async def all_of_them(connection: Connection) -> Wiped:
        wiped = Wiped()
        tries.append(wiped)
        async for waiting in oneshots.hold_waiting(connection, SOME):
            await end(connection, waiting)
            wiped.terminated += [task.id for task in waiting]
        # What runs comes last, with what was created or put back meanwhile: while we hold it nobody can renew it.
        while True:
            found = await oneshots.hold_some(connection, SOME)
            running = [task.id for task in found if task.worker_id is not None]
            await end(connection, [task for task in found if task.worker_id is None])
            if running:
                await oneshots.ask_to_stop(connection, running, now, by)
            wiped.terminated += [task.id for task in found]
            wiped.stopping += running
            if len(found) < SOME:
                auditing.tell(after={"total": len(wiped.terminated), "stopping": len(wiped.stopping)})
                return wiped

    async def end(connection: Connection, waiting: Sequence[Task]) -> None:
        await finishing.end_within(connection, [Settlement(task, cancelled(task, now, by)) for task in waiting])

    wiped = await database.transaction(all_of_them)
    for before in tries[:-1]:  # no reply came: what of it stands was done by us all the same
        stands = await oneshots.stopped_at(database, before.terminated, now)
        stands -= set(wiped.terminated)
        wiped.terminated += [id for id in before.terminated if id in stands]
        wiped.stopping += [id for id in before.stopping if id in stands]
    return wiped


def unknown(id: UUID) -> NotFound:
    """There is no such one-shot."""
    return NotFound(f"there is no one-shot {id}", remedy="see `tenuto once list`, and with --ended what has been")
