"""A worker process that crashes at a chosen point: before or after the n-th time it sends a statement or a commit."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar

from tenuto import Tenuto
from tenuto.postgres.database import Connection, Database
from tenuto.settings import Settings
from tenuto.store.events import external_events
from tenuto.store.work import executions, step_checkpoints, task_creation, tasks, workers
from tenuto.worker import watchdog

T = TypeVar("T")
EXIT_CODE = 9

_STATEMENT_NAMES = {
    text: name
    for sql in (tasks.SQL, executions.SQL, workers.SQL, step_checkpoints.SQL, external_events.SQL, task_creation.SQL)
    for name, text in sql
}


class CrashPoint:
    """Crash point such as "before claim_tasks 1" or "after commit of retry_tasks 2". The process exits at the n-th
    pass.
    """

    def __init__(self, crash_at: str) -> None:
        self._point, _, number = crash_at.rpartition(" ")
        self._passes_left = int(number)

    def record_pass(self, point: str) -> None:
        if point == self._point:
            self._passes_left -= 1
            if self._passes_left == 0:
                os._exit(EXIT_CODE)


class CrashingDatabase(Database):
    """Database that passes a crash point before and after every statement."""

    crash_point: ClassVar[CrashPoint]

    async def _run_with_retries(
        self, work: Callable[[Any], Awaitable[T]], tries: int = 6, *, is_write: bool = False
    ) -> T:
        async def watched(connection: Connection) -> T:
            return await work(_Watched(connection, self.crash_point))

        if self.is_on_other_loop():  # runs again on the loop of the pool
            return await super()._run_with_retries(work, tries, is_write=is_write)
        return await super()._run_with_retries(watched, tries, is_write=is_write)


class _Watched:
    """Connection that passes the crash points."""

    def __init__(self, connection: Connection, points: CrashPoint) -> None:
        self._connection = connection
        self._points = points
        self._last_statement = ""

    async def fetch(self, statement: str, *values: Any) -> Any:
        return await self._send(statement, self._connection.fetch(statement, *values))

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        return await self._send(statement, self._connection.fetchrow(statement, *values))

    async def fetchval(self, statement: str, *values: Any) -> Any:
        return await self._send(statement, self._connection.fetchval(statement, *values))

    async def execute(self, statement: str, *values: Any) -> Any:
        return await self._send(statement, self._connection.execute(statement, *values))

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
        await self._send(f"commit of {self._last_statement}", transaction.commit())

    async def _send(self, statement: str, sending: Awaitable[Any]) -> Any:
        self._last_statement = _STATEMENT_NAMES.get(statement, statement)
        self._points.record_pass(f"before {self._last_statement}")
        result = await sending
        self._points.record_pass(f"after {self._last_statement}")
        return result


class CrashingTenuto(Tenuto):
    """App whose services exit at a crash point."""

    def __init__(self, settings: Settings, crash_at: str) -> None:
        super().__init__(settings=settings)
        CrashingDatabase.crash_point = CrashPoint(crash_at)
        vars(watchdog)["Database"] = CrashingDatabase  # the watchdog opens its own connection

    async def connect(
        self, *, for_worker: bool = False, check_schema: bool = True, connect_seconds: float | None = None
    ) -> Database:
        assert self.settings.database is not None
        database = await CrashingDatabase.open(self.settings.database, max_connections=20, generic_plans=for_worker)
        return database
