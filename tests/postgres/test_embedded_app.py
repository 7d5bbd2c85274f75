"""An app without a configured database uses an embedded one, whose tasks survive its restart (issue 2)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tenuto import Context, RetryLater, Tenuto
from tenuto.postgres import embedded_server
from tests.support.temp_dirs import new_temp_dir


@pytest.fixture
def home() -> Iterator[Path]:
    directory = new_temp_dir("tnt-")
    yield directory
    embedded_server.stop_server(directory)
    shutil.rmtree(directory, ignore_errors=True)


def create_app(home: Path) -> Tenuto:
    app = Tenuto(home=home)

    @app.job
    async def bake(loaves: int, ctx: Context) -> str:
        if ctx.attempt == 1:
            raise RetryLater("oven is cold", after=0.01)
        return f"{loaves} loaves"

    return app


async def test_app_with_only_a_home_directory_starts_its_own_database(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENUTO_DATABASE", raising=False)
    async with create_app(home) as app:
        bake = app.jobs.get_job("bake")
        async with app.worker(slots=2, grace_seconds=0):
            record = await app.wait(await app.enqueue(bake, 3), timeout=30)
        assert (record.output, record.attempt) == ("3 loaves", 2)
        later = await app.enqueue(bake.using(delay=timedelta(hours=1)), 4)
    async with create_app(home) as again:
        assert (await again.task(later.id)).input == {"loaves": 4}
        assert [entry.state for entry in await again.attempts(record.task_id)] == ["failed", "completed"]
