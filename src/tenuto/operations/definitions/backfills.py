"""Start and preview backfills: runs of a schedule for past due instants without a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from uuid import UUID

from tenuto.definitions.schedule_definitions import SCHEDULES
from tenuto.errors import Invalid, quoted
from tenuto.ids import new_ids
from tenuto.model.access.actors import Actor
from tenuto.model.triggers.field_parser import parse_instant
from tenuto.model.triggers.trigger import ClockTrigger
from tenuto.model.triggers.zones import start_of_day
from tenuto.model.work.bulk_operations import BulkKind, BulkState
from tenuto.postgres.database import Connection
from tenuto.scheduling.backfills import list_missing_instants
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import Schedule
from tenuto.store.work import bulk_operations
from tenuto.store.work.bulk_operations import BulkOperationRecord

MAX_INSTANTS = 10_000
MAX_PARALLEL = 1000
DayOrInstant = datetime | date | str
_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class BackfillPreview:
    """Runs that a backfill would start."""

    schedule: str
    start: datetime
    end: datetime
    instants: Sequence[datetime]
    """Due instants without a run, oldest first."""
    existing_count: int
    """Due instants that have a run and are left out."""


async def preview_backfill(
    connection: Connection, schedule: Schedule, start: DayOrInstant, end: DayOrInstant, now: datetime
) -> BackfillPreview:
    """Return the due instants of a period without a run. Instants that a scheduler has yet to decide are left out."""
    trigger = schedule.definition.trigger
    if not isinstance(trigger, ClockTrigger):
        raise Invalid(
            f"schedule {quoted(schedule.name, 60)} has no due instants: it runs only when started by hand",
            code="schedule.backfill.no_trigger",
            field="name",
            remedy="give the schedule a trigger with a clock",
        )
    zone = trigger.limits.zone_info
    first, last = parse_day_or_instant(start, field="start"), parse_day_or_instant(end, field="end")
    first = first if isinstance(first, datetime) else start_of_day(zone, first)
    last = min(now, last if isinstance(last, datetime) else start_of_day(zone, last + _DAY) - _MICROSECOND)
    if schedule.enabled and schedule.next_run_at is not None:
        last = min(last, schedule.next_run_at - _MICROSECOND)  # a scheduler is about to decide the later ones
    if first > last:
        raise Invalid(
            f"the period from {first.isoformat()} to {last.isoformat()} contains no past instant",
            code="schedule.backfill.period",
            field="start",
            remedy="give a start before the end and before now",
        )
    missing, existing_count = await list_missing_instants(connection, schedule, first, last, MAX_INSTANTS + 1)
    if len(missing) + existing_count > MAX_INSTANTS:
        raise Invalid(
            f"the period has more than {MAX_INSTANTS:,} due instants",
            code="schedule.backfill.too_many",
            field="end",
            remedy="backfill shorter periods one after the other",
        )
    return BackfillPreview(schedule.name, first, last, missing, existing_count)


async def create_backfill(
    connection: Connection,
    name: str,
    start: DayOrInstant,
    end: DayOrInstant,
    *,
    parallel: int,
    id: UUID,
    actor: Actor,
    reason: str | None,
    now: datetime,
) -> BackfillPreview | None:
    """Create a backfill; return what it will run, or None if it exists already."""
    schedule = await schedules.lock_schedule(connection, name)
    if schedule is None:
        raise SCHEDULES.not_found(name)
    preview = await preview_backfill(connection, schedule, start, end, now)
    if not preview.instants:
        raise Invalid(
            f"schedule {quoted(name, 60)} has no due instant without a run in this period"
            f" ({preview.existing_count:,} have one)",
            code="schedule.backfill.nothing_to_run",
            field="start",
            remedy="choose another period; to repeat failed runs, retry their executions",
        )
    period = f"{_write_instant(preview.start)} to {_write_instant(preview.end)}"
    new = BulkOperationRecord(
        id, BulkKind.SCHEDULE_BACKFILL, "", f"{len(preview.instants):,} runs of {name}, {period}", now, reason,
        BulkState.RUNNING, 0, 0, 0, 0, None, now, None, None, None, actor.type, actor.id, actor.name, schedule.id,
        parallel,
    )  # fmt: skip
    items = dict(zip(new_ids(len(preview.instants)), preview.instants, strict=True))
    return preview if await bulk_operations.create_backfill(connection, new, items) else None


def parse_day_or_instant(given: DayOrInstant, *, field: str) -> datetime | date:
    """Return an instant with an offset, or a date; both may be given as text."""
    if isinstance(given, date) and not isinstance(given, datetime):
        return given
    if isinstance(given, str):
        with suppress(ValueError):
            return date.fromisoformat(given)
    return parse_instant(given, field=field)


def check_parallel(parallel: int) -> int:
    """Return the number of executions that may run at a time, or raise `Invalid`."""
    if isinstance(parallel, bool) or not isinstance(parallel, int) or not 1 <= parallel <= MAX_PARALLEL:
        raise Invalid(
            f"parallel {quoted(parallel, 60)} is not a whole number from 1 to {MAX_PARALLEL:,}",
            code="schedule.backfill.parallel",
            field="parallel",
        )
    return parallel


def _write_instant(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M} UTC"
