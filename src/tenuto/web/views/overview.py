"""``/``: what needs attention, what is running, what is next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from tenuto.app import Tenuto
from tenuto.store.workers import QueueRecord, WorkerRecord
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Overview:
    queues: Sequence[QueueRecord]
    workers: Sequence[WorkerRecord]


@router.get("/")
async def show_overview(request: Request, call: Reader) -> Response:
    """Show the overview."""
    view = PageView(request, call)
    model = await view.shared("overview", load_overview)
    return await view.render("pages/overview.html", model, title="Overview", current="/")


async def load_overview(app: Tenuto) -> Overview:
    """Load the model of the page."""
    return Overview(await app.queues(), await app.workers())
