"""Guards of runs whose worker is killed: what an attempt has done counts for the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.identity.runs.test_safety import hold_of, people
from tests.identity.scenario_site import RunResult, Site, open_site, run_until_killed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


async def run_and_kill(site: Site, url: str, run: tuple[str, str], point: str, count: int) -> RunResult:
    """Kill the worker of a run at a crash point; let another worker repeat the run."""
    execution = await site.fire(*run)
    await run_until_killed(url, site.folder, point, count)
    async with site.app.worker(lease_seconds=1.5):
        return await site.finish(execution)


async def test_cleared_values_of_a_killed_attempt_count_for_the_next_one(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions(page_size=10))
        site.write_hr(*people(40))
        async with site.app.worker():
            await site.run("HR", "Full Import")
        site.write_hr(*(row.replace("Fellow", "") for row in people(30)), *people(40, first=30))
        repeated = await run_and_kill(site, url, ("HR", "Full Import"), "import_page_committed", 3)
        assert (repeated.state, repeated.items) == ("completed_with_error", [])
        assert "cleared person.title: 30 of 40" in (await hold_of(site) or "")


@pytest.mark.parametrize("page", [10, 12])
async def test_deletions_of_a_killed_sync_count_for_the_next_attempt(url: str, tmp_path: Path, page: int) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        text = site.definitions(page_size=5)
        await site.apply(text.replace("    run_profiles:", "    guards: {deletions: 100%}\n    run_profiles:", 1))
        site.write_hr(*people(60))
        async with site.app.worker():
            for profile in ("Full Import", "Full Sync"):
                await site.run("HR", profile)
            site.write_hr(*people(40))
            await site.run("HR", "Full Import")
        # The 20 who left are in the last four pages; 12 of 60 may be deleted at once.
        repeated = await run_and_kill(site, url, ("HR", "Full Sync"), "sync_page_committed", page)
        assert repeated.state == "completed_with_error"
        assert "8 metaverse objects would be deleted beyond the limit" in (repeated.error or "")
        assert await site.count("metaverse_objects") == 60 - 12
        assert await site.count("metaverse_objects", "delete_after IS NOT NULL") == 8
