"""``GET /api/v1/events``: changes as server-sent events.

Events are coalesced to about one per second. A client resumes with ``Last-Event-ID``. A stream ends about a second
after its API key is revoked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, RootModel
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from tenuto.api.api_route import ApiRoute
from tenuto.api.openapi import describe, merge_responses
from tenuto.api.problems import Refused
from tenuto.api.security.authentication import ApiCall, is_still_authorized, requires
from tenuto.app import Tenuto
from tenuto.errors import Conflict, Invalid, StoreError, quoted
from tenuto.extension import Event
from tenuto.logs import Log
from tenuto.model.access.actors import Role
from tenuto.observability.event_feed import EventBatch, EventFeed
from tenuto.observability.event_sources import TOPICS, EndedActivities, LiveWorkers, Reset
from tenuto.observability.watched_objects import ObjectChange, is_watched_topic, parse_watched_topic
from tenuto.store.reports.changed_objects import DeadLetterChange, DefinitionChange, ExecutionChange
from tenuto.store.reports.watched_objects import KINDS

router = APIRouter(prefix="/api/v1", tags=["events"], route_class=ApiRoute)

MAX_STREAMS = 2000
MAX_STREAMS_PER_CALLER = 1000
log = Log("tenuto.api")

_CORE_TOPICS = ", ".join(name for each in TOPICS for name in each.topics)
_TOPICS_HELP = (
    f"Topics separated by commas: {_CORE_TOPICS}, and those of extensions. Default: all of these. Also `overview` and"
    f" single objects: {', '.join(f'`{kind}:ID`' for kind in KINDS)}."
)
_SINCE_HELP = (
    "Instant before the client loaded what it shows, in microseconds since 1970. Changes since then are sent first."
    " Ignored if the request has `Last-Event-ID`."
)
_MAX_TOPICS_LENGTH = 8000

EXAMPLE = 'id: 1935713162000000\nevent: workers\ndata: {"alive": []}\n\n'
_AUTHORIZATION_CHECK_SECONDS = 1.0
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_KEEP_ALIVE_SECONDS = 15.0
"""Interval of comments on an idle stream, so that proxies keep the connection."""


class _Event(BaseModel):
    id: str = Field(description="Send the last one as `Last-Event-ID` to resume.")


class ExecutionsEvent(_Event):
    """An execution started, advanced, was paused or ended."""

    event: Literal["executions"]
    data: ExecutionChange


class ActivitiesEvent(_Event):
    """Attempts ended."""

    event: Literal["activities"]
    data: EndedActivities


class DeadLettersEvent(_Event):
    """A dead letter was written or resolved."""

    event: Literal["dead_letters"]
    data: DeadLetterChange


class DefinitionsEvent(_Event):
    """A schedule or manifest was changed."""

    event: Literal["definitions"]
    data: DefinitionChange


class QueuesEvent(_Event):
    """Numbers of tasks by queue and state changed."""

    event: Literal["queues"]
    data: dict[str, dict[str, int]]


class WorkersEvent(_Event):
    """The live workers changed."""

    event: Literal["workers"]
    data: LiveWorkers


class ChangedEvent(_Event):
    """A single object or the overview changed, or the subscription to it has begun: load it."""

    event: Literal["changed"]
    data: ObjectChange


class ResetEvent(_Event):
    """Too many changes: load the lists again."""

    event: Literal["reset"]
    data: Reset


class ServerSentEvent(
    RootModel[
        Annotated[
            ExecutionsEvent
            | ActivitiesEvent
            | DeadLettersEvent
            | DefinitionsEvent
            | QueuesEvent
            | WorkersEvent
            | ChangedEvent
            | ResetEvent,
            Field(discriminator="event"),
        ]
    ]
):
    """One event of `GET /api/v1/events`: the fields of a server-sent event, with `data` parsed as JSON. Topics of
    extensions begin with the name of the extension and a dot."""


@router.get(
    "/events",
    operation_id="events_stream",
    response_class=StreamingResponse,
    responses=merge_responses(
        {
            200: {
                "description": "Server-sent events; `x-event-schema` describes each one.",
                "content": {
                    "text/event-stream": {
                        "schema": {"type": "string"},
                        "example": EXAMPLE,
                        "x-event-schema": {"$ref": "#/components/schemas/ServerSentEvent"},
                    }
                },
            }
        },
        describe(
            conflict="events.objects.limit",
            invalid=("events.topic.unknown", "events.last_event_id.invalid"),
            limited="events.streams.limit",
        ),
    ),
)
async def stream_events(
    call: Annotated[ApiCall, requires(Role.VIEWER, "events.read")],
    request: Request,
    topics: Annotated[str | None, Query(max_length=_MAX_TOPICS_LENGTH, description=_TOPICS_HELP)] = None,
    since: Annotated[str | None, Query(max_length=40, description=_SINCE_HELP)] = None,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> StreamingResponse:
    """Stream changes as server-sent events. Resume with `Last-Event-ID`; after `reset`, load the lists again."""
    feed = event_feed(request.app)
    selected = _parse_topics(topics, feed.topics)
    resume_at, loaded_at = _parse_event_id(last_event_id, "Last-Event-ID"), _parse_event_id(since, "since")
    feed.check_watched_count(selected)
    streams: Counter[str] = request.app.state.event_streams
    if streams.total() >= MAX_STREAMS or streams[_caller_key(call)] >= MAX_STREAMS_PER_CALLER:
        raise Refused(
            429,
            f"too many event streams: the limit is {MAX_STREAMS_PER_CALLER:,} per key and {MAX_STREAMS:,} in total",
            code="events.streams.limit",
            remedy="close a stream, or share one",
            headers={"Retry-After": "30"},
        )
    return _CountedStream(
        _stream(request, call, feed, selected, resume_at, loaded_at),
        streams,
        _caller_key(call),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


class _CountedStream(StreamingResponse):
    """Stream that is counted when it is created, so that concurrent requests cannot exceed the limit."""

    def __init__(self, lines: AsyncIterator[str], streams: Counter[str], caller_key: str, **options: Any) -> None:
        super().__init__(lines, **options)
        self._streams, self._caller_key = streams, caller_key
        streams[caller_key] += 1  # guard: events.stream_count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams[self._caller_key] -= 1
            if not self._streams[self._caller_key]:
                del self._streams[self._caller_key]


async def _stream(
    request: Request,
    call: ApiCall,
    feed: EventFeed,
    topics: frozenset[str],
    resume_at: datetime | None,
    loaded_at: datetime | None,
) -> AsyncIterator[str]:
    try:
        async with feed.subscribe(topics, resume_at, loaded_at) as subscription:
            yield "retry: 2000\n\n"
            idle_seconds = 0.0
            while await is_still_authorized(request, call):
                batches = await subscription.next_batches(_AUTHORIZATION_CHECK_SECONDS)
                lines = "".join([_format_batch(batch) for batch in batches])
                idle_seconds = 0.0 if lines else idle_seconds + _AUTHORIZATION_CHECK_SECONDS
                if lines or idle_seconds >= _KEEP_ALIVE_SECONDS:
                    yield lines or ":\n\n"
                    idle_seconds = 0.0
                if subscription.is_closed:
                    return  # the client connects again with the last event id
    except (StoreError, Conflict) as error:  # a concurrent request may have used up the limit of watched objects
        log.warning("event stream ended", error=str(error))


def _caller_key(call: ApiCall) -> str:
    return call.caller.actor.id or call.caller.actor.name


def _format_batch(batch: EventBatch) -> str:
    """Return the events of a batch. Only the last one has the id of the batch: after a part of it, the client resumes
    before the batch."""
    *others, last = batch.events
    return "".join([*(_format_event(batch.since, each) for each in others), _format_event(batch.at, last)])


def _format_event(resume_at: datetime, event: Event) -> str:
    text = to_json(event.data, fallback=str).decode()
    name = "changed" if isinstance(event.data, ObjectChange) else event.topic
    return f"id: {format_instant(resume_at)}\nevent: {name}\ndata: {text}\n\n"


def _parse_topics(text: str | None, known: list[str]) -> frozenset[str]:
    if text is None:
        return frozenset(known) | {"reset"}
    given = {topic.strip() for topic in text.split(",") if topic.strip()}
    selected = {parse_watched_topic(topic) if is_watched_topic(topic) else topic for topic in given}
    for topic in {topic for topic in selected if not is_watched_topic(topic)} - set(known):
        raise Invalid(
            f"topic {quoted(topic, 40)} is unknown",
            code="events.topic.unknown",
            field="topics",
            remedy=f"use any of {', '.join(known)}",
        )
    return frozenset(selected) | {"reset"}


def format_instant(instant: datetime) -> int:
    """Return an instant as the id of an event and the parameter ``since``."""
    return (instant - _EPOCH) // _MICROSECOND


def _parse_event_id(text: str | None, field: str) -> datetime | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 17):
        raise Invalid(
            f"{field} {text!r} is neither the id of an event nor an instant in microseconds",
            code="events.last_event_id.invalid",
            field=field,
            remedy="send the last id received, or the instant of the page, unchanged",
        )
    return _EPOCH + int(text) * _MICROSECOND


async def close_event_streams(api: FastAPI) -> None:
    """End all event streams; called when the service stops."""
    await event_feed(api).close()


def event_feed(api: FastAPI) -> EventFeed:
    """Return the event feed of this process; create it for the first stream."""
    if getattr(api.state, "feed", None) is None:
        tenuto: Tenuto = api.state.tenuto
        api.state.feed = EventFeed(tenuto.open, tenuto.extension_registry, load_overview=tenuto.reports.overview)
    feed: EventFeed = api.state.feed
    return feed
