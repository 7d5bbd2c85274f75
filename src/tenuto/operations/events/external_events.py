"""Event operations (``app.events``): send events to the tasks that wait for them; list events and waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.model import validation
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.events.event_names import check_event_key, check_event_name, check_keep, event_id_of
from tenuto.model.work.tasks import parse_duration_seconds
from tenuto.operations.argument_checks import check_id, check_limit
from tenuto.operations.bound_operation import OpenDatabase, OperationGroup
from tenuto.postgres.database import Connection
from tenuto.settings import Settings
from tenuto.store.events import external_events
from tenuto.store.events.external_events import EventRecord, NewEvent, OpenWaitRecord, WaitRecord


class Events(OperationGroup):
    """Operations on events from outside."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller, settings: Callable[[], Settings]) -> None:
        super().__init__(open, caller)
        self._settings = settings

    async def send(
        self,
        name: str,
        payload: Any = None,
        *,
        key: str = "",
        id: UUID | str | None = None,
        keep: float | str | timedelta | None = None,
    ) -> EventRecord:
        """Send an event to all tasks that wait for this name and correlation key.

        If no task waits for it, it is kept, and the first wait that begins in time receives it. ``keep`` is that time;
        by default it is the setting ``event_retention_days``. Calls with the same ``id`` send one event; a text such as
        the id of a webhook delivery may be given.
        """
        check_event_name(name)
        check_event_key(key)
        text = validation.dump_json(payload, field="payload")
        seconds = parse_duration_seconds(keep, field="keep")
        kept = (
            timedelta(days=self._settings().event_retention_days)
            if seconds is None
            else check_keep(timedelta(seconds=min(max(seconds, 0), 1e9)))
        )
        event_id = new_id() if id is None else event_id_of(id) if isinstance(id, str) else check_id(id, noun="event")
        operation = await self._begin("event.send", target=name)
        new = NewEvent(event_id, name, key, text, operation.now, operation.now + kept, operation.actor)

        async def send(connection: Connection) -> EventRecord:
            is_new = await external_events.send_event(connection, new)
            found = await external_events.load_event(connection, event_id)
            assert found is not None
            if is_new:
                operation.entry.after = {"id": event_id, "key": key, "delivery_count": found.delivery_count}
            else:
                operation.entry.mark_unchanged()
                # guard: events.same_id_same_event
                if (found.name, found.key, found.payload) != (name, key, json.loads(text)):
                    raise Conflict(
                        f"an event with the id {id or event_id} and another name, key or payload was sent before",
                        code="event.id.reused",
                        field="id",
                        remedy="give each event its own id",
                    )
            return found

        return await operation.database.transaction(send)

    async def get(self, id: UUID) -> EventRecord:
        """Return an event."""
        found = await external_events.find_event(await self._open(), id)
        if found is None:
            raise NotFound(
                f"there is no event {id}, or it has expired",
                code="event.not_found",
                remedy="see `tenuto event list`",
            )
        return found

    async def list(
        self,
        *,
        name: str | None = None,
        key: str | None = None,
        delivered: bool | None = None,
        below: tuple[datetime, UUID] | None = None,
        limit: int = 50,
    ) -> Sequence[EventRecord]:
        """List events, newest first; page with ``below``: instant and id of the last one."""
        return await external_events.list_events(
            await self._open(), name=name, key=key, delivered=delivered, below=below, limit=check_limit(limit)
        )

    async def waits(
        self,
        *,
        name: str | None = None,
        key: str | None = None,
        above: tuple[datetime, UUID] | None = None,
        limit: int = 50,
    ) -> Sequence[OpenWaitRecord]:
        """List the tasks that wait for events, the first deadline first; page with ``above``: deadline and task of the
        last one."""
        return await external_events.list_open_waits(
            await self._open(), name=name, key=key, above=above, limit=check_limit(limit)
        )

    async def waits_of_task(self, task_id: UUID) -> Sequence[WaitRecord]:
        """List the waits of an open task, also those that have ended."""
        return await external_events.list_waits_of_task(await self._open(), task_id)
