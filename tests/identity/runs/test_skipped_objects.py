"""A full sync skips settled objects, and only these."""

from __future__ import annotations

from typing import Any

import yaml

from tenuto_identity.connectors.memory import MemorySystem
from tenuto_identity.runs.run_lifecycle import Run
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, Site
from tests.support.waiting import eventually


async def count_processed(site: Site, profile: str = "Full Sync") -> int:
    """Run a sync of HR with pages of one object; return how many pages were decided and written."""
    points: list[str] = []
    Run.observe = staticmethod(points.append)
    try:
        run = await site.run("HR", profile)
    finally:
        Run.observe = staticmethod(lambda point: None)
    assert run.state == "completed", run
    return points.count("sync_page_written")


async def test_full_sync_skips_settled_objects_until_an_input_changes(site: Site) -> None:
    text = site.definitions(page_size=1)
    await site.apply(text)
    await site.nightly()
    assert await count_processed(site) == 4, "the confirming imports have marked the targets"
    assert await count_processed(site) == 0
    processed = await (await site.database()).fetch_value(
        "SELECT counts->>'processed' FROM tenuto_identity.runs ORDER BY started_at DESC LIMIT 1"
    )
    assert processed == "4", "skipped objects count as processed"

    site.write_hr(ADA, GRACE.replace("Engineer,", "Admiral,"), ALAN, EDSGER)
    await site.run("HR", "Full Import")
    assert await count_processed(site) == 1
    assert await site.count("pending_exports") == 2

    await site.apply(text.replace("sn: last", "sn: first"))
    assert await count_processed(site) == 4, "a changed rule reaches all objects"
    assert await site.count("pending_exports") > 2


async def test_full_sync_evaluates_all_objects_on_request(site: Site) -> None:
    await site.apply(site.definitions(page_size=1).replace("{name: Full Sync,", "{name: Repair, evaluate_all: true,"))
    await site.run("HR", "Full Import")
    await site.run("HR", "Repair")
    assert await count_processed(site, "Repair") == 4


async def test_reference_to_an_object_that_another_identity_took_over_is_not_skipped(site: Site) -> None:
    await site.apply(site.definitions(page_size=1))
    await site.nightly()
    await site.run("HR", "Full Sync")
    database = await site.database()
    # Ada, whom Grace and Alan refer to, loses her join without a trace in their rows: the sync projects her again.
    await database.write_all("DELETE FROM tenuto_identity.match_keys")
    await database.write_all(
        "UPDATE tenuto_identity.connector_objects SET metaverse_id = NULL, join_kind = NULL WHERE anchor = '1001'"
    )
    run = await site.run("HR", "Full Sync")
    assert "Projected" in run.changes
    rows = await database.fetch_all(
        "SELECT o.display, r.target_id = h.metaverse_id AS is_right"
        " FROM tenuto_identity.metaverse_references AS r"
        " JOIN tenuto_identity.metaverse_objects AS o ON o.id = r.object_id"
        " JOIN tenuto_identity.connector_objects AS h ON h.anchor = '1001'"
        " WHERE o.display IN ('Grace Hopper', 'Alan Turing') ORDER BY 1"
    )
    assert [(row["display"], row["is_right"]) for row in rows] == [("Alan Turing", True), ("Grace Hopper", True)]


def definitions_with_phones(site: Site, **rule: Any) -> str:
    """Return definitions without targets, with a second system that contributes a telephone number."""
    whole = yaml.safe_load(site.definitions(page_size=1))
    hr = whole["systems"][0]
    phones = {
        "name": "Phones",
        "connector": "memory",
        "settings": {"path": str(site.folder / "files" / "phones.json")},
        "types": [{"name": "line", "anchor": "uuid", "attributes": {"uuid": "text", "mail": "text", "phone": "text"}}],
        "run_profiles": hr["run_profiles"],
    }
    whole["systems"] = [hr, phones]
    whole["metaverse"][0]["attributes"]["phone"] = "text"
    phones_in = {
        "name": "Phones in",
        "in": {"system": "Phones", "type": "line", "to": "person"},
        "match": [{"object": "mail", "metaverse": "mail"}],
        "map": {"same": ["phone"]},
        **rule,
    }
    whole["sync_rules"] = [whole["sync_rules"][0], phones_in]
    return yaml.safe_dump(whole)


async def settle_with_phone(site: Site, **rule: Any) -> MemorySystem:
    """Join a line of the system Phones to Ada, until a full sync of HR skips all objects."""
    phones = MemorySystem(site.folder / "files" / "phones.json")
    phones.put("line", "p1", {"mail": "ada@example.org", "phone": "555"})
    await site.apply(definitions_with_phones(site, **rule))
    for system, profile in (("HR", "Full Import"), ("HR", "Full Sync"), ("Phones", "Full Import")):
        await site.run(system, profile)
    await site.run("Phones", "Full Sync")
    await count_processed(site)
    assert await count_processed(site) == 0
    assert await site.count("metaverse_objects", "attributes ? 'phone'") == 1
    return phones


async def test_full_sync_withdraws_the_values_of_a_cleared_system(site: Site) -> None:
    await settle_with_phone(site)
    await site.app.wait(await site.app.extensions.identity.clear("Phones", reason="wrong anchors"), timeout=30)
    assert await count_processed(site) == 1
    assert await site.count("metaverse_objects", "attributes ? 'phone'") == 0
    assert await count_processed(site) == 0


async def test_full_sync_withdraws_the_values_of_a_removed_object_that_remained(site: Site) -> None:
    phones = await settle_with_phone(site, on_out_of_scope="remain")
    phones.put("line", "p2", {"mail": "unknown@example.org", "phone": "556"})
    phones.delete("line", "p1")
    await site.run("Phones", "Full Import")
    sync = await site.run("Phones", "Full Sync")
    assert sync.changes == ["Disconnected"]
    assert await site.count("metaverse_objects", "attributes ? 'phone'") == 1
    assert await count_processed(site) == 1
    assert await site.count("metaverse_objects", "attributes ? 'phone'") == 0
    assert await count_processed(site) == 0


async def test_clear_beside_a_sync_page_leaves_no_identity_skipped(site: Site) -> None:
    await settle_with_phone(site)
    database = await site.database()
    await database.write_all(
        "INSERT INTO tenuto_identity.sync_marks (object_id, system_number, reason)"
        " SELECT id, system_number, 'manual' FROM tenuto_identity.connector_objects WHERE anchor = '1001'"
    )
    async with database.connection() as other:
        async with other.transaction():
            # The page of Ada has read her line when it waits for this lock to delete the mark.
            await other.execute("SELECT FROM tenuto_identity.sync_marks FOR UPDATE")
            running = await site.fire("HR", "Full Sync")
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            await eventually(lambda: database.fetch_value(waiting))
            await site.app.wait(await site.app.extensions.identity.clear("Phones", reason="wrong anchors"), timeout=30)
        sync = await site.finish(running)
    assert sync.state == "completed", sync
    assert await site.count("metaverse_objects", "attributes ? 'phone'") == 1, "the page has used the line"
    assert await count_processed(site) == 1
    assert await site.count("metaverse_objects", "attributes ? 'phone'") == 0
    assert await count_processed(site) == 0
