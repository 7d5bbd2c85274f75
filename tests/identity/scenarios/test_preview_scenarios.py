"""Acceptance scenarios of previews (A55): they list what a run does, and change nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import pytest
import yaml

from tenuto import Step, manual
from tenuto.definitions.document_parser import Document
from tenuto.operations.definitions.schedules import schedule_definition
from tests.identity.scenario_site import ADA, ALAN, GRACE, NIGHT, PEOPLE, Site

SCHEDULE = "Nightly HR Sync"


async def create_schedule(site: Site) -> None:
    hr, sync, *rest = (
        Step.of("run_profile", {"system": system, "profile": profile}, name=f"{system} {profile}")
        for system, profile in NIGHT
    )
    steps = [[hr], [sync], rest[:2], rest[2:]]
    await site.app.schedules.create(schedule_definition(SCHEDULE, manual(), steps))


async def preview(site: Site, **subject: Any) -> Any:
    id = await site.app.extensions.identity.preview(**subject)
    done = await site.app.wait(id, 60)
    assert done.state == "completed", done
    record = await site.app.extensions.identity.preview_record(id)
    assert record.state == "completed", record.problem
    return record


async def dump(site: Site) -> dict[str, Any]:
    """Return every row of the tables of identity synchronisation with its system columns, except previews."""
    database = await site.database()
    tables = await database.fetch_all(
        "SELECT relname FROM pg_class WHERE relnamespace = 'tenuto_identity'::regnamespace AND relkind IN ('r', 'S')"
        " AND relname NOT LIKE 'preview%' ORDER BY relname"
    )
    found: dict[str, Any] = {}
    for (name,) in tables:
        if name.endswith("_seq") or name == "sync_mark_stamps":
            found[name] = await database.fetch_value(f"SELECT last_value FROM tenuto_identity.{name}")
        else:
            rows = await database.fetch_all(f"SELECT t.xmin::text, t.ctid::text, t::text FROM tenuto_identity.{name} t")
            found[name] = sorted(tuple(row) for row in rows)
    return found


async def items_of(site: Site, id: UUID) -> list[Counter[tuple[Any, ...]]]:
    found: dict[int, Counter[tuple[Any, ...]]] = {}
    for item in await site.app.extensions.identity.preview_items(id, limit=500):
        found.setdefault(item.step, Counter())[item.change, item.error, item.display] += 1
    return [found.get(number, Counter()) for number in range(1, 7)]


async def test_a55_preview_of_a_nightly_run_changes_nothing_and_is_what_the_run_does(site: Site) -> None:
    await site.nightly()
    await create_schedule(site)
    site.write_hr(ADA, GRACE, ALAN)  # without Edsger
    whole = yaml.safe_load(site.definitions())
    whole["sync_rules"][0]["map"]["display"] = {"value": 'last + ", " + first'}
    before, ad, ldap = await dump(site), site.ad.load(), site.ldap.load()

    record = await preview(site, schedule=SCHEDULE, documents=[Document("changed.yaml", whole)])

    assert await dump(site) == before
    assert (site.ad.load(), site.ldap.load()) == (ad, ldap)
    assert await schemas(site) == ["tenuto_identity", "tenuto_identity_preview_shared"]
    statuses = [(step["system"], step["profile"], step["status"]) for step in record.steps]
    assert statuses == [(*step, "completed") for step in NIGHT]
    previewed = await items_of(site, record.id)
    assert previewed[0] == {("Deleted", None, "edsger@example.org"): 1}
    assert Counter(change for (change, _, _), n in previewed[1].items() for _ in range(n)) == {
        "AttributeFlow": 3,
        "Disconnected": 1,
    }
    requests = await site.app.extensions.identity.preview_requests(record.id, limit=500)
    assert Counter((each.system, each.kind) for each in requests) == {
        ("AD", "delete"): 1,
        ("AD", "update"): 3,
        ("LDAP", "delete"): 1,
        ("LDAP", "update"): 3,
    }

    await site.apply(yaml.safe_dump(whole))
    sent = len(site.ad.requests()), len(site.ldap.requests())
    night = await site.nightly()
    done = [Counter((i["change"], i["error"], i["display"]) for i in night[f"{s} {p}"].items) for s, p in NIGHT]
    assert done == previewed
    real = [("AD", each["kind"], each["anchor"], each["changes"]) for each in site.ad.requests()[sent[0] :]] + [
        ("LDAP", each["kind"], each["anchor"], each["changes"]) for each in site.ldap.requests()[sent[1] :]
    ]
    shown = [
        (each.system, each.kind, each.anchor, [[c["attribute"], c["op"], c["values"]] for c in each.changes])
        for each in requests
    ]
    assert sorted(map(repr, shown)) == sorted(map(repr, real))


async def test_a55_preview_of_the_first_night_creates_and_confirms_accounts(site: Site) -> None:
    await create_schedule(site)
    before = await dump(site)
    record = await preview(site, schedule=SCHEDULE)
    assert await dump(site) == before
    assert site.ad.requests() == []
    changes = [step["changes"] for step in record.steps]
    assert changes == [
        {"Added": 4},
        {"Projected": 4},
        {"Exported": 4},
        {"Exported": 4},
        {"Confirmed": 4},
        {"Confirmed": 4},
    ]
    night = await site.nightly()
    assert [dict(Counter(night[f"{s} {p}"].changes)) for s, p in NIGHT] == changes


async def test_a55_preview_names_the_guard_that_would_hold_and_stops_there(site: Site) -> None:
    many = [f"{n},First{n},Last{n},p{n}@example.org,Research,Fellow,,2020-01-01," for n in range(2000, 2030)]
    site.write_hr(*PEOPLE, *many)
    await site.nightly()
    await create_schedule(site)
    site.write_hr(*PEOPLE)
    record = await preview(site, schedule=SCHEDULE)
    (step,) = record.steps
    assert step["status"] == "completed_with_error"
    assert "30 of 34" in step["held"][0]
    assert await site.count("systems", "held IS NOT NULL") == 0


async def test_preview_whose_task_cannot_be_created_leaves_no_record(site: Site) -> None:
    database = await site.database()
    await database.fetch_all("ALTER TABLE tenuto.tasks ADD CONSTRAINT full_disk CHECK (name <> 'identity.preview')")
    with pytest.raises(Exception, match="full_disk"):
        await site.app.extensions.identity.preview(system="HR", profile="Full Import")
    assert await site.count("previews") == 0
    await database.fetch_all("ALTER TABLE tenuto.tasks DROP CONSTRAINT full_disk")
    record = await preview(site, system="HR", profile="Full Import")
    assert await site.count("previews") == 1
    assert record.steps[0]["changes"] == {"Added": 4}


async def schemas(site: Site) -> list[str]:
    database = await site.database()
    rows = await database.fetch_all(
        "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'tenuto_identity%' ORDER BY nspname"
    )
    return [row[0] for row in rows]


async def test_preview_of_a_plan_is_what_delta_syncs_and_exports_do_when_it_is_applied(site: Site) -> None:
    await site.nightly()
    for system in ("HR", "AD", "LDAP"):
        await site.run(system, "Delta Sync")
    changed = site.definitions().replace("cn: display\n      uid: login", "cn: last\n      uid: login")
    before, ldap = await dump(site), site.ldap.load()

    record = await preview(site, documents=[Document("changed.yaml", yaml.safe_load(changed))])

    assert (await dump(site), site.ldap.load()) == (before, ldap)
    shown = [(each["system"], each["kind"], each["processed"], each["requests"]) for each in record.steps]
    assert shown == [
        ("AD", "delta_sync", 4, 0),
        ("HR", "delta_sync", 4, 0),
        ("LDAP", "delta_sync", 4, 0),
        ("AD", "export", 0, 0),
        ("LDAP", "export", 4, 4),
    ]
    requests = await site.app.extensions.identity.preview_requests(record.id)
    assert sorted(each.changes[0]["values"][0] for each in requests) == ["Dijkstra", "Hopper", "Lovelace", "Turing"]

    planned = await site.apply(changed)
    notes = {change.key: change.notes for each in planned.lists for change in each.plan.changes if change.notes}
    assert notes == {"LDAP people out": ["12 objects will be evaluated by the next delta sync"]}
    sent = len(site.ldap.requests())
    for system, profile in [(each["system"], each["profile"]) for each in record.steps]:
        await site.run(system, profile)
    assert len(site.ldap.requests()) - sent == 4


async def test_preview_of_a_plan_that_affects_no_object_has_no_steps(site: Site) -> None:
    record = await preview(site, documents=[Document("same.yaml", yaml.safe_load(site.definitions()))])
    assert record.steps == []
