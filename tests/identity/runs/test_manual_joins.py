"""Joins that a user decides: they override the rules until the object is returned to them; erasure of a history."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tenuto.errors import Conflict, Invalid, NotFound
from tests.identity.scenario_site import ADA, GRACE, PEOPLE, Site


async def identity_of(site: Site, anchor: str) -> Any:
    (found,) = await site.app.extensions.identity.objects(system="HR", text=anchor)
    return found.metaverse_id


async def put_unmanaged(site: Site) -> None:
    site.ad.put("user", "x", {"cn": "A. L.", "mail": "other@example.org"}, address="cn=A. L.,dc=test")
    await site.run("AD", "Full Import")


async def prepare(site: Site) -> None:
    """Ada without an account that a rule would provision, and an account that no rule would match."""
    text = site.definitions().replace("provision: true", "provision: false")
    await site.apply(text)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    await put_unmanaged(site)


async def test_manual_join_gets_the_values_of_the_identity_by_the_next_sync(site: Site) -> None:
    await prepare(site)
    operations = site.app.extensions.identity
    ada = await identity_of(site, "1001")
    joined = await operations.join("AD", "x", ada, reason="renamed")
    assert joined.metaverse_id == ada
    assert joined.pinned
    run = await site.run("AD", "Delta Sync")
    assert run.errors == []
    await site.run("AD", "Export")
    assert site.ad.objects("user")["x"]["attributes"]["cn"] == ["Ada Lovelace"]
    (again,) = await operations.objects(system="AD", identity=ada)
    assert (again.anchor, again.pinned) == ("x", True)


async def test_manual_disconnection_is_not_undone_by_rules_until_the_pin_is_removed(site: Site) -> None:
    await site.apply(site.definitions().replace("provision: true", "provision: false"))
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    site.ad.put("user", "x", {"cn": "Ada", "mail": "ada@example.org"}, address="cn=Ada,dc=test")
    await site.run("AD", "Full Import")
    await site.run("AD", "Full Sync")
    operations = site.app.extensions.identity
    ada = await identity_of(site, "1001")
    assert len(await operations.objects(system="AD", identity=ada)) == 1
    await operations.unjoin("AD", "x", reason="another person")
    for system in ("AD", "HR"):
        await site.run(system, "Full Sync")
        assert await operations.objects(system="AD", identity=ada) == []
    await operations.unpin("AD", "x")
    await site.run("AD", "Delta Sync")
    assert len(await operations.objects(system="AD", identity=ada)) == 1


async def test_pinned_join_is_kept_when_the_object_leaves_the_scope(site: Site) -> None:
    text = site.definitions().replace("    project: true", "    project: true\n    scope: 'department != \"Temp\"'", 1)
    await site.apply(text)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    grace = await identity_of(site, "1002")
    operations = site.app.extensions.identity
    await operations.unjoin("HR", "1002")
    await operations.join("HR", "1002", grace)
    site.write_hr(ADA, GRACE.replace("Engineering", "Temp"), *PEOPLE[2:])
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    assert await identity_of(site, "1002") == grace


async def test_unjoined_authoritative_object_schedules_the_deletion_a_day_later(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    operations = site.app.extensions.identity
    ada = await identity_of(site, "1001")
    done = await operations.unjoin("HR", "1001")
    record = await operations.identity(ada)
    assert record.delete_after == done.delete_after
    assert record.delete_after - record.deletion_scheduled_at == timedelta(days=1)
    back = await operations.join("HR", "1001", ada)
    assert back.metaverse_id == ada
    assert (await operations.identity(ada)).delete_after is None


async def test_manual_join_is_refused_where_it_cannot_hold(site: Site) -> None:
    await prepare(site)
    operations = site.app.extensions.identity
    ada, grace = await identity_of(site, "1001"), await identity_of(site, "1002")
    with pytest.raises(NotFound) as unknown:
        await operations.join("AD", "nobody", ada)
    assert unknown.value.code == "identity.object.not_found"
    with pytest.raises(NotFound):
        await operations.join("AD", "x", 999_999)
    await operations.join("AD", "x", ada)
    with pytest.raises(Conflict) as taken:
        await operations.join("AD", "x", grace)
    assert taken.value.code == "identity.object.joined"
    site.ad.put("user", "y", {"cn": "B", "mail": "b@example.org"}, address="cn=B,dc=test")
    await site.run("AD", "Full Import")
    with pytest.raises(Conflict) as second:
        await operations.join("AD", "y", ada)
    assert second.value.code == "identity.identity.joined"


async def test_object_that_was_deleted_in_its_system_is_not_joined(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    edsger = await identity_of(site, "1004")
    site.write_hr(*PEOPLE[:3])
    await site.run("HR", "Full Import")
    assert await site.count("connector_objects", "anchor = '1004' AND state = 'obsolete'") == 1
    with pytest.raises(Conflict) as refused:
        await site.app.extensions.identity.join("HR", "1004", edsger)
    assert refused.value.code == "identity.object.not_normal"
    assert await site.count("connector_objects", "pinned") == 0


async def test_join_between_types_that_no_rule_connects_is_refused(site: Site) -> None:
    text = site.definitions().replace("metaverse:\n", "metaverse:\n  - type: device\n    attributes: {name: text}\n", 1)
    template = (
        "templates:\n  - name: devices\n"
        "    objects: [{type: device, count: 1, attributes: {name: {choice: [Printer]}}}]\n"
    )
    await site.apply(text + template)
    await site.run("HR", "Full Import")
    await site.app.wait(await site.app.extensions.identity.run_template("devices"), 60)
    (device,) = await site.app.extensions.identity.identities(type="device")
    with pytest.raises(Invalid) as refused:
        await site.app.extensions.identity.join("HR", "1001", device.id)
    assert refused.value.code == "identity.object.type_mismatch"


async def test_forget_erases_history_and_keeps_current_values_and_counts(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    operations = site.app.extensions.identity
    grace = await identity_of(site, "1002")
    before = await operations.identity(grace)
    items = await site.count("items")
    assert await operations.history(grace)
    with pytest.raises(Invalid):
        await operations.forget(grace, reason=" ")
    erased = await operations.forget(grace, reason="request of 3 May")
    assert erased.change_count > 0
    assert erased.item_count > 0
    assert await operations.history(grace) == []
    assert await operations.identity(grace) == before
    assert await site.count("items") == items
    whole = "anchor = '1002' OR display ILIKE '%grace%' OR message ILIKE '%grace%' OR detail::text ILIKE '%grace@%'"
    assert await site.count("items", whole) == 0
    assert await site.count("changes", "diff::text ILIKE '%grace@%'") == 0
    with pytest.raises(NotFound):
        await operations.forget(999_999, reason="nobody")


async def test_forget_erases_the_history_of_a_deleted_identity(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    edsger = await identity_of(site, "1004")
    site.write_hr(*PEOPLE[:3])
    await site.nightly()
    assert await site.count("metaverse_objects") == 3
    assert await site.count("items", "display ILIKE '%edsger%'") > 0
    await site.app.extensions.identity.forget(edsger, reason="request")
    assert await site.count("items", "display ILIKE '%edsger%' OR anchor = '1004'") == 0
    assert await site.count("changes", "diff::text ILIKE '%edsger%'") == 0


async def test_forget_deletes_previews_of_an_identity_without_history(site: Site) -> None:
    await site.apply(site.definitions())
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    operations = site.app.extensions.identity
    grace = await identity_of(site, "1002")
    await operations.forget(grace, reason="request")
    await site.app.wait(await operations.preview(system="AD", profile="Export"), 60)
    assert await site.count("preview_requests", "changes::text ILIKE '%grace@%'") > 0
    await operations.forget(grace, reason="request")
    assert await site.count("previews") == 0
    assert await site.count("preview_requests") == 0


async def test_forget_deletes_a_running_preview_of_an_unknown_identity(site: Site) -> None:
    await site.apply(site.definitions())
    operations = site.app.extensions.identity
    id = await operations.preview(system="HR", profile="Full Import")
    await site.app.wait(id, 60)
    database = await site.database()
    await database.fetch_all("UPDATE tenuto_identity.previews SET state = 'running' WHERE id = $1", id)
    with pytest.raises(NotFound):
        await operations.forget(4711, reason="request")
    assert await site.count("previews") == 1
    await database.fetch_all("UPDATE tenuto_identity.preview_items SET metaverse_id = 4711 WHERE anchor = '1004'")
    await operations.forget(4711, reason="request")
    assert await site.count("previews") == 0
    assert await site.count("preview_items") == 0
