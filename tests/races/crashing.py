"""A worker that dies at the n-th point of its way: before or after each statement it sends, commits included."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tenuto import Tenuto
from tenuto.engine import watchdog
from tenuto.settings import Settings
from tenuto.store import tasks, workers
from tenuto.store.database import Connection, Database

T = TypeVar("T")
EXIT_CODE = 9

_NAMES = {text: name for sql in (tasks.SQL, workers.SQL) for name, text in sql}
# What is only a look, or a sign of life, has no point: it happens as often as time passes, and changes nothing.
_WRITES = {
    "begin", "commit", "alive_named", "register", "declare_ended", "draining", "promote", "claim", "lock_limits",
    "claim_under_limits", "renew", "end_tasks", "repeat_tasks", "asked_to_stop", "put_back", "expired", "held_by",
    "count_repair",
}  # fmt: skip


class Points:
    """Counts the points this process passes; at the chosen one it leaves a note and dies."""

    def __init__(self, note: Path, crash_at: int) -> None:
        self._note = note
        self._crash_at = crash_at
        self._passed = 0

    def passed(self, when: str, statement: str) -> None:
        name = _NAMES.get(statement, statement)
        if name not in _WRITES:
            return
        self._passed += 1
        if self._passed == self._crash_at:
            with self._note.open("a", encoding="utf-8") as file:
                file.write(f"{when} {name}\n")
            os._exit(EXIT_CODE)


class CrashingDatabase(Database):
    """A database whose every statement has a point before it and one after."""

    points: ClassVar[Points]

    async def _persist(self, work: Callable[[Any], Awaitable[T]], tries: int = 6) -> T:
        async def watched(connection: Connection) -> T:
            return await work(_Watched(connection, self.points))

        return await super()._persist(watched, tries)


class _Watched:
    """A connection with the points."""

    def __init__(self, connection: Connection, points: Points) -> None:
        self._connection = connection
        self._points = points

    async def fetch(self, statement: str, *values: Any) -> Any:
        return await self._between(statement, self._connection.fetch(statement, *values))

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        return await self._between(statement, self._connection.fetchrow(statement, *values))

    async def fetchval(self, statement: str, *values: Any) -> Any:
        return await self._between(statement, self._connection.fetchval(statement, *values))

    async def execute(self, statement: str, *values: Any) -> Any:
        return await self._between(statement, self._connection.execute(statement, *values))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        transaction = self._connection.transaction()
        await self._between("begin", transaction.start())
        try:
            yield
        except BaseException:
            await transaction.rollback()
            raise
        await self._between("commit", transaction.commit())

    async def _between(self, statement: str, sending: Awaitable[Any]) -> Any:
        self._points.passed("before", statement)
        answer = await sending
        self._points.passed("after", statement)
        return answer


class CrashingTenuto(Tenuto):
    """An app whose services die at the n-th point."""

    def __init__(self, settings: Settings, note: Path, crash_at: int) -> None:
        super().__init__(settings=settings)
        CrashingDatabase.points = Points(note, crash_at)
        watchdog.Database = CrashingDatabase  # type: ignore[misc]  # it opens a connection of its own

    async def connect(self, *, for_worker: bool = False, check_schema: bool = True) -> Database:
        assert self.settings.database is not None
        return await CrashingDatabase.open(self.settings.database, max_connections=20, generic_plans=for_worker)
