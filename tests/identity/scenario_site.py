"""A site for scenario tests: the HR file, two memory targets, their definitions, and a worker that runs profiles."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from tenuto import Step, Tenuto, manual
from tenuto.definitions.document_parser import parse_document
from tenuto.operations.definitions.plans import read_declarations
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Database
from tenuto_identity.connectors.memory import MemorySystem
from tests.support import warm_process

HEADER = "employee_id,first,last,mail,department,title,manager,starts,ends"
ADA = "1001,Ada,Lovelace,ada@example.org,Research,Director,,2020-01-01,"
GRACE = "1002,Grace,Hopper,grace@example.org,Engineering,Engineer,1001,2020-02-01,"
ALAN = "1003,Alan,Turing,alan@example.org,Research,Fellow,1001,2020-03-01,"
EDSGER = "1004,Edsger,Dijkstra,edsger@example.org,Engineering,Engineer,1002,2020-04-01,"
PEOPLE = (ADA, GRACE, ALAN, EDSGER)

NIGHT = (
    ("HR", "Full Import"),
    ("HR", "Full Sync"),
    ("AD", "Export"),
    ("LDAP", "Export"),
    ("AD", "Full Import"),
    ("LDAP", "Full Import"),
)
"""The steps of the nightly run: systems and run profiles."""

PROFILES = """[{{name: Full Import, kind: full_import{page}}}, {{name: Delta Import, kind: delta_import{page}}},
                   {{name: Full Sync, kind: full_sync{page}}}, {{name: Delta Sync, kind: delta_sync{page}}},
                   {{name: Export, kind: export{batch}}}]"""

DEFINITIONS = """
systems:
  - name: HR
    connector: csv
    settings: {{path: {hr}}}
    types:
      - name: person
        anchor: employee_id
        attributes: {{employee_id: text, first: text, last: text, mail: text, department: text, title: text,
                     manager: {{type: reference, to: person}}, starts: date, ends: date}}
    run_profiles: {profiles}
  - name: AD
    connector: memory
    settings: {{path: {ad}, {options}}}
    types:
      - name: user
        anchor: uuid
        address_format: dn
        attributes: {{uuid: {{type: text, writable: false}}, cn: text, sn: text, mail: text, title: text,
                     departmentNumber: text, manager: {{type: reference, to: user}}}}
    run_profiles: {profiles}
  - name: LDAP
    connector: memory
    settings: {{path: {ldap}, {options}}}
    types:
      - name: account
        anchor: uuid
        address_format: dn
        attributes: {{uuid: {{type: text, writable: false}}, uid: text, cn: text, mail: text, title: text}}
    run_profiles: {profiles}
metaverse:
  - type: person
    attributes: {{employee_id: text, first: text, last: text, display: text, mail: text, login: text,
                 department: text, title: text, manager: {{type: reference, to: person}}, starts: date, ends: date}}
    deletion: {{rule: authoritative_source, sources: [HR]{grace}}}
sync_rules:
  - name: HR people in
    in: {{system: HR, type: person, to: person}}
    project: true
    match: [{{object: employee_id, metaverse: employee_id}}]
    map:
      same: [employee_id, first, last, mail, department, title, manager, starts, ends]
      display: {{value: 'first + " " + last'}}
      login: {{value: 'lower(first) + "." + lower(last)'}}
  - name: AD people out
    out: {{from: person, system: AD, type: user}}
    match: [{{object: mail, metaverse: mail}}]
    provision: true
    on_out_of_scope: delete
    {scope}
    map:
      same: [mail, title, manager]
      cn: display
      sn: last
      departmentNumber: department
      address: {{value: 'dn("cn", display, "ou", department, "ou=people,dc=ad,dc=test")'}}
  - name: LDAP people out
    out: {{from: person, system: LDAP, type: account}}
    match: [{{object: mail, metaverse: mail}}]
    provision: true
    on_out_of_scope: delete
    {scope}
    map:
      same: [mail, title]
      cn: display
      uid: login
      address: {{value: 'dn("uid", login, "ou=people,dc=ldap,dc=test")'}}
"""

OPEN_RUN = (
    "INSERT INTO tenuto_identity.runs (id, task_id, fence, system_number, profile, kind, rules_version, started_at,"
    " initiator_type, initiator_name) VALUES (gen_random_uuid(), $1, 1, $2, $3, $4, 1, now(), 'system', 'test')"
)
"""Inserts an open run: task, system number, profile, kind."""


class Site:
    """The systems of the scenarios and an app with a worker."""

    def __init__(self, app: Tenuto, folder: Path) -> None:
        self.app = app
        self.folder = folder
        self.hr = folder / "files" / "hr.csv"
        self.ad = MemorySystem(folder / "files" / "ad.json")
        self.ldap = MemorySystem(folder / "files" / "ldap.json")

    async def database(self) -> Database:
        return await self.app.open()

    def write_hr(self, *rows: str) -> None:
        self.hr.parent.mkdir(exist_ok=True)
        self.hr.write_text("\n".join((HEADER, *rows)) + "\n", encoding="utf-8")

    def definitions(self, page_size: Any = None, **parts: str) -> str:
        """Return the definition file, with other parts and with a small page size if given."""
        page = f", page_size: {page_size}" if page_size else ""
        batch = f", batch_size: {page_size}" if page_size else ""
        given = {"grace": "", "scope": "", "options": "delta: true", **parts}
        return DEFINITIONS.format(
            hr=self.hr,
            ad=self.folder / "files" / "ad.json",
            ldap=self.folder / "files" / "ldap.json",
            profiles=PROFILES.format(page=page, batch=batch),
            **given,
        )

    async def apply(self, text: str, *, prune: bool = False) -> Any:
        """Plan and apply a definition file."""
        declared = read_declarations([parse_document("identity.yaml", text.encode())])
        planned = await self.app.plans.plan(declared, prune=prune)
        await self.app.plans.apply(planned)
        return planned

    async def fire(self, system: str, profile: str) -> UUID:
        """Start a run profile as a step of a schedule; return the execution."""
        name = f"{system}/{profile}"
        step = Step.of("run_profile", {"system": system, "profile": profile})
        if name not in {each.name for each in await self.app.schedules.list()}:
            await self.app.schedules.create(schedule_definition(name, manual(), [step]))
        fired = await self.app.schedules.run(name)
        assert fired.execution_id is not None
        return fired.execution_id

    async def finish(self, execution_id: UUID) -> RunResult:
        """Wait for the end of an execution; return its last attempt."""
        await self.app.executions.wait(execution_id, 60)
        database = await self.database()
        row = await database.fetch_one(
            "SELECT id, status AS state, error::text AS error FROM tenuto.activities"
            " WHERE execution_id = $1 ORDER BY ended_at DESC LIMIT 1",
            execution_id,
        )
        assert row is not None
        return RunResult(row["id"], row["state"], row["error"], await self.items(row["id"]))

    async def run(self, system: str, profile: str) -> RunResult:
        """Execute a run profile by a worker and wait for its end."""
        return await self.finish(await self.fire(system, profile))

    async def items(self, run_id: Any) -> list[dict[str, Any]]:
        database = await self.database()
        rows = await database.fetch_all(
            "SELECT change, error, anchor, display, type, message, detail::text AS detail FROM tenuto_identity.items"
            " WHERE run_id = $1 ORDER BY number",
            run_id,
        )
        return [dict(row) for row in rows]

    async def nightly(self) -> dict[str, RunResult]:
        """HR import, HR sync, exports, confirming imports."""
        done: dict[str, RunResult] = {}
        for system, profile in NIGHT:
            done[f"{system} {profile}"] = await self.run(system, profile)
        return done

    async def open_run(self, system_number: int, profile: str, kind: str) -> UUID:
        """Insert an open run of a task that waits; return the task."""
        task_id = await self.waiting_task()
        database = await self.database()
        await database.write_all(OPEN_RUN, task_id, system_number, profile, kind)
        return task_id

    async def waiting_task(self) -> UUID:
        """Create a task that is due in a year."""
        later = datetime.now(UTC) + timedelta(days=365)
        return (await self.app.one_shots.create(later, "log.append", {"message": "has an open run"})).id

    async def count(self, table: str, where: str = "true") -> int:
        database = await self.database()
        return int(await database.fetch_value(f"SELECT count(*) FROM tenuto_identity.{table} WHERE {where}"))


class RunResult:
    """The activity of a run and its items."""

    def __init__(self, id: Any, state: str, error: str | None, items: list[dict[str, Any]]) -> None:
        self.id = id
        self.state = state
        self.error = error
        self.items = items

    @property
    def changes(self) -> list[str]:
        return sorted(item["change"] for item in self.items if item["change"])

    @property
    def errors(self) -> list[str]:
        return sorted(item["error"] for item in self.items if item["error"])

    def __repr__(self) -> str:
        return f"<{self.state} {self.error or ''} {self.changes} {self.errors}>"


@asynccontextmanager
async def open_site(url: str, folder: Path, *, has_worker: bool = True) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(Tenuto(url, home=folder))
        if has_worker:
            await stack.enter_async_context(app.worker())
        site = Site(app, folder)
        site.write_hr(*PEOPLE)
        yield site


async def run_until_killed(url: str, home: Path, point: str, count: int = 1) -> None:
    """Run a worker process until it kills itself at a crash point, when it reaches it for this time."""
    command = ["-m", "tests.identity.killed_worker", url, str(home), point, str(count)]
    ended = await asyncio.to_thread(
        warm_process.run, command, cwd=Path(__file__).parents[2], env=os.environ, timeout=60
    )
    assert ended.returncode == -signal.SIGKILL, f"{point} was not reached: {ended.stderr}"
