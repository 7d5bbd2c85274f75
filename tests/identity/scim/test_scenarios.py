"""Acceptance scenarios of the SCIM connector (A63 and A64), with workers, on a real scim2-server."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenuto.jobs.context import Context, current_context
from tenuto_identity.connectors.memory import MemorySystem
from tenuto_identity.runs.run_lifecycle import Run
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, PEOPLE, RunResult, Site, open_site, run_until_killed
from tests.identity.scim.conftest import WORK_MAIL
from tests.identity.scim.service import ENTERPRISE, TOKEN, Gateway, Received, Reply, settings
from tests.support.require_value import known

BARBARA = "1005,Barbara,Liskov,barbara@example.org,Research,Fellow,1001,2020-05-01,"
PROFILES = {"Full Import": "full_import", "Delta Import": "delta_import", "Full Sync": "full_sync", "Export": "export"}
NIGHT = (("HR", "Full Import"), ("HR", "Full Sync"), ("SCIM", "Export"), ("SCIM", "Full Import"))


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key of secrets, and the address of the service, also for the workers that a test starts."""
    key = tmp_path / "master.key"
    key.touch(0o600)
    key.write_bytes(base64.b64encode(os.urandom(32)))
    monkeypatch.setenv("TENUTO_MASTER_KEY_FILE", str(key))
    monkeypatch.setenv("TENUTO_HTTP_ALLOWED_HOSTS", "127.0.0.1")


def system(gateway: Gateway, **options: Any) -> dict[str, Any]:
    ignoring_case = {"type": "text", "equality": "ignore_case"}
    manager = {"type": "reference", "to": "User"}
    return {
        "name": "SCIM",
        "connector": "scim",
        "settings": settings(gateway.url, **options),
        "types": [
            {
                "name": "User",
                "anchor": "id",
                "address": "userName",
                "attributes": {
                    "id": {"type": "text", "writable": False},
                    "userName": ignoring_case,
                    "name.familyName": "text",
                    "title": "text",
                    WORK_MAIL: "text",
                    f"{ENTERPRISE}:manager": manager,
                },
            },
            {
                "name": "Group",
                "anchor": "id",
                "attributes": {
                    "id": {"type": "text", "writable": False},
                    "displayName": "text",
                    "members": {**manager, "multi": True},
                },
            },
        ],
        "run_profiles": [{"name": name, "kind": kind} for name, kind in PROFILES.items()],
    }


def target_definitions(site: Site, gateway: Gateway) -> str:
    """Return the definitions: people of HR and teams of a list flow to users and groups of SCIM."""
    found: dict[str, Any] = yaml.safe_load(site.definitions())
    person = {"type": "reference", "to": "person"}
    lists = {
        "name": "Lists",
        "connector": "memory",
        "settings": {"path": str(site.folder / "files" / "lists.json")},
        "types": [
            {"name": "person", "anchor": "employee_id", "attributes": {"employee_id": "text"}},
            {"name": "list", "anchor": "name", "attributes": {"name": "text", "member": {**person, "multi": True}}},
        ],
        "run_profiles": [{"name": name, "kind": kind} for name, kind in PROFILES.items() if name != "Export"],
    }
    found["systems"][1:] = [system(gateway), lists]
    found["metaverse"].append({"type": "team", "attributes": {"cn": "text", "member": {**person, "multi": True}}})
    found["sync_rules"][1:] = [
        {
            "name": "Users out",
            "out": {"from": "person", "system": "SCIM", "type": "User"},
            "match": [{"object": "userName", "metaverse": "login"}],
            "provision": True,
            "on_out_of_scope": "delete",
            "map": {
                "same": ["title"],
                "userName": "login",
                "name.familyName": "last",
                WORK_MAIL: "mail",
                f"{ENTERPRISE}:manager": "manager",
            },
        },
        {
            "name": "List people in",
            "in": {"system": "Lists", "type": "person", "to": "person"},
            "match": [{"object": "employee_id", "metaverse": "employee_id"}],
            "map": {},
        },
        {
            "name": "Lists in",
            "in": {"system": "Lists", "type": "list", "to": "team"},
            "project": True,
            "map": {"cn": "name", "same": ["member"]},
        },
        {
            "name": "Teams out",
            "out": {"from": "team", "system": "SCIM", "type": "Group"},
            "provision": True,
            "map": {"displayName": "cn", "members": "member"},
        },
    ]
    return yaml.safe_dump(found)


async def prepare(site: Site, definitions: str) -> None:
    await site.app.secrets.set("scim", TOKEN)
    await site.apply(definitions)


async def run_night(site: Site, *steps: tuple[str, str]) -> dict[str, RunResult]:
    done: dict[str, RunResult] = {}
    for name, profile in steps or NIGHT:
        done[f"{name} {profile}"] = await site.run(name, profile)
        assert done[f"{name} {profile}"].state == "completed", done
    return done


def writes(gateway: Gateway) -> list[tuple[str, str, Any]]:
    """Return the writes since the last call."""
    found = gateway.sent("POST", "PUT", "PATCH", "DELETE")
    gateway.received.clear()
    return found


async def test_a63_night_on_a_scim_target_creates_changes_and_deletes_users_and_members(
    site: Site, gateway: Gateway
) -> None:
    tenant = gateway.tenant
    await prepare(site, target_definitions(site, gateway))
    first = await run_night(site)
    assert first["SCIM Export"].changes == ["Exported"] * 4
    assert first["SCIM Full Import"].changes == ["Confirmed"] * 4
    assert await site.count("pending_exports") == 0
    users = tenant.users()
    assert set(users) == {"ada.lovelace", "grace.hopper", "alan.turing", "edsger.dijkstra"}
    ada, grace = users["ada.lovelace"], users["grace.hopper"]
    assert grace["emails"] == [{"type": "work", "value": "grace@example.org"}]
    assert grace[ENTERPRISE]["manager"]["value"] == ada["id"], "a reference is the id of the user"
    assert [method for method, _, _ in writes(gateway)].count("POST") == 4
    await run_night(site)
    assert writes(gateway) == [], "the second night sends nothing"

    site.write_hr(ADA, GRACE.replace("Engineer,", "Admiral,"), ALAN, EDSGER)
    await run_night(site)
    ((method, path, body),) = writes(gateway)
    assert (method, path) == ("PATCH", f"/Users/{grace['id']}")
    assert body["Operations"] == [{"op": "replace", "path": "title", "value": "Admiral"}]

    # A team, then one more member: one value is added, the list is not replaced.
    lists = MemorySystem(site.folder / "files" / "lists.json")
    for row in PEOPLE:
        lists.put("person", row[:4], {"employee_id": row[:4]})
    lists.put("list", "team", {"name": "team", "member": ["1001"]})
    teams = (("Lists", "Full Import"), ("Lists", "Full Sync"), ("SCIM", "Export"), ("SCIM", "Full Import"))
    await run_night(site, *teams)
    ((method, path, body),) = writes(gateway)
    assert (method, path, body["members"]) == ("POST", "/Groups", [{"value": ada["id"]}])
    lists.change("list", "team", member=["1001", "1002"])
    await run_night(site, *teams)
    ((method, path, body),) = writes(gateway)
    assert (method, path) == ("PATCH", f"/Groups/{tenant.groups()['team']['id']}")
    assert body["Operations"] == [{"op": "add", "path": "members", "value": [{"value": grace["id"]}]}]
    assert await site.count("pending_exports") == 0

    # A joiner whose account exists in another case is joined; a leaver whose account is gone is a success.
    barbara = tenant.add_user("Barbara.Liskov")
    tenant.call("DELETE", f"/Users/{users['edsger.dijkstra']['id']}")
    site.write_hr(ADA, GRACE.replace("Engineer,", "Admiral,"), ALAN, BARBARA)
    imported = await site.run("SCIM", "Delta Import")
    assert imported.state == "completed_with_warning", "a delta by time does not find deletions, and says so"
    assert imported.changes == ["Added"]
    await run_night(site)
    sent = writes(gateway)
    assert sorted((method, path) for method, path, _ in sent) == [
        ("DELETE", f"/Users/{users['edsger.dijkstra']['id']}"),
        ("PATCH", f"/Users/{barbara}"),
    ]
    assert tenant.users()["Barbara.Liskov"]["id"] == barbara, "the name is equal ignoring case"
    assert await site.count("pending_exports") == 0
    database = await site.database()
    assert TOKEN not in str(await database.fetch_all("SELECT t::text FROM tenuto_identity.items AS t"))


async def test_a63_export_to_a_busy_scim_target_waits_or_repeats_later(site: Site, gateway: Gateway) -> None:
    await prepare(site, target_definitions(site, gateway))
    asked: dict[str, int] = {"ada.lovelace": 1, "grace.hopper": 3600}

    def behave(request: Received) -> Reply | None:
        name = request.body["userName"] if request.method == "POST" else ""
        return Reply(429, None, {"Retry-After": str(asked.pop(name))}) if name in asked else None

    gateway.behaviour = behave
    for name, profile in NIGHT[:2]:
        await site.run(name, profile)
    export = await site.run("SCIM", "Export")
    assert (export.changes, export.errors) == (["Exported"] * 3, ["busy"])
    times = {name: [each.at for each in gateway.received if (each.body or {}).get("userName") == name]
             for name in ("ada.lovelace", "grace.hopper")}  # fmt: skip
    assert times["ada.lovelace"][1] - times["ada.lovelace"][0] >= 1.0
    assert len(times["grace.hopper"]) == 1
    assert await site.count("pending_exports", "error LIKE 'busy:%' AND attempts = 0") == 1


def target_with_patience(site: Site, gateway: Gateway) -> str:
    """Return definitions whose SCIM connector waits for an hour, and sends one request at a time."""
    found = yaml.safe_load(target_definitions(site, gateway))
    found["systems"][1]["settings"] |= {"max_wait_seconds": 3_600, "concurrency": 1}
    return yaml.safe_dump(found)


async def test_cancelled_scim_import_ends_its_wait_for_a_busy_service_at_once(site: Site, gateway: Gateway) -> None:
    asked = threading.Event()

    def behave(request: Received) -> Reply | None:
        if request.path != "/Users":
            return None
        asked.set()
        return Reply(429, None, {"Retry-After": "3000"})

    gateway.tenant.add_user("ada")
    await prepare(site, target_with_patience(site, gateway))
    gateway.behaviour = behave
    execution = await site.fire("SCIM", "Full Import")
    assert await asyncio.to_thread(asked.wait, 60)
    await site.app.executions.cancel(execution)
    done = await asyncio.wait_for(site.finish(execution), 20)
    assert (done.state, done.items) == ("cancelled", [])
    assert await site.count("runs", "state = 'cancelled'") == 1
    assert len([each for each in gateway.received if each.path == "/Users"]) == 1, "nothing is asked again"
    gateway.behaviour = lambda _: None
    assert (await site.run("SCIM", "Full Import")).changes == ["Added"]


async def test_cancelled_scim_export_records_what_was_sent_and_sends_nothing_more(site: Site, gateway: Gateway) -> None:
    await prepare(site, target_with_patience(site, gateway))
    for name, profile in NIGHT[:2]:
        await site.run(name, profile)
    asked = threading.Event()

    def behave(request: Received) -> Reply | None:
        if request.method != "POST" or len(gateway.tenant.users()) < 2:
            return None
        asked.set()
        return Reply(429, None, {"Retry-After": "3000"})

    gateway.behaviour = behave
    execution = await site.fire("SCIM", "Export")
    assert await asyncio.to_thread(asked.wait, 60)
    await site.app.executions.cancel(execution)
    done = await asyncio.wait_for(site.finish(execution), 20)
    assert done.state == "cancelled"
    assert (done.changes, done.errors) == (["Exported"] * 2, ["busy"] * 2)
    assert await site.count("pending_exports", "state = 'executing' OR uncertain") == 0
    assert await site.count("pending_exports", "error LIKE 'busy:%' AND attempts = 0") == 2
    assert len(gateway.sent("POST")) == 3, "the fourth request is not sent to a busy service"
    gateway.behaviour = lambda _: None
    await site.app.extensions.identity.retry("SCIM")  # the busy ones wait for their next attempt
    assert (await site.run("SCIM", "Export")).changes.count("Exported") >= 2
    assert (await site.run("SCIM", "Full Import")).changes == ["Confirmed"] * 4
    assert len(gateway.tenant.users()) == 4


async def test_cancelled_export_ends_after_the_request_that_the_service_is_answering(
    site: Site, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread of a cancelled run writes on: the run ends when the call of its connector has ended."""
    await prepare(site, target_with_patience(site, gateway))
    for name, profile in NIGHT[:2]:
        await site.run(name, profile)
    asked, released = threading.Event(), threading.Event()

    def behave(request: Received) -> Reply | None:
        if request.method == "POST" and not released.is_set():
            asked.set()
            assert released.wait(60)
        return None

    contexts: list[Context] = []

    def observe(point: str) -> None:
        if point == "export_claimed":
            contexts.append(known(current_context.get()))

    monkeypatch.setattr(Run, "observe", staticmethod(observe))
    gateway.behaviour = behave
    execution = await site.fire("SCIM", "Export")
    assert await asyncio.to_thread(asked.wait, 60)
    await site.app.executions.cancel(execution)
    assert await asyncio.to_thread(contexts[0].wait, 30), "the worker stops the run"
    released.set()
    ended = await asyncio.wait_for(site.finish(execution), 30)
    assert (ended.state, ended.changes) == ("cancelled", ["Exported"] * 4)
    assert len(gateway.tenant.users()) == len(gateway.sent("POST")) == 4
    assert await site.count("pending_exports", "state = 'executing' OR uncertain") == 0


@pytest.mark.slow
async def test_a63_scim_export_whose_worker_is_killed_creates_each_user_once(
    url: str, tmp_path: Path, gateway: Gateway
) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await prepare(site, target_definitions(site, gateway))
        async with site.app.worker():
            for name, profile in NIGHT[:2]:
                await site.run(name, profile)
        execution = await site.fire("SCIM", "Export")
        await run_until_killed(url, tmp_path, "export_sent")
        assert len(gateway.tenant.users()) == 4
        async with site.app.worker():
            assert (await site.finish(execution)).state == "completed"
            await site.run("SCIM", "Full Import")
        assert len(gateway.tenant.users()) == 4
        assert len([each for each in gateway.sent("POST") if each[1] == "/Users"]) == 4
        assert await site.count("pending_exports") == 0


async def test_a64_scim_source_that_loses_a_user_between_pages_is_read_without_gaps(
    site: Site, gateway: Gateway
) -> None:
    tenant = gateway.tenant
    ids = [tenant.add_user(f"user{number:03}") for number in range(250)]
    source = system(gateway, page_size=100)
    await prepare(site, yaml.safe_dump({"systems": [source]}))
    listed = sorted(ids)
    victims = [listed[49]]

    def behave(request: Received) -> Reply | None:
        if victims and request.path == "/Users" and request.query.startswith("startIndex=100&count=100&sortBy"):
            tenant.call("DELETE", f"/Users/{victims.pop()}")
        return None

    gateway.behaviour = behave
    first = await site.run("SCIM", "Full Import")
    assert not victims, "the user was deleted between two pages"
    assert (first.state, len(first.changes), set(first.changes)) == ("completed", 250, {"Added"})
    assert len({item["anchor"] for item in first.items}) == 250

    # The service says that there are more users than it delivers: the run fails, and nothing counts as deleted.
    def lie(request: Received) -> Reply | None:
        if request.path != "/Users":
            return None
        return Reply(200, {"totalResults": 249, "Resources": [{"id": ids[0], "userName": "user000"}]})

    gateway.behaviour = lie
    failed = await site.run("SCIM", "Full Import")
    assert failed.state == "failed"
    assert "is not complete" in (failed.error or "")
    assert await site.count("connector_objects") == 250
    gateway.behaviour = lambda _: None
    assert (await site.run("SCIM", "Full Import")).changes == ["Deleted"], "the user that was deleted in between"
