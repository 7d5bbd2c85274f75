"""``/api/schedule``: create, list and cancel one-shots."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.list_filters import FILTER_PROBLEMS, CappedCount, FilterText, describe_count, parse_query
from tenuto.api.list_pages import After, cursor_instant, decode_cursor, decode_key, encode_cursor
from tenuto.api.openapi import describe, merge_responses
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.errors import NotFound
from tenuto.model.access.actors import Role
from tenuto.model.definitions.policies import MAX_ATTEMPTS, MAX_TIMEOUT_SECONDS, RetryPolicy
from tenuto.model.filter_keys import ONE_SHOT_KEYS
from tenuto.model.work import one_shots
from tenuto.model.work.one_shots import EndedOneShot, OneShotSummary, RuntimeStatus
from tenuto.operations.work.one_shots import MAX_LIMIT

router = APIRouter(prefix="/api/schedule", tags=["one-shots"], route_class=ApiRoute)

_EXAMPLE_ID = "01a1e319-a307-7102-94ef-03aacf78560b"
_PENDING: dict[str, Any] = {"exec_at_utc": "2031-05-17T04:00:00Z", "prompt_type": "log.append", "tags": ["order-7"]}

_STATUS: dict[str, Any] = {
    "transaction_id": _EXAMPLE_ID,
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

Viewer = Annotated[ApiCall, requires(Role.VIEWER, "one_shot.read")]
Id = Annotated[str, Path(description="Transaction id of the one-shot.", max_length=100, examples=[_EXAMPLE_ID])]


class OneShotRetry(Body):
    """Retry policy of a one-shot."""

    max_attempts: int = Field(ge=1, le=MAX_ATTEMPTS, description="Maximum number of attempts.")
    base_seconds: float = Field(10.0, ge=0, le=30 * 86_400, description="Delay after the first failure.")
    factor: float = Field(2.0, ge=1, le=100, description="Factor by which each further delay grows.")
    cap_seconds: float = Field(3600.0, ge=0, le=366 * 86_400, description="Longest delay.")
    jitter: float = Field(0.2, ge=0, le=1, description="Fraction by which a delay is shortened at random.")


class NewOneShot(Body):
    """A new one-shot."""

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
                    "max_attempts": 3,
                },
            ]
        }
    )

    exec_at: str = Field(
        description="Instant in ISO 8601 with an offset or Z. An instant in the past runs immediately or is refused,"
        " see the setting past_one_shots.",
        json_schema_extra={"format": "date-time"},
    )
    prompt_type: str = Field(
        min_length=1, max_length=200, description="`log.append`, `http.call`, or the name of a registered job."
    )
    payload: dict[str, Any] = Field(default_factory=dict, description="Input of the prompt type.")
    tags: list[str] = Field(default_factory=list, max_length=20, description="Tags for filters.")
    max_attempts: int | None = Field(
        None,
        ge=1,
        le=MAX_ATTEMPTS,
        description="Maximum number of attempts; default: that of a job, 1 for `log.append` and `http.call`.",
    )
    retry: OneShotRetry | None = Field(None, description="Retry policy with its delays, instead of `max_attempts`.")
    timeout_seconds: float | None = Field(
        None, gt=0, le=MAX_TIMEOUT_SECONDS, description="Timeout of an attempt; default: that of the prompt type."
    )
    expires_in_seconds: float | None = Field(
        None,
        gt=0,
        le=316_224_000,
        description="Time after `exec_at` at which it expires if it has not started.",
    )


class AcceptedOneShot(BaseModel):
    """An accepted one-shot."""

    transaction_id: UUID = Field(examples=[_EXAMPLE_ID])
    exec_at_utc: datetime
    prompt_type: str


class ListedOneShot(BaseModel):
    """A one-shot in a list."""

    exec_at_utc: datetime
    prompt_type: str
    runtime_status: RuntimeStatus = Field(alias="runtimeStatus")
    tags: list[str]
    created_at: datetime
    created_by: str
    next_attempt_at: datetime | None = Field(None, description="Instant of the next attempt after a failure.")
    ended_at: datetime | None = None


class AttemptError(BaseModel):
    """Error of an attempt."""

    type: str | None
    message: str | None
    reason: str | None = Field(description="`error`, `timed_out`, `lost`, `refused` or `requested`.")


class OneShotEvent(BaseModel):
    """Event in the history of a one-shot."""

    at: datetime
    event: str = Field(
        description="`Created`, `Scheduled`, `Started`, `Completed`, `Failed`, `Terminated`, `Retried`, `HandedBack`"
        " (its worker stopped; another worker continues) or `Stopping` (cancellation requested)."
    )
    attempt: int
    by: str | None = None
    worker: str | None = None
    exec_at: datetime | None = None
    error: AttemptError | None = None


class OneShotStatus(BaseModel):
    """Status of a one-shot."""

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
    error: AttemptError | None = None
    progress: Any = None
    tags: list[str]
    stopping: dict[str, Any] | None = Field(None, description="Actor and instant of a requested cancellation.")
    history: list[OneShotEvent] | None = Field(None, description="With `history=true`: events in order.")


class CancelledOneShots(BaseModel):
    """Cancelled one-shots."""

    terminated: list[UUID] = Field(examples=[[_EXAMPLE_ID]])
    total: int = Field(examples=[1])
    stopping: list[UUID] = Field(description="Running one-shots among them, which end when their code has stopped.")


@router.post(
    "",
    operation_id="one_shots_create",
    status_code=202,
    response_model=AcceptedOneShot,
    responses=merge_responses(
        {202: {"headers": {"Location": {"description": "Path of the status.", "schema": {"type": "string"}}}}},
        describe(
            {"transaction_id": _EXAMPLE_ID, **_PENDING},
            202,
            forbidden="one_shot.secret.forbidden",
            conflict="one_shot.id.in_use",
            invalid=("one_shot.*", "task.*", "step.*", "job.unknown", "job.input.invalid", "value.*"),
        ),
    ),
)
async def create_one_shot(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "one_shot.create", handles_repeats=True)], one_shot: NewOneShot
) -> Response:
    """Create a one-shot. Repetitions with the same `Idempotency-Key` create one."""
    created = await call.app.one_shots.create(
        one_shot.exec_at,
        one_shot.prompt_type,
        one_shot.payload,
        tags=one_shot.tags,
        max_attempts=one_shot.max_attempts,
        retry=None if one_shot.retry is None else RetryPolicy(**dict(one_shot.retry)),
        timeout=one_shot.timeout_seconds,
        expires_in=one_shot.expires_in_seconds,
        may_use_secrets=call.caller.has_role(Role.EDITOR),
        id=call.object_id,
        is_repeat=call.is_repeat,
    )
    body = AcceptedOneShot(transaction_id=created.id, exec_at_utc=created.exec_at, prompt_type=one_shot.prompt_type)
    return _json_response(body, 202, {"Location": f"/api/schedule/{created.id}/status"})


@router.get(
    "",
    operation_id="one_shots_list",
    response_model=dict[UUID, ListedOneShot],
    responses=describe(
        {_EXAMPLE_ID: {**_PENDING, "runtimeStatus": "Pending", "created_by": "billing"}},
        invalid=(
            "request.cursor.invalid",
            "one_shot.status.unknown",
            "value.*",
            "database.value.out_of_range",
            *FILTER_PROBLEMS,
        ),
    ),
)
async def list_one_shots(
    call: Viewer,
    request: Request,
    q: FilterText = None,
    ended: Annotated[bool, Query(description="List ended one-shots, newest first.")] = False,
    status: Annotated[
        str | None,
        Query(description="Filter by status: Pending or Running; with `ended`: Completed, Failed or Terminated."),
    ] = None,
    prompt_type: Annotated[str | None, Query(description="Filter by prompt type.")] = None,
    tag: Annotated[list[str] | None, Query(description="Filter by tag; repeat it to require several tags.")] = None,
    search: Annotated[str | None, Query(description="Filter by a text in prompt type, tags or payload.")] = None,
    since: Annotated[datetime | None, Query(description="Filter by execution at this instant or later.")] = None,
    until: Annotated[datetime | None, Query(description="Filter by execution before this instant.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of items.")] = MAX_LIMIT,
    after: After = None,
) -> Response:
    """List open one-shots by id, the next one first. The header `Link` names the next page."""
    filters: dict[str, Any] = {
        "status": status, "prompt_type": prompt_type, "tags": tag or (), "since": since, "until": until,
        "search": search, "limit": limit,
    }  # fmt: skip
    shots, filter = call.app.one_shots, await parse_query(call, ONE_SHOT_KEYS, q)
    if ended:
        found: Sequence[OneShotSummary] = await shots.list_ended(filter, **filters, below=decode_key(after, UUID))
    else:
        found = await shots.list(filter, **filters, after=decode_cursor(after, cursor_instant, UUID))
    headers = {}
    if len(found) == limit:
        last = found[-1]
        query = [(name, value) for name, value in request.query_params.multi_items() if name != "after"]
        position = (last.activity_id,) if isinstance(last, EndedOneShot) else (last.run_at.isoformat(), last.id)
        headers["Link"] = f'</api/schedule?{urlencode([*query, ("after", encode_cursor(*position))])}>; rel="next"'
    return _json_response({str(each.id): _describe_listed(each) for each in found}, 200, headers)


@router.get("/count", operation_id="one_shots_count", responses=describe_count())
async def count_one_shots(
    call: Viewer,
    q: FilterText = None,
    ended: Annotated[bool, Query(description="Count ended one-shots instead of open ones.")] = False,
) -> CappedCount:
    """Count one-shots. The number is exact up to 10,000."""
    return await call.app.one_shots.count(await parse_query(call, ONE_SHOT_KEYS, q), ended=ended)


@router.delete(
    "",
    operation_id="one_shots_cancel_all",
    response_model=CancelledOneShots,
    responses=describe({"terminated": [_EXAMPLE_ID], "total": 1, "stopping": []}),
)
async def cancel_all_one_shots(call: Annotated[ApiCall, requires(Role.ADMIN, "one_shot.wipe")]) -> Response:
    """Cancel all one-shots in one transaction. Pending ones end at once, running ones when their code has stopped."""
    cancelled = await call.app.one_shots.cancel_all()
    body = CancelledOneShots(
        terminated=cancelled.terminated, total=len(cancelled.terminated), stopping=cancelled.stopping
    )
    return _json_response(body, 200)


@router.get(
    "/{id}/status",
    operation_id="one_shots_status",
    response_model=OneShotStatus,
    responses=describe(_STATUS, not_found="one_shot.not_found"),
)
async def get_one_shot_status(
    call: Viewer, id: Id, history: Annotated[bool, Query(description="Include the events.")] = False
) -> Response:
    """Get the status of a one-shot, open or ended."""
    found = await call.app.one_shots.status(_parse_id(id), history=history)
    return _json_response(_describe_status(found), 200)


@router.delete(
    "/{id}",
    operation_id="one_shots_cancel",
    status_code=204,
    responses=describe(not_found="one_shot.not_found", conflict="task.busy"),
)
async def cancel_one_shot(call: Annotated[ApiCall, requires(Role.OPERATOR, "one_shot.cancel")], id: Id) -> Response:
    """Cancel a one-shot. A pending one ends immediately, a running one when its code has stopped; an ended one does not
    change."""
    await call.app.one_shots.cancel(_parse_id(id))
    return Response(status_code=204)


# --- conversion -------------------------------------------------------------------------------------------------------


def _parse_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(
            f"there is no one-shot {text[:60]!r}",
            code="one_shot.not_found",
            remedy="send the transaction_id of the response to the creation",
        ) from None


def _describe_listed(listed: OneShotSummary) -> dict[str, Any]:
    item = {
        "exec_at_utc": listed.exec_at,
        "prompt_type": listed.prompt_type,
        "runtimeStatus": listed.runtime_status,
        "tags": listed.tags,
        "created_at": listed.created_at,
        "created_by": listed.created_by,
    }
    if isinstance(listed, EndedOneShot):
        item["ended_at"] = listed.ended_at
    elif listed.attempt > 1:
        item["next_attempt_at"] = listed.run_at
    return item


def _describe_status(found: one_shots.OneShotStatus) -> dict[str, Any]:
    """Return a status with the names of the API; fields without a value are omitted, except the output."""
    api_names = {
        "id": "transaction_id", "runtime_status": "runtimeStatus", "exec_at": "exec_at_utc", "attempt_count": "attempts"
    }  # fmt: skip
    body = {api_names.get(field.name, field.name): getattr(found, field.name) for field in dataclasses.fields(found)}
    body["history"] = [
        {name: value for name, value in dataclasses.asdict(event).items() if value is not None}
        for event in found.history
    ] or None
    return {name: value for name, value in body.items() if value is not None or name == "output"}


def _json_response(body: Any, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return a response without validation against its model, which would take time for long lists."""
    return Response(to_json(body, fallback=str), status, headers, media_type=JSONResponse.media_type)
