"""``/api/v1/overview``, ``/series``, ``/upcoming``, ``/search`` and ``/history``: the whole installation."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import After, Items, Limit, Page, decode_key, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import TextFilter
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto.operations.extension_search import search_everywhere
from tenuto.operations.overview import Overview
from tenuto.operations.reports import MAX_HITS, SeriesDivision, SeriesReport, UpcomingRuns
from tenuto.presentation.work_views import HISTORY, SEARCH_HITS
from tenuto.store.access.audit_log import HistoryEntry

router = APIRouter(prefix="/api/v1", tags=["reports"], route_class=ApiRoute)

FIGURES = {
    "completed_count": 412,
    "warning_count": 0,
    "error_count": 0,
    "failed_count": 3,
    "cancelled_count": 0,
    "wait_p50_seconds": 0.02,
    "wait_p95_seconds": 4.1,
    "run_p50_seconds": 0.8,
    "run_p95_seconds": 12.0,
}
SERIES = {
    "since": "2031-05-04T01:00:00Z",
    "until": "2031-05-04T02:00:00Z",
    "point_seconds": 60,
    "by": "outcome",
    "series": [{"label": None, "total": FIGURES, "points": [{**FIGURES, "at": "2031-05-04T01:00:00Z"}]}],
    "omitted_label_count": 0,
}
OVERVIEW = {
    "running_count": 87,
    "waiting_count": 1204,
    "oldest_due_at": "2031-05-04T01:48:56Z",
    "finished_per_minute": 412.0,
    "failed_last_hour_count": 57,
    "open_dead_letter_count": 41,
    "attention": [
        {
            "code": "queue_paused",
            "severity": "note",
            "id": "mail",
            "name": "mail",
            "text": "queue mail is paused by ana: server down; 1,204 tasks waiting",
            "since": "2031-05-04T01:48:56Z",
            "command": "tenuto queue resume mail",
        }
    ],
    "failures": [
        {
            "fingerprint": "3f0c7d9a5b21",
            "dead_letter_count": 39,
            "reason": "ConnectionError: the server does not respond",
            "external_ids": ["bills", "mail"],
            "manifest_count": 2,
            "total_count": 41,
        }
    ],
    "unresolved_executions": [
        {
            "schedule_name": "Nightly HR Sync",
            "current_group": 1,
            "group_count": 4,
            "error": "step HR Full Sync: deadlock",
        }
    ],
    "paused": [{"kind": "queue", "id": "mail", "name": "mail", "paused_by": "ana", "reason": "server down"}],
    "unknown_jobs": [
        {"queue": "default", "kind": "job", "name": "fresh", "task_count": 12, "oldest_due_at": "2031-05-17T04:00:00Z"}
    ],
    "silent_processes": [{"name": "box-3", "service": "worker", "silent_seconds": 74.0, "running_count": 7}],
    "late_runs": [],
    "unserved_queues": [],
    "repairs": [],
    "failed_operations": [],
    "queues": [
        {"name": "mail", "waiting_count": 1204, "running_count": 0, "in_per_minute": 40.0, "out_per_minute": 0.0}
    ],
    "next_runs": [{"kind": "schedule", "name": "Hourly report", "due_at": "2031-05-04T02:05:00Z"}],
    "first_steps": {"has_worker": True, "has_definition": True, "has_run": True},
}
UPCOMING = {
    "start": "2031-05-04T02:00:00Z",
    "end": "2031-05-05T02:00:00Z",
    "schedules": [
        {
            "name": "Nightly HR Sync",
            "usual_seconds": 190.0,
            "duration_source": "history",
            "run_count": 1,
            "runs": [
                {
                    "schedule": "Nightly HR Sync",
                    "due_at": "2031-05-05T01:00:00Z",
                    "decision": "fired",
                    "starts_at": "2031-05-05T01:00:00Z",
                    "ends_at": "2031-05-05T01:03:10Z",
                }
            ],
        }
    ],
    "conflicts": [],
    "clock_changes": [],
    "notes": [],
}
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "report.read")]


@router.get("/overview", operation_id="reports_overview", responses=describe(OVERVIEW))
async def get_overview(call: Viewer) -> Overview:
    """Get what is running and waiting, and what needs attention. It is computed at most once per second for all
    clients."""
    return await call.app.reports.overview()


@router.get(
    "/series",
    operation_id="reports_series",
    responses=describe(
        SERIES, invalid=("series.window.out_of_range", "series.filter.conflict", "value.duration.invalid")
    ),
)
async def get_series(
    call: Viewer,
    window: Annotated[str, Query(max_length=20, description="Length of the window until now, such as `6h`.")] = "1h",
    by: Annotated[SeriesDivision, Query(description="One series of all attempts, or one for each queue or name.")] = (
        "outcome"
    ),
    queue: TextFilter = None,
    name: TextFilter = None,
) -> SeriesReport:
    """Get the number of ended attempts over time, with outcomes, waits and durations. The series is divided into at
    most 120 points; schedulers add ended attempts every 10 seconds."""
    return await call.app.reports.series(window, by=by, queue=queue, name=name)


HIT = {
    "kind": "execution",
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "name": "Nightly HR Sync",
    "state": "failed",
}
CHANGE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "at": "2031-05-04T02:00:00Z",
    "actor_type": "user",
    "actor_name": "ana",
    "action": "queue.pause",
    "reason": "server down",
}


class FoundObject(BaseModel):
    """An object that a search has found."""

    kind: str = Field(description="Kind of object: of Tenuto, such as `schedule`, or of an extension.")
    id: UUID | None = Field(description="None for queues, jobs and objects of extensions, which have a name only.")
    name: str
    state: str | None
    path: str | None = Field(None, description="Page of the dashboard, for objects of extensions.")


@router.get(
    "/search", operation_id="search_objects", responses=describe({"items": [HIT]}, invalid="value.label.invalid")
)
@listed_as(SEARCH_HITS)
async def search_objects(
    call: Annotated[ApiCall, requires(Role.VIEWER, "search.read")],
    q: Annotated[str, Query(min_length=1, max_length=200, description="Beginning of an id, or a part of a name.")],
    limit: Annotated[int, Query(ge=1, le=MAX_HITS, description="Maximum number of objects.")] = MAX_HITS,
) -> Items[FoundObject]:
    """Find objects. Objects of every kind are found by the beginning of their id; schedules, manifests, queues, workers
    and jobs also by their name. Extensions add their own objects."""
    found = await search_everywhere(call.app, q, call.caller.role, limit)
    return Items(items=[FoundObject.model_validate(each, from_attributes=True) for each in found])


@router.get(
    "/history",
    operation_id="history_list",
    responses=describe_page(CHANGE, invalid=("history.target.invalid", "value.label.invalid")),
)
@listed_as(HISTORY)
async def object_history(
    call: Annotated[ApiCall, requires(Role.VIEWER, "history.read")],
    target: Annotated[
        str, Query(max_length=700, description="Kind and name or id of the object, such as `queue:mail`.")
    ],
    limit: Limit = 50,
    after: After = None,
) -> Page[HistoryEntry]:
    """List the changes of one object, newest first: who, when, what and why. Addresses and values are in the audit log
    only, which is for administrators."""
    found = await call.app.audit.history(target, below=decode_key(after, UUID), limit=limit)
    return make_page(found, limit, lambda each: (each.id,))


@router.get(
    "/upcoming",
    operation_id="reports_upcoming",
    responses=describe(
        UPCOMING,
        not_found="schedule.not_found",
        invalid=("upcoming.range.too_long", "simulation.*", "value.instant.no_utc_offset"),
    ),
)
async def get_upcoming(
    call: Viewer,
    start: Annotated[datetime | None, Query(alias="from", description="Start; default: now.")] = None,
    end: Annotated[datetime | None, Query(alias="to", description="End; default: 24 hours after the start.")] = None,
    schedule: Annotated[
        list[str], Query(description="Name of a schedule; repeatable. Default: all that are enabled.")
    ] = [],  # noqa: B006
) -> UpcomingRuns:
    """Get the coming runs of schedules: usual duration, decisions of the overlap and misfire policies, conflicts and
    clock changes. At most 200 runs of a schedule are returned; `run_count` counts all."""
    return await call.app.reports.upcoming(start, end, schedules=schedule)
