"""Synchronisation of one object now: only that object and its identity are read, synchronised, exported, confirmed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, Site


async def sync_one(site: Site, anchor: str, *, export: bool = False) -> Any:
    id = await site.app.extensions.identity.sync_one("HR", anchor, export=export)
    return await site.app.wait(id, 60)


async def test_one_joiner_is_created_and_confirmed_while_other_rows_wait(site: Site) -> None:
    await site.apply(site.definitions())
    done = await sync_one(site, "1001", export=True)
    assert done.state == "completed", done
    assert [each["attributes"]["cn"] for each in site.ad.objects("user").values()] == [["Ada Lovelace"]]
    assert len(site.ldap.objects("account")) == 1
    assert await site.count("pending_exports") == 0
    assert await site.count("connector_objects", "system_number = 1") == 1
    profiles = [each.profile for each in await site.app.extensions.identity.runs()]
    assert sorted(profiles) == sorted(["Import One", "Sync One", *["Export One"] * 2, *["Import One"] * 2])
    assert await site.count("watermarks") == 0


async def test_one_mover_is_sent_and_nothing_else(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    site.write_hr(ADA.replace("Director", "Countess"), GRACE.replace("Engineer,", "Admiral,"), ALAN, EDSGER)
    sent = len(site.ad.requests())
    assert (await sync_one(site, "1002")).state == "completed"
    assert len(site.ad.requests()) == sent  # without export nothing is sent
    assert await site.count("pending_exports") == 2
    assert (await sync_one(site, "1002", export=True)).state == "completed"
    (request,) = site.ad.requests()[sent:]
    assert request["changes"] == [["title", "set", ["Admiral"]]]
    assert await site.count("pending_exports") == 0
    night = await site.nightly()
    assert night["HR Full Import"].changes == ["Updated"]  # Ada's row was not read before


async def test_one_leaver_is_deleted_in_all_targets(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    site.write_hr(ADA, GRACE, ALAN)
    assert (await sync_one(site, "1004", export=True)).state == "completed"
    assert len(site.ad.objects("user")) == 3
    assert len(site.ldap.objects("account")) == 3
    assert await site.count("metaverse_objects") == 3
    assert await site.count("pending_exports") == 0
    assert await site.count("connector_objects") == 9
    night = await site.nightly()
    assert [run.items for run in night.values()] == [[]] * 6


async def test_unknown_anchor_fails_and_changes_nothing(site: Site) -> None:
    await site.apply(site.definitions())
    done = await sync_one(site, "9999")
    assert done.state == "failed"
    assert "9999" in str(done.error)
    assert await site.count("connector_objects") == 0


async def test_refused_export_of_one_object_is_reported(site: Site) -> None:
    await site.apply(site.definitions())
    site.ad.behave(refuse={"*": "the directory is read-only"})
    done = await sync_one(site, "1001", export=True)
    assert done.state == "completed_with_error", done
    assert "Export One of AD" in str(done.error)
    assert len(site.ldap.objects("account")) == 1


@pytest.mark.parametrize("anchor", ["1001", " 1001 ", "2000"])
async def test_held_system_refuses_the_sync_of_one_object(site: Site, anchor: str) -> None:
    await site.apply(site.definitions())
    many = [f"{n},First{n},Last{n},p{n}@example.org,Research,Fellow,,2020-01-01," for n in range(2000, 2030)]
    site.write_hr(ADA, *many)
    await site.nightly()
    site.write_hr(ADA.replace("Director", "Countess"))
    await site.run("HR", "Full Import")
    done = await sync_one(site, anchor)
    assert done.state == "failed"
    assert "on hold" in str(done.error)
    assert await site.count("connector_objects", "state = 'obsolete'") == 0, "nothing was imported"
