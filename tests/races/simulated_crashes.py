"""Whoever dies before any statement he sends, or just after any commit: in this process, one death after another.

`CrashableDatabase` is a database whose user dies at a chosen place; what was not committed is gone with him. `writes` are the
statements of the store that write, read from the SQL files, so that none can be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from tenuto import store
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import SqlStatements
from tenuto.store.access import audit_recorder
from tests.support.truncation import TRUNCATE_ALL_TABLES

T = TypeVar("T")
Action = Callable[[Database], Awaitable[object]]

_FILES = sorted(Path(store.__path__[0]).rglob("*.sql"))
_NAMES = {text: f"{file.stem}.{name}" for file in _FILES for name, text in SqlStatements(file)}
_WRITES = re.compile(r"\b(INSERT INTO|DELETE FROM)\b|\bUPDATE tenuto\.")
_COMMENT = re.compile(r"--.*")
FOR_TESTS = "test_clock"
"""Its statements are for tests with a clock of their own; no service sends them."""


def writes() -> dict[str, set[str]]:
    """Every statement that writes, by the file it stands in."""
    found: dict[str, set[str]] = {}
    for text, name in _NAMES.items():
        file = name.partition(".")[0]
        if file != FOR_TESTS and _WRITES.search(_COMMENT.sub("", text)):
            found.setdefault(file, set()).add(name)
    return found


class SimulatedCrash(BaseException):
    """The process is gone: nobody catches this."""


class CrashableDatabase(Database):
    """A database at whose every statement, and after whose every commit, its user may die."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.died_before: set[str] = set()
        self.died_after: set[str] = set()
        self._before = self._after = 0
        """How many more statements, and commits, he lives to see; nothing: all of them."""

    @classmethod
    async def at(cls, url: str) -> CrashableDatabase:
        database = cast(CrashableDatabase, await cls.open(url, generic_plans=True))
        database.recorder = audit_recorder
        return database

    async def dies_before(self, action: Action, place: int) -> bool:
        """Do this and die before the n-th statement; False if it was done by then."""
        self._before = place
        return await self._dies(action)

    async def dies_after(self, action: Action, place: int) -> bool:
        """Do this and die just after the n-th commit; False if it was done by then."""
        self._after = place
        return await self._dies(action)

    async def _dies(self, action: Action) -> bool:
        try:
            await action(self)
        except SimulatedCrash:
            return True
        finally:
            self._before = self._after = 0
        return False

    def sends(self, statement: str) -> None:
        self._before -= 1
        if self._before == 0:
            self.died_before.add(statement)
            raise SimulatedCrash

    def committed(self, statements: list[str]) -> None:
        self._after -= 1
        if self._after == 0:
            self.died_after.update(statements)
            raise SimulatedCrash

    async def _run_with_retries(self, work: Callable[[Any], Awaitable[T]], tries: int = 6) -> T:
        async def watched(connection: Connection) -> T:
            return await work(_Watched(connection, self))

        return await super()._run_with_retries(watched, tries)


class _Watched:
    """A connection that tells what is sent over it."""

    def __init__(self, connection: Connection, crashable: CrashableDatabase) -> None:
        self._connection = connection
        self._mortal = crashable
        self._sent: list[str] | None = None

    async def fetch(self, *values: Any) -> Any:
        return await self._send(values[0], lambda: self._connection.fetch(*values))

    async def fetchrow(self, *values: Any) -> Any:
        return await self._send(values[0], lambda: self._connection.fetchrow(*values))

    async def fetchval(self, *values: Any) -> Any:
        return await self._send(values[0], lambda: self._connection.fetchval(*values))

    async def execute(self, *values: Any) -> Any:
        return await self._send(values[0], lambda: self._connection.execute(*values))

    async def copy_to_table(self, table: str, **options: Any) -> Any:
        return await self._send(f"COPY {table}", lambda: self._connection.copy_to_table(table, **options))

    async def _send(self, statement: str, send: Callable[[], Awaitable[Any]]) -> Any:
        name = _NAMES.get(statement, statement)
        self._mortal.sends(name)
        answer = await send()
        if self._sent is None:
            self._mortal.committed([name])
        else:
            self._sent.append(name)
        return answer

    def terminate(self) -> None:
        self._connection.terminate()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self._sent = []
        async with self._connection.transaction():
            yield
            self._mortal.sends("COMMIT")
        sent, self._sent = self._sent, None
        self._mortal.committed(sent)


# --- what is left ---------------------------------------------------------------------------------------------------

_EMPTY = f"""
SET LOCAL session_replication_role = replica;
{TRUNCATE_ALL_TABLES}"""
_TABLES = """
SELECT relname
FROM pg_class
WHERE relnamespace = 'tenuto'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
  AND relname NOT IN ('migrations', 'audit_chain', 'repairs')
ORDER BY relname
"""
_VARIES = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|\d{4}-\d\d-\d\d[T ][0-9:.+Z]+"
    r'|(?<="seconds": )[^,}]*|\\\\x[0-9a-f]+'
)


async def emptied(database: Database) -> None:
    """As on the first day."""

    async def action(connection: Connection) -> None:
        await connection.execute(_EMPTY)

    await database.transaction(action)


async def remains(database: Database) -> list[str]:
    """All rows of all tables, without what differs from one time to the next: ids, instants, what is sealed. Nor how
    often a net has found something: that is counted after it was mended."""
    found = []
    for (table,) in await database.fetch_all(_TABLES):
        rows = await database.fetch_all(f"SELECT to_jsonb(row)::text FROM tenuto.{table} AS row")
        found += [f"{table}: {_VARIES.sub('…', row[0])}" for row in rows]
    return sorted(found)
