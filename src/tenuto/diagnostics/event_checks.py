"""Checks of the doctor for events from outside: events that no task has received, and waits past their deadline."""

from __future__ import annotations

from datetime import timedelta

from tenuto.diagnostics.reasons import format_instant
from tenuto.extension import DoctorCheck, Examination
from tenuto.model.doctor_findings import MAX_DETAILS, Finding, Severity
from tenuto.model.events.event_names import describe_event
from tenuto.store.events import external_events

UNRECEIVED_AFTER = timedelta(hours=1)
"""An event that no task has received for this long may have a wrong name or key."""
OVERDUE_AFTER = timedelta(minutes=1)


def event_checks() -> list[DoctorCheck]:
    """Return the checks."""
    return [
        DoctorCheck("events_not_received", find_events_not_received),
        DoctorCheck("event_waits_overdue", find_overdue_waits),
    ]


async def find_events_not_received(examination: Examination) -> Finding:
    """Name events that no task has received."""
    name, database = "events_not_received", examination.database
    now = database.clock.now()
    found = await external_events.list_kept_events(database, now - UNRECEIVED_AFTER, now, MAX_DETAILS + 1)
    return Finding.from_details(
        name,
        [f"{describe_event(each.name, each.key)} · {format_instant(each.sent_at)}" for each in found],
        passed="every event of more than an hour ago was received by a task",
        failed="events were received by no task",
        severity=Severity.NOTE,
        meaning="They are kept until they expire. A task that waits for another name or key does not receive them.",
        remedy="compare names and keys: tenuto event list --kept, tenuto event waits",
    )


async def find_overdue_waits(examination: Examination) -> Finding:
    """Name waits whose deadline has passed although their tasks have not continued."""
    name, database = "event_waits_overdue", examination.database
    found = await external_events.list_overdue_waits(database, database.clock.now() - OVERDUE_AFTER, MAX_DETAILS + 1)
    details = [
        f"task {each.task_id} ({each.state}): {describe_event(each.name, each.key)} · {format_instant(each.expires_at)}"
        for each in found
    ]
    return Finding.from_details(
        name,
        details,
        passed="no task waits for an event past its deadline",
        failed="tasks wait for events past their deadlines",
        severity=Severity.WARNING,
        meaning="Their time has passed, and no worker has continued them.",
        remedy=f"ask why: tenuto task why {found[0].task_id}" if found else None,
    )
