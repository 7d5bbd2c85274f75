"""Opening and closing the database of an app, including the embedded server.

Without a database URL, the app uses the embedded server and restarts it if it dies. While a service runs, the shared
database belongs to the event loop of the service; jobs and portals reach it from their own loops. An app may be used
from several event loops in different threads, so the locks here are thread locks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime

from tenuto.errors import StoreError
from tenuto.jobs.process_pool import reject_start_during_child_import
from tenuto.postgres import embedded_server, migrator
from tenuto.postgres.database import Database, run_on_loop
from tenuto.postgres.servers.server_selection import ConnectionGate
from tenuto.settings import Settings
from tenuto.store import partitions

EMBEDDED_LINGER_SECONDS = 5.0
"""How long the embedded server runs on after its last user has released it."""


class Connections:
    """Database and embedded server of one app."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self.gate = ConnectionGate()
        """Checks the new connections of every database that is opened here."""
        self._database: Database | None = None
        self._open_lock = threading.Lock()
        self._server_handle: embedded_server.ServerHandle | None = None
        self._server_lock = threading.Lock()
        """Acquired only in worker threads, never on an event loop, because starting a server takes time."""
        self._service_loop: asyncio.AbstractEventLoop | None = None

    def bind_to_running_loop(self) -> None:
        """Make the running event loop, on which a service starts, the owner of the shared database."""
        self._service_loop = asyncio.get_running_loop()

    def _is_on_other_loop(self) -> bool:
        owner = self._service_loop
        return owner is not None and owner.is_running() and owner is not asyncio.get_running_loop()

    @property
    def is_open(self) -> bool:
        """Whether the shared database is open."""
        return self._database is not None

    def now(self) -> datetime | None:
        """Return the instant by the clock of the shared database, or None if it is not open."""
        database = self._database
        return None if database is None else database.clock.now()

    async def open(self) -> Database:
        """Return the database shared by all operations; the first call opens it."""
        if self._database is not None:
            return self._database
        if self._service_loop is not None and self._is_on_other_loop():
            return await run_on_loop(self._service_loop, self.open())
        async with self._exclusive():
            if self._database is None:
                self._database = await self._open_shared()
            return self._database

    async def _open_shared(self) -> Database:
        database = await self.connect()
        try:
            period = partitions.configured_period(self._settings())
            await partitions.ensure_partitions(database, database.clock.now(), period)
        except BaseException:
            await database.close()
            raise
        return database

    async def connect(
        self, *, for_worker: bool = False, check_schema: bool = True, connect_seconds: float | None = None
    ) -> Database:
        """Open a separate database that the caller closes; ``connect_seconds`` replaces the setting."""
        reject_start_during_child_import()
        settings = self._settings()
        url = settings.database
        if url is None:
            url = await asyncio.to_thread(self._embedded_url)
        database = await Database.open(
            url,
            max_connections=20 if for_worker else 10,
            generic_plans=for_worker,
            behind_pooler=settings.behind_pooler,
            connect_timeout_seconds=settings.connect_seconds if connect_seconds is None else connect_seconds,
            gate=self.gate,
        )
        if settings.database is None:
            database.restart_server = self._restart_embedded
        if check_schema:
            try:
                if settings.database is None:
                    await migrator.migrate(database)
                await migrator.check_schema(database)
            except BaseException:
                await database.close()
                raise
        return database

    def may_close_here(self) -> bool:
        """Whether the running event loop owns the shared database."""
        return not self._is_on_other_loop()

    async def close(self) -> None:
        """Close the shared database, if the running event loop owns it."""
        if not self.may_close_here():
            return
        async with self._exclusive():
            database, self._database = self._database, None
            try:
                if database is not None:
                    database.restart_server = None  # a late query must not start the server again
                    await database.close()
            finally:
                await asyncio.to_thread(self._release_server)

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Serialise opening and closing across event loops, which an asyncio lock cannot do."""
        while not self._open_lock.acquire(blocking=False):  # noqa: ASYNC110 (an asyncio event works on one loop only)
            await asyncio.sleep(0.01)
        try:
            yield
        finally:
            self._open_lock.release()

    # --- embedded server --------------------------------------------------------------------------------------------

    def _embedded_url(self) -> str:
        """Return the URL of the embedded server; the first call starts it."""
        with self._server_lock:
            if self._server_handle is None:  # guard: embedded.one_hold_per_app
                self._server_handle = self._start_server()
            return self._server_handle.url

    async def _restart_embedded(self) -> None:
        """Restart the embedded server after it died; only the first of several concurrent calls does."""
        with suppress(StoreError):
            await asyncio.to_thread(self._replace_server, self._server_handle)

    def _replace_server(self, dead_handle: embedded_server.ServerHandle | None) -> None:
        with self._server_lock:
            if self._server_handle is dead_handle:
                self._server_handle = self._start_server()
                if dead_handle is not None:
                    dead_handle.release()

    def _release_server(self) -> None:
        with self._server_lock:
            handle, self._server_handle = self._server_handle, None
            if handle is not None:
                handle.release()

    def _start_server(self) -> embedded_server.ServerHandle:
        settings = self._settings()
        linger = EMBEDDED_LINGER_SECONDS if settings.embedded_stop == "when_unused" else None
        return embedded_server.acquire_server(settings.home, linger_seconds=linger)
