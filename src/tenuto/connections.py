"""How an app comes to its database: which one, when it is opened, on which loop it lives, who lets it go.

Without an address it is the embedded server, held for as long as anything here is open and started again should it
die. While a service runs, the database lives on the service's loop, and jobs and portals reach it from theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tenuto.errors import StoreError
from tenuto.handlers.processes import refuse_while_a_child_starts
from tenuto.settings import Settings
from tenuto.store import embedded, migrate, partitions
from tenuto.store.database import Database, across

LINGER_SECONDS = 5.0


class Connections:
    """The connections of one app."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._database: Database | None = None
        self._hold: embedded.Hold | None = None
        self._opening: asyncio.Lock | None = None
        self._reviving = asyncio.Lock()
        self._home: asyncio.AbstractEventLoop | None = None

    def are_at_home_here(self) -> None:
        """A service begins on this loop: from now on the database lives here."""
        self._home = asyncio.get_running_loop()

    def _is_away_from_home(self) -> bool:
        home = self._home
        return home is not None and home.is_running() and home is not asyncio.get_running_loop()

    async def open(self) -> Database:
        """The database all verbs share, opened when first asked for."""
        if self._database is not None:
            return self._database
        if self._home is not None and self._is_away_from_home():
            return await across(self._home, self.open())
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._database is None:
                database = await self.connect()
                await partitions.ensure(database, database.clock.now())
                self._database = database
            return self._database

    async def connect(self, *, for_worker: bool = False, check_schema: bool = True) -> Database:
        """A database of the caller's own."""
        refuse_while_a_child_starts()
        settings = self._settings()
        database = await Database.open(
            settings.database or await self._embedded_url(),
            max_connections=20 if for_worker else 10,
            generic_plans=for_worker,
            behind_pooler=settings.behind_pooler,
        )
        if settings.database is None:
            database.revive = self._start_embedded_again
        if check_schema:
            try:
                if settings.database is None:
                    await migrate.migrate(database)
                await migrate.check(database)
            except BaseException:
                await database.close()
                raise
        return database

    async def close(self) -> None:
        """Let go, if it is ours to let go."""
        if self._is_away_from_home():
            return
        if self._database is not None:
            await self._database.close()
            self._database = None
        if self._hold is not None:
            await asyncio.to_thread(self._hold.release)
            self._hold = None
        self._opening = None

    # --- the embedded server ----------------------------------------------------------------------------------------

    async def _embedded_url(self) -> str:
        if self._hold is None:
            self._hold = await self._take_hold()
        return self._hold.url

    async def _start_embedded_again(self) -> None:
        """Our server has died under us: whoever notices first starts it, the others find it running."""
        async with self._reviving:
            with suppress(StoreError):
                again = await self._take_hold()
                before, self._hold = self._hold, again
                if before is not None:
                    before.release()

    async def _take_hold(self) -> embedded.Hold:
        settings = self._settings()
        linger = LINGER_SECONDS if settings.embedded_stop == "when_unused" else None
        return await asyncio.to_thread(embedded.hold, settings.home, linger=linger)
