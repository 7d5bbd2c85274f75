"""Tenuto's LDAP connector for `ldap`: export of all people, full imports and a delta import, as steps of schedules.

People come from the HR file of `identity`. A figure counts only if tables and directory have what they should have.
The connector uses ldap3, as the script does, also where python-ldap is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg

from benchmarks.contenders import contender_protocol, script_ldap
from benchmarks.contenders.stage_clock import StageClock, peak_megabytes
from benchmarks.contenders.tenuto_identity_runs import Night, prepare
from benchmarks.slapd_server import MANAGER, PASSWORD, PEOPLE
from tenuto import Tenuto
from tenuto.definitions.document_parser import parse_document
from tenuto.operations.definitions.plans import read_declarations
from tenuto_identity.connectors.contract import ConnectorContext, ImportedObject, ReadScope
from tenuto_identity.connectors.ldap.connector import LDAP
from tenuto_identity.connectors.ldap.settings import LdapSettings
from tenuto_identity.model.schema import Attribute, ObjectType

DELTA_RUNS = 5
_SYSTEM = """
  - name: {name}
    connector: ldap
    settings: {{url: "{directory}", tls: none, bind_dn: "{manager}", password: {{secret: bind}}, base: "{people}",
                library: ldap3}}
    types:
      - name: inetOrgPerson
        anchor: entryUUID
        attributes: {{entryUUID: {{type: guid, writable: false}}, cn: text, sn: text, uid: text, mail: text,
                     title: text, departmentNumber: text, employeeNumber: text}}
    run_profiles: [{{name: Full Import, kind: full_import}}, {{name: Delta Import, kind: delta_import}},
                   {{name: Export, kind: export}}]
"""
_DEFINITIONS = """
systems:
  - name: HR
    connector: csv
    settings: {{path: {folder}/hr.csv}}
    types:
      - name: person
        anchor: employee_id
        attributes: {{employee_id: text, first: text, last: text, mail: text, department: text, title: text}}
    run_profiles: [{{name: Full Import, kind: full_import}}, {{name: Full Sync, kind: full_sync}}]
{systems}
metaverse:
  - type: person
    attributes: {{employee_id: text, first: text, last: text, display: text, mail: text, login: text,
                 department: text, title: text}}
    deletion: {{rule: authoritative_source, sources: [HR]}}
sync_rules:
  - name: HR people in
    in: {{system: HR, type: person, to: person}}
    project: true
    match: [{{object: employee_id, metaverse: employee_id}}]
    map:
      same: [employee_id, first, last, mail, department, title]
      display: {{value: 'first + " " + last'}}
      login: {{value: 'lower(first) + "." + lower(last) + right(employee_id, 5)'}}
  - name: Directory people out
    out: {{from: person, system: Directory, type: inetOrgPerson}}
    match: [{{object: mail, metaverse: mail}}]
    provision: true
    map:
      same: [mail, title]
      uid: login
      cn: display
      sn: last
      departmentNumber: department
      employeeNumber: employee_id
      address: {{value: 'dn("uid", login, "{people}")'}}
"""


def definitions(folder: Path, directory: str) -> bytes:
    """Return the definition file: the HR file, a directory to write, and the same directory as a source."""
    systems = "".join(
        _SYSTEM.format(name=name, directory=directory, manager=MANAGER, people=PEOPLE)
        for name in ("Directory", "Source")
    )
    return _DEFINITIONS.format(folder=folder, systems=systems, people=PEOPLE).encode()


async def measure(asked: argparse.Namespace, run_stages: Callable[[Night, StageClock, str], Awaitable[None]]) -> None:
    """Run some stages with a worker; answer with their durations and the growth of memory."""
    folder: Path = asked.folder
    os.environ["TENUTO_DISABLED_EXTENSIONS"] = "notifications"
    os.environ["TENUTO_IDENTITY_FOLDERS"] = f'["{folder}"]'
    os.environ["TENUTO_MASTER_KEY_FILE"] = str(_master_key(folder))
    connection = await asyncpg.connect(asked.url)
    clock = StageClock(await connection.fetchval("SELECT pg_backend_pid()"))
    async with Tenuto(asked.url, home=folder / "home") as app, app.worker():
        await app.secrets.set("bind", PASSWORD)
        text = definitions(folder, asked.directory)
        await app.plans.apply(await app.plans.plan(read_declarations([parse_document("ldap.yaml", text)])))
        night = Night(app, connection, folder, asked.count, asked.changed)
        before = peak_megabytes()
        await run_stages(night, clock, asked.directory)
        grown = peak_megabytes() - before
    await connection.close()
    contender_protocol.print_answer(stages=clock.stages, grown=grown)


def _master_key(folder: Path) -> Path:
    path = folder / "master.key"
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(base64.b64encode(os.urandom(32)))
    return path


async def measure_export(night: Night, clock: StageClock, directory: str) -> None:
    connection = script_ldap.connect(directory)
    script_ldap.create_containers(connection)
    connection.unbind()
    night.write_people()
    await night.run("HR", "Full Import")
    await night.run("HR", "Full Sync")
    await night.expect("pending_exports", night.count, "kind = 'create'")
    await night.settle()
    with clock.stage("export"):
        await night.run("Directory", "Export")
    await night.expect("pending_exports", night.count, "state = 'exported'")


def _read(directory: str) -> int:
    """Read all people by the connector, without storing them; return how many."""
    attributes = {each: Attribute(each) for each in script_ldap.ATTRIBUTES}
    person = ObjectType("inetOrgPerson", "entryUUID", attributes, address_is_dn=True)
    settings = LdapSettings.model_validate(
        {
            "url": directory,
            "tls": "none",
            "bind_dn": MANAGER,
            "password": {"secret": "bind"},
            "base": PEOPLE,
            "library": "ldap3",
        }
    )
    connector = LDAP.open(settings, ConnectorContext(secrets={"bind": PASSWORD}, types=(person,), read_only=True))
    try:
        return sum(isinstance(each, ImportedObject) for each in connector.read(ReadScope((person,)), None))
    finally:
        connector.close()


async def measure_import(night: Night, clock: StageClock, directory: str) -> None:
    with clock.stage("read"):
        found = await asyncio.to_thread(_read, directory)
    if found != night.count:
        raise SystemExit(f"{found} entries instead of {night.count}")
    await night.settle()
    with clock.stage("import new"):
        await night.run("Source", "Full Import")
    await night.expect("connector_objects", night.count, "system_number = 3")
    await night.settle()
    with clock.stage("import unchanged"):
        await night.run("Source", "Full Import")
    for number in range(1, DELTA_RUNS + 1):
        script_ldap.change(directory, night.changed, f"Acting {number}")
        await night.settle()
        with clock.stage(f"delta import {number}"):
            await night.run("Source", "Delta Import")
        await night.expect("items", number * night.changed, "change = 'Updated' AND type = 'inetOrgPerson'")
    await night.expect("sync_marks", night.count, "system_number = 3")


async def measure_confirmation(night: Night, clock: StageClock, directory: str) -> None:
    await night.settle()
    with clock.stage("confirming import"):
        await night.run("Directory", "Full Import")
    await night.expect("pending_exports", 0)


STAGES = {"export": measure_export, "import": measure_import, "confirm": measure_confirmation}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", *STAGES])
    parser.add_argument("--url", default="")
    parser.add_argument("--directory", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--changed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path())
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            contender_protocol.versions(("tenuto", "asyncpg", "ldap3"))
        case "prepare":
            contender_protocol.run(prepare(asked.url))
        case verb:
            contender_protocol.run(measure(asked, STAGES[verb]))


if __name__ == "__main__":
    main()
