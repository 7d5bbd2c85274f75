"""``GET /api/v1/events``: what changes, as it changes, as server-sent events.

Coalesced to about one a second; taken up again after a break with ``Last-Event-ID``; cut within a second or so when the
key it was opened with is revoked.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse

from tenuto.api.door import Needs, Visit, still_welcome
from tenuto.api.problems import Refused
from tenuto.api.reading import StrictRoute
from tenuto.api.words import told
from tenuto.engine.feed import TOPICS, Feed, News, Watcher
from tenuto.errors import Invalid, StoreError
from tenuto.logs import Log
from tenuto.model.access import Role

router = APIRouter(prefix="/api/v1", tags=["events"], route_class=StrictRoute)

MOST_STREAMS = 2000
MOST_OF_ONE = 1000
log = Log("tenuto.api")

_CHECKED_EVERY = 1.0
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
    feed = _feed(request, visit)
    streams: Counter[str] = request.app.state.streams
    if streams.total() >= MOST_STREAMS or streams[_who(visit)] >= MOST_OF_ONE:
        raise Refused(
            429,
            f"{MOST_OF_ONE:,} streams of one key, or {MOST_STREAMS:,} of all, are open already",
            remedy="close some, or share one",
            headers={"Retry-After": "30"},
        )
    return StreamingResponse(
        _stream(request, visit, feed, wanted, since),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(
    request: Request, visit: Visit, feed: Feed, topics: frozenset[str], since: datetime | None
) -> AsyncIterator[str]:
    streams: Counter[str] = request.app.state.streams
    streams[_who(visit)] += 1
    try:
        async with feed.watching(topics, since) as watcher:
            yield "retry: 2000\n\n"
            quiet = 0.0
            while await still_welcome(request, visit):
                lines = await _next(watcher)
                quiet = 0.0 if lines else quiet + _CHECKED_EVERY
                if lines or quiet >= _QUIET:
                    yield lines or ":\n\n"
                    quiet = 0.0
                if watcher.fell_behind:
                    return  # it comes again, and says up to where it has heard
    except StoreError as error:
        log.warning("a stream of events ends: the database cannot be asked", error=str(error))
    finally:
        streams[_who(visit)] -= 1


def _who(visit: Visit) -> str:
    return visit.caller.actor.id or visit.caller.actor.name


async def _next(watcher: Watcher) -> str:
    """Whatever is there, or the first thing that comes soon."""
    try:
        async with asyncio.timeout(_CHECKED_EVERY):
            first = await watcher.waiting.get()
    except TimeoutError:
        return ""
    news = [first]
    while not watcher.waiting.empty():
        news.append(watcher.waiting.get_nowait())
    return "".join(_written(each) for each in news)


def _written(news: News) -> str:
    data = told(news.data) if isinstance(news.data, dict) else news.data
    text = json.dumps(data, ensure_ascii=False, default=_plain)
    return f"id: {int(news.at.timestamp() * 1_000_000)}\nevent: {news.topic}\ndata: {text}\n\n"


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    assert isinstance(value, UUID)
    return str(value)


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
    return datetime.fromtimestamp(int(last) / 1_000_000, UTC)


def _feed(request: Request, visit: Visit) -> Feed:
    """The feed of this process, made when somebody first watches."""
    if getattr(request.app.state, "feed", None) is None:
        request.app.state.feed = Feed(visit.app.open)
    feed: Feed = request.app.state.feed
    return feed
