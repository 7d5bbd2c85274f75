"""A PostgreSQL server of one test, which the test may crash."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal

from tenuto.postgres import embedded_server, embedded_supervisor, migrator
from tenuto.postgres.database import Database
from tenuto.store import partitions
from tests.support.temp_dirs import new_temp_dir
from tests.support.waiting import eventually


class DisposableServer:
    """Embedded server in its own directory."""

    def __init__(self) -> None:
        self.home = new_temp_dir("tenuto-hurt-")
        self._settings = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB"}
        self._handle = embedded_server.acquire_server(self.home, linger_seconds=0.0, settings=self._settings)
        self.url = self._handle.url
        self.data_directory = self.home / "postgres"

    def close(self, *, keep: bool = False) -> None:
        self._handle.release()
        embedded_server.stop_server(self.home)
        os.close(
            embedded_supervisor.acquire_lock(self.home, "supervisor", embedded_supervisor.EXCLUSIVE)
        )  # waits until the supervisor has finished with the directory
        if keep:
            return
        for path in self.home.iterdir():
            if not path.is_mount():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not any(self.home.iterdir()):
            self.home.rmdir()

    async def migrate(self) -> None:
        database = await Database.open(self.url)
        await migrator.migrate(database)
        await partitions.ensure_partitions(database, database.clock.now())
        await database.close()

    async def crash(self) -> None:
        """Shut the server down immediately: every connection is closed, and the next start replays the WAL."""
        postmaster = int((self.data_directory / "postmaster.pid").read_text(encoding="ascii").split()[0])
        os.kill(postmaster, signal.SIGQUIT)

        async def is_stopped() -> bool:
            return not embedded_supervisor.is_server_running(self.home)

        await eventually(is_stopped, timeout=20, what="the server is stopped")

    async def start(self) -> None:
        starting = asyncio.ensure_future(
            asyncio.to_thread(embedded_server.acquire_server, self.home, linger_seconds=0.0, settings=self._settings)
        )
        try:
            await asyncio.shield(starting)
        finally:  # also if this is cancelled: a handle that is not released would keep the server running for good
            (await starting).release()  # the first handle keeps it running
