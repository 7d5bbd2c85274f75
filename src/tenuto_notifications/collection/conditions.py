"""Conditions: late and stuck executions, waiting queues, findings of the doctor.

A rule gets one event when a condition begins and, if it asks for that, one when the condition ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tenuto.extension import Finding, Severity
from tenuto.ids import new_id
from tenuto.postgres.database import Connection
from tenuto_notifications.model.events import Event, to_stored_fields
from tenuto_notifications.model.filter_matching import matches
from tenuto_notifications.model.rules import Rule
from tenuto_notifications.store import messages, sources
from tenuto_notifications.store.messages import Episode
from tenuto_notifications.store.sources import OpenExecution


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that holds now."""

    subject: str
    """Identifies the object for which it holds."""
    title: str
    fields: Mapping[str, Any]
    path: str | None = None


async def find_conditions(
    connection: Connection, rule: Rule, findings: Sequence[Finding] | None, now: datetime
) -> list[Condition] | None:
    """Return the conditions that hold now for a rule; None if the cycle has not examined them."""
    since = now - timedelta(seconds=rule.after_seconds)
    match rule.event:
        case "execution.late":
            late = await sources.find_late_executions(connection, since)
            return [_execution(each, f"{each.schedule_name} is late") for each in late]
        case "execution.stuck":
            stuck = await sources.find_stuck_executions(connection, since)
            return [_execution(each, f"{each.schedule_name} is stuck") for each in stuck]
        case "queue.waiting":
            queues = await sources.find_waiting_queues(connection)
            return [
                Condition(
                    each.queue,
                    f"Tasks of queue {each.queue} wait",
                    {"queue": each.queue, "tasks": each.tasks, "due": each.oldest_due_at},
                    "/queues",
                )
                for each in queues
                if each.oldest_due_at < since
            ]
        case _:
            if findings is None:
                return None
            return [
                Condition(
                    each.name,
                    f"Doctor: {each.title}",
                    {
                        "check": each.name,
                        "severity": str(each.severity),
                        "remedy": each.remedy,
                        "details": each.details[:20],
                    },
                    "/doctor",
                )
                for each in findings
                if each.severity in (Severity.WARNING, Severity.PROBLEM)
            ]


def _execution(run: OpenExecution, title: str) -> Condition:
    return Condition(
        str(run.id),
        title,
        {
            "id": run.id,
            "schedule": run.schedule_name,
            "origin": run.origin,
            "by": run.initiator_name,
            "due": run.due_at,
            "started": run.started_at,
        },
        f"/executions/{run.id}",
    )


async def track_conditions(
    connection: Connection, rule: Rule, found: Sequence[Condition], now: datetime
) -> list[Event]:
    """Open and close the conditions of a rule, and return the events of their beginnings and ends."""
    filter = rule.parse_filter(now)
    began = {each.subject: each for each in found if matches(filter, each.title, {**each.fields, "condition": "began"})}
    open_episodes = {each.subject: each for each in await messages.list_open_episodes(connection, rule.name)}
    events: list[Event] = []
    for subject, each in began.items():
        if subject in open_episodes:
            continue
        new = Episode(new_id(), rule.name, subject, each.title, to_stored_fields(each.fields), each.path, now)
        if await messages.open_episode(connection, new):
            fields = {**each.fields, "condition": "began"}
            events.append(Event(rule.event, f"condition:{new.id}:began", now, each.title, fields, each.path))
    for subject, episode in open_episodes.items():
        if subject in began or not await messages.close_episode(connection, episode.id, now):
            continue
        if rule.recovered:
            fields = {**episode.fields, "condition": "ended"}
            title = f"Ended: {episode.title}"
            events.append(Event(rule.event, f"condition:{episode.id}:ended", now, title, fields, episode.path))
    return events
