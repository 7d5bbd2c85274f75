"""The manifest manager: time out overrun runs, write missing dead letters and enqueue runs of due manifests.

A poll is recorded with its results. Its stages commit and fail separately. Any number of managers may poll
concurrently: a manifest is locked while it is decided on. A manager sleeps until a manifest is due; a change of any
manifest wakes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from uuid import UUID

from tenuto.clock import monotonic_seconds
from tenuto.errors import StoreError, TenutoError
from tenuto.ids import new_id, smallest_id_at
from tenuto.lifecycle.completion import finish
from tenuto.logs import Log
from tenuto.maintenance.recovery import REPAIR_TIME_LIMIT_EXCEEDED
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.manifests import Manifest, OnDeadLetter, ScheduleType, manifest_from_fields
from tenuto.model.triggers import Trigger
from tenuto.model.work.rate_limits import parse_rate_limit
from tenuto.model.work.tasks import MAX_PRIORITY, NO_KEY_LIMIT, NewTask, Task, settle, timed_out_outcome
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling.next_runs import RunTimes, compute_missing_next_runs, seconds_until_due
from tenuto.service.polling_loop import PollingLoop
from tenuto.service.quarantine import (
    LOCKED_ROWS_PER_BATCH,
    UNREADABLE_ROW_ERRORS,
    LockedRows,
    Quarantine,
    isolate_errors,
    log_error,
    process_in_batches,
)
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import DueManifest, RunBlockers
from tenuto.store.work import dead_letters, task_creation, workers

MANAGER = Actor.system("manifest manager")
REPAIR_MISSING_DEAD_LETTER = "dead_letter_missing"
_MISSING_DEAD_LETTER_AGE = timedelta(days=2)
"""Failures older than this are not checked for a missing dead letter."""
_RECENT_FAILURE_AGE = timedelta(seconds=30)
"""The dead letter of a failure younger than this may still be in an open transaction."""
_BLOCKED_DEPENDENT_DELAY = timedelta(seconds=30)
"""How long a dependent manifest that cannot run waits for the next check."""
_MAX_NAMED_PER_REASON = 10

log = Log("tenuto.manager")


class ManifestManager:
    """One manifest manager. ``loop`` runs its polls in the background."""

    def __init__(
        self, database: Database, name: str, poll_seconds: float, *, dead_letter_check_seconds: float = 60.0
    ) -> None:
        """``dead_letter_check_seconds``: a manifest may be due each second, but the check reads all recent failures."""
        self._database = database
        self._name = name
        self._poll_seconds = poll_seconds
        self._dead_letter_check_seconds = dead_letter_check_seconds
        self._quarantine = new_quarantine()
        self._quarantine_released_at = monotonic_seconds()
        self._dead_letters_checked_at = -inf
        self.loop = PollingLoop("tenuto-manager", self.run_cycle, log, database=database, notifications={"manifests"})

    async def run_cycle(self) -> float:
        """Poll once; return the seconds until the next poll."""
        database = self._database
        if monotonic_seconds() - self._quarantine_released_at >= self._poll_seconds:
            self._quarantine.release_all()
            self._quarantine_released_at = monotonic_seconds()
        now = database.clock.now()
        check_dead_letters = monotonic_seconds() - self._dead_letters_checked_at >= self._dead_letter_check_seconds
        result = await poll_manifests(
            database, now, self._name, self._quarantine, check_dead_letters=check_dead_letters
        )
        if check_dead_letters and result.stage_error is None:
            self._dead_letters_checked_at = monotonic_seconds()
        if result.enqueued:
            log.debug("manifests enqueued", manifests=result.enqueued)
        if result.stage_error is not None:
            raise result.stage_error  # the manifests are still due; the loop repeats the poll after a pause
        next_due_at = await manifests.load_next_due_at(database, self._quarantine.rows)
        return seconds_until_due(database, next_due_at, now, self._poll_seconds)


@dataclass(slots=True)
class PollResult:
    """Result of one poll."""

    enqueued: int = 0
    dead_lettered: int = 0
    timed_out: int = 0
    skipped: dict[str, list[str]] = field(default_factory=dict)
    """External ids of skipped manifests, by reason."""
    error: str | None = None
    stage_error: Exception | None = None
    """First error of a whole stage."""

    def skip(self, reason: str, external_id: str) -> None:
        self.skipped.setdefault(reason, []).append(external_id)

    def fail(self, subject: str, error: Exception) -> None:
        """Record an error, unless an earlier one is recorded."""
        self.error = self.error or f"{subject}: {error}"

    def skipped_json(self) -> str:
        counts = {
            reason: {"count": len(ids), "some": ids[:_MAX_NAMED_PER_REASON]} for reason, ids in self.skipped.items()
        }
        return json.dumps(counts, ensure_ascii=False)


def new_quarantine() -> Quarantine:
    """Return an empty quarantine for manifests."""
    return Quarantine("manifest", log)


async def poll_manifests(
    database: Database,
    now: datetime,
    manager: str,
    quarantine: Quarantine | None = None,
    *,
    check_dead_letters: bool = True,
) -> PollResult:
    """Time out runs, enqueue runs of due manifests and record the poll.

    A manifest that cannot be enqueued goes into quarantine and stays due for a manager that can.
    """
    result, started_at, enqueued = PollResult(), monotonic_seconds(), set[UUID]()
    unreadable = new_quarantine() if quarantine is None else quarantine

    async def enqueue(connection: Connection, limit: int, locked: LockedRows) -> _EnqueueBatch:
        return await _enqueue_batch(connection, _EnqueueBatch(now, unreadable), limit, locked, enqueued)

    def note_failed_manifest(external_id: str, error: Exception) -> None:
        result.skip("cannot be enqueued", external_id)
        result.fail(external_id, error)

    try:
        with _stage(result, "timing out runs"):
            await _time_out_and_dead_letter(database, now, result, check_dead_letters=check_dead_letters)
        with _stage(result, "computing next runs"):
            await compute_missing_next_runs(
                database, now, unreadable, manifests.lock_unplanned_manifests, _parse_trigger, manifests.record_runs
            )
        with _stage(result, "enqueuing"):
            async for batch in process_in_batches(database, enqueue, unreadable, "enqueue", note_failed_manifest):
                for reason, external_id in batch.skipped:
                    result.skip(reason, external_id)
    except TenutoError as error:
        result.error = str(error)
        raise
    finally:
        result.enqueued = len(enqueued)
        await _record_poll(database, now, manager, monotonic_seconds() - started_at, result)
    return result


@contextmanager
def _stage(result: PollResult, name: str) -> Iterator[None]:
    """Isolate the errors of one stage of a poll and add them to the result."""

    def add(error: Exception) -> None:
        log_error(log, "poll stage failed", stage=name)(error)
        result.fail(name, error)
        result.stage_error = result.stage_error or error

    with isolate_errors(add):
        yield


async def _record_poll(
    database: Database, now: datetime, manager: str, duration_seconds: float, result: PollResult
) -> None:
    try:
        await manifests.record_poll(
            database, new_id(), now, manager, duration_seconds, result.enqueued, result.dead_lettered,
            result.timed_out, result.skipped_json(), result.error,
        )  # fmt: skip
    except StoreError as error:
        log.warning("poll not recorded", error=str(error))


# --- timeouts and missing dead letters ------------------------------------------------------------------------------


async def _time_out_and_dead_letter(
    database: Database, now: datetime, result: PollResult, *, check_dead_letters: bool
) -> None:
    """Time out overrun runs; with ``check_dead_letters``, first write missing dead letters."""
    if check_dead_letters:
        result.dead_lettered = await database.transaction(
            lambda connection: _write_missing_dead_letters(connection, now)
        )
    for task in await manifests.find_overrun_runs(database, LOCKED_ROWS_PER_BATCH):
        with isolate_errors(log_error(log, "run not timed out", task_id=str(task.id))):
            await _time_out_run(database, task, now, result)
    if result.timed_out:
        await database.transaction(
            lambda connection: workers.count_repair(connection, REPAIR_TIME_LIMIT_EXCEEDED, result.timed_out)
        )


async def _time_out_run(database: Database, task: Task, now: datetime, result: PollResult) -> None:
    settlement = settle(task, timed_out_outcome(task, now), now, new_id)
    if await finish(database, [settlement]):
        result.timed_out += 1
        result.dead_lettered += settlement.retry is None
        log.warning("manifest run timed out", task_id=str(task.id))


async def _write_missing_dead_letters(connection: Connection, now: datetime) -> int:
    """Repair failures without a dead letter. `completion.finish` writes both together, so there should be none."""
    oldest_id, newest_at = smallest_id_at(now - _MISSING_DEAD_LETTER_AGE), now - _RECENT_FAILURE_AGE
    failures = await dead_letters.find_missing_dead_letters(connection, oldest_id, newest_at, LOCKED_ROWS_PER_BATCH)
    written_count = await dead_letters.write_dead_letters(connection, failures)
    if written_count:
        await workers.count_repair(connection, REPAIR_MISSING_DEAD_LETTER, written_count)
        log.warning("missing dead letters written", dead_letters=written_count)
    return written_count


# --- due manifests --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _EnqueueBatch:
    """Decisions of one transaction; discarded when the transaction is repeated."""

    now: datetime
    quarantine: Quarantine
    locked_count: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)


async def _enqueue_batch(
    connection: Connection, batch: _EnqueueBatch, limit: int, locked: LockedRows, enqueued: set[UUID]
) -> _EnqueueBatch:
    """Decide on due manifests; add those with a new run to ``enqueued``."""
    now = batch.now
    # guard: manifests.blockers_read_under_lock
    due_manifests = await manifests.lock_due_manifests(connection, now, limit, batch.quarantine.rows)
    if not due_manifests:
        return batch
    batch.locked_count = len(due_manifests)
    locked.update({(due.id, due.version): due.external_id for due in due_manifests})
    # After the lock on the manifests: runs that another transaction has just committed must be visible.
    # guard: manifests.blockers_read_under_lock
    blockers = await manifests.load_run_blockers(connection, [due.id for due in due_manifests])
    runs: list[NewTask] = []
    run_times: list[RunTimes] = []
    for due in due_manifests:
        try:
            manifest = due.parse_manifest()
            next_run_at = manifest.trigger.next_after(now, str(due.id))
            run = new_run(due.id, manifest, now, MANAGER, group_priority=due.group_priority, due_at=due.next_run_at)
        except UNREADABLE_ROW_ERRORS as error:
            # Edited by hand or written by a later version: the manifest stays due for a manager that can read it.
            batch.quarantine.add((due.id, due.version), due.external_id, "read", error)
            batch.skipped.append(("cannot be read", due.external_id))
            continue
        reason = _skip_reason(due, manifest, blockers[due.id])
        if reason is None:
            runs.append(run)
            run_times.append((due.id, now, next_run_at))
        else:
            batch.skipped.append((reason, due.external_id))
            is_dependent = manifest.schedule_type is ScheduleType.DEPENDENT
            run_times.append((due.id, None, now + _BLOCKED_DEPENDENT_DELAY if is_dependent else next_run_at))
    created = await task_creation.enqueue_tasks_within(connection, runs)
    await manifests.record_runs(connection, run_times)
    enqueued.update(run.manifest_id for run in runs if run.manifest_id is not None and run.id in created)
    return batch


def _skip_reason(due: DueManifest, manifest: Manifest, blockers: RunBlockers) -> str | None:
    if due.group_disabled:
        return "its group is disabled"
    if (
        blockers.has_open_dead_letter and manifest.on_dead_letter is OnDeadLetter.BLOCK
    ):  # guard: manifests.open_dead_letter
        return "it has an open dead letter"
    if blockers.open_task_id is not None:  # guard: manifests.open_run
        return "its last run is not over"
    return None


def _parse_trigger(definition_json: str) -> Trigger:
    return manifest_from_fields(json.loads(definition_json)).trigger


def new_run(
    manifest_id: UUID,
    manifest: Manifest,
    now: datetime,
    by: Actor,
    *,
    group_priority: int = 0,
    input: str | None = None,
    item_key: str | None = None,
    batch_id: UUID | None = None,
    id: UUID | None = None,
    due_at: datetime | None = None,
) -> NewTask:
    """Return a run of a manifest, or one item of a batch. ``due_at`` is the instant at which its trigger was due; a
    run that nothing triggered is due now.

    Every run has a limit key, of the manifest or of its batch, so that claims alternate between keys and a large batch
    does not delay others. The caps of manifest, group and all manifests are applied when the run is claimed.
    """
    expires_in = None if manifest.expires_seconds is None else timedelta(seconds=manifest.expires_seconds)
    return NewTask(
        id or new_id(),
        manifest.job,
        input or json.dumps(dict(manifest.properties), ensure_ascii=False),
        now,
        by,
        run_at=due_at,
        queue=manifest.queue,
        priority=max(-MAX_PRIORITY, min(MAX_PRIORITY, manifest.priority + group_priority)),
        policy=manifest.policy.to_json(),
        manifest_id=manifest_id,
        limit_key=f"batch:{batch_id}" if batch_id is not None else manifest.limit_key,
        limit_max=NO_KEY_LIMIT,
        limit_group=manifest.group,
        batch_id=batch_id,
        item_key=item_key,
        expires_at=None if expires_in is None else now + expires_in,
        rate_key=manifest.rate_key,
        rate_limit=parse_rate_limit(manifest.rate_limit),
    )
