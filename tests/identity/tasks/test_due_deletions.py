"""Due deletions of identities: held systems, several systems, and systems that were deleted since."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest

from tenuto_identity.tasks.housekeeping import run_housekeeping
from tests.identity.scenario_site import PEOPLE, Site
from tests.support.waiting import eventually

LEAVERS = [f"{n},F{n},L{n},p{n}@example.org,Staff,Clerk,,2020-01-01," for n in range(2000, 2012)]
STAFF = [f"{n},F{n},L{n},p{n}@example.org,Staff,Clerk,,2020-01-01," for n in range(3000, 3060)]


@pytest.fixture(autouse=True)
def _rare_housekeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tests run cycles of housekeeping, of five deletions each."""
    monkeypatch.setenv("TENUTO_IDENTITY_HOUSEKEEPING_SECONDS", "3600")
    monkeypatch.setenv("TENUTO_IDENTITY_DELETIONS_PER_CYCLE", "5")


async def housekeeping(site: Site) -> list[dict[str, object]]:
    """Run one cycle and wait for the tasks that it enqueues; return their inputs."""
    registry = site.app.extension_registry
    identity = registry.find("identity")
    assert identity is not None
    database = await site.database()
    query = (
        "SELECT id, input::text AS input, status FROM tenuto.activities WHERE kind = 'identity.delete_due' ORDER BY id"
    )
    before = {row["id"] for row in await database.fetch_all(query)}
    await run_housekeeping(registry.create_services(identity))
    for row in await database.fetch_all("SELECT id FROM tenuto.tasks WHERE kind = 'identity.delete_due'"):
        await site.app.wait(row["id"], timeout=30)
    new = [row for row in await database.fetch_all(query) if row["id"] not in before]
    assert {row["status"] for row in new} <= {"completed"}
    return [json.loads(row["input"]) for row in new]


async def schedule_deletions(site: Site) -> None:
    """Let HR schedule the deletion of twelve people, which are due."""
    await site.apply(site.definitions(grace=", grace: 30d"))
    site.write_hr(*PEOPLE, *STAFF, *LEAVERS)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    site.write_hr(*PEOPLE, *STAFF)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    assert await site.count("metaverse_objects", "delete_after IS NOT NULL") == 12
    database = await site.database()
    await database.write_all(
        "UPDATE tenuto_identity.metaverse_objects SET delete_after = now() - interval '1 day'"
        " WHERE delete_after IS NOT NULL"
    )


async def give_to(site: Site, system: str, count: int) -> None:
    """Let another system have scheduled the last of the deletions."""
    database = await site.database()
    await database.write_all(
        "UPDATE tenuto_identity.metaverse_objects SET delete_after = now() - interval '1 hour',"
        " deletion_initiator = jsonb_set(deletion_initiator, '{system}', to_jsonb($1::text))"
        " WHERE id IN (SELECT id FROM tenuto_identity.metaverse_objects WHERE delete_after IS NOT NULL"
        " ORDER BY id DESC LIMIT $2)",
        system,
        count,
    )


async def test_due_deletions_of_a_held_system_wait_while_others_are_made(site: Site) -> None:
    await schedule_deletions(site)
    site.write_hr(*PEOPLE, *STAFF[:30])
    assert (await site.run("HR", "Full Import")).state == "completed_with_error"
    assert await site.count("systems", "held IS NOT NULL") == 1
    assert await housekeeping(site) == [], "HR is on hold"
    await give_to(site, "LDAP", 2)
    assert [each["system"] for each in await housekeeping(site)] == ["LDAP"]
    assert await site.count("metaverse_objects", "delete_after IS NOT NULL") == 10
    assert await housekeeping(site) == []
    site.write_hr(*PEOPLE, *STAFF)
    assert (await site.run("HR", "Full Import")).state == "completed"
    for _ in range(2):
        assert [each["system"] for each in await housekeeping(site)] == ["HR"]
    assert await site.count("metaverse_objects", "delete_after IS NOT NULL") == 0


async def test_due_deletions_of_one_system_do_not_delay_those_of_another(site: Site) -> None:
    await schedule_deletions(site)
    await give_to(site, "LDAP", 2)
    found = {str(each["system"]): each["identities"] for each in await housekeeping(site)}
    assert {system: len(identities) for system, identities in found.items()} == {"HR": 3, "LDAP": 2}  # type: ignore[arg-type]


async def test_due_deletions_of_a_deleted_system_are_made_by_one_that_is_not_on_hold(site: Site) -> None:
    await schedule_deletions(site)
    await site.app.wait(await site.app.extensions.identity.delete_system("HR"), 60)
    database = await site.database()
    held = {"run": "01a1f56a-18ec-770b-9dc1-df62d803ce7c", "message": "emptied"}
    await database.write_all("UPDATE tenuto_identity.systems SET held = $1::jsonb WHERE name = 'AD'", json.dumps(held))
    assert [each["system"] for each in await housekeeping(site)] == ["LDAP"]
    await database.write_all("UPDATE tenuto_identity.systems SET held = $1::jsonb", json.dumps(held))
    assert await housekeeping(site) == [], "all systems are on hold"


async def test_due_deletions_are_made_when_no_system_is_left(site: Site) -> None:
    await schedule_deletions(site)
    for name in ("HR", "AD", "LDAP"):
        done = await site.app.wait(await site.app.extensions.identity.delete_system(name), 60)
        assert done.state == "completed", done
    assert await site.count("metaverse_objects", "delete_after <= now() AND display = 'F2000 L2000'") == 1
    database = await site.database()
    await database.write_all(
        "UPDATE tenuto_identity.metaverse_objects SET deletion_initiator = deletion_initiator || jsonb_build_object("
        "'type', 'user', 'id', 'tester', 'name', 'tester of deletions') WHERE delete_after IS NOT NULL"
    )
    gone = await database.fetch_value("SELECT id FROM tenuto_identity.metaverse_objects WHERE display = 'F2000 L2000'")
    left = []
    for _ in range(4):
        assert await housekeeping(site) == []
        left.append(await site.count("metaverse_objects"))
    assert left == [71, 66, 64, 64], "five in a cycle, until the twelve are deleted"
    (entry, *_) = await site.app.extensions.identity.history(gone)
    assert (entry.change, entry.diff["last"]) == ("Deleted", [["L2000"], []])
    run = await site.app.extensions.identity.run_record(entry.run_id)
    assert (run.profile, run.state, run.initiator_name) == ("Due Deletions", "completed", "tester of deletions")


async def test_deletion_that_is_cancelled_while_housekeeping_waits_is_not_made(site: Site, url: str) -> None:
    await schedule_deletions(site)
    for name in ("HR", "AD", "LDAP"):
        await site.app.wait(await site.app.extensions.identity.delete_system(name), 60)
    database = await site.database()
    other = await asyncpg.connect(url)
    cancelling = other.transaction()
    await cancelling.start()
    await other.execute(
        "UPDATE tenuto_identity.metaverse_objects SET delete_after = NULL WHERE display = 'F2000 L2000'"
    )
    cycle = asyncio.create_task(housekeeping(site))
    await eventually(
        lambda: database.fetch_value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )
    await cancelling.commit()
    await other.close()
    assert await cycle == []
    assert await site.count("metaverse_objects", "display = 'F2000 L2000'") == 1
    assert await site.count("metaverse_objects") == 72, "four of five are deleted"
