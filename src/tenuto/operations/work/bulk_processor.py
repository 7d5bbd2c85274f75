"""The processor of bulk operations: a service of schedulers that acts on the selected objects, a chunk at a time.

A chunk is one transaction with its counters. A process that dies loses the chunk it was working on, and any scheduler
continues there. Any number of processors may run; each operation has one at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC

from tenuto.logs import Log
from tenuto.model.filters import parse_filter
from tenuto.model.work.bulk_operations import BulkKind, is_id_list
from tenuto.operations.work.bulk_kinds import KINDS, ChunkContext
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.transaction_scope import TransactionScope
from tenuto.scheduling import backfills
from tenuto.service.polling_loop import PollingLoop
from tenuto.store.work import bulk_operations
from tenuto.store.work.bulk_operations import BulkOperationRecord

CHUNK_SIZE = 500
_POLL_SECONDS = 30.0

log = Log("tenuto.operations")


class BulkProcessor:
    """A background service that processes bulk operations."""

    name = "tenuto-bulk-operations"

    def __init__(self, open_database: Callable[[], Awaitable[Database]]) -> None:
        self._open_database = open_database
        self._loop: PollingLoop | None = None

    @property
    def is_ready(self) -> bool:
        return self._loop is not None and self._loop.is_ready

    async def start(self) -> None:
        database = await self._open_database()

        async def run_cycle() -> float:
            return 0.0 if await process_chunk(database) else _POLL_SECONDS

        self._loop = PollingLoop(self.name, run_cycle, log, database=database, notifications={"operations"})
        await self._loop.start()

    async def stop(self) -> None:
        if self._loop is not None:
            await self._loop.stop()


async def process_chunk(database: Database, chunk_size: int = CHUNK_SIZE) -> bool:
    """Process the next chunk of some bulk operation; return False if there is none."""

    async def process_items(connection: Connection) -> BulkOperationRecord | None:
        operation = await bulk_operations.lock_next_operation(connection)
        if operation is None:
            return None
        if operation.kind is BulkKind.SCHEDULE_BACKFILL:
            if await backfills.advance_backfill(
                connection, operation.id, operation.schedule_id, operation.actor, database.clock.now(), chunk_size
            ):
                await bulk_operations.end_operation(connection, operation.id, 0)
            return operation
        scope = TransactionScope(database, connection)
        ids = await bulk_operations.list_pending_items(connection, operation.id, chunk_size)
        if ids:
            context = ChunkContext(
                scope, connection, operation.id, operation.actor, operation.reason, database.clock.now()
            )
            results = await KINDS[BulkKind(operation.kind)].act(context, ids)
            await bulk_operations.store_results(connection, operation.id, results)
        if len(ids) < chunk_size:
            await bulk_operations.end_operation(connection, operation.id, await _count_arrived(scope, operation))
        return operation

    operation = await database.transaction(process_items)
    if operation is not None:
        log.debug("bulk operation chunk processed", operation_id=str(operation.id), kind=operation.kind)
    return operation is not None


async def _count_arrived(scope: TransactionScope, operation: BulkOperationRecord) -> int:
    """Count the matching objects that appeared after the selection."""
    if is_id_list(operation.filter):
        return 0
    selection = KINDS[operation.kind].selection
    filter = parse_filter(
        selection.table.schema, operation.filter, operation.until, zone=UTC, field="filter"
    ).without_window()
    return (await bulk_operations.count_objects(scope, selection, filter, since=operation.until)).count
