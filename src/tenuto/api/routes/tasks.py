"""``/api/v1/tasks`` and ``/api/v1/activities``: tasks and the records of their attempts."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body, RetryBody
from tenuto.api.bodies.responses import Cancellation, StartedTask
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_filters import (
    CappedCount,
    FilterText,
    Window,
    describe_count,
    describe_filtered_page,
    parse_query,
)
from tenuto.api.list_pages import After, Items, Limit, Page, decode_key, make_page
from tenuto.api.long_polling import Wait, waiting_requests
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Id, TextFilter
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.app import Tenuto
from tenuto.diagnostics.reasons import Diagnosis
from tenuto.errors import NotFound
from tenuto.model.access.actors import ActorType, Role
from tenuto.model.filter_keys import ACTIVITY_KEYS, TASK_KEYS
from tenuto.model.filters import DEFAULT_WINDOW
from tenuto.model.work import tasks
from tenuto.model.work.tasks import OutcomeReason, OutcomeStatus, TaskState
from tenuto.presentation.work_views import ACTIVITIES, ATTEMPTS, TASKS
from tenuto.store.work.activities import ActivityDetails, ActivityRecord, JobStatistics, TaskDetails, TaskRecord
from tenuto.store.work.step_checkpoints import ChainStepRecord

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"], route_class=ApiRoute)

EXAMPLE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "state": "queued",
    "kind": "job",
    "name": "send_mail",
    "queue": "default",
    "priority": 0,
    "run_at": "2031-05-04T02:00:00Z",
    "attempt": 1,
    "initiator_type": "api_key",
    "initiator_name": "ci",
}
ACTIVITY_EXAMPLE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "task_id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "attempt": 1,
    "state": "failed",
    "reason": "error",
    "final": False,
    "name": "send_mail",
    "started_at": "2031-05-04T02:00:00Z",
    "ended_at": "2031-05-04T02:00:04Z",
    "error": {"type": "ConnectionError", "message": "the server does not respond"},
}
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "task.read")]
_SHARED_FIELDS = (
    "kind", "name", "queue", "priority", "input", "progress", "attempt", "failure_count", "loss_count", "created_at",
    "run_at", "claimed_at", "worker_id", "worker", "unique_key", "limit_key", "initiator_type", "initiator_id",
    "initiator_name", "correlation_id", "parent_id",
)  # fmt: skip
"""Fields that open tasks and activities have in common."""


class NewTask(Body):
    """A job, its input, and options that override those of the job."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"job": "send_mail", "input": {"to": "ana@example.org"}, "unique_key": "welcome-ana", "delay": "10m"}
            ]
        }
    )

    job: str = Field(max_length=200, description="Name of the job, see `GET /api/v1/jobs`.")
    input: dict[str, Any] = Field(default_factory=dict, description="Arguments of the job by name.")
    queue: str | None = None
    priority: int | None = Field(default=None, description="-1,000 to 1,000; a higher priority runs first.")
    run_at: datetime | None = Field(default=None, description="Earliest start.")
    delay: str | float | None = Field(default=None, description="Delay of the start: seconds, `10m`, `2h`.")
    unique_key: str | None = Field(
        default=None, description="Key, unique among open tasks. A second request returns the open task."
    )
    limit_key: str | None = Field(default=None, description="Tasks with the same key share a limit.")
    limit: int | None = Field(default=None, description="Maximum number of running tasks with the same limit key.")
    rate_limit: str | None = Field(
        default=None, description="Starts per second, minute or hour of tasks with the same rate key, such as `100/m`."
    )
    rate_key: str | None = Field(default=None, description="Tasks with the same key share a rate limit.")
    expires_at: datetime | None = Field(
        default=None, description="A task that has not started by then ends as expired."
    )
    expires_in: str | float | None = Field(
        default=None, description="The same as a duration after the earliest start: seconds, `10m`, `2h`."
    )
    tags: list[str] = Field(default_factory=list, max_length=20)
    correlation_id: str | None = Field(default=None, max_length=200)


@router.get("", operation_id="tasks_list", responses=describe_filtered_page(EXAMPLE))
@listed_as(TASKS)
async def list_tasks(
    call: Viewer,
    q: FilterText = None,
    window: Window = DEFAULT_WINDOW,
    state: TaskState | None = None,
    name: TextFilter = None,
    queue: TextFilter = None,
    tag: TextFilter = None,
    worker: TextFilter = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[TaskRecord]:
    """List open tasks, newest first. Finished tasks are found as activities."""
    filter = await parse_query(call, TASK_KEYS, q, window)
    filter = filter.where(state=state, name=name, queue=queue, tag=tag, worker=worker)
    found = await call.app.tasks(filter, below=decode_key(after, UUID), limit=limit)
    return make_page(found, limit, lambda each: (each.id,), filter)


@router.get("/count", operation_id="tasks_count", responses=describe_count())
async def count_tasks(call: Viewer, q: FilterText = None, window: Window = DEFAULT_WINDOW) -> CappedCount:
    """Count open tasks. The number is exact up to 10,000."""
    return await call.app.count_tasks(await parse_query(call, TASK_KEYS, q, window))


class TaskResource(BaseModel):
    """A task, open or ended. Of an ended task, the fields describe its last attempt."""

    id: UUID
    state: TaskState | OutcomeStatus
    is_ended: bool
    kind: str
    name: str
    queue: str
    priority: int
    input: Any
    output: Any
    error: Any
    reason: OutcomeReason | None = Field(description="Why the last attempt failed or was cancelled.")
    progress: Any
    attempt: int
    activity_id: UUID = Field(description="The last attempt.")
    failure_count: int
    loss_count: int
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    lease_until: datetime | None = Field(description="Of a running task: until when its worker holds it.")
    started_at: datetime | None = Field(description="Of an ended task: start of the last attempt.")
    ended_at: datetime | None
    worker_id: UUID | None
    worker: str | None = Field(description="Name of the worker.")
    unique_key: str | None
    limit_key: str | None
    tags: list[str]
    cancel_at: datetime | None = Field(description="When the cancellation of a running task was requested.")
    cancel_name: str | None
    initiator_type: ActorType
    initiator_id: str | None
    initiator_name: str
    correlation_id: str | None
    parent_id: UUID | None = Field(description="The attempt that enqueued the task.")


class EnqueuedTask(TaskResource):
    """A task that a request enqueued, as it is now."""

    created: bool = Field(description="False if an open task already had the same key.")


@router.post(
    "",
    operation_id="tasks_enqueue",
    status_code=202,
    responses=describe({**EXAMPLE, "created": True}, 202, invalid=("job.*", "task.*", "rate_limit.*", "value.*")),
)
async def enqueue_task(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "task.create", handles_repeats=True)],
    new_task: NewTask,
    response: Response,
) -> EnqueuedTask:
    """Enqueue a task. It survives crashes of all processes once the response is sent."""
    job = call.app.jobs.get_job(new_task.job)
    options = new_task.model_dump(exclude={"job", "input"}, exclude_defaults=True)
    # Without an idempotency key the request cannot be a repetition.
    request_id = None if call.idempotency_key is None else call.object_id
    task = await call.app.enqueue_json(job.using(**options), json.dumps(new_task.input), request_id=request_id)
    response.headers["Location"] = f"/api/v1/tasks/{task.id}"
    stored = _describe_new_task(task.new_task) if task.new_task is not None else await _load_task(call.app, task.id)
    return EnqueuedTask(**dict(stored), created=task.created)


@router.get(
    "/{id}",
    operation_id="tasks_get",
    responses=describe(EXAMPLE, not_found="task.not_found", limited="request.wait.limit"),
)
async def get_task(call: Viewer, request: Request, id: Id, wait: Wait = 0) -> TaskResource:
    """Get a task, open or ended. With `wait`, the response comes when the task has ended, or after that many
    seconds."""
    await waiting_requests(request.app).wait(request, wait, partial(call.app.wait, id))
    return await _load_task(call.app, id)


async def _load_task(app: Tenuto, id: UUID) -> TaskResource:
    try:
        return _describe_task(await app.task(id))
    except NotFound:
        return _describe_ended_task((await app.attempts(id))[-1])


def _describe_new_task(task: tasks.NewTask) -> TaskResource:
    """Return a task as it was stored: reading it again would take as long as storing it (benchmark api)."""
    return TaskResource(
        id=task.id,
        state=task.state,
        is_ended=False,
        kind=task.kind,
        name=task.name,
        queue=task.queue,
        priority=task.priority,
        input=json.loads(task.input),
        output=None,
        error=None,
        reason=None,
        progress=None,
        attempt=1,
        activity_id=task.id,
        failure_count=0,
        loss_count=0,
        created_at=task.created_at,
        run_at=task.run_at or task.created_at,
        claimed_at=None,
        lease_until=None,
        started_at=None,
        ended_at=None,
        worker_id=None,
        worker=None,
        unique_key=task.unique_key,
        limit_key=task.limit_key,
        tags=task.tags or [],
        cancel_at=None,
        cancel_name=None,
        initiator_type=task.initiator.type,
        initiator_id=task.initiator.id,
        initiator_name=task.initiator.name,
        correlation_id=task.correlation_id,
        parent_id=task.parent_id,
    )


def _describe_task(task: TaskDetails) -> TaskResource:
    return TaskResource(
        **_shared_fields(task),
        id=task.id,
        state=task.state,
        is_ended=False,
        output=None,
        error=None,
        reason=None,
        activity_id=task.activity_id,
        lease_until=task.lease_until,
        started_at=None,
        ended_at=None,
        cancel_at=task.cancel_at,
        cancel_name=task.cancel_name,
    )


def _describe_ended_task(last: ActivityDetails) -> TaskResource:
    return TaskResource(
        **_shared_fields(last),
        id=last.task_id,
        state=OutcomeStatus(last.state),
        is_ended=True,
        output=last.output,
        error=last.error,
        reason=last.reason,
        activity_id=last.id,
        lease_until=None,
        started_at=last.started_at,
        ended_at=last.ended_at,
        cancel_at=None,
        cancel_name=None,
    )


def _shared_fields(record: TaskDetails | ActivityDetails) -> dict[str, Any]:
    return {**{name: getattr(record, name) for name in _SHARED_FIELDS}, "tags": list(record.tags or ())}


@router.get(
    "/{id}/attempts",
    operation_id="tasks_attempts",
    responses=describe({"items": [ACTIVITY_EXAMPLE]}, not_found="task.not_found"),
)
@listed_as(ATTEMPTS)
async def task_attempts(call: Viewer, id: Id) -> Items[ActivityDetails]:
    """List the attempts of a task, oldest first. The last attempt may not have started."""
    return Items(items=list(await call.app.attempts(id)))


@router.get(
    "/{id}/steps",
    operation_id="tasks_steps",
    responses=describe({"items": [{"name": "fetch"}]}, not_found="task.not_found"),
)
async def task_steps(call: Viewer, id: Id) -> Items[ChainStepRecord]:
    """List the stored steps, sleeps and waits of a chain or workflow by position. The list is empty for other jobs."""
    await call.app.attempts(id)
    return Items(items=list(await call.app.chain_steps(id)))


@router.get(
    "/{id}/why",
    operation_id="tasks_why",
    responses=describe(
        {"state": "queued", "reasons": [{"code": "no_worker", "message": "no worker serves the queue mail"}]},
        not_found="task.not_found",
    ),
)
async def why_task(call: Viewer, id: Id) -> Diagnosis:
    """Explain why a task is not running. Each reason has a code and a message."""
    return await call.app.why(id)


@router.post(
    "/{id}/retry",
    operation_id="tasks_retry",
    status_code=202,
    responses=describe(
        {"task_id": EXAMPLE["id"]},
        202,
        forbidden="dead_letter.secret.forbidden",
        not_found=("task.not_found", "manifest.not_found"),
        conflict=(
            "task.not_retryable",
            "task.key.in_use",
            "dead_letter.already_resolved",
            "dead_letter.manifest.deleted",
            "dead_letter.batch.cancelled",
            "manifest.run.already_open",
        ),
        invalid=("job.input.invalid", "job.unknown"),
    ),
)
async def retry_task(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "task.retry", handles_repeats=True)],
    id: Id,
    response: Response,
    body: RetryBody | None = None,
) -> StartedTask:
    """Retry a task that failed for good, optionally with a new input. Its dead letter is resolved."""
    body = body or RetryBody()
    task_id = await call.app.tasks.retry(
        id,
        input=body.input,
        note=body.note or call.reason,
        may_use_secrets=call.caller.has_role(Role.EDITOR),
        request_id=call.object_id,
    )
    response.headers["Location"] = f"/api/v1/tasks/{task_id}"
    return StartedTask(task_id=task_id)


@router.post(
    "/{id}/cancel",
    operation_id="tasks_cancel",
    status_code=202,
    responses=describe(
        {"state": "cancelled"}, 202, not_found="task.not_found", conflict=("task.already_ended", "task.busy")
    ),
)
async def cancel_task(call: Annotated[ApiCall, requires(Role.OPERATOR, "task.cancel")], id: Id) -> Cancellation:
    """Cancel a task. A running task ends when its code has stopped."""
    return Cancellation(state=await call.app.cancel(id))


activity_router = APIRouter(prefix="/api/v1/activities", tags=["activities"], route_class=ApiRoute)

STATS_EXAMPLE = {"kind": "job", "name": "send_mail", "attempt_count": 120, "done_count": 117, "failed_count": 3}
ActivityViewer = Annotated[ApiCall, requires(Role.VIEWER, "activity.read")]
_STATS_PERIOD = timedelta(days=1)


@activity_router.get("", operation_id="activities_list", responses=describe_filtered_page(ACTIVITY_EXAMPLE))
@listed_as(ACTIVITIES)
async def list_activities(
    call: ActivityViewer,
    q: FilterText = None,
    window: Window = DEFAULT_WINDOW,
    state: OutcomeStatus | None = None,
    name: TextFilter = None,
    queue: TextFilter = None,
    tag: TextFilter = None,
    worker: TextFilter = None,
    final: Annotated[bool | None, Query(description="Filter by whether the task ended with the attempt.")] = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[ActivityRecord]:
    """List finished attempts, newest first."""
    filter = await parse_query(call, ACTIVITY_KEYS, q, window)
    filter = filter.where(state=state, name=name, queue=queue, tag=tag, worker=worker, final=final)
    found = await call.app.activities(filter, below=decode_key(after, UUID), limit=limit)
    return make_page(found, limit, lambda each: (each.id,), filter)


@activity_router.get("/count", operation_id="activities_count", responses=describe_count())
async def count_activities(call: ActivityViewer, q: FilterText = None, window: Window = DEFAULT_WINDOW) -> CappedCount:
    """Count finished attempts. The number is exact up to 10,000."""
    return await call.app.count_activities(await parse_query(call, ACTIVITY_KEYS, q, window))


class ActivityStatistics(BaseModel):
    """Statistics of finished attempts by name."""

    since: datetime
    items: list[JobStatistics]


@activity_router.get(
    "/stats",
    operation_id="activities_stats",
    responses=describe(
        {"since": "2031-05-03T02:00:00Z", "items": [STATS_EXAMPLE]}, invalid="value.instant.no_utc_offset"
    ),
)
async def activity_stats(
    call: ActivityViewer,
    since: Annotated[datetime | None, Query(description="Start of the period; default: one day ago.")] = None,
    name: TextFilter = None,
    limit: Limit = 100,
) -> ActivityStatistics:
    """Get statistics of finished attempts by name: counts by outcome, waiting time and duration in seconds."""
    start = since or (await call.app.open()).clock.now() - _STATS_PERIOD
    found = await call.app.stats(since=start, name=name, limit=limit)
    return ActivityStatistics(since=start, items=list(found))


@activity_router.get(
    "/{id}", operation_id="activities_get", responses=describe(ACTIVITY_EXAMPLE, not_found="activity.not_found")
)
async def get_activity(call: ActivityViewer, id: Id) -> ActivityDetails:
    """Get an attempt with input, output, error, log and progress, in any state."""
    return await call.app.activity(id)


@activity_router.get(
    "/{id}/log",
    operation_id="activities_log",
    response_class=PlainTextResponse,
    responses=describe(not_found="activity.not_found", invalid="activity.log.range"),
)
async def activity_log(
    call: ActivityViewer,
    id: Id,
    tail: Annotated[int | None, Query(ge=0, le=100_000, description="Return the last lines only.")] = None,
    from_offset: Annotated[
        int | None, Query(alias="from", ge=0, le=2**53, description="Return what follows this offset.")
    ] = None,
) -> PlainTextResponse:
    """Get the log of an attempt as text, also while it runs. `Tenuto-Log-Offset` is the offset from which it continues,
    for `from`; `Tenuto-Log-Complete` is `true` if the attempt has ended. While it runs, each request makes the worker
    send new lines for 15 seconds; the first arrive within a second."""
    found = await call.app.activity_log(id, tail=tail, from_offset=from_offset)
    headers = {
        "Tenuto-Log-Offset": str(found.next_offset),
        "Tenuto-Log-Complete": "true" if found.is_complete else "false",
        "Content-Disposition": f'attachment; filename="log-{id}.txt"',  # a browser never shows foreign text as a page
    }
    return PlainTextResponse(found.text, headers=headers)


@activity_router.get(
    "/{id}/children",
    operation_id="activities_children",
    responses=describe_page(ACTIVITY_EXAMPLE, not_found="activity.not_found"),
)
@listed_as(ACTIVITIES)
async def activity_children(
    call: ActivityViewer, id: Id, limit: Limit = 50, after: After = None
) -> Page[ActivityRecord]:
    """List the attempts of tasks that this attempt enqueued, oldest first."""
    found = await call.app.children(id, above=decode_key(after, UUID), limit=limit)
    return make_page(found, limit, lambda each: (each.id,))
