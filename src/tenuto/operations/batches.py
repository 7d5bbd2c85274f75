"""Batches are filled, paused, resumed and cancelled here, a part at a time.

Parts come in one transaction each, under the batch's lock, and the batch knows how many items are in: who was
interrupted goes on after the last one, given the same key and the same inputs. Pausing and cancelling move some
thousand tasks at a time, so that nothing is locked for long.

``app.batches``: bulk work as one thing that can be watched, paused and cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from tenuto.clock import steady
from tenuto.definitions import manifest_definitions
from tenuto.errors import Conflict, NotFound
from tenuto.ids import fresh_ids, new_id
from tenuto.lifecycle import completion
from tenuto.model import stored_values
from tenuto.model.actors import Actor
from tenuto.model.manifests import Manifest
from tenuto.model.tasks import Settlement, cancelled
from tenuto.operations.batch_inputs import Key, Parts, Storing
from tenuto.operations.dead_letters import DeadLetters
from tenuto.operations.listing import MAX_LISTED, Open, Record, listed, the_one
from tenuto.operations.manifests import Manifests
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling.manifest_manager import run_of
from tenuto.store import activities, batches, manifests
from tenuto.store.access import audit_recorder
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
        await completion.end_within(connection, [Settlement(task, cancelled(task, now, by)) for task in tasks])
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


_RATE_OVER = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Batch:
    """A handle on many inputs for one manifest."""

    id: UUID
    _batches: Batches

    async def progress(self) -> Record:
        """Counts by state, rate, and when it will be done."""
        return await self._batches.get(self.id)

    async def pause(self) -> None:
        await self._batches.pause(self.id)

    async def resume(self) -> None:
        await self._batches.resume(self.id)

    async def cancel(self) -> None:
        await self._batches.cancel(self.id)

    async def retry_failed(self, *, note: str | None = None) -> int:
        """Run what failed for good again; how many."""
        return await self._batches.retry_failed(self.id, note=note)

    async def wait(self, timeout: float | None = None) -> Record:
        """Wait until every item has come to its end."""
        return await self._batches.wait(self.id, timeout)

    def items(self, *, status: str | None = None) -> AsyncIterator[Record]:
        """Every item with what became of it."""
        return self._batches.items(self.id, status=status)


class Batches:
    """``app.batches``: bulk work under control."""

    def __init__(self, open: Open, who: Callable[[], Actor], kept: Manifests, dead_letters: DeadLetters) -> None:
        self._open = open
        self._who = who
        self._manifests = kept
        self._dead_letters = dead_letters

    async def enqueue(
        self,
        manifest: Manifest | str,
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        key: Key | None = None,
        batch_key: str | None = None,
        name: str | None = None,
        atomic: bool = False,
    ) -> Batch:
        """Have a manifest run for each of these inputs, taken in as they come, from a network too; memory stays flat.

        ``key`` gives each item a key: one whose key has an open task already is not created again. ``batch_key`` makes
        a repeated or interrupted call go on where it was; it must come with the same inputs. If an input is refused,
        what went before it stands, and the batch waits for the rest; ``atomic`` takes in all or nothing.
        """
        database = await self._open()
        external_id = manifest if isinstance(manifest, str) else manifest.external_id
        stored = await manifest_definitions.get(database, external_id)
        now, by = database.clock.now(), self._who()
        audit_recorder.tell(target=external_id, after={"batch_key": batch_key, "name": name})
        if batch_key is not None:
            stored_values.label(batch_key, field="batch_key")
        if name is not None:
            stored_values.title(name, field="name")
        dump = self._manifests.dumper(stored)
        if atomic:
            whole = Parts(inputs, dump, key, remembered=batch_key is not None)
            return await self._all_or_nothing(database, stored, whole, now, batch_key, name)
        batch = await open_batch(database, stored, now, by, key=batch_key, name=name)
        known, digest = items_in(batch), batch["digest"]  # since the last time
        storing = Storing()
        left = Parts(
            inputs, dump, key, known=known, digest=digest, remembered=batch_key is not None, begin=storing.begin
        )
        if batch["complete_at"] is None:
            like = await pattern(database, stored, batch["id"], now, by)
            await self._part_by_part(database, batch, like, left, storing)
        else:
            await left.must_be_in()
        return Batch(batch["id"], self)

    async def _part_by_part(
        self, database: Database, batch: Record, like: NewRun, parts: Parts, storing: Storing
    ) -> None:
        id, start = batch["id"], items_in(batch)
        async with storing:
            async for part in parts:
                here = replace(like, created_at=database.clock.now())  # in line since it came, not since the first
                await storing.take(partial(take_in, database, id, start, here, part.inputs, part.keys, part.digest))
                start += len(part.inputs)
        await complete(database, id, database.clock.now())

    async def _all_or_nothing(
        self,
        database: Database,
        stored: StoredManifest,
        whole: Parts,
        now: datetime,
        key: str | None,
        name: str | None,
    ) -> Batch:
        """Every item is checked before; the batch and all of them are one transaction."""
        parts = [part async for part in whole]
        new, by = new_id(), self._who()
        ids = [fresh_ids(len(part.inputs)) for part in parts]
        like = await pattern(database, stored, new, now, by)

        async def act(connection: Connection) -> UUID:
            batch = await open_within(connection, new, stored, now, by, key=key, name=name)
            if batch["id"] != new and batch["complete_at"] is None:
                raise Conflict(f"batch {batch['id']} with this key is being filled in parts", field="batch_key")
            if batch["complete_at"] is not None:
                whole.must_be(items_in(batch), batch["digest"])
            else:
                start = 0
                for some, part in zip(ids, parts, strict=True):
                    await take_in_within(connection, new, start, like, some, part.inputs, part.keys, part.digest)
                    start += len(part.inputs)
                await batches.complete(connection, new, now)
            id: UUID = batch["id"]
            return id

        return Batch(await database.transaction(act), self)

    async def get(self, id: UUID) -> Record:
        """A batch: counts by state, rate, and when it will be done."""
        database = await self._open()
        found = await batches.batch(database, id)
        if found is None:
            raise NotFound(f"there is no batch {id}", remedy="see `tenuto batch list`")
        now = database.clock.now()
        since = max(now - _RATE_OVER, found["created_at"])  # one that has just begun is not slow
        over = max((now - since).total_seconds(), 0.5)
        return _told(found, await batches.ended_since(database, id, since) / over)

    async def find(self, text: str) -> UUID:
        """The one batch with this key, or whose id begins so."""
        database = await self._open()
        if (known := await batches.with_key(database, text)) is not None:
            return known
        found = await batches.find(database, *activities.ids_beginning(text))
        return the_one(found, text, whose="batch's id", listed_by="`tenuto batch list`")

    async def list(
        self, *, below: UUID | None = None, manifest: str | None = None, limit: int = 50
    ) -> Sequence[Record]:
        """Batches, the newest first."""
        return await batches.list_batches(await self._open(), below=below, manifest=manifest, limit=listed(limit))

    async def items(self, id: UUID, *, status: str | None = None) -> AsyncIterator[Record]:
        """Every item of a batch with what became of it, by page."""
        database, after = await self._open(), None
        while page := await batches.items(database, id, after=after, status=status, limit=MAX_LISTED):
            for item in page:
                yield item
            after = page[-1]["task_id"]

    async def page_of_items(
        self, id: UUID, *, above: UUID | None = None, status: str | None = None, limit: int = 100
    ) -> Sequence[Record]:
        """Some items of a batch, the first ones or those after one."""
        database = await self._open()
        found = await batches.items(database, id, after=above, status=status, limit=listed(limit))
        if not found:
            await self.get(id)
        return found

    async def pause(self, id: UUID) -> None:
        """Let nothing more of a batch begin; what runs goes on to its end."""
        database = await self._open()
        audit_recorder.tell(target=str(id))
        await pause(database, id, database.clock.now(), self._who())

    async def resume(self, id: UUID) -> None:
        """Let a paused batch go on."""
        database = await self._open()
        audit_recorder.tell(target=str(id))
        await resume(database, id, database.clock.now())

    async def cancel(self, id: UUID) -> None:
        """Cancel: what has not begun is removed, what runs is told to stop."""
        database = await self._open()
        audit_recorder.tell(target=str(id))
        await cancel(database, id, database.clock.now(), self._who())

    async def retry_failed(self, id: UUID, *, note: str | None = None, request_id: UUID | None = None) -> int:
        """Run what failed for good again; how many. Asking again with the same ``request_id`` does what is left of it,
        and tells the whole."""
        await self.get(id)
        audit_recorder.tell(target=str(id), reason=note)
        return await self._dead_letters.retry_all(batch=id, note=note, request_id=request_id)

    async def wait(self, id: UUID, timeout: float | None = None) -> Record:
        """Wait until every item of a batch has come to its end."""
        deadline, pause = None if timeout is None else steady() + timeout, 0.02
        while True:
            found = await self.get(id)
            if found["ended_at"] is not None or (found["complete_at"] is not None and found["left"] == 0):
                return found
            left = pause if deadline is None else deadline - steady()
            if left <= 0:
                raise Conflict(f"batch {id} has not ended after {timeout:g} s", remedy="wait longer")
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, 1.0)


def _told(batch: Record, rate: float) -> Record:
    """A batch with its sums: how many are left, how fast they go, how long it will take."""
    left = sum(batch["open"].values())
    past: Mapping[str, int] = batch["past"]
    done = past.get("completed", 0) + past.get("completed_with_warning", 0)
    return {
        **batch,
        "left": left,
        "done": done,
        # An item that was run again is told of by its new task: of the old one only the letter remains.
        "failed": sum(past.values()) - done - past.get("cancelled", 0) - batch["retried"],
        "cancelled": past.get("cancelled", 0),
        "running": batch["open"].get("running", 0),
        "rate": rate,
        "seconds_left": left / rate if rate and left else None,
        "state": _state(batch, left),
    }


def _state(batch: Record, left: int) -> str:
    if batch["cancelled_at"] is not None:
        return "cancelled"
    if batch["paused_at"] is not None:
        return "paused"
    if batch["complete_at"] is None:
        return "filling"
    return "in_progress" if left else "ended"
