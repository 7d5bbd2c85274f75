"""Doctor checks, metrics and events of identity synchronisation."""

from __future__ import annotations

import pytest

from tenuto.model.findings import Severity
from tenuto.observability.event_feed import ChangeDetector
from tests.identity.site import Site


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
