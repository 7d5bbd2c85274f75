"""A PostgreSQL server of a test's own, that may be hurt."""

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


class Server:
    """The embedded server in a folder of its own."""

    def __init__(self) -> None:
        self.home = new_temp_dir("tenuto-hurt-")
        self._settings = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB"}
        self._hold = embedded_server.acquire_server(self.home, linger_seconds=0.0, settings=self._settings)
        self.url = self._hold.url
        self.data = self.home / "postgres"

    def close(self, *, keep: bool = False) -> None:
        self._hold.release()
        embedded_server.stop_server(self.home)
        os.close(
            embedded_supervisor.acquire_lock(self.home, "supervisor", embedded_supervisor.EXCLUSIVE)
        )  # its last look at the home must be over
        if keep:
            return
        for path in self.home.iterdir():
            if not path.is_mount():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not any(self.home.iterdir()):
            self.home.rmdir()

    async def make_schema(self) -> None:
        database = await Database.open(self.url)
        await migrator.migrate(database)
        await partitions.ensure_partitions(database, database.clock.now())
        await database.close()

    async def crash(self) -> None:
        """An immediate shutdown: every connection is cut, and the next start replays the log."""
        postmaster = int((self.data / "postmaster.pid").read_text(encoding="ascii").split()[0])
        os.kill(postmaster, signal.SIGQUIT)

        async def gone() -> bool:
            return not embedded_supervisor.is_server_running(self.home)

        await eventually(gone, timeout=20, what="the server is gone")

    async def start(self) -> None:
        again = await asyncio.to_thread(embedded_server.acquire_server, self.home, linger_seconds=0.0, settings=self._settings)
        again.release()  # the first hold still stands
