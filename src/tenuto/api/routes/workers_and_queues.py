"""``/api/v1/workers`` and ``/api/v1/queues``: list workers, control queues."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body, ReasonBody
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import Items
from tenuto.api.openapi import describe
from tenuto.api.parameters import Name
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto.presentation.work_views import QUEUES, WORKERS
from tenuto.store.work.workers import QueueRecord, WorkerRecord

router = APIRouter(prefix="/api/v1", route_class=ApiRoute)

WORKER = {
    "name": "box-1",
    "state": "alive",
    "queues": ["default"],
    "slots": 100,
    "running_count": 7,
    "silent_seconds": 1.2,
}
QUEUE = {
    "name": "mail",
    "max_running": 20,
    "paused_at": None,
    "queued_count": 12,
    "scheduled_count": 3,
    "running_count": 20,
}


class QueueLimit(Body):
    """Limit on the running tasks of a queue, over all workers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_running": 20}]})

    max_running: int | None = Field(
        ge=1, le=100_000, description="Maximum number of running tasks; null removes the limit."
    )


class QueueRateLimit(Body):
    """Limit on the starts of tasks of a queue, over all workers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"rate_limit": "100/m"}]})

    rate_limit: str | None = Field(
        description="Maximum number of starts per second, minute or hour, such as `5/s`, `100/m` or `1000/h burst 50`;"
        " null removes the limit."
    )


@router.get("/workers", operation_id="workers_list", responses=describe({"items": [WORKER]}), tags=["workers"])
@listed_as(WORKERS)
async def list_workers(
    call: Annotated[ApiCall, requires(Role.VIEWER, "worker.read")], ended: bool = False
) -> Items[WorkerRecord]:
    """List live workers. With `ended`, include stopped workers."""
    return Items(items=list(await call.app.workers(ended=ended)))


@router.post(
    "/workers/{name:name}/drain",
    operation_id="workers_drain",
    status_code=204,
    tags=["workers"],
    responses=describe(not_found="worker.not_found", invalid="value.*"),
)
async def drain_worker(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "worker.drain")], name: Name, body: ReasonBody | None = None
) -> None:
    """Drain a worker. It claims no further tasks until it is resumed or started again; running tasks finish."""
    await call.app.drain_worker(name, (body and body.reason) or call.reason)


@router.post(
    "/workers/{name:name}/resume",
    operation_id="workers_resume",
    status_code=204,
    tags=["workers"],
    responses=describe(not_found="worker.not_found", invalid="value.*"),
)
async def resume_worker(call: Annotated[ApiCall, requires(Role.OPERATOR, "worker.resume")], name: Name) -> None:
    """Resume a drained worker."""
    await call.app.resume_worker(name)


@router.get("/queues", operation_id="queues_list", responses=describe({"items": [QUEUE]}), tags=["queues"])
@listed_as(QUEUES)
async def list_queues(call: Annotated[ApiCall, requires(Role.VIEWER, "queue.read")]) -> Items[QueueRecord]:
    """List queues with limit, pause and task counts."""
    return Items(items=list(await call.app.queues()))


@router.post(
    "/queues/{name:name}/pause",
    operation_id="queues_pause",
    status_code=204,
    tags=["queues"],
    responses=describe(invalid="value.*"),
)
async def pause_queue(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "queue.pause")], name: Name, body: ReasonBody | None = None
) -> None:
    """Pause a queue. Workers claim no further tasks of it; running tasks finish."""
    await call.app.pause_queue(name, (body and body.reason) or call.reason)


@router.post(
    "/queues/{name:name}/resume",
    operation_id="queues_resume",
    status_code=204,
    tags=["queues"],
    responses=describe(invalid="value.*"),
)
async def resume_queue(call: Annotated[ApiCall, requires(Role.OPERATOR, "queue.resume")], name: Name) -> None:
    """Resume a paused queue."""
    await call.app.resume_queue(name)


@router.put(
    "/queues/{name:name}/limit",
    operation_id="queues_limit",
    status_code=204,
    tags=["queues"],
    responses=describe(invalid=("queue.*", "value.*")),
)
async def limit_queue(
    call: Annotated[ApiCall, requires(Role.EDITOR, "queue.limit")], name: Name, limit: QueueLimit
) -> None:
    """Limit the running tasks of a queue, over all workers."""
    await call.app.limit_queue(name, limit.max_running)


@router.put(
    "/queues/{name:name}/rate-limit",
    operation_id="queues_limit_rate",
    status_code=204,
    tags=["queues"],
    responses=describe(invalid=("rate_limit.*", "value.*")),
)
async def limit_queue_rate(
    call: Annotated[ApiCall, requires(Role.EDITOR, "queue.limit")], name: Name, limit: QueueRateLimit
) -> None:
    """Limit how many tasks of a queue start per second, minute or hour, over all workers."""
    await call.app.limit_queue_rate(name, limit.rate_limit)
