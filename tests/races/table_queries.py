"""Queries on the tables over a connection that is independent of the system under test."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from tests.support.waiting import eventually


class Observer:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()

    @classmethod
    async def at(cls, url: str) -> Observer:
        return cls(await asyncpg.connect(url))

    async def close(self) -> None:
        await self._connection.close()

    async def count(self, table: str, where: str = "true") -> int:
        found: int = await self.value(f"SELECT count(*) FROM tenuto.{table} WHERE {where}")
        return found

    async def value(self, query: str, *values: Any) -> Any:
        async with self._lock:
            return await self._connection.fetchval(query, *values)

    async def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        async with self._lock:
            return [tuple(row) for row in await self._connection.fetch(query, *values)]

    async def until(self, query: str, *values: Any, within: float) -> Any:
        """Wait until a query returns true."""

        async def yes() -> Any:
            return await self.value(query, *values)

        return await eventually(yes, timeout=within, what=query)

    async def until_all_ended(self, *, within: float) -> None:
        """Wait until no task is open."""
        await self.until("SELECT NOT EXISTS (SELECT FROM tenuto.tasks)", within=within)

    async def until_running(self, count: int, *, within: float = 10) -> None:
        """Wait until that many tasks are running."""
        await self.until("SELECT count(*) = $1 FROM tenuto.tasks WHERE state = 'running'", count, within=within)
