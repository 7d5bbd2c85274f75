"""The complete nightly run: joiner, mover, leaver, and a second run that changes nothing."""

from __future__ import annotations

from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, PEOPLE, Site


async def test_nightly_run_from_empty_systems_creates_and_confirms_all_accounts(site: Site) -> None:
    await site.apply(site.definitions())
    night = await site.nightly()
    assert {name: run.state for name, run in night.items()} == dict.fromkeys(night, "completed"), night
    assert night["HR Full Import"].changes == ["Added"] * 4
    assert night["HR Full Sync"].changes == ["Projected"] * 4
    assert night["AD Export"].changes.count("Exported") >= 4
    assert night["AD Full Import"].changes == ["Confirmed"] * 4
    assert await site.count("pending_exports") == 0
    users = {each["attributes"]["cn"][0]: each for each in site.ad.objects("user").values()}
    assert sorted(users) == ["Ada Lovelace", "Alan Turing", "Edsger Dijkstra", "Grace Hopper"]
    assert users["Grace Hopper"]["attributes"]["manager"] == [users["Ada Lovelace"]["address"]]


async def test_second_nightly_run_changes_nothing(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    before = await _row_versions(site), len(site.ad.requests()), len(site.ldap.requests())
    night = await site.nightly()
    assert {name: (run.state, run.items) for name, run in night.items()} == dict.fromkeys(night, ("completed", []))
    assert (await _row_versions(site), len(site.ad.requests()), len(site.ldap.requests())) == before


async def test_joiner_is_created_in_every_target(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    site.write_hr(*PEOPLE, "1005,Barbara,Liskov,barbara@example.org,Research,Fellow,1001,2020-05-01,")
    night = await site.nightly()
    assert {name: run.changes for name, run in night.items()} == {
        "HR Full Import": ["Added"],
        "HR Full Sync": ["Projected"],
        "AD Export": ["Exported"],
        "LDAP Export": ["Exported"],
        "AD Full Import": ["Confirmed"],
        "LDAP Full Import": ["Confirmed"],
    }
    users = {each["attributes"]["cn"][0]: each for each in site.ad.objects("user").values()}
    assert users["Barbara Liskov"]["attributes"]["manager"] == [users["Ada Lovelace"]["address"]]


async def test_changed_attribute_is_one_modify_in_each_target(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    sent, sent_to_ldap = len(site.ad.requests()), len(site.ldap.requests())
    site.write_hr(ADA, GRACE.replace("Engineer,1001", "Admiral,1001"), ALAN, EDSGER)
    night = await site.nightly()
    assert night["HR Full Import"].changes == ["Updated"]
    assert night["HR Full Sync"].changes == ["AttributeFlow"]
    for (request,) in (site.ad.requests()[sent:], site.ldap.requests()[sent_to_ldap:]):
        assert (request["kind"], request["changes"]) == ("update", [["title", "set", ["Admiral"]]])
    assert night["AD Full Import"].changes == ["Confirmed"]
    assert await site.count("pending_exports") == 0


async def test_moved_person_is_renamed_and_keeps_the_anchor(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    anchors = {each["attributes"]["cn"][0]: anchor for anchor, each in site.ad.objects("user").items()}
    site.write_hr(ADA, GRACE, ALAN.replace("Research", "Engineering"), EDSGER)
    night = await site.nightly()
    alan = site.ad.objects("user")[anchors["Alan Turing"]]
    assert alan["address"].lower() == "cn=alan turing,ou=engineering,ou=people,dc=ad,dc=test"
    assert night["AD Full Import"].changes == ["Confirmed"]
    assert await site.count("pending_exports") == 0


async def test_leaver_is_deleted_everywhere_and_leaves_only_history(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    site.write_hr(ADA, GRACE, ALAN)
    night = await site.nightly()
    assert night["HR Full Import"].changes == ["Deleted"]
    assert night["HR Full Sync"].changes == ["Disconnected"]
    assert night["AD Export"].changes == ["Deprovisioned"]
    assert len(site.ad.objects("user")) == len(site.ldap.objects("account")) == 3
    assert await site.count("connector_objects") == 9
    assert await site.count("metaverse_objects") == 3
    for table in ("pending_exports", "sync_marks", "pending_deletions"):
        assert await site.count(table, "true" if table != "sync_marks" else "system_number = 1") == 0, table
    assert await site.count("connector_references", "raw LIKE '%Edsger%' OR raw = '1004'") == 0
    for table, column in (("connector_references", "object_id"), ("sync_marks", "object_id")):
        missing = f"{column} NOT IN (SELECT id FROM tenuto_identity.connector_objects)"
        assert await site.count(table, missing) == 0, table
    missing = "object_id NOT IN (SELECT id FROM tenuto_identity.metaverse_objects)"
    assert await site.count("metaverse_references", missing) == await site.count("match_keys", missing) == 0
    (deleted,) = night["HR Full Import"].items
    assert (deleted["anchor"], deleted["display"], deleted["type"]) == ("1004", "edsger@example.org", "person")


async def _row_versions(site: Site) -> list[tuple[str, int]]:
    database = await site.database()
    return [
        (table, row["xmin"])
        for table in ("connector_objects", "metaverse_objects", "pending_exports")
        for row in await database.fetch_all(
            f"SELECT xmin::text::bigint AS xmin FROM tenuto_identity.{table} ORDER BY 1"
        )
    ]
