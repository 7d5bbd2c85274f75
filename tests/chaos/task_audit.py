"""Auditor: loads independent facts beside the tables, runs every check, and reports violations.

It reads on its own connection, without a time limit, after the services have stopped. `tenuto doctor`, whose checks
it
runs too, has a time limit and reads only the newest part of the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from tenuto.audit import checkpoints, verifier
from tenuto.audit import keys as auditkeys
from tenuto.diagnostics.core_checks import Limits
from tenuto.diagnostics.statement_checks import CHECKS as DOCTOR_CHECKS
from tenuto.ids import smallest_id_at
from tenuto.model.doctor_findings import Severity
from tenuto.postgres.database import Database
from tenuto.settings import Settings
from tenuto.store.access import audit_log as trail
from tenuto.store.reports import doctor
from tests.chaos.check import Figure
from tests.chaos.checks import CHECKS, FIGURES_OF_DOCTOR_CHECKS
from tests.chaos.environment import LEASE_SECONDS, ProcessLifetime
from tests.chaos.feature_jobs import DURABLE_JOBS, HISTORY_SECONDS, TRIGGERS, step_ledger_path
from tests.chaos.jobs import CANARY
from tests.chaos.load import Accepted
from tests.chaos.notification_receiver import NotificationReceiver
from tests.chaos.oracle import due_instants

_MAX_SHOWN_ROWS = 5
_FETCHED_ROWS = 1000
_FACT_TABLES = """
DROP SCHEMA IF EXISTS chaos CASCADE;
CREATE SCHEMA chaos;
CREATE UNLOGGED TABLE chaos.lines (
    task uuid, attempt integer, fence bigint, pid integer, grp text, what text, at bigint
);
CREATE UNLOGGED TABLE chaos.lives (pid integer, born bigint, died bigint);
CREATE UNLOGGED TABLE chaos.freezes (pid integer, began bigint, ended bigint);
CREATE UNLOGGED TABLE chaos.accepted (task uuid PRIMARY KEY, fate text);
CREATE UNLOGGED TABLE chaos.accepted_batches (batch uuid PRIMARY KEY, items bigint);
CREATE UNLOGGED TABLE chaos.due (schedule text, at timestamptz);
CREATE UNLOGGED TABLE chaos.step_lines (task uuid, fence bigint, step text, mark text, what text, at bigint);
CREATE UNLOGGED TABLE chaos.events (key text, task uuid, payload text);
CREATE UNLOGGED TABLE chaos.backfilled (at timestamptz);
CREATE UNLOGGED TABLE chaos.messages (rule text, message uuid PRIMARY KEY, events integer);
CREATE UNLOGGED TABLE chaos.named_tasks (message uuid, task uuid)
"""
# A mark is in the output of a task if the result of that run of the step was recorded.
_STEPS = f"""
CREATE UNLOGGED TABLE chaos.steps AS
SELECT task, fence, step, mark, min(at) FILTER (WHERE what = 'begins') AS began,
       max(at) FILTER (WHERE what = 'ends') AS ended
FROM chaos.step_lines GROUP BY task, fence, step, mark;
CREATE INDEX ON chaos.steps (task, step);
CREATE UNLOGGED TABLE chaos.recorded AS
SELECT past.task_id AS task, past.name, split_part(value, ' ', 1) AS step, split_part(value, ' ', 2) AS mark
FROM tenuto.activities AS past, jsonb_array_elements_text(past.output) AS value
WHERE past.final AND past.status = 'completed' AND past.name IN ({", ".join(f"'{name}'" for name in DURABLE_JOBS)});
CREATE INDEX ON chaos.recorded (task, step)
"""
# A run holds its lease until it ends or its process dies: the last process with its pid that started before the run.
# A death is recorded a moment before it happens, and a run may begin in that moment. A process frozen for longer than
# the lease holds none: from five sixths on (a renewal may be a sixth of the lease old when the process is frozen),
# another worker may have the task.
_EFFECTS = f"""
CREATE UNLOGGED TABLE chaos.effects AS
WITH runs AS (
    SELECT task, attempt, fence, min(pid) AS pid, grp, min(at) FILTER (WHERE what = 'begins') AS began,
           max(at) FILTER (WHERE what = 'ends') AS ended, count(*) FILTER (WHERE what = 'begins') AS begins,
           count(DISTINCT pid) AS pids
    FROM chaos.lines GROUP BY task, attempt, fence, grp
), lived AS (
    SELECT runs.*, coalesce(ended, (
        SELECT CASE WHEN died IS NOT NULL THEN greatest(died, began) END
        FROM chaos.lives
        WHERE lives.pid = runs.pid AND born <= began
        ORDER BY born DESC
        LIMIT 1
    ), {2**62}) AS lived_until
    FROM runs
)
SELECT lived.*, least(lived_until, (
    SELECT min(freezes.began) + {int(LEASE_SECONDS * 5 / 6 * 1e9)} FROM chaos.freezes
    WHERE freezes.pid = lived.pid AND freezes.began < lived_until AND freezes.ended > lived.began
      AND freezes.ended - freezes.began > {int(LEASE_SECONDS * 5 / 6 * 1e9)}
)) AS held_until
FROM lived;
CREATE INDEX ON chaos.effects (task, began);
ANALYZE chaos.effects
"""
_LIFETIMES = """
SELECT schedule_name.name, min(at) FILTER (WHERE change = 'created') AS created,
       max(at) FILTER (WHERE change = 'disabled') AS disabled
FROM tenuto.schedule_versions AS schedule_name GROUP BY 1
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated rule."""

    figure: Figure
    rule: str
    count: int
    rows: Sequence[str]


class Auditor:
    """Checks one finished run."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        accepted: Accepted,
        lives: Iterable[ProcessLifetime],
        receiver: NotificationReceiver,
    ) -> None:
        assert settings.database is not None
        self._url = settings.database
        self._settings = settings
        self._folder = folder
        self._accepted = accepted
        self._lives = list(lives)
        self._receiver = receiver

    async def findings(self) -> list[Finding]:
        """Return all violations."""
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute("VACUUM ANALYZE tenuto.activities")
            found = await self.check(connection, self._folder / "ledger")
        finally:
            await connection.close()
        return found + await self._verify_audit_chain()

    async def check(self, connection: asyncpg.Connection, ledger: Path, steps: Path | None = None) -> list[Finding]:
        """Return the violations seen on one connection with these ledgers of effects and of durable steps."""
        await self._load_facts(connection, ledger, steps or step_ledger_path(ledger))
        found = [await _run_check(connection, *each) for each in _all_checks()]
        found += await self._run_doctor_checks(connection)
        found += await self._find_leaked_secret(connection)
        return [each for each in found if each is not None]

    # --- independent facts ------------------------------------------------------------------------------------------

    async def _load_facts(self, connection: asyncpg.Connection, ledger: Path, steps: Path) -> None:
        await connection.execute(_FACT_TABLES)
        await connection.copy_to_table("lines", schema_name="chaos", source=ledger, format="text", delimiter=" ")
        lives = [(each.pid, each.started_ns, each.died_ns) for each in self._lives]
        freezes = [(each.pid, *span) for each in self._lives for span in each.frozen_ns]
        for table, rows in (
            ("lives", lives),
            ("freezes", freezes),
            ("accepted", self._accepted.tasks.items()),
            ("accepted_batches", self._accepted.batches.items()),
            ("events", ((key, task, payload) for key, (task, payload) in self._accepted.events.items())),
            ("backfilled", ((at,) for at in self._backfilled_instants())),
            ("messages", self._receiver.messages()),
            ("named_tasks", self._receiver.named_tasks()),
        ):
            await connection.copy_records_to_table(table, schema_name="chaos", records=list(rows))
        due = [
            (row["name"], at)
            for row in await connection.fetch(_LIFETIMES)
            if row["name"] in TRIGGERS
            for at in due_instants(TRIGGERS[row["name"]], row["created"], row["disabled"])
        ]
        await connection.copy_records_to_table("due", schema_name="chaos", records=due)
        await connection.execute("CREATE INDEX ON chaos.due (schedule, at); ANALYZE chaos.due; ANALYZE chaos.accepted")
        await connection.execute(_EFFECTS)
        await connection.copy_to_table("step_lines", schema_name="chaos", source=steps, format="text", delimiter=" ")
        await connection.execute(_STEPS)

    def _backfilled_instants(self) -> Iterator[datetime]:
        if self._accepted.backfilled is not None:
            yield from due_instants(HISTORY_SECONDS, *self._accepted.backfilled)

    # --- checks of the system itself --------------------------------------------------------------------------------

    async def _run_doctor_checks(self, connection: asyncpg.Connection) -> list[Finding | None]:
        """Run the doctor checks over the whole history."""
        bounds = Limits.from_settings(self._settings)
        values: dict[str, Any] = {name: getattr(bounds, name) for name in Limits.__dataclass_fields__}
        values |= {
            "max_rows": 2**31 - 1,
            "max_histories": 2**31 - 1,
            "lease_delay": timedelta(0),
            "recovery_delay": timedelta(0),
        }
        values["horizon"] = values["history"] = smallest_id_at(await _one_year_ago(connection))
        found: list[Finding | None] = []
        for check in DOCTOR_CHECKS:
            if check.severity is Severity.NOTE:
                continue
            given = [values[name] for name in check.limits]
            rows = await connection.fetch(getattr(doctor.SQL, check.name), *given, _FETCHED_ROWS)
            if rows:
                figure = FIGURES_OF_DOCTOR_CHECKS.get(check.name, "else")
                shown = [check.row.format(**row) for row in rows[:_MAX_SHOWN_ROWS]]
                found.append(Finding(figure, f"{check.passed} ({check.name})", len(rows), shown))
        return found

    async def _verify_audit_chain(self) -> list[Finding]:
        database = await Database.open(self._url)
        try:
            keys = auditkeys.load_audit_keys(self._settings)
            known = checkpoints.read_checkpoints(self._settings.home, await trail.load_database_identity(database))
            result = await verifier.verify_chain(database, keys, known)
        finally:
            await database.close()
        if result.is_sound and result.checked_link_count:
            return []
        descriptions = [fault.description for fault in result.faults[:_MAX_SHOWN_ROWS]] or ["the audit trail is empty"]
        return [Finding("missing_ledger_rows", "the audit trail is unchanged (I14)", len(descriptions), descriptions)]

    async def _find_leaked_secret(self, connection: asyncpg.Connection) -> list[Finding]:
        """Search every table and log for the secret that the jobs leak."""
        seen = []
        for row in await connection.fetch(
            "SELECT oid::regclass::text AS name FROM pg_class WHERE relnamespace = 'tenuto'::regnamespace"
            " AND relkind IN ('r', 'p') AND NOT relispartition"
        ):
            count = await connection.fetchval(
                f"SELECT count(*) FROM {row['name']} AS it WHERE position($1 IN it::text) > 0", CANARY
            )
            if count:
                seen.append(f"{row['name']}: {count} rows")
        for file in self._folder.rglob("*"):
            if file.is_file() and CANARY.encode() in file.read_bytes():
                seen.append(str(file))
        return [Finding("else", "no secret is visible (I16)", len(seen), seen[:_MAX_SHOWN_ROWS])] if seen else []


def _all_checks() -> Iterable[tuple[Figure, str, str]]:
    return ((check.figure, f"{check.rule} ({check.invariants})", check.violations) for check in CHECKS)


async def _run_check(connection: asyncpg.Connection, figure: Figure, rule: str, query: str) -> Finding | None:
    count: int = await connection.fetchval(f"SELECT count(*) FROM ({query}) AS broken")
    if not count:
        return None
    rows = await connection.fetch(f"SELECT to_jsonb(broken)::text FROM ({query} LIMIT {_MAX_SHOWN_ROWS}) AS broken")
    return Finding(figure, rule, count, [row[0] for row in rows])


async def _one_year_ago(connection: asyncpg.Connection) -> Any:
    return await connection.fetchval("SELECT now() - interval '1 year'")
