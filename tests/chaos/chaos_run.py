"""One chaos run from an empty database to the audit: load and faults in parallel, then recovery, then the checks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg

from tests.chaos.environment import Environment, open_environment
from tests.chaos.faults import Faults
from tests.chaos.feature_jobs import TRIGGERS
from tests.chaos.jobs import TRIGGERED_MANIFESTS, app
from tests.chaos.load import Load
from tests.chaos.report import Report
from tests.chaos.run_size import Pace, Progress, RunSize
from tests.chaos.task_audit import Auditor

STALL_SECONDS = 90.0
"""Without progress for this long, the tasks that are still open count as lost."""
_OPEN_WORK = """
SELECT (SELECT count(*) FROM tenuto.tasks) AS tasks,
       (SELECT count(*) FROM tenuto.executions WHERE ended_at IS NULL) AS executions,
       (SELECT count(*) FROM tenuto.occurrences WHERE decision = 'queued') AS turns,
       (SELECT count(*) FROM tenuto.audit_unsealed) AS unsealed,
       (SELECT count(*) FROM tenuto.bulk_operations WHERE state = 'running') AS operations,
       (SELECT count(*) FROM tenuto_notifications.events WHERE state = 'pending') AS unsent,
       (SELECT count(*) FROM tenuto.activities WHERE final AND status = 'failed' AND name <> 'notifications.deliver'
           AND NOT EXISTS (SELECT FROM tenuto_notifications.events WHERE event_key = 'task:' || task_id)) AS unreported,
       (SELECT coalesce(max(fence), 0) FROM tenuto.tasks) AS tried
"""
_COUNTS = """
SELECT count(*) FILTER (WHERE final) AS tasks, count(*) FILTER (WHERE reason = 'lost') AS recoveries,
       count(*) FILTER (WHERE final AND reason = 'lost') AS set_aside, count(*) AS attempts
FROM tenuto.activities
"""


class ChaosRun:
    """Load and faults in one environment."""

    def __init__(self, environment: Environment, wanted: RunSize) -> None:
        self._environment = environment
        self._wanted = wanted
        self._pace = Pace(wanted, self._progress)
        self._load = Load(environment, wanted.tasks)
        self._faults = Faults(environment, self._pace.faults_may_continue)
        self._began = time.monotonic()
        self.url = environment.url
        self.ledger = environment.ledger.path

    async def run(self) -> Auditor:
        """Run until no work is left and every service has stopped; return the auditor of the run."""
        await self._inject_faults()
        await self._recover()
        await self._environment.stop_all(within=60)
        self._print("auditing")
        return Auditor(
            self._environment.settings, self._environment.folder, self._load.accepted, self._environment.lifetimes,
            self._environment.receiver,
        )  # fmt: skip

    async def report(self, auditor: Auditor) -> Report:
        self._environment.write_lifetimes()
        findings = await auditor.findings()
        connection = await asyncpg.connect(self._environment.url)
        try:
            counts = dict(await connection.fetchrow(_COUNTS) or {})
        finally:
            await connection.close()
        counts |= self._environment.counts
        counts["asked_again"] = self._load.accepted.asked_again
        return Report(self._wanted.seed, time.monotonic() - self._began, counts, findings, self._environment.unexpected)

    def _progress(self) -> Progress:
        seconds, kills = time.monotonic() - self._began, self._environment.counts["kills"]
        return Progress(seconds, self._load.accepted.asked, kills, self._faults.every_fault_occurred)

    # --- phases -----------------------------------------------------------------------------------------------------

    async def _inject_faults(self) -> None:
        load = asyncio.create_task(self._load.run(self._pace.load_may_continue))
        faults = asyncio.create_task(self._faults.run())
        said = 0.0
        try:
            while not self._pace.is_over():
                for task in (load, faults):
                    if task.done():
                        await task  # it has failed
                if time.monotonic() - said > 2:
                    said = time.monotonic()
                    self._print_counts()
                await asyncio.sleep(0.05)
            self._faults.is_over = True
            await faults
            self._load.is_over = True
            await load
        finally:
            self._faults.is_over = self._load.is_over = True  # a request may end although it was cancelled
            for task in (load, faults):
                task.cancel()
            await asyncio.gather(load, faults, return_exceptions=True)

    async def _recover(self) -> None:
        """Disable schedules and manifests, and wait until all work has ended."""
        for name in (*TRIGGERS, "inner"):
            await self._load.retry(lambda name=name: app.schedules.disable(name))  # type: ignore[misc]
        for name in TRIGGERED_MANIFESTS:
            await self._load.retry(lambda name=name: app.manifests.disable(name))  # type: ignore[misc]
        database = await app.open()
        last: tuple[int, ...] = ()
        moved = said = time.monotonic()
        while True:
            await self._load.approve_pending()
            row = await self._load.retry(lambda: database.fetch_one(_OPEN_WORK))
            assert row is not None
            left = tuple(row.values())
            if not any(left[:-1]):
                return
            if left != last:
                last, moved = left, time.monotonic()
            if time.monotonic() - moved > STALL_SECONDS:
                self._environment.unexpected.append(f"no progress for {STALL_SECONDS:.0f} s: {dict(row)}")
                return
            if time.monotonic() - said > 2:
                said = time.monotonic()
                self._print(f"recovering: {row['tasks']} tasks and {row['executions']} executions are open")
            await asyncio.sleep(0.1)

    # --- progress messages ------------------------------------------------------------------------------------------

    def _print_counts(self) -> None:
        counts, accepted = self._environment.counts, self._load.accepted
        self._print(
            f"{counts['kills']} kills, {counts['stops']} freezes, {counts['database_restarts']} database restarts;"
            f" {accepted.asked:,} tasks acknowledged, {accepted.asked_again} requests repeated"
        )

    def _print(self, text: str) -> None:
        self._environment.say(f"{time.monotonic() - self._began:6.0f} s  {text}")


@asynccontextmanager
async def open_chaos_run(wanted: RunSize, say: Callable[[str], None], *, keep: bool = False) -> AsyncIterator[ChaosRun]:
    """Provide a chaos run in its own environment, which is removed afterwards unless it is to be kept."""
    async with open_environment(random.Random(wanted.seed), say, keep=keep) as environment:
        if keep:
            say(f"logs and ledger: {environment.folder}; the database: {environment.server.data_directory}")
            environment.kept_log_characters = 50_000
        yield ChaosRun(environment, wanted)
