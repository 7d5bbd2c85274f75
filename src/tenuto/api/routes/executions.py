"""``/api/v1/executions``: list and control executions."""

from __future__ import annotations

from functools import partial
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import ReasonBody
from tenuto.api.bodies.responses import Cancellation, StartedExecution
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
from tenuto.api.openapi import describe
from tenuto.api.parameters import Id, TextFilter
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.diagnostics.reasons import Diagnosis
from tenuto.model.access.actors import Role
from tenuto.model.filter_keys import EXECUTION_KEYS
from tenuto.model.filters import DEFAULT_WINDOW
from tenuto.model.work.executions import ExecutionState
from tenuto.operations.work.execution_timeline import ExecutionTimeline, parse_group_windows
from tenuto.operations.work.executions import ExecutionDetails, StepDetails
from tenuto.presentation.work_views import EXECUTIONS, STEPS
from tenuto.store.work.executions import ExecutionRecord

router = APIRouter(prefix="/api/v1/executions", tags=["executions"], route_class=ApiRoute)

EXAMPLE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "schedule_name": "Nightly HR Sync",
    "state": "in_progress",
    "current_group": 1,
    "group_count": 3,
    "failed_step_count": 0,
    "started_at": "2031-05-04T02:00:00Z",
    "ended_at": None,
}
STEP = {
    "group": 0,
    "name": "import",
    "kind": "job",
    "target": "hr_import",
    "state": "completed",
    "duration_seconds": 4.2,
}
TIMELINE = {
    "execution_id": EXAMPLE["id"],
    "schedule_name": "Nightly HR Sync",
    "state": "in_progress",
    "current_group": 1,
    "usual_seconds": 190.0,
    "groups": [
        {
            "index": 0,
            "step_count": 1,
            "states": [{"state": "completed", "count": 1}],
            "steps": [
                {
                    "name": "import",
                    "kind": "job",
                    "target": "hr_import",
                    "state": "completed",
                    "max_attempts": 3,
                    "usual_seconds": 61.0,
                    "attempts": [
                        {
                            "attempt": 1,
                            "state": "completed",
                            "worker": "box-1",
                            "wait_seconds": 0.2,
                            "duration_seconds": 58.4,
                        }
                    ],
                }
            ],
        }
    ],
}
_GROUPS_HELP = (
    "Windows of 100 steps in groups of more than 50: `2` is the start of group 2, `2:100` its steps from 100."
)
_FIND_HELP = "In groups of more than 50 steps, also return the first 100 steps whose name contains this text."
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "execution.read")]


@router.get(
    "", operation_id="executions_list", responses=describe_filtered_page(EXAMPLE, not_found="schedule.not_found")
)
@listed_as(EXECUTIONS)
async def list_executions(
    call: Viewer,
    q: FilterText = None,
    window: Window = DEFAULT_WINDOW,
    state: ExecutionState | None = None,
    schedule: TextFilter = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[ExecutionRecord]:
    """List executions, newest first."""
    filter = await parse_query(call, EXECUTION_KEYS, q, window)
    found = await call.app.executions.list(
        filter,
        below=decode_key(after, UUID),
        state=state,
        schedule=schedule,
        limit=limit,
    )
    return make_page(found, limit, lambda each: (each.id,), filter)


@router.get("/count", operation_id="executions_count", responses=describe_count())
async def count_executions(call: Viewer, q: FilterText = None, window: Window = DEFAULT_WINDOW) -> CappedCount:
    """Count executions. The number is exact up to 10,000."""
    return await call.app.executions.count(await parse_query(call, EXECUTION_KEYS, q, window))


@router.get(
    "/{id}",
    operation_id="executions_get",
    responses=describe({**EXAMPLE, "steps": [STEP]}, not_found="execution.not_found", limited="request.wait.limit"),
)
async def get_execution(call: Viewer, request: Request, id: Id, wait: Wait = 0) -> ExecutionDetails:
    """Get an execution with its steps: state, activity, waiting time, duration and error of each. With `wait`, the
    response comes when the execution has ended, or after that many seconds."""
    await waiting_requests(request.app).wait(request, wait, partial(call.app.executions.wait, id))
    return await call.app.executions.get(id)


@router.get(
    "/{id}/steps",
    operation_id="executions_steps",
    responses=describe({"items": [STEP]}, not_found="execution.not_found"),
)
@listed_as(STEPS)
async def execution_steps(call: Viewer, id: Id) -> Items[StepDetails]:
    """List the steps of an execution in the order of its plan."""
    return Items(items=list((await call.app.executions.get(id)).steps))


@router.get(
    "/{id}/timeline",
    operation_id="executions_timeline",
    responses=describe(TIMELINE, not_found="execution.not_found", invalid="execution.groups.invalid"),
)
async def execution_timeline(
    call: Viewer,
    id: Id,
    groups: Annotated[str | None, Query(max_length=200, description=_GROUPS_HELP, examples=["2:100"])] = None,
    find: Annotated[str | None, Query(max_length=200, description=_FIND_HELP)] = None,
) -> ExecutionTimeline:
    """Get every attempt at the steps of an execution, by group, with the usual duration of each step. A group of more
    than 50 steps returns a summary and the steps that `groups` or `find` select."""
    return await call.app.executions.timeline(id, windows=parse_group_windows(groups), find=find)


@router.get(
    "/{id}/why",
    operation_id="executions_why",
    responses=describe(
        {"state": "in_progress", "reasons": [{"code": "queue_paused", "message": "the queue mail is paused"}]},
        not_found="execution.not_found",
    ),
)
async def why_execution(call: Viewer, id: Id) -> Diagnosis:
    """Explain why an execution does not advance. Returns the reasons for every open step of the current group."""
    return await call.app.executions.why(id)


@router.post(
    "/{id}/cancel",
    operation_id="executions_cancel",
    status_code=202,
    responses=describe({"state": "stopping"}, 202, not_found="execution.not_found", conflict="execution.already_ended"),
)
async def cancel_execution(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "execution.cancel")], id: Id, body: ReasonBody | None = None
) -> Cancellation:
    """Cancel an execution. Waiting steps end immediately, running steps when their code has stopped."""
    reason = (body and body.reason) or call.reason
    return Cancellation(state=await call.app.executions.cancel(id, reason=reason))


@router.post(
    "/{id}/pause",
    operation_id="executions_pause",
    status_code=204,
    responses=describe(
        not_found="execution.not_found", conflict=("execution.already_ended", "execution.already_paused")
    ),
)
async def pause_execution(call: Annotated[ApiCall, requires(Role.OPERATOR, "execution.pause")], id: Id) -> None:
    """Pause an execution. No further step starts; running steps finish."""
    await call.app.executions.pause(id)


@router.post(
    "/{id}/resume",
    operation_id="executions_resume",
    status_code=204,
    responses=describe(not_found="execution.not_found", conflict=("execution.already_ended", "execution.not_paused")),
)
async def resume_execution(call: Annotated[ApiCall, requires(Role.OPERATOR, "execution.resume")], id: Id) -> None:
    """Resume a paused execution."""
    await call.app.executions.resume(id)


@router.post(
    "/{id}/retry",
    operation_id="executions_retry",
    status_code=202,
    responses=describe(
        {"execution_id": EXAMPLE["id"]},
        202,
        not_found="execution.not_found",
        conflict=("execution.not_retryable", "schedule.running"),
    ),
)
async def retry_execution(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "execution.retry", handles_repeats=True)],
    id: Id,
    response: Response,
) -> StartedExecution:
    """Retry a failed or cancelled execution. The new execution starts at the group that did not complete."""
    execution_id = await call.app.executions.retry(id, request_id=call.object_id)
    response.headers["Location"] = f"/api/v1/executions/{execution_id}"
    return StartedExecution(execution_id=execution_id)
