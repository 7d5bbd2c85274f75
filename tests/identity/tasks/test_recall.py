"""Deletion of a rule: a task withdraws what it contributed, and the next contribution wins."""

from __future__ import annotations

from typing import Any

import yaml

from tenuto_identity.connectors.memory import MemorySystem
from tenuto_identity.tasks.housekeeping import run_housekeeping
from tests.identity.scenario_site import Site

PHONEBOOK: dict[str, Any] = {
    "name": "Phonebook",
    "connector": "memory",
    "types": [{"name": "entry", "anchor": "id", "attributes": {"id": "text", "mail": "text", "title": "text"}}],
    "run_profiles": [{"name": "Full Import", "kind": "full_import"}, {"name": "Full Sync", "kind": "full_sync"}],
}
RULE: dict[str, Any] = {
    "name": "Phonebook in",
    "in": {"system": "Phonebook", "type": "entry", "to": "person"},
    "match": [{"object": "mail", "metaverse": "mail"}],
    "map": {"title": {"from": "title", "priority": 1}},
}


def definitions(site: Site) -> dict[str, Any]:
    whole: dict[str, Any] = yaml.safe_load(site.definitions())
    settings = {"path": str(site.folder / "files" / "phonebook.json")}
    whole["systems"].append({**PHONEBOOK, "settings": settings})
    whole["sync_rules"].append(RULE)
    return whole


async def titles(site: Site) -> dict[str, Any]:
    found = await site.app.extensions.identity.identities()
    return {each.attributes["employee_id"][0]: each.attributes.get("title") for each in found}


async def prepare(site: Site) -> dict[str, Any]:
    whole = definitions(site)
    await site.apply(yaml.safe_dump(whole))
    phonebook = MemorySystem(site.folder / "files" / "phonebook.json")
    phonebook.put("entry", "7", {"id": "7", "mail": "ada@example.org", "title": "Countess"})
    await site.nightly()
    await site.run("Phonebook", "Full Import")
    await site.run("Phonebook", "Full Sync")
    assert (await titles(site))["1001"] == ["Countess"]
    return whole


async def run_recall(site: Site) -> None:
    registry = site.app.extension_registry
    (extension,) = [each for each in registry.extensions if each.name == "identity"]
    await run_housekeeping(registry.create_services(extension))
    database = await site.database()
    task = await database.fetch_value("SELECT id FROM tenuto.tasks WHERE kind = 'identity.recall'")
    if task is None:
        task = await database.fetch_value(
            "SELECT task_id FROM tenuto.activities WHERE kind = 'identity.recall' ORDER BY id DESC LIMIT 1"
        )
    assert task is not None
    done = await site.app.wait(task, 60)
    assert done.state == "completed", done


async def test_values_of_a_deleted_rule_are_withdrawn_and_the_next_contribution_wins(site: Site) -> None:
    whole = await prepare(site)
    whole["sync_rules"].pop()
    await site.apply(yaml.safe_dump(whole), prune=True)
    assert await site.count("recalls") == 1
    assert (await titles(site))["1001"] == ["Countess"]
    await run_recall(site)
    assert (await titles(site))["1001"] == ["Director"]
    assert await site.count("recalls") == 0
    await site.run("AD", "Export")
    assert ["Director"] in [each["attributes"]["title"] for each in site.ad.objects("user").values()]


async def test_attribute_that_only_the_deleted_rule_contributed_has_no_value_any_more(site: Site) -> None:
    whole = definitions(site)
    whole["sync_rules"][0]["map"]["same"].remove("title")
    await site.apply(yaml.safe_dump(whole))
    phonebook = MemorySystem(site.folder / "files" / "phonebook.json")
    phonebook.put("entry", "7", {"id": "7", "mail": "ada@example.org", "title": "Countess"})
    await site.nightly()
    await site.run("Phonebook", "Full Import")
    await site.run("Phonebook", "Full Sync")
    assert (await titles(site))["1001"] == ["Countess"]
    whole["sync_rules"].pop()
    await site.apply(yaml.safe_dump(whole), prune=True)
    await run_recall(site)
    assert (await titles(site))["1001"] is None
    assert await site.count("connector_objects", "system_number = 4 AND metaverse_id IS NOT NULL") == 1


async def test_recall_waits_until_a_held_system_is_released(site: Site) -> None:
    whole = await prepare(site)
    whole["sync_rules"].pop()
    await site.apply(yaml.safe_dump(whole), prune=True)
    database = await site.database()
    await database.fetch_all("""UPDATE tenuto_identity.systems SET held = '{"run": "x"}' WHERE name = 'Phonebook'""")
    registry = site.app.extension_registry
    (extension,) = [each for each in registry.extensions if each.name == "identity"]
    await run_housekeeping(registry.create_services(extension))
    assert await database.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE kind = 'identity.recall'") == 0
    await database.fetch_all("UPDATE tenuto_identity.systems SET held = NULL")
    await run_recall(site)
    assert (await titles(site))["1001"] == ["Director"]
