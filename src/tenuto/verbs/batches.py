"""``app.batches``: bulk work as one thing that can be watched, paused and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from tenuto.clock import steady
from tenuto.engine import bulk, manifesting
from tenuto.errors import Conflict, NotFound
from tenuto.ids import fresh_ids, new_id
from tenuto.model import payloads
from tenuto.model.access import Actor
from tenuto.model.manifests import Manifest
from tenuto.store import activities, auditing, batches
from tenuto.store.database import Connection, Database
from tenuto.store.manifests import NewRun, StoredManifest
from tenuto.verbs.asking import MAX_LISTED, Open, Record, listed, the_one
from tenuto.verbs.deadletters import DeadLetters
from tenuto.verbs.manifests import Manifests
from tenuto.verbs.parts import Key, Parts
from tenuto.verbs.storing import Storing

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
        stored = await manifesting.get(database, external_id)
        now, by = database.clock.now(), self._who()
        auditing.tell(target=external_id, after={"batch_key": batch_key, "name": name})
        if batch_key is not None:
            payloads.label(batch_key, field="batch_key")
        if name is not None:
            payloads.title(name, field="name")
        dump = self._manifests.dumper(stored)
        if atomic:
            whole = Parts(inputs, dump, key, remembered=batch_key is not None)
            return await self._all_or_nothing(database, stored, whole, now, batch_key, name)
        batch = await bulk.open_batch(database, stored, now, by, key=batch_key, name=name)
        known, digest = bulk.items_in(batch), batch["digest"]  # since the last time
        storing = Storing()
        left = Parts(
            inputs, dump, key, known=known, digest=digest, remembered=batch_key is not None, begin=storing.begin
        )
        if batch["complete_at"] is None:
            like = await bulk.pattern(database, stored, batch["id"], now, by)
            await self._part_by_part(database, batch, like, left, storing)
        else:
            await left.must_be_in()
        return Batch(batch["id"], self)

    async def _part_by_part(
        self, database: Database, batch: Record, like: NewRun, parts: Parts, storing: Storing
    ) -> None:
        id, start = batch["id"], bulk.items_in(batch)
        async with storing:
            async for part in parts:
                here = replace(like, created_at=database.clock.now())  # in line since it came, not since the first
                await storing.take(
                    partial(bulk.take_in, database, id, start, here, part.inputs, part.keys, part.digest)
                )
                start += len(part.inputs)
        await bulk.complete(database, id, database.clock.now())

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
        like = await bulk.pattern(database, stored, new, now, by)

        async def act(connection: Connection) -> UUID:
            batch = await bulk.open_within(connection, new, stored, now, by, key=key, name=name)
            if batch["id"] != new and batch["complete_at"] is None:
                raise Conflict(f"batch {batch['id']} with this key is being filled in parts", field="batch_key")
            if batch["complete_at"] is not None:
                whole.must_be(bulk.items_in(batch), batch["digest"])
            else:
                start = 0
                for some, part in zip(ids, parts, strict=True):
                    await bulk.take_in_within(connection, new, start, like, some, part.inputs, part.keys, part.digest)
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
        auditing.tell(target=str(id))
        await bulk.pause(database, id, database.clock.now(), self._who())

    async def resume(self, id: UUID) -> None:
        """Let a paused batch go on."""
        database = await self._open()
        auditing.tell(target=str(id))
        await bulk.resume(database, id, database.clock.now())

    async def cancel(self, id: UUID) -> None:
        """Cancel: what has not begun is removed, what runs is told to stop."""
        database = await self._open()
        auditing.tell(target=str(id))
        await bulk.cancel(database, id, database.clock.now(), self._who())

    async def retry_failed(self, id: UUID, *, note: str | None = None, request_id: UUID | None = None) -> int:
        """Run what failed for good again; how many. Asking again with the same ``request_id`` does what is left of it,
        and tells the whole."""
        await self.get(id)
        auditing.tell(target=str(id), reason=note)
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
