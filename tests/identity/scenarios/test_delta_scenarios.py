"""Acceptance scenarios of delta imports with the memory connector (A25, A27, A66)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tenuto.postgres.database import Connection
from tenuto_identity.connectors.contract import ConnectorContext, ImportedObject, ReadScope
from tenuto_identity.connectors.memory import MemoryConnector, MemorySettings
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.store import objects
from tests.identity.scenario_site import Site

BASE = "ou=people,dc=ad,dc=test"


async def references_of(site: Site, anchor: str) -> list[str]:
    (found,) = await site.app.extensions.identity.objects(system="AD", type="group", text=anchor)
    return sorted(found.reference_values.get("member", []))


def add_groups(whole: dict[str, Any]) -> None:
    member = {"type": "reference", "to": "user", "multi": True}
    whole["systems"][1]["types"].append(
        {
            "name": "group",
            "anchor": "gid",
            "address_format": "dn",
            "attributes": {"gid": {"type": "text", "writable": False}, "cn": "text", "member": member},
        }
    )
    whole["metaverse"].append(
        {"type": "team", "attributes": {"cn": "text", "member": {"type": "reference", "to": "person", "multi": True}}}
    )
    whole["sync_rules"].append(
        {
            "name": "AD groups in",
            "in": {"system": "AD", "type": "group", "to": "team"},
            "project": True,
            "map": {"same": ["cn", "member"]},
        }
    )


async def test_a25_delta_import_finds_added_changed_renamed_and_deleted_entries_once(site: Site) -> None:
    await site.nightly()
    users = {found["attributes"]["cn"][0]: anchor for anchor, found in site.ad.objects("user").items()}
    site.ad.put("user", "new", {"cn": "New", "mail": "new@example.org"}, address=f"cn=New,{BASE}")
    site.ad.change("user", users["Ada Lovelace"], title="Countess")
    site.ad.rename("user", users["Grace Hopper"], f"cn=Grace Hopper,ou=Navy,{BASE}")
    site.ad.rename("user", users["Alan Turing"], f"cn=Alan Turing,ou=Moved,{BASE}")
    site.ad.change("user", users["Alan Turing"], title="Professor")
    site.ad.delete("user", users["Edsger Dijkstra"])
    (before,) = await site.app.extensions.identity.objects(system="AD", text=users["Grace Hopper"])
    run = await site.run("AD", "Delta Import")
    assert run.changes == ["Added", "Deleted", "Updated", "Updated", "Updated"]
    (after,) = await site.app.extensions.identity.objects(system="AD", text=users["Grace Hopper"])
    assert (after.id, after.address) == (before.id, f"cn=Grace Hopper,ou=Navy,{BASE}")
    assert (await site.run("AD", "Delta Import")).items == []


def test_a27_change_during_a_read_is_in_this_read_or_in_the_next(tmp_path: Any) -> None:
    person = ObjectType("user", "uuid", {"uuid": Attribute("uuid"), "title": Attribute("title")})
    connector = MemoryConnector(MemorySettings(path=str(tmp_path / "ad.json")), ConnectorContext((person,)))
    connector._system.put_many("user", [(str(n), {"title": "old"}) for n in range(3)])
    scope = ReadScope((person,))
    watermark = connector.watermark(scope)
    reading = connector.read(scope, None)
    seen = [next(reading)]
    connector._system.change("user", "2", title="new")  # after the watermark was taken, before the end of the read
    seen += list(reading)
    now = {each.anchor: each.cells["title"] for each in seen if isinstance(each, ImportedObject)}
    later = {
        each.anchor: each.cells["title"]
        for each in connector.read(scope, watermark)
        if isinstance(each, ImportedObject)
    }
    assert {**now, **later}["2"] == ("new",)


async def test_a66_references_that_the_server_changes_by_itself_are_read_again(site: Site) -> None:
    whole = yaml.safe_load(site.definitions())
    add_groups(whole)
    await site.apply(yaml.safe_dump(whole))
    await site.nightly()
    users = {
        found["attributes"]["cn"][0]: (anchor, found["address"]) for anchor, found in site.ad.objects("user").items()
    }
    members = sorted(address for _, address in users.values())
    site.ad.put("group", "g1", {"cn": "All", "member": members}, address=f"cn=All,{BASE}")
    site.ad.put("group", "g2", {"cn": "None"}, address=f"cn=None,{BASE}")
    await site.run("AD", "Delta Import")
    await site.run("AD", "Delta Sync")
    assert await references_of(site, "g1") == members

    anchor, old = users["Grace Hopper"]
    new = f"cn=Grace Murray,ou=Engineering,{BASE}"
    site.ad.rename("user", anchor, new)
    site.ad.replace_references("group", "member", old, new)
    gone, address = users["Edsger Dijkstra"]
    site.ad.delete("user", gone)
    site.ad.replace_references("group", "member", address, None)

    run = await site.run("AD", "Delta Import")
    assert run.state == "completed", run
    assert run.changes == ["Deleted", "Updated", "Updated"]  # Edsger, Grace and the group
    expected = sorted([*(each for each in members if each not in (old, address)), new])
    assert await references_of(site, "g1") == expected
    sync = await site.run("AD", "Delta Sync")
    assert sync.errors == []
    team = await site.app.extensions.identity.identities(type="team", text="All")
    assert len(team[0].reference_ids["member"]) == 3
    assert (await site.run("AD", "Delta Import")).items == []


async def test_account_that_was_deleted_in_the_target_is_provisioned_again(site: Site) -> None:
    await site.nightly()
    (anchor,) = [
        each for each, found in site.ad.objects("user").items() if found["attributes"]["cn"] == ["Alan Turing"]
    ]
    site.ad.delete("user", anchor)
    assert (await site.run("AD", "Delta Import")).changes == ["Deleted"]
    run = await site.run("AD", "Delta Sync")
    assert run.state == "completed", run
    await site.run("AD", "Export")
    await site.run("AD", "Delta Import")
    assert ["Alan Turing"] in [each["attributes"]["cn"] for each in site.ad.objects("user").values()]
    assert await site.count("pending_exports") == 0


async def test_delta_import_counts_the_objects_only_if_its_deletions_can_trip_the_guard(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.apply(site.definitions())
    site.ad.put_many("user", [(str(n), {"cn": f"u{n}", "mail": f"u{n}@example.org"}) for n in range(40)])
    await site.run("AD", "Full Import")
    counted: list[int] = []
    count_objects = objects.count_objects

    async def record(connection: Connection, system_number: int) -> list[objects.ObjectCount]:
        counted.append(system_number)
        return await count_objects(connection, system_number)

    monkeypatch.setattr(objects, "count_objects", record)
    for number in range(9):
        site.ad.delete("user", str(number))
    few = await site.run("AD", "Delta Import")
    assert (few.state, few.changes, counted) == ("completed", ["Deleted"] * 9, [])

    for number in range(9, 19):
        site.ad.delete("user", str(number))
    many = await site.run("AD", "Delta Import")
    assert (many.state, many.changes) == ("completed_with_error", [])
    (system,) = [each for each in await site.app.extensions.identity.systems() if each.name == "AD"]
    assert "10 of 31 (32.26 %)" in str(system.held)
    assert len(counted) == 1
