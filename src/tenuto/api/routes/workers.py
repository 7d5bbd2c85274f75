"""``/api/v1/workers`` and ``/api/v1/queues``: who does the work, and in which lines it waits."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import ConfigDict, Field

from tenuto.api.auth import Needs, Visit
from tenuto.api.path_names import Name
from tenuto.api.response_docs import Body, Why, answers
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import told
from tenuto.model.actors import Role

router = APIRouter(prefix="/api/v1", route_class=StrictRoute)

WORKER = {"name": "box-1", "state": "alive", "queues": ["default"], "slots": 100, "running": 7, "silent_for": 1.2}
QUEUE = {"name": "mail", "max_running": 20, "paused_at": None, "queued": 12, "scheduled": 3, "running": 20}


class QueueLimit(Body):
    """How many tasks of a queue may run at the same time, over all workers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_running": 20}]})

    max_running: int | None = Field(ge=1, le=100_000, description="Null lifts the bound.")


@router.get("/workers", responses=answers({"items": [WORKER]}), tags=["workers"])
async def list_workers(
    visit: Annotated[Visit, Depends(Needs(Role.VIEWER, "worker.read"))], ended: bool = False
) -> dict[str, Any]:
    """The workers that are alive, and on request those that have left."""
    found = await visit.app.workers(ended=ended)
    return {"items": [{**told(each), "state": each["state"]} for each in found]}


@router.get("/queues", responses=answers({"items": [QUEUE]}), tags=["queues"])
async def list_queues(visit: Annotated[Visit, Depends(Needs(Role.VIEWER, "queue.read"))]) -> dict[str, Any]:
    """Every queue with its limit, whether it is paused, and what is in it."""
    return {"items": [told(each) for each in await visit.app.queues()]}


@router.post("/queues/{name:name}/pause", status_code=204, tags=["queues"])
async def pause_queue(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "queue.pause"))], name: Name, why: Why | None = None
) -> None:
    """Let nothing more of a queue be taken; what runs goes on."""
    await visit.app.pause_queue(name, (why and why.reason) or visit.reason)


@router.post("/queues/{name:name}/resume", status_code=204, tags=["queues"])
async def resume_queue(visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "queue.resume"))], name: Name) -> None:
    """Let a paused queue go on."""
    await visit.app.resume_queue(name)


@router.put("/queues/{name:name}/limit", status_code=204, tags=["queues"])
async def limit_queue(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "queue.limit"))], name: Name, limit: QueueLimit
) -> None:
    """Bound how many tasks of a queue run at the same time, over all workers."""
    await visit.app.limit_queue(name, limit.max_running)
