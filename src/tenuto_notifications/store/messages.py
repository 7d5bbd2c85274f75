"""Rows of collected events, conditions that last, and messages with what became of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from tenuto.postgres.bulk_copy import to_columns
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromJson, RowMapper
from tenuto_notifications.model.dispatch import Group

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event of a rule to be inserted."""

    id: UUID
    rule_name: str
    event_key: str
    kind: str
    title: str
    fields: Mapping[str, Any]
    path: str | None
    group_key: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event that a message describes."""

    kind: str
    title: str
    occurred_at: datetime
    fields: Annotated[dict[str, Any], FromJson]
    path: str | None


@dataclass(frozen=True, slots=True)
class Episode:
    """A condition that holds for a rule."""

    id: UUID
    rule_name: str
    subject: str
    title: str
    fields: Annotated[dict[str, Any], FromJson]
    path: str | None
    opened_at: datetime


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be inserted."""

    id: UUID
    rule_name: str
    event: str
    group_key: str
    event_count: int
    is_test: bool
    channel: Mapping[str, Any]
    document: Mapping[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DeliveryOrder:
    """What the delivery of a message needs."""

    id: UUID
    rule_name: str
    channel: Annotated[dict[str, Any], FromJson]
    content: Annotated[dict[str, Any], FromJson]


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message with what became of it."""

    id: UUID
    """Also the id of the task that delivers it."""
    rule_name: str
    event: str
    event_count: int
    is_test: bool
    channel: Annotated[dict[str, Any], FromJson]
    content: Annotated[dict[str, Any], FromJson]
    created_at: datetime
    state: str | None
    """State of the task, or the outcome of its last attempt; None if retention has deleted both."""
    ended_at: datetime | None
    attempt: int | None
    error: str | None

    @property
    def subject(self) -> str:
        return str(self.content.get("subject", ""))


_DUE = RowMapper(Group, SQL.list_due_groups)
_GROUP_EVENTS = RowMapper(EventRecord, SQL.list_group_events)
_EPISODES = RowMapper(Episode, SQL.list_open_episodes)
_ORDERS = RowMapper(DeliveryOrder, SQL.load_delivery)
_MESSAGES = RowMapper(MessageRecord, SQL.load_message, SQL.list_messages)


async def insert_events(connection: Connection, events: Sequence[NewEvent], now: datetime) -> int:
    """Insert events; return the number of those that the rules did not have."""
    if not events:
        return 0
    rows = [
        (
            each.id, each.rule_name, each.event_key, each.kind, each.title, json.dumps(each.fields), each.path,
            each.group_key, each.occurred_at,
        )
        for each in events
    ]  # fmt: skip
    return len(await connection.fetch(SQL.insert_events, *to_columns(rows), now))


async def insert_dropped_event(connection: Connection, new: NewEvent, now: datetime, reason: str) -> bool:
    """Insert an event, without its fields, that could not be recorded with them; return False if the rule has it."""
    values = (new.id, new.rule_name, new.event_key, new.kind, new.title, new.occurred_at, now, reason)
    return await connection.fetchval(SQL.insert_dropped_event, *values) is not None


async def list_open_episodes(connection: Connection, rule_name: str) -> list[Episode]:
    """Return the open conditions of a rule."""
    return _EPISODES.all(await connection.fetch(SQL.list_open_episodes, rule_name))


async def open_episode(connection: Connection, new: Episode) -> bool:
    """Insert an open episode of a condition; return False if the condition has one already."""
    values = (new.id, new.rule_name, new.subject, new.title, json.dumps(new.fields), new.path, new.opened_at)
    return await connection.fetchval(SQL.open_episode, *values) is not None


async def close_episode(connection: Connection, id: UUID, now: datetime) -> bool:
    """Close a condition; return False if it is closed."""
    return await connection.fetchval(SQL.close_episode, id, now) is not None


async def list_due_groups(
    connection: Connection, windows: Mapping[str, timedelta], now: datetime, limit: int
) -> list[Group]:
    """Return groups of events that are in no message: those of rules with their windows, if the window has passed."""
    names, durations = list(windows), list(windows.values())
    return _DUE.all(await connection.fetch(SQL.list_due_groups, names, durations, now, limit))


async def separate_events(connection: Connection, rule_names: Sequence[str]) -> None:
    """Give each event of some rules that is in no message a separate group."""
    await connection.execute(SQL.separate_events, rule_names)


async def settle_rules(connection: Connection, rule_names: Sequence[str], state: str) -> None:
    """Record what became of the events of some rules that are in no message."""
    await connection.execute(SQL.settle_rules, rule_names, state)


async def drop_other_events(connection: Connection, rule_names: Sequence[str]) -> None:
    """Drop the events that are in no message, except those of some rules."""
    await connection.execute(SQL.settle_other_rules, rule_names)


async def list_group_events(connection: Connection, group: Group, limit: int) -> list[EventRecord]:
    """Return the first events of a group that are in no message."""
    return _GROUP_EVENTS.all(await connection.fetch(SQL.list_group_events, group.rule_name, group.group_key, limit))


async def settle_group(
    connection: Connection, group: Group, state: str, message_id: UUID | None, reason: str | None = None
) -> int:
    """Record what became of the events of a group; return their number."""
    values = (group.rule_name, group.group_key, state, message_id, reason)
    settled: int = await connection.fetchval(SQL.settle_group, *values)
    return settled


async def insert_message(connection: Connection, new: NewMessage) -> None:
    """Insert a message."""
    await connection.execute(
        SQL.insert_message, new.id, new.rule_name, new.event, new.group_key, new.event_count, new.is_test,
        json.dumps(new.channel), json.dumps(new.document), new.created_at,
    )  # fmt: skip


async def message_exists(connection: Connection, id: UUID) -> bool:
    """Return whether a message exists."""
    return bool(await connection.fetchval(SQL.message_exists, id))


async def load_delivery(database: Database, id: UUID) -> DeliveryOrder | None:
    """Return what the delivery of a message needs."""
    return _ORDERS.optional(await database.fetch_one(SQL.load_delivery, id))


async def load_message(database: Database, id: UUID) -> MessageRecord | None:
    """Return one message."""
    return _MESSAGES.optional(await database.fetch_one(SQL.load_message, id))


async def list_messages(
    database: Database, *, below: UUID | None, rule_name: str | None, states: Sequence[str] | None, limit: int
) -> list[MessageRecord]:
    """Return messages, newest first."""
    return _MESSAGES.all(await database.fetch_all(SQL.list_messages, below, rule_name, states, limit))


async def count_unsent_events(connection: Connection) -> list[tuple[str, str, int]]:
    """Return rule, state and number of the events that are in no message."""
    rows = await connection.fetch(SQL.count_unsent_events)
    return [(row["rule_name"], row["state"], row["event_count"]) for row in rows]


async def list_dropped_for_errors(connection: Connection, since: datetime) -> list[tuple[str, int, str]]:
    """Return rule, number and latest reason of the events since an instant that were dropped because of an error."""
    rows = await connection.fetch(SQL.list_dropped_for_errors, since)
    return [(row["rule_name"], row["event_count"], row["reason"]) for row in rows]


async def count_deliveries(connection: Connection, since: datetime) -> list[tuple[str, str, int]]:
    """Return rule, outcome and number of the messages since an instant."""
    rows = await connection.fetch(SQL.count_deliveries, since)
    return [(row["rule_name"], row["state"], row["message_count"]) for row in rows]


async def list_missing_secrets(connection: Connection, names: Sequence[str]) -> list[str]:
    """Return the names that are no secrets."""
    return [row["name"] for row in await connection.fetch(SQL.list_missing_secrets, names)]


async def find_topic_progress(database: Database, topic: str) -> datetime | None:
    """Return the instant up to which the changes of a topic have been read."""
    found: datetime | None = await database.fetch_value(SQL.load_topic, topic)
    return found


async def store_topic_progress(connection: Connection, topic: str, read_at: datetime) -> None:
    """Store the instant up to which the changes of a topic have been read."""
    await connection.execute(SQL.store_topic, topic, read_at)


async def read_clock(connection: Connection) -> datetime:
    """Return the time of the database."""
    found: datetime = await connection.fetchval(SQL.read_clock)
    return found


async def delete_old_events(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of events before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_events, cutoff, limit))


async def delete_old_messages(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of messages before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_messages, cutoff, limit))


async def delete_old_episodes(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of conditions that ended before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_episodes, cutoff, limit))
