"""Writes outcomes down, many at a time.

While one batch is being committed the next one gathers: nothing waits when the worker is idle, and batches make
themselves under load. An outcome that cannot be written as it is gets written without what cannot be stored; a task
is never left looking as if it still ran.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from tenuto.clock import Clock, steady
from tenuto.errors import Invalid, StoreError, Unavailable
from tenuto.ids import new_id
from tenuto.jobs.attempts import Attempt
from tenuto.lifecycle.completion import finish
from tenuto.logs import Log
from tenuto.model.tasks import Outcome, Settlement, Status, Task, error_json, settle
from tenuto.observability.process_metrics import counters
from tenuto.postgres.database import Database, TooSlow
from tenuto.store import manifests
from tenuto.store.executions import Taking
from tenuto.worker.limit_handoff import heirs, seated

BATCH = 500
BATCH_SIZE = 4 * 1024 * 1024
"""How much text a batch carries; the outcome that reaches it is the last."""
GIVE_UP_SECONDS = 30.0
"""For a worker within an application; a service that is told to stop leaves sooner (see `signals`)."""
_TELL_WITHIN, _TELL_AGAIN = 0.2, 5.0
"""How soon a manifest hears that an item of a batch has succeeded, and when it is told again if that failed."""

log = Log("tenuto.finisher")


class Finisher:
    """The last station of every attempt."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        written: Callable[[Sequence[Attempt]], None],
        taking: Callable[[], Taking | None] = lambda: None,
        took: Callable[[Sequence[Task], float], Awaitable[None]] | None = None,
    ) -> None:
        """``taking`` says what the worker would go on with when a step group ends; ``took`` is told what it got."""
        self._database = database
        self._clock = clock
        self._written = written
        self._taking = taking
        self._took = took
        self._waiting: deque[tuple[Attempt, Outcome]] = deque()
        self._something = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._give_up_at = 0.0
        self._succeeded: dict[UUID, datetime] = {}
        """Manifests of which items of batches have succeeded: a row for all of them, so it is told now and then."""
        self._told_at = 0.0
        self.stale = 0
        """Outcomes that came too late: the task belonged to somebody else by then."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tenuto-finisher")

    async def stop(self) -> None:
        """Write what is left, then end; if the database stays away, leave it to the sweep."""
        self._give_up_at = steady() + GIVE_UP_SECONDS
        self._stopping = True
        self._something.set()
        if self._task is not None:
            await self._task

    def put(self, ended: Iterable[tuple[Attempt, Outcome]]) -> None:
        """Hand in outcomes; on the finisher's own loop."""
        self._waiting.extend(ended)
        self._something.set()

    async def _run(self) -> None:
        while not (self._stopping and not self._waiting):
            await self._something_or_a_moment()
            self._something.clear()
            while self._waiting:
                batch = self._next_batch()
                try:
                    await self._write(batch)
                except Exception:  # whatever is wrong with one batch, the next ones must be written
                    log.exception("outcomes could not be written; their leases run out", tasks=len(batch))
                    seated(batch, [])
                    self._written([attempt for attempt, _ in batch])
        if self._succeeded:
            await self._tell_manifests()

    async def _something_or_a_moment(self) -> None:
        """Wait for the next outcome; if none comes for a moment, manifests hear of the items that have succeeded."""
        moment = _TELL_WITHIN
        while self._succeeded and not self._something.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(moment):
                    await self._something.wait()
                    return
            moment = _TELL_WITHIN if await self._tell_manifests() else _TELL_AGAIN
        await self._something.wait()

    async def _tell_manifests(self) -> bool:
        told, self._succeeded, self._told_at = self._succeeded, {}, steady()
        try:
            await manifests.touch(self._database, told, max(told.values()))
        except StoreError as error:
            log.warning("manifests could not be told of their success yet", manifests=len(told), error=str(error))
            self._succeeded = told | self._succeeded
            return False
        return True

    def _next_batch(self) -> list[tuple[Attempt, Outcome]]:
        batch: list[tuple[Attempt, Outcome]] = []
        waiting, size = self._waiting, 0
        while waiting and len(batch) < BATCH and size < BATCH_SIZE:
            ended = waiting.popleft()
            batch.append(ended)
            size += _size(ended[1])
        return batch

    async def _write(self, batch: list[tuple[Attempt, Outcome]]) -> None:
        now = self._clock.now()
        settlements = [settle(attempt.task, outcome, now, new_id) for attempt, outcome in batch]
        handed_on = any(attempt.heir is not None for attempt, _ in batch)
        if handed_on:
            for settlement, heir in zip(settlements, heirs(batch), strict=True):
                settlement.heir = None if heir is None else heir.task.id
        of_executions = any(settlement.task.execution_id is not None for settlement in settlements)
        taking = self._taking() if of_executions else None
        done = None if taking is None else await self._write_and_take(settlements, taking)
        if done is None:
            done = await self._persist(settlements)
        notable = counters.finish(settlements, done)
        _tell([s for s in settlements if s.task.id in done] if log.tells_all else notable)
        if len(done) < len(batch):
            for attempt, _ in batch:
                if attempt.task.id not in done:
                    self.stale += 1
                    log.warning("outcome came too late", task=str(attempt.task.id), fence=attempt.task.fence)
        if handed_on:
            seated(batch, settlements)
        self._written([attempt for attempt, _ in batch])
        for settlement in [settlement for settlement in settlements if settlement.task.batch_id is not None]:
            task, outcome = settlement.task, settlement.outcome
            if task.manifest_id is not None and task.id in done and _is_success(outcome):
                self._succeeded[task.manifest_id] = outcome.ended_at or now
        if self._succeeded and steady() >= self._told_at + _TELL_WITHIN:
            await self._tell_manifests()

    async def _write_and_take(self, settlements: list[Settlement], taking: Taking) -> set[UUID] | None:
        """Write a batch and go on with what follows; None if it could not be done: then it is written alone.

        Whatever went wrong, perhaps only the reply was lost: what was taken comes back when its lease ends.
        """
        asked_at = steady()
        done: set[UUID] | None = None
        try:
            done = await finish(self._database, settlements, taking)
        except (StoreError, Invalid) as error:
            log.info("nothing more is taken with this batch", error=str(error))
        finally:
            if done is not None and taking.taken and self._took is not None:
                with contextlib.suppress(StoreError):  # what could not be put back comes back by itself
                    await self._took(taking.taken, asked_at)
        return done

    async def _persist(self, settlements: list[Settlement]) -> set[UUID]:
        """Write a batch, however long the database is away: in halves if it takes too long as a whole, one by one if
        something in it cannot be stored."""
        pause = 0.1
        while True:
            try:
                return await finish(self._database, settlements)
            except Unavailable as error:
                if isinstance(error, TooSlow) and len(settlements) > 1:
                    half = len(settlements) // 2
                    return await self._persist(settlements[:half]) | await self._persist(settlements[half:])
                log.warning("cannot write outcomes yet", waiting=len(settlements), error=str(error))
                if self._stopping and steady() > self._give_up_at:
                    return _given_up(settlements)  # the leases run out and the sweep records the attempts as lost
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
            except (StoreError, Invalid) as error:
                if len(settlements) == 1:
                    return await self._write_bare(settlements[0], error)
                done: set[UUID] = set()
                for settlement in settlements:
                    done |= await self._persist([settlement])
                return done

    async def _write_bare(self, settlement: Settlement, cause: Exception) -> set[UUID]:
        """The outcome without anything that may have been the reason why it could not be stored."""
        outcome = settlement.outcome
        log.error("outcome could not be stored whole", task=str(settlement.task.id), error=str(cause))
        bare = replace(
            outcome,
            output=None,
            log=None,
            progress=None,
            error=error_json("tenuto.NotStored", f"the details could not be stored: {str(cause)!a}"),
        )
        while True:
            written = replace(settlement, outcome=bare)
            try:
                done = await finish(self._database, [written])
                settlement.heir = written.heir
                return done
            except Unavailable:
                if self._stopping and steady() > self._give_up_at:
                    return _given_up([settlement])
                await asyncio.sleep(0.5)
            except (StoreError, Invalid) as error:
                # Nothing more can be done from here: the lease will run out, and the sweep records the attempt as lost.
                log.error("outcome could not be stored at all", task=str(settlement.task.id), error=str(error))
                return _given_up([settlement])


def _given_up(settlements: Iterable[Settlement]) -> set[UUID]:
    """None of these is written, and none has handed on its seat."""
    for settlement in settlements:
        settlement.heir = None
    return set()


def _tell(settlements: Sequence[Settlement]) -> None:
    """A line for every attempt that failed; for the others only if somebody wants to hear of each."""
    for settlement in settlements:
        outcome, again = settlement.outcome, settlement.again is not None
        failed = outcome.status in (Status.FAILED, Status.COMPLETED_WITH_ERROR)
        say = log.debug if not failed else log.info if again else log.warning
        say(
            "attempt failed" if failed else "attempt ended" if outcome.aside is None else "attempt put aside",
            **settlement.task.about,
            status=str(outcome.status),
            reason=None if outcome.reason is None else str(outcome.reason),
            again=again,
        )


def _is_success(outcome: Outcome) -> bool:
    return outcome.aside is None and outcome.status in (Status.COMPLETED, Status.COMPLETED_WITH_WARNING)


def _size(outcome: Outcome) -> int:
    return len(outcome.output or "") + len(outcome.error or "") + len(outcome.log or "") + len(outcome.progress or "")
