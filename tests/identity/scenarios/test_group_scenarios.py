"""Acceptance scenarios of group members, out-of-scope actions and the history of a deleted identity (A38, A45, A56)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tenuto.errors import NotFound
from tenuto_identity.connectors.memory import MemorySystem
from tenuto_identity.model.sync.explanation import DeletedExplanation, format_deleted
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, PEOPLE, Site
from tests.support.repetition_counts import times

MEMBER = {"type": "reference", "to": "user", "multi": True}


def with_groups(site: Site) -> dict[str, Any]:
    """Groups of a list whose members are people of HR flow to groups of AD."""
    whole: dict[str, Any] = yaml.safe_load(site.definitions())
    hr_types = whole["systems"][0]["types"]
    whole["systems"].append(
        {
            "name": "Lists",
            "connector": "memory",
            "settings": {"path": str(site.folder / "files" / "lists.json")},
            "types": [
                {"name": "person", "anchor": "employee_id", "attributes": {"employee_id": "text"}},
                {
                    "name": "list",
                    "anchor": "name",
                    "attributes": {"name": "text", "member": {"type": "reference", "to": "person", "multi": True}},
                },
            ],
            "run_profiles": [
                {"name": "Full Import", "kind": "full_import"},
                {"name": "Full Sync", "kind": "full_sync"},
            ],
        }
    )
    assert hr_types[0]["name"] == "person"
    whole["systems"][1]["types"].append(
        {
            "name": "group",
            "anchor": "gid",
            "address_format": "dn",
            "attributes": {"gid": {"type": "text", "writable": False}, "cn": "text", "member": MEMBER},
        }
    )
    team_member = {"type": "reference", "to": "person", "multi": True}
    whole["metaverse"].append({"type": "team", "attributes": {"cn": "text", "member": team_member}})
    whole["sync_rules"] += [
        {
            "name": "List people in",
            "in": {"system": "Lists", "type": "person", "to": "person"},
            "match": [{"object": "employee_id", "metaverse": "employee_id"}],
            "map": {},
        },
        {
            "name": "Lists in",
            "in": {"system": "Lists", "type": "list", "to": "team"},
            "project": True,
            "map": {"cn": "name", "same": ["member"]},
        },
        {
            "name": "Teams out",
            "out": {"from": "team", "system": "AD", "type": "group"},
            "provision": True,
            "map": {"same": ["cn", "member"], "address": {"value": 'dn("cn", cn, "ou=groups,dc=ad,dc=test")'}},
        },
    ]
    return whole


def person(number: int) -> str:
    return f"{number},F{number},L{number},p{number}@example.org,Research,Fellow,,2020-01-01,"


async def synchronise(site: Site) -> None:
    for system, profile in (
        ("HR", "Full Import"),
        ("HR", "Full Sync"),
        ("Lists", "Full Import"),
        ("Lists", "Full Sync"),
        ("AD", "Export"),
        ("AD", "Full Import"),
    ):
        run = await site.run(system, profile)
        assert run.errors == [], (system, profile, run)


async def test_a45_changed_members_are_one_modify_with_added_and_removed_values(site: Site) -> None:
    await site.apply(yaml.safe_dump(with_groups(site)))
    count = times(50, in_a_proof=3000)
    numbers = range(2000, 2010 + count)
    site.write_hr(*map(person, numbers))
    lists = MemorySystem(site.folder / "files" / "lists.json")
    lists.put_many("person", [(str(n), {"employee_id": str(n)}) for n in numbers])
    members = [str(n) for n in numbers[:count]]
    lists.put("list", "all", {"name": "all", "member": members})
    await synchronise(site)
    (group,) = site.ad.objects("group").values()
    assert len(group["attributes"]["member"]) == count
    sent = len(site.ad.requests())
    lists.put("list", "all", {"name": "all", "member": [*members[1:], *map(str, numbers[count : count + 2])]})
    await synchronise(site)
    (request,) = site.ad.requests()[sent:]
    assert sorted((op, len(values)) for _, op, values in request["changes"]) == [("add", 2), ("remove", 1)]
    (group,) = site.ad.objects("group").values()
    assert len(group["attributes"]["member"]) == count + 1
    assert await site.count("pending_exports", "system_number = 2") == 0


async def test_a45_member_that_is_not_in_the_target_yet_is_deferred(site: Site) -> None:
    await site.apply(yaml.safe_dump(with_groups(site)))
    site.write_hr(*map(person, range(2000, 2005)))
    lists = MemorySystem(site.folder / "files" / "lists.json")
    lists.put_many("person", [(str(n), {"employee_id": str(n)}) for n in range(2000, 2005)])
    lists.put("list", "all", {"name": "all", "member": [str(n) for n in range(2000, 2005)]})
    site.ad.behave(refuse={"cn=F2003 L2003,ou=Research,ou=people,dc=ad,dc=test": "not now"})
    for system, profile in (
        ("HR", "Full Import"),
        ("HR", "Full Sync"),
        ("Lists", "Full Import"),
        ("Lists", "Full Sync"),
    ):
        await site.run(system, profile)
    await site.run("AD", "Export")
    (group,) = site.ad.objects("group").values()
    assert len(group["attributes"]["member"]) == 4
    site.ad.behave(refuse=None)
    await site.app.extensions.identity.retry("AD")
    await site.run("AD", "Export")
    (group,) = site.ad.objects("group").values()
    assert len(group["attributes"]["member"]) == 5


@pytest.mark.parametrize("action", ["disconnect", "remain"])
async def test_a38_out_of_scope_person_keeps_the_account_without_flow(site: Site, action: str) -> None:
    whole = yaml.safe_load(site.definitions(scope="""scope: 'department != "Temp"'"""))
    for rule in whole["sync_rules"][1:]:
        rule["on_out_of_scope"] = action
    await site.apply(yaml.safe_dump(whole))
    await site.nightly()
    sent = len(site.ad.requests())
    site.write_hr(ADA, GRACE.replace("Engineering,Engineer", "Temp,Admiral"), ALAN, EDSGER)
    await site.nightly()
    assert len(site.ad.requests()) == sent
    assert len(site.ad.objects("user")) == 4
    joined = await site.count("connector_objects", "system_number = 2 AND metaverse_id IS NOT NULL")
    assert joined == (4 if action == "remain" else 3)


async def test_a56_history_of_a_deleted_identity_is_kept(site: Site) -> None:
    await site.nightly()
    (edsger,) = await site.app.extensions.identity.identities(text="dijkstra")
    site.write_hr(*PEOPLE[:3])
    await site.nightly()
    assert await site.app.extensions.identity.identities(text="dijkstra") == []
    found = await site.app.extensions.identity.history(edsger.id)
    assert {each.change for each in found} >= {"Added", "Projected", "Disconnected"}
    last = next(each for each in found if each.subject == "identity")
    assert last.diff["display"] == [["Edsger Dijkstra"], []]


async def test_a56_deleted_identity_is_explained_from_its_history(site: Site) -> None:
    await site.nightly()
    (edsger,) = await site.app.extensions.identity.identities(text="dijkstra")
    site.write_hr(*PEOPLE[:3])
    night = await site.nightly()
    found = await site.app.extensions.identity.explain("HR", "1004")
    assert isinstance(found, DeletedExplanation)
    assert (found.id, found.display, found.system, found.profile) == (edsger.id, "Edsger Dijkstra", "HR", "Full Sync")
    assert found.deleted_by_run == night["HR Full Sync"].id
    values = {each.name: each.values for each in found.attributes}
    assert values["mail"] == ("edsger@example.org",)
    assert all(each.run_id is not None for each in found.attributes), "the run that set each value"
    assert ("HR", "1004", "Deleted") in {(each.system, each.anchor, each.change) for each in found.objects}
    assert await site.app.extensions.identity.explain_identity(edsger.id) == found
    assert "deleted by Full Sync of HR" in format_deleted(found)
    with pytest.raises(NotFound, match="no object with the anchor '9999'"):
        await site.app.extensions.identity.explain("HR", "9999")
