"""Completes attempts: settles their outcomes and writes them, many at a time.

While one batch is being committed, further outcomes are collected for the next one: an idle worker writes each outcome
at once, and batches grow under load. An outcome that cannot be stored is written without its details, so that its task
does not stay in progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from tenuto.clock import Clock, monotonic_seconds
from tenuto.errors import Invalid, StoreError, Unavailable
from tenuto.ids import new_id
from tenuto.jobs.attempts import Attempt
from tenuto.lifecycle.completion import finish
from tenuto.logs import Log, is_new_stack
from tenuto.model.work.dead_letters import error_summary
from tenuto.model.work.tasks import Outcome, OutcomeStatus, Settlement, Task, error_json, settle
from tenuto.observability.process_metrics import process_metrics
from tenuto.postgres.database import Database, StatementTimeout
from tenuto.store.definitions import manifests
from tenuto.store.work.executions import NextGroupClaim
from tenuto.worker.attempt_log_writer import report_attempts
from tenuto.worker.limit_handoff import final_successors

MAX_BATCH_COUNT = 500
MAX_BATCH_CHARACTERS = 4 * 1024 * 1024
"""Text that a batch may carry; the outcome that exceeds it is the last of its batch."""
GIVE_UP_SECONDS = 30.0
"""How long a stopping completer retries an unreachable database. A service process ends sooner (`service.signals`)."""
_MANIFEST_UPDATE_SECONDS = 0.2
"""How often the last success of manifests is updated while items of their batches succeed."""
_MANIFEST_RETRY_SECONDS = 5.0

CompletedAttempt: TypeAlias = tuple[Attempt, Outcome]

log = Log("tenuto.completer")


class Completer:
    """Last stages of every attempt: settle and write."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        next_group_claim: Callable[[], NextGroupClaim | None] = lambda: None,
        start_claimed: Callable[[Sequence[Task], float], Awaitable[None]] | None = None,
        *,
        worker: str = "",
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        """``next_group_claim`` returns what the worker can claim when a step group ends in the same transaction;
        ``start_claimed`` receives the claimed tasks."""
        self._database = database
        self._clock = clock
        self._next_group_claim = next_group_claim
        self._start_claimed = start_claimed
        self._worker = worker
        self._give_up_seconds = give_up_seconds
        self._give_up_at = 0.0
        self._waiting: deque[CompletedAttempt] = deque()
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._succeeded_manifests: dict[UUID, datetime] = {}
        """Manifests with succeeded batch items since the last update: all items share one row, so it is not updated
        for each of them."""
        self._manifests_updated_at = 0.0
        self.stale_count = 0
        """Outcomes rejected by the fence: another process held the task by then."""

    def start(
        self,
        complete: Callable[[Sequence[CompletedAttempt]], Awaitable[None]],
        release: Callable[[Sequence[CompletedAttempt], Sequence[Settlement]], None] = lambda _results, _settlements: (
            None
        ),
    ) -> None:
        """Pass batches of results to ``complete``; a batch that fails there is released unwritten."""
        self._task = asyncio.create_task(self._run(complete, release), name="tenuto-completer")

    async def stop(self) -> None:
        """Write the remaining outcomes, or leave them to the recovery sweep if the database stays unreachable."""
        self._give_up_at = monotonic_seconds() + self._give_up_seconds
        self._stopping = True
        self._has_work.set()
        if self._task is not None:
            await self._task

    def cancel(self) -> None:
        """Write nothing more; the recovery sweep records what is left."""
        if self._task is not None:
            self._task.cancel()

    def put(self, results: Iterable[CompletedAttempt]) -> None:
        """Add outcomes; called on the completer's event loop."""
        self._waiting.extend(results)
        self._has_work.set()

    async def _run(
        self,
        complete: Callable[[Sequence[CompletedAttempt]], Awaitable[None]],
        release: Callable[[Sequence[CompletedAttempt], Sequence[Settlement]], None],
    ) -> None:
        while not (self._stopping and not self._waiting):
            await self._wait_for_results()
            self._has_work.clear()
            while self._waiting:
                results = self._next_batch()
                try:
                    await complete(results)
                except Exception:  # one batch must not keep the next ones from being written
                    log.exception("outcomes not written", consequence="leases expire", tasks=len(results))
                    release(results, [])
        if self._succeeded_manifests:
            await self._write_manifest_successes()

    async def _wait_for_results(self) -> None:
        """Wait for the next outcome; meanwhile write the last success of manifests whose batch items succeeded."""
        timeout = _MANIFEST_UPDATE_SECONDS
        while self._succeeded_manifests and not self._has_work.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._has_work.wait()
                    return
            timeout = _MANIFEST_UPDATE_SECONDS if await self._write_manifest_successes() else _MANIFEST_RETRY_SECONDS
        await self._has_work.wait()

    def _next_batch(self) -> list[CompletedAttempt]:
        batch: list[CompletedAttempt] = []
        waiting, characters = self._waiting, 0
        while waiting and len(batch) < MAX_BATCH_COUNT and characters < MAX_BATCH_CHARACTERS:
            result = waiting.popleft()
            batch.append(result)
            characters += _count_characters(result[1])
        return batch

    # --- settle and write ---------------------------------------------------------------------------------------------

    def settle(self, results: Sequence[CompletedAttempt]) -> list[Settlement]:
        """Decide what follows each outcome, and which successor takes over its limit slot."""
        now = self._clock.now()
        settlements = [settle(attempt.task, outcome, now, new_id) for attempt, outcome in results]
        if any(attempt.successor is not None for attempt, _ in results):
            for settlement, successor in zip(settlements, final_successors(results), strict=True):
                settlement.successor = None if successor is None else successor.task.id
        return settlements

    async def write(self, settlements: list[Settlement]) -> set[UUID]:
        """Write outcomes in one commit; return the ids of the tasks that this worker still held."""
        has_steps = any(settlement.task.execution_id is not None for settlement in settlements)
        next_claim = self._next_group_claim() if has_steps else None
        written = None if next_claim is None else await self._write_and_claim(settlements, next_claim)
        if written is None:
            written = await self._write_persistently(settlements)
        self._report(settlements, written)
        return written

    def _report(self, settlements: Sequence[Settlement], written: set[UUID]) -> None:
        notable = process_metrics.record_outcomes(settlements, written)
        _log_outcomes(
            [s for s in settlements if s.task.id in written] if log.is_debug_enabled else notable, self._clock.now()
        )
        report_attempts(settlements, written, self._worker)
        if len(written) < len(settlements):
            for settlement in settlements:
                task = settlement.task
                if task.id not in written:
                    self.stale_count += 1
                    log.warning("stale outcome rejected", task_id=str(task.id), fence=task.fence)

    async def record_batch_successes(self, settlements: Sequence[Settlement], written: set[UUID]) -> None:
        """Collect the manifests whose batch items succeeded, and write their last success several times a second."""
        for settlement in [settlement for settlement in settlements if settlement.task.batch_id is not None]:
            task, outcome = settlement.task, settlement.outcome
            if task.manifest_id is not None and task.id in written and _is_success(outcome):
                self._succeeded_manifests[task.manifest_id] = outcome.ended_at or self._clock.now()
        if self._succeeded_manifests and monotonic_seconds() >= self._manifests_updated_at + _MANIFEST_UPDATE_SECONDS:
            await self._write_manifest_successes()

    async def _write_manifest_successes(self) -> bool:
        succeeded, self._succeeded_manifests = self._succeeded_manifests, {}
        self._manifests_updated_at = monotonic_seconds()
        try:
            await manifests.record_batch_item_successes(self._database, succeeded, max(succeeded.values()))
        except StoreError as error:
            log.warning("last success of manifests not updated", manifests=len(succeeded), error=str(error))
            self._succeeded_manifests = succeeded | self._succeeded_manifests
            return False
        return True

    async def _write_and_claim(self, settlements: list[Settlement], next_claim: NextGroupClaim) -> set[UUID] | None:
        """Write a batch and claim the step groups that follow; None if that failed and the batch must be written alone.

        If only the reply was lost, the claimed tasks return to the queue when their leases expire.
        """
        sent_at = monotonic_seconds()
        written: set[UUID] | None = None
        try:
            written = await finish(self._database, settlements, next_claim)
        except (StoreError, Invalid) as error:
            log.info("outcome batch with claim failed", error=str(error))
        finally:
            if written is not None and next_claim.claimed and self._start_claimed is not None:
                with contextlib.suppress(StoreError):  # tasks that cannot be returned stay leased until they expire
                    await self._start_claimed(next_claim.claimed, sent_at)
        return written

    async def _write_persistently(self, settlements: list[Settlement]) -> set[UUID]:
        """Write a batch however long the database is unreachable: in halves if the whole batch exceeds the statement
        timeout, one by one if an outcome cannot be stored."""
        pause_seconds = 0.1
        while True:
            try:
                return await finish(self._database, settlements)
            except Unavailable as error:
                if isinstance(error, StatementTimeout) and len(settlements) > 1:
                    half = len(settlements) // 2
                    first = await self._write_persistently(settlements[:half])
                    return first | await self._write_persistently(settlements[half:])
                log.warning("outcomes not written yet", waiting=len(settlements), error=str(error))
                if self._stopping and monotonic_seconds() > self._give_up_at:
                    return _abandon(settlements)  # the recovery sweep records these attempts as lost
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, 2.0)
            except (StoreError, Invalid) as error:
                if len(settlements) == 1:
                    return await self._write_without_details(settlements[0], error)
                written: set[UUID] = set()
                for settlement in settlements:
                    written |= await self._write_persistently([settlement])
                return written

    async def _write_without_details(self, settlement: Settlement, cause: Exception) -> set[UUID]:
        """Write an outcome without everything that may be the reason why the database rejected it."""
        log.error("outcome written without details", task_id=str(settlement.task.id), error=str(cause))
        bare_outcome = replace(
            settlement.outcome,
            output=None,
            log=None,
            progress=None,
            error=error_json("tenuto.NotStored", f"the details could not be stored: {str(cause)!a}"),
        )
        while True:
            bare = replace(settlement, outcome=bare_outcome)
            try:
                written = await finish(self._database, [bare])
                settlement.successor = bare.successor
                return written
            except Unavailable:
                if self._stopping and monotonic_seconds() > self._give_up_at:
                    return _abandon([settlement])
                await asyncio.sleep(0.5)
            except (StoreError, Invalid) as error:
                # The lease will expire, and the recovery sweep records the attempt as lost.
                log.error("outcome not written", task_id=str(settlement.task.id), error=str(error))
                return _abandon([settlement])


def _abandon(settlements: Iterable[Settlement]) -> set[UUID]:
    """Leave outcomes unwritten; their limit slots are not handed on either."""
    for settlement in settlements:
        settlement.successor = None
    return set()


def _log_outcomes(settlements: Sequence[Settlement], now: datetime) -> None:
    """Log every failed attempt with its error and the next try; other outcomes only at debug level."""
    for settlement in settlements:
        outcome, is_retried = settlement.outcome, settlement.retry is not None
        failed = outcome.status in (OutcomeStatus.FAILED, OutcomeStatus.COMPLETED_WITH_ERROR)
        write = log.warning if failed else log.debug
        write(
            "attempt failed" if failed else "attempt ended" if outcome.deferral is None else "attempt deferred",
            **settlement.task.log_fields,
            **(_failure_fields(settlement, now) if failed else {}),
            status=str(outcome.status),
            reason=None if outcome.reason is None else str(outcome.reason),
            retried=is_retried,
        )


def _failure_fields(settlement: Settlement, now: datetime) -> dict[str, Any]:
    """Return the error, how many attempts there are, and when the next one starts."""
    fields: dict[str, Any] = {"max_attempts": settlement.task.policy.retry.max_attempts}
    if settlement.outcome.error:
        error = json.loads(settlement.outcome.error)
        fields["error"] = error_summary(error)
        stack = error.get("stack")
        if stack and (log.is_debug_enabled or is_new_stack(stack)):
            fields["stack"] = stack
    if settlement.retry is not None:
        fields["next_try_seconds"] = max(0.0, round((settlement.retry.run_at - now).total_seconds(), 1))
    return fields


def _is_success(outcome: Outcome) -> bool:
    return outcome.deferral is None and outcome.status in (
        OutcomeStatus.COMPLETED,
        OutcomeStatus.COMPLETED_WITH_WARNING,
    )


def _count_characters(outcome: Outcome) -> int:
    return len(outcome.output or "") + len(outcome.error or "") + len(outcome.log or "") + len(outcome.progress or "")
