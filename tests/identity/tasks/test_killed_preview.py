"""A worker that is killed during a preview: another one repeats it, and nothing is left behind. Previews that end
otherwise than by their worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenuto_identity.tasks.housekeeping import run_housekeeping
from tests.identity.scenario_site import ADA, ALAN, GRACE, open_site, run_until_killed


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", ["import_page_written", "sync_page_committed", "sync_ending"])
async def test_preview_whose_worker_is_killed_is_repeated_and_leaves_nothing(
    url: str, tmp_path: Path, point: str
) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions())
        operations = site.app.extensions.identity
        async with site.app.worker():
            await site.nightly()
        site.write_hr(ADA, GRACE, ALAN)
        profile = "Full Import" if point.startswith("import") else "Full Sync"
        objects = await operations.objects()
        id = await operations.preview(system="HR", profile=profile)
        await run_until_killed(url, tmp_path, point)
        assert (await operations.preview_record(id)).state == "running"
        async with site.app.worker(lease_seconds=1.5):
            done = await site.app.wait(id, 60)
        assert done.state == "completed", done
        record = await operations.preview_record(id)
        assert record.state == "completed"
        assert record.steps[0]["changes"] == ({"Deleted": 1} if profile == "Full Import" else {})
        assert await operations.objects() == objects
        assert await site.count("runs", "previewed") == 0
        database = await site.database()
        left = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'tenuto_identity_preview%'"
        assert await database.fetch_value(left) == 1  # the shared one


async def test_preview_that_is_cancelled_before_it_begins_has_failed(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions())
        operations, registry = site.app.extensions.identity, site.app.extension_registry
        cancelled = await operations.preview(system="HR", profile="Full Import")
        waiting = await operations.preview(system="HR", profile="Full Import")
        await site.app.cancel(cancelled)
        extension = registry.find("identity")
        assert extension is not None
        await run_housekeeping(registry.create_services(extension))
        states = {each.id: each.state for each in await operations.previews()}
        assert states == {cancelled: "failed", waiting: "queued"}
        assert "task ended" in (await operations.preview_record(cancelled)).problem


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_preview_that_an_erasure_deletes_while_it_runs_is_not_repeated(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions())
        operations = site.app.extensions.identity
        async with site.app.worker():
            await site.run("HR", "Full Import")
            await site.run("HR", "Full Sync")
        identity = (await operations.identities())[0].id
        id = await operations.preview(system="HR", profile="Full Sync")
        await run_until_killed(url, tmp_path, "sync_ending")
        await operations.forget(identity, reason="request")
        assert await operations.previews() == []
        async with site.app.worker(lease_seconds=1.5):
            done = await site.app.wait(id, 60)
        assert done.state == "failed"
        assert await site.count("previews") == 0
