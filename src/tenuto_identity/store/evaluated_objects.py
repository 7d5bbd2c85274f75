"""Which versions of objects a sync has decided about, and the facts by which a full sync skips objects."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from tenuto.postgres.database import Connection
from tenuto.postgres.sql_loader import load_statements
from tenuto_identity.model.objects import ObjectState
from tenuto_identity.model.sync.settled_objects import ENGINE_VERSION, JoinedFacts, ObjectFacts
from tenuto_identity.model.value_class import value_class

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


@value_class
class Evaluation:
    """The version of an object that a sync has decided about, and the objects joined beside it."""

    object_id: int
    version: int
    joined_key: int


async def store_evaluations(connection: Connection, found: Iterable[Evaluation], rules_version: int) -> None:
    """Record what a sync has decided about."""
    if ordered := sorted(found, key=lambda each: each.object_id):
        await connection.execute(
            SQL.store_evaluations,
            [each.object_id for each in ordered],
            [each.version for each in ordered],
            [each.joined_key for each in ordered],
            rules_version,
            ENGINE_VERSION,
        )
