"""``/api/schedule``: work for one instant: ask for it, see where it stands, stop it, stop all of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from tenuto.api.auth import Needs, Visit
from tenuto.api.paging import After, instant, mark, place
from tenuto.api.response_docs import Body
from tenuto.api.strict_route import StrictRoute
from tenuto.errors import NotFound
from tenuto.model.actors import Role
from tenuto.model.one_shots import RuntimeStatus
from tenuto.model.policies import MAX_TIMEOUT_SECONDS, RetryPolicy
from tenuto.operations.one_shots import MAX_LISTED

router = APIRouter(prefix="/api/schedule", tags=["one-shots"], route_class=StrictRoute)

_ID = "01a1e319-a307-7102-94ef-03aacf78560b"
_PENDING: dict[str, Any] = {"exec_at_utc": "2031-05-17T04:00:00Z", "prompt_type": "log.append", "tags": ["order-7"]}

Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "one_shot.read"))]
Id = Annotated[str, Path(description="The transaction id.", max_length=100, examples=[_ID])]


class Retry(Body):
    """When a failed attempt is followed by another."""

    max_retries: int = Field(
        ge=0, le=1000, description="How many attempts may fail; with 0 or 1 the first failure is final."
    )
    base_seconds: float = Field(10.0, ge=0, le=30 * 86_400, description="The wait after the first failure.")
    factor: float = Field(2.0, ge=1, le=100, description="By how much each wait is longer than the one before.")
    cap_seconds: float = Field(3600.0, ge=0, le=366 * 86_400, description="The longest wait.")
    jitter: float = Field(0.2, ge=0, le=1, description="By which part of it a wait may be shorter, at random.")


class ScheduleRequest(Body):
    """Something to be done once."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "exec_at": "2031-05-17T12:00:00+08:00",
                    "prompt_type": "log.append",
                    "payload": {"message": "Hello"},
                    "tags": ["order-7"],
                },
                {
                    "exec_at": "2031-05-17T04:00:00Z",
                    "prompt_type": "http.call",
                    "payload": {"method": "POST", "url": "https://example.org/hook", "body": {"order": 7}},
                    "retry": {"max_retries": 3},
                },
            ]
        },
    )

    exec_at: str = Field(
        description="When: ISO 8601 with an offset or Z. What has passed is done at once, unless that is refused here.",
        json_schema_extra={"format": "date-time"},
    )
    prompt_type: str = Field(
        min_length=1, max_length=200, description="`log.append`, `http.call`, or the name of a registered job."
    )
    payload: dict[str, Any] = Field(default_factory=dict, description="What it is given, as its type takes it.")
    tags: list[str] = Field(default_factory=list, max_length=20, description="Words to find it by.")
    retry: Retry | None = Field(None, description="Without it, it is tried once.")
    timeout_seconds: float | None = Field(
        None, gt=0, le=MAX_TIMEOUT_SECONDS, description="How long an attempt may take; else as its type says."
    )


class Accepted(BaseModel):
    """It will be done."""

    transaction_id: UUID = Field(examples=[_ID])
    exec_at_utc: datetime
    prompt_type: str


class Listed(BaseModel):
    """A one-shot, as a list shows it."""

    exec_at_utc: datetime
    prompt_type: str
    runtime_status: RuntimeStatus = Field(alias="runtimeStatus")
    tags: list[str]
    created_at: datetime
    created_by: str
    next_attempt_at: datetime | None = Field(None, description="If it is to be tried again.")
    ended_at: datetime | None = None


class WhyNot(BaseModel):
    """Why an attempt did not succeed."""

    type: str | None
    message: str | None
    reason: str | None = Field(description="`error`, `timed_out`, `lost`, `refused` or `requested`.")


class Event(BaseModel):
    """Something that has happened to it."""

    at: datetime
    event: str = Field(
        description="`Created`, `Scheduled`, `Started`, `Completed`, `Failed`, `Terminated`, `HandedBack` (its worker"
        " was told to stop; another goes on), `Retried`, or `Stopping` (somebody asked for that)."
    )
    attempt: int
    by: str | None = None
    worker: str | None = None
    exec_at: datetime | None = None
    error: WhyNot | None = None


class Standing(BaseModel):
    """Where a one-shot stands."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "transaction_id": _ID,
                "runtimeStatus": "Completed",
                **_PENDING,
                "created_at": "2031-05-16T09:00:00Z",
                "created_by": "billing",
                "started_at": "2031-05-17T04:00:00.012Z",
                "ended_at": "2031-05-17T04:00:00.019Z",
                "attempts": 1,
                "input": {"message": "Hello"},
                "output": {"log": "default", "entry": 42},
            }
        }
    )

    transaction_id: UUID
    runtime_status: RuntimeStatus = Field(alias="runtimeStatus")
    prompt_type: str
    exec_at_utc: datetime
    next_attempt_at: datetime | None = None
    created_at: datetime
    created_by: str
    started_at: datetime | None = None
    ended_at: datetime | None = None
    attempts: int
    input: Any
    output: Any = None
    error: WhyNot | None = None
    progress: Any = None
    tags: list[str]
    stopping: dict[str, Any] | None = Field(None, description="Who has asked a running one to stop, and when.")
    history: list[Event] | None = Field(None, description="With `history=true`: what has happened, in order.")


class Wiped(BaseModel):
    """What a wipe has stopped."""

    terminated: list[UUID] = Field(examples=[[_ID]])
    total: int = Field(examples=[1])
    stopping: list[UUID] = Field(description="Those among them that were running, and end once their code has stopped.")


@router.post(
    "",
    status_code=202,
    response_model=Accepted,
    responses={202: {"headers": {"Location": {"description": "Where it stands.", "schema": {"type": "string"}}}}},
)
async def create_one_shot(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "one_shot.create"))], request: ScheduleRequest
) -> Response:
    """Have something done once, at an instant.

    Sent again with the same `Idempotency-Key`, it is done once.
    """
    made = await visit.app.one_shots.create(
        request.exec_at,
        request.prompt_type,
        request.payload,
        tags=request.tags,
        retry=None if request.retry is None else RetryPolicy(**dict(request.retry)),
        timeout=request.timeout_seconds,
        may_use_secrets=visit.caller.may(Role.EDITOR),
        id=visit.id,
        again=visit.again,
    )
    body = Accepted(transaction_id=made.id, exec_at_utc=made.exec_at, prompt_type=request.prompt_type)
    return _answer(body, 202, {"Location": f"/api/schedule/{made.id}/status"})


@router.get("", response_model=dict[UUID, Listed])
async def list_one_shots(
    visit: Look,
    request: Request,
    ended: Annotated[bool, Query(description="Those that have ended, the newest first.")] = False,
    status: Annotated[
        str | None, Query(description="Pending or Running; with `ended`: Completed, Failed or Terminated.")
    ] = None,
    prompt_type: Annotated[str | None, Query(description="Only those of this type.")] = None,
    tag: Annotated[
        list[str] | None, Query(description="Only those with this tag; give several for all of them.")
    ] = None,
    search: Annotated[str | None, Query(description="Only those with this text in type, tags or payload.")] = None,
    since: Annotated[datetime | None, Query(description="Only those to run at this instant or later.")] = None,
    until: Annotated[datetime | None, Query(description="Only those to run before this instant.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="How many at most.")] = MAX_LISTED,
    after: After = None,
) -> Response:
    """The registry: what is still to end, by id, the next one first. `Link` names the next page, if there may be."""
    where: dict[str, Any] = {
        "status": status, "prompt_type": prompt_type, "tags": tag or (), "since": since, "until": until,
        "search": search, "limit": limit,
    }  # fmt: skip
    shots = visit.app.one_shots
    if ended:
        at = place(after, UUID)
        found = await shots.past(**where, below=at[0] if at else None)
    else:
        at = place(after, instant, UUID)
        found = await shots.list(**where, after=(at[0], at[1]) if at else None)
    headers = {}
    if len(found) == limit:
        last = found[-1]
        here = [(name, value) for name, value in request.query_params.multi_items() if name != "after"]
        there = mark(last["record"]) if ended else mark(last["run_at"].isoformat(), last["id"])
        headers["Link"] = f'</api/schedule?{urlencode([*here, ("after", there)])}>; rel="next"'
    return _answer({str(each["id"]): _listed(each) for each in found}, 200, headers)


@router.delete("", response_model=Wiped)
async def wipe_one_shots(visit: Annotated[Visit, Depends(Needs(Role.ADMIN, "one_shot.wipe"))]) -> Response:
    """Stop all of them, in one transaction. What waits ends at once; what runs is told to stop."""
    wiped = await visit.app.one_shots.wipe()
    body = Wiped(terminated=wiped.terminated, total=len(wiped.terminated), stopping=wiped.stopping)
    return _answer(body, 200)


@router.get("/{id}/status", response_model=Standing)
async def one_shot_status(
    visit: Look, id: Id, history: Annotated[bool, Query(description="With what has happened to it.")] = False
) -> Response:
    """Where a one-shot stands, whether it is still to come or has ended."""
    found = await visit.app.one_shots.status(_uuid(id), history=history)
    found["transaction_id"], found["runtimeStatus"] = found.pop("id"), found.pop("status")
    found["exec_at_utc"] = found.pop("exec_at")
    return _answer({name: value for name, value in found.items() if value is not None or name == "output"}, 200)


@router.delete("/{id}", status_code=204)
async def delete_one_shot(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "one_shot.cancel"))], id: Id
) -> Response:
    """Take a one-shot out of the registry: one that waits ends at once, one that runs is told to stop.

    One that has ended is out of it already: nothing is changed, and its record stays.
    """
    await visit.app.one_shots.cancel(_uuid(id))
    return Response(status_code=204)


# --- in and out -------------------------------------------------------------------------------------------------------


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"there is no one-shot {text[:60]!r}", remedy="give the transaction_id as you got it") from None


def _listed(row: dict[str, Any]) -> dict[str, Any]:
    told = {
        "exec_at_utc": row["exec_at"],
        "prompt_type": row["name"],
        "runtimeStatus": row["status"],
        "tags": row["tags"] or [],
        "created_at": row["created_at"],
        "created_by": row["initiator_name"],
    }
    if "ended_at" in row:
        told["ended_at"] = row["ended_at"]
    elif row["attempt"] > 1:
        told["next_attempt_at"] = row["run_at"]
    return told


def _answer(body: Any, status: int, headers: dict[str, str] | None = None) -> Response:
    """An answer as it is: it was made here, and need not be checked once more."""
    return Response(to_json(body, fallback=str), status, headers, media_type=JSONResponse.media_type)
