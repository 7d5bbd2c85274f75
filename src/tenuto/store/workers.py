"""Workers, queues and the counters of the nets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict
from tenuto.postgres.database import UNIQUE_VIOLATION, Connection, Database, DatabaseError, Row
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One start of a named service. The name lasts, the id is new each time."""

    id: UUID
    name: str
    service: str
    host: str
    boot: str
    pid: int
    version: str
    queues: list[str]
    slots: int


async def register(database: Database, me: Incarnation, *, name_is_mine: bool, silence: timedelta) -> UUID | None:
    """Enter the register; the id of the previous incarnation of this name, if that one is proven dead only now: what
    it holds may be taken back at once.

    Proof is that we hold the lock of its name in the same home, or that its host has been booted since. Without, it is
    given up if it has been silent for so long and none of its leases runs; they may be longer than ours. Otherwise this
    is a second worker of that name, and refused.
    """

    async def enter(connection: Connection) -> UUID | None:
        before = await connection.fetchrow(SQL.alive_named, me.service, me.name)
        proven = False
        if before is not None and before["id"] != me.id:
            same_host = before["host"] == me.host
            proven = (same_host and name_is_mine) or (same_host and before["boot"] != me.boot)
            if not proven and (before["silent_for"] < silence or before["leased_for"] is not None):
                raise _taken(me, before, silence)
            await connection.execute(SQL.declare_ended if proven else SQL.give_up, before["id"])
        await connection.execute(
            SQL.register, me.id, me.name, me.service, me.host, me.boot, me.pid, me.version, me.queues, me.slots
        )
        return before["id"] if before is not None and proven else None

    try:
        return await database.transaction(enter)
    except DatabaseError as error:
        if error.state == UNIQUE_VIOLATION:  # somebody of that name has entered between our look and our step
            return await database.transaction(enter)
        raise


def _taken(me: Incarnation, other: Row, silence: timedelta) -> Conflict:
    where = f"{other['host'].partition('#')[0]} (pid {other['pid']})"
    if other["silent_for"] < silence:
        what = f"a {me.service} named {me.name} is alive on {where}"
        free = f"{silence.total_seconds():.0f} s after its last sign of life, unless its leases run longer"
    else:
        left = other["leased_for"].total_seconds()
        what = f"the {me.service} {me.name} on {where} is silent, but has leases that run for another {left:.0f} s"
        free = "when they have run out"
    remedy = f"give this one another name with --name; if that one is dead, its name is free {free}"
    return Conflict(what, field="name", remedy=remedy)


async def leave(database: Database, worker_id: UUID) -> None:
    """Leave the register."""
    await database.all(SQL.declare_ended, worker_id)


async def draining(database: Database, worker_id: UUID) -> None:
    """Say that no more work is taken."""
    await database.all(SQL.draining, worker_id)


async def seen(database: Database, worker_id: UUID) -> datetime | None:
    """Give a sign of life: the database's time, or None if somebody has declared this worker dead."""
    now: datetime | None = await database.value(SQL.seen, worker_id)
    return now


async def ended_holders(database: Database, limit: int = 100) -> list[UUID]:
    """Workers that are known to be dead, and not only silent, and still hold tasks."""
    return [row["id"] for row in await database.all(SQL.ended_holders, limit)]


async def bury_silent(database: Database, silence: timedelta, own: Sequence[UUID] = ()) -> int:
    """Close the books on incarnations nobody hears of and that hold nothing; never on the caller's own."""
    return len(await database.all(SQL.bury_silent, silence, list(own)))


async def forget_ended(database: Database, before: datetime) -> None:
    await database.all(SQL.forget_ended, before)


async def list_workers(database: Database, *, ended: bool = False, limit: int = 200) -> list[dict[str, Any]]:
    return [dict(row) for row in await database.all(SQL.list_workers, ended, limit)]


async def count_repair(connection: Connection, net: str, count: int) -> None:
    """Remember that a net found something: in normal operation it finds nothing."""
    await connection.execute(SQL.count_repair, net, count)


async def list_repairs(database: Database) -> list[dict[str, Any]]:
    return [dict(row) for row in await database.all(SQL.list_repairs)]


async def limit_queue(database: Database, name: str, max_running: int | None) -> None:
    await database.all(SQL.limit_queue, name, max_running)


async def pause_queue(database: Database, name: str, *, by: str, reason: str | None) -> None:
    await database.all(SQL.pause_queue, name, by, reason)


async def resume_queue(database: Database, name: str) -> None:
    await database.all(SQL.resume_queue, name)


async def list_queues(database: Database, limit: int = 200) -> list[dict[str, Any]]:
    return [dict(row) for row in await database.all(SQL.list_queues, limit)]
