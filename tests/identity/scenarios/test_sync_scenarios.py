"""Acceptance scenarios of synchronisation: joins, references, priorities, scope, drift (A31 to A41)."""

from __future__ import annotations

from typing import Any

import yaml

from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, PEOPLE, Site


async def identities(site: Site) -> dict[str, dict[str, Any]]:
    database = await site.database()
    rows = await database.fetch_all("SELECT attributes::text AS attributes FROM tenuto_identity.metaverse_objects")
    found = [yaml.safe_load(row["attributes"]) for row in rows]
    return {each["employee_id"][0]: each for each in found if "employee_id" in each}


async def change_rules(site: Site, change: Any) -> None:
    whole = yaml.safe_load(site.definitions())
    change(whole)
    await site.apply(yaml.safe_dump(whole))


def entry(mail: str, **values: Any) -> dict[str, Any]:
    return {"cn": "Existing", "sn": "Existing", "mail": mail, **values}


async def test_a31_existing_entry_is_joined_ignoring_case_and_not_created(site: Site) -> None:
    site.ad.put("user", "existing", entry("ADA@Example.org"), address="cn=Existing,ou=Old,ou=people,dc=ad,dc=test")
    await site.run("AD", "Full Import")
    await site.nightly()
    created = [each for each in site.ad.requests() if each["kind"] == "create"]
    assert len(created) == 3
    found = site.ad.objects("user")
    assert len(found) == 4
    assert found["existing"]["attributes"]["cn"] == ["Ada Lovelace"]
    assert found["existing"]["address"] == "cn=Ada Lovelace,ou=Research,ou=people,dc=ad,dc=test"
    assert await site.count("pending_exports") == 0


async def test_a33_ambiguous_match_stays_unjoined(site: Site) -> None:
    site.write_hr(ADA, GRACE.replace("grace@", "ada@"), ALAN)
    await site.run("HR", "Full Import")
    await change_rules(site, lambda whole: [rule.update(provision=False) for rule in whole["sync_rules"][1:]])
    await site.run("HR", "Full Sync")
    site.ad.put("user", "x", entry("Ada@example.org"), address="cn=x,dc=test")
    site.ad.put("user", "y", entry("alan@example.org"), address="cn=y,dc=test")
    await site.run("AD", "Full Import")
    run = await site.run("AD", "Full Sync")
    assert (run.errors, run.changes) == (["ambiguous_match"], ["Joined"])
    assert run.state == "completed_with_warning"
    assert await site.count("connector_objects", "system_number = 2 AND metaverse_id IS NOT NULL AND anchor = 'y'") == 1
    assert await site.count("connector_objects", "system_number = 2 AND metaverse_id IS NOT NULL") == 1


async def test_a33_match_that_is_already_joined_names_the_other_object(site: Site) -> None:
    await site.nightly()
    site.ad.put("user", "second", entry("ada@example.org"), address="cn=second,dc=test")
    await site.run("AD", "Full Import")
    run = await site.run("AD", "Full Sync")
    assert run.errors == ["already_joined"]
    assert run.state == "completed_with_warning"
    assert "joined to" in run.items[0]["message"]


async def test_a34_references_are_resolved_in_both_directions(site: Site) -> None:
    site.write_hr(ADA.replace("Director,,", "Director,1004,"), GRACE, ALAN, EDSGER.replace("1002", "1001"))
    night = await site.nightly()
    assert night["HR Full Sync"].changes == ["Projected"] * 4
    await site.nightly()
    users = {each["attributes"]["cn"][0]: each for each in site.ad.objects("user").values()}
    assert users["Ada Lovelace"]["attributes"]["manager"] == [users["Edsger Dijkstra"]["address"]]
    assert users["Edsger Dijkstra"]["attributes"]["manager"] == [users["Ada Lovelace"]["address"]]
    assert await site.count("pending_exports") == 0


async def test_a34_missing_manager_is_a_warning_until_the_person_arrives(site: Site) -> None:
    site.write_hr(ADA, GRACE.replace("1001", "1009"))
    await site.run("HR", "Full Import")
    run = await site.run("HR", "Full Sync")
    assert run.state == "completed_with_warning"
    assert run.errors == []
    site.write_hr(ADA, GRACE.replace("1001", "1009"), ALAN.replace("1003", "1009"))
    await site.nightly()
    users = {each["attributes"]["cn"][0]: each for each in site.ad.objects("user").values()}
    assert users["Grace Hopper"]["attributes"]["manager"] == [users["Alan Turing"]["address"]]


async def test_a38_object_that_leaves_the_scope_is_deleted_and_a_return_withdraws_the_delete(site: Site) -> None:
    await site.apply(site.definitions(scope="""scope: 'department != "Temp"'"""))
    await site.nightly()
    temp = (ADA, GRACE.replace("Engineering", "Temp"), ALAN, EDSGER)
    site.write_hr(*temp)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    assert await site.count("pending_exports", "kind = 'delete'") == 2
    site.write_hr(*PEOPLE)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    assert await site.count("pending_exports") == 0
    site.write_hr(*temp)
    await site.nightly()
    assert len(site.ad.objects("user")) == 3
    assert len(await identities(site)) == 4


async def test_a39_failed_expression_keeps_the_old_value_and_other_attributes_flow(site: Site) -> None:
    await site.nightly()

    def break_rule(whole: dict[str, Any]) -> None:
        whole["sync_rules"][0]["map"]["login"] = {"value": "first - 1"}

    await change_rules(site, break_rule)
    site.write_hr(ADA.replace("Director", "Countess"), GRACE, ALAN, EDSGER)
    await site.run("HR", "Full Import")
    run = await site.run("HR", "Delta Sync")
    assert set(run.errors) == {"expression_failed"}
    message = run.items[0]["message"]
    for part in ("HR people in", "login", "first - 1"):
        assert part in message
    ada = (await identities(site))["1001"]
    assert ada["login"] == ["ada.lovelace"]
    assert ada["title"] == ["Countess"]


async def test_a39_missing_input_gives_no_value_and_no_text(site: Site) -> None:
    site.write_hr(ADA, "1002,Grace,,grace@example.org,Engineering,Engineer,1001,2020-02-01,")
    await site.run("HR", "Full Import")
    run = await site.run("HR", "Full Sync")
    assert "Projected" in run.changes
    grace = (await identities(site))["1002"]
    assert "display" not in grace
    assert "login" not in grace
    (detail,) = [each["detail"] for each in run.items if each["anchor"] == "1002"]
    assert "display" in detail
    assert "last" in detail


async def test_a40_changed_rule_reaches_all_objects_by_a_delta_sync(site: Site) -> None:
    await site.nightly()
    await site.run("HR", "Delta Sync")

    def change(whole: dict[str, Any]) -> None:
        whole["sync_rules"][0]["map"]["display"] = {"value": 'last + ", " + first'}

    await change_rules(site, change)
    run = await site.run("HR", "Delta Sync")
    assert run.changes == ["AttributeFlow"] * 4
    assert {each["display"][0] for each in (await identities(site)).values()} >= {"Lovelace, Ada"}
    assert (await site.run("HR", "Delta Sync")).items == []


async def test_a41_drift_is_corrected_once(site: Site) -> None:
    await site.nightly()
    (anchor,) = [
        each for each, found in site.ad.objects("user").items() if found["attributes"]["cn"] == ["Ada Lovelace"]
    ]
    site.ad.change("user", anchor, title="Hacker")
    sent = len(site.ad.requests())
    await site.run("AD", "Delta Import")
    run = await site.run("AD", "Delta Sync")
    assert run.changes == ["DriftCorrected"]
    await site.run("AD", "Export")
    (request,) = site.ad.requests()[sent:]
    assert request["changes"] == [["title", "set", ["Director"]]]
    await site.run("AD", "Full Import")
    assert await site.count("pending_exports") == 0


async def test_a41_drift_that_is_not_enforced_is_reported_once(site: Site) -> None:
    await change_rules(site, lambda whole: [rule.update(enforce=False) for rule in whole["sync_rules"][1:]])
    await site.nightly()
    (anchor,) = [
        each for each, found in site.ad.objects("user").items() if found["attributes"]["cn"] == ["Ada Lovelace"]
    ]
    site.ad.change("user", anchor, title="Hacker")
    await site.run("AD", "Full Import")
    first = await site.run("AD", "Full Sync")
    assert len(first.items) == 1
    assert await site.count("pending_exports") == 0
    second = await site.run("AD", "Full Sync")
    assert second.items == []


async def test_a41_value_that_the_target_itself_contributes_is_no_drift(site: Site) -> None:
    def change(whole: dict[str, Any]) -> None:
        whole["sync_rules"][0]["map"]["same"].remove("title")
        whole["sync_rules"].append(
            {
                "name": "AD titles in",
                "in": {"system": "AD", "type": "user", "to": "person"},
                "match": [{"object": "mail", "metaverse": "mail"}],
                "map": {"same": ["title"]},
            }
        )

    await change_rules(site, change)
    await site.nightly()
    (anchor,) = [
        each for each, found in site.ad.objects("user").items() if found["attributes"]["cn"] == ["Ada Lovelace"]
    ]
    site.ad.change("user", anchor, title="Countess")
    sent = len(site.ad.requests())
    await site.run("AD", "Delta Import")
    assert (await site.run("AD", "Delta Sync")).changes == ["AttributeFlow"]
    await site.run("AD", "Export")
    assert len(site.ad.requests()) == sent
    assert (await identities(site))["1001"]["title"] == ["Countess"]
