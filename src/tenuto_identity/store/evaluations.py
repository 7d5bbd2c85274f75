"""Which versions of objects a sync has decided about, and the facts by which a full sync skips objects."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tenuto.postgres.database import Connection
from tenuto.postgres.sql_loader import load_statements
from tenuto_identity.model.objects import ObjectState
from tenuto_identity.model.sync.settled import ENGINE_VERSION, JoinedFacts, ObjectFacts

SQL = load_statements(__file__)
_STATES = {state.value: state for state in ObjectState}


async def load_facts(
    connection: Connection, system_number: int, after_id: int, limit: int, now: datetime
) -> list[ObjectFacts]:
    """Return the facts of the next objects of a system in order of id, by one statement."""
    found: list[ObjectFacts] = []
    joined: list[JoinedFacts] = []
    last_id = 0
    for row in await connection.fetch(SQL.load_facts, system_number, after_id, limit, now):
        id, metaverse_type, is_due, is_scheduled, has_unresolved, joined_id, system, type, state, *rest = row
        if id != last_id:
            last_id, joined = id, []
            found.append(ObjectFacts(id, metaverse_type, is_due, is_scheduled, has_unresolved, joined))
        if joined_id is not None:
            joined.append(JoinedFacts(joined_id, system, type, _STATES[state], *rest))
    return found


async def store_evaluations(connection: Connection, versions: Mapping[int, int], rules_version: int) -> None:
    """Record the versions of objects that a sync has decided about."""
    if versions:
        ordered = sorted(versions)
        await connection.execute(
            SQL.store_evaluations, ordered, [versions[id] for id in ordered], rules_version, ENGINE_VERSION
        )
