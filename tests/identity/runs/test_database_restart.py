"""A database server that crashes and starts again in the middle of each kind of run (A53): the result is the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import Unavailable
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.postgres.migrator import Component
from tenuto_identity.extension import Identity
from tenuto_identity.runs.run_lifecycle import Run
from tests.identity.runs.test_crash_points import FIRST_NIGHT, SECOND_NIGHT, dump
from tests.identity.scenario_site import RunResult, Site, open_site
from tests.races.disposable_server import DisposableServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STEPS = (
    ("HR", "Delta Import", "import_page_written"),  # without a watermark: a full import
    ("HR", "Full Sync", "sync_page_written"),
    ("AD", "Export", "export_sent"),
    ("AD", "Full Import", "import_page_committed"),
    ("HR", "Full Import", "import_deletion_page_committed"),
    ("HR", "Delta Sync", "sync_page_committed"),
    ("AD", "Export", "export_claimed"),
    ("AD", "Export", "export_ending"),
    ("AD", "Delta Import", "import_ending"),
)
"""Runs, and the point at which the server crashes in each of them."""
SECOND = 4
"""Position of the first run with the second HR file."""


@pytest.fixture
def disposable() -> Iterator[DisposableServer]:
    server = DisposableServer()
    yield server
    server.close()


@pytest.fixture
async def fragile(disposable: DisposableServer, tmp_path: Path) -> AsyncIterator[Site]:
    """A site on its own server."""
    await disposable.migrate()
    database = await Database.open(disposable.url)
    await migrator.migrate(database, Component("identity", Identity().migrations()))
    await database.close()
    folder = tmp_path / "fragile"
    folder.mkdir()
    async with open_site(disposable.url, folder) as site:
        yield site


async def run_all(site: Site, crash_at: Any = None) -> list[RunResult]:
    """Run the steps of both nights; before each, ``crash_at`` gets the point at which the server crashes."""
    await site.apply(site.definitions(page_size=2))
    site.write_hr(*FIRST_NIGHT)
    done: list[RunResult] = []
    for position, (system, profile, point) in enumerate(STEPS):
        if position == SECOND:
            site.write_hr(*SECOND_NIGHT)
        if crash_at is not None:
            crash_at(point)
        execution = await site.fire(system, profile)

        async def finish(execution: Any = execution) -> RunResult | None:
            try:
                return await site.finish(execution)
            except Unavailable:
                return None

        done.append(await eventually(finish, timeout=90))
    return done


async def test_a53_runs_converge_although_the_database_server_crashes_in_each_of_them(
    site: Site, fragile: Site, disposable: DisposableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = [(each.state, each.changes) for each in await run_all(site)]
    expected = await dump(site)
    armed: list[str] = []
    crashed: list[str] = []
    starting: list[Any] = []

    def observe(point: str) -> None:
        if armed == [point]:
            armed.clear()
            crashed.append(point)
            # The server is down when this returns, and starts while the run goes on.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(asyncio.run, disposable.crash()).result(30)
            starting.append(starters.submit(asyncio.run, disposable.start()))

    with ThreadPoolExecutor(1) as starters:
        monkeypatch.setattr(Run, "observe", staticmethod(observe))
        results = await run_all(fragile, armed.append)
        for each in starting:
            each.result(30)
    assert crashed == [point for _, _, point in STEPS]
    assert [(each.state, each.changes) for each in results] == undisturbed
    assert await fragile.count("pending_exports", "state = 'executing'") == 0
    assert await fragile.count("runs", "state = 'running'") == 0
    found = await dump(fragile)
    for part, content in expected.items():
        assert found[part] == content, part
