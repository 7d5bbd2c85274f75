"""Doctor checks, metrics and events of identity synchronisation."""

from __future__ import annotations

import pytest

from tenuto.model.doctor_findings import Severity
from tenuto.observability.event_feed import ChangeDetector
from tests.identity.scenario_site import Site


async def test_doctor_finds_nothing_after_a_night(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    found = {finding.name: finding for finding in await site.app.doctor()}
    assert found["identity_consistency"].severity is Severity.OK, found["identity_consistency"].details
    assert found["identity_holds"].severity is Severity.OK


@pytest.mark.parametrize(
    ("damage", "detail"),
    [
        ("DELETE FROM tenuto_identity.metaverse_objects WHERE display LIKE 'Alan%'", "missing metaverse object"),
        ("INSERT INTO tenuto_identity.sync_marks VALUES (99999, 1, 'manual')", "the missing object 99999 is marked"),
        (
            "UPDATE tenuto_identity.metaverse_objects SET provenance = '{\"mail\": [1, 99999]}'",
            "comes from the missing object 99999",
        ),
    ],
)
async def test_doctor_names_rows_that_contradict_each_other(site: Site, damage: str, detail: str) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    database = await site.database()
    await database.write_all(damage)
    found = {finding.name: finding for finding in await site.app.doctor()}
    assert found["identity_consistency"].severity is Severity.PROBLEM
    assert detail in " ".join(found["identity_consistency"].details)


async def test_doctor_names_held_systems(site: Site) -> None:
    await site.apply(site.definitions())
    database = await site.database()
    await database.write_all(
        "UPDATE tenuto_identity.systems SET held = '{\"message\": \"21 of 100\"}' WHERE name = 'HR'"
    )
    found = {finding.name: finding for finding in await site.app.doctor()}
    assert found["identity_holds"].details == ["HR: 21 of 100"]
    assert "tenuto_identity_held_systems 1.0" in await site.app.status.metrics()


async def test_metrics_and_events_report_runs_and_objects(site: Site) -> None:
    await site.apply(site.definitions())
    database = await site.database()
    detector = ChangeDetector(extensions=site.app.extension_registry)
    await detector.detect_changes(database, database.clock.now())
    await site.run("HR", "Full Import")
    events = await detector.detect_changes(database, database.clock.now())
    states = [event.data["state"] for event in events if event.topic == "identity.runs"]
    assert "completed" in states
    assert 'tenuto_identity_objects{state="normal",system="HR"} 4.0' in await site.app.status.metrics()


async def test_metrics_report_runs_items_speed_and_the_age_of_exports(site: Site) -> None:
    await site.apply(site.definitions())
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    found = await site.app.status.metrics()
    assert 'tenuto_identity_runs{kind="full_import",state="completed",system="HR"} 1.0' in found
    assert 'tenuto_identity_items{result="change",system="HR",value="Projected"} 4.0' in found
    assert 'tenuto_identity_seconds_per_1000_objects{kind="full_import",system="HR"}' in found
    assert 'tenuto_identity_pending_export_age_seconds{system="AD"}' in found


async def test_doctor_names_scratch_copies_that_no_preview_uses(site: Site) -> None:
    await site.apply(site.definitions())
    database = await site.database()
    await database.fetch_all("CREATE SCHEMA tenuto_identity_preview_0123")
    found = {finding.name: finding for finding in await site.app.doctor()}
    assert found["identity_previews"].details == ["tenuto_identity_preview_0123"]
