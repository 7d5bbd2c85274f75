"""A whole night on two real directories: HR file, metaverse, exports in parallel, confirming imports in parallel.

The directories must end as `oracle` computes them from the HR file alone.
"""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import os
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenuto import Step, every, manual
from tenuto.operations.definitions.schedules import schedule_definition
from tests.identity.ldap.conftest import Administrator
from tests.identity.ldap.slapd import PASSWORD, Slapd
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, HEADER, NIGHT, Site, open_site
from tests.identity.tasks.test_due_deletions import housekeeping

BARBARA = "1005,Barbara,Liskov,barbara@example.org,Research,Fellow,1001,2020-05-01,"
FRANCES = "1006,Frances,Allen,frances@example.org,Research,Fellow,1001,2020-06-01,"
CANARY = PASSWORD


@pytest.fixture(autouse=True)
def _master_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are encrypted with this key, also by the workers that a test starts."""
    key = tmp_path / "master.key"
    key.touch(0o600)
    key.write_bytes(base64.b64encode(os.urandom(32)))
    monkeypatch.setenv("TENUTO_MASTER_KEY_FILE", str(key))


def directory_system(slapd: Slapd, name: str, dc: str, attributes: dict[str, Any]) -> dict[str, Any]:
    kinds = {"Full Import": "full_import", "Delta Import": "delta_import", "Full Sync": "full_sync", "Export": "export"}
    return {
        "name": name,
        "connector": "ldap",
        "settings": slapd.settings(dc, create_containers=True),
        "containers": [f"ou=people,dc={dc},dc=test"],
        "types": [
            {
                "name": "inetOrgPerson",
                "anchor": "entryUUID",
                "attributes": {"entryUUID": {"type": "guid", "writable": False}, **attributes},
            }
        ],
        "run_profiles": [{"name": name, "kind": kind} for name, kind in kinds.items()],
    }


def definitions(site: Site, slapd: Slapd, **parts: str) -> str:
    """Return the definitions of the scenarios with directories instead of memory systems."""
    found = yaml.safe_load(site.definitions(**parts))
    manager = {"type": "reference", "to": "inetOrgPerson"}
    found["systems"][1:] = [
        directory_system(
            slapd,
            "AD",
            "ad",
            {
                "cn": "text",
                "sn": "text",
                "mail": "text",
                "title": "text",
                "departmentNumber": "text",
                "manager": manager,
            },
        ),
        directory_system(
            slapd, "LDAP", "ldap", {"uid": "text", "cn": "text", "sn": "text", "mail": "text", "title": "text"}
        ),
    ]
    for rule in found["sync_rules"][1:]:
        rule["out"]["type"] = "inetOrgPerson"
    found["sync_rules"][2]["map"]["sn"] = "last"
    return yaml.safe_dump(found)


def oracle(rows: tuple[str, ...]) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Return what the two directories must hold, computed from the HR file without Tenuto."""
    people = {each["employee_id"]: each for each in csv.DictReader(io.StringIO("\n".join((HEADER, *rows))))}

    def ad_name(each: dict[str, str]) -> str:
        return f"cn={each['first']} {each['last']},ou={each['department']},ou=people,dc=ad,dc=test"

    ad: dict[str, dict[str, str]] = {}
    ldap: dict[str, dict[str, str]] = {}
    for each in people.values():
        person = {"cn": f"{each['first']} {each['last']}", "sn": each["last"], "mail": each["mail"]}
        person["title"] = each["title"]
        login = f"{each['first']}.{each['last']}".lower()
        ldap[f"uid={login},ou=people,dc=ldap,dc=test"] = {**person, "uid": login}
        ad[ad_name(each)] = {**person, "departmentNumber": each["department"]}
        if each["manager"]:
            ad[ad_name(each)]["manager"] = ad_name(people[each["manager"]])
    return ad, ldap


def content(directory: Administrator) -> dict[str, dict[str, str]]:
    return {
        address: {name: "|".join(found) for name, found in values.items() if name != "objectClass"}
        for address, values in directory.entries().items()
    }


def night_steps() -> list[list[Step]]:
    """Return four groups: HR import, HR sync, both exports, both confirming imports."""
    hr, sync, *rest = (
        Step.of("run_profile", {"system": system, "profile": profile}, name=f"{system} {profile}")
        for system, profile in NIGHT
    )
    return [[hr], [sync], rest[:2], rest[2:]]


async def start_night(site: Site) -> Any:
    """Start the schedule of a night by hand."""
    if "Nightly HR Sync" not in {each.name for each in await site.app.schedules.list()}:
        await site.app.schedules.create(schedule_definition("Nightly HR Sync", manual(), night_steps()))
    fired = await site.app.schedules.run("Nightly HR Sync")
    assert fired.execution_id is not None
    return fired.execution_id


async def fire_due_night(site: Site) -> Any:
    """Let a scheduler fire a schedule when it is due, in about two seconds; return the execution."""
    due_at = (datetime.now(UTC) + timedelta(seconds=2)).replace(microsecond=0)
    trigger = every("1d", anchor=due_at)
    await site.app.schedules.create(schedule_definition("Nightly HR Sync by time", trigger, night_steps()))
    async with site.app.scheduler():
        deadline = time.monotonic() + 30
        while not (fired := await site.app.executions.list(schedule="Nightly HR Sync by time")):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
    (execution,) = fired
    assert execution.due_at == due_at
    return execution.id


async def run_night(site: Site) -> dict[tuple[str, str], dict[str, Any]]:
    """Run a night; return the counts of its runs."""
    known = {each.id for each in await site.app.extensions.identity.runs()}
    done = await site.app.executions.wait(await start_night(site), 60)
    assert done.state == "completed", done
    runs = [each for each in await site.app.extensions.identity.runs() if each.id not in known]
    return {(each.system, each.profile): each.counts for each in runs}


def changes(counts: dict[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, int]]:
    return {f"{system} {profile}": found["changes"] for (system, profile), found in counts.items() if found["changes"]}


async def prepare(site: Site, slapd: Slapd, **parts: str) -> None:
    await site.app.secrets.set("bind", PASSWORD)
    await site.apply(definitions(site, slapd, **parts))


async def test_a01_night_on_two_directories_with_joiner_mover_leaver_and_refusal(
    site: Site, slapd: Slapd, ad: Administrator, ldap: Administrator
) -> None:
    await prepare(site, slapd)
    first = changes(await run_night(site))
    assert first["AD Export"] == first["LDAP Export"] == {"Exported": 4}
    assert first["AD Full Import"] == first["LDAP Full Import"] == {"Confirmed": 4}
    assert (content(ad), content(ldap)) == oracle((ADA, GRACE, ALAN, EDSGER))
    assert await site.count("pending_exports") == 0

    written = len(ad.log()), len(ldap.log())
    assert changes(await run_night(site)) == {}  # A02
    assert (len(ad.log()), len(ldap.log())) == written

    # A joiner, a mover into a new department with a new manager, a leaver whose subordinate has another manager.
    uuid = ad.uuid("cn=Alan Turing,ou=Research,ou=people,dc=ad,dc=test")
    moved = ALAN.replace("Research,Fellow,1001", "Compilers,Fellow,1005")
    people: tuple[str, ...] = (ADA, GRACE.replace("Engineer,", "Admiral,"), moved, BARBARA)
    site.write_hr(*people)
    second = changes(await run_night(site))
    assert second["AD Export"] == {"Exported": 3, "Deprovisioned": 1}
    assert (content(ad), content(ldap)) == oracle(people)
    assert ad.uuid("cn=Alan Turing,ou=Compilers,ou=people,dc=ad,dc=test") == uuid
    assert await site.count("pending_exports") == 0

    # Both directories refuse a joiner, whose mail is not ASCII. HR corrects it: exported and confirmed later.
    people = (*people, EDSGER, FRANCES)
    site.write_hr(*people[:-2], EDSGER.replace("example", "exämple"), FRANCES)
    third = changes(await run_night(site))
    assert third["AD Export"] == third["LDAP Export"] == {"Exported": 1}
    assert await site.count("pending_exports", "error LIKE 'refused: invalid syntax%'") == 2
    site.write_hr(*people)
    for system, profile in NIGHT[:2]:
        await site.run(system, profile)
    for name in ("AD", "LDAP"):
        assert (await site.run(name, "Export")).changes == ["Exported"]
        assert "Confirmed" in (await site.run(name, "Delta Import")).changes
    assert (content(ad), content(ldap)) == oracle(people)
    assert await site.count("pending_exports") == 0
    await check_that_the_password_is_nowhere(site)


async def check_that_the_password_is_nowhere(site: Site) -> None:
    """A58: no table holds the password of the account."""
    database = await site.database()
    tables = await database.fetch_all(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname LIKE 'tenuto%'"
    )
    for table in tables:
        found = await database.fetch_value(
            f"SELECT count(*) FROM {table['name']} AS t WHERE t::text LIKE '%' || $1 || '%'", CANARY
        )
        assert found == 0, table["name"]


KILLS = (
    ("full_import", "import_page_written", {"HR"}),
    ("full_sync", "sync_page_written", {"HR"}),
    ("export", "export_sent", {"AD", "LDAP"}),
    ("full_import", "import_page_committed", {"AD", "LDAP"}),
)
"""Kind, crash point and systems of each phase of a night. Each run of a phase is killed once."""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a49_nights_whose_worker_is_killed_in_each_phase_converge(
    url: str,
    tmp_path: Path,
    slapd: Slapd,
    ad: Administrator,
    ldap: Administrator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two nights, whose workers are killed in each phase; each time another one takes over.

    The second one fires when it is due. It has a joiner, a mover, a leaver with grace, and a joiner that a directory
    refuses until an administrator corrects the directory. The leaver is deleted after the grace."""
    monkeypatch.setenv("TENUTO_IDENTITY_HOUSEKEEPING_SECONDS", "3600")  # only the test runs a cycle
    before = len(ad.log("add"))
    people: tuple[str, ...] = (ADA, GRACE, ALAN, EDSGER)
    moved = ALAN.replace("Research,Fellow,1001", "Compilers,Fellow,1005")
    later = (ADA, GRACE.replace("Engineer,", "Admiral,"), moved, BARBARA, FRANCES)
    taken = f"uid=frances.allen,{ldap.people}"
    async with open_site(url, tmp_path, has_worker=False) as site:
        await prepare(site, slapd, grace=", grace: 30d")
        await run_killed_night(site, url, tmp_path, await start_night(site))
        assert (content(ad), content(ldap)) == oracle(people)
        assert await site.count("pending_exports") == 0
        created = [row["reqDN"][0] for row in ad.log("add")[before:]]
        assert len([each for each in created if each.startswith("cn=Ada Lovelace")]) == 1

        uuid = ad.uuid("cn=Alan Turing,ou=Research,ou=people,dc=ad,dc=test")
        ldap.add(taken, "inetOrgPerson", cn="someone else", sn="else")
        site.write_hr(*later)
        await run_killed_night(site, url, tmp_path, await fire_due_night(site))
        # Within the grace the leaver stays as he was; the joiner's entry is another one.
        with_leaver = oracle((*later, EDSGER))
        assert content(ad) == with_leaver[0]
        assert content(ldap) == {**with_leaver[1], taken: {"cn": "someone else", "sn": "else", "uid": "frances.allen"}}
        assert ad.uuid("cn=Alan Turing,ou=Compilers,ou=people,dc=ad,dc=test") == uuid
        assert await site.count("metaverse_objects", "delete_after > now() + interval '29 days'") == 1
        (refused,) = await refused_exports(site)
        assert (refused["kind"], refused["error"].split(":")[0]) == ("create", "exists")

        # The directory is corrected: the same export is sent again, and confirmed by the night.
        ldap.delete(taken)
        assert await site.app.extensions.identity.retry("LDAP") == 1
        (again,) = await refused_exports(site)
        assert again["changes"] == refused["changes"]
        async with site.app.worker():
            counts = changes(await run_night(site))
            assert counts["LDAP Export"] == {"Exported": 1}
            assert counts["LDAP Full Import"]["Confirmed"] == 1
            assert not {"HR Full Import", "HR Full Sync", "AD Export"} & set(counts)
            assert (content(ad), content(ldap)) == with_leaver
            assert await site.count("pending_exports") == 0

            # The grace is over.
            database = await site.database()
            await database.write_all(
                "UPDATE tenuto_identity.metaverse_objects SET delete_after = now() - interval '1 second'"
                " WHERE delete_after IS NOT NULL"
            )
            assert [each["system"] for each in await housekeeping(site)] == ["HR"]
            counts = changes(await run_night(site))
            assert counts["AD Export"] == counts["LDAP Export"] == {"Deprovisioned": 1}
        assert (content(ad), content(ldap)) == oracle(later)
        assert await site.count("pending_exports") == 0
        assert await site.count("runs", "state = 'running'") == 0


async def refused_exports(site: Site) -> list[dict[str, Any]]:
    """Return the exports that a directory has refused, or that are sent again after it."""
    database = await site.database()
    rows = await database.fetch_all("SELECT kind, error, changes::text AS changes FROM tenuto_identity.pending_exports")
    return [dict(row) for row in rows]


async def run_killed_night(site: Site, url: str, folder: Path, execution: Any) -> None:
    """Run a night; its worker is killed in each run."""
    for kind, point, systems in KILLS:
        left = set(systems)
        while left:
            arguments = (url, str(folder), point, "1", "KILL", kind, ",".join(sorted(left)))
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.identity.killed_worker", *arguments, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await asyncio.wait_for(worker.communicate(), 60)
            assert worker.returncode == -signal.SIGKILL, (kind, point, left)
            left.remove(output.decode().split()[-1])
    async with site.app.worker():
        done = await site.app.executions.wait(execution, 60)
    assert done.state == "completed", done
