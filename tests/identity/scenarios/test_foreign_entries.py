"""Another program's object at the address of a create: it is neither changed nor deleted, in any order of events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from tenuto_identity.connectors.contract import WriteRequest, WriteResult
from tenuto_identity.connectors.memory import MemoryConnector
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, Site
from tests.identity.scenarios.test_export_scenarios import GRACE_ADDRESS, make_due, staged

ADA_ADDRESS = "cn=Ada Lovelace,ou=Research,ou=people,dc=ad,dc=test"
FOREIGN = {"cn": "Other", "mail": "other@example.org"}


def put_foreign(site: Site) -> None:
    site.ad.put("user", "foreign", FOREIGN, address=GRACE_ADDRESS)


async def claim_and_die(site: Site) -> None:
    """Leave the create of Grace as a worker does that is killed before it records the answer."""
    database = await site.database()
    async with database.connection() as connection:
        await connection.execute(
            "UPDATE tenuto_identity.pending_exports SET state = 'executing', run_id = gen_random_uuid()"
            " WHERE system_number = 2 AND object_id = (SELECT id FROM tenuto_identity.connector_objects"
            " WHERE system_number = 2 AND anchor IS NULL AND lower(address) = lower($1))",
            GRACE_ADDRESS,
        )


async def leave(site: Site) -> None:
    site.write_hr(ADA, ALAN.replace("Research,Fellow,1001", "Research,Fellow,"), EDSGER.replace(",1002,", ",,"))
    await staged(site)


async def assert_foreign_is_untouched(site: Site) -> None:
    """Alternate exports and imports, as nights do, and check the foreign object after them."""
    for profile in ("Export", "Full Import", "Export", "Delta Import", "Export"):
        await make_due(site)
        done = await site.run("AD", profile)
        assert "objects are in error" in (done.error or "objects are in error"), done
    assert site.ad.objects("user")["foreign"]["attributes"] == {name: [value] for name, value in FOREIGN.items()}
    assert await site.count("connector_objects", "anchor = 'foreign' AND metaverse_id IS NULL") == 1


@pytest.mark.parametrize("first", ["Export", "Full Import"])
async def test_leaver_whose_create_is_refused_while_it_executes_deletes_no_foreign_object(
    site: Site, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    put_foreign(site)
    await staged(site)
    is_sent, goes_on = threading.Event(), threading.Event()
    write = MemoryConnector.write

    def write_later(self: MemoryConnector, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        if self._settings.path.endswith("ad.json") and not is_sent.is_set():
            is_sent.set()
            assert goes_on.wait(60)
        return write(self, requests)

    monkeypatch.setattr(MemoryConnector, "write", write_later)
    running = asyncio.create_task(site.run("AD", "Export"))
    assert await asyncio.to_thread(is_sent.wait, 20)
    await leave(site)
    goes_on.set()
    assert (await running).errors == ["exists"]
    assert await site.count("pending_exports", "kind = 'delete'") == 0
    assert await site.count("connector_objects", "system_number = 2 AND anchor IS NULL AND state = 'provisioning'") == 0
    await site.run("AD", first)
    await assert_foreign_is_untouched(site)
    assert await site.count("pending_exports") == await site.count("pending_exports", "system_number = 3")


@pytest.mark.parametrize("first", ["Export", "Full Import"])
@pytest.mark.parametrize("is_imported_before", [False, True])
async def test_leaver_whose_worker_was_killed_deletes_no_foreign_object(
    site: Site, is_imported_before: bool, first: str
) -> None:
    put_foreign(site)
    await staged(site)
    await claim_and_die(site)
    await leave(site)
    if not is_imported_before:
        assert "exists" in (await site.run("AD", "Export")).errors
        await site.run("AD", first)
        await assert_foreign_is_untouched(site)
        assert await site.count("pending_exports", "kind = 'delete' AND error LIKE 'foreign_object:%'") == 1
        return
    await site.run("AD", "Full Import")  # it cannot know that the entry at the address is not ours
    await site.run("AD", "Export")
    for profile in ("Export", "Full Import", "Export"):
        await make_due(site)
        await site.run("AD", profile)
    assert site.ad.objects("user")["foreign"]["attributes"]["cn"] == ["Other"]


async def test_create_that_a_killed_worker_repeats_after_the_foreign_object_is_gone_is_imported_as_ours(
    site: Site,
) -> None:
    put_foreign(site)
    await staged(site)
    assert (await site.run("AD", "Export")).errors == ["exists"]
    await site.run("AD", "Full Import")
    site.ad.delete("user", "foreign")
    values = {"cn": "Grace Hopper", "sn": "Hopper", "mail": "grace@example.org", "title": "Engineer"}
    site.ad.put(
        "user", "ours", {**values, "departmentNumber": "Engineering", "manager": ADA_ADDRESS}, address=GRACE_ADDRESS
    )
    await claim_and_die(site)
    await site.run("AD", "Full Import")
    assert await site.count("connector_objects", "anchor = 'ours' AND metaverse_id IS NOT NULL") == 1
    for _ in range(2):
        await make_due(site)
        assert (await site.run("AD", "Export")).state == "completed"
        assert (await site.run("AD", "Full Import")).state == "completed"
    assert await site.count("pending_exports", "system_number = 2") == 0
    assert await site.count("connector_objects", "anchor = 'ours'") == 1


@pytest.mark.parametrize("event", ["retry", "new value", "killed"])
async def test_import_takes_no_foreign_object_after_its_refusal_is_forgotten(site: Site, event: str) -> None:
    put_foreign(site)
    await staged(site)
    assert (await site.run("AD", "Export")).errors == ["exists"]
    if event == "retry":
        await site.app.extensions.identity.retry("AD")
    elif event == "new value":
        site.write_hr(ADA, GRACE.replace("Engineer,", "Admiral,"), ALAN, EDSGER)
        await staged(site)
    else:
        await claim_and_die(site)
    await site.run("AD", "Full Import")
    assert await site.count("connector_objects", "anchor = 'foreign' AND metaverse_id IS NULL") == 1
    await assert_foreign_is_untouched(site)


async def test_created_object_that_was_imported_as_another_one_takes_its_place(site: Site) -> None:
    await staged(site)
    await site.run("AD", "Export")
    database = await site.database()
    async with database.connection() as connection:  # as if an import had not recognised it
        await connection.execute(
            "UPDATE tenuto_identity.connector_objects SET anchor = NULL"
            " WHERE system_number = 2 AND lower(address) = $1",
            GRACE_ADDRESS.lower(),
        )
        await connection.execute(
            "UPDATE tenuto_identity.pending_exports SET kind = 'create', phase = 0, state = 'pending',"
            " error = 'exists: unknown', foreign_anchor = '',"
            " changes = replace(changes::text, 'exported', 'pending')::jsonb"
            " WHERE object_id = (SELECT id FROM tenuto_identity.connector_objects"
            " WHERE system_number = 2 AND lower(address) = $1)",
            GRACE_ADDRESS.lower(),
        )
    await site.run("AD", "Full Import")
    assert await site.count("connector_objects", "system_number = 2") == 5
    done = await site.run("AD", "Export")
    assert (done.state, done.errors) == ("completed", [])
    assert await site.count("connector_objects", "system_number = 2") == 4
    assert (await site.run("AD", "Full Import")).state == "completed"
    assert await site.count("pending_exports", "system_number = 2") == 0
