"""Batches are filled, paused, resumed and cancelled here, a part at a time.

Parts come in one transaction each, under the batch's lock, and the batch knows how many items are in: who was
interrupted goes on after the last one, given the same key and the same inputs. Pausing and cancelling move some
thousand tasks at a time, so that nothing is locked for long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.engine.manager import run_of
from tenuto.errors import Conflict, NotFound
from tenuto.ids import fresh_ids, new_id
from tenuto.model.access import Actor
from tenuto.model.tasks import Settlement, cancelled
from tenuto.store import batches, finishing, manifests
from tenuto.store.database import Connection, Database
from tenuto.store.manifests import NewRun, StoredManifest

SOME = 5000


async def open_batch(
    database: Database, manifest: StoredManifest, now: datetime, by: Actor, *, key: str | None, name: str | None
) -> dict[str, Any]:
    """The batch with this key, made if there is none."""
    id = new_id()
    return await database.transaction(
        lambda connection: open_within(connection, id, manifest, now, by, key=key, name=name)
    )


async def open_within(
    connection: Connection,
    id: UUID,
    manifest: StoredManifest,
    now: datetime,
    by: Actor,
    *,
    key: str | None,
    name: str | None,
) -> dict[str, Any]:
    """As `open_batch`, in a transaction that is already open."""
    await batches.insert(
        connection, id, key=key, manifest_id=manifest.id, external_id=manifest.external_id, name=name, now=now, by=by
    )
    found = await batches.by_key(connection, key) if key is not None else await batches.locked(connection, id)
    assert found is not None
    if found["manifest_id"] != manifest.id:
        raise Conflict(f"the key belongs to a batch of {found['external_id']!r}", field="batch_key")
    return found


async def pattern(database: Database, manifest: StoredManifest, batch_id: UUID, now: datetime, by: Actor) -> NewRun:
    """What every item of a batch has in common."""
    priority = 0
    if manifest.manifest.group is not None:
        for group in await manifests.list_groups(database, [manifest.manifest.group]):
            priority = group["priority"]
    return run_of(manifest.id, manifest.manifest, now, by, group_priority=priority, batch_id=batch_id)


def items_in(batch: dict[str, Any]) -> int:
    """How many of a batch's inputs have come in, those left out as duplicates included."""
    return int(batch["total"] + batch["duplicates"])


async def take_in(
    database: Database,
    batch_id: UUID,
    start: int,
    like: NewRun,
    inputs: Sequence[str],
    keys: Sequence[str] | None,
    digest: str | None = None,
    sent: Callable[[], object] = lambda: None,
) -> int:
    """One part of a batch, from its input number ``start`` on; how many items were created.

    What is in already is not taken in again. ``sent`` is called when there is only the database to wait for.
    """
    ids = fresh_ids(len(inputs))

    async def act(connection: Connection) -> int:
        return await take_in_within(connection, batch_id, start, like, ids, inputs, keys, digest, sent)

    return await database.transaction(act)


async def take_in_within(
    connection: Connection,
    batch_id: UUID,
    start: int,
    like: NewRun,
    ids: Sequence[UUID],
    inputs: Sequence[str],
    keys: Sequence[str] | None,
    digest: str | None = None,
    sent: Callable[[], object] = lambda: None,
) -> int:
    """As `take_in`, in a transaction that is already open."""
    batch = await batches.locked(connection, batch_id)
    if batch is None:
        raise NotFound(f"there is no batch {batch_id}")
    if batch["cancelled_at"] is not None:
        raise Conflict(f"batch {batch_id} was cancelled by {batch['cancelled_by']}")
    known = items_in(batch) - start  # in already: the reply was lost, or somebody else brought them
    if known >= len(inputs):
        return 0
    ids, inputs, keys = ids[known:], inputs[known:], None if keys is None else keys[known:]
    if not await manifests.keep(connection, like.manifest_id):
        raise Conflict(f"the manifest {batch['external_id']!r} is gone", remedy="cancel the batch")
    like.held_back = batch["paused_at"] is not None
    created = await batches.take_in(connection, batch_id, like, ids, inputs, keys, digest, sent)
    if not like.held_back:
        await manifests.tell_of(connection, like)
    return created


async def complete(database: Database, batch_id: UUID, now: datetime) -> None:
    """The last part is in."""
    await database.transaction(lambda connection: batches.complete(connection, batch_id, now))


async def pause(database: Database, id: UUID, now: datetime, by: Actor) -> None:
    """Let nothing more of a batch begin. Asked again, it also holds back what an interrupted pause has left."""

    async def hold_some(connection: Connection) -> int:
        if id not in await batches.share(connection, [id]):
            return 0  # resumed meanwhile: what waits now would wait for ever
        return await batches.hold_back(connection, id, SOME)

    paused = await database.transaction(lambda connection: batches.pause(connection, id, now, by))
    if not await _all(database, hold_some) and not paused:
        found = await batches.batch(database, id)
        if found is None or found["paused_at"] != now:  # else by ourselves: only the reply was lost
            raise await _refusal(database, id, "is paused already")


async def resume(database: Database, id: UUID, now: datetime) -> None:
    """Let a paused batch go on. Asked again, it also lets go what an interrupted resumption has left."""
    resumed = False

    async def act(connection: Connection) -> None:
        nonlocal resumed
        resumed = await batches.resume(connection, id) or resumed  # or by ourselves: only the reply was lost

    async def release_some(connection: Connection) -> int:
        standing = (await batches.shared(connection, [id])).get(id)
        if standing is None or standing["paused"] or standing["cancelled"]:
            return 0
        return await batches.release(connection, id, now, SOME)

    await database.transaction(act)
    if not await _all(database, release_some) and not resumed:
        raise await _refusal(database, id, "is not paused")


async def cancel(database: Database, id: UUID, now: datetime, by: Actor) -> None:
    """Cancel a batch: what has not begun is removed, what runs is told to stop. Asked again, it also removes what an
    interrupted cancellation has left."""

    async def end_some(connection: Connection) -> int:
        standing = (await batches.shared(connection, [id])).get(id)
        if standing is None or not standing["cancelled"]:
            return 0
        tasks = await batches.not_begun(connection, id, SOME)
        await finishing.end_within(connection, [Settlement(task, cancelled(task, now, by)) for task in tasks])
        return len(tasks)

    done = await database.transaction(lambda connection: batches.cancel(connection, id, now, by))
    if not await _all(database, end_some) and not done:
        found = await batches.batch(database, id)
        if found is None or found["cancelled_at"] != now:  # else by ourselves: only the reply was lost
            raise await _refusal(database, id, "")


async def _all(database: Database, some: Callable[[Connection], Awaitable[int]]) -> int:
    total = 0
    while found := await database.transaction(some):
        total += found
    return total


async def _refusal(database: Database, id: UUID, otherwise: str) -> NotFound | Conflict:
    found = await batches.batch(database, id)
    if found is None:
        return NotFound(f"there is no batch {id}", remedy="see `tenuto batch list`")
    if found["cancelled_at"] is not None:
        return Conflict(f"batch {id} was cancelled by {found['cancelled_by']}")
    return Conflict(f"batch {id} {otherwise}")
