"""Sync: joins, references across pages, deletion with grace, scope, drift, rule changes."""

from __future__ import annotations

from datetime import timedelta

from tenuto_identity.tasks.housekeeping import run_housekeeping
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, PEOPLE, Site


async def test_existing_entry_is_joined_ignoring_case_instead_of_created(site: Site) -> None:
    await site.apply(site.definitions())
    site.ad.put("user", "old", {"cn": "Ada", "mail": "ADA@Example.org"}, address="cn=Ada,ou=people,dc=ad,dc=test")
    await site.run("AD", "Full Import")
    night = await site.nightly()
    assert {run.state for run in night.values()} == {"completed"}
    kinds = [request["kind"] for request in site.ad.requests()]
    assert kinds.count("create") == 3
    assert site.ad.objects("user")["old"]["attributes"]["title"] == ["Director"]
    assert len(site.ad.objects("user")) == 4


async def test_references_across_pages_and_in_a_cycle_are_resolved_by_one_sync(site: Site) -> None:
    await site.apply(site.definitions(page_size=2))
    site.write_hr(ADA.replace("Director,,", "Director,1004,"), GRACE, ALAN, EDSGER.replace(",1002,", ",1001,"))
    await site.run("HR", "Full Import")
    sync = await site.run("HR", "Full Sync")
    assert (sync.state, sync.changes.count("Projected")) == ("completed", 4)
    database = await site.database()
    rows = await database.fetch_all(
        "SELECT o.display AS one, t.display AS other FROM tenuto_identity.metaverse_references AS r"
        " JOIN tenuto_identity.metaverse_objects AS o ON o.id = r.object_id"
        " JOIN tenuto_identity.metaverse_objects AS t ON t.id = r.target_id ORDER BY 1"
    )
    assert {row["one"]: row["other"] for row in rows} == {
        "Ada Lovelace": "Edsger Dijkstra",
        "Alan Turing": "Ada Lovelace",
        "Edsger Dijkstra": "Ada Lovelace",
        "Grace Hopper": "Ada Lovelace",
    }
    assert await site.count("sync_marks") == 0


async def test_history_of_projected_identities_has_all_values_and_references(site: Site) -> None:
    await site.apply(site.definitions())
    site.write_hr(ADA, GRACE, ALAN.replace("Turing", '"Tu""],""ring"'), EDSGER)
    await site.run("HR", "Full Import")
    assert (await site.run("HR", "Full Sync")).changes == ["Projected"] * 4
    assert await site.count("changes", "subject = 'identity'") == 4
    database = await site.database()
    differing = await database.fetch_all(
        """
        SELECT c.diff, o.attributes
        FROM tenuto_identity.changes AS c
        JOIN tenuto_identity.metaverse_objects AS o ON o.id = c.subject_id
        WHERE c.subject = 'identity' AND c.diff IS DISTINCT FROM (
            SELECT jsonb_object_agg(v.name, jsonb_build_array('[]'::jsonb, v.found))
            FROM (
                SELECT key AS name, value AS found FROM jsonb_each(o.attributes)
                UNION ALL
                SELECT 'manager', jsonb_agg(r.target_id)
                FROM tenuto_identity.metaverse_references AS r
                WHERE r.object_id = o.id
                HAVING count(*) > 0
            ) AS v
        )
        """
    )
    assert differing == []
    assert await site.count("metaverse_references") == 3


async def test_unresolved_reference_is_a_warning_and_resolved_when_its_target_comes(site: Site) -> None:
    await site.apply(site.definitions())
    site.write_hr(GRACE)
    await site.run("HR", "Full Import")
    sync = await site.run("HR", "Full Sync")
    assert sync.state == "completed_with_warning"
    assert "1 references are not resolved" in (sync.error or "")
    site.write_hr(ADA, GRACE)
    await site.run("HR", "Full Import")
    assert (await site.run("HR", "Delta Sync")).state == "completed"
    assert await site.count("metaverse_references") == 1


async def test_leaver_with_grace_who_returns_keeps_the_identity(site: Site) -> None:
    await site.apply(site.definitions(grace=", grace: 30d"))
    await site.nightly()
    database = await site.database()
    before = await database.fetch_value("SELECT id FROM tenuto_identity.metaverse_objects WHERE display LIKE 'Edsger%'")
    site.write_hr(ADA, GRACE, ALAN)
    night = await site.nightly()
    assert night["HR Full Sync"].changes == ["Disconnected"]
    assert night["AD Export"].items == night["LDAP Export"].items == []
    assert await site.count("metaverse_objects", "delete_after > now() + interval '29 days'") == 1
    site.write_hr(*PEOPLE)
    night = await site.nightly()
    assert night["HR Full Sync"].changes == ["Joined"]
    assert night["AD Export"].items == []
    assert await site.count("metaverse_objects", f"id = {before} AND delete_after IS NULL") == 1


async def test_leaver_whose_grace_has_ended_is_deleted_in_the_name_of_the_initiator(site: Site) -> None:
    await site.apply(site.definitions(grace=", grace: 30d"))
    await site.nightly()
    site.write_hr(ADA, GRACE, ALAN)
    await site.nightly()
    database = await site.database()
    await database.write_all(
        "UPDATE tenuto_identity.metaverse_objects SET delete_after = now() - interval '1 day'"
        " WHERE delete_after IS NOT NULL"
    )
    registry = site.app.extension_registry
    identity = registry.find("identity")
    assert identity is not None
    await run_housekeeping(registry.create_services(identity))
    row = await database.fetch_one("SELECT id FROM tenuto.tasks WHERE kind = 'identity.delete_due'")
    task_id = row["id"] if row else None
    if task_id is not None:
        await site.app.wait(task_id, timeout=30)
    assert await site.count("metaverse_objects") == 3
    assert await site.count("pending_exports", "kind = 'delete'") == 2
    (activity,) = await database.fetch_all(
        "SELECT status, initiator_name FROM tenuto.activities WHERE kind = 'identity.delete_due'"
    )
    (first,) = await database.fetch_all(
        "SELECT DISTINCT initiator_name FROM tenuto_identity.runs WHERE profile = 'Full Sync'"
    )
    assert (activity["status"], activity["initiator_name"]) == ("completed", first["initiator_name"])


async def test_out_of_scope_person_is_deleted_and_the_delete_withdrawn_if_the_person_returns(site: Site) -> None:
    await site.apply(site.definitions(scope="scope: 'department != \"Temp\"'"))
    await site.nightly()
    site.write_hr(ADA, GRACE.replace("Engineering", "Temp"), ALAN, EDSGER)
    await site.run("HR", "Full Import")
    await site.run("HR", "Delta Sync")
    assert await site.count("pending_exports", "kind = 'delete'") == 2
    site.write_hr(*PEOPLE)
    await site.run("HR", "Full Import")
    await site.run("HR", "Delta Sync")
    assert await site.count("pending_exports") == 0
    site.write_hr(ADA, GRACE.replace("Engineering", "Temp"), ALAN, EDSGER)
    await site.nightly()
    assert len(site.ad.objects("user")) == 3


async def test_future_joiner_is_created_by_housekeeping_and_delta_sync(site: Site) -> None:
    database = await site.database()
    starts = (database.clock.now() + timedelta(days=3)).date()
    await site.apply(site.definitions(scope="scope: 'starts <= today()'"))
    site.write_hr(ADA, f"1005,Barbara,Liskov,barbara@example.org,Research,Fellow,1001,{starts},")
    await site.nightly()
    assert len(site.ad.objects("user")) == 1
    assert await site.count("metaverse_objects", "reevaluate_at > now() + interval '1 day'") == 1


async def test_drift_is_corrected_once(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    anchors = {each["attributes"]["cn"][0]: anchor for anchor, each in site.ad.objects("user").items()}
    site.ad.change("user", anchors["Ada Lovelace"], title="Countess")
    assert (await site.run("AD", "Full Import")).changes == ["Updated"]
    assert (await site.run("AD", "Delta Sync")).changes == ["DriftCorrected"]
    assert (await site.run("AD", "Export")).changes == ["Exported"]
    assert site.ad.objects("user")[anchors["Ada Lovelace"]]["attributes"]["title"] == ["Director"]
    await site.run("AD", "Full Import")
    assert (await site.run("AD", "Delta Sync")).items == []


async def test_changed_rule_reaches_all_objects_by_delta_sync(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    await site.apply(site.definitions().replace("""display: {value: 'first + " " + last'}""", "display: last"))
    assert await site.count("sync_marks", "reason = 'rule'") == 4
    sync = await site.run("HR", "Delta Sync")
    assert (sync.state, sync.changes) == ("completed", ["AttributeFlow"] * 4)
    assert (await site.run("HR", "Delta Sync")).items == []


async def test_ambiguous_match_stays_unjoined(site: Site) -> None:
    await site.apply(site.definitions())
    site.write_hr(ADA, GRACE.replace("grace@example.org", "ada@example.org"))
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    database = await site.database()
    await database.write_all("DELETE FROM tenuto_identity.pending_exports")
    await database.write_all("DELETE FROM tenuto_identity.connector_objects WHERE system_number = 2")
    site.ad.put("user", "x", {"cn": "Ada", "mail": "ada@example.org"}, address="cn=x,dc=ad,dc=test")
    await site.run("AD", "Full Import")
    sync = await site.run("AD", "Full Sync")
    assert sync.errors == ["ambiguous_match"]
    assert await site.count("connector_objects", "anchor = 'x' AND metaverse_id IS NULL") == 1
