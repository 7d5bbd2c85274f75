"""Events from outside in the dashboard: the tasks that wait for them, and the events that were sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenuto.api.list_pages import cursor_instant, decode_cursor, encode_cursor
from tenuto.errors import Invalid, NotFound
from tenuto.extension import PageRequest
from tenuto.model.events.event_names import APPROVAL_EVENT
from tenuto.operations.events.external_events import Events
from tenuto.store.events.external_events import EventRecord, OpenWaitRecord
from tenuto.web.components.extension_kit import Action, FilterField, Listing, path_of
from tenuto.web.views.work.attempt_panel import may_see_texts

PAGE_SIZE = 50
PATH = "/events"
STATES = {"delivered": True, "kept": False}
QUERY = ("name", "key", "state", "after", "waits_after")


@dataclass(frozen=True, slots=True)
class WaitRow:
    """A task that waits, with the button that sends what it waits for."""

    wait: OpenWaitRecord
    send: Action


@dataclass(frozen=True, slots=True)
class EventsPage:
    """The tasks that wait and the events that were sent."""

    filter: Listing
    waits: Listing
    sent: Listing
    send: Action
    may_see_payloads: bool
    """Also if the setting ``web_hide_inputs`` hides them from viewers."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """One event."""

    event: EventRecord
    may_see_payloads: bool

    def facts(self, ui: Any) -> list[tuple[str, Any]]:
        """Return names and values for the heading."""
        event = self.event
        return [
            ("ID", ui.id(event.id)),
            ("Key", event.key or "none"),
            ("Sent", ui.age(event.sent_at)),
            ("By", event.sender_name),
            ("Kept until", ui.time(event.expires_at)),
        ]


async def load_events(request: PageRequest) -> EventsPage:
    """Return the list of waits and events."""
    query, operations = request.query, _operations(request)
    name, key, state = query.get("name", ""), query.get("key", ""), query.get("state", "")
    if state and state not in STATES:
        raise Invalid(f"{state!r} is not a state of events", code="event.state.unknown", field="state")
    filters = [
        FilterField("name", "Event", name),
        FilterField("key", "Key", key),
        FilterField("state", "Sent events", state, tuple(STATES)),
    ]
    waits_after, after = query.get("waits_after") or None, query.get("after") or None
    above = decode_cursor(waits_after, cursor_instant, UUID)
    below = decode_cursor(after, cursor_instant, UUID)
    waits = await operations.waits(
        name=name or None, key=key or None, above=(above[0], above[1]) if above else None, limit=PAGE_SIZE
    )
    sent = await operations.list(
        name=name or None,
        key=key or None,
        delivered=STATES[state] if state else None,
        below=(below[0], below[1]) if below else None,
        limit=PAGE_SIZE,
    )
    next_wait = encode_cursor(waits[-1].expires_at, waits[-1].task_id) if len(waits) == PAGE_SIZE else None
    next_event = encode_cursor(sent[-1].sent_at, sent[-1].id) if len(sent) == PAGE_SIZE else None
    return EventsPage(
        filter=Listing("Events", (), PATH, filters=filters),
        waits=_list(
            "Waiting tasks",
            [_row(each) for each in waits if each.name != APPROVAL_EVENT],
            filters,
            "waits_after",
            next_wait,
            waits_after,
        ),
        sent=_list("Sent events", sent, filters, "after", next_event, after),
        send=_make_send_action(None),
        may_see_payloads=may_see_texts(request.role, hidden=True),
    )


def _list(
    title: str, rows: Sequence[Any], filters: Sequence[FilterField], cursor: str, next: str | None, after: str | None
) -> Listing:
    return Listing(title, rows, PATH, filters=filters, cursor=cursor, next=next, is_first=after is None)


async def load_event(request: PageRequest) -> EventPage:
    """Return one event."""
    try:
        id = UUID(request.parameters["id"])
    except ValueError:
        raise NotFound("there is no event with this id", code="event.not_found") from None
    return EventPage(await _operations(request).get(id), may_see_texts(request.role, hidden=True))


def _row(wait: OpenWaitRecord) -> WaitRow:
    return WaitRow(wait, _make_send_action(wait))


def _make_send_action(wait: OpenWaitRecord | None) -> Action:
    """Return the button that sends an event: the one for which a task waits, or any."""
    payload = {"name": "payload", "label": "Payload (JSON, optional)", "type": "json"}
    if wait is not None:
        return Action(
            "sent_events_send",
            "Send…",
            {"name": wait.name},
            title=f"Send {wait.name}",
            text="All tasks that wait for this event"
            + (f" with the key {wait.key}" if wait.key else "")
            + " receive it.",
            fields=[payload],
            body={"key": wait.key},
            submit="Send the event",
            done="The event was sent.",
            goto=path_of("events", "{id}"),
            style="small",
        )
    return Action(
        "sent_events_send",
        "Send an event…",
        {"name": "{event}"},
        title="Send an event",
        text="All tasks that wait for this name and key receive it. If none waits, it is kept for the first one.",
        fields=[
            {"name": "event", "label": "Name", "required": True},
            {"name": "key", "label": "Key (optional)"},
            payload,
        ],
        body={},
        submit="Send the event",
        done="The event was sent.",
        goto=path_of("events", "{id}"),
        style="primary",
    )


def _operations(request: PageRequest) -> Events:
    operations: Events = request.operations
    return operations
