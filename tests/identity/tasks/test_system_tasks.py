"""Tasks of systems: clear, delete, disable, retry; housekeeping in cycles; retention of runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tenuto import Actor
from tenuto.errors import Conflict
from tenuto.ids import smallest_id_at
from tenuto.store import partitions
from tenuto_identity.store import runs
from tenuto_identity.tasks import system_tasks
from tenuto_identity.tasks.housekeeping import run_housekeeping
from tests.identity.scenario_site import PEOPLE, Site, open_site, run_until_killed
from tests.support.errors import raises_code


async def housekeeping(site: Site) -> None:
    """Run one cycle of housekeeping and the tasks that it enqueues."""
    registry = site.app.extension_registry
    identity = registry.find("identity")
    assert identity is not None
    await run_housekeeping(registry.create_services(identity))
    database = await site.database()
    for row in await database.fetch_all("SELECT id FROM tenuto.tasks WHERE kind = 'identity.delete_due'"):
        await site.app.wait(row["id"], timeout=30)


async def test_cleared_system_joins_again_without_writes(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    sent = len(site.ad.requests())
    ana = site.app.acting_as(Actor.user("ana")).extensions.identity
    done = await site.app.wait(await ana.clear("AD", reason="wrong anchors"), timeout=30)
    assert done.state == "completed"
    assert await site.count("connector_objects", "system_number = 2") == 0
    assert await site.count("metaverse_objects") == 4
    await site.run("AD", "Full Import")
    sync = await site.run("AD", "Full Sync")
    assert (sync.state, sync.changes) == ("completed", ["Joined"] * 4)
    assert await site.count("pending_exports") == 0
    assert len(site.ad.requests()) == sent
    assert "identity.system.clear" in [entry.action for entry in await site.app.audit.list()]


async def test_deleted_source_schedules_its_orphans_and_keeps_history(site: Site) -> None:
    await site.apply(site.definitions(grace=", grace: 30d"))
    await site.nightly()
    done = await site.app.wait(await site.app.extensions.identity.delete_system("HR", reason="replaced"), timeout=30)
    assert done.state == "completed"
    assert [each.name for each in await site.app.extensions.identity.systems()] == ["AD", "LDAP"]
    assert await site.count("metaverse_objects", "delete_after IS NOT NULL") == 4
    assert await site.count("sync_rules") == 2
    assert await site.count("definition_versions", "kind = 'system' AND name = 'HR' AND definition IS NULL") == 1
    assert await site.count("items", "change = 'ScheduledForDeletion'") == 4


async def test_failed_deletion_makes_the_system_active_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.apply(site.definitions())
    await site.nightly()

    async def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(system_tasks, "_clear", fail)
    failed = await site.app.wait(await site.app.extensions.identity.delete_system("AD"), timeout=30)
    assert failed.state == "failed"
    (ad,) = [each for each in await site.app.extensions.identity.systems() if each.name == "AD"]
    assert ad.state == "active"
    monkeypatch.undo()
    again = await site.app.wait(await site.app.extensions.identity.delete_system("AD"), timeout=30)
    assert again.state == "completed"


async def test_interrupted_deletion_is_reset_by_housekeeping(site: Site) -> None:
    await site.apply(site.definitions())
    database = await site.database()
    await database.write_all("UPDATE tenuto_identity.systems SET state = 'deleting' WHERE name = 'AD'")
    assert (await site.run("AD", "Full Import")).state == "failed"
    await housekeeping(site)
    assert (await site.run("AD", "Full Import")).state == "completed"


@pytest.mark.slow
async def test_deletion_whose_worker_is_killed_half_way_is_repeated(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions())
        async with site.app.worker():
            await site.run("HR", "Full Import")
            await site.run("HR", "Full Sync")
        task = await site.app.extensions.identity.delete_system("HR", reason="replaced")
        await run_until_killed(url, tmp_path, "clear_page_committed")
        assert await site.count("connector_objects", "system_number = 1") == 0
        (hr,) = [each for each in await site.app.extensions.identity.systems() if each.name == "HR"]
        assert hr.state == "deleting"
        async with site.app.worker(lease_seconds=1.5):
            assert (await site.app.wait(task, timeout=60)).state == "completed"
        assert [each.name for each in await site.app.extensions.identity.systems()] == ["AD", "LDAP"]
        assert await site.count("definition_versions", "kind = 'system' AND name = 'HR'") == 2


async def test_system_with_an_open_run_is_not_deleted(site: Site) -> None:
    await site.apply(site.definitions())
    await site.open_run(2, "Export", "export")
    with raises_code("identity.system.run_open", Conflict):
        await site.app.extensions.identity.delete_system("AD")


async def test_runs_of_a_disabled_system_fail(site: Site) -> None:
    await site.apply(site.definitions())
    identity = site.app.acting_as(Actor.user("ana")).extensions.identity
    assert await identity.set_enabled("AD", enabled=False)
    assert not await identity.set_enabled("AD", enabled=False)
    assert (await site.run("AD", "Full Import")).state == "failed"
    assert await identity.set_enabled("AD", enabled=True)
    assert (await site.run("AD", "Full Import")).state == "completed"


async def test_refused_export_fails_after_five_attempts_and_is_retried_on_request(site: Site) -> None:
    await site.apply(site.definitions())
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    site.ad.behave(refuse={"cn=Ada Lovelace,ou=Research,ou=people,dc=ad,dc=test": "schema violation"})
    database = await site.database()
    for attempt in range(1, 6):
        run = await site.run("AD", "Export")
        assert run.errors == ["refused"], attempt
        await database.write_all("UPDATE tenuto_identity.pending_exports SET next_attempt_at = NULL")
    assert await site.count("pending_exports", "state = 'failed' AND system_number = 2") == 1
    assert (await site.run("AD", "Export")).items == []
    site.ad.behave(refuse=None)
    identity = site.app.acting_as(Actor.user("ana")).extensions.identity
    assert await identity.retry("AD") == 1
    assert (await site.run("AD", "Export")).changes[0] == "Exported"
    (entry,) = [each for each in await site.app.audit.list() if each.action == "identity.exports.retry"]
    assert entry.after == {"retried": 1}


async def test_housekeeping_deletes_fifty_identities_a_cycle(site: Site) -> None:
    text = site.definitions(grace=", grace: 30d").replace(
        "    run_profiles:", "    guards: {deletions: 100%, emptied: 100%}\n    run_profiles:", 1
    )
    await site.apply(text)
    rows = [f"{1000 + n},F{n},L{n},p{n}@example.org,Research,Fellow,,2020-01-01," for n in range(120)]
    site.write_hr(*rows, *PEOPLE)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    site.write_hr(*PEOPLE)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    database = await site.database()
    await database.write_all(
        "UPDATE tenuto_identity.metaverse_objects SET delete_after = now() WHERE delete_after > now()"
    )
    left = []
    for _ in range(4):
        await housekeeping(site)
        left.append(await site.count("metaverse_objects", "delete_after IS NOT NULL"))
    assert left == [66, 16, 0, 0]


async def test_retention_deletes_ended_runs_only(site: Site) -> None:
    await site.apply(site.definitions())
    await site.run("HR", "Full Import")
    database = await site.database()
    now = database.clock.now()
    assert await runs.delete_ended_runs(database, now - timedelta(days=90), 100) == 0
    await database.write_all("UPDATE tenuto_identity.runs SET ended_at = ended_at - interval '100 days'")
    await site.run("AD", "Full Import")
    assert await runs.delete_ended_runs(database, now - timedelta(days=90), 100) == 1
    assert await site.count("runs") == 1


async def test_a61_retention_drops_months_of_items_and_keeps_current_objects(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    database = await site.database()
    now = database.clock.now()
    old = now - timedelta(days=130)
    recent = {name: await site.count(name) for name in ("items", "changes")}
    tables = [each for each in site.app.extension_registry.partitioned_tables() if each.table in recent]
    for table in tables:
        await partitions.ensure_partitions_of_table(database, table, old)
    old_run = smallest_id_at(old)
    await database.write_all(
        "INSERT INTO tenuto_identity.items (run_id, number, change) VALUES ($1, 1, 'Added')", old_run
    )
    await database.write_all(
        "INSERT INTO tenuto_identity.changes (run_id, item_number, subject, subject_id, diff)"
        " VALUES ($1, 1, 'object', 1, '{}')",
        old_run,
    )
    for table in tables:
        dropped = await partitions.drop_old_partitions_of_table(database, table, now - timedelta(days=90))
        assert f"{table.table}_{old:%Y_%m}" in dropped
    assert {name: await site.count(name) for name in recent} == recent
    assert await site.count("connector_objects") == 12
    assert await site.count("metaverse_objects") == 4
