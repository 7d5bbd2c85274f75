"""Batch operations (``app.batches``): submit, watch, pause, resume and cancel many items of one manifest.

Inputs are stored in chunks, one transaction each, under the lock of the batch, which counts the inputs received. An
interrupted submission therefore continues after its last chunk if it is repeated with the same key and inputs. Pausing,
resuming and cancelling change a limited number of tasks per transaction, so locks are short.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any
from uuid import UUID

from tenuto.definitions import manifest_definitions
from tenuto.errors import Conflict, Invalid, NotFound, quoted
from tenuto.ids import new_id, new_ids
from tenuto.model import validation
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.filter_keys import BATCH_KEYS
from tenuto.model.filters import Filter
from tenuto.model.work.tasks import NewTask, Settlement, cancelled_outcome, parse_duration_seconds
from tenuto.operations.argument_checks import MAX_LIMIT, build_filter, check_limit, require_single_match
from tenuto.operations.bound_operation import OpenDatabase, Operation, OperationGroup
from tenuto.operations.definitions.manifests import Manifests
from tenuto.operations.work.batch_inputs import ChunkReader, KeyFunction, PipelinedWriter
from tenuto.operations.work.completion_waiter import EndSignal, PollIntervals, wait_until_ended
from tenuto.operations.work.dead_letters import DeadLetters
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling.manifest_manager import new_run
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import StoredManifest
from tenuto.store.filter_sql import CappedCount
from tenuto.store.work import activities, batches, task_outcomes
from tenuto.store.work.batches import BatchItemRecord, BatchOutcomes, BatchRecord, StoredBatch

CHUNK_SIZE = 5000
"""Number of tasks that one transaction of a pause, resumption or cancellation changes."""
_RATE_WINDOW = timedelta(seconds=10)
_POLL_INTERVALS = PollIntervals(first_seconds=0.02, growth=1.5, max_seconds=1.0)


class BatchState(StrEnum):
    FILLING = "filling"
    """Items are still being submitted."""
    IN_PROGRESS = "in_progress"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class BatchDetails(BatchOutcomes):
    """A batch with totals, rate and remaining time."""

    open_count: int
    done_count: int
    failed_count: int
    """Number of items that failed permanently and were not retried."""
    cancelled_count: int
    running_count: int
    rate_per_second: float
    """Items that ended per second, lately."""
    remaining_seconds: float | None
    state: BatchState


@dataclass(frozen=True, slots=True)
class Batch:
    """Handle of a batch."""

    id: UUID
    _batches: Batches

    async def progress(self) -> BatchDetails:
        """Return counts by state, rate and remaining time."""
        return await self._batches.get(self.id)

    async def pause(self) -> None:
        await self._batches.pause(self.id)

    async def resume(self) -> None:
        await self._batches.resume(self.id)

    async def cancel(self) -> None:
        await self._batches.cancel(self.id)

    async def retry_failed(self, *, note: str | None = None) -> int:
        """Retry the permanently failed items and return their number."""
        return await self._batches.retry_failed(self.id, note=note)

    async def wait(self, timeout: float | str | timedelta | None = None) -> BatchDetails:
        """Wait until all items have ended and return the batch."""
        return await self._batches.wait(self.id, timeout)

    def items(self, *, state: str | None = None) -> AsyncIterator[BatchItemRecord]:
        """Iterate over the items with their outcomes."""
        return self._batches.items(self.id, state=state)


class Batches(OperationGroup):
    """Operations on batches."""

    def __init__(
        self, open: OpenDatabase, caller: OperationCaller, manifests: Manifests, dead_letters: DeadLetters
    ) -> None:
        super().__init__(open, caller)
        self._manifests = manifests
        self._dead_letters = dead_letters

    async def enqueue(
        self,
        manifest: Manifest | str,
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        key: KeyFunction | None = None,
        batch_key: str | None = None,
        name: str | None = None,
        atomic: bool = False,
    ) -> Batch:
        """Run a manifest for each input. Inputs are read as needed, so memory use stays constant.

        ``key`` computes the key of an item; an item whose key has an open task is not created again. A repeated call
        with the same ``batch_key`` and the same inputs continues an interrupted one. If an input is invalid, the items
        before it remain stored and the batch stays incomplete; with ``atomic``, all items are stored or none.
        """
        if not isinstance(manifest, Manifest | str):
            raise Invalid(
                f"{quoted(manifest, 60)} is not a manifest",
                code="manifest.type.invalid",
                field="manifest",
                remedy="give what app.manifest(...) returned, or its external id; for a job, use app.enqueue_many",
            )
        external_id = manifest if isinstance(manifest, str) else manifest.external_id
        operation = await self._begin("manifest.bulk", target=external_id, after={"batch_key": batch_key, "name": name})
        database, now, by = operation.database, operation.now, operation.actor
        stored = await manifest_definitions.get(database, external_id)
        if batch_key is not None:
            validation.check_label(batch_key, field="batch_key")
        if name is not None:
            validation.check_title(name, field="name")
        dump = self._manifests.item_serializer(stored)
        if atomic:
            reader = ChunkReader(inputs, dump, key, with_digest=batch_key is not None)
            return await self._store_atomically(operation, stored, reader, batch_key, name)
        batch = await open_batch(database, stored, now, by, key=batch_key, name=name)
        writer = PipelinedWriter()
        reader = ChunkReader(
            inputs,
            dump,
            key,
            stored_count=received_count(batch),
            stored_digest=batch.digest,
            with_digest=batch_key is not None,
            start_write=writer.start_pending,
        )
        if batch.complete_at is None:
            template = await item_template(database, stored, batch.id, now, by)
            await self._store_in_chunks(database, batch, template, reader, writer)
        else:
            await reader.check_all_stored()
        return Batch(batch.id, self)

    async def _store_in_chunks(
        self, database: Database, batch: StoredBatch, template: NewTask, reader: ChunkReader, writer: PipelinedWriter
    ) -> None:
        id, start = batch.id, received_count(batch)
        async with writer:
            async for chunk in reader:
                run = replace(template, created_at=database.clock.now())  # queued since its own arrival
                await writer.submit(
                    partial(add_items, database, id, start, run, chunk.inputs, chunk.keys, chunk.digest)
                )
                start += len(chunk.inputs)
        await complete_batch(database, id, database.clock.now())

    async def _store_atomically(
        self,
        operation: Operation,
        stored: StoredManifest,
        reader: ChunkReader,
        key: str | None,
        name: str | None,
    ) -> Batch:
        """Check all items, then store the batch and the items in one transaction."""
        chunks = [chunk async for chunk in reader]
        database, new, now, by = operation.database, new_id(), operation.now, operation.actor
        ids = [new_ids(len(chunk.inputs)) for chunk in chunks]
        template = await item_template(database, stored, new, now, by)

        async def store_batch(connection: Connection) -> UUID:
            batch = await open_batch_in_tx(connection, new, stored, now, by, key=key, name=name)
            if batch.id != new and batch.complete_at is None:
                raise Conflict(
                    f"batch {batch.id} with the key {key!r} is being submitted without atomic",
                    code="batch.key.not_atomic",
                    field="batch_key",
                    remedy="finish it without atomic, or use another batch_key",
                )
            if batch.complete_at is not None:
                reader.check_same_inputs(received_count(batch), batch.digest)
            else:
                start = 0
                for chunk_ids, chunk in zip(ids, chunks, strict=True):
                    await add_items_in_tx(
                        connection, new, start, template, chunk_ids, chunk.inputs, chunk.keys, chunk.digest
                    )
                    start += len(chunk.inputs)
                await batches.complete_submission(connection, new, now)
            id: UUID = batch.id
            return id

        return Batch(await database.transaction(store_batch), self)

    async def get(self, id: UUID) -> BatchDetails:
        """Return a batch with counts by state, rate and remaining time."""
        database = await self._open()
        found = await batches.load_batch(database, id)
        if found is None:
            raise _not_found(id)
        now = database.clock.now()
        since = max(now - _RATE_WINDOW, found.created_at)  # a new batch has a shorter window
        window_seconds = max((now - since).total_seconds(), 0.5)
        return _with_totals(found, await batches.count_ended_since(database, id, since) / window_seconds)

    async def find(self, text: str) -> UUID:
        """Return the id of the batch with this key, or the only batch id that begins with this prefix."""
        database = await self._open()
        if (known := await batches.find_batch_id_by_key(database, text)) is not None:
            return known
        found = await batches.find_batches(database, *activities.id_range_of_prefix(text))
        return require_single_match(found, text, noun="batch", list_command="`tenuto batch list`")

    async def list(
        self, where: str | Filter | None = None, *, below: UUID | None = None, limit: int = 50, **values: Any
    ) -> Sequence[BatchRecord]:
        """List batches, newest first; page with ``below``.

        ``where`` is a filter such as ``paused:yes created:>1d``; further arguments are exact values of its keys, such
        as ``manifest="invoices"``.
        """
        database = await self._open()
        filter = build_filter(BATCH_KEYS, where, database.clock.now()).where(**values)
        return await batches.list_batches(database, filter, below=below, limit=check_limit(limit))

    async def count(self, where: str | Filter | None = None, **values: Any) -> CappedCount:
        """Count batches, exactly up to 10,000; the arguments are those of `list`."""
        database = await self._open()
        filter = build_filter(BATCH_KEYS, where, database.clock.now()).where(**values)
        return await batches.count_batches(database, filter)

    async def count_of_each(self, wheres: Sequence[str | Filter]) -> Sequence[CappedCount]:
        """Count the batches that meet each of the filters, in one statement."""
        database = await self._open()
        now = database.clock.now()
        return await batches.count_batches_of_each(database, [build_filter(BATCH_KEYS, each, now) for each in wheres])

    async def items(self, id: UUID, *, state: str | None = None) -> AsyncIterator[BatchItemRecord]:
        """Iterate over all items of a batch with their outcomes."""
        database, after = await self._open(), None
        while page := await batches.list_batch_items(database, id, after=after, state=state, limit=MAX_LIMIT):
            for item in page:
                yield item
            after = page[-1].task_id

    async def list_items(
        self, id: UUID, *, above: UUID | None = None, state: str | None = None, limit: int = 100
    ) -> Sequence[BatchItemRecord]:
        """List one page of items of a batch; page with ``above``."""
        database = await self._open()
        found = await batches.list_batch_items(database, id, after=above, state=state, limit=check_limit(limit))
        if not found:
            await self.get(id)
        return found

    async def pause(self, id: UUID) -> None:
        """Pause a batch: no more items start; running items continue."""
        operation = await self._begin("batch.pause", target=str(id))
        await pause_batch(
            operation.database, id, operation.now, operation.actor, on_unchanged=operation.entry.mark_unchanged
        )

    async def resume(self, id: UUID) -> None:
        """Resume a paused batch."""
        operation = await self._begin("batch.resume", target=str(id))
        await resume_batch(operation.database, id, operation.now, on_unchanged=operation.entry.mark_unchanged)

    async def cancel(self, id: UUID) -> None:
        """Cancel a batch: remove items that have not started, and ask running ones to stop."""
        operation = await self._begin("batch.cancel", target=str(id))
        await cancel_batch(
            operation.database, id, operation.now, operation.actor, on_unchanged=operation.entry.mark_unchanged
        )

    async def retry_failed(self, id: UUID, *, note: str | None = None, request_id: UUID | None = None) -> int:
        """Retry the permanently failed items and return their number; see `DeadLetters.retry_selected`."""
        await self.get(id)
        return await self._dead_letters.retry_all_of_batch(id, note=note, request_id=request_id)

    async def wait(self, id: UUID, timeout: float | str | timedelta | None = None) -> BatchDetails:
        """Wait until all items of a batch have ended and return the batch."""
        timeout_seconds = parse_duration_seconds(timeout, field="timeout")

        async def load_if_ended(_: bool) -> BatchDetails | None:
            found = await self.get(id)
            has_ended = found.ended_at is not None or (found.complete_at is not None and found.open_count == 0)
            return found if has_ended else None

        def timeout_error() -> Conflict:
            return Conflict(
                f"batch {id} has not ended after {timeout_seconds:g} s",
                code="batch.wait.timeout",
                remedy=f"raise the timeout, or see `tenuto batch show {id}`",
            )

        return await wait_until_ended(load_if_ended, EndSignal(_POLL_INTERVALS), timeout_seconds, timeout_error)


def _with_totals(batch: BatchOutcomes, rate_per_second: float) -> BatchDetails:
    """Return a batch with its totals, rate and remaining time."""
    open_count = sum(batch.open_counts.values())
    ended = batch.ended_counts
    done_count = ended.get("completed", 0) + ended.get("completed_with_warning", 0)
    cancelled_count = ended.get("cancelled", 0)
    return BatchDetails(
        **{field.name: getattr(batch, field.name) for field in fields(batch)},
        open_count=open_count,
        done_count=done_count,
        # A retried item is counted by its new task; its old failure is subtracted.
        failed_count=sum(ended.values()) - done_count - cancelled_count - batch.retried_count,
        cancelled_count=cancelled_count,
        running_count=batch.open_counts.get("running", 0),
        rate_per_second=rate_per_second,
        remaining_seconds=open_count / rate_per_second if rate_per_second and open_count else None,
        state=_state(batch, open_count),
    )


def _state(batch: BatchOutcomes, open_count: int) -> BatchState:
    if batch.cancelled_at is not None:
        return BatchState.CANCELLED
    if batch.paused_at is not None:
        return BatchState.PAUSED
    if batch.complete_at is None:
        return BatchState.FILLING
    return BatchState.IN_PROGRESS if open_count else BatchState.ENDED


# --- transactions ---------------------------------------------------------------------------------------------------


async def open_batch(
    database: Database, manifest: StoredManifest, now: datetime, by: Actor, *, key: str | None, name: str | None
) -> StoredBatch:
    """Find the batch with this key, or create it."""
    id = new_id()
    return await database.transaction(
        lambda connection: open_batch_in_tx(connection, id, manifest, now, by, key=key, name=name)
    )


async def open_batch_in_tx(
    connection: Connection,
    id: UUID,
    manifest: StoredManifest,
    now: datetime,
    by: Actor,
    *,
    key: str | None,
    name: str | None,
) -> StoredBatch:
    """Find or create a batch in an open transaction."""
    await batches.insert_batch(
        connection, id, key=key, manifest_id=manifest.id, external_id=manifest.external_id, name=name, now=now, by=by
    )
    found = (
        await batches.load_batch_by_key(connection, key)
        if key is not None
        else await batches.lock_batch(connection, id)
    )
    assert found is not None
    if found.manifest_id != manifest.id:
        raise Conflict(
            f"the key {key!r} belongs to a batch of the manifest {found.external_id!r}",
            code="batch.key.in_use",
            field="batch_key",
            remedy="use another batch_key",
        )
    return found


async def item_template(
    database: Database, manifest: StoredManifest, batch_id: UUID, now: datetime, by: Actor
) -> NewTask:
    """Return the run from which all items of a batch are copied."""
    priority = 0
    if manifest.manifest.group is not None:
        for group in await manifests.list_groups(database, [manifest.manifest.group]):
            priority = group.priority
    return new_run(manifest.id, manifest.manifest, now, by, group_priority=priority, batch_id=batch_id)


def received_count(batch: StoredBatch) -> int:
    """Return the number of inputs received, including skipped duplicates."""
    return batch.item_count + batch.duplicate_count


async def add_items(
    database: Database,
    batch_id: UUID,
    start: int,
    template: NewTask,
    inputs: Sequence[str],
    keys: Sequence[str] | None,
    digest: str | None = None,
    sent: Callable[[], object] = lambda: None,
) -> int:
    """Store a chunk of items beginning at input number ``start``, and return the number of items created.

    Inputs that are already stored are skipped. ``sent`` is called when only the database has work left to do.
    """
    ids = new_ids(len(inputs))

    async def add_chunk(connection: Connection) -> int:
        return await add_items_in_tx(connection, batch_id, start, template, ids, inputs, keys, digest, sent)

    return await database.transaction(add_chunk)


async def add_items_in_tx(
    connection: Connection,
    batch_id: UUID,
    start: int,
    template: NewTask,
    ids: Sequence[UUID],
    inputs: Sequence[str],
    keys: Sequence[str] | None,
    digest: str | None = None,
    sent: Callable[[], object] = lambda: None,
) -> int:
    """Store a chunk of items in an open transaction; see `add_items`."""
    batch = await batches.lock_batch(connection, batch_id)
    if batch is None:
        raise _not_found(batch_id)
    if batch.cancelled_at is not None:
        raise _cancelled(batch)
    known = received_count(batch) - start  # stored already, by a lost reply or a concurrent caller
    if known >= len(inputs):  # guard: batches.part_is_added_once
        return 0
    ids, inputs, keys = ids[known:], inputs[known:], None if keys is None else keys[known:]
    assert template.manifest_id is not None
    if not await manifests.prevent_deletion(connection, template.manifest_id):  # guard: batches.manifest_is_kept
        raise Conflict(
            f"the manifest {batch.external_id!r} of batch {batch_id} has been deleted",
            code="batch.manifest.deleted",
            remedy="cancel the batch",
        )
    template.is_held = batch.paused_at is not None
    created = await batches.add_batch_part(connection, batch_id, template, ids, inputs, keys, digest, sent)
    if not template.is_held:
        await manifests.notify_run_enqueued(connection, template)
    return created


async def complete_batch(database: Database, batch_id: UUID, now: datetime) -> None:
    """Mark a batch as completely submitted."""
    await database.transaction(lambda connection: batches.complete_submission(connection, batch_id, now))


async def pause_batch(
    database: Database, id: UUID, now: datetime, by: Actor, *, on_unchanged: Callable[[], None] = lambda: None
) -> None:
    """Pause a batch. A repeated call completes an interrupted pause.

    ``on_unchanged`` is called in each transaction that changes nothing.
    """

    async def hold_chunk(connection: Connection) -> int:
        if id not in await batches.lock_batches_shared(connection, [id]):  # guard: batches.no_pause_after_resume
            return 0  # resumed meanwhile: held items would never be released
        return await batches.hold_batch_items(connection, id, CHUNK_SIZE)

    async def pause(connection: Connection) -> bool:
        is_paused = await batches.pause_batch(connection, id, now, by)
        if not is_paused:
            on_unchanged()
        return is_paused

    paused = await database.transaction(pause)
    if not await _repeat_until_zero(database, hold_chunk, on_unchanged) and not paused:
        found = await batches.load_batch(database, id)
        if found is None or found.paused_at != now:  # otherwise this call paused it and lost the reply
            raise _change_refusal(id, found, Conflict(f"batch {id} is already paused", code="batch.already_paused"))


async def resume_batch(
    database: Database, id: UUID, now: datetime, *, on_unchanged: Callable[[], None] = lambda: None
) -> None:
    """Resume a paused batch; see `pause_batch`. A repeated call completes an interrupted resumption."""
    resumed = False

    async def clear_pause(connection: Connection) -> None:
        nonlocal resumed
        is_resumed = await batches.resume_batch(connection, id)
        if not is_resumed:
            on_unchanged()
        resumed = is_resumed or resumed  # True if an earlier try lost its reply

    async def release_chunk(connection: Connection) -> int:
        state = (await batches.lock_batches_shared_with_state(connection, [id])).get(id)
        if state is None or state.is_paused or state.is_cancelled:
            return 0
        return await batches.release_batch_items(connection, id, now, CHUNK_SIZE)

    await database.transaction(clear_pause)
    if not await _repeat_until_zero(database, release_chunk, on_unchanged) and not resumed:
        found = await batches.load_batch(database, id)
        raise _change_refusal(id, found, Conflict(f"batch {id} is not paused", code="batch.not_paused"))


async def cancel_batch(
    database: Database, id: UUID, now: datetime, by: Actor, *, on_unchanged: Callable[[], None] = lambda: None
) -> None:
    """Cancel a batch; see `pause_batch`. A repeated call completes an interrupted cancellation."""

    async def end_chunk(connection: Connection) -> int:
        state = (await batches.lock_batches_shared_with_state(connection, [id])).get(id)
        if state is None or not state.is_cancelled:
            return 0
        tasks = await batches.lock_unclaimed_items(connection, id, CHUNK_SIZE)
        await task_outcomes.end_tasks(
            connection, [Settlement(task, cancelled_outcome(task, now, by)) for task in tasks]
        )
        return len(tasks)

    async def cancel(connection: Connection) -> bool:
        is_cancelled = await batches.cancel_batch(connection, id, now, by)
        if not is_cancelled:
            on_unchanged()
        return is_cancelled

    cancelled = await database.transaction(cancel)
    if not await _repeat_until_zero(database, end_chunk, on_unchanged) and not cancelled:
        found = await batches.load_batch(database, id)
        if found is None:
            raise _not_found(id)
        if found.cancelled_at != now:  # otherwise this call cancelled it and lost the reply
            raise _cancelled(found)


async def _repeat_until_zero(
    database: Database, change_chunk: Callable[[Connection], Awaitable[int]], on_unchanged: Callable[[], None]
) -> int:
    async def change(connection: Connection) -> int:
        count = await change_chunk(connection)
        if not count:
            on_unchanged()
        return count

    total = 0
    while count := await database.transaction(change):
        total += count
    return total


def _change_refusal(id: UUID, batch: StoredBatch | None, otherwise: Conflict) -> NotFound | Conflict:
    """Return the reason why a batch could not be paused or resumed."""
    if batch is None:
        return _not_found(id)
    return otherwise if batch.cancelled_at is None else _cancelled(batch)


def _not_found(id: UUID) -> NotFound:
    return NotFound(f"there is no batch {id}", code="batch.not_found", remedy="see `tenuto batch list`")


def _cancelled(batch: StoredBatch) -> Conflict:
    return Conflict(f"batch {batch.id} was cancelled by {batch.cancelled_by}", code="batch.cancelled")
