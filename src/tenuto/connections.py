"""How an app comes to its database: which one, when it is opened, on which loop it lives, who lets it go.

Without an address it is the embedded server, held once for as long as anything here is open and started again should it
die. While a service runs, the database lives on the service's loop, and jobs and portals reach it from theirs. An app
may be used from several loops, each in a thread of its own: what must happen once is guarded by locks of threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from tenuto.errors import StoreError
from tenuto.jobs.process_pool import refuse_while_a_child_starts
from tenuto.postgres import embedded_server, migrator
from tenuto.postgres.database import Database, across
from tenuto.settings import Settings
from tenuto.store import partitions
from tenuto.store.access import audit_recorder

LINGER_SECONDS = 5.0


class Connections:
    """The connections of one app."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._database: Database | None = None
        self._opening = threading.Lock()
        self._hold: embedded_server.Hold | None = None
        self._holding = threading.Lock()
        """Taken in threads only, never on a loop: starting a server takes its time."""
        self._home: asyncio.AbstractEventLoop | None = None

    def are_at_home_here(self) -> None:
        """A service begins on this loop: from now on the database lives here."""
        self._home = asyncio.get_running_loop()

    def _is_away_from_home(self) -> bool:
        home = self._home
        return home is not None and home.is_running() and home is not asyncio.get_running_loop()

    @property
    def are_open(self) -> bool:
        """Whether the database all verbs share has been opened, and not been closed since."""
        return self._database is not None

    async def open(self) -> Database:
        """The database all verbs share, opened when first asked for."""
        if self._database is not None:
            return self._database
        if self._home is not None and self._is_away_from_home():
            return await across(self._home, self.open())
        async with self._one_at_a_time():
            if self._database is None:
                with audit_recorder.off_record():  # whoever asks first is not the author of what opening brings along
                    self._database = await self._opened()
            return self._database

    async def _opened(self) -> Database:
        database = await self.connect()
        try:
            await partitions.ensure(database, database.clock.now())
        except BaseException:
            await database.close()
            raise
        return database

    async def connect(self, *, for_worker: bool = False, check_schema: bool = True) -> Database:
        """A database of the caller's own."""
        refuse_while_a_child_starts()
        settings = self._settings()
        url = settings.database
        if url is None:
            url = await asyncio.to_thread(self._held)
        database = await Database.open(
            url,
            max_connections=20 if for_worker else 10,
            generic_plans=for_worker,
            behind_pooler=settings.behind_pooler,
            wait=settings.connect_seconds,
        )
        database.recorder = audit_recorder
        if settings.database is None:
            database.revive = self._start_embedded_again
        if check_schema:
            try:
                if settings.database is None:
                    await migrator.migrate(database)
                await migrator.check(database)
            except BaseException:
                await database.close()
                raise
        return database

    def are_ours_to_close(self) -> bool:
        """Whether this is the loop they live on."""
        return not self._is_away_from_home()

    async def close(self) -> None:
        """Let go, if it is ours to let go."""
        if not self.are_ours_to_close():
            return
        async with self._one_at_a_time():
            database, self._database = self._database, None
            try:
                if database is not None:
                    database.revive = None  # whoever still asks it must not take hold anew of what is let go here
                    await database.close()
            finally:
                await asyncio.to_thread(self._let_go)

    @asynccontextmanager
    async def _one_at_a_time(self) -> AsyncIterator[None]:
        """Opening and closing, from whichever loop: a lock of one loop would not keep out another's."""
        while not self._opening.acquire(blocking=False):  # noqa: ASYNC110 (no event reaches from one loop to another)
            await asyncio.sleep(0.01)
        try:
            yield
        finally:
            self._opening.release()

    # --- the embedded server ----------------------------------------------------------------------------------------

    def _held(self) -> str:
        """The address of the embedded server. Whoever comes first takes hold of it for all."""
        with self._holding:
            if self._hold is None:
                self._hold = self._take_hold()
            return self._hold.url

    async def _start_embedded_again(self) -> None:
        """Our server has died under us: whoever notices first starts it, the others find it running."""
        with suppress(StoreError):
            await asyncio.to_thread(self._hold_anew, self._hold)

    def _hold_anew(self, before: embedded_server.Hold | None) -> None:
        with self._holding:
            if self._hold is before:
                self._hold = self._take_hold()
                if before is not None:
                    before.release()

    def _let_go(self) -> None:
        with self._holding:
            held, self._hold = self._hold, None
            if held is not None:
                held.release()

    def _take_hold(self) -> embedded_server.Hold:
        settings = self._settings()
        linger = LINGER_SECONDS if settings.embedded_stop == "when_unused" else None
        return embedded_server.hold(settings.home, linger=linger)
