"""The manifest manager: reap, determine, enqueue.

A poll reaps first (what failed for good without leaving a letter, what ran far beyond its time limit), then looks
which manifests are due and free to run, and enqueues those. Each part persists on its own, and fails on its own: what
was reaped stays reaped whatever comes after, and what cannot be reaped keeps nothing from being enqueued. Any number of
managers may poll at once; a manifest is held while it is decided on, so nothing runs twice. Every poll says what it
did.

The manager's rounds: a poll whenever a manifest is due, when one is changed, and now and then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from uuid import UUID

from tenuto.clock import steady
from tenuto.errors import StoreError, TenutoError
from tenuto.ids import first_id_at, new_id
from tenuto.lifecycle.completion import finish
from tenuto.logs import Log
from tenuto.maintenance.recovery import NET_TIME_LIMIT
from tenuto.model.actors import Actor
from tenuto.model.manifests import Manifest, ScheduleType, manifest_from_fields
from tenuto.model.tasks import MAX_PRIORITY, Task, settle, timed_out
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import Rounds
from tenuto.service.quarantine import BATCH, UNREADABLE, Counted, Held, LeftOut, alone, in_batches, telling
from tenuto.store import dead_letters, manifests, workers
from tenuto.store.manifests import DueManifest, NewRun, Standing

MANAGER = Actor.system("manifest manager")
NET_LETTER = "letter_missing"
UNLIMITED = 100_000
_LOOK_BACK = timedelta(days=2)
_SETTLED = timedelta(seconds=30)
"""What ended within this may still be having its letter written."""
_BLOCKED_FOR = timedelta(seconds=30)
"""When a manifest that runs after another, and could not, is looked at again."""
_NAMED = 10
"""How many of those passed over for the same reason a poll names."""

log = Log("tenuto.manager")


@dataclass(slots=True)
class PollResult:
    """What one poll did."""

    enqueued: int = 0
    dead_lettered: int = 0
    timed_out: int = 0
    skipped: dict[str, list[str]] = field(default_factory=dict)
    """The manifests passed over, by reason."""
    error: str | None = None
    broken: Exception | None = None
    """Why a whole part of it failed: the next poll had better not come at once."""

    def skip(self, reason: str, external_id: str) -> None:
        self.skipped.setdefault(reason, []).append(external_id)

    def fail(self, what: str, error: Exception) -> None:
        """Something has failed; of several the first is kept."""
        self.error = self.error or f"{what}: {error}"

    def skipped_json(self) -> str:
        told = {reason: {"count": len(ids), "some": ids[:_NAMED]} for reason, ids in self.skipped.items()}
        return json.dumps(told, ensure_ascii=False)


def none_left_out() -> LeftOut:
    """For manifests that this process cannot read, or not enqueue: what a manager begins with."""
    return LeftOut("manifest", log)


async def poll(
    database: Database, now: datetime, by: str, left_out: LeftOut | None = None, *, thorough: bool = True
) -> PollResult:
    """Reap, determine, enqueue; and write down what was done. What cannot be enqueued is left out from then on: it
    stays due, for whoever can. Only a thorough one looks for letters that are missing, which there should never be."""
    result, began, enqueued = PollResult(), steady(), set[UUID]()
    without = none_left_out() if left_out is None else left_out

    async def some(connection: Connection, limit: int, held: Held) -> _Some:
        return await _enqueue_some(connection, _Some(now, without), limit, held, enqueued)

    def cannot_be(external_id: str, error: Exception) -> None:
        result.skip("cannot be enqueued", external_id)
        result.fail(external_id, error)

    try:
        with _part(result, "reaping"):
            await _reap(database, now, result, thorough=thorough)
        with _part(result, "working out next runs"):
            await _plan_missing(database, now, without)
        with _part(result, "enqueuing"):
            async for each in in_batches(database, some, without, "enqueued", cannot_be):
                for reason, external_id in each.skipped:
                    result.skip(reason, external_id)
    except TenutoError as error:
        result.error = str(error)
        raise
    finally:
        result.enqueued = len(enqueued)
        await _record(database, now, by, steady() - began, result)
    return result


@contextmanager
def _part(result: PollResult, doing: str) -> Iterator[None]:
    def failed(error: Exception) -> None:
        telling(log, "part of a poll failed", part=doing)(error)
        result.fail(doing, error)
        result.broken = result.broken or error

    with alone(failed):
        yield


async def _record(database: Database, now: datetime, by: str, took: float, result: PollResult) -> None:
    try:
        await manifests.record_poll(
            database, new_id(), now, by, took, result.enqueued, result.dead_lettered, result.timed_out,
            result.skipped_json(), result.error,
        )  # fmt: skip
    except StoreError as error:
        log.warning("a poll could not be recorded", error=str(error))


# --- reap -----------------------------------------------------------------------------------------------------------


async def _reap(database: Database, now: datetime, result: PollResult, *, thorough: bool) -> None:
    if thorough:
        result.dead_lettered = await database.transaction(lambda connection: _write_missing(connection, now))
    for task in await manifests.ran_over(database, BATCH):
        with alone(telling(log, "a run cannot be timed out", task=str(task.id))):
            await _time_out(database, task, now, result)
    if result.timed_out:
        await database.transaction(
            lambda connection: workers.count_repair(connection, NET_TIME_LIMIT, result.timed_out)
        )


async def _time_out(database: Database, task: Task, now: datetime, result: PollResult) -> None:
    settlement = settle(task, timed_out(task, now), now, new_id)
    if await finish(database, [settlement]):
        result.timed_out += 1
        result.dead_lettered += settlement.again is None
        log.warning("a time limit was not kept by its worker", task=str(task.id))


async def _write_missing(connection: Connection, now: datetime) -> int:
    """The net beneath `finish`, which writes the letter with the failure."""
    failures = await dead_letters.missing(connection, first_id_at(now - _LOOK_BACK), now - _SETTLED, BATCH)
    written = await dead_letters.write(connection, failures)
    if written:
        await workers.count_repair(connection, NET_LETTER, written)
        log.warning("failures that had left no dead letter", letters=written)
    return written


# --- determine and enqueue ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Some:
    """What was decided in one transaction; thrown away with it if it must be repeated."""

    now: datetime
    left_out: LeftOut
    found: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def skip(self, reason: str, external_id: str) -> None:
        self.skipped.append((reason, external_id))


async def _enqueue_some(connection: Connection, result: _Some, limit: int, held: Held, enqueued: set[UUID]) -> _Some:
    """Decide on some manifests that are due; ``enqueued`` gathers those that run, each once however often it is
    tried."""
    now = result.now
    found = await manifests.due(connection, now, limit, result.left_out.ids)
    if not found:
        return result
    result.found = len(found)
    held.update({(each.id, each.version): each.external_id for each in found})
    # Asked after the manifests are held: what somebody else has just committed must be seen.
    standing = await manifests.standing(connection, [each.id for each in found])
    runs: list[NewRun] = []
    moved: list[tuple[UUID, datetime | None, datetime | None]] = []
    for each in found:
        try:
            manifest = each.manifest()
            next_run = _next_run(manifest, each, now)
            run = run_of(each.id, manifest, now, MANAGER, group_priority=each.group_priority)
        except UNREADABLE as error:
            # Written by hand, or by a version that knows more: it stays due, for whoever can read it.
            result.left_out.add((each.id, each.version), each.external_id, "read", error)
            result.skip("cannot be read", each.external_id)
            continue
        reason = _why_not(each, standing[each.id])
        if reason is None:
            runs.append(run)
            moved.append((each.id, now, next_run))
        else:
            result.skip(reason, each.external_id)
            blocked = manifest.schedule_type is ScheduleType.DEPENDENT
            moved.append((each.id, None, now + _BLOCKED_FOR if blocked else next_run))
    created = await manifests.start_runs(connection, runs)
    await manifests.ran(connection, moved)
    enqueued.update(run.manifest_id for run in runs if run.id in created)
    return result


def _next_run(manifest: Manifest, due: DueManifest, now: datetime) -> datetime | None:
    return manifest.trigger.next_after(now, str(due.id))


def _why_not(due: DueManifest, standing: Standing) -> str | None:
    if due.group_disabled:
        return "its group is disabled"
    if standing.dead_lettered:
        return "it has an open dead letter"
    if standing.open_task is not None:
        return "its last run is not over"
    return None


def run_of(
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
) -> NewRun:
    """A run of a manifest, or one item of it.

    Every run has a place in line by key: of the manifest, or of its batch. Whoever has little waiting is not shut out
    by whoever has much, and the caps of manifest, group and all of them are looked at when it is claimed.
    """
    return NewRun(
        id or new_id(),
        manifest_id,
        manifest.job,
        input or json.dumps(dict(manifest.properties), ensure_ascii=False),
        manifest.policy.to_json(),
        manifest.queue,
        max(-MAX_PRIORITY, min(MAX_PRIORITY, manifest.priority + group_priority)),
        now,
        by,
        limit_key=f"batch:{batch_id}" if batch_id is not None else manifest.limit_key,
        limit_max=UNLIMITED,
        limit_group=manifest.group,
        batch_id=batch_id,
        item_key=item_key,
    )


async def _plan_missing(database: Database, now: datetime, left_out: LeftOut) -> None:
    async def some(connection: Connection, limit: int, held: Held) -> Counted:
        found = await manifests.to_plan(connection, limit, left_out.ids)
        rows: list[tuple[UUID, datetime | None, datetime | None]] = []
        for id, version, external_id, definition in found:
            held[id, version] = external_id
            try:
                trigger = manifest_from_fields(json.loads(definition)).trigger
                rows.append((id, None, trigger.next_after(now, str(id))))
            except UNREADABLE as error:
                left_out.add((id, version), external_id, "read", error)
        await manifests.ran(connection, rows)
        return Counted(len(found), len(rows))

    async for _ in in_batches(database, some, left_out, "planned"):
        pass


_SOON = 0.001
_HELD_BY_ANOTHER = 0.05
"""What was due and yet not ours to enqueue, because somebody else holds it, is looked at again so soon."""
THOROUGH_EVERY = 60.0
"""So often it looks through all failures of late, though a manifest may be due each second. The doctor counts on it."""


class Managing:
    """One manager, from start to stop."""

    def __init__(self, database: Database, name: str, poll_seconds: float) -> None:
        self._database = database
        self._name = name
        self._poll_seconds = poll_seconds
        self._left_out = none_left_out()
        self._tried_all_at = steady()
        self._was_thorough_at = -inf
        self._rounds = Rounds("tenuto-manager", database, self.round, {"manifests"}, log)

    def start(self) -> None:
        self._rounds.start()

    async def stop(self) -> None:
        await self._rounds.stop()

    async def round(self) -> float:
        """One poll; how long until the next."""
        if steady() - self._tried_all_at >= self._poll_seconds:
            self._left_out.try_again()
            self._tried_all_at = steady()
        now = self._database.clock.now()
        thorough = steady() - self._was_thorough_at >= THOROUGH_EVERY
        result = await poll(self._database, now, self._name, self._left_out, thorough=thorough)
        if thorough and result.broken is None:
            self._was_thorough_at = steady()
        if result.enqueued:
            log.debug("manifests enqueued", manifests=result.enqueued)
        if result.broken is not None:
            raise result.broken  # what is due is due still, and to poll for it without pause would not help
        due = await manifests.next_due(self._database, self._left_out.ids)
        if due is None:
            return self._poll_seconds
        if due <= now:
            return min(_HELD_BY_ANOTHER, self._poll_seconds)
        wait = (due - self._database.clock.now()).total_seconds()
        return min(max(wait, _SOON), self._poll_seconds)
