"""Rows of queues that definition files declare: their settings and the last declaration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from tenuto.model.definitions.queues import QueueSettings
from tenuto.postgres.database import Connection
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.definitions.definition_rows import to_json_text
from tenuto.store.row_mapping import FromJson, RowMapper
from tenuto.store.work import workers

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """The settings of a queue and what a file declared of it last."""

    name: str
    max_running: int | None = None
    rate_limit: str | None = None
    is_paused: bool = False
    reason: str | None = None
    """Reason of the pause."""
    declared: Annotated[dict[str, Any] | None, FromJson] = None
    """The declared options; None: no file declares the queue."""

    @property
    def settings(self) -> QueueSettings:
        paused = self.is_paused and (self.reason or True)
        return QueueSettings(self.max_running, self.rate_limit, paused)


_QUEUES = RowMapper(StoredQueue, SQL.load_queues, SQL.lock_queues)


async def load_queues(connection: Connection, names: Collection[str], limit: int) -> dict[str, StoredQueue]:
    """Return the settings of these queues, and of all queues that files have declared."""
    return {each.name: each for each in _QUEUES.all(await connection.fetch(SQL.load_queues, list(names), limit))}


async def lock_queues(connection: Connection, names: Collection[str]) -> dict[str, StoredQueue]:
    """Return the settings of these queues, and keep other transactions from changing them. Every queue has a row
    afterwards; `delete_unset_queues` deletes those without settings."""
    await connection.execute(SQL.create_queues, list(names))
    return {each.name: each for each in _QUEUES.all(await connection.fetch(SQL.lock_queues, list(names)))}


async def save_queue(
    connection: Connection,
    stored: StoredQueue,
    after: QueueSettings,
    declared: Mapping[str, Any] | None,
    *,
    by: str,
) -> None:
    """Change the settings of a locked queue and record its declaration."""
    name, before = stored.name, stored.settings
    if after.max_running != before.max_running:
        await workers.limit_queue(connection, name, after.max_running)
    if after.rate_limit != before.rate_limit:
        await workers.limit_queue_rate(connection, name, after.rate_limit)
    if after.paused != before.paused:
        await workers.resume_queue(connection, name)
        if after.paused is not False:
            reason = after.paused if isinstance(after.paused, str) else None
            await workers.pause_queue(connection, name, by=by, reason=reason)
    await connection.execute(
        SQL.store_queue_declaration, name, to_json_text(None if declared is None else dict(declared))
    )


async def delete_unset_queues(connection: Connection, names: Collection[str]) -> None:
    """Delete the rows of queues that have no settings and are not declared."""
    await connection.execute(SQL.delete_unset_queues, list(names))
