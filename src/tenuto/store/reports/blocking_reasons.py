"""Obstacles of schedules and manifests: one query for lists, the doctor, metrics and the start of services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tenuto.model.definitions.blocking_reasons import DefinitionKind, Obstacle, ObstacleKind
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import RowMapper
from tenuto.store.statement_groups import Rows, StatementGroup

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class StoppedDefinition:
    """A schedule or manifest with an obstacle."""

    definition: DefinitionKind
    key: str
    kind: ObstacleKind
    subject: str | None
    total: int
    """Number of all schedules or manifests with this kind of obstacle."""

    @property
    def obstacle(self) -> Obstacle:
        return Obstacle(self.kind, self.subject)


_STOPPED = RowMapper(StoppedDefinition, SQL.list_stopped_definitions)


async def list_stopped_definitions(
    connection: Connection | Database,
    *,
    definition: DefinitionKind | None = None,
    keys: Sequence[str] | None = None,
    per_kind: int = 1000,
) -> list[StoppedDefinition]:
    """Return enabled schedules and manifests that have an obstacle, the first ``per_kind`` of each kind."""
    fetch = connection.fetch_all if isinstance(connection, Database) else connection.fetch
    return _STOPPED.all(await fetch(SQL.list_stopped_definitions, definition, keys, per_kind))


def query_stopped_definitions(group: StatementGroup, *, per_kind: int) -> Rows[StoppedDefinition]:
    """Add the query of `list_stopped_definitions`, for all of them, to a group."""
    return group.add(_STOPPED, SQL.list_stopped_definitions, None, None, per_kind)


async def find_obstacles(
    database: Database, definition: DefinitionKind, keys: Sequence[str]
) -> Mapping[str, list[Obstacle]]:
    """Return the obstacles of each of these schedules or manifests that has one."""
    found: dict[str, list[Obstacle]] = {}
    if keys:
        for each in await list_stopped_definitions(database, definition=definition, keys=keys, per_kind=len(keys)):
            found.setdefault(each.key, []).append(each.obstacle)
    return found


async def list_undeclared(
    database: Database, definition: DefinitionKind, declared: Sequence[str], limit: int = 1000
) -> list[str]:
    """Return definitions from code that are neither among ``declared`` nor declared by a running app."""
    rows = await database.fetch_all(SQL.list_undeclared, definition, list(declared), limit)
    return [row["key"] for row in rows]
