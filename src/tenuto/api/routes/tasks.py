"""``/api/v1/tasks``: work that is asked for, by the name of a job; what is open of it, and why it does not run."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Response
from pydantic import ConfigDict, Field

from tenuto.api.auth import Needs, Visit
from tenuto.api.paging import After, Limit, Page, page, place
from tenuto.api.response_docs import Body, Id, Text, a_page, answers
from tenuto.api.routes.executions import reasons
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import inward, told
from tenuto.errors import Invalid, NotFound
from tenuto.model.actors import Role
from tenuto.model.tasks import TaskState

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"], route_class=StrictRoute)

EXAMPLE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "state": "Queued",
    "kind": "job",
    "name": "send_mail",
    "queue": "default",
    "priority": 0,
    "run_at": "2031-05-04T02:00:00Z",
    "attempt": 1,
    "initiator_type": "api_key",
    "initiator_name": "ci",
}
Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "task.read"))]


class NewTask(Body):
    """A job, its input, and how this task differs from what the job says."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"job": "send_mail", "input": {"to": "ana@example.org"}, "key": "welcome-ana", "delay": "10m"}]
        }
    )

    job: str = Field(max_length=200, description="The name of the job: see `GET /api/v1/jobs`.")
    input: dict[str, Any] = Field(default_factory=dict, description="Its arguments by name.")
    queue: str | None = None
    priority: int | None = Field(default=None, description="-100 to 100; the higher, the sooner.")
    run_at: datetime | None = Field(default=None, description="Not before this instant.")
    delay: str | float | None = Field(default=None, description="Or not before so long from now: seconds, `10m`, `2h`.")
    key: str | None = Field(default=None, description="At most one open task has it; asking again finds that one.")
    limit_key: str | None = Field(default=None, description="Tasks of one key share a limit.")
    limit: int | None = Field(default=None, description="So many of a key run at the same time.")
    tags: list[str] = Field(default_factory=list, max_length=20)
    correlation_id: str | None = Field(default=None, max_length=200)


@router.post("", status_code=202, responses=answers({"id": EXAMPLE["id"], "created": True}, 202))
async def enqueue_task(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "task.create"))], wanted: NewTask, response: Response
) -> dict[str, Any]:
    """Have a job run, once committed to even if everything crashes."""
    if wanted.run_at is not None and wanted.run_at.tzinfo is None:
        raise Invalid("has no time zone", field="run_at", remedy="write it with an offset, such as …T00:00:00Z")
    job = visit.app.jobs.get(wanted.job)
    options = wanted.model_dump(exclude={"job", "input"}, exclude_defaults=True)
    made = await visit.app.enqueue_json(job.using(**options), json.dumps(wanted.input), request_id=visit.id)
    response.headers["Location"] = f"/api/v1/tasks/{made.id}"
    return {"id": made.id, "created": made.created}


@router.get("", responses=a_page(EXAMPLE))
async def list_tasks(
    visit: Look,
    state: Text = None,
    name: Text = None,
    queue: Text = None,
    tag: Text = None,
    limit: Limit = 50,
    after: After = None,
) -> Page:
    """Open tasks, the newest first. Those that have ended live on as activities."""
    at = place(after, UUID)
    found = await visit.app.tasks(
        below=at[0] if at else None,
        state=inward(state, TaskState, field="state"),
        name=name,
        queue=queue,
        tag=tag,
        limit=limit,
    )
    return page([told(each) for each in found], limit, lambda each: (each["id"],))


@router.get("/{id}", responses=answers(EXAMPLE))
async def get_task(visit: Look, id: Id) -> dict[str, Any]:
    """A task: as it stands, or, once it has ended, its last attempt."""
    try:
        return told(await visit.app.task(id))
    except NotFound:
        return told((await visit.app.attempts(id))[-1])


@router.get("/{id}/attempts")
async def task_attempts(visit: Look, id: Id) -> dict[str, Any]:
    """Every attempt at a task so far, the first one first; the last may lie ahead."""
    return {"items": [told(each) for each in await visit.app.attempts(id)]}


@router.get("/{id}/steps")
async def task_steps(visit: Look, id: Id) -> dict[str, Any]:
    """What the steps of a chain have come to, in order; of other jobs: nothing."""
    await visit.app.attempts(id)
    return {"items": [told(each) for each in await visit.app.chain_steps(id)]}


@router.get("/{id}/why", responses=answers({"state": "Queued", "reasons": [{"code": "no_worker"}]}))
async def why_task(visit: Look, id: Id) -> dict[str, Any]:
    """Why a task is not running: every reason, as a sentence and as a code; or what it does, or how it ended."""
    return reasons(await visit.app.why(id))


@router.post("/{id}/cancel", status_code=202, responses=answers({"state": "Cancelled"}, 202))
async def cancel_task(visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "task.cancel"))], id: Id) -> dict[str, Any]:
    """Cancel a task: at once if nobody runs it, otherwise its code is told to stop."""
    return told({"state": await visit.app.cancel(id)})
