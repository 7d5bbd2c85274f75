"""Batches: many inputs for one manifest as one thing that can be counted, paused, resumed and cancelled.

The counts are those of the rows: tasks for what is open, activities for what is past. Nothing is counted twice, and
nothing can disagree with what happened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.model.actors import Actor
from tenuto.model.tasks import Task
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import beside
from tenuto.store.bulk_copy import copy_alike
from tenuto.store.manifests import NewRun, start_runs
from tenuto.tracing import asked, carrying

SQL = beside(__file__)

_JSON = frozenset({"open", "past", "input", "output", "error"})

Record = dict[str, Any]


async def insert(
    connection: Connection,
    id: UUID,
    *,
    key: str | None,
    manifest_id: UUID,
    external_id: str,
    name: str | None,
    now: datetime,
    by: Actor,
) -> bool:
    """Create a batch; False if there is one with its key (or this very one)."""
    row = await connection.fetchrow(SQL.insert, id, key, manifest_id, external_id, name, now, by.type, by.id, by.name)
    return row is not None


async def by_key(connection: Connection, key: str) -> Record | None:
    row = await connection.fetchrow(SQL.by_key, key)
    return None if row is None else dict(row)


async def with_key(database: Database, key: str) -> UUID | None:
    """The id of the batch with a key."""
    row = await database.one(SQL.by_key, key)
    return None if row is None else row["id"]


async def locked(connection: Connection, id: UUID) -> Record | None:
    """A batch, held until the transaction ends."""
    row = await connection.fetchrow(SQL.lock, id)
    return None if row is None else dict(row)


async def take_in(
    connection: Connection,
    id: UUID,
    like: NewRun,
    ids: Sequence[UUID],
    inputs: Sequence[str],
    keys: Sequence[str] | None,
    digest: str | None,
    sent: Callable[[], object],
) -> int:
    """One part of a batch: a run like ``like`` for each input; how many were created. The digest is of all so far;
    ``sent`` is called as soon as there is only the database to wait for."""
    if keys is None:
        await _copy(connection, like, ids, inputs, sent)
        created = len(inputs)
    else:
        created = len(await start_runs(connection, list(_runs(like, ids, inputs, keys))))
    await connection.execute(SQL.part_is_in, id, created, len(inputs) - created, digest)
    return created


def _runs(like: NewRun, ids: Sequence[UUID], inputs: Sequence[str], keys: Sequence[str]) -> Iterator[NewRun]:
    for id, text, key in zip(ids, inputs, keys, strict=True):
        yield NewRun(
            id, like.manifest_id, like.job, text, like.policy, like.queue, like.priority, like.created_at,
            like.initiator, like.run_at, like.limit_key, like.limit_max, like.limit_group, like.batch_id, key,
            like.correlation_id, like.tags, like.held_back,
        )  # fmt: skip


async def _copy(
    connection: Connection, like: NewRun, ids: Sequence[UUID], inputs: Sequence[str], sent: Callable[[], object]
) -> None:
    """The fast way, where nothing can clash: only what the runs have to say is sent, the rest are defaults."""
    actor = like.initiator
    shared = {
        "state": like.state, "queue": like.queue, "rank": -like.priority, "kind": "job", "name": like.job,
        "policy": carrying(like.policy, asked(like.job)), "limit_key": like.limit_key, "limit_max": like.limit_max,
        "initiator_type": actor.type, "initiator_id": actor.id, "initiator_name": actor.name,
        "manifest_id": like.manifest_id, "batch_id": like.batch_id, "limit_group": like.limit_group,
        "tags": like.tags, "run_at": like.run_at or like.created_at, "correlation_id": like.correlation_id,
    }  # fmt: skip
    await copy_alike(connection, shared, ids, inputs, sent)


async def complete(connection: Connection, id: UUID, now: datetime) -> None:
    """The last part has come in."""
    await connection.execute(SQL.complete, id, now)


async def batch(database: Database, id: UUID) -> Record | None:
    """One batch with what has become of its items so far."""
    row = await database.one(SQL.batch, id)
    return None if row is None else _record(row)


async def ended_since(database: Database, id: UUID, since: datetime) -> int:
    """How many items of a batch have ended since."""
    return int(await database.value(SQL.ended_lately, id, since))


async def list_batches(database: Database, *, below: UUID | None, manifest: str | None, limit: int) -> list[Record]:
    """Batches, the newest first."""
    return [dict(row) for row in await database.all(SQL.list_batches, below, manifest, limit)]


async def items(database: Database, id: UUID, *, after: UUID | None, status: str | None, limit: int) -> list[Record]:
    """The items of a batch with what has become of each, by their task's id."""
    return [_record(row) for row in await database.all(SQL.items, id, after, status, limit)]


async def pause(connection: Connection, id: UUID, now: datetime, by: Actor) -> bool:
    """Call a batch paused, from when on nothing of it is taken; False if it is, or was cancelled."""
    await connection.execute(SQL.no_claims)
    return await connection.fetchrow(SQL.pause, id, now, by.name) is not None


async def hold_back(connection: Connection, id: UUID, limit: int) -> int:
    """Hold back some of what has not begun; how many."""
    return len(await connection.fetch(SQL.hold_back, id, limit))


async def resume(connection: Connection, id: UUID) -> bool:
    """Call a batch no longer paused; False if it is not."""
    return await connection.fetchrow(SQL.resume, id) is not None


async def release(connection: Connection, id: UUID, now: datetime, limit: int) -> int:
    """Let go some of what was held back; how many."""
    return len(await connection.fetch(SQL.release, id, limit, now))


async def cancel(connection: Connection, id: UUID, now: datetime, by: Actor) -> bool:
    """Call a batch cancelled and ask what runs of it to stop; False if it was cancelled before.

    Nothing of it is taken from then on, and what was taken before is seen here.
    """
    await connection.execute(SQL.no_claims)
    if await connection.fetchrow(SQL.cancel, id, now, by.name) is None:
        return False
    await connection.execute(SQL.ask_to_stop, id, by.type, by.id, by.name)
    return True


async def not_begun(connection: Connection, id: UUID, limit: int) -> list[Task]:
    """Some tasks of a batch that nobody holds, to be ended together."""
    await connection.execute(SQL.for_many)
    return [Task(*row) for row in await connection.fetch(SQL.not_begun, id, limit)]


async def share(connection: Connection, ids: Iterable[UUID]) -> list[UUID]:
    """Keep batches from being paused or resumed until the transaction ends; those that are paused."""
    wanted = sorted(ids)
    return [row["id"] for row in await connection.fetch(SQL.share, wanted) if row["paused"]] if wanted else []


async def shared(connection: Connection, ids: Iterable[UUID]) -> dict[UUID, Record]:
    """As `share`, with whether each is paused or cancelled."""
    wanted = sorted(ids)
    return {row["id"]: dict(row) for row in await connection.fetch(SQL.share, wanted)} if wanted else {}


async def hold_these(connection: Connection, tasks: Sequence[UUID], paused: Sequence[UUID]) -> None:
    """What would be tried again, of batches that are paused, waits for them to be resumed."""
    await connection.execute(SQL.hold_these, tasks, paused)


async def forget(database: Database, cutoff: datetime, limit: int) -> int:
    """Let go a small batch of those that were complete before the cut-off and of which nothing is left; how many."""
    return len(await database.all(SQL.forget, cutoff, limit))


async def find(database: Database, low: UUID, high: UUID) -> list[UUID]:
    """Up to three ids of batches between two."""
    return [row["id"] for row in await database.all(SQL.find_batches, low, high)]


def _record(row: Row) -> Record:
    return {key: json.loads(value) if key in _JSON and value is not None else value for key, value in row.items()}
