"""Runs whose task has ended before them: the next run, housekeeping and a repeated task end them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import Conflict
from tenuto_identity.tasks.housekeeping import run_housekeeping
from tests.identity.scenario_site import ADA, Site, open_site, run_until_killed
from tests.support.errors import raises_code
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


async def run_housekeeping_of(site: Site) -> None:
    registry = site.app.extension_registry
    identity = registry.find("identity")
    assert identity is not None
    await run_housekeeping(registry.create_services(identity))


async def states(site: Site) -> list[str]:
    database = await site.database()
    return [row["state"] for row in await database.fetch_all("SELECT state FROM tenuto_identity.runs ORDER BY id")]


async def kill_and_cancel(site: Site, url: str, system: str, profile: str, point: str) -> Any:
    """Kill the worker of a run and cancel the run before the loss is noticed; return its execution."""
    execution = await site.fire(system, profile)
    await run_until_killed(url, site.folder, point)
    await site.app.executions.cancel(execution)
    return execution


async def test_run_that_was_killed_and_cancelled_does_not_block_the_next_one(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions(page_size=2))
        execution = await kill_and_cancel(site, url, "HR", "Full Import", "import_page_committed")
        async with site.app.worker(lease_seconds=1.5):
            assert (await site.finish(execution)).state == "cancelled"
            assert (await site.run("HR", "Full Import")).state == "completed"
        assert await states(site) == ["lost", "completed"]
        assert await site.count("runs", "problem LIKE 'the task % ended before the run did'") == 1


async def test_sync_that_was_killed_and_cancelled_does_not_block_syncs_of_other_systems(
    url: str, tmp_path: Path
) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions(page_size=2))
        async with site.app.worker():
            await site.run("HR", "Full Import")
        execution = await kill_and_cancel(site, url, "HR", "Full Sync", "sync_page_committed")
        async with site.app.worker(lease_seconds=1.5):
            await site.finish(execution)
            assert (await site.run("AD", "Full Sync")).state == "completed"
            assert (await site.run("HR", "Full Sync")).state == "completed"
        assert await states(site) == ["completed", "lost", "completed", "completed"]
        assert await site.count("metaverse_objects") == 4


async def test_run_whose_worker_was_lost_three_times_does_not_block_the_next_one(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions(page_size=2))
        execution = await site.fire("HR", "Full Import")
        for _ in range(3):
            await run_until_killed(url, tmp_path, "import_page_committed")
        async with site.app.worker(lease_seconds=1.5):
            failed = await site.finish(execution)
            assert (failed.state, "SetAside" in str(failed.error)) == ("failed", True)
            assert (await site.run("HR", "Full Import")).state == "completed"
        assert await states(site) == ["lost", "lost", "lost", "completed"]


async def test_housekeeping_ends_runs_of_ended_tasks_and_the_doctor_names_them(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions(page_size=2))
        identity = site.app.extensions.identity
        execution = await kill_and_cancel(site, url, "AD", "Full Import", "run_begun")
        with raises_code("identity.system.run_open", Conflict):
            await identity.delete_system("AD")
        await run_housekeeping_of(site)
        assert await states(site) == ["running"], "its task has not ended"
        found = {finding.name: finding for finding in await site.app.doctor()}
        assert found["identity_runs"].details == []
        async with site.app.worker(lease_seconds=1.5):
            await site.finish(execution)
        database = await site.database()
        await database.write_all("UPDATE tenuto_identity.runs SET state = 'running', ended_at = NULL")
        found = {finding.name: finding for finding in await site.app.doctor()}
        assert ["Full Import of AD" in each for each in found["identity_runs"].details] == [True]
        await run_housekeeping_of(site)
        assert await states(site) == ["lost"]
        found = {finding.name: finding for finding in await site.app.doctor()}
        assert found["identity_runs"].details == []


async def test_system_whose_open_run_has_no_task_any_more_is_deleted(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions(page_size=2))
        execution = await kill_and_cancel(site, url, "AD", "Full Import", "run_begun")
        async with site.app.worker(lease_seconds=1.5):
            await site.finish(execution)
            task = await site.app.extensions.identity.delete_system("AD")
            assert (await site.app.wait(task, 60)).state == "completed"
        assert [each.name for each in await site.app.extensions.identity.systems()] == ["HR", "LDAP"]


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("export_claimed", 1),
        ("export_sent", 1),
        ("export_ending", 1),
        ("import_page_written", 2),
        ("import_page_committed", 2),
    ],
    ids=["claimed", "sent", "recorded", "confirming", "confirmed"],
)
async def test_sync_of_one_object_whose_worker_is_killed_is_repeated_to_its_end(
    url: str, tmp_path: Path, point: str, count: int
) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions())
        site.write_hr(ADA)
        task = await site.app.extensions.identity.sync_one("HR", "1001", export=True)
        await run_until_killed(url, tmp_path, point, count)
        async with site.app.worker(lease_seconds=1.5):
            done = await site.app.wait(task, 60)
            assert done.state == "completed", done
            assert await site.count("runs", "state = 'running'") == 0
            assert await site.count("pending_exports") == 0, "all exports are confirmed"
            assert len(site.ad.objects("user")) == len(site.ldap.objects("account")) == 1
            assert (await site.run("AD", "Full Import")).items == []


async def test_worker_ends_abandoned_runs_without_a_further_run(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions(page_size=2))
        execution = await kill_and_cancel(site, url, "HR", "Full Import", "import_page_committed")
        async with site.app.worker(lease_seconds=1.5):
            await site.finish(execution)
        async with site.app.worker():  # its first cycle of housekeeping finds the run

            async def has_ended() -> bool:
                return await states(site) == ["lost"]

            await eventually(has_ended)


@pytest.fixture
def rare_housekeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping runs when a worker starts, and not again during the test."""
    monkeypatch.setenv("TENUTO_IDENTITY_HOUSEKEEPING_SECONDS", "3600")


@pytest.mark.usefixtures("rare_housekeeping")
async def test_run_begins_although_an_open_run_has_no_task_any_more(site: Site) -> None:
    await site.apply(site.definitions())
    assert (await site.run("HR", "Full Import")).state == "completed"  # the first cycle of housekeeping is over
    task = await site.open_run(1, "Export", "export")
    assert await site.app.one_shots.cancel(task) == "terminated"
    assert (await site.run("HR", "Full Import")).state == "completed"
    assert sorted(await states(site)) == ["completed", "completed", "lost"]
