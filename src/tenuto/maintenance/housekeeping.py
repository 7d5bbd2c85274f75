"""What must be done now and then, also under load: partitions ahead of time, records past their keeping dropped.

Everything here may be done by any number of processes at once; each finds done what another has done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from tenuto.clock import Clock
from tenuto.logs import Log
from tenuto.postgres.database import Database, Occupied, TooSlow
from tenuto.service.process_identity import Identity
from tenuto.service.quarantine import alone, telling
from tenuto.settings import Settings
from tenuto.store import (
    batches,
    dead_letters,
    executions,
    manifests,
    named_logs,
    partitions,
    schedules,
    step_checkpoints,
    workers,
)
from tenuto.store.access import api_keys, idempotency_keys

BATCH = 1000
SILENCE = timedelta(minutes=5)
"""A worker nobody has heard of for so long, and that holds nothing, is taken to be gone."""
_BATCHES_PER_ROUND = 50
"""So that one round stays short; what is left is taken in the next."""

Forget = Callable[[Database, datetime, int], Awaitable[int]]
_FORGET: dict[str, Forget] = {
    "executions": executions.forget,
    "occurrences": schedules.forget_ledger,
    "steps of chains": step_checkpoints.forget,
    "dead letters": dead_letters.forget,
    "batches": batches.forget,
    "polls": manifests.forget_polls,
    "lines of logs": named_logs.forget,
    "sessions": api_keys.forget_sessions,
    "requests": idempotency_keys.forget,
}
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
        self._left: dict[str, str] = {}
        """What could not be let go in the last round, and why."""
        self._kept_for: UUID | None = None
        """The open execution for which records are kept beyond their time."""

    async def round(self) -> float:
        """Do what is due; how long until the next round."""
        now = self._clock.now()
        await partitions.ensure(self._database, now)
        # Not those of this process: if it was suspended, this round may come before their own signs of life.
        await workers.bury_silent(self._database, SILENCE, [one.id for one in self._own])
        every = timedelta(seconds=self._settings.retention_every_seconds)
        if self._retained_at is None or now - self._retained_at >= every:
            if not await self.apply_retention(now):
                return 1.0  # more is waiting
            if not self._left:  # else soon again
                self._retained_at = now
        return self._settings.housekeeping_seconds

    async def apply_retention(self, now: datetime) -> bool:
        """Drop what is older than the keeping, each kind for itself; False if there is more to do than fits into one
        round."""
        cutoff = now - timedelta(days=self._settings.retention_days)
        before, self._left = self._left, {}
        drained = []
        with self._apart("activities", before):
            needed = await self._needed_since(cutoff)
            for name in await partitions.drop_aged(
                self._database, needed, lambda name: self._apart(f"month {name}", before)
            ):
                log.info("month dropped", partition=name)
            drained.append(await self._drain(partitions.delete_old, needed))
        with self._apart("workers", before):
            await workers.forget_ended(self._database, cutoff)
        for what, forget in _FORGET.items():
            with self._apart(what, before):
                drained.append(await self._drain(forget, cutoff))
        return all(drained)

    async def _needed_since(self, cutoff: datetime) -> datetime:
        """The cut-off for activities. An open execution has yet to read what its steps came to, and a step the run of a
        manifest that it has started: what has ended since the oldest began is kept, and the log says for whom."""
        oldest = await executions.oldest_open(self._database)
        since: datetime = cutoff if oldest is None else min(cutoff, oldest["started_at"])
        before, self._kept_for = self._kept_for, None
        if oldest is not None and since < cutoff:
            self._kept_for = oldest["id"]
            if before != self._kept_for:
                log.warning(
                    "activities are kept beyond their time for an execution that is still open",
                    execution=str(oldest["id"]),
                    schedule=oldest["schedule_name"],
                    since=since.isoformat(),
                )
        return since

    @contextmanager
    def _apart(self, what: str, before: Mapping[str, str]) -> Iterator[None]:
        """What cannot be let go just now does not keep the others. It is told of once, and left for the next round."""

        def leave(tell: Callable[[Exception], None], error: Exception) -> None:
            self._left[what] = str(error)
            if before.get(what) != str(error):
                tell(error)

        try:
            with alone(partial(leave, telling(log, "cannot be let go", what=what))):
                yield
        except (Occupied, TooSlow) as error:  # the database is there, and busy with just this
            leave(lambda error: log.warning("cannot be let go yet", what=what, error=str(error)), error)

    async def _drain(self, forget: Forget, cutoff: datetime) -> bool:
        for _ in range(_BATCHES_PER_ROUND):
            if await forget(self._database, cutoff, BATCH) < BATCH:
                return True
        return False
