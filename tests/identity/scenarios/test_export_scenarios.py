"""Acceptance scenarios of exports and their confirmation (A42 to A48)."""

from __future__ import annotations

from typing import Any

import yaml

from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, Site

GRACE_ADDRESS = "cn=Grace Hopper,ou=Engineering,ou=people,dc=ad,dc=test"


async def staged(site: Site) -> None:
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")


async def make_due(site: Site) -> None:
    """Let every export that waits for its next attempt be due."""
    database = await site.database()
    async with database.connection() as connection:
        await connection.execute("UPDATE tenuto_identity.pending_exports SET next_attempt_at = NULL")


async def exports(site: Site) -> list[dict[str, Any]]:
    database = await site.database()
    rows = await database.fetch_all(
        "SELECT kind, state, attempts, changes::text AS changes, next_attempt_at FROM tenuto_identity.pending_exports"
        " WHERE system_number = 2 ORDER BY object_id"
    )
    return [dict(row) for row in rows]


async def test_a42_refused_create_is_retried_and_fails_after_five_attempts(site: Site) -> None:
    site.ad.behave(refuse={GRACE_ADDRESS: "schema violation"})
    await staged(site)
    run = await site.run("AD", "Export")
    assert run.errors == ["refused"]
    assert run.state == "completed_with_warning"
    assert "schema violation" in str([item["message"] for item in run.items if item["error"]])
    assert len(site.ad.objects("user")) == 3
    for _ in range(4):
        await make_due(site)
        await site.run("AD", "Export")
    (refused,) = [each for each in await exports(site) if each["state"] == "failed"]
    assert refused["attempts"] == 5
    sent = len(site.ad.requests())
    await make_due(site)
    await site.run("AD", "Export")
    assert len(site.ad.requests()) == sent


async def test_a42_refusal_of_everything_fails_the_run(site: Site) -> None:
    site.ad.behave(refuse={"*": "read-only"})
    await staged(site)
    run = await site.run("AD", "Export")
    assert run.state == "failed"
    assert run.errors == ["refused"] * 4
    site.ad.behave(refuse=None)
    await make_due(site)
    assert (await site.run("AD", "Export")).state == "completed"
    assert len(site.ad.objects("user")) == 4


async def test_a43_value_that_the_system_changes_is_never_sent_for_ever(site: Site) -> None:
    site.write_hr(ADA.replace("ada@example.org", "Ada@Example.org"))
    site.ad.behave(transform={"mail": "lower"})
    await staged(site)
    await site.run("AD", "Export")
    first = await site.run("AD", "Full Import")
    assert "not_confirmed" in first.errors
    for _ in range(6):
        await site.run("AD", "Export")
        await site.run("AD", "Full Import")
    (left,) = await exports(site)
    assert left["state"] == "failed"
    (change,) = yaml.safe_load(left["changes"])
    assert (change["values"], change["observed"]) == (["Ada@Example.org"], ["ada@example.org"])
    modifies = [each for each in site.ad.requests() if each["kind"] == "update"]
    assert len(modifies) == 4


async def test_a43_value_that_is_equal_ignoring_case_is_confirmed(site: Site) -> None:
    whole = yaml.safe_load(site.definitions())
    whole["systems"][1]["types"][0]["attributes"]["mail"] = {"type": "text", "equality": "ignore_case"}
    await site.apply(yaml.safe_dump(whole))
    site.write_hr(ADA.replace("ada@example.org", "Ada@Example.org"))
    site.ad.behave(transform={"mail": "lower"})
    await site.nightly()
    assert await exports(site) == []
    sent = len(site.ad.requests())
    await site.nightly()
    assert len(site.ad.requests()) == sent


async def test_a44_values_that_the_system_changes_as_it_may_are_confirmed(site: Site) -> None:
    whole = yaml.safe_load(site.definitions())
    attributes = whole["systems"][1]["types"][0]["attributes"]
    attributes["userAccountControl"] = {"type": "integer", "equality": {"kind": "mask", "bits": 2}}
    never = {"kind": "number", "equivalent": [0, 9223372036854775807]}
    attributes["accountExpires"] = {"type": "integer", "equality": never}
    whole["sync_rules"][1]["map"] |= {"userAccountControl": {"value": "514"}, "accountExpires": {"value": "0"}}
    await site.apply(yaml.safe_dump(whole))
    await staged(site)
    await site.run("AD", "Export")
    for anchor, each in site.ad.objects("user").items():
        assert (each["attributes"]["userAccountControl"], each["attributes"]["accountExpires"]) == ([514], [0])
        site.ad.change("user", anchor, userAccountControl=546, accountExpires=9223372036854775807)
    confirmed = await site.run("AD", "Full Import")
    assert (confirmed.state, confirmed.changes, await exports(site)) == ("completed", ["Confirmed"] * 4, [])
    sent = len(site.ad.requests())
    await site.run("AD", "Delta Sync")
    await site.run("AD", "Export")
    assert len(site.ad.requests()) == sent, "values that are equal are no drift"
    anchor = next(iter(site.ad.objects("user")))
    site.ad.change("user", anchor, userAccountControl=512)
    await site.run("AD", "Full Import")
    assert (await site.run("AD", "Delta Sync")).changes == ["DriftCorrected"], "the bit of the mask is compared"


async def test_a46_create_then_delete_before_the_export_sends_nothing(site: Site) -> None:
    await staged(site)
    site.write_hr(ADA, GRACE, ALAN)
    await staged(site)
    await site.run("AD", "Export")
    assert not [each for each in site.ad.requests() if "Edsger" in each["address"]]
    assert len(site.ad.objects("user")) == 3


async def test_a46_update_then_delete_sends_only_the_delete(site: Site) -> None:
    await site.nightly()
    sent = len(site.ad.requests())
    site.write_hr(ADA, GRACE, ALAN, EDSGER.replace("Engineer,", "Professor,"))
    await staged(site)
    site.write_hr(ADA, GRACE, ALAN)
    await staged(site)
    await site.run("AD", "Export")
    assert [each["kind"] for each in site.ad.requests()[sent:]] == ["delete"]


async def test_a46_delete_of_an_entry_that_is_gone_succeeds(site: Site) -> None:
    await site.nightly()
    (anchor,) = [
        key for key, each in site.ad.objects("user").items() if each["attributes"]["cn"] == ["Edsger Dijkstra"]
    ]
    site.write_hr(ADA, GRACE, ALAN)
    await staged(site)
    site.ad.delete("user", anchor)
    run = await site.run("AD", "Export")
    assert (run.state, run.errors) == ("completed", [])


async def test_a47_foreign_entry_at_the_address_is_not_overwritten(site: Site) -> None:
    site.ad.put("user", "foreign", {"cn": "Other", "mail": "other@example.org"}, address=GRACE_ADDRESS)
    await staged(site)
    run = await site.run("AD", "Export")
    assert run.errors == ["exists"]
    assert site.ad.objects("user")["foreign"]["attributes"]["cn"] == ["Other"]
    for profile in ("Full Import", "Delta Import"):  # neither takes the entry for the one that was to be created
        await site.run("AD", profile)
        assert await site.count("connector_objects", "anchor = 'foreign' AND metaverse_id IS NULL") == 1
        await site.app.extensions.identity.retry("AD")
        assert (await site.run("AD", "Export")).errors == ["exists"]
    assert site.ad.objects("user")["foreign"]["attributes"]["cn"] == ["Other"]
    site.ad.delete("user", "foreign")
    await site.run("AD", "Full Import")
    await site.app.extensions.identity.retry("AD")
    done = await site.run("AD", "Export")
    assert ("Exported" in done.changes, done.errors) == (True, [])
    assert (await site.run("AD", "Full Import")).errors == []
    assert await site.count("pending_exports", "system_number = 2") == 0


async def test_a48_csv_target_is_replaced_in_one_step(site: Site) -> None:
    accounts = site.folder / "files" / "accounts.csv"
    accounts.write_text('note,login,name,mail,tags\nkept as it is,root,"Root, the",,\n', encoding="utf-8")
    whole = yaml.safe_load(site.definitions())
    whole["systems"].append(
        {
            "name": "Accounts",
            "connector": "csv",
            "settings": {"path": str(accounts), "allow_empty": True, "multi_value_delimiter": "|"},
            "types": [
                {
                    "name": "account",
                    "anchor": "login",
                    "attributes": {
                        "login": "text",
                        "name": "text",
                        "mail": "text",
                        "tags": {"type": "text", "multi": True},
                    },
                }
            ],
            "run_profiles": [{"name": "Export", "kind": "export"}, {"name": "Full Import", "kind": "full_import"}],
        }
    )
    whole["sync_rules"].append(
        {
            "name": "Accounts out",
            "out": {"from": "person", "system": "Accounts", "type": "account"},
            "provision": True,
            "on_out_of_scope": "delete",
            "map": {"login": "login", "name": "display", "mail": "mail", "tags": {"value": "[department, title]"}},
        }
    )
    await site.apply(yaml.safe_dump(whole))
    await staged(site)
    assert (await site.run("Accounts", "Export")).state == "completed"
    lines = accounts.read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["note,login,name,mail,tags", 'kept as it is,root,"Root, the",,']
    assert sorted(lines[2:]) == [
        ",ada.lovelace,Ada Lovelace,ada@example.org,Director|Research",
        ",alan.turing,Alan Turing,alan@example.org,Fellow|Research",
        ",edsger.dijkstra,Edsger Dijkstra,edsger@example.org,Engineer|Engineering",
        ",grace.hopper,Grace Hopper,grace@example.org,Engineer|Engineering",
    ]
    assert await site.count("pending_exports", "system_number = 4") == 0
    run = await site.run("Accounts", "Full Import")
    assert run.state == "completed"
    barbara = "1005,Barbara,Liskov,barbara@example.org,Research,Fellow,1001,2020-05-01,"
    site.write_hr(ADA.replace("Director", "Countess"), GRACE, ALAN, barbara)
    await staged(site)
    await site.run("Accounts", "Export")
    changed = accounts.read_text(encoding="utf-8").splitlines()
    expected = [line.replace("Director|Research", "Research|Countess") for line in lines if "edsger" not in line]
    assert sorted(changed) == sorted([*expected, ",barbara.liskov,Barbara Liskov,barbara@example.org,Fellow|Research"])
    assert changed[0] == lines[0]
    before = accounts.stat().st_ino
    await staged(site)
    await site.run("Accounts", "Export")
    assert accounts.stat().st_ino == before


async def test_export_with_a_limit_sends_so_many_requests_over_all_phases(site: Site) -> None:
    export = "{name: Export, kind: export}"
    await site.apply(site.definitions().replace(export, f"{export}, {{name: First Three, kind: export, limit: 3}}"))
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    sent: list[list[str]] = []

    async def export_three() -> None:
        before = len(site.ad.requests())
        assert (await site.run("AD", "First Three")).state in ("completed", "completed_with_warning")
        sent.append([each["kind"] for each in site.ad.requests()[before:]])

    for _ in range(3):
        await export_three()
    # Two of the first three have a manager, whose entry does not exist yet: their references are deferred.
    assert sent == [["create"] * 3, ["create", "update", "update"], []]
    assert {
        person["attributes"]["cn"][0]: len(person["attributes"].get("manager", ()))
        for person in site.ad.objects("user").values()
    } == {"Ada Lovelace": 0, "Grace Hopper": 1, "Alan Turing": 1, "Edsger Dijkstra": 1}
    assert (await site.run("AD", "Full Import")).changes == ["Confirmed"] * 4
    site.write_hr(
        ADA.replace("Director", "Countess"),
        GRACE.replace("Engineer,", "Admiral,"),
        "1005,Barbara,Liskov,barbara@example.org,Research,Fellow,1003,2020-05-01,",
        ALAN,
    )
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    sent.clear()
    for _ in range(3):
        await export_three()
    assert sent == [["create", "update", "update"], ["delete"], []]
