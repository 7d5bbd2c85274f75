"""One run from an empty database to the audit: load and faults side by side, then healing, then the reckoning."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg

from tests.chaos.task_audit import Auditor
from tests.chaos.environment import Stage, raised
from tests.chaos.faults import Faults
from tests.chaos.load import Load
from tests.chaos.pace import Pace, SoFar, Wanted
from tests.chaos.report import Report
from tests.chaos.jobs import CLOCKED, INTERVALS, app

PATIENCE = 90.0
"""After so long without any progress, what is still open counts as lost."""
_LEFT = """
SELECT (SELECT count(*) FROM tenuto.tasks) AS tasks,
       (SELECT count(*) FROM tenuto.executions WHERE ended_at IS NULL) AS executions,
       (SELECT count(*) FROM tenuto.occurrences WHERE decision = 'queued') AS turns,
       (SELECT count(*) FROM tenuto.audit_unsealed) AS unsealed,
       (SELECT coalesce(max(fence), 0) FROM tenuto.tasks) AS tried
"""
_COUNTS = """
SELECT count(*) FILTER (WHERE final) AS tasks, count(*) FILTER (WHERE reason = 'lost') AS recoveries,
       count(*) FILTER (WHERE final AND reason = 'lost') AS set_aside, count(*) AS attempts
FROM tenuto.activities
"""


class Storm:
    """A stage with load and faults on it."""

    def __init__(self, stage: Stage, wanted: Wanted) -> None:
        self._stage = stage
        self._wanted = wanted
        self._pace = Pace(wanted, self._so_far)
        self._load = Load(stage, wanted.tasks)
        self._faults = Faults(stage, self._pace.faults_may_go_on)
        self._began = time.monotonic()
        self.url = stage.url
        self.ledger = stage.ledger.path

    async def run(self) -> Auditor:
        """Until nothing is left to do and everybody has left; who then can say what came of it."""
        await self._rage()
        await self._heal()
        await self._stage.leave_in_good_order(within=60)
        self._say("auditing")
        return Auditor(self._stage.settings, self._stage.folder, self._load.accepted, self._stage.lives)

    async def report(self, auditor: Auditor) -> Report:
        self._stage.note_lives()
        findings = await auditor.findings()
        connection = await asyncpg.connect(self._stage.url)
        try:
            counts = dict(await connection.fetchrow(_COUNTS) or {})
        finally:
            await connection.close()
        counts |= self._stage.counts
        counts["asked_again"] = self._load.accepted.asked_again
        return Report(self._wanted.seed, time.monotonic() - self._began, counts, findings, self._stage.wrong)

    def _so_far(self) -> SoFar:
        seconds, kills = time.monotonic() - self._began, self._stage.counts["kills"]
        return SoFar(seconds, self._load.accepted.asked, kills, self._faults.came_once)

    # --- the three acts ---------------------------------------------------------------------------------------------

    async def _rage(self) -> None:
        load = asyncio.create_task(self._load.run(self._pace.load_may_go_on))
        faults = asyncio.create_task(self._faults.run())
        said = 0.0
        try:
            while not self._pace.is_over():
                for task in (load, faults):
                    if task.done():
                        await task  # it has failed: say why
                if time.monotonic() - said > 2:
                    said = time.monotonic()
                    self._tell()
                await asyncio.sleep(0.05)
            self._faults.over = True
            await faults
            self._load.over = True
            await load
        finally:
            for task in (load, faults):
                task.cancel()
            await asyncio.gather(load, faults, return_exceptions=True)

    async def _heal(self) -> None:
        """Nothing more falls due, and what has begun comes to its end."""
        for name in (*INTERVALS, "inner"):
            await self._load.insist(lambda name=name: app.schedules.disable(name))  # type: ignore[misc]
        for name in CLOCKED:
            await self._load.insist(lambda name=name: app.manifests.disable(name))  # type: ignore[misc]
        database = await app.open()
        last: tuple[int, ...] = ()
        moved = said = time.monotonic()
        while True:
            row = await self._load.insist(lambda: database.fetch_one(_LEFT))
            assert row is not None
            left = tuple(row.values())
            if not any(left[:-1]):
                return
            if left != last:
                last, moved = left, time.monotonic()
            if time.monotonic() - moved > PATIENCE:
                self._stage.wrong.append(f"nothing has moved for {PATIENCE:.0f} s: {dict(row)}")
                return
            if time.monotonic() - said > 2:
                said = time.monotonic()
                self._say(f"healing: {row['tasks']} tasks and {row['executions']} executions are open")
            await asyncio.sleep(0.1)

    # --- words ------------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        counts, accepted = self._stage.counts, self._load.accepted
        self._say(
            f"{counts['kills']} kills, {counts['stops']} stops, {counts['database_restarts']} database restarts;"
            f" {accepted.asked:,} tasks acknowledged, asked again {accepted.asked_again} times"
        )

    def _say(self, words: str) -> None:
        self._stage.say(f"{time.monotonic() - self._began:6.0f} s  {words}")


@asynccontextmanager
async def raging(wanted: Wanted, say: Callable[[str], None], *, keep: bool = False) -> AsyncIterator[Storm]:
    """A storm on a stage of its own; nothing is left of it afterwards, unless it is to be kept."""
    async with raised(random.Random(wanted.seed), say, keep=keep) as stage:
        if keep:
            say(f"logs and ledger: {stage.folder}; the database: {stage.server.data_directory}")
            stage.kept_words = 50_000
        yield Storm(stage, wanted)
