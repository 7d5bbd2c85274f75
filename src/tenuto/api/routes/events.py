"""``GET /api/v1/events``: what changes, as it changes, as server-sent events.

Coalesced to about one a second; taken up again after a break with ``Last-Event-ID``; cut within a second or so when the
key it was opened with is revoked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from tenuto.api.auth import Needs, Visit, still_welcome
from tenuto.api.problems import Refused
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import told
from tenuto.app import Tenuto
from tenuto.errors import Invalid, StoreError
from tenuto.logs import Log
from tenuto.model.actors import Role
from tenuto.observability.event_feed import TOPICS, Feed, News, Told

router = APIRouter(prefix="/api/v1", tags=["events"], route_class=StrictRoute)

MOST_STREAMS = 2000
MOST_OF_ONE = 1000
log = Log("tenuto.api")

_CHECKED_EVERY = 1.0
_BEGINNING, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_QUIET = 15.0
"""So that nobody on the way thinks the line is dead."""


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(
    visit: Annotated[Visit, Depends(Needs(Role.VIEWER, "events.read"))],
    request: Request,
    topics: Annotated[
        str | None, Query(max_length=200, description=f"Any of {', '.join(TOPICS)}; all of them.")
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> StreamingResponse:
    """What changes, as it changes."""
    wanted, since = _topics(topics), _instant(last_event_id)
    feed = feed_of(request.app)
    streams: Counter[str] = request.app.state.streams
    if streams.total() >= MOST_STREAMS or streams[_who(visit)] >= MOST_OF_ONE:
        raise Refused(
            429,
            f"{MOST_OF_ONE:,} streams of one key, or {MOST_STREAMS:,} of all, are open already",
            remedy="close some, or share one",
            headers={"Retry-After": "30"},
        )
    return _Counted(
        _stream(request, visit, feed, wanted, since),
        streams,
        _who(visit),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


class _Counted(StreamingResponse):
    """A stream that counts from when it is granted: of many who come at once no more are let in than may be."""

    def __init__(self, lines: AsyncIterator[str], streams: Counter[str], who: str, **options: Any) -> None:
        super().__init__(lines, **options)
        self._streams, self._who = streams, who
        streams[who] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams[self._who] -= 1
            if not self._streams[self._who]:
                del self._streams[self._who]


async def _stream(
    request: Request, visit: Visit, feed: Feed, topics: frozenset[str], since: datetime | None
) -> AsyncIterator[str]:
    try:
        async with feed.watching(topics, since) as watcher:
            yield "retry: 2000\n\n"
            quiet = 0.0
            while await still_welcome(request, visit):
                lines = "".join([_written(look) for look in await watcher.next(_CHECKED_EVERY)])
                quiet = 0.0 if lines else quiet + _CHECKED_EVERY
                if lines or quiet >= _QUIET:
                    yield lines or ":\n\n"
                    quiet = 0.0
                if watcher.over:
                    return  # it comes again, and says up to where it has heard
    except StoreError as error:
        log.warning("a stream of events ends: the database cannot be asked", error=str(error))


def _who(visit: Visit) -> str:
    return visit.caller.actor.id or visit.caller.actor.name


def _written(look: Told) -> str:
    """All that one look has found. Who is cut off in the middle of it takes up again before it."""
    *others, last = look.news
    return "".join([*(_event(look.since, each) for each in others), _event(look.at, last)])


def _event(up_to: datetime, news: News) -> str:
    data = told(news.data) if isinstance(news.data, dict) else news.data
    text = to_json(data, fallback=str).decode()
    return f"id: {(up_to - _BEGINNING) // _MICROSECOND}\nevent: {news.topic}\ndata: {text}\n\n"


def _topics(given: str | None) -> frozenset[str]:
    if given is None:
        return frozenset(TOPICS) | {"reset"}
    wanted = {topic.strip() for topic in given.split(",") if topic.strip()}
    for topic in wanted - set(TOPICS):
        raise Invalid(f"{topic!r:.40} is none", field="topics", remedy=f"use any of {', '.join(TOPICS)}")
    return frozenset(wanted) | {"reset"}


def _instant(last: str | None) -> datetime | None:
    if last is None or last == "":
        return None
    if not (last.isascii() and last.isdigit() and len(last) <= 17):
        raise Invalid("is no id of an event", field="Last-Event-ID", remedy="send the last id you got, unchanged")
    return _BEGINNING + int(last) * _MICROSECOND


async def end_streams(made: FastAPI) -> None:
    """The service stops: whoever watches is let go."""
    await feed_of(made).close()


def feed_of(made: FastAPI) -> Feed:
    """The feed of this process, made when somebody first watches."""
    if getattr(made.state, "feed", None) is None:
        tenuto: Tenuto = made.state.tenuto
        made.state.feed = Feed(tenuto.open)
    feed: Feed = made.state.feed
    return feed
