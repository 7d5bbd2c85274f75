"""Commands ``tenuto identity …``, run as processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import yaml

from tenuto_identity.cli import preview_text
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, Site, open_site
from tests.support import warm_process
from tests.support.errors import raises_code
from tests.support.waiting import eventually

TEMPLATE = """
templates:
  - name: staff
    objects: [{type: person, count: 5, attributes: {employee_id: {sequence: 1000}, first: {choice: [Ada]}}}]
"""


@pytest.fixture
async def site(url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(url, tmp_path) as site:
        await site.apply(site.definitions())
        yield site


async def tenuto(url: str, folder: Path, *arguments: str, code: int = 0) -> str:
    """Run a command beside the worker of the site, and return what it prints."""
    environment = {**os.environ, "TENUTO_DATABASE": url, "TENUTO_HOME": str(folder)}
    command = ["-m", "tenuto", "identity", *arguments]
    done = await asyncio.to_thread(warm_process.run, command, env=environment, cwd=folder, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


async def test_commands_run_list_and_explain(site: Site, url: str, tmp_path: Path) -> None:
    assert "HR: completed; 4 Added" in await tenuto(url, tmp_path, "run", "HR", "Full Import", "--wait")
    await site.run("HR", "Full Sync")
    systems = json.loads(await tenuto(url, tmp_path, "systems", "-o", "json"))
    assert {each["name"]: each["object_count"] for each in systems}["HR"] == 4
    assert "HR" in await tenuto(url, tmp_path, "systems")
    [flow] = [
        each
        for each in json.loads(await tenuto(url, tmp_path, "rules", "--type", "person", "-o", "json"))
        if each["attribute"] == "display"
    ]
    assert [each["origin"] for each in flow["contributions"]] == ['first + " " + last']
    assert "LDAP: display (LDAP people out)" in await tenuto(url, tmp_path, "rules", "--system", "LDAP", "-o", "csv")
    runs = json.loads(await tenuto(url, tmp_path, "runs", "--system", "HR", "-o", "json"))
    assert [each["profile"] for each in runs] == ["Full Sync", "Full Import"]
    listed = await tenuto(url, tmp_path, "items", runs[1]["id"], "--change", "Added")
    assert listed.count("Added") == 4
    assert "Added" not in await tenuto(url, tmp_path, "items", runs[1]["id"], "--error", "unhandled")
    [change] = json.loads(await tenuto(url, tmp_path, "item-changes", runs[1]["id"], "1", "-o", "json"))
    assert change["diff"]["first"] == [[], ["Ada"]]
    assert json.loads(await tenuto(url, tmp_path, "runs", "--state", "failed", "-o", "json")) == []
    assert (await tenuto(url, tmp_path, "pending", "--system", "AD")).count("create") == 4
    explained = await tenuto(url, tmp_path, "explain", "HR", "1002")
    assert 'first + " " + last' in explained
    assert explained.splitlines()[0].endswith("Grace Hopper")
    assert re.search(r"^manager = Ada Lovelace \(\d+\)$", explained, re.MULTILINE)
    assert re.search(r"^  manager: desired Ada Lovelace \(\d+\), expected", explained, re.MULTILINE)
    assert json.loads(await tenuto(url, tmp_path, "explain", "HR", "1002", "-o", "json"))["type"] == "person"


async def test_failed_run_ends_with_exit_code_1_and_unknown_names_are_refused(
    site: Site, url: str, tmp_path: Path
) -> None:
    site.hr.write_text("", encoding="utf-8")
    failed = await tenuto(url, tmp_path, "run", "HR", "Full Import", "--wait", code=1)
    assert "Full Import of HR: failed; " in failed
    assert "did you mean HR" in await tenuto(url, tmp_path, "explain", "Hr", "1", code=3)
    assert "reason" in await tenuto(url, tmp_path, "approve", "HR", code=2)


async def test_show_prints_the_command_that_approves_exactly_what_is_held(site: Site, url: str, tmp_path: Path) -> None:
    site.write_hr(*(f"{n},F{n},L{n},p{n}@example.org,Research,Fellow,,2020-01-01," for n in range(2000, 2020)))
    await site.run("HR", "Full Import")
    site.write_hr(*(f"{n},F{n},L{n},p{n}@example.org,Research,Fellow,,2020-01-01," for n in range(2000, 2005)))
    held = await site.run("HR", "Full Import")
    command = f"tenuto identity approve HR --run {held.id} --reason TEXT"
    assert command in await tenuto(url, tmp_path, "show", "HR")
    options = ("--reason", "closed", "--run")
    assert "examine what is held now" in await tenuto(url, tmp_path, "approve", "HR", *options, str(uuid4()), code=7)
    approved = await tenuto(url, tmp_path, "approve", "HR", *options, str(held.id))
    assert "approved what was held in HR" in approved


async def test_refused_exports_are_retried(site: Site, url: str, tmp_path: Path) -> None:
    site.ad.behave(refuse={"*": "no"})
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    await site.run("AD", "Export")
    assert "4 exports of AD" in await tenuto(url, tmp_path, "retry", "AD")


async def test_objects_identities_and_history_are_listed_as_table_json_and_csv(
    site: Site, url: str, tmp_path: Path
) -> None:
    await site.run("HR", "Full Import")
    unjoined = await tenuto(url, tmp_path, "objects", "--system", "HR", "--unjoined", "-o", "csv")
    assert [line.split(",")[3] for line in unjoined.splitlines()] == ["anchor", "1001", "1002", "1003", "1004"]
    await site.run("HR", "Full Sync")
    assert "no matching objects" in await tenuto(url, tmp_path, "objects", "--system", "HR", "--unjoined")
    (found,) = json.loads(await tenuto(url, tmp_path, "identities", "--text", "hopper", "-o", "json"))
    assert found["systems"] == ["AD", "HR", "LDAP"]
    assert "Grace Hopper" in await tenuto(url, tmp_path, "identities")
    history = json.loads(await tenuto(url, tmp_path, "history", str(found["id"]), "-o", "json"))
    assert {each["profile"] for each in history} == {"Full Import", "Full Sync"}
    site.write_hr(ADA, GRACE.replace("Engineer,", "Admiral,"), f"{ALAN}2099-12-31", EDSGER)
    await site.run("HR", "Full Import")
    assert "title: Engineer → Admiral" in await tenuto(url, tmp_path, "history", str(found["id"]))
    assert "there may be more: add --after" in await tenuto(url, tmp_path, "identities", "--limit", "2")


async def test_system_is_shown_disabled_cleared_and_deleted(site: Site, url: str, tmp_path: Path) -> None:
    await site.run("HR", "Full Import")
    shown = await tenuto(url, tmp_path, "show", "HR")
    assert "run profiles: Full Import" in shown
    assert "objects: 4" in shown
    assert "LDAP is disabled" in await tenuto(url, tmp_path, "disable", "LDAP")
    assert "LDAP is enabled" in await tenuto(url, tmp_path, "enable", "LDAP")
    assert "--yes" in await tenuto(url, tmp_path, "clear", "HR", code=2)
    cleared = json.loads(await tenuto(url, tmp_path, "clear", "HR", "--yes", "-o", "json"))
    await site.app.wait(UUID(cleared["task_id"]), 60)
    assert await site.count("connector_objects") == 0
    deleted = json.loads(await tenuto(url, tmp_path, "delete-system", "LDAP", "--yes", "-o", "json"))
    await site.app.wait(UUID(deleted["task_id"]), 60)
    assert "there is no connected system" in await tenuto(url, tmp_path, "show", "LDAP", code=3)


async def test_template_generates_identities(site: Site, url: str, tmp_path: Path) -> None:
    await site.apply(site.definitions() + TEMPLATE)
    started = json.loads(await tenuto(url, tmp_path, "template", "run", "staff", "-o", "json"))
    await site.app.wait(UUID(started["task_id"]), 60)
    assert len(json.loads(await tenuto(url, tmp_path, "identities", "-o", "json"))) == 5


async def test_preview_shows_runs_and_requests_and_changes_nothing(site: Site, url: str, tmp_path: Path) -> None:
    shown = await tenuto(url, tmp_path, "preview", "HR", "Full Import")
    assert "HR, Full Import: completed; 4 Added" in shown
    assert "nothing would be sent" in shown
    assert await site.count("connector_objects") == 0
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    shown = await tenuto(url, tmp_path, "preview", "AD", "Export", "--limit", "2")
    assert "AD: 7 requests would be sent" in shown
    assert "create cn=Ada Lovelace,ou=Research,ou=people,dc=ad,dc=test" in shown
    assert "and 5 more" in shown
    assert site.ad.requests() == []
    (last, first) = json.loads(await tenuto(url, tmp_path, "previews", "-o", "json"))
    assert (last["subject"], first["subject"]) == ("AD/Export", "HR/Full Import")
    again = json.loads(await tenuto(url, tmp_path, "show-preview", last["id"], "-o", "json"))
    assert len(again["requests"]) == 7
    assert "did you mean" in await tenuto(url, tmp_path, "preview", "HR", "Ful Import", code=2)
    assert "a schedule" in await tenuto(url, tmp_path, "preview", code=2)


async def test_preview_of_a_failing_run_ends_with_exit_code_1(site: Site, url: str, tmp_path: Path) -> None:
    site.hr.write_text("", encoding="utf-8")
    assert "failed" in await tenuto(url, tmp_path, "preview", "HR", "Full Import", code=1)


async def test_preview_uses_definition_files(site: Site, url: str, tmp_path: Path) -> None:
    await site.nightly()
    changed = tmp_path / "changed.yaml"
    text = site.definitions().replace("""'first + " " + last'""", """'last + ", " + first'""")
    changed.write_text(text, encoding="utf-8")
    shown = await tenuto(url, tmp_path, "preview", "HR", "Full Sync", "--file", str(changed))
    assert "4 AttributeFlow" in shown
    assert (await site.run("HR", "Full Sync")).items == []


async def test_system_is_checked_and_its_schema_discovered(site: Site, url: str, tmp_path: Path) -> None:
    assert "HR can be used: full, export" in await tenuto(url, tmp_path, "check", "HR")
    discovered = await tenuto(url, tmp_path, "discover", "HR")
    assert "person (anchor employee_id)" in discovered
    assert "  mail: text" in discovered
    site.hr.write_text("employee_id\n1\n", encoding="utf-8")
    assert "HR cannot be used" in await tenuto(url, tmp_path, "check", "HR", code=1)
    assert "selected but not in the system: person.mail" in await tenuto(url, tmp_path, "discover", "HR")


async def test_one_object_is_synchronised_shown_disconnected_joined_and_forgotten(
    site: Site, url: str, tmp_path: Path
) -> None:
    synchronised = await tenuto(url, tmp_path, "sync-one", "HR", "1001", "--export")
    assert "HR, Sync One: completed; 1 Projected" in synchronised
    assert "AD, Export One: completed; 1 Exported" in synchronised
    shown = await tenuto(url, tmp_path, "show-object", "HR", "1001")
    assert "first: Ada" in shown
    (found,) = json.loads(await tenuto(url, tmp_path, "identities", "-o", "json"))
    id = str(found["id"])
    assert "is deleted after" in await tenuto(url, tmp_path, "unjoin", "HR", "1001", "--reason", "wrong")
    assert "not joined, decided by a user" in await tenuto(url, tmp_path, "show-object", "HR", "1001")
    assert f"joined to {id}" in await tenuto(url, tmp_path, "join", "HR", "1001", id)
    assert "the rules decide" in await tenuto(url, tmp_path, "unpin", "HR", "1001")
    assert "--yes" in await tenuto(url, tmp_path, "forget", id, code=2)
    assert "reason" in await tenuto(url, tmp_path, "forget", id, "--yes", code=2)
    assert "erased" in await tenuto(url, tmp_path, "forget", id, "--yes", "--reason", "request")
    assert json.loads(await tenuto(url, tmp_path, "history", id, "-o", "json")) == []


async def test_discover_shows_one_type_and_refuses_an_unknown_one(site: Site, url: str, tmp_path: Path) -> None:
    found = await tenuto(url, tmp_path, "discover", "HR", "--type", "Person")
    assert found.startswith("person (anchor employee_id)")
    refused = await tenuto(url, tmp_path, "discover", "HR", "--type", "persom", code=3)
    assert "did you mean person?" in refused


async def test_runs_list_shows_a_held_run_with_the_symbol_of_an_error(site: Site, url: str, tmp_path: Path) -> None:
    hr = yaml.safe_load(site.definitions())["systems"][0]
    await site.apply(yaml.safe_dump({"systems": [{**hr, "guards": {"deletions": 20, "at_least": 2}}]}))
    await site.run("HR", "Full Import")
    site.write_hr(ADA)
    await site.run("HR", "Full Import")
    assert "▲ error" in await tenuto(url, tmp_path, "runs", "--system", "HR")


async def test_plan_shows_the_number_of_affected_objects_and_with_preview_what_would_follow(
    site: Site, url: str, tmp_path: Path
) -> None:
    await site.nightly()
    before = site.ldap.load()
    file = tmp_path / "changed.yaml"
    file.write_text(site.definitions().replace("cn: display\n      uid: login", "cn: last\n      uid: login"))
    command = ("-m", "tenuto", "plan", str(file))

    async def plan(*options: str, code: int = 2) -> str:
        environment = {**os.environ, "TENUTO_DATABASE": url, "TENUTO_HOME": str(tmp_path)}
        done = await asyncio.to_thread(
            warm_process.run, [*command, *options], env=environment, cwd=tmp_path, timeout=60
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    shown = await plan()
    assert "12 objects will be evaluated by the next delta sync" in shown
    assert "would be sent" not in shown
    shown = await plan("--preview")
    assert "LDAP: 4 requests would be sent" in shown
    assert "cn = Turing" in shown
    document = json.loads(await plan("--preview", "-o", "json"))
    assert len(document["previews"]["identity"]["requests"]) == 4
    assert document["changes_something"]
    assert site.ldap.load() == before

    file.write_text(site.definitions())
    assert "the files change nothing that has one" in await plan("--preview", code=0)


async def test_preview_without_a_worker_says_so_and_ends_with_an_error(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview_text, "MAX_SECONDS_WITHOUT_WORKER", 0.1)
    async with open_site(url, tmp_path, has_worker=False) as site, asyncio.timeout(30):
        await site.apply(site.definitions())
        with raises_code("identity.preview.no_worker") as refused:
            await preview_text.preview_plan(site.app, yaml.safe_load(site.definitions()), prune=False)
        assert "no live worker serves queue default and knows identity.preview" in capsys.readouterr().err
        assert "tenuto identity show-preview" in str(refused.value.remedy)


async def test_preview_waits_for_a_worker_that_starts_later(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site, asyncio.timeout(60):
        await site.apply(site.definitions())
        messages = list[str]()
        id = await site.app.extensions.identity.preview(system="HR", profile="Full Import")
        waiting = asyncio.ensure_future(preview_text.wait_for_preview(site.app, id, messages.append))
        await eventually(lambda: messages)
        async with site.app.worker():
            await waiting
        assert (await site.app.extensions.identity.preview_record(id)).state == "completed"
        assert len(messages) == 1
