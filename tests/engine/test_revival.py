"""The embedded server dies under a running worker: it is started again, and nothing is lost (W6, F7)."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.store import embedded


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tnt-", dir="/tmp"))
    folder.chmod(0o755)  # as root the server runs under another account, which must be able to pass
    yield folder
    embedded.stop_now(folder)
    shutil.rmtree(folder, ignore_errors=True)


async def test_an_embedded_server_that_was_killed_comes_back_under_a_running_worker(home: Path) -> None:
    app = Tenuto(home=home)

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(slots=5):
        assert (await app.wait(await app.enqueue(double, 1), timeout=20))["output"] == 2
        os.kill(int((home / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        assert (await app.wait(await app.enqueue(double, 21), timeout=60))["output"] == 42
