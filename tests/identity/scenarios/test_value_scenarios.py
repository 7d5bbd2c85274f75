"""Acceptance scenarios of anchors, values, containers, matching and priorities (A13, A21, A23, A30, A32, A35, A37)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import yaml

from tenuto_identity.connectors.memory import MemorySystem
from tenuto_identity.model.decoding import decode_object
from tenuto_identity.model.sync.explanation import IdentityExplanation
from tenuto_identity.runs import import_reader
from tenuto_identity.runs.imports import import_run
from tenuto_identity.store import objects
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, PEOPLE, Site

BASE = "ou=people,dc=ad,dc=test"


async def anchors(site: Site) -> list[str | None]:
    return sorted(each.anchor or "" for each in await site.app.extensions.identity.objects(system="HR"))


def row(anchor: str, **values: str) -> str:
    given = {"first": "F", "last": "L", "mail": "", **values}
    return f"{anchor},{given['first']},{given['last']},{given['mail']},Research,Fellow,,2020-01-01,"


async def test_a13_text_anchors_are_exact_trimmed_and_normalised(site: Site) -> None:
    site.write_hr(
        row("9007199254740993"), row("9223372036854775807"), row("007"), row("7"), row(" 7 "), row("É"), row("E\u0301")
    )
    run = await site.run("HR", "Full Import")
    assert run.errors == ["duplicate_object"] * 4  # both 7 and both É
    assert await anchors(site) == ["007", "9007199254740993", "9223372036854775807"]


async def test_a13_integer_anchors_are_exact_and_ignore_zeros(site: Site) -> None:
    whole = yaml.safe_load(site.definitions())
    whole["systems"][0]["types"][0]["attributes"]["employee_id"] = "integer"
    whole["metaverse"][0]["attributes"]["employee_id"] = "integer"
    await site.apply(yaml.safe_dump(whole))
    site.write_hr(row("9007199254740993"), row("9007199254740992"), row("007"), row("7"), row("9223372036854775808"))
    run = await site.run("HR", "Full Import")
    assert run.errors == ["bad_value", "duplicate_object", "duplicate_object"]
    assert await anchors(site) == ["9007199254740992", "9007199254740993"]


async def test_a21_unchanged_objects_are_not_decoded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write_hr(*(row(str(n), mail=f"{n}@example.org") for n in range(10_000)))
    await site.run("HR", "Full Import")

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("an unchanged object was decoded")

    load = objects.load_fingerprints
    pages: list[int] = []

    async def count(connection: Any, system_number: int, after_id: int, limit: int) -> Any:
        pages.append(limit)
        return await load(connection, system_number, after_id, limit)

    monkeypatch.setattr(import_run, "decode_object", fail)
    monkeypatch.setattr(objects, "classify_objects", fail)
    monkeypatch.setattr(objects, "load_fingerprints", count)
    again = await site.run("HR", "Full Import")
    assert (again.state, again.items) == ("completed", [])
    is_page = [limit > import_reader.PAGE_OBJECTS for limit in pages]
    assert is_page == [False, *[True] * (10_000 // import_reader.PAGE_OBJECTS)], (
        "one lookup for the run, one for a page"
    )


async def test_a21_objects_in_another_order_are_classified_once_and_not_decoded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(str(n), mail=f"{n}@example.org") for n in range(24)]
    await site.apply(site.definitions(page_size=4))
    site.write_hr(*rows)
    await site.run("HR", "Full Import")
    classify = objects.classify_objects
    sizes: list[int] = []

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("an unchanged object was decoded")

    async def count(connection: Any, system_number: int, type_numbers: Any, *columns: Any) -> Any:
        sizes.append(len(type_numbers))
        return await classify(connection, system_number, type_numbers, *columns)

    monkeypatch.setattr(import_run, "decode_object", fail)
    monkeypatch.setattr(objects, "classify_objects", count)
    site.write_hr(*rows[::-1])
    again = await site.run("HR", "Full Import")
    assert (again.state, again.items, sizes) == ("completed", [], [4] * 6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("employee_id: text, first: text, last: text, mail", "employee_id: integer, first: text, last: text, mail"),
        ("hr.csv}", "hr.csv, multi_value_delimiter: ';'}"),
    ],
    ids=["type", "delimiter"],
)
async def test_a22_changed_type_or_setting_decodes_every_object_again_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    await site.run("HR", "Full Import")
    whole = site.definitions()
    assert old in whole
    await site.apply(whole.replace(old, new, 1).replace("attributes: {employee_id: text", new_metaverse(new), 1))
    decoded: list[Any] = []

    def count(*arguments: Any, **named: Any) -> Any:
        decoded.append(arguments)
        return decode_object(*arguments, **named)

    monkeypatch.setattr(import_run, "decode_object", count)
    assert (await site.run("HR", "Full Import")).state == "completed"
    assert len(decoded) == 4
    assert (await site.run("HR", "Full Import")).items == []
    assert len(decoded) == 4


def new_metaverse(new: str) -> str:
    """Return the attribute of the metaverse that fits the changed type of HR."""
    return "attributes: {employee_id: integer" if "integer" in new else "attributes: {employee_id: text"


async def test_a23_multi_valued_column_is_a_set(site: Site) -> None:
    whole = yaml.safe_load(site.definitions())
    whole["systems"][0]["types"][0]["attributes"]["title"] = {"type": "text", "multi": True}
    whole["systems"][0]["settings"]["multi_value_delimiter"] = "|"
    whole["metaverse"][0]["attributes"]["title"] = {"type": "text", "multi": True}
    for rule, system in zip(whole["sync_rules"][1:], whole["systems"][1:], strict=True):
        rule["map"]["same"].remove("title")
        system["types"][0]["attributes"].pop("title")
    await site.apply(yaml.safe_dump(whole))

    async def titles(text: str) -> tuple[list[str], Any]:
        site.write_hr(ADA.replace("Director", text))
        run = await site.run("HR", "Full Import")
        (found,) = await site.app.extensions.identity.objects(system="HR")
        return run.changes, found.attributes["title"]

    assert await titles("+44 1|+44 2") == (["Added"], ["+44 1", "+44 2"])
    assert await titles("+44 2|+44 1|+44 2") == ([], ["+44 1", "+44 2"])
    assert await titles("+44 2") == (["Updated"], ["+44 2"])


async def put_users(site: Site) -> None:
    for name, unit in (("a", "Research"), ("b", "Engineering"), ("c", "Temp,ou=Research")):
        site.ad.put("user", name, {"cn": name}, address=f"cn={name},ou={unit},{BASE}", container=f"ou={unit},{BASE}")


async def select(site: Site, *containers: Any) -> None:
    whole = yaml.safe_load(site.definitions())
    whole["systems"][1]["containers"] = list(containers)
    await site.apply(yaml.safe_dump(whole))


async def test_a30_import_of_one_container_leaves_the_others_alone(site: Site) -> None:
    await put_users(site)
    await site.run("AD", "Full Import")
    await select(site, f"ou=Research,{BASE}")
    site.ad.delete("user", "a", "b")
    run = await site.run("AD", "Full Import")
    assert [(item["change"], item["anchor"]) for item in run.items] == [("Deleted", "a")]
    assert [each.anchor for each in await site.app.extensions.identity.objects(system="AD")] == ["b", "c"]
    doctor = {finding.name: finding for finding in await site.app.doctor()}
    assert doctor["identity_selection"].details == [f"AD: 1 objects of the type user in ou=Engineering,{BASE}"]


async def test_a30_excluded_container_is_frozen_and_not_deleted(site: Site) -> None:
    await put_users(site)
    await site.run("AD", "Full Import")
    await select(site, BASE, {"address": f"ou=Temp,ou=Research,{BASE}", "include": False})
    run = await site.run("AD", "Full Import")
    assert run.items == []
    assert len(await site.app.extensions.identity.objects(system="AD")) == 3


@pytest.mark.parametrize(
    ("one", "other", "match"),
    [("a_b", "axb", False), ("50%", "50x", False), ("straße", "STRASSE", True), ("\u0131", "i", False)],
)
async def test_a32_values_match_only_themselves(site: Site, one: str, other: str, match: bool) -> None:
    whole = yaml.safe_load(site.definitions())
    whole["sync_rules"][1].update(provision=False, match=[{"object": "cn", "metaverse": "first"}])
    await site.apply(yaml.safe_dump(whole))
    site.write_hr(row("1", first=one, mail="x@example.org"))
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    site.ad.put("user", "x", {"cn": other}, address=f"cn=x,{BASE}")
    await site.run("AD", "Full Import")
    await site.run("AD", "Full Sync")
    (found,) = await site.app.extensions.identity.objects(system="AD")
    assert (found.metaverse_id is not None) == match


def with_phonebook(site: Site, **mapping: Any) -> dict[str, Any]:
    whole: dict[str, Any] = yaml.safe_load(site.definitions())
    whole["systems"].append(
        {
            "name": "Phonebook",
            "connector": "memory",
            "settings": {"path": str(site.folder / "files" / "phonebook.json")},
            "types": [{"name": "entry", "anchor": "id", "attributes": {"id": "text", "mail": "text", "title": "text"}}],
            "run_profiles": [
                {"name": "Full Import", "kind": "full_import"},
                {"name": "Full Sync", "kind": "full_sync"},
            ],
        }
    )
    whole["sync_rules"][0]["map"]["same"].remove("title")
    whole["sync_rules"][0]["map"]["title"] = {"from": "title", "priority": 1, **mapping}
    whole["sync_rules"].append(
        {
            "name": "Phonebook in",
            "in": {"system": "Phonebook", "type": "entry", "to": "person"},
            "match": [{"object": "mail", "metaverse": "mail"}],
            "map": {"title": {"from": "title", "priority": 2}},
        }
    )
    return whole


async def title_of_ada(site: Site) -> Any:
    (found,) = await site.app.extensions.identity.identities(text="lovelace")
    return found.attributes.get("title")


@pytest.mark.parametrize(("null_is_value", "expected"), [(False, ["Countess"]), (True, None)])
async def test_a35_next_contribution_wins_without_processing_its_system(
    site: Site, null_is_value: bool, expected: Any
) -> None:
    await site.apply(yaml.safe_dump(with_phonebook(site, null_is_value=null_is_value)))
    MemorySystem(site.folder / "files" / "phonebook.json").put(
        "entry", "7", {"id": "7", "mail": "ada@example.org", "title": "Countess"}
    )
    for system in ("HR", "Phonebook"):
        await site.run(system, "Full Import")
        await site.run(system, "Full Sync")
    assert await title_of_ada(site) == ["Director"]
    site.write_hr(ADA.replace("Director", ""), GRACE, ALAN, EDSGER)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    assert await title_of_ada(site) == expected


@pytest.mark.parametrize(
    ("priority", "first"), [(1, "HR people in"), (2, "HR people in"), (3, "Phonebook in")], ids=str
)
async def test_a35_rules_are_listed_in_the_order_in_which_their_contributions_win(
    site: Site, priority: int, first: str
) -> None:
    await site.apply(yaml.safe_dump(with_phonebook(site, priority=priority)))
    MemorySystem(site.folder / "files" / "phonebook.json").put(
        "entry", "7", {"id": "7", "mail": "ada@example.org", "title": "Countess"}
    )
    for system in ("HR", "Phonebook"):
        await site.run(system, "Full Import")
        await site.run(system, "Full Sync")
    identity = site.app.extensions.identity
    flows = {each.attribute: each for each in await identity.attribute_flows(type="person")}
    listed = [each.rule for each in flows["title"].contributions]
    explained = await identity.explain("HR", "1001")
    assert isinstance(explained, IdentityExplanation)
    ((contributions,),) = [[each.contributions for each in explained.attributes if each.name == "title"]]
    assert listed == [each.rule for each in contributions]
    assert listed[0] == first == next(each.rule for each in contributions if each.wins)
    assert [(each.system, each.attribute, each.rule) for each in flows["title"].targets] == [
        ("AD", "title", "AD people out"),
        ("LDAP", "title", "LDAP people out"),
    ]
    assert [each.attribute for each in flows["display"].targets] == ["cn", "address", "cn"]
    of_phonebook = await identity.attribute_flows(system="Phonebook")
    assert [each.attribute for each in of_phonebook] == ["title"]


async def test_a35_order_of_syncs_does_not_matter(site: Site) -> None:
    await site.apply(yaml.safe_dump(with_phonebook(site)))
    phonebook = MemorySystem(site.folder / "files" / "phonebook.json")
    for number, order in enumerate(permutations(("HR", "Phonebook"))):
        title = f"Countess {number}"
        phonebook.put("entry", "7", {"id": "7", "mail": "ada@example.org", "title": title})
        site.write_hr(ADA.replace("Director", "" if number else f"Director {number}"), *PEOPLE[1:])
        for system in ("HR", "Phonebook"):
            await site.run(system, "Full Import")
        for system in order:
            await site.run(system, "Full Sync")
        assert await title_of_ada(site) == ([title] if number else ["Director 0"])


async def test_a37_deletes_that_follow_from_a_changed_rule_are_held(site: Site) -> None:
    site.write_hr(*(row(str(n), mail=f"{n}@example.org", first=f"F{n}") for n in range(100, 130)))
    await site.nightly()
    await site.apply(site.definitions(scope="scope: 'employee_id < \"110\"'"))
    await site.run("HR", "Delta Sync")
    assert await site.count("pending_exports", "kind = 'delete' AND system_number = 2") == 20
    export = await site.run("AD", "Export")
    assert export.state == "completed_with_error"
    assert len(site.ad.objects("user")) == 30
