"""Tenuto's identity synchronisation for `identity`: the run profiles of a nightly run, stage by stage.

Every run is started as a step of a schedule and executed by a worker in this process, as in production. A figure counts
only if the tables have what the run should have written.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.identity_people import definitions, write_people
from benchmarks.contenders.stage_clock import StageClock, peak_megabytes
from tenuto import Step, Tenuto, manual
from tenuto.definitions.document_parser import parse_document
from tenuto.operations.definitions.plans import read_declarations
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres import migrator
from tenuto.postgres.migrator import Component
from tenuto_identity.extension import Identity

RUN_LIMIT_SECONDS = 3600
IMPORT_TABLES = {
    "connector_objects": "system_number = 1",
    "connector_references": "system_number = 1",
    "sync_marks": "system_number = 1",
    "items": "true",
    "changes": "true",
}
SYNC_TABLES = {
    "metaverse_objects": "true",
    "metaverse_references": "true",
    "match_keys": "true",
    "connector_objects": "system_number > 1",
    "pending_exports": "true",
    "items": "metaverse_id IS NOT NULL",
    "changes": "subject = 'identity'",
}


async def prepare(url: str) -> None:
    app = Tenuto(url)
    database = await app.connect(check_schema=False)
    await migrator.migrate(database)
    await migrator.migrate(database, Component("identity", Identity().migrations()))
    await database.close()


class Night:
    """The runs of one site, each measured."""

    def __init__(
        self, app: Tenuto, connection: asyncpg.Connection[Any], folder: Path, count: int, changed: int
    ) -> None:
        self._app = app
        self._connection = connection
        self._folder = folder
        self.count = count
        self.changed = changed

    async def run(self, system: str, profile: str) -> dict[str, Any]:
        """Execute a run profile to its end; return the counts of the run."""
        name = f"{system}/{profile}"
        if name not in {each.name for each in await self._app.schedules.list()}:
            step = Step.of("run_profile", {"system": system, "profile": profile})
            await self._app.schedules.create(schedule_definition(name, manual(), [step]))
        fired = await self._app.schedules.run(name)
        assert fired.execution_id is not None
        await self._app.executions.wait(fired.execution_id, RUN_LIMIT_SECONDS)
        row = await self._connection.fetchrow(
            "SELECT state, problem, counts::text AS counts FROM tenuto_identity.runs ORDER BY started_at DESC LIMIT 1"
        )
        if row is None or row["state"] not in ("completed", "warning"):
            raise SystemExit(f"{name} did not complete: {dict(row) if row else row}")
        return {"counts": row["counts"]}

    async def expect(self, table: str, count: int, where: str = "true") -> None:
        """Fail if a table does not have so many rows."""
        found = await self._connection.fetchval(f"SELECT count(*) FROM tenuto_identity.{table} WHERE {where}")
        if found != count:
            raise SystemExit(f"{table} where {where}: {found} rows instead of {count}")

    async def settle(self) -> None:
        """Keep the vacuum and the checkpoint that a stage has caused out of the next one."""
        await self._connection.execute("CHECKPOINT")

    def write_people(self, *, changed: int = 0) -> None:
        write_people(self._folder / "hr.csv", self.count, changed=changed)

    async def apply(self) -> None:
        text = definitions(self._folder).encode()
        planned = await self._app.plans.plan(read_declarations([parse_document("identity.yaml", text)]))
        await self._app.plans.apply(planned)


Stage = Callable[[Night, StageClock], Awaitable[None]]


async def measure(url: str, count: int, changed: int, folder: Path, run_stages: Stage) -> None:
    """Run some stages with a worker; answer with their durations and the growth of memory."""
    os.environ["TENUTO_DISABLED_EXTENSIONS"] = "notifications"
    os.environ["TENUTO_IDENTITY_FOLDERS"] = f'["{folder}"]'
    connection = await asyncpg.connect(url)
    clock = StageClock(await connection.fetchval("SELECT pg_backend_pid()"))
    async with Tenuto(url, home=folder / "home") as app, app.worker():
        night = Night(app, connection, folder, count, changed)
        await night.apply()
        before = peak_megabytes()
        await run_stages(night, clock)
        grown = peak_megabytes() - before
    await connection.close()
    contender_protocol.print_answer(stages=clock.stages, grown=grown)


async def measure_import(night: Night, clock: StageClock) -> None:
    night.write_people()
    with clock.stage("import new"):
        await night.run("HR", "Full Import")
    await night.expect("connector_objects", night.count, "system_number = 1")
    await night.expect("items", night.count)
    await night.expect("sync_marks", night.count)
    await night.settle()
    with clock.stage("import unchanged"):
        await night.run("HR", "Full Import")
    await night.expect("items", night.count)


async def measure_sync(night: Night, clock: StageClock) -> None:
    await night.settle()
    with clock.stage("sync new"):
        await night.run("HR", "Full Sync")
    await night.expect("metaverse_objects", night.count)
    await night.expect("pending_exports", 2 * night.count, "kind = 'create'")


async def measure_export(night: Night, clock: StageClock) -> None:
    await night.settle()
    with clock.stage("export"):
        await night.run("Directory", "Export")
    await night.run("Mail", "Export")
    await night.expect("pending_exports", 0)


async def measure_second_night(night: Night, clock: StageClock) -> None:
    await night.settle()
    with clock.stage("sync unchanged"):
        await night.run("HR", "Full Sync")
    await night.settle()
    with clock.stage("confirming import"):
        await night.run("Directory", "Full Import")
    night.write_people(changed=night.changed)
    await night.settle()
    with clock.stage("import changed"):
        await night.run("HR", "Full Import")
    await night.expect("sync_marks", night.changed, "system_number = 1 AND reason = 'imported'")
    with clock.stage("delta sync"):
        await night.run("HR", "Delta Sync")
    await night.expect("pending_exports", night.changed)
    await night.run("Directory", "Export")
    await night.expect("pending_exports", 0)


STAGES = {
    "import": measure_import,
    "sync": measure_sync,
    "export": measure_export,
    "second-night": measure_second_night,
}


async def measure_floor(url: str, tables: dict[str, str]) -> None:
    """Answer with the time to write the rows of the last run once more."""
    connection = await asyncpg.connect(url)
    clock = StageClock(await connection.fetchval("SELECT pg_backend_pid()"))
    await copy_again(connection, clock, tables)
    await connection.close()
    contender_protocol.print_answer(**clock.stages["floor"])


async def copy_again(connection: asyncpg.Connection[Any], clock: StageClock, tables: dict[str, str]) -> None:
    """Write the rows of a run once more, one COPY per table in one transaction, into tables with the same indexes."""
    loaded: list[tuple[str, list[str], list[Any]]] = []
    await connection.execute("DROP SCHEMA IF EXISTS floor CASCADE; CREATE SCHEMA floor")
    for name, where in tables.items():
        await connection.execute(f"CREATE TABLE floor.{name} (LIKE tenuto_identity.{name} INCLUDING ALL)")
        rows = await connection.fetch(f"SELECT * FROM tenuto_identity.{name} WHERE {where}")
        columns = list(map(str, rows[0].keys())) if rows else []
        loaded.append((name, columns, [tuple(row) for row in rows]))
    await connection.execute("CHECKPOINT")
    with clock.stage("floor"):
        async with connection.transaction():
            for name, columns, records in loaded:
                await connection.copy_records_to_table(name, schema_name="floor", columns=columns, records=records)
    await connection.execute("DROP SCHEMA floor CASCADE")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", *STAGES, "floor-import", "floor-sync"])
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--changed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path())
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            contender_protocol.versions(("tenuto", "asyncpg"))
        case "prepare":
            contender_protocol.run(prepare(asked.url))
        case "floor-import":
            contender_protocol.run(measure_floor(asked.url, IMPORT_TABLES))
        case "floor-sync":
            contender_protocol.run(measure_floor(asked.url, SYNC_TABLES))
        case verb:
            stages = STAGES[verb]
            contender_protocol.run(measure(asked.url, asked.count, asked.changed, asked.folder, stages))


if __name__ == "__main__":
    main()
