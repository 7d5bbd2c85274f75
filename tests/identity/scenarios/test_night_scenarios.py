"""Acceptance scenarios of the complete nightly run (A01, A02, A06, A10) and of a night with CSV targets."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenuto import Step, manual
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto_identity.runs.run_lifecycle import Run
from tenuto_identity.tasks.housekeeping import run_housekeeping
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, NIGHT, Site, open_site


async def start_night(site: Site) -> Any:
    """Start the schedule of four groups; return the execution."""
    hr, sync, *rest = (
        Step.of("run_profile", {"system": system, "profile": profile}, name=f"{system} {profile}")
        for system, profile in NIGHT
    )
    steps = [[hr], [sync], rest[:2], rest[2:]]
    if not await site.app.schedules.list():
        await site.app.schedules.create(schedule_definition("Nightly HR Sync", manual(), steps))
    fired = await site.app.schedules.run("Nightly HR Sync")
    assert fired.execution_id is not None
    return fired.execution_id


async def run_night(site: Site) -> Any:
    return await site.app.executions.wait(await start_night(site), 60)


async def rows(site: Site) -> dict[str, list[tuple[Any, ...]]]:
    database = await site.database()
    return {
        table: sorted(
            tuple(row)
            for row in await database.fetch_all(f"SELECT t.xmin::text, t.ctid::text FROM tenuto_identity.{table} AS t")
        )
        for table in ("connector_objects", "metaverse_objects", "pending_exports")
    }


async def test_a01_schedule_of_four_groups_and_six_run_profiles_completes(site: Site) -> None:
    done = await run_night(site)
    assert done.state == "completed", done
    runs = await site.app.extensions.identity.runs()
    assert sorted((each.system, each.profile) for each in runs) == sorted(NIGHT)
    assert {each.state for each in runs} == {"completed"}
    changes = {(each.system, each.kind): each.counts["changes"] for each in runs}
    assert changes["HR", "full_import"] == {"Added": 4}
    assert changes["HR", "full_sync"] == {"Projected": 4}
    (sync,) = [each for each in runs if each.kind == "full_sync"]
    assert sync.counts["exports"] == {"AD": 4, "LDAP": 4}
    assert changes["AD", "export"] == changes["LDAP", "export"] == {"Exported": 4}
    assert changes["AD", "full_import"] == {"Confirmed": 4}
    (export,) = [each for each in runs if (each.system, each.kind) == ("AD", "export")]
    items = {each["display"]: each["detail"] for each in await site.items(export.id)}
    assert sum('"manager"' in detail for detail in items.values()) == 3  # sent after the accounts, in the same run
    assert await site.count("pending_exports") == 0
    users = {each["attributes"]["cn"][0]: each for each in site.ad.objects("user").values()}
    assert len(users) == 4
    assert users["Grace Hopper"]["attributes"]["manager"] == [users["Ada Lovelace"]["address"]]


async def test_a01_whole_plan_of_a_night_is_visible_at_its_start(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions())
        execution = await start_night(site)
        database = await site.database()
        query = (
            "SELECT group_index, state, input::text AS input FROM tenuto.tasks WHERE execution_id = $1 ORDER BY 1, 3"
        )
        planned = await database.fetch_all(query, execution)
        assert [(row["group_index"], row["state"]) for row in planned] == [
            (0, "queued"), (1, "waiting"), (2, "waiting"), (2, "waiting"), (3, "waiting"), (3, "waiting")
        ]  # fmt: skip
        for row, (system, profile) in zip(planned, NIGHT, strict=True):
            assert f'"{system}"' in row["input"]
            assert f'"{profile}"' in row["input"]
        async with site.app.worker():
            assert (await site.app.executions.wait(execution, 60)).state == "completed"


async def test_a02_second_night_writes_no_row_and_sends_nothing(site: Site) -> None:
    await run_night(site)
    before, sent = await rows(site), (len(site.ad.requests()), len(site.ldap.requests()))
    assert (await run_night(site)).state == "completed"
    assert await rows(site) == before
    assert (len(site.ad.requests()), len(site.ldap.requests())) == sent
    assert all(each.counts["items"] == 0 for each in (await site.app.extensions.identity.runs())[:6])


async def test_a06_missing_container_is_retried_later_and_other_objects_are_exported(site: Site) -> None:
    await site.apply(site.definitions(options="delta: true, requires_parents: true"))
    site.ad.add_containers(*(f"ou={name},ou=people,dc=ad,dc=test" for name in ("Research", "Engineering")))
    site.ldap.add_containers("ou=people,dc=ldap,dc=test")
    await site.nightly()
    site.write_hr(ADA.replace("Director", "Countess"), GRACE, ALAN.replace("Research", "Compilers"), EDSGER)
    night = await site.nightly()
    export = night["AD Export"]
    assert export.errors == ["missing_parent"]
    assert export.state == "completed_with_warning"
    assert export.changes == ["Exported"]
    site.ad.add_containers("ou=Compilers,ou=people,dc=ad,dc=test")
    await site.app.extensions.identity.retry("AD")
    await site.run("AD", "Export")
    await site.run("AD", "Full Import")
    addresses = {each["address"] for each in site.ad.objects("user").values()}
    assert "cn=Alan Turing,ou=Compilers,ou=people,dc=ad,dc=test" in addresses
    assert await site.count("pending_exports") == 0


def with_csv_target(site: Site) -> dict[str, Any]:
    whole: dict[str, Any] = yaml.safe_load(site.definitions())
    profiles = [each for each in whole["systems"][1]["run_profiles"] if each["kind"] != "delta_import"]
    attributes = dict.fromkeys(("account", "cn", "mail", "title"), "text")
    manager = {"type": "reference", "to": "user"}
    whole["systems"][1].update(
        connector="csv",
        settings={"path": str(site.folder / "files" / "ad.csv"), "allow_empty": True},
        types=[{"name": "user", "anchor": "account", "attributes": {**attributes, "manager": manager}}],
        run_profiles=profiles,
    )
    whole["sync_rules"][1]["map"] = {"same": ["mail", "title", "manager"], "cn": "display", "account": "login"}
    return whole


async def test_confirming_import_of_a_csv_target_finds_nothing_new(site: Site) -> None:
    await site.apply(yaml.safe_dump(with_csv_target(site)))
    first = await site.nightly()
    assert set(first["AD Export"].changes) == {"Exported"}
    assert first["AD Full Import"].items == []
    site.write_hr(ADA.replace("Director", "Countess"), GRACE, ALAN)
    second = await site.nightly()
    assert second["AD Export"].changes == ["Deprovisioned", "Exported"]
    assert second["AD Full Import"].items == []
    assert await site.count("pending_exports") == 0


async def test_a10_future_joiner_and_dated_leaver_need_no_import(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await site.database()
    today = database.clock.now().date()
    scope = "scope: 'starts <= today() and (ends == none or ends >= today())'"
    await site.apply(site.definitions(scope=scope))
    barbara = f"1005,Barbara,Liskov,barbara@example.org,Research,Fellow,1001,{today + timedelta(days=3)},"
    site.write_hr(ADA, GRACE, f"{ALAN}{today + timedelta(days=1)}", EDSGER, barbara)
    await site.nightly()
    assert names(site) == ["Ada Lovelace", "Alan Turing", "Edsger Dijkstra", "Grace Hopper"]
    due = await database.fetch_value("SELECT max(reevaluate_at) FROM tenuto_identity.metaverse_objects")
    assert (due.hour, due.minute) == (0, 0)  # midnight in the zone of the rule
    # Three days later: runs take the instant from here, and what is due by then is due now.
    monkeypatch.setattr(Run, "now", lambda run: run.database.clock.now() + timedelta(days=3))
    await database.write_all(
        "UPDATE tenuto_identity.metaverse_objects SET reevaluate_at = now()"
        " WHERE reevaluate_at < now() + interval '3 days'"
    )
    registry = site.app.extension_registry
    identity = registry.find("identity")
    assert identity is not None
    await run_housekeeping(registry.create_services(identity))
    run = await site.run("HR", "Delta Sync")
    assert len(run.items) == 2
    await site.run("AD", "Export")
    assert names(site) == ["Ada Lovelace", "Barbara Liskov", "Edsger Dijkstra", "Grace Hopper"]


def names(site: Site) -> list[str]:
    return sorted(each["attributes"]["cn"][0] for each in site.ad.objects("user").values())
