"""The embedded server: held once by an app, started again should it die, with nothing lost (W6, F7)."""

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
from tests.support.temp_dirs import new_folder


@pytest.fixture
def home() -> Iterator[Path]:
    folder = new_folder("tnt-")
    yield folder
    embedded_server.stop_now(folder)
    shutil.rmtree(folder, ignore_errors=True)


def kill_the_server(home: Path) -> None:
    os.kill(int((home / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)


def holds(home: Path) -> int:
    """How often this process holds the server of a home."""
    lock = (home / "postgres.holders").resolve()
    held = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one by which we look
            held += entry.readlink() == lock
    return held


async def test_an_embedded_server_that_was_killed_comes_back_under_a_running_worker(home: Path) -> None:
    app = Tenuto(home=home)

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(slots=5):
        assert (await app.wait(await app.enqueue(double, 1), timeout=20))["output"] == 2
        kill_the_server(home)
        assert (await app.wait(await app.enqueue(double, 21), timeout=60))["output"] == 42


async def test_an_app_that_is_connected_several_times_at_once_holds_its_server_once(home: Path) -> None:
    app = Tenuto(home=home)
    databases = await asyncio.gather(*(app.connect() for _ in range(3)))
    assert holds(home) == 1
    for database in databases:
        await database.close()
    await app.close()
    assert holds(home) == 0


async def test_a_connect_that_is_given_up_leaves_no_hold_behind(home: Path) -> None:
    app = Tenuto(home=home)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(app.connect(), timeout=0.05)
    await app.close()
    assert holds(home) == 0


async def test_whoever_still_asks_a_database_that_was_let_go_takes_no_hold_of_its_server(home: Path) -> None:
    app = Tenuto(home=home)
    database = await app.open()
    revive = database.revive
    assert revive is not None
    kill_the_server(home)
    await asyncio.gather(app.close(), revive())  # it was noticed just before
    if database.revive is not None:
        await database.revive()  # and it is noticed again only now
    assert holds(home) == 0


def test_a_server_that_was_killed_comes_back_for_an_app_that_is_used_from_several_loops(home: Path) -> None:
    app = Tenuto(home=home)
    killed = threading.Barrier(4)

    async def use() -> int:
        database = await app.connect()
        try:
            await asyncio.to_thread(killed.wait)  # all are there
            await asyncio.to_thread(killed.wait)  # and now it is dead
            answers = await asyncio.gather(*(database.value("SELECT 1") for _ in range(3)))
            return sum(answers)
        finally:
            await database.close()

    with ThreadPoolExecutor(3) as threads:
        users = [threads.submit(lambda: asyncio.run(use())) for _ in range(3)]
        killed.wait()
        kill_the_server(home)
        killed.wait()
        assert [user.result(timeout=60) for user in users] == [3, 3, 3]
    assert holds(home) == 1
    asyncio.run(app.close())
    assert holds(home) == 0
