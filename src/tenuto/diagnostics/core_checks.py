"""The checks of the doctor that Tenuto itself contributes: server, clock, disk, schema and consistency of the data.

Beside live work it costs about as much as a few list pages: histories are followed for the newest tasks only, and every
check lists a few offending rows. Checks that need more than one statement are in `deep_checks`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from tenuto.audit import checkpoints, verifier
from tenuto.audit.keys import load_audit_keys
from tenuto.clock import Clock, SystemClock
from tenuto.diagnostics import deep_checks
from tenuto.diagnostics.attention_checks import attention_checks
from tenuto.diagnostics.statement_checks import CHECKS, Check
from tenuto.errors import SchemaMismatch, UserError
from tenuto.extension import DoctorCheck, Examination
from tenuto.ids import smallest_id_at
from tenuto.model.definitions.policies import MAX_WORKER_LOSSES
from tenuto.model.doctor_findings import MAX_DETAILS, Finding, Severity, list_details
from tenuto.model.partition_ranges import PartitionPeriod
from tenuto.postgres import migrator
from tenuto.postgres.database import Database, StatementTimeout
from tenuto.settings import Settings
from tenuto.store import partitions
from tenuto.store.access import audit_log
from tenuto.store.reports import doctor as store

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds of the checks, and bounds of their cost."""

    lease_delay: timedelta
    recovery_delay: timedelta
    schedule_delay: timedelta
    retention: timedelta
    task_sample: int = 1000
    claim_delay: timedelta = timedelta(minutes=1)
    promotion_delay: timedelta = timedelta(minutes=1)
    transaction_age: timedelta = timedelta(minutes=5)
    clock_skew: timedelta = timedelta(seconds=1)
    free_disk_bytes: int = 1024**3
    max_rows: int = 50_000
    max_histories: int = 5_000
    max_audit_links: int = 5_000
    max_losses: int = MAX_WORKER_LOSSES
    recheck_delay: timedelta = timedelta(seconds=5)

    @classmethod
    def from_settings(cls, settings: Settings) -> Limits:
        """Allow two intervals of the service that is responsible."""
        sweeps = timedelta(seconds=2 * settings.sweep_seconds)
        return cls(
            lease_delay=sweeps,
            recovery_delay=sweeps + timedelta(seconds=10),
            schedule_delay=timedelta(seconds=2 * settings.scheduler_poll_seconds),
            retention=timedelta(days=settings.retention_days),
        )


def core_checks(
    *, limits: Limits | None = None, clock: Clock | None = None, sleep: Sleep = asyncio.sleep
) -> list[DoctorCheck]:
    """Return the checks in the order of the report. ``limits`` are those of the settings if None."""
    checks = _CoreChecks(limits, clock or SystemClock(), sleep)
    return [
        DoctorCheck("server", checks.check_server, is_prerequisite=True),
        DoctorCheck("server_disk", checks.check_server_disk, is_prerequisite=True),
        DoctorCheck("clock", checks.check_machine_clock, is_prerequisite=True),
        DoctorCheck("disk", checks.check_disk, is_prerequisite=True, applies_to=_has_embedded_database),
        DoctorCheck("schema", checks.check_schema, is_prerequisite=True),
        DoctorCheck("partitions", checks.check_partitions),
        DoctorCheck("commits_lost", checks.check_history),
        DoctorCheck("audit", checks.check_audit_chain),
        DoctorCheck("occurrence_missing", checks.check_ledger),
        DoctorCheck("next_run_unknown", checks.check_next_runs),
        DoctorCheck("secret_exposed", checks.check_exposed_secrets),
        *attention_checks(),
        *(DoctorCheck(check.name, partial(checks.check_rows, check)) for check in CHECKS),
    ]


def _has_embedded_database(settings: Settings) -> bool:
    return settings.database is None


class _CoreChecks:
    """Gives the checks of an examination what they need."""

    def __init__(self, limits: Limits | None, clock: Clock, sleep: Sleep) -> None:
        self._given_limits = limits
        self._clock = clock
        self._sleep = sleep
        self._values: dict[str, Any] | None = None
        self._valued_database: Database | None = None

    def _limits(self, examination: Examination) -> Limits:
        return self._given_limits or Limits.from_settings(examination.services.get_settings())

    async def check_server(self, examination: Examination) -> Finding:
        return await _check_server(examination.database)

    async def check_server_disk(self, examination: Examination) -> Finding:
        return await _check_server_disk(examination.database)

    async def check_machine_clock(self, examination: Examination) -> Finding:
        return await _check_machine_clock(examination.database, self._clock, self._limits(examination))

    async def check_disk(self, examination: Examination) -> Finding:
        return await _check_disk(examination.services.get_settings(), self._limits(examination))

    async def check_schema(self, examination: Examination) -> Finding:
        return await _check_schema(examination.database)

    async def check_partitions(self, examination: Examination) -> Finding:
        wanted = partitions.configured_period(examination.services.get_settings())
        return await _check_partitions(examination.database, examination.database.clock.now(), wanted)

    async def check_history(self, examination: Examination) -> Finding:
        return await deep_checks.check_history(examination.database, examination.services.get_settings())

    async def check_audit_chain(self, examination: Examination) -> Finding:
        settings = examination.services.get_settings()
        return await _check_audit_chain(examination.database, settings, self._limits(examination))

    async def check_ledger(self, examination: Examination) -> Finding:
        return await deep_checks.check_ledger(examination.database)

    async def check_next_runs(self, examination: Examination) -> Finding:
        return await deep_checks.check_next_runs(examination.database)

    async def check_exposed_secrets(self, examination: Examination) -> Finding:
        return await deep_checks.check_exposed_secrets(
            examination.database, examination.services.get_settings(), self._limits(examination).max_histories
        )

    async def check_rows(self, check: Check, examination: Examination) -> Finding:
        """Run the statement of a check from ``statement_checks.toml``."""
        return await _run_check(examination.database, check, await self._load_values(examination), self._sleep)

    async def _load_values(self, examination: Examination) -> dict[str, Any]:
        """Return the parameters of the statements: the limits, and where the examined history begins.

        The beginning of the history is queried once per database, before the first statement.
        """
        database = examination.database
        if self._values is None or self._valued_database is not database:
            limits = self._limits(examination)
            values: dict[str, Any] = {name: getattr(limits, name) for name in Limits.__dataclass_fields__}
            values["horizon"] = smallest_id_at(await partitions.find_retained_since(database, database.clock.now()))
            values["history"] = await store.find_history_start(database, values["horizon"], limits.max_rows)
            self._values, self._valued_database = values, database
        return self._values


async def _run_check(database: Database, check: Check, values: dict[str, Any], sleep: Sleep) -> Finding:
    parameters = [values[name] for name in check.limits]
    rows = await store.run_check_query(database, check.name, *parameters, MAX_DETAILS + 1)
    if rows and check.recheck is not None:
        before = {row[check.recheck] for row in rows}
        await sleep(values["recheck_delay"].total_seconds())
        rows = await store.run_check_query(database, check.name, *parameters, MAX_DETAILS + 1)
        rows = rows and [row for row in rows if row[check.recheck] in before]
    if rows is None:
        return Finding.timed_out(check.name, check.passed)
    return Finding.from_details(
        check.name,
        [check.row.format(**row) for row in rows],
        passed=check.passed,
        failed=check.failed,
        severity=check.severity,
        meaning=check.meaning,
        remedy=check.remedy,
    )


async def _check_audit_chain(database: Database, settings: Settings, limits: Limits) -> Finding:
    """Verify the newest part of the audit chain; `tenuto audit verify` verifies all of it."""
    title = "unknown whether the audit chain is unchanged"
    try:
        keys = await asyncio.to_thread(load_audit_keys, settings)
        known = await asyncio.to_thread(
            checkpoints.read_checkpoints, settings.home, await audit_log.load_database_identity(database)
        )
        result = await verifier.verify_chain(database, keys, known, newest=limits.max_audit_links)
    except UserError as error:
        return Finding("audit", title, Severity.WARNING, [error.message], None, error.remedy)
    except StatementTimeout as error:
        return Finding("audit", title, Severity.WARNING, [error.message], None, "try again later")
    if result.is_sound:
        return Finding(
            "audit", "the audit chain is unchanged", Severity.OK, [f"{result.checked_link_count} links verified"]
        )
    details = list_details([fault.description for fault in result.faults])
    kinds = {fault.kind for fault in result.faults}
    if kinds == {"unsealed"}:
        return Finding(
            "audit",
            "audit entries are not sealed yet",
            Severity.WARNING,
            details,
            "A scheduler seals entries. Until then, a change of these entries would not be noticed.",
            "check that a scheduler runs: tenuto worker list",
        )
    if kinds == {"unknown_key"}:
        return Finding(
            "audit",
            "part of the audit log cannot be checked, because its key is missing",
            Severity.WARNING,
            details,
            "There is no sign of tampering.",
            "add the missing key to TENUTO_MASTER_KEY_FILE, or restore audit.keys from a backup",
        )
    if kinds <= {"unsealed", "unknown_key"}:
        remedy = "check that a scheduler runs, and that each has the master key (TENUTO_MASTER_KEY_FILE)"
        meaning = "Entries that are not sealed, or cannot be verified, could have been changed without being noticed."
        return Finding(
            "audit", "part of the audit chain cannot be verified", Severity.WARNING, details, meaning, remedy
        )
    return Finding(
        "audit",
        "the audit chain was changed",
        Severity.PROBLEM,
        details,
        "A database user changed it, or part of it was lost.",
        "verify all of it with `tenuto audit verify`; compare with an export or a backup",
    )


async def _check_server(database: Database) -> Finding:
    facts = await store.load_server_info(database)
    unsafe = [
        f"{setting} is off"
        for setting in ("fsync", "full_page_writes", "synchronous_commit")
        if getattr(facts, setting) == "off"
    ]
    details = [f"PostgreSQL {facts.version}"]
    if not unsafe:
        return Finding("server", "the server keeps committed data", Severity.OK, details)
    return Finding(
        "server",
        "the server may lose committed data",
        Severity.WARNING,
        details + unsafe,
        "A power failure may lose accepted tasks and recorded outcomes, or damage the database.",
        "set it to on in the configuration of the server",
    )


async def _check_server_disk(database: Database) -> Finding:
    error = await store.find_write_error(database)
    if error is None:
        return Finding("server_disk", "the server can write to its disk", Severity.OK)
    return Finding(
        "server_disk",
        "the server cannot write to its disk",
        Severity.PROBLEM,
        [error.message],
        "No task is accepted, no task starts, and no outcome can be recorded.",
        error.remedy,
    )


async def _check_machine_clock(database: Database, clock: Clock, limits: Limits) -> Finding:
    before = clock.now()
    server_time = (await store.load_server_info(database)).now
    machine_time = before + (clock.now() - before) / 2
    skew = (machine_time - server_time).total_seconds()
    if abs(skew) <= limits.clock_skew.total_seconds():
        return Finding("clock", "the clocks of this machine and the database agree", Severity.OK)
    return Finding(
        "clock",
        "the clocks of this machine and the database disagree",
        Severity.WARNING,
        [f"this machine is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"],
        "Leases are safe, because the database clock decides; other times that this machine records are wrong.",
        "synchronise the clock with NTP",
    )


async def _check_disk(settings: Settings, limits: Limits) -> Finding:
    usage = await asyncio.to_thread(shutil.disk_usage, settings.home)
    free = f"{usage.free / 1024**3:.1f} GiB free of {usage.total / 1024**3:.1f} GiB at {settings.home}"
    if usage.free >= limits.free_disk_bytes:
        return Finding("disk", "the embedded database has free disk space", Severity.OK, [free])
    return Finding(
        "disk",
        "the embedded database is running out of disk space",
        Severity.WARNING,
        [free],
        "When the disk is full, no task is accepted and no outcome can be recorded.",
        "free disk space, or shorten the retention (TENUTO_RETENTION_DAYS); to use another disk, stop all processes and"
        " move the home directory with its files: a new one would start with an empty database",
    )


async def _check_schema(database: Database) -> Finding:
    try:
        await migrator.check_schema(database)
    except SchemaMismatch as error:
        title = "the schema does not fit this version"
        return Finding("schema", title, Severity.PROBLEM, [error.message], "No service can run.", error.remedy)
    return Finding(
        "schema", "the schema fits this version", Severity.OK, [f"at migration {migrator.load_migrations()[-1].number}"]
    )


async def _check_partitions(database: Database, now: datetime, wanted: PartitionPeriod | None) -> Finding:
    missing = await partitions.find_missing_partitions(database, now, ahead=1)
    others = [] if wanted is None else await partitions.find_partitions_of_other_period(database, now, wanted)
    if wanted is not None and others and not missing:
        return Finding(
            "partitions",
            f"the coming partitions are not by {wanted}",
            Severity.WARNING,
            [f"TENUTO_PARTITION_PERIOD is {wanted}, but {name} exists" for name in others],
            "Processes with another setting created them. Each replaces the empty partitions of the other.",
            f"set TENUTO_PARTITION_PERIOD={wanted} for every process that has it, and restart the services; if they are"
            " not the owner of the schema, run `tenuto migrate` as the owner with this setting",
        )
    return Finding.from_details(
        "partitions",
        [f"{name} is missing" for name in missing],
        passed="partitions exist for now and the next period",
        failed="partitions are missing",
        severity=Severity.WARNING,
        meaning="Records go into the default partition, where retention deletes them row by row.",
        remedy="check that a worker or a scheduler runs as the owner of the schema: it creates partitions in advance;"
        " or run `tenuto migrate` as the owner, every month, or every day with partitions by day",
    )
