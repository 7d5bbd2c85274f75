"""Guards: mass deletions, emptied sources and cleared attributes hold a system until a user approves."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from tenuto import Actor
from tenuto.errors import Conflict
from tenuto_identity.runs.run_lifecycle import Run
from tests.identity.scenario_site import Site
from tests.support.errors import raises_code


def people(count: int, *, first: int = 0) -> list[str]:
    return [
        f"{1000 + n},F{n},L{n},p{n}@example.org,Research,Fellow,,2020-01-01,2099-12-31" for n in range(first, count)
    ]


async def imported(site: Site, count: int) -> None:
    await site.apply(site.definitions())
    site.write_hr(*people(count))
    assert (await site.run("HR", "Full Import")).state == "completed"


async def hold_of(site: Site) -> str | None:
    (system,) = [each for each in await site.app.extensions.identity.systems() if each.name == "HR"]
    return None if system.held is None else str(system.held["message"])


async def test_mass_deletion_holds_the_system_until_it_is_approved(site: Site) -> None:
    await imported(site, 100)
    assert (await site.run("HR", "Full Sync")).state == "completed"
    site.write_hr(*people(79))
    held = await site.run("HR", "Full Import")
    assert (held.state, held.changes) == ("completed_with_error", [])
    assert "21 of 100 (21 %)" in (await hold_of(site) or "")
    assert await site.count("connector_objects", "state = 'obsolete'") == 0
    refused = await site.run("HR", "Full Sync")
    assert refused.state == "failed"
    assert "is on hold" in (refused.error or "")

    ana = site.app.acting_as(Actor.user("ana")).extensions.identity
    task = await ana.approve("HR", reason="the Paris office was sold")
    await site.app.wait(task, timeout=30)
    assert await hold_of(site) is None
    assert await site.count("connector_objects", "system_number = 1 AND state = 'obsolete'") == 21
    (entry,) = [each for each in await site.app.audit.list() if each.action == "identity.hold.approve"]
    assert (entry.reason, entry.after) == ("the Paris office was sold", {"approved_deletions": 21})
    with raises_code("identity.hold.missing", Conflict):
        await ana.approve("HR", reason="again")


async def test_approval_of_a_hold_that_another_run_has_replaced_is_refused(site: Site) -> None:
    await imported(site, 100)
    site.write_hr(*people(79))
    await site.run("HR", "Full Import")
    operations = site.app.extensions.identity
    seen = await operations.hold("HR")
    site.write_hr(*people(60))
    await site.run("HR", "Full Import")
    with raises_code("identity.hold.changed", Conflict):
        await operations.approve("HR", reason="the Paris office was sold", run_id=seen.run_id)
    current = await operations.hold("HR")
    assert (seen.run_id != current.run_id, current.is_approved) == (True, False)
    task = await operations.approve("HR", reason="two offices were sold", run_id=current.run_id)
    await site.app.wait(task, timeout=30)
    assert await site.count("connector_objects", "system_number = 1 AND state = 'normal'") == 60


@pytest.mark.parametrize(("before", "after"), [(100, 80), (15, 6)])
async def test_deletions_below_the_limit_continue(site: Site, before: int, after: int) -> None:
    await imported(site, before)
    site.write_hr(*people(after))
    run = await site.run("HR", "Full Import")
    assert (run.state, run.changes) == ("completed", ["Deleted"] * (before - after))


async def test_people_who_came_back_are_not_part_of_the_approved_set(site: Site) -> None:
    await imported(site, 100)
    await site.run("HR", "Full Sync")
    site.write_hr(*people(70))
    await site.run("HR", "Full Import")
    site.write_hr(*people(75))
    assert (await site.run("HR", "Full Import")).state == "completed_with_error"
    assert "25 of 100" in (await hold_of(site) or "")
    task = await site.app.extensions.identity.approve("HR", reason="sold")
    await site.app.wait(task, timeout=30)
    assert await site.count("connector_objects", "system_number = 1 AND state = 'obsolete'") == 25


async def test_clean_import_ends_a_hold(site: Site) -> None:
    await imported(site, 100)
    site.write_hr(*people(50))
    await site.run("HR", "Full Import")
    assert await hold_of(site) is not None
    site.write_hr(*people(100))
    assert (await site.run("HR", "Full Import")).state == "completed"
    assert await hold_of(site) is None
    assert await site.count("pending_deletions") == 0


@pytest.mark.parametrize("content", ["", "employee_id,first,last,mail,department,title,manager,starts,ends\n", "\n\n"])
async def test_empty_source_fails_and_changes_nothing(site: Site, content: str) -> None:
    await imported(site, 20)
    site.hr.write_text(content)
    run = await site.run("HR", "Full Import")
    assert run.state == "failed"
    assert await site.count("connector_objects", "state = 'normal'") == 20


async def test_cleared_column_holds_the_system(site: Site) -> None:
    await imported(site, 100)
    site.write_hr(*(row.replace("Fellow", "") for row in people(100)))
    run = await site.run("HR", "Full Import")
    assert run.state == "completed_with_error"
    assert "cleared person.title: 100 of 100" in (await hold_of(site) or "")
    assert (await site.run("HR", "Full Sync")).state == "failed"
    assert await site.app.extensions.identity.approve("HR", reason="titles are gone") is None
    assert (await site.run("HR", "Full Sync")).state == "completed"


async def test_repeated_import_of_a_cleared_column_does_not_release_the_hold(site: Site) -> None:
    await imported(site, 40)
    site.write_hr(*(row.replace("Fellow", "") for row in people(40)))
    assert (await site.run("HR", "Full Import")).state == "completed_with_error"
    again = await site.run("HR", "Full Import")
    assert (again.state, again.items) == ("completed_with_error", [])
    assert "cleared person.title: 40 of 40" in (await hold_of(site) or "")
    assert (await site.run("HR", "Full Sync")).state == "failed"
    site.write_hr(*people(36), *(row.replace("Fellow", "") for row in people(40, first=36)))
    assert (await site.run("HR", "Full Import")).state == "completed"
    assert (await hold_of(site), await site.count("pending_clearings")) == (None, 0)


async def test_cleared_values_of_an_incomplete_import_hold_the_system(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.apply(site.definitions(page_size=20))
    site.write_hr(*people(40))
    await site.run("HR", "Full Import")
    cleared = [row.replace("Fellow", "") for row in people(40)]
    site.write_hr(*cleared[:39], cleared[39][:10])  # the transfer was cut off within the last row
    site.hr.write_text(site.hr.read_text().rstrip("\n"))
    assert (await site.run("HR", "Full Import")).state == "failed"
    assert "cleared person.title: 20 of 40" in (await hold_of(site) or "")
    assert (await site.run("HR", "Full Sync")).state == "failed"
    site.write_hr(*cleared)
    assert (await site.run("HR", "Full Import")).state == "completed_with_error"
    assert "cleared person.title: 40 of 40" in (await hold_of(site) or "")
    await site.app.extensions.identity.approve("HR", reason="titles are gone")
    assert (await hold_of(site), await site.count("pending_clearings")) == (None, 0)
    assert (await site.run("HR", "Full Sync")).state == "completed"


async def hold_by_delta(site: Site, gone: range) -> None:
    """Import 60 entries of AD, and hold it because a delta reports that some were deleted."""
    await site.apply(site.definitions())
    site.ad.put_many("user", [(f"u{n}", {"cn": f"U{n}", "mail": f"u{n}@example.org"}) for n in range(60)])
    await site.run("AD", "Full Import")
    for n in gone:
        site.ad.delete("user", f"u{n}")
    assert (await site.run("AD", "Delta Import")).state == "completed_with_error"


async def test_held_deletions_of_a_delta_are_not_forgotten_by_the_next_one(site: Site) -> None:
    await hold_by_delta(site, range(20))
    for n in range(20, 40):
        site.ad.delete("user", f"u{n}")
    assert (await site.run("AD", "Delta Import")).state == "completed_with_error"
    held = await site.app.extensions.identity.hold("AD")
    assert "40 of 60" in held.message
    site.ad.put("user", "u0", {"cn": "U0"})
    assert (await site.run("AD", "Delta Import")).state == "completed_with_error"
    assert "39 of 60" in (await site.app.extensions.identity.hold("AD")).message
    task = await site.app.extensions.identity.approve("AD", reason="two branches were closed")
    await site.app.wait(task, timeout=30)
    assert await site.count("connector_objects") == 21


async def test_delta_with_higher_limits_does_not_release_what_another_run_holds(site: Site) -> None:
    text = site.definitions().replace(
        "kind: delta_import}", "kind: delta_import, guards: {deletions: 90%, clearing: 90%}}"
    )
    await site.apply(text)
    site.ad.put_many("user", [(f"u{n}", {"cn": f"U{n}", "mail": f"u{n}@example.org"}) for n in range(60)])
    await site.run("AD", "Full Import")
    site.ad.delete("user", *(f"u{n}" for n in range(20)))
    assert (await site.run("AD", "Full Import")).state == "completed_with_error"
    delta = await site.run("AD", "Delta Import")
    assert (delta.state, delta.changes) == ("completed_with_error", [])
    assert "20 of 60" in (await site.app.extensions.identity.hold("AD")).message


async def test_delta_in_which_the_held_objects_are_back_releases_the_hold(site: Site) -> None:
    await hold_by_delta(site, range(20))
    for n in range(15):
        site.ad.put("user", f"u{n}", {"cn": f"U{n}", "mail": f"u{n}@example.org"})
    run = await site.run("AD", "Delta Import")
    assert (run.state, run.changes.count("Deleted")) == ("completed", 5)
    assert await site.count("systems", "held IS NOT NULL") == 0
    assert await site.count("pending_deletions") == 0


async def test_approval_does_not_release_the_hold_of_a_later_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await hold_by_delta(site, range(20))
    has_read, may_continue = Event(), Event()

    def stop(point: str) -> None:
        if point == "import_read":
            has_read.set()
            may_continue.wait(30)

    monkeypatch.setattr(Run, "observe", staticmethod(stop))
    for n in range(20, 40):
        site.ad.delete("user", f"u{n}")
    execution = await site.fire("AD", "Delta Import")
    assert await asyncio.to_thread(has_read.wait, 30)
    task = await site.app.extensions.identity.approve("AD", reason="the branch was closed")
    may_continue.set()
    assert (await site.finish(execution)).state == "completed_with_error"
    await site.app.wait(task, timeout=30)
    assert await site.count("connector_objects") == 40
    assert "20 of 60" in (await site.app.extensions.identity.hold("AD")).message


async def test_export_guard_holds_updates_that_disable(site: Site) -> None:
    text = site.definitions(scope='scope: department != "Temp"')
    disabling = "on_out_of_scope: {disable: {title: {value: '\"left\"'}}}"
    await site.apply(text.replace("on_out_of_scope: delete", disabling, 1))
    rows = people(40)
    site.write_hr(*rows)
    await site.nightly()
    site.write_hr(
        *(row.replace("Research", "Temp") for row in rows[:15]), rows[15].replace("Fellow", "Dean"), *rows[16:]
    )
    night = await site.nightly()
    assert night["AD Export"].changes == ["Exported"]
    held = await site.app.extensions.identity.hold("AD")
    assert ("15 of 40" in held.message, len(held.objects)) == (True, 15)
    assert await site.app.extensions.identity.approve("AD", reason="they left") is None
    assert len((await site.run("AD", "Export")).changes) == 15
    titles = [each["attributes"]["title"] for each in site.ad.objects("user").values()]
    assert titles.count(["left"]) == 15


async def test_import_keeps_what_an_export_holds(site: Site) -> None:
    text = site.definitions().replace(
        "    run_profiles:", "    guards: {deletions: 100%, identity_deletions: 100%}\n    run_profiles:", 1
    )
    await site.apply(text)
    site.write_hr(*people(60))
    await site.nightly()
    site.write_hr(*people(40))
    night = await site.nightly()
    assert night["AD Export"].state == "completed_with_error"
    assert night["AD Full Import"].state == "completed"
    held = await site.app.extensions.identity.hold("AD")
    assert "20 of 60" in held.message
    assert await site.app.extensions.identity.approve("AD", reason="sold") is None
    assert len((await site.run("AD", "Export")).changes) == 20


async def test_emptied_container_is_held_although_all_deletions_are_allowed(site: Site) -> None:
    text = site.definitions().replace("    run_profiles:", "    guards: {deletions: 100%}\n    run_profiles:")
    await site.apply(text)
    for place in ("Navy", "Army"):
        people_of = [(f"{place}{n}", {"cn": f"{place}{n}"}) for n in range(12)]
        site.ad.put_many("user", people_of, container=f"ou={place},dc=ad,dc=test")
    await site.run("AD", "Full Import")
    site.ad.delete("user", *(f"Navy{n}" for n in range(12)))
    assert (await site.run("AD", "Full Import")).state == "completed_with_error"
    assert "emptied user in ou=Navy,dc=ad,dc=test" in (await site.app.extensions.identity.hold("AD")).message


async def test_export_guard_holds_deletes_and_sends_everything_else(site: Site) -> None:
    # No grace, and a high limit for immediate deletions: the deletes reach the export.
    text = site.definitions().replace(
        "    run_profiles:", "    guards: {identity_deletions: 100%}\n    run_profiles:", 1
    )
    text = text.replace("    guards: {identity", "    guards: {deletions: 100%, emptied: 100%, identity", 1)
    await site.apply(text)
    site.write_hr(*people(60))
    await site.nightly()
    site.write_hr(*people(61, first=20))
    assert (await site.run("HR", "Full Import")).state == "completed"
    assert (await site.run("HR", "Full Sync")).state == "completed"
    held = await site.run("AD", "Export")
    assert (held.state, held.changes) == ("completed_with_error", ["Exported"])
    assert len(site.ad.objects("user")) == 61
    assert (await site.run("AD", "Export")).state == "completed_with_error", "updates are still possible"
    await site.app.extensions.identity.approve("AD", reason="sold")
    approved = await site.run("AD", "Export")
    assert (approved.state, len(approved.changes)) == ("completed", 20)
    assert len(site.ad.objects("user")) == 41


async def test_identity_deletions_beyond_the_limit_are_postponed(site: Site) -> None:
    text = site.definitions().replace("    run_profiles:", "    guards: {deletions: 100%}\n    run_profiles:", 1)
    await site.apply(text)
    site.write_hr(*people(60))
    await site.nightly()
    site.write_hr(*people(40))
    assert (await site.run("HR", "Full Import")).state == "completed"
    sync = await site.run("HR", "Full Sync")
    assert sync.state == "completed_with_error"
    assert await site.count("metaverse_objects") == 60 - 12
    assert await site.count("metaverse_objects", "delete_after IS NOT NULL") == 8
