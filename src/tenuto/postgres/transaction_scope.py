"""The database within one open transaction, for functions that take a database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tenuto.errors import Unavailable
from tenuto.postgres.database import DRIVER_ERRORS, Connection, Database, Row, translate_driver_error

T = TypeVar("T")


class TransactionScope(Database):
    """All statements use the connection of an open transaction; transactions are savepoints in it.

    Nothing is sent again here: a transient error ends the open transaction, and the code that opened it runs it again.
    """

    def __init__(self, database: Database, connection: Connection) -> None:
        vars(self).update(vars(database))  # the same clock and event loop
        self._connection = connection

    async def transaction(self, work: Callable[[Connection], Awaitable[T]], tries: int = 6) -> T:
        """Run ``work`` in a savepoint; an error of its rows rolls back to the savepoint."""
        try:
            async with self._connection.transaction():  # guard: bulk_operations.item_savepoint
                return await work(self._connection)
        except DRIVER_ERRORS as error:
            problem = translate_driver_error(error)
            if isinstance(problem, Unavailable):
                raise  # ends the open transaction, which is then run again
            raise problem from error

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Return the connection of the transaction."""
        yield self._connection

    async def copy(self, load: Callable[[Connection], Awaitable[None]]) -> None:
        await load(self._connection)

    async def _read(self, statement: str, values: Sequence[Any], tries: int) -> list[Row]:
        return await self._connection.fetch(statement, *values)

    async def _write(self, statement: str, values: Sequence[Any], tries: int) -> list[Row]:
        return await self._connection.fetch(statement, *values)

    async def _run_with_retries(
        self, work: Callable[[Connection], Awaitable[T]], tries: int = 6, *, is_write: bool = False
    ) -> T:
        return await work(self._connection)
