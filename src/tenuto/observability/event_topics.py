"""Topics of the event feed about events from outside and approvals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tenuto.extension import ChangeLog, Event, EventTopics, LoggedChange
from tenuto.postgres.database import Database
from tenuto.store.events import approvals, external_events

_MAX_CHANGES = 1000
SENT, REQUESTED, PENDING = "events.sent", "approvals.requested", "approvals.pending"


def event_topics() -> list[EventTopics]:
    """Return the topic of sent events."""
    return [EventTopics((SENT,), lambda options: ChangeLog(SENT, _load_sent_events))]


def approval_topics() -> list[EventTopics]:
    """Return the topics of requested and of pending approvals."""
    return [
        EventTopics((REQUESTED,), lambda options: ChangeLog(REQUESTED, _load_requests)),
        EventTopics((PENDING,), lambda options: _PendingApprovals()),
    ]


async def _load_sent_events(database: Database, since: datetime) -> Sequence[LoggedChange]:
    return [
        LoggedChange(each.id, each.sent_at, {"id": str(each.id), "name": each.name, "key": each.key})
        for each in await external_events.list_events_since(database, since, _MAX_CHANGES)
    ]


async def _load_requests(database: Database, since: datetime) -> Sequence[LoggedChange]:
    return [
        LoggedChange(
            each.id,
            each.requested_at,
            {
                "id": str(each.id),
                "schedule": each.schedule_name or "",
                "execution": str(each.execution_id or ""),
                "step": each.step,
                "message": each.message,
                "approvers": each.approvers,
                "role": each.role or "",
                "deadline": each.expires_at.isoformat(),
            },
            f"{each.schedule_name or 'A task'} waits for approval: {each.step}",
            f"/approvals/{each.id}",
        )
        for each in await approvals.list_requests_since(database, since, _MAX_CHANGES)
    ]


class _PendingApprovals:
    """Approvals that were requested, decided by a person, or ended."""

    def __init__(self) -> None:
        self._known: Sequence[approvals.DecisionCount] | None = None

    async def load(self, database: Database, since: datetime) -> Sequence[approvals.DecisionCount]:
        return await approvals.count_decisions(database, _MAX_CHANGES)

    def detect_changes(self, loaded: Sequence[approvals.DecisionCount]) -> Sequence[Event]:
        if loaded == self._known:
            return []
        self._known = loaded
        return [Event(PENDING, {"pending": len(loaded)})]
