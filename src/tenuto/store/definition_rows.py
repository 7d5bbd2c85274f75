"""Definitions as rows, whatever they define: found by their key, held, written, and every change of them.

Schedules and manifests have tables of their own, and statements of the same names in a file of their own. What a row
says, and which columns a definition fills besides those that all have, is told by them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from tenuto.model.actors import Actor
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import Statements


class Keyed(Protocol):
    """What is found by a key of its own."""

    @property
    def key(self) -> str: ...


D = TypeVar("D")
S = TypeVar("S", bound=Keyed)


@dataclass(frozen=True, slots=True)
class Version:
    """One change of a definition."""

    definition_id: UUID
    version: int
    key: str
    """The name of a schedule, the external id of a manifest, as it was from then on."""
    change: str
    at: datetime
    actor: Actor
    reason: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class Kept(Generic[D, S]):
    """The rows of one kind of definition."""

    def __init__(self, statements: Statements, read: Callable[[Row], S], columns: Callable[[D], Sequence[Any]]) -> None:
        self._sql, self._read, self._columns = statements, read, columns

    # --- finding ----------------------------------------------------------------------------------------------------

    async def named(self, database: Database, key: str) -> S | None:
        """The one of that key."""
        row = await database.one(self._sql.named, key)
        return None if row is None else self._read(row)

    async def locked(self, connection: Connection, key: str) -> S | None:
        """The one of that key, held until the transaction ends."""
        row = await connection.fetchrow(self._sql.lock_named, key)
        return None if row is None else self._read(row)

    async def named_any(self, connection: Connection, keys: Iterable[str]) -> dict[str, S]:
        """Those of these keys that there are."""
        return self._by_key(await connection.fetch(self._sql.named_any, list(keys)))

    async def locked_any(self, connection: Connection, keys: Iterable[str]) -> dict[str, S]:
        """The same, held until the transaction ends."""
        return self._by_key(await connection.fetch(self._sql.lock_named_any, list(keys)))

    async def other_from_files(self, connection: Connection, keys: Iterable[str], limit: int) -> list[S]:
        """What files have declared, but for these keys."""
        return [self._read(row) for row in await connection.fetch(self._sql.other_from_files, list(keys), limit)]

    def _by_key(self, rows: Iterable[Row]) -> dict[str, S]:
        return {found.key: found for found in map(self._read, rows)}

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
        """It comes to be; False if there is one of its key."""
        row = await connection.fetchrow(
            self._sql.insert, id, enabled, origin, as_json(declared), now, next_run, *self._columns(new)
        )
        return row is not None

    async def change(
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
        """Put a definition in the place of the last; its version."""
        version: int = await connection.fetchval(
            self._sql.change, id, enabled, origin, as_json(declared), now, next_run, *self._columns(new)
        )
        return version

    async def declare(self, connection: Connection, id: UUID, declared: dict[str, Any], origin: str) -> None:
        """Remember what code or file said, though nothing has changed by it."""
        await connection.execute(self._sql.declare, id, as_json(declared), origin)

    async def delete(self, connection: Connection, id: UUID) -> None:
        """The definition goes; what it did stays."""
        await connection.execute(self._sql.delete, id)

    # --- versions ---------------------------------------------------------------------------------------------------

    async def record_version(self, connection: Connection, new: Version) -> None:
        """Write down what was changed, by whom and why."""
        await connection.execute(
            self._sql.record_version, new.definition_id, new.version, new.key, new.change, new.at, new.actor.type,
            new.actor.id, new.actor.name, new.reason, as_json(new.before), as_json(new.after),
        )  # fmt: skip

    async def versions(
        self, database: Database, which: str | UUID, limit: int, before: tuple[datetime, int] | None = None
    ) -> list[Version]:
        """The changes of those that have had this key, or of the one with this id, the newest first; or those before
        an (instant, version)."""
        sql = self._sql.versions if isinstance(which, str) else self._sql.versions_of
        return [_version(row) for row in await database.all(sql, which, limit, *(before or (None, None)))]


def _version(row: Row) -> Version:
    return Version(
        row["definition_id"], row["version"], row["key"], row["change"], row["at"],
        Actor(row["actor_type"], row["actor_id"], row["actor_name"]), row["reason"],
        from_json(row["before"]), from_json(row["after"]),
    )  # fmt: skip


def as_json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def from_json(text: str | None) -> dict[str, Any] | None:
    return None if text is None else json.loads(text)
