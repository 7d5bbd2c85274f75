"""``/workers`` and ``/queues``: the processes of the installation, and the queues with their load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from fastapi import APIRouter, Request, Response

from tenuto.api.parameters import Name
from tenuto.app import Tenuto
from tenuto.errors import NotFound
from tenuto.model.filters import quote_value
from tenuto.model.work.worker_states import WorkerState
from tenuto.operations.overview import QueueOverview
from tenuto.store.work.workers import WorkerRecord
from tenuto.web.page import PageRoute, PageView, Reader
from tenuto.web.views.work.tasks import TaskRow, describe_task

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_SHOWN_TASKS = 20


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A process with the share of its slots that are used."""

    record: WorkerRecord

    @property
    def recovered_at(self) -> datetime | None:
        """When its tasks are recovered; None unless it has missed several heartbeats."""
        return self.record.recovered_at if self.record.state is WorkerState.DEAD else None

    @property
    def used_percent(self) -> float:
        return round(min(self.record.running_count / self.record.slots, 1.0) * 100, 1) if self.record.slots else 0.0


@dataclass(frozen=True, slots=True)
class WorkerList:
    live: Sequence[WorkerRow]
    ended: Sequence[WorkerRow]


@dataclass(frozen=True, slots=True)
class QueuePage:
    """One queue with its tasks."""

    queue: QueueOverview
    workers: Sequence[WorkerRecord]
    running: Sequence[TaskRow]
    waiting: Sequence[TaskRow]
    is_known: bool
    """Whether it has tasks, a live worker, or settings in the overview."""


@router.get("/workers")
async def show_workers(request: Request, call: Reader) -> Response:
    """Show all processes."""
    view = PageView(request, call)
    model = await view.shared("workers", load_workers)
    return await view.render("pages/workers.html", model, title="Workers", current="/workers")


async def load_workers(app: Tenuto) -> WorkerList:
    """Load the model of the page."""
    rows = [WorkerRow(each) for each in await app.workers(ended=True)]
    return WorkerList(
        [row for row in rows if row.record.ended_at is None],
        [row for row in rows if row.record.ended_at is not None][:50],
    )


@router.get("/queues")
async def show_queues(request: Request, call: Reader) -> Response:
    """Show all queues."""
    view = PageView(request, call)
    model = await view.shared("queues", lambda app: app.reports.overview())
    return await view.render("pages/queues.html", model, title="Queues", current="/queues")


@router.get("/queues/{name:name}")
async def show_queue(request: Request, call: Reader, name: Name) -> Response:
    """Show a queue."""
    view = PageView(request, call)
    settings = await view.app.reports.queue_settings(name)
    model = await view.shared(("queue", name), lambda app: load_queue(app, name))
    if settings is None and not model.is_known:
        raise NotFound(f"there is no queue {name!r}", code="queue.not_found", remedy="see the list of queues")
    if settings is not None:  # not from the shared model: it must show what an action has just changed
        queue = replace(
            model.queue,
            max_running=settings.max_running,
            paused_at=settings.paused_at,
            paused_by=settings.paused_by,
            pause_reason=settings.reason,
            rate_limit=settings.rate_limit,
        )
        model = replace(model, queue=queue)
    return await view.render("pages/queue.html", model, title=f"Queue {name}", current="/queues")


async def load_queue(app: Tenuto, name: str) -> QueuePage:
    """Load the model of the page."""
    overview, workers, running, waiting = await asyncio.gather(
        app.reports.overview(),
        app.workers(),
        app.tasks("state:running", queue=name, limit=_SHOWN_TASKS),
        app.tasks.next_to_claim(f"queue:{quote_value(name)}", limit=_SHOWN_TASKS),
    )
    if len(waiting) < _SHOWN_TASKS:
        scheduled = await app.tasks("state:scheduled", queue=name, limit=_SHOWN_TASKS - len(waiting))
        waiting = [*waiting, *scheduled]
    queue = next((each for each in overview.queues if each.name == name), None)
    serving = [each for each in workers if name in each.queues and each.service == "worker"]
    empty = QueueOverview(name, None, 0, 0, None, 0.0, 0.0, None, None, None, None, len(serving))
    return QueuePage(
        queue or empty,
        serving,
        [describe_task(each) for each in running],
        [describe_task(each) for each in waiting],
        is_known=queue is not None or bool(serving),
    )
