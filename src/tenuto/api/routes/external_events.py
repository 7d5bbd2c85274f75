"""``/api/v1/events/…``: send events to the tasks that wait for them; list events and waits."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import After, Limit, Page, cursor_instant, decode_cursor, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Id, Name
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto.presentation.event_views import EVENTS, WAITS
from tenuto.store.events.external_events import EventRecord, OpenWaitRecord

router = APIRouter(prefix="/api/v1/events", tags=["external events"], route_class=ApiRoute)

EXAMPLE: dict[str, Any] = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "name": "invoice.paid",
    "key": "order-17",
    "payload": {"amount": 120},
    "sent_at": "2031-05-04T02:00:00Z",
    "expires_at": "2031-06-03T02:00:00Z",
    "delivered_at": "2031-05-04T02:00:00Z",
    "delivery_count": 1,
    "sender_type": "api_key",
    "sender_name": "shop",
}
WAIT: dict[str, Any] = {
    "task_id": EXAMPLE["id"],
    "step": "2 await_payment",
    "number": 1,
    "name": "invoice.paid",
    "key": "order-17",
    "registered_at": "2031-05-04T02:00:00Z",
    "expires_at": "2031-05-06T02:00:00Z",
    "job": "ship-order",
    "kind": "job",
    "queue": "default",
}
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "event.read")]
NameEquals = Annotated[str | None, Query(max_length=200, description="Name of the event.")]
KeyEquals = Annotated[str | None, Query(max_length=200, description="Correlation key; empty for events without one.")]


class NewEventBody(Body):
    """An event."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"payload": {"amount": 120}, "key": "order-17", "id": "evt_4711"}]}
    )

    payload: Any = Field(default=None, description="JSON that the waiting tasks receive; at most 256 KiB.")
    key: str = Field(default="", max_length=200, description="Correlation key: only waits with this key receive it.")
    id: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Id of the event at its sender: further events with the same id are not delivered.",
    )
    keep_seconds: float | None = Field(
        default=None, gt=0, description="How long the event is kept for a wait; default: setting event_retention_days."
    )


@router.get("/sent", operation_id="sent_events_list", responses=describe_page(EXAMPLE))
@listed_as(EVENTS)
async def list_sent_events(
    call: Viewer,
    name: NameEquals = None,
    key: KeyEquals = None,
    delivered: Annotated[bool | None, Query(description="Only events that waits received, or only others.")] = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[EventRecord]:
    """List events that were sent, newest first."""
    found = await call.app.events.list(
        name=name, key=key, delivered=delivered, below=decode_cursor(after, cursor_instant, UUID), limit=limit
    )
    return make_page(found, limit, lambda each: (each.sent_at, each.id))


@router.get("/waits", operation_id="event_waits_list", responses=describe_page(WAIT))
@listed_as(WAITS)
async def list_event_waits(
    call: Viewer, name: NameEquals = None, key: KeyEquals = None, limit: Limit = 50, after: After = None
) -> Page[OpenWaitRecord]:
    """List the tasks that wait for events, the first deadline first."""
    found = await call.app.events.waits(
        name=name, key=key, above=decode_cursor(after, cursor_instant, UUID), limit=limit
    )
    return make_page(found, limit, lambda each: (each.expires_at, each.task_id))


@router.get("/sent/{id}", operation_id="sent_events_get", responses=describe(EXAMPLE, not_found="event.not_found"))
async def get_sent_event(call: Viewer, id: Id) -> EventRecord:
    """Get an event."""
    return await call.app.events.get(id)


@router.post(
    "/{name:name}",
    operation_id="sent_events_send",
    status_code=202,
    responses=describe(
        EXAMPLE,
        202,
        conflict="event.id.reused",
        invalid=(
            "event.name.reserved",
            "event.keep.out_of_range",
            "value.name.invalid",
            "value.label.invalid",
            "value.too_large",
        ),
    ),
)
async def send_event(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "event.send", handles_repeats=True)],
    name: Name,
    event: NewEventBody | None = None,
) -> EventRecord:
    """Send an event. All tasks that wait for this name and key receive it; otherwise it is kept for the first wait."""
    given = event or NewEventBody()
    return await call.app.events.send(
        name, given.payload, key=given.key, id=given.id or call.object_id, keep=given.keep_seconds
    )
