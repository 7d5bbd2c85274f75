"""A worker that dies at a chosen point: before or after the n-th time it sends a certain statement, or a commit."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar

from tenuto import Tenuto
from tenuto.postgres.database import Connection, Database
from tenuto.settings import Settings
from tenuto.store import step_checkpoints, tasks, workers
from tenuto.store.access import audit_recorder
from tenuto.worker import watchdog

T = TypeVar("T")
EXIT_CODE = 9

_NAMES = {text: name for sql in (tasks.SQL, workers.SQL, step_checkpoints.SQL) for name, text in sql}


class Points:
    """The points this process passes: "before claim", "after commit of repeat_tasks" … It dies at the n-th of one."""

    def __init__(self, crash_at: str) -> None:
        self._point, _, number = crash_at.rpartition(" ")
        self._left = int(number)

    def passed(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os._exit(EXIT_CODE)


class CrashingDatabase(Database):
    """A database whose every statement has a point before it and one after."""

    points: ClassVar[Points]

    async def _run_with_retries(self, work: Callable[[Any], Awaitable[T]], tries: int = 6) -> T:
        async def watched(connection: Connection) -> T:
            return await work(_Watched(connection, self.points))

        if self.is_on_other_loop():  # it comes by here again, on the loop of the pool
            return await super()._run_with_retries(work, tries)
        return await super()._run_with_retries(watched, tries)


class _Watched:
    """A connection with the points."""

    def __init__(self, connection: Connection, points: Points) -> None:
        self._connection = connection
        self._points = points
        self._last = ""

    async def fetch(self, statement: str, *values: Any) -> Any:
        return await self._between(statement, self._connection.fetch(statement, *values))

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        return await self._between(statement, self._connection.fetchrow(statement, *values))

    async def fetchval(self, statement: str, *values: Any) -> Any:
        return await self._between(statement, self._connection.fetchval(statement, *values))

    async def execute(self, statement: str, *values: Any) -> Any:
        return await self._between(statement, self._connection.execute(statement, *values))

    def terminate(self) -> None:
        self._connection.terminate()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            yield
        except BaseException:
            await transaction.rollback()
            raise
        await self._between(f"commit of {self._last}", transaction.commit())

    async def _between(self, statement: str, sending: Awaitable[Any]) -> Any:
        self._last = _NAMES.get(statement, statement)
        self._points.passed(f"before {self._last}")
        answer = await sending
        self._points.passed(f"after {self._last}")
        return answer


class CrashingTenuto(Tenuto):
    """An app whose services die at a point."""

    def __init__(self, settings: Settings, crash_at: str) -> None:
        super().__init__(settings=settings)
        CrashingDatabase.points = Points(crash_at)
        vars(watchdog)["Database"] = CrashingDatabase  # it opens a connection of its own

    async def connect(self, *, for_worker: bool = False, check_schema: bool = True) -> Database:
        assert self.settings.database is not None
        database = await CrashingDatabase.open(self.settings.database, max_connections=20, generic_plans=for_worker)
        database.recorder = audit_recorder
        return database
