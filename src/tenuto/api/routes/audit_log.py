"""Long answers that may have to be cut off: whoever reads them must notice, and not take a part for the whole.

``/api/v1/audit``: what people and keys have changed, and whether somebody has been at the record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Send

from tenuto.api.auth import Needs, Visit, still_welcome
from tenuto.api.paging import After, Limit, Page, mark, page, place
from tenuto.api.response_docs import Id, Text, a_page, answers
from tenuto.api.strict_route import StrictRoute
from tenuto.audit.verifier import Place
from tenuto.clock import steady
from tenuto.errors import StoreError
from tenuto.logs import Log
from tenuto.model.actors import Role

log = Log("tenuto.api")


class Cut(Exception):
    """Nothing more of this answer is to be sent."""


class UntilCut(StreamingResponse):
    """An answer whose end is sent only if all of it was: the line is closed without it otherwise."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except (Cut, StoreError) as error:
            log.warning("a long answer was cut off", why=str(error))


router = APIRouter(prefix="/api/v1/audit", tags=["audit"], route_class=StrictRoute)

EXAMPLE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "at": "2031-05-04T02:00:00Z",
    "actor_type": "api_key",
    "actor_name": "ci",
    "source": "10.1.2.3",
    "action": "schedule.change",
    "target": "Nightly HR Sync",
    "reason": "an hour later",
}
_CHECKED_EVERY = 0.1
Look = Annotated[Visit, Depends(Needs(Role.ADMIN, "audit.read"))]


@router.get("", responses=a_page(EXAMPLE))
async def list_audit(
    visit: Look,
    actor: Text = None,
    action: Annotated[str | None, Query(max_length=200, description="`schedule`, or `schedule.change`.")] = None,
    target: Text = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: Limit = 50,
    after: After = None,
) -> Page:
    """Entries of the audit trail, the newest first."""
    at = place(after, UUID)
    found = await visit.app.audit.list(
        below=at[0] if at else None,
        actor=actor,
        action=action,
        target=target,
        since=since,
        until=until,
        limit=limit,
    )
    return page([dict(each) for each in found], limit, lambda each: (each["id"],))


@router.get("/verification", responses=answers({"sound": True, "links": 1204, "faults": [], "next": None}))
async def verify_audit(
    visit: Look,
    newest: Annotated[int | None, Query(ge=1, le=10_000_000, description="Only so many.")] = None,
    after: After = None,
) -> dict[str, Any]:
    """Whether the trail is as it was written: changed, deleted, moved or cut entries are named. As much of it as can be
    looked at in a few seconds; ask for `after` what `next` says until that is null."""
    at = place(after, _number, _id, _number)
    found, there = await visit.app.audit.verify_part(newest=newest, place=None if at is None else Place(*at))
    on = None if there is None else mark(there.link, there.entry, there.left)
    return {"sound": found.sound, **asdict(found), "next": on}


def _number(given: Any) -> int | None:
    if given is not None and (not isinstance(given, int) or not 0 <= given < 2**62):
        raise ValueError
    return given


def _id(given: Any) -> UUID | None:
    return None if given is None else UUID(given)


@router.get("/export", response_class=StreamingResponse)
async def export_audit(visit: Look, request: Request) -> StreamingResponse:
    """The whole trail as lines of JSON, the oldest first, with the seals. Whoever may no longer see it is cut off, and
    so is what would not be whole: the answer then has no end."""
    return UntilCut(_lines(visit, request), media_type="application/x-ndjson")


async def _lines(visit: Visit, request: Request) -> AsyncIterator[str]:
    checked_at = steady()
    async for line in visit.app.audit.lines():
        if steady() - checked_at > _CHECKED_EVERY:
            if not await still_welcome(request, visit):
                raise Cut("the key has been revoked")
            checked_at = steady()
        yield f"{line}\n"


@router.get("/{id}", responses=answers(EXAMPLE))
async def get_audit_entry(visit: Look, id: Id) -> dict[str, Any]:
    """One entry, with its place in the chain and its seal."""
    return dict(await visit.app.audit.get(id))
