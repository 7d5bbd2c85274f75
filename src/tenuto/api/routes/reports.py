"""``/api/v1/series``: figures of the whole installation."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tenuto.api.api_route import ApiRoute
from tenuto.api.auth import ApiCall, requires
from tenuto.api.openapi import describe
from tenuto.api.parameters import TextFilter
from tenuto.model.actors import Role
from tenuto.operations.reports import SeriesDivision, SeriesReport

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


@router.get(
    "/series",
    operation_id="reports_series",
    responses=describe(
        SERIES, invalid=("series.window.out_of_range", "series.filter.conflict", "value.duration.invalid")
    ),
)
async def get_series(
    call: Annotated[ApiCall, requires(Role.VIEWER, "report.read")],
    window: Annotated[str, Query(max_length=20, description="Length of the window until now, such as `6h`.")] = "1h",
    by: Annotated[SeriesDivision, Query(description="One series of all attempts, or one for each queue or name.")] = (
        "outcome"
    ),
    queue: TextFilter = None,
    name: TextFilter = None,
) -> SeriesReport:
    """Get how many attempts ended when, with outcomes, waits and durations. The series is divided into at most 120
    points; schedulers add ended attempts every 10 seconds."""
    return await call.app.reports.series(window, by=by, queue=queue, name=name)
