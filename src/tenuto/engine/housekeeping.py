"""What must be done now and then, also under load: partitions ahead of time, records past their keeping dropped.

Everything here may be done by any number of processes at once; each finds done what another has done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from tenuto.clock import Clock
from tenuto.engine.identity import Identity
from tenuto.logs import Log
from tenuto.settings import Settings
from tenuto.store import (
    batches,
    chainsteps,
    deadletters,
    executions,
    keys,
    logs,
    manifests,
    partitions,
    requests,
    schedules,
    workers,
)
from tenuto.store.database import Database

BATCH = 1000
SILENCE = timedelta(minutes=5)
"""A worker nobody has heard of for so long, and that holds nothing, is taken to be gone."""
_BATCHES_PER_ROUND = 50
"""So that one round stays short; what is left is taken in the next."""

Forget = Callable[[Database, datetime, int], Awaitable[int]]
_FORGET: tuple[Forget, ...] = (
    partitions.delete_old,
    executions.forget,
    schedules.forget_ledger,
    chainsteps.forget,
    deadletters.forget,
    batches.forget,
    manifests.forget_polls,
    logs.forget,
    keys.forget_sessions,
    requests.forget,
)
"""Each lets go a small batch of what is older than the cut-off, and nothing that is still open."""

log = Log("tenuto.housekeeping")


class Housekeeping:
    """The round that keeps the house."""

    def __init__(self, database: Database, clock: Clock, settings: Settings, own: Sequence[Identity] = ()) -> None:
        self._database = database
        self._own = own
        self._clock = clock
        self._settings = settings
        self._retained_at: datetime | None = None

    async def round(self) -> float:
        """Do what is due; how long until the next round."""
        now = self._clock.now()
        await partitions.ensure(self._database, now)
        # Not those of this process: if it was suspended, this round may come before their own signs of life.
        await workers.bury_silent(self._database, SILENCE, [one.id for one in self._own])
        every = timedelta(seconds=self._settings.retention_every_seconds)
        if self._retained_at is None or now - self._retained_at >= every:
            if await self.apply_retention(now):
                self._retained_at = now
            else:
                return 1.0  # more is waiting
        return self._settings.housekeeping_seconds

    async def apply_retention(self, now: datetime) -> bool:
        """Drop what is older than the keeping; False if there is more to do than fits into one round."""
        cutoff = now - timedelta(days=self._settings.retention_days)
        for name in await partitions.drop_aged(self._database, cutoff):
            log.info("month dropped", partition=name)
        await workers.forget_ended(self._database, cutoff)
        drained = [await self._drain(forget, cutoff) for forget in _FORGET]
        return all(drained)

    async def _drain(self, forget: Forget, cutoff: datetime) -> bool:
        for _ in range(_BATCHES_PER_ROUND):
            if await forget(self._database, cutoff, BATCH) < BATCH:
                return True
        return False
