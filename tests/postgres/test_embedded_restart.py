"""The embedded server of an app: held once, and restarted without loss after its death (W6, F7)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.postgres import embedded_server
from tests.support.temp_dirs import new_temp_dir


@pytest.fixture
def home() -> Iterator[Path]:
    directory = new_temp_dir("tnt-")
    yield directory
    embedded_server.stop_server(directory)
    shutil.rmtree(directory, ignore_errors=True)


def kill_server(home: Path) -> None:
    os.kill(int((home / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)


def count_holds(home: Path) -> int:
    """Count how often this process count_holds the server of a home directory."""
    lock = (home / "postgres.holders").resolve()
    held = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this listing
            held += entry.readlink() == lock
    return held


async def test_killed_embedded_server_is_restarted_by_a_running_worker(home: Path) -> None:
    app = Tenuto(home=home)

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(slots=5):
        assert (await app.wait(await app.enqueue(double, 1), timeout=20)).output == 2
        kill_server(home)
        assert (await app.wait(await app.enqueue(double, 21), timeout=60)).output == 42


async def test_concurrent_connects_of_an_app_hold_the_server_once(home: Path) -> None:
    app = Tenuto(home=home)
    databases = await asyncio.gather(*(app.connect() for _ in range(3)))
    assert count_holds(home) == 1
    for database in databases:
        await database.close()
    await app.close()
    assert count_holds(home) == 0


async def test_cancelled_connect_releases_the_server(home: Path) -> None:
    app = Tenuto(home=home)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(app.connect(), timeout=0.05)
    await app.close()
    assert count_holds(home) == 0


async def test_closed_database_does_not_hold_the_server_again(home: Path) -> None:
    app = Tenuto(home=home)
    database = await app.open()
    restart = database.restart_server
    assert restart is not None
    kill_server(home)
    await asyncio.gather(app.close(), restart())  # the failure was noticed before the close
    if database.restart_server is not None:
        await database.restart_server()  # and again after it
    assert count_holds(home) == 0


def test_killed_embedded_server_is_restarted_for_an_app_on_several_loops(home: Path) -> None:
    app = Tenuto(home=home)
    killed = threading.Barrier(4)

    async def use() -> int:
        database = await app.connect()
        try:
            await asyncio.to_thread(killed.wait)  # all are connected
            await asyncio.to_thread(killed.wait)  # the server is dead
            answers = await asyncio.gather(*(database.fetch_value("SELECT 1") for _ in range(3)))
            return sum(answers)
        finally:
            await database.close()

    with ThreadPoolExecutor(3) as threads:
        users = [threads.submit(lambda: asyncio.run(use())) for _ in range(3)]
        killed.wait()
        kill_server(home)
        killed.wait()
        assert [user.result(timeout=60) for user in users] == [3, 3, 3]
    assert count_holds(home) == 1
    asyncio.run(app.close())
    assert count_holds(home) == 0
