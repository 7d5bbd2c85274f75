"""``/api/v1/dead-letters``: what failed for good, and waits for somebody to decide.

Many at once are resolved in two steps: what a filter stands for is fixed as a selection, and just that is resolved.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response
from pydantic import ConfigDict, Field

from tenuto.api.auth import Needs, Visit
from tenuto.api.paging import After, Limit, Page, page, place
from tenuto.api.response_docs import Body, Id, Note, Text, a_page, answers
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import inward, outward, told
from tenuto.model.actors import Role
from tenuto.model.dead_letters import LetterStatus

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"], route_class=StrictRoute)

EXAMPLE: dict[str, Any] = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "external_id": "invoices",
    "item": "17",
    "status": "AwaitingIntervention",
    "dead_lettered_at": "2031-05-04T02:00:00Z",
    "reason": "ConnectionError: the server does not answer",
    "fingerprint": "5f2c8d31a9b04e77",
    "attempts": 3,
}
GROUP = {
    "external_id": "invoices",
    "fingerprint": "5f2c8d31a9b04e77",
    "reason": EXAMPLE["reason"],
    "letters": 41,
    "first_at": "2031-05-04T01:58:00Z",
    "last_at": "2031-05-04T02:00:00Z",
}
MOST_CHOSEN = 10_000
Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "dead_letter.read"))]
_WAITING = outward(LetterStatus.AWAITING_INTERVENTION)


class Retry(Note):
    """A note, and another input if the one that failed was wrong."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"note": "typo in the address", "input": {"to": "x@y.org"}}]}
    )

    input: dict[str, Any] | None = None


class Filter(Body):
    """Which open letters are meant; nothing said means all of them."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"manifest": "invoices", "fingerprint": "5f2c8d31a9b04e77"}]}
    )

    manifest: str | None = Field(default=None, max_length=200)
    fingerprint: str | None = Field(default=None, max_length=200)
    batch: UUID | None = None
    until: datetime | None = Field(default=None, description="Dead-lettered not after this instant.")


class Chosen(Note):
    """The letters that were selected, just those."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ids": [EXAMPLE["id"]], "note": "the server is back"}]})

    ids: list[UUID] = Field(min_length=1, max_length=MOST_CHOSEN)


@router.get("", responses=a_page(EXAMPLE))
async def list_dead_letters(
    visit: Look,
    status: Annotated[str | None, Query(description="`Any` for all of them.", max_length=200)] = _WAITING,
    manifest: Text = None,
    fingerprint: Text = None,
    batch: UUID | None = None,
    limit: Limit = 50,
    after: After = None,
) -> Page:
    """Letters, the newest first; those that wait for a decision unless said otherwise."""
    at = place(after, UUID)
    found = await visit.app.dead_letters.list(
        below=at[0] if at else None,
        status=None if status == "Any" else inward(status, LetterStatus, field="status"),
        manifest=manifest,
        fingerprint=fingerprint,
        batch=batch,
        limit=limit,
    )
    return page([told(each) for each in found], limit, lambda each: (each["id"],))


@router.get("/groups", responses=answers({"items": [GROUP]}))
async def dead_letter_groups(
    visit: Look, manifest: Text = None, batch: UUID | None = None, limit: Limit = 100
) -> dict[str, Any]:
    """Open letters by the kind of failure, the most frequent first."""
    found = await visit.app.dead_letters.groups(manifest=manifest, batch=batch, limit=limit)
    return {"items": [told(each) for each in found]}


@router.post("/selections", responses=answers({"total": 1, "ids": [EXAMPLE["id"]], "about": [GROUP]}))
async def select_dead_letters(visit: Look, wanted: Filter) -> dict[str, Any]:
    """Fix what a filter stands for now: the ids to resolve, and what they are about. Nothing is changed."""
    chosen = await visit.app.dead_letters.select(
        manifest=wanted.manifest, fingerprint=wanted.fingerprint, batch=wanted.batch, until=wanted.until
    )
    about = await visit.app.dead_letters.summary(chosen)
    return {"total": len(chosen), "ids": list(chosen[:MOST_CHOSEN]), "about": [told(each) for each in about]}


@router.post("/retry", status_code=202, responses=answers({"retried": 41}, 202))
async def retry_dead_letters(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "dead_letter.retry"))], chosen: Chosen
) -> dict[str, int]:
    """Run letters again, as selected. Those somebody has resolved meanwhile are left out."""
    note = chosen.note or visit.reason
    return {"retried": await visit.app.dead_letters.retry_these(chosen.ids, note=note, request_id=visit.id)}


@router.post("/acknowledge", responses=answers({"acknowledged": 41}))
async def acknowledge_dead_letters(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "dead_letter.acknowledge"))], chosen: Chosen
) -> dict[str, int]:
    """Say of letters, as selected, that somebody has seen to them. Those resolved meanwhile are left out."""
    note = chosen.note or visit.reason
    return {"acknowledged": await visit.app.dead_letters.acknowledge_these(chosen.ids, note=note, request_id=visit.id)}


@router.get("/{id}", responses=answers({**EXAMPLE, "tried": []}))
async def get_dead_letter(visit: Look, id: Id) -> dict[str, Any]:
    """A letter with every attempt it tells of, the first one first."""
    return told(await visit.app.dead_letters.get(id))


@router.post("/{id}/retry", status_code=202, responses=answers({"task_id": EXAMPLE["id"]}, 202))
async def retry_dead_letter(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "dead_letter.retry"))],
    id: Id,
    response: Response,
    retry: Retry | None = None,
) -> dict[str, UUID]:
    """Run what a letter stands for again, with another input if given."""
    wanted = retry or Retry()
    task = await visit.app.dead_letters.retry(
        id, input=wanted.input, note=wanted.note or visit.reason, request_id=visit.id
    )
    response.headers["Location"] = f"/api/v1/tasks/{task}"
    return {"task_id": task}


@router.post("/{id}/acknowledge", status_code=204)
async def acknowledge_dead_letter(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "dead_letter.acknowledge"))], id: Id, note: Note | None = None
) -> None:
    """Say that somebody has seen to it; nothing is run."""
    await visit.app.dead_letters.acknowledge(id, note=(note and note.note) or visit.reason, request_id=visit.id)
