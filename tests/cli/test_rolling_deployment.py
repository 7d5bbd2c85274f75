"""Rolling deployments: old and new workers side by side, as real processes under load. No task fails."""

from __future__ import annotations

import signal

import pytest

from tenuto import Tenuto
from tests.cli.conftest import Shell
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

OLD = """
from tenuto import Tenuto
app = Tenuto()

@app.job(max_attempts=1)
async def mail(n: int) -> int:
    return n

@app.job(max_attempts=1)
async def legacy(n: int) -> int:
    return n
"""
NEW = """
from tenuto import Tenuto
app = Tenuto()

@app.job(max_attempts=1)
async def mail(n: int) -> int:
    return n

@app.job(max_attempts=1)
async def fresh(n: int) -> int:
    return n
"""
COUNT = 200


def start_worker(shell: Shell, release: str, name: str) -> None:
    shell.start_service(
        "worker", "--app", f"{release}:app", "--name", name, "--slots", "5", "--lease", "5"
    ).wait_for_line("worker started")


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
async def test_workers_of_two_releases_fail_no_task(shell: Shell, url: str, order: tuple[str, str]) -> None:
    """The jobs of both releases, one of which was renamed, end although each worker knows only some of them."""
    (shell.folder / "old.py").write_text(OLD)
    (shell.folder / "new.py").write_text(NEW)
    async with Tenuto(url, home=shell.folder / "caller") as app:

        @app.job(max_attempts=1)
        async def mail(n: int) -> int:
            return n

        @app.job(max_attempts=1)
        async def legacy(n: int) -> int:
            return n

        @app.job(max_attempts=1)
        async def fresh(n: int) -> int:
            return n

        start_worker(shell, order[0], "first")
        for job in (fresh, legacy, mail):
            await app.enqueue_many(job, range(COUNT))
        start_worker(shell, order[1], "second")
        for job in (mail, fresh, legacy):
            await app.enqueue_many(job, range(COUNT))
        first = shell.services[0]
        assert first.stop(signal.SIGTERM) == 0  # replaced while tasks of both releases are open
        start_worker(shell, order[0], "third")

        async def all_ended() -> bool:
            return not await app.tasks(limit=1)

        await eventually(all_ended, timeout=60)
        database = await app.open()
        rows = await database.fetch_all("SELECT status, count(*) FROM tenuto.activities WHERE final GROUP BY status")
        assert [tuple(row) for row in rows] == [("completed", 6 * COUNT)]
        assert not await app.activities(state="failed")
