"""The doctor: asks every question of ``invariants``, looks at server, schema, clock and disk, and says what it found.

It only looks. Beside live work it costs about as much as a few pages of a list, however long the past is: histories
are followed for the newest tasks only, and every question names a few offenders, not all. What one statement cannot
tell is in `closerlooks`.
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
from tenuto.audit import keys as auditkeys
from tenuto.clock import Clock, SystemClock
from tenuto.diagnostics import deep_checks
from tenuto.diagnostics.checks import INVARIANTS, NAMED, Finding, Invariant, Verdict
from tenuto.errors import SchemaMismatch, UserError
from tenuto.ids import first_id_at
from tenuto.model.policies import LOSSES_BEFORE_SET_ASIDE
from tenuto.postgres import migrator
from tenuto.postgres.database import Database, TooSlow
from tenuto.service.health_file import STALE_AFTER
from tenuto.settings import Settings
from tenuto.store import partitions
from tenuto.store.access import audit_log
from tenuto.store.reports import doctor as store

__all__ = ["Bounds", "Finding", "Told", "examine"]

Told = Callable[[Finding, int, int], None]
"""Called with each answer as it comes, which one it is, and of how many."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """From when on something is worth a word."""

    late_lease: timedelta
    left: timedelta
    late_schedule: timedelta
    kept: timedelta
    silent: timedelta = STALE_AFTER["worker"]
    silent_scheduler: timedelta = STALE_AFTER["scheduler"]
    waiting: timedelta = timedelta(minutes=1)
    overdue: timedelta = timedelta(minutes=1)
    snapshot: timedelta = timedelta(minutes=5)
    skew: timedelta = timedelta(seconds=1)
    free_disk: int = 1024**3
    looked_at: int = 50_000
    followed: int = 5_000
    verified: int = 5_000
    losses: int = LOSSES_BEFORE_SET_ASIDE
    asked_again: timedelta = timedelta(seconds=5)

    @classmethod
    def of(cls, settings: Settings) -> Bounds:
        """Twice the sweep, twice the poll: it has missed its turn."""
        sweeps = timedelta(seconds=2 * settings.sweep_seconds)
        return cls(
            late_lease=sweeps,
            left=sweeps + timedelta(seconds=10),
            late_schedule=timedelta(seconds=2 * settings.scheduler_poll_seconds),
            kept=timedelta(days=settings.retention_days),
        )


async def examine(
    database: Database,
    settings: Settings,
    *,
    clock: Clock | None = None,
    bounds: Bounds | None = None,
    told: Told = lambda finding, number, of: None,
) -> list[Finding]:
    """Everything the doctor has to say, the ground first. Without a schema there is nothing more to ask."""
    bounds = bounds or Bounds.of(settings)
    ground: list[Callable[[], Awaitable[Finding]]] = [
        lambda: _server(database),
        lambda: _machine_clock(database, clock or SystemClock(), bounds),
        lambda: _schema(database),
    ]
    if settings.database is None:
        ground.insert(2, lambda: _disk(settings, bounds))
    looks: list[Callable[[], Awaitable[Finding]]] = [
        lambda: _partitions(database, database.clock.now()),
        lambda: _audit(database, settings, bounds),
        lambda: deep_checks.ledger(database),
        lambda: deep_checks.next_runs(database),
        lambda: deep_checks.secrets_in_the_open(database, settings, bounds.followed),
    ]
    findings: list[Finding] = []
    total = len(ground) + len(looks) + len(INVARIANTS)

    async def have(look: Callable[[], Awaitable[Finding]]) -> None:
        findings.append(await look())
        told(findings[-1], len(findings), total)

    for look in ground:
        await have(look)
    if any(finding.verdict is Verdict.PROBLEM for finding in findings):
        return findings
    for look in looks:
        await have(look)
    values: dict[str, Any] = {name: getattr(bounds, name) for name in Bounds.__dataclass_fields__}
    values["horizon"] = first_id_at(await partitions.unbroken_since(database, database.clock.now()))
    values["history"] = await store.history_begins(database, values["horizon"], bounds.looked_at)
    for invariant in INVARIANTS:
        await have(partial(_judge, database, invariant, values))
    return findings


async def _judge(database: Database, invariant: Invariant, values: dict[str, Any]) -> Finding:
    given = [values[name] for name in invariant.given]
    rows = await store.ask(database, invariant.name, *given, NAMED + 1)
    if rows and invariant.lasting is not None:
        before = {row[invariant.lasting] for row in rows}
        await asyncio.sleep(values["asked_again"].total_seconds())
        rows = await store.ask(database, invariant.name, *given, NAMED + 1)
        rows = rows and [row for row in rows if row[invariant.lasting] in before]
    if rows is None:
        return Finding(
            invariant.name,
            f"it is not known whether {invariant.holds}",
            Verdict.WARNING,
            ["the question took too long"],
            "The database is very busy, or its statistics are out of date.",
            "ask again later; if it stays so, run ANALYZE on the schema tenuto",
        )
    if not rows:
        return Finding(invariant.name, invariant.holds, Verdict.OK)
    details = [invariant.says.format(**row) for row in rows[:NAMED]]
    if len(rows) > NAMED:
        details.append("… and more")
    return Finding(invariant.name, invariant.fault, invariant.otherwise, details, invariant.means, invariant.remedy)


async def _audit(database: Database, settings: Settings, bounds: Bounds) -> Finding:
    """The newest part of the audit trail; all of it is for `tenuto audit verify`, and takes its time."""
    title = "it is not known whether the audit trail is as it was written"
    try:
        keys = await asyncio.to_thread(auditkeys.at_hand, settings)
        known = await asyncio.to_thread(checkpoints.read, settings.home, await audit_log.identity(database))
        told = await verifier.verify(database, keys, known, newest=bounds.verified)
    except UserError as error:
        return Finding("audit", title, Verdict.WARNING, [error.message], None, error.remedy)
    except TooSlow as error:
        return Finding("audit", title, Verdict.WARNING, [error.message], None, "ask again later")
    if told.sound:
        return Finding("audit", "the audit trail is as it was written", Verdict.OK, [f"{told.links} links looked at"])
    details = [fault.says for fault in told.faults[:NAMED]] + (["… and more"] if len(told.faults) > NAMED else [])
    kinds = {fault.kind for fault in told.faults}
    if kinds <= {"unsealed", "unknown_key"}:
        waits = "see that a scheduler runs, and that each has the master key (TENUTO_MASTER_KEY_FILE)"
        means = "What waits to be sealed, or cannot be checked, could have been changed unnoticed."
        return Finding("audit", "part of the audit trail cannot be vouched for", Verdict.WARNING, details, means, waits)
    return Finding(
        "audit",
        "the audit trail is not as it was written",
        Verdict.PROBLEM,
        details,
        "Somebody with rights in the database has been at it, or part of it was lost.",
        "`tenuto audit verify` looks at all of it; compare with an export or a backup",
    )


async def _server(database: Database) -> Finding:
    facts = await store.server(database)
    careless = [
        f"{setting} is off"
        for setting in ("fsync", "full_page_writes", "synchronous_commit")
        if facts[setting] == "off"
    ]
    details = [f"PostgreSQL {facts['version']}"]
    if not careless:
        return Finding("server", "the server keeps what it has committed", Verdict.OK, details)
    return Finding(
        "server",
        "the server may lose what it has committed",
        Verdict.WARNING,
        details + careless,
        "A power failure may lose tasks that were accepted and ends that were recorded, or damage the database.",
        "set it to on in the server's configuration",
    )


async def _machine_clock(database: Database, clock: Clock, bounds: Bounds) -> Finding:
    before = clock.now()
    theirs: datetime = (await store.server(database))["now"]
    ours = before + (clock.now() - before) / 2
    skew = (ours - theirs).total_seconds()
    if abs(skew) <= bounds.skew.total_seconds():
        return Finding("clock", "this machine's clock agrees with the database's", Verdict.OK)
    return Finding(
        "clock",
        "this machine's clock disagrees with the database's",
        Verdict.WARNING,
        [f"it is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"],
        "Leases are safe, being judged by the database; instants this machine writes down elsewhere are off.",
        "keep it in step with NTP",
    )


async def _disk(settings: Settings, bounds: Bounds) -> Finding:
    usage = await asyncio.to_thread(shutil.disk_usage, settings.home)
    free = f"{usage.free / 1024**3:.1f} GiB free of {usage.total / 1024**3:.1f} GiB at {settings.home}"
    if usage.free >= bounds.free_disk:
        return Finding("disk", "the embedded database has room to grow", Verdict.OK, [free])
    return Finding(
        "disk",
        "the embedded database is running out of room",
        Verdict.WARNING,
        [free],
        "Once the disk is full, nothing is accepted and no end can be recorded.",
        "make room, keep records for a shorter time (TENUTO_RETENTION_DAYS), or move TENUTO_HOME",
    )


async def _schema(database: Database) -> Finding:
    try:
        await migrator.check(database)
    except SchemaMismatch as error:
        unfit = "the schema does not fit this version"
        return Finding("schema", unfit, Verdict.PROBLEM, [error.message], "Nothing can run.", error.remedy)
    return Finding(
        "schema", "the schema fits this version", Verdict.OK, [f"at migration {migrator.migrations()[-1].number}"]
    )


async def _partitions(database: Database, now: datetime) -> Finding:
    missing = await partitions.missing(database, now, ahead=1)
    if not missing:
        return Finding("partitions", "there is a partition for this month and the next", Verdict.OK)
    return Finding(
        "partitions",
        "a month has no partition",
        Verdict.WARNING,
        [f"{name} is missing" for name in missing],
        "Records go into the default partition, where they are deleted row by row instead of by the month.",
        "see that a worker or a scheduler runs: each of them makes partitions ahead of time",
    )
