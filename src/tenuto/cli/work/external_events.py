"""``tenuto event``: send events to the tasks that wait for them; list events and waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from tenuto.app import Tenuto
from tenuto.cli.command import Session, command, group
from tenuto.cli.lists import limit, list_command
from tenuto.cli.option_parsing import read_json_value, translate_error_fields
from tenuto.cli.parameters import argument, flag, option
from tenuto.presentation.event_views import EVENTS, WAITS
from tenuto.presentation.text_formats import safe_text

events = group(
    "event",
    "Send events to the tasks that wait for them.",
    "send invoice.paid --key order-17 --payload '{\"amount\": 120}'",
    "waits",
)
_NAME = option("NAME", "Filter by event name.")
_KEY = option("KEY", "Filter by correlation key.")
_OPTIONS_BY_FIELD = {"name": "NAME", "payload": "--payload", "key": "--key", "id": "--id", "keep_seconds": "--keep"}


@command(
    events,
    "send",
    "invoice.paid --key order-17 --payload '{\"amount\": 120}'",
    "deployment.finished --id run-4711 --keep 2h",
)
async def send_event(
    session: Session,
    name: Annotated[str, argument("NAME", "Name of the event.")],
    key: Annotated[str, option("KEY", "Correlation key: only waits with this key receive it.")] = "",
    payload: Annotated[str, option("JSON|@FILE|-", "Payload as JSON; - reads stdin.")] = "null",
    id: Annotated[str | None, option("ID", "Id at the sender: further events with it are not delivered.")] = None,
    keep: Annotated[str | None, option("DURATION", "How long it is kept for a wait. (default: as configured)")] = None,
) -> None:
    """Send an event to all tasks that wait for this name and key. Prints its id.

    If no task waits for it, it is kept, and the first task that waits for it in time receives it.
    """
    data = read_json_value(payload, "--payload")
    with session.as_user() as app, translate_error_fields(_OPTIONS_BY_FIELD):
        sent = await app.events.send(name, data, key=key, id=id, keep=keep)
    tasks = "1 task" if sent.delivery_count == 1 else f"{sent.delivery_count:,} tasks"
    message = f"received by {tasks}" if sent.delivery_count else f"no task waits for {safe_text(name)}: it is kept"
    session.report(sent, message, result=sent.id)


@list_command(
    events,
    "list",
    EVENTS,
    "",
    "--name invoice.paid --kept -o json",
    name=_NAME,
    key=_KEY,
    kept=flag("Only events that no task has received.", "--kept"),
    limit=limit(50),
)
async def list_events(app: Tenuto, *, kept: bool = False, **filters: Any) -> Sequence[Any]:
    """List events, newest first."""
    return await app.events.list(**filters, delivered=False if kept else None)


@list_command(
    events, "waits", WAITS, "", "--name invoice.paid --key order-17 -o json", name=_NAME, key=_KEY, limit=limit(50)
)
async def list_waits(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List the tasks that wait for events, the first deadline first."""
    return await app.events.waits(**filters)
