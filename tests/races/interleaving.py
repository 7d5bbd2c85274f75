"""Deterministic interleaving of two transactions: one pauses before its n-th statement while the other runs.

`interleavings` repeats the first action; each time the second action starts one statement later, until the first
has no more statements and both run one after the other. The second action either completes at once or waits for a
lock of the first; then the first continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import asyncpg

from tenuto.postgres.database import Connection, Database

T = TypeVar("T")


class InterleavedDatabase(Database):
    """Database that runs a callback before every statement and every commit."""

    deadlocks = 0

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.before: Callable[[], Awaitable[None]] = self.nothing
        self.after_commit: Callable[[], Awaitable[None]] = self.nothing

    @classmethod
    async def at(cls, url: str) -> InterleavedDatabase:
        database = cast(InterleavedDatabase, await cls.open(url, generic_plans=True))
        return database

    @asynccontextmanager
    async def watched_connection(self) -> AsyncIterator[Connection]:
        """Lend a connection that runs the callbacks too, as attempts use one without the retries of the database."""
        async with self.connection() as connection:
            yield cast(Connection, _Watched(connection, self))

    @staticmethod
    async def nothing() -> None:
        """Default callback."""

    async def _run_with_retries(
        self, work: Callable[[Any], Awaitable[T]], tries: int = 6, *, is_write: bool = False
    ) -> T:
        async def watched(connection: Connection) -> T:
            try:
                return await work(_Watched(connection, self))
            except asyncpg.DeadlockDetectedError:
                self.deadlocks += 1
                raise

        return await super()._run_with_retries(watched, tries, is_write=is_write)


class _Watched:
    def __init__(self, connection: Connection, database: InterleavedDatabase) -> None:
        self._connection = connection
        self._database = database

    async def fetch(self, *values: Any) -> Any:
        await self._database.before()
        return await self._connection.fetch(*values)

    async def fetchrow(self, *values: Any) -> Any:
        await self._database.before()
        return await self._connection.fetchrow(*values)

    async def fetchval(self, *values: Any) -> Any:
        await self._database.before()
        return await self._connection.fetchval(*values)

    async def execute(self, *values: Any) -> Any:
        await self._database.before()
        return await self._connection.execute(*values)

    async def copy_to_table(self, *values: Any, **options: Any) -> Any:
        await self._database.before()
        return await self._connection.copy_to_table(*values, **options)

    def terminate(self) -> None:
        self._connection.terminate()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self._connection.transaction():
            yield
            await self._database.before()
        await self._database.after_commit()


class Interleaving:
    """One run of the first action, with the second starting before its n-th statement."""

    def __init__(self, first: InterleavedDatabase, second: InterleavedDatabase, place: int) -> None:
        self._first, self._second, self._statement_number = first, second, place
        self.was_interleaved = False

    def __repr__(self) -> str:
        return f"interleaving before statement {self._statement_number}"

    async def run(self, one: Callable[[Database], Awaitable[Any]], other: Callable[[Database], Awaitable[Any]]) -> Any:
        """Run both actions and return both results."""
        seen, begun = 0, None

        async def before() -> None:
            nonlocal seen, begun
            seen += 1
            if seen == self._statement_number:
                begun = asyncio.create_task(_run(other, self._second))
                await self._wait_until_done_or_blocked(begun)

        self._first.before = before
        try:
            result = await one(self._first)
        finally:
            self._first.before = self._first.nothing
            self.was_interleaved = begun is not None
        return result, await (begun if begun is not None else other(self._second))

    async def _wait_until_done_or_blocked(self, begun: asyncio.Task[Any]) -> None:
        deadline = time.monotonic() + 8
        async with self._second.connection() as connection:
            while not begun.done():
                if await connection.fetchval(
                    "SELECT EXISTS (SELECT FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event_type = 'Lock')"
                ):
                    return
                assert time.monotonic() < deadline, "the second action neither completes nor waits for a lock"
                await asyncio.sleep(0.001)


async def _run(action: Callable[[Database], Awaitable[Any]], database: Database) -> Any:
    return await action(database)


async def interleavings(first: InterleavedDatabase, second: InterleavedDatabase) -> AsyncIterator[Interleaving]:
    """Yield one interleaving for each statement of the first action."""
    place = 0
    while True:
        place += 1
        interleaving = Interleaving(first, second, place)
        yield interleaving
        if not interleaving.was_interleaved:
            return
