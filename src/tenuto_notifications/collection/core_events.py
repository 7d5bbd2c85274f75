"""Events of the core: rows of Tenuto's tables, each with a key that identifies the event for ever."""

from __future__ import annotations

from collections.abc import Collection

from tenuto.postgres.database import Connection
from tenuto_notifications.model.events import Event
from tenuto_notifications.store import sources
from tenuto_notifications.store.sources import Progress

_EXECUTION_STATES = {
    "execution.failed": "failed",
    "execution.completed": "completed",
    "execution.cancelled": "cancelled",
}


async def find_core_events(connection: Connection, progress: Progress, kinds: Collection[str]) -> list[Event]:
    """Return the events of some kinds of the transactions that have ended since the previous search."""
    found: list[Event] = []
    states = [state for kind, state in _EXECUTION_STATES.items() if kind in kinds]
    if states:
        found += await _ended_executions(connection, progress, states)
    if "task.failed" in kinds:
        found += await _failed_tasks(connection, progress)
    if "dead_letter.opened" in kinds:
        found += await _opened_dead_letters(connection, progress)
    if "schedule.missed" in kinds:
        found += await _missed_instants(connection, progress)
    if "worker.lost" in kinds:
        found += await _lost_processes(connection, progress)
    return found


async def _ended_executions(connection: Connection, progress: Progress, states: list[str]) -> list[Event]:
    verbs = {"failed": "failed", "completed": "completed", "cancelled": "was cancelled"}
    return [
        Event(
            f"execution.{each.state}",
            f"execution:{each.id}",
            each.ended_at,
            f"{each.schedule_name} {verbs[each.state]}",
            {
                "id": each.id,
                "schedule": each.schedule_name,
                "origin": each.origin,
                "by": each.initiator_name,
                "due": each.due_at,
                "started": each.started_at,
                "ended": each.ended_at,
                "ran": each.ended_at - each.started_at,
                "failed_steps": each.failed_steps,
                "error": each.error,
            },
            f"/executions/{each.id}",
        )
        for each in await sources.find_ended_executions(connection, progress, states)
    ]


async def _failed_tasks(connection: Connection, progress: Progress) -> list[Event]:
    return [
        Event(
            "task.failed",
            f"task:{each.task_id}",
            each.ended_at,
            f"Task {each.name} failed for good",
            {
                "id": each.task_id,
                "name": each.name,
                "kind": each.kind,
                "queue": each.queue,
                "manifest": each.manifest,
                "by": each.initiator_name,
                "tag": list(each.tags) if each.tags else None,
                "reason": each.reason,
                "attempts": each.attempts,
                "execution": each.execution_id,
                "ended": each.ended_at,
                "error": each.error,
            },
            f"/tasks/{each.task_id}",
        )
        for each in await sources.find_failed_tasks(connection, progress)
    ]


async def _opened_dead_letters(connection: Connection, progress: Progress) -> list[Event]:
    return [
        Event(
            "dead_letter.opened",
            f"dead_letter:{each.id}",
            each.dead_lettered_at,
            f"Dead letter of {each.manifest or each.name}",
            {
                "id": each.id,
                "name": each.name,
                "kind": each.kind,
                "manifest": each.manifest,
                "item": each.item or None,
                "fingerprint": each.fingerprint,
                "task": each.task_id,
                "attempts": each.attempts,
                "error": each.error,
            },
            f"/dead-letters/{each.id}",
        )
        for each in await sources.find_opened_dead_letters(connection, progress)
    ]


async def _missed_instants(connection: Connection, progress: Progress) -> list[Event]:
    return [
        Event(
            "schedule.missed",
            f"occurrence:{each.id}",
            each.decided_at,
            f"{each.schedule_name} missed its run of {each.due_at:%Y-%m-%d %H:%M} UTC",
            {"schedule": each.schedule_name, "due": each.due_at, "until": each.until, "reason": each.reason},
            f"/schedules/{each.schedule_id}",
        )
        for each in await sources.find_missed_instants(connection, progress)
    ]


async def _lost_processes(connection: Connection, progress: Progress) -> list[Event]:
    return [
        Event(
            "worker.lost",
            f"worker:{each.id}",
            each.found_at,
            f"{each.service.capitalize()} {each.name} was lost",
            {"worker": each.name, "service": each.service, "host": each.host, "seen": each.seen_at},
            "/workers",
        )
        for each in await sources.find_lost_processes(connection, progress)
    ]
