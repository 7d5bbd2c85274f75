"""``/api/v1/executions``: what runs and ran of schedules, and what may be done to it."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Response

from tenuto.api.auth import Needs, Visit
from tenuto.api.paging import After, Limit, Page, page, place
from tenuto.api.response_docs import Id, Text, Why, a_page, answers
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import inward, plain, told
from tenuto.model.actors import Role
from tenuto.model.executions import ExecutionState

router = APIRouter(prefix="/api/v1/executions", tags=["executions"], route_class=StrictRoute)

EXAMPLE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "schedule_name": "Nightly HR Sync",
    "state": "InProgress",
    "current_group": 1,
    "total_groups": 3,
    "failed_steps": 0,
    "started_at": "2031-05-04T02:00:00Z",
    "ended_at": None,
}
STEP = {"group": 0, "name": "import", "kind": "job", "target": "hr_import", "status": "Completed", "duration": 4.2}
Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "execution.read"))]


@router.get("", responses=a_page(EXAMPLE))
async def list_executions(
    visit: Look, state: Text = None, schedule: Text = None, limit: Limit = 50, after: After = None
) -> Page:
    """Executions, the newest first."""
    at = place(after, UUID)
    found = await visit.app.executions.list(
        below=at[0] if at else None,
        state=inward(state, ExecutionState, field="state"),
        schedule=schedule,
        limit=limit,
    )
    return page([told(each) for each in found], limit, lambda each: (each["id"],))


@router.get("/{id}", responses=answers({**EXAMPLE, "steps": [STEP]}))
async def get_execution(visit: Look, id: Id) -> dict[str, Any]:
    """An execution with every step: its state, activity, wait, duration and error; running ones live."""
    return told(await visit.app.executions.get(id))


@router.get("/{id}/steps", responses=answers({"items": [STEP]}))
async def execution_steps(visit: Look, id: Id) -> dict[str, Any]:
    """Its steps alone, in the order of its plan."""
    return {"items": told(await visit.app.executions.get(id))["steps"]}


@router.get("/{id}/why", responses=answers({"state": "InProgress", "reasons": [{"code": "queue_paused"}]}))
async def why_execution(visit: Look, id: Id) -> dict[str, Any]:
    """Why it does not go on: the reasons of every open step of the group it has come to."""
    return reasons(await visit.app.executions.why(id))


@router.post("/{id}/cancel", status_code=202, responses=answers({"state": "Stopping"}, 202))
async def cancel_execution(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "execution.cancel"))], id: Id, why: Why | None = None
) -> dict[str, str]:
    """Cancel: what has not begun is removed at once, what runs is told to stop."""
    reason = (why and why.reason) or visit.reason
    return told({"state": await visit.app.executions.cancel(id, reason=reason)})


@router.post("/{id}/pause", status_code=204)
async def pause_execution(visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "execution.pause"))], id: Id) -> None:
    """Let nothing more of it begin; what runs goes on to its end."""
    await visit.app.executions.pause(id)


@router.post("/{id}/resume", status_code=204)
async def resume_execution(visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "execution.resume"))], id: Id) -> None:
    """Let a paused one go on."""
    await visit.app.executions.resume(id)


@router.post("/{id}/retry", status_code=202, responses=answers({"execution_id": EXAMPLE["id"]}, 202))
async def retry_execution(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "execution.retry"))], id: Id, response: Response
) -> dict[str, UUID]:
    """Run one that failed or was cancelled again, from the group it came to."""
    new = await visit.app.executions.retry(id, request_id=visit.id)
    response.headers["Location"] = f"/api/v1/executions/{new}"
    return {"execution_id": new}


def reasons(why: Any) -> dict[str, Any]:
    """Why something is not running, as told on the wire."""
    return told({"id": why.id, "state": why.state, "reasons": [plain(reason) for reason in why.reasons]})
