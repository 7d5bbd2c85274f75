"""Reports on the whole installation (``app.reports``): overview, search, series for charts, and upcoming runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from tenuto.errors import Invalid, TenutoError, Unavailable
from tenuto.model import validation
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.work.rollups import Dimension, RollupCounts, choose_buckets, floor_to_bucket, percentile
from tenuto.model.work.tasks import parse_duration_seconds
from tenuto.observability.cached_query import CachedQuery
from tenuto.operations.argument_checks import check_instant, check_limit
from tenuto.operations.bound_operation import OpenDatabase, OperationGroup
from tenuto.operations.overview import Overview, make_overview
from tenuto.postgres.database import Database
from tenuto.simulation.clock_changes import ClockChangeEffect
from tenuto.simulation.input_loader import SimulationOptions, simulate_stored_schedules
from tenuto.simulation.simulator import Clash, SimulatedRun, Simulation
from tenuto.store.filter_sql import MAX_EXACT_COUNT
from tenuto.store.reports import search
from tenuto.store.reports.overview import (
    OpenWorkCounts,
    QueueObstacles,
    QueueSettings,
    count_open_work,
    list_queue_obstacles,
    load_overview_facts,
    load_queue_settings,
)
from tenuto.store.reports.search import SearchHit
from tenuto.store.work import activities, rollups
from tenuto.store.work.rollups import RollupRecord

OVERVIEW_INTERVAL_SECONDS = 1.0
MAX_HITS = 20
"""Number of objects that a search returns."""
MIN_ID_DIGITS = 4
"""Shorter texts are searched as names only: most ids begin alike."""
MAX_UPCOMING_SPAN = timedelta(days=31)
MAX_UPCOMING_RUNS, MAX_UPCOMING_CONFLICTS = 200, 500
"""Runs of one schedule that are returned one by one, and conflicts of all."""
MAX_NAMES = 1000
"""Names whose figures are returned together."""
MAX_SERIES = 20
"""The busiest queues or names are returned one by one."""
MIN_WINDOW, MAX_WINDOW = timedelta(minutes=1), timedelta(days=366)

SeriesDivision = Literal["outcome", "queue", "name"]


@dataclass(frozen=True, slots=True)
class AttemptFigures:
    """Outcomes of the attempts that ended in a span of time, their waits and durations."""

    completed_count: int
    warning_count: int
    """Attempts that completed with a warning."""
    error_count: int
    """Attempts that completed with an error."""
    failed_count: int
    cancelled_count: int
    wait_p50_seconds: float | None
    """Half of the attempts waited no longer than this after they were due. Exact to a quarter, as all percentiles."""
    wait_p95_seconds: float | None
    run_p50_seconds: float | None
    run_p95_seconds: float | None


@dataclass(frozen=True, slots=True)
class SeriesPoint(AttemptFigures):
    """The figures of one span of time."""

    at: datetime
    """Start of the span."""


@dataclass(frozen=True, slots=True)
class Series:
    """The figures of all attempts, or of those of a queue or a name."""

    label: str | None
    """The queue or name; None for all attempts."""
    total: AttemptFigures
    points: Sequence[SeriesPoint]
    """Every span of the window, also those without attempts."""


@dataclass(frozen=True, slots=True)
class SeriesReport:
    """Ended attempts over a window of time."""

    since: datetime
    until: datetime
    point_seconds: int
    """Length of the span of a point."""
    by: SeriesDivision
    series: Sequence[Series]
    omitted_label_count: int
    """Number of further queues or names with attempts, beyond the busiest."""


def _is_id_prefix(text: str) -> bool:
    digits = text.replace("-", "").lower()
    return MIN_ID_DIGITS <= len(digits) <= 32 and all(digit in "0123456789abcdef" for digit in digits)


@dataclass(frozen=True, slots=True)
class UpcomingSchedule:
    """The coming runs of one schedule."""

    name: str
    usual_seconds: float
    """Usual duration of a run."""
    duration_source: str
    """``history``, or ``assumed`` if there is none."""
    run_count: int
    runs: Sequence[SimulatedRun]
    """The first of them."""


@dataclass(frozen=True, slots=True)
class UpcomingRuns:
    """The coming runs of schedules, simulated with their overlap and misfire policies."""

    start: datetime
    end: datetime
    schedules: Sequence[UpcomingSchedule]
    conflicts: Sequence[Clash]
    clock_changes: Sequence[ClockChangeEffect]
    notes: Sequence[str]


def _make_upcoming(found: Simulation) -> UpcomingRuns:
    schedules = [
        UpcomingSchedule(
            each.schedule,
            each.seconds,
            each.duration_is,
            len(found.runs_of.get(each.schedule, ())),
            found.runs_of.get(each.schedule, ())[:MAX_UPCOMING_RUNS],
        )
        for each in found.totals
    ]
    return UpcomingRuns(
        found.start, found.end, schedules, found.clashes[:MAX_UPCOMING_CONFLICTS], found.clock_changes, found.notes
    )


class Reports(OperationGroup):
    """Reports on the whole installation."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller) -> None:
        super().__init__(open, caller)
        self._overview = CachedQuery(open, _load_overview, OVERVIEW_INTERVAL_SECONDS, min_interval_factor=20)
        self._replica_overviews: list[tuple[Database, CachedQuery[Overview]]] = []
        """That of the read replica in use; at most one."""

    async def overview(self) -> Overview:
        """Return what is running and waiting, and what needs attention.

        It is computed at most once per second, for all callers of this process.
        """
        latest = await self._choose_overview().latest()
        if latest.value is not None:
            return latest.value
        if isinstance(latest.error, TenutoError):
            raise latest.error
        raise Unavailable(
            "the database did not answer in time", code="database.statement_timeout", remedy="try again later"
        )

    def _choose_overview(self) -> CachedQuery[Overview]:
        if self._replica is None:
            return self._overview
        for replica, query in self._replica_overviews:
            if replica is self._replica:
                return query
        query = CachedQuery(self._open, _load_overview, OVERVIEW_INTERVAL_SECONDS, min_interval_factor=20)
        self._replica_overviews[:] = [(self._replica, query)]
        return query

    async def queue_obstacles(self, names: Collection[str]) -> Mapping[str, QueueObstacles]:
        """Return by name what keeps the tasks of some queues from being claimed."""
        return {each.name: each for each in await list_queue_obstacles(await self._open(), names)}

    async def count_open_work(self) -> OpenWorkCounts:
        """Count active executions, due or running tasks, open dead letters, open batches up to 1,000, one-shots and
        live workers; another count above 10,000 means more."""
        return await count_open_work(await self._open(), MAX_EXACT_COUNT + 1)

    async def queue_settings(self, name: str) -> QueueSettings | None:
        """Return limit and pause of a queue as they are now, while the overview may be a second old."""
        return await load_queue_settings(await self._open(), name)

    async def search(self, text: str, *, limit: int = MAX_HITS) -> Sequence[SearchHit]:
        """Find objects by the beginning of their id, and schedules, manifests, queues, workers and jobs by their name.

        At most 20 objects are returned, those with this id first, then whole names and beginnings of names.
        """
        validation.check_label(text.strip(), field="q", limit=200)
        database, wanted = await self._open(), check_limit(limit, MAX_HITS)
        hits: list[SearchHit] = []
        if _is_id_prefix(text.strip()):
            hits += await search.find_by_id(database, *activities.id_range_of_prefix(text.strip()), wanted)
        if len(hits) < wanted:
            hits += await search.find_by_name(database, text.strip(), wanted - len(hits))
        return hits

    async def series(
        self,
        window: float | str | timedelta = "1h",
        *,
        by: SeriesDivision = "outcome",
        queue: str | None = None,
        name: str | None = None,
    ) -> SeriesReport:
        """Return how many attempts ended when, with outcomes, waits and durations.

        Divided by outcome, the report has one series: of all attempts, or of one queue or name. Divided by queue or
        name, it has one series for each of the 20 busiest. Schedulers add ended attempts every 10 seconds.
        """
        span = _check_window(window)
        if queue is not None and name is not None:
            raise Invalid("give a queue or a name, not both", code="series.filter.conflict", field="name")
        if by != "outcome" and (queue is not None or name is not None):
            raise Invalid(
                f"a series by {by} cannot be filtered by queue or name",
                code="series.filter.conflict",
                field="by",
                remedy="leave out the filter, or ask for by=outcome",
            )
        database = await self._open()
        dimension, labels = _select_labels(by, queue, name)
        bucket_seconds, point_seconds = choose_buckets(span, is_divided=by != "outcome")
        until = floor_to_bucket(database.clock.now(), point_seconds) + timedelta(seconds=point_seconds)
        since = until - max(1, round(span.total_seconds() / point_seconds)) * timedelta(seconds=point_seconds)
        omitted_count = 0
        if labels is None:
            labels, label_count = await rollups.list_busiest_labels(
                database, bucket_seconds, dimension, since, until, MAX_SERIES
            )
            omitted_count = label_count - len(labels)
        rows = await rollups.list_rollups(database, bucket_seconds, dimension, since, until, labels)
        by_label: dict[str, list[RollupRecord]] = {label: [] for label in labels}
        for row in rows:
            by_label[row.label].append(row)
        series = [_make_series(label or None, found, since, until, point_seconds) for label, found in by_label.items()]
        return SeriesReport(since, until, point_seconds, by, series, omitted_count)

    async def figures_by_name(
        self, names: Sequence[str], window: float | str | timedelta = "24h"
    ) -> Mapping[str, AttemptFigures]:
        """Return the ended attempts of some jobs or step kinds in a window, by name; without those that have none.

        They are those of `series` with ``name``, for many names in one query.
        """
        span, database = _check_window(window), await self._open()
        bucket_seconds, point_seconds = choose_buckets(span, is_divided=True)
        until = floor_to_bucket(database.clock.now(), point_seconds) + timedelta(seconds=point_seconds)
        totals: dict[str, RollupCounts] = {}
        wanted = list(dict.fromkeys(names))[:MAX_NAMES]
        for row in await rollups.list_rollups(database, bucket_seconds, Dimension.NAME, until - span, until, wanted):
            totals.setdefault(row.label, RollupCounts()).add(row.counts())
        return {name: AttemptFigures(**_figures(counts)) for name, counts in totals.items()}

    async def upcoming(
        self, start: datetime | None = None, end: datetime | None = None, *, schedules: Sequence[str] = ()
    ) -> UpcomingRuns:
        """Return the runs of enabled schedules between two instants, by default within the next 24 hours: what will
        start when, for how long as usual, what is skipped, conflicts and clock changes."""
        database = await self._open()
        start = start or database.clock.now()
        end = end or start + timedelta(days=1)
        check_instant(start, field="from")
        check_instant(end, field="to")
        if end - start > MAX_UPCOMING_SPAN:
            raise Invalid(
                f"from {start.isoformat()} to {end.isoformat()} is longer than {MAX_UPCOMING_SPAN.days} days",
                code="upcoming.range.too_long",
                field="to",
                remedy="ask for a shorter period",
            )
        found = await simulate_stored_schedules(database, start, end, SimulationOptions(names=schedules))
        return _make_upcoming(found)


async def _load_overview(database: Database) -> Overview:
    return make_overview(await load_overview_facts(database))


def _check_window(window: float | str | timedelta) -> timedelta:
    seconds = parse_duration_seconds(window, field="window")
    span = timedelta(seconds=min(max(seconds or 0.0, 0.0), 2 * MAX_WINDOW.total_seconds()))
    if not MIN_WINDOW <= span <= MAX_WINDOW:
        raise Invalid(
            f"a window of {span.total_seconds():g} s is too {'short' if span < MIN_WINDOW else 'long'}",
            code="series.window.out_of_range",
            field="window",
            remedy="give a duration from 1m to 366d, such as 6h",
        )
    return span


def _select_labels(by: SeriesDivision, queue: str | None, name: str | None) -> tuple[Dimension, list[str] | None]:
    if queue is not None or by == "queue":
        return Dimension.QUEUE, None if queue is None else [queue]
    if name is not None or by == "name":
        return Dimension.NAME, None if name is None else [name]
    return Dimension.ALL, [""]


def _make_series(
    label: str | None, rows: Sequence[RollupRecord], since: datetime, until: datetime, point_seconds: int
) -> Series:
    counts: dict[datetime, RollupCounts] = {}
    at = since
    while at < until:
        counts[at] = RollupCounts()
        at += timedelta(seconds=point_seconds)
    total = RollupCounts()
    for row in rows:
        each = row.counts()
        total.add(each)
        counts[floor_to_bucket(row.bucket_at, point_seconds)].add(each)
    points = [SeriesPoint(**_figures(each), at=at) for at, each in counts.items()]
    return Series(label, AttemptFigures(**_figures(total)), points)


def _figures(counts: RollupCounts) -> dict[str, Any]:
    return {
        "completed_count": counts.completed,
        "warning_count": counts.warnings,
        "error_count": counts.errors,
        "failed_count": counts.failed,
        "cancelled_count": counts.cancelled,
        "wait_p50_seconds": percentile(counts.wait_bins, 0.5),
        "wait_p95_seconds": percentile(counts.wait_bins, 0.95),
        "run_p50_seconds": percentile(counts.run_bins, 0.5),
        "run_p95_seconds": percentile(counts.run_bins, 0.95),
    }
