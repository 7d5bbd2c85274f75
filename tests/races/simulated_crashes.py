"""Simulated crashes inside the test process, before any statement or just after any commit.

`CrashableDatabase` raises `SimulatedCrash` at a chosen place; uncommitted changes are lost. `writing_statements`
reads the statements that write from the SQL files, so that none can be forgotten.
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
from tenuto.store.filter_sql import PLACEHOLDER
from tests.support.truncation import TRUNCATE_ALL_TABLES

T = TypeVar("T")
Action = Callable[[Database], Awaitable[object]]

_FILES = sorted(Path(store.__path__[0]).rglob("*.sql"))
_STATEMENT_NAMES = {
    text.replace(PLACEHOLDER, "true"): f"{file.stem}.{name}" for file in _FILES for name, text in SqlStatements(file)
}
"""By text, as an empty filter makes it."""
_WRITE_PATTERN = re.compile(r"\b(INSERT INTO|DELETE FROM)\b|\bUPDATE tenuto\.")
_COMMENT = re.compile(r"--.*")
TEST_ONLY_FILE = "manual_clock"
"""Its statements serve tests with a simulated clock; no service sends them."""


def writing_statements() -> dict[str, set[str]]:
    """Return every statement that writes, by SQL file."""
    found: dict[str, set[str]] = {}
    for text, name in _STATEMENT_NAMES.items():
        file = name.partition(".")[0]
        if file != TEST_ONLY_FILE and _WRITE_PATTERN.search(_COMMENT.sub("", text)):
            found.setdefault(file, set()).add(name)
    return found


class SimulatedCrash(BaseException):
    """The simulated process is gone; only the test catches this."""


class CrashableDatabase(Database):
    """Database that crashes its user before a chosen statement or after a chosen commit."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.crashed_before: set[str] = set()
        self.crashed_after: set[str] = set()
        self._statements_until_crash = self._commits_until_crash = 0
        """0: no crash."""

    @classmethod
    async def at(cls, url: str) -> CrashableDatabase:
        database = cast(CrashableDatabase, await cls.open(url, generic_plans=True))
        return database

    async def crashes_before(self, action: Action, place: int) -> bool:
        """Run an action and crash before the n-th statement; return False if the action completed first."""
        self._statements_until_crash = place
        return await self._crashes(action)

    async def crashes_after(self, action: Action, place: int) -> bool:
        """Run an action and crash just after the n-th commit; return False if the action completed first."""
        self._commits_until_crash = place
        return await self._crashes(action)

    async def _crashes(self, action: Action) -> bool:
        try:
            await action(self)
        except SimulatedCrash:
            return True
        finally:
            self._statements_until_crash = self._commits_until_crash = 0
        return False

    def record_statement(self, statement: str) -> None:
        self._statements_until_crash -= 1
        if self._statements_until_crash == 0:
            self.crashed_before.add(statement)
            raise SimulatedCrash

    def record_commit(self, statements: list[str]) -> None:
        self._commits_until_crash -= 1
        if self._commits_until_crash == 0:
            self.crashed_after.update(statements)
            raise SimulatedCrash

    async def _run_with_retries(
        self, work: Callable[[Any], Awaitable[T]], tries: int = 6, *, is_write: bool = False
    ) -> T:
        async def watched(connection: Connection) -> T:
            return await work(_Watched(connection, self))

        return await super()._run_with_retries(watched, tries, is_write=is_write)


class _Watched:
    """Connection that reports its statements and commits."""

    def __init__(self, connection: Connection, crashable: CrashableDatabase) -> None:
        self._connection = connection
        self._database = crashable
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
        name = _STATEMENT_NAMES.get(statement.replace(PLACEHOLDER, "true"), statement)
        self._database.record_statement(name)
        result = await send()
        if self._sent is None:
            self._database.record_commit([name])
        else:
            self._sent.append(name)
        return result

    def terminate(self) -> None:
        self._connection.terminate()

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[None]:
        if self._sent is not None:  # a savepoint, whose release commits nothing
            async with self._connection.transaction(**options):
                yield
            return
        self._sent = []
        async with self._connection.transaction(**options):
            yield
            self._database.record_statement("COMMIT")
        sent, self._sent = self._sent, None
        self._database.record_commit(sent)


# --- comparison of table contents -----------------------------------------------------------------------------------

_TRUNCATE = f"""
SET LOCAL session_replication_role = replica;
{TRUNCATE_ALL_TABLES}"""
_TABLES = """
SELECT relname
FROM pg_class
WHERE relnamespace = 'tenuto'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
  AND relname NOT IN ('migrations', 'audit_chain', 'repairs')
ORDER BY relname
"""
_VARIABLE_PARTS = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|\d{4}-\d\d-\d\d[T ][0-9:.+Z]+"
    r'|(?<="seconds": )[^,}]*|(?<=transaction_id": )\d+|(?<="in_progress": )\[[^]]*]|\\\\x[0-9a-f]+'
    r'|(?<="occurrence": \[null, )\d+'
)


async def truncate_tables(database: Database) -> None:

    async def action(connection: Connection) -> None:
        await connection.execute(_TRUNCATE)

    await database.transaction(action)


async def dump_rows(database: Database) -> list[str]:
    """Return all rows of all tables without the parts that differ between runs (ids, instants, encrypted values).

    The repair counts are left out: a repair is counted after it was made.
    """
    found = []
    for (table,) in await database.fetch_all(_TABLES):
        rows = await database.fetch_all(f"SELECT to_jsonb(row)::text FROM tenuto.{table} AS row")
        found += [f"{table}: {_VARIABLE_PARTS.sub('…', row[0])}" for row in rows]
    return sorted(found)
