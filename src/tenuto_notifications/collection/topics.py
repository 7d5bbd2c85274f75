"""Events of extensions: the changes that a topic of the event feed reports with their instants.

A change may be committed some time after its instant. Each poll therefore reads the last ten minutes again, and the
unique key of events refuses the changes that an earlier poll recorded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tenuto.extension import ChangeLog, EventOptions, ExtensionServices, LoggedChange
from tenuto.logs import Log
from tenuto.postgres.database import Database
from tenuto_notifications.model.events import Event
from tenuto_notifications.store import messages

OVERLAP = timedelta(minutes=10)
"""A change that is committed longer than this after its instant is missed."""

log = Log("tenuto.notifications")


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """The changes of a topic up to an instant."""

    topic: str
    read_at: datetime
    events: Sequence[Event]


def list_topics(services: ExtensionServices) -> tuple[str, ...]:
    """Return the topics of extensions whose changes have instants."""
    return tuple(sorted(_find_logs(services)))


def _find_logs(services: ExtensionServices) -> dict[str, ChangeLog]:
    found: dict[str, ChangeLog] = {}
    for contribution in services.extensions.collect("event topics", lambda extension: extension.event_topics()):
        source = contribution.value.create_source(EventOptions(is_catch_up=True))
        if isinstance(source, ChangeLog) and len(contribution.value.topics) == 1:
            found[contribution.value.topics[0]] = source
    return found


async def read_topics(
    services: ExtensionServices, database: Database, topics: Mapping[str, datetime]
) -> list[TopicChanges]:
    """Read the changes of topics, each since the instant at which its first rule was enabled.

    A topic whose extension fails is logged and left out.
    """
    logs, found = _find_logs(services), []
    for topic, concerned_since in topics.items():
        if topic not in logs:
            continue
        now = database.clock.now()
        since = max(await messages.find_topic_progress(database, topic) or now, concerned_since)
        try:
            changes: Sequence[LoggedChange] = await logs[topic].load(database, since - OVERLAP)
        except Exception as error:  # noqa: BLE001 — code of an extension: the other topics must be read
            log.warning("topic not read", topic=topic, error=str(error))
            continue
        # A source may return only the first changes. The next poll continues after the last of them.
        read_at = min(now, max((change.at for change in changes), default=now) + OVERLAP)
        found.append(TopicChanges(topic, read_at, [_to_event(topic, change) for change in changes]))
    return found


def _to_event(topic: str, change: LoggedChange) -> Event:
    identity = json.dumps([str(change.key), change.at.isoformat()])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    fields: Mapping[str, Any] = change.data if isinstance(change.data, Mapping) else {"value": change.data}
    words = ", ".join(f"{name}: {value}" for name, value in fields.items() if isinstance(value, str | int | float))
    title = change.title or f"{topic}: {words}"
    return Event(topic, f"topic:{topic}:{digest}", change.at, title[:300], fields, change.path)
