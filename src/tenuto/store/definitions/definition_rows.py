"""Rows of versioned definitions: schedules and manifests.

Both have their own tables and ``.sql`` files with statements of the same names. The caller supplies how to read a row
and which columns a definition fills.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, Protocol, TypeVar
from uuid import UUID

from tenuto.model.access.actors import Actor, ActorType
from tenuto.model.definitions.dependency_order import HasReferences
from tenuto.model.triggers import Trigger
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import SqlStatements
from tenuto.store.row_mapping import FromJson, RowMapper


class Definition(HasReferences, Protocol):
    """A definition of a schedule or manifest."""

    @property
    def trigger(self) -> Trigger: ...
    def to_fields(self) -> dict[str, Any]: ...


D = TypeVar("D", bound=Definition)
D_co = TypeVar("D_co", bound=Definition, covariant=True)


@dataclass(frozen=True, slots=True)
class StoredDefinition(Generic[D_co]):
    """A stored schedule or manifest."""

    id: UUID
    definition: D_co
    enabled: bool
    version: int
    origin: str
    declared: Annotated[dict[str, Any] | None, FromJson]
    """The fields that code or a file declared last."""
    created_at: datetime
    updated_at: datetime
    last_run_at: datetime | None
    next_run_at: datetime | None

    @property
    def key(self) -> str:
        return self.definition.key

    @property
    def trigger(self) -> Trigger:
        return self.definition.trigger

    @property
    def fields(self) -> dict[str, Any]:
        """The current definition as plain data, comparable with ``declared``."""
        return self.definition.to_fields()


S = TypeVar("S", bound=StoredDefinition[Any])


@dataclass(frozen=True, slots=True)
class Version:
    """One change of a definition."""

    definition_id: UUID
    version: int
    key: str
    """Name of the schedule or external id of the manifest after the change."""
    change: str
    at: datetime
    actor: Actor
    reason: str | None
    before: Annotated[dict[str, Any] | None, FromJson]
    after: Annotated[dict[str, Any] | None, FromJson]


class DefinitionTable(Generic[D, S]):
    """The table of one kind of definition.

    ``parse`` makes the definition from the columns named in ``definition_columns``, ``columns`` returns the values that
    a definition fills.
    """

    def __init__(
        self,
        record_type: type[S],
        statements: SqlStatements,
        parse: Callable[[Row], D],
        columns: Callable[[D], Sequence[Any]],
        *,
        definition_columns: Sequence[str],
        further_statements: Sequence[str] = (),
    ) -> None:
        self._sql, self._parse, self._columns = statements, parse, columns
        self._stored = RowMapper(
            record_type,
            statements.load_definition,
            statements.lock_definition,
            statements.load_definitions,
            statements.lock_definitions,
            statements.list_others_from_files,
            *further_statements,
            computed=("definition",),
            unmapped=definition_columns,
        )
        self._versions = RowMapper(
            Version,
            statements.list_versions_by_key,
            statements.list_versions_by_id,
            computed=("actor",),
            unmapped=("actor_type", "actor_id", "actor_name"),
        )

    # --- reading ----------------------------------------------------------------------------------------------------

    def to_stored(self, row: Row) -> S:
        """Return the stored definition of a row."""
        return self._stored.one(row, definition=self._parse(row))

    async def load(self, database: Database, key: str) -> S | None:
        """Return the definition with this key."""
        row = await database.fetch_one(self._sql.load_definition, key)
        return None if row is None else self.to_stored(row)

    async def lock(self, connection: Connection, key: str) -> S | None:
        """Return and lock the definition with this key."""
        row = await connection.fetchrow(self._sql.lock_definition, key)
        return None if row is None else self.to_stored(row)

    async def load_many(self, connection: Connection, keys: Iterable[str]) -> dict[str, S]:
        """Return the existing definitions with these keys."""
        return self._by_key(await connection.fetch(self._sql.load_definitions, list(keys)))

    async def lock_many(self, connection: Connection, keys: Iterable[str]) -> dict[str, S]:
        """Return and lock the existing definitions with these keys."""
        return self._by_key(await connection.fetch(self._sql.lock_definitions, list(keys)))

    async def list_others_from_files(self, connection: Connection, keys: Iterable[str], limit: int) -> list[S]:
        """Return definitions declared by files, except those with these keys."""
        return [
            self.to_stored(row) for row in await connection.fetch(self._sql.list_others_from_files, list(keys), limit)
        ]

    def _by_key(self, rows: Iterable[Row]) -> dict[str, S]:
        return {found.key: found for found in map(self.to_stored, rows)}

    # --- writing ----------------------------------------------------------------------------------------------------

    async def insert(
        self,
        connection: Connection,
        id: UUID,
        new: D,
        *,
        enabled: bool,
        origin: str,
        declared: dict[str, Any] | None,
        now: datetime,
        next_run: datetime | None,
    ) -> bool:
        """Insert a definition; return False if its key exists."""
        row = await connection.fetchrow(
            self._sql.insert_definition, id, enabled, origin, to_json_text(declared), now, next_run, *self._columns(new)
        )
        return row is not None

    async def update(
        self,
        connection: Connection,
        id: UUID,
        new: D,
        *,
        enabled: bool,
        origin: str,
        declared: dict[str, Any] | None,
        now: datetime,
        next_run: datetime | None,
    ) -> int:
        """Replace a definition; return its new version."""
        version: int = await connection.fetchval(
            self._sql.update_definition, id, enabled, origin, to_json_text(declared), now, next_run, *self._columns(new)
        )
        return version

    async def store_declaration(self, connection: Connection, id: UUID, declared: dict[str, Any], origin: str) -> None:
        """Store the declaration of code or file although the definition did not change."""
        await connection.execute(self._sql.store_declaration, id, to_json_text(declared), origin)

    async def delete(self, connection: Connection, id: UUID) -> None:
        """Delete the definition; its runs and versions stay."""
        await connection.execute(self._sql.delete_definition, id)

    # --- versions ---------------------------------------------------------------------------------------------------

    async def record_version(self, connection: Connection, new: Version) -> None:
        """Record one change: what, by whom and why."""
        await connection.execute(
            self._sql.insert_version, new.definition_id, new.version, new.key, new.change, new.at, new.actor.type,
            new.actor.id, new.actor.name, new.reason, to_json_text(new.before), to_json_text(new.after),
        )  # fmt: skip

    async def list_versions(
        self, database: Database, which: str | UUID, limit: int, before: tuple[datetime, int] | None = None
    ) -> list[Version]:
        """Return the versions of all definitions that had this key, or of the one with this id, newest first, before
        (instant, version)."""
        sql = self._sql.list_versions_by_key if isinstance(which, str) else self._sql.list_versions_by_id
        return [
            self._versions.one(row, actor=Actor(ActorType(row["actor_type"]), row["actor_id"], row["actor_name"]))
            for row in await database.fetch_all(sql, which, limit, *(before or (None, None)))
        ]


def to_json_text(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
