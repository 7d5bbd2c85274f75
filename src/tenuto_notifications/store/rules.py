"""Rows of notification rules and silences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromJson, RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """A notification rule as it is stored."""

    name: str
    enabled: bool
    definition: Annotated[dict[str, Any], FromJson]
    """The rule as plain data."""
    origin: str
    """``file`` or ``operator``."""
    declared: Annotated[dict[str, Any] | None, FromJson]
    active_since: datetime
    """Earlier events do not concern the rule."""
    created_at: datetime
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True)
class SilenceRecord:
    """A time in which a rule, or every rule, sends nothing."""

    id: UUID
    rule_name: str | None
    """None: all rules."""
    starts_at: datetime
    ends_at: datetime
    reason: str | None
    created_at: datetime
    created_by: str


_RULES = RowMapper(RuleRecord, SQL.list_rules, SQL.load_rule, SQL.lock_rule, SQL.list_enabled_rules)
_SILENCES = RowMapper(SilenceRecord, SQL.load_silence, SQL.list_silences)


async def list_rules(database: Database, after: str, limit: int) -> list[RuleRecord]:
    """Return rules by name."""
    return _RULES.all(await database.fetch_all(SQL.list_rules, after, limit))


async def read_rules(connection: Connection, limit: int = 10_000) -> list[RuleRecord]:
    """Like `list_rules` for all rules, on a connection."""
    return _RULES.all(await connection.fetch(SQL.list_rules, "", limit))


async def load_rule(database: Database, name: str) -> RuleRecord | None:
    """Return one rule."""
    return _RULES.optional(await database.fetch_one(SQL.load_rule, name))


async def lock_rule(connection: Connection, name: str) -> RuleRecord | None:
    """Return and lock one rule."""
    return _RULES.optional(await connection.fetchrow(SQL.lock_rule, name))


async def list_enabled_rules(connection: Connection) -> list[RuleRecord]:
    """Return the enabled rules."""
    return _RULES.all(await connection.fetch(SQL.list_enabled_rules))


async def find_enabled_rules(database: Database) -> list[RuleRecord]:
    """Like `list_enabled_rules`, outside of a transaction."""
    return _RULES.all(await database.fetch_all(SQL.list_enabled_rules))


async def insert_rule(
    connection: Connection,
    name: str,
    fields: Mapping[str, Any],
    *,
    enabled: bool,
    origin: str,
    declared: Mapping[str, Any] | None,
    now: datetime,
    author: str,
) -> bool:
    """Insert a rule, and begin to collect its events; return False if there is a rule with its name."""
    inserted = await connection.fetchval(
        SQL.insert_rule, name, enabled, json.dumps(fields), origin, _dump(declared), now, author
    )
    if inserted is not None:
        await _start(connection, now, enabled=enabled)
    return inserted is not None


async def update_rule(
    connection: Connection,
    name: str,
    fields: Mapping[str, Any],
    *,
    enabled: bool,
    origin: str,
    declared: Mapping[str, Any] | None,
    now: datetime,
    author: str,
) -> None:
    """Store the new definition of a rule."""
    await connection.execute(SQL.close_episodes_of_other_event, name, str(fields["event"]))
    await connection.execute(SQL.update_rule, name, enabled, json.dumps(fields), origin, _dump(declared), now, author)
    if not enabled:
        await connection.execute(SQL.close_episodes_of_rule, name)
    await _start(connection, now, enabled=enabled)


async def delete_rule(connection: Connection, name: str) -> bool:
    """Delete a rule; return False if there is none."""
    deleted = await connection.fetchval(SQL.delete_rule, name)
    if deleted is not None:
        await connection.execute(SQL.close_episodes_of_rule, name)
        await connection.fetchval(SQL.notify_collectors)
    return deleted is not None


async def _start(connection: Connection, now: datetime, *, enabled: bool) -> None:
    if enabled:
        await connection.execute(SQL.start_progress, now)
    await connection.fetchval(SQL.notify_collectors)


def _dump(fields: Mapping[str, Any] | None) -> str | None:
    return None if fields is None else json.dumps(fields)


async def insert_silence(connection: Connection, new: SilenceRecord) -> bool:
    """Insert a silence; return False if a repeated request has inserted it."""
    values = (new.id, new.rule_name, new.starts_at, new.ends_at, new.reason, new.created_at, new.created_by)
    return await connection.fetchval(SQL.insert_silence, *values) is not None


async def end_silence(connection: Connection, id: UUID, now: datetime) -> bool:
    """End a silence; return False if it has ended, or if there is none."""
    return await connection.fetchval(SQL.end_silence, id, now) is not None


async def load_silence(connection: Connection, id: UUID) -> SilenceRecord | None:
    """Return one silence."""
    return _SILENCES.optional(await connection.fetchrow(SQL.load_silence, id))


async def list_silences(database: Database, now: datetime, rule_name: str | None, limit: int) -> list[SilenceRecord]:
    """Return silences that have not ended."""
    return _SILENCES.all(await database.fetch_all(SQL.list_silences, now, rule_name, limit))


async def list_silenced_rules(connection: Connection, now: datetime) -> list[str | None]:
    """Return the rules that are silenced now; None stands for all."""
    return [row["rule_name"] for row in await connection.fetch(SQL.list_silenced_rules, now)]


async def delete_old_silences(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of silences that ended before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_silences, cutoff, limit))
