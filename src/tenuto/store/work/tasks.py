"""Rows of tasks: the transitions claim and renew, and the queries of cancellation and recovery.

The transition enqueue is in `task_creation`; finish is in `task_outcomes` and `lifecycle.completion`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from tenuto.model.access.actors import Actor
from tenuto.model.work.known_handlers import KnownHandlers, claim_parameters
from tenuto.model.work.tasks import CLAIM_DEFAULTS, Task
from tenuto.postgres.bulk_copy import to_columns
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.definitions import manifests
from tenuto.store.row_mapping import PositionalMapper
from tenuto.store.work import batches, executions

SQL = load_statements(__file__)

# Claims map rows by position: a measured optimisation (benchmark drain); test_records.py checks the columns.
_CLAIMED_TASKS = PositionalMapper(Task, SQL.claim_tasks, defaults=CLAIM_DEFAULTS)
_LOST_TASKS = PositionalMapper(Task, SQL.lock_expired_tasks, SQL.lock_tasks_of_worker)
_TASKS_TO_CANCEL = PositionalMapper(
    Task,
    SQL.load_task_to_cancel,
    SQL.load_tasks_to_cancel,
    SQL.list_expired_tasks,
    defaults=("limit_slot", "overran_time_limit"),
)
_LIMITED_TASKS = PositionalMapper(
    Task,
    SQL.claim_limited_tasks,
    SQL.claim_uncapped_tasks,
    skip=5,
    trailing=("limit_slot",),
    defaults=CLAIM_DEFAULTS,
)
_STANDBY_TASKS = PositionalMapper(Task, SQL.claim_standby_tasks, trailing=("limit_slot",), defaults=CLAIM_DEFAULTS)
HOT_STATEMENTS = (SQL.claim_tasks, SQL.promote_due_tasks, SQL.finish_tasks, executions.SQL.finish_group)
"""The statements that start and end most tasks. With NULL for every parameter they change nothing."""
QueuePosition: TypeAlias = tuple[int, datetime, UUID]
QUEUE_START: QueuePosition = (-32768, datetime(1, 1, 1, tzinfo=UTC), UUID(int=0))
_LOWEST_RANK = -32769
LIMIT_KEYS_PER_CLAIM = 200
"""Maximum number of limit keys per queue that one claim reads."""
_MAX_LOCK_TRIES = 3
"""Maximum number of transactions with which a claim tries to get the locks for one page of limit keys."""
TASKS_PER_PARKING = 1000
"""Maximum number of tasks of a rate limit that one claim parks."""


# --- cursors of claims ----------------------------------------------------------------------------------------------
# Kept by a worker between claims, so that the cost of a claim does not depend on the backlog. A cursor only says where
# the next claim starts to read; a lost cursor costs time, never correctness.


@dataclass(slots=True)
class ClaimCursor:
    """Position of the last claimed task of each queue.

    Rows before it are mostly dead, and scanning them costs more with every task while an old snapshot is open. The
    position is dropped when a more urgent task arrives, when a claim finds too little, and every few seconds.
    """

    positions: dict[str, QueuePosition] = field(default_factory=dict)
    _announced_ranks: dict[str, int] = field(default_factory=dict)
    """Most urgent rank announced for each queue since the current claim started, which may have missed it."""

    def begin_claim(self) -> None:
        """Start a claim, which sees everything that was announced before."""
        self._announced_ranks.clear()

    def note_arrival(self, queue: str, rank: int = _LOWEST_RANK) -> None:
        """Note an announced task; drop the position of its queue if the task precedes it."""
        self._announced_ranks[queue] = min(rank, self._announced_ranks.get(queue, rank))
        place = self.positions.get(queue)
        if place is not None and rank < place[0]:
            del self.positions[queue]

    def advance_past(self, tasks: Iterable[Task]) -> None:
        """Move past the claimed tasks, most urgent first, unless a more urgent task was announced meanwhile."""
        last_of = {task.queue: task for task in tasks}
        for task in last_of.values():
            place = (-task.priority, task.run_at, task.id)
            heard = self._announced_ranks.get(task.queue)
            if heard is not None and heard < place[0]:
                self.positions.pop(task.queue, None)
            elif place > self.positions.get(task.queue, QUEUE_START):
                self.positions[task.queue] = place


@dataclass(slots=True)
class LimitKeyCursor:
    """Last limit key of each queue that claims under limits have read.

    A claim reads a few hundred keys and the next one continues, in a cycle: so a claim stays short, and every key has
    its turn.
    """

    last_keys: dict[str, str] = field(default_factory=dict)
    _unfinished_queues: set[str] = field(default_factory=set)
    _scanned_from_start: set[str] = field(default_factory=set)
    next_token_at: datetime | None = None
    """When the next token of a rate limit comes whose tokens the last claim has used up."""

    @property
    def has_unseen_keys(self) -> bool:
        """Return whether the last claim has not read all keys."""
        return bool(self._unfinished_queues)

    def begin_claim(self, queues: Iterable[str]) -> None:
        """Start a claim."""
        self._unfinished_queues = set(queues)
        self._scanned_from_start = set()

    def expect_more(self, queues: Iterable[str]) -> None:
        """Record that the keys read so far may have more tasks."""
        self._unfinished_queues.update(queues)

    def expect_token(self, at: datetime) -> None:
        """Record when the next token of a rate limit comes."""
        self.next_token_at = at if self.next_token_at is None else min(at, self.next_token_at)

    def start_keys(self, queues: Iterable[str]) -> list[str]:
        """Return the key after which the scan of each queue starts."""
        return [self.last_keys.get(queue, "") for queue in queues]

    def record_end_keys(
        self, queues: Sequence[str], end_keys: Sequence[str | None], full_queues: Iterable[str] = ()
    ) -> None:
        """Store the last key read: None at the last key. A queue without capacity keeps its start key."""
        for queue, start, end in zip(queues, self.start_keys(queues), end_keys, strict=True):
            if queue in full_queues:
                self._unfinished_queues.discard(queue)
                continue
            if not start:
                self._scanned_from_start.add(queue)
            if end is None:
                self.last_keys.pop(queue, None)
                if queue in self._scanned_from_start:
                    self._unfinished_queues.discard(queue)
            else:
                self.last_keys[queue] = end


# --- claim ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """Result of `promote_due_tasks`."""

    promoted_count: int
    next_due_at: datetime | None
    has_limits: bool
    """Whether claims must check limits."""
    has_expired: bool = False
    """Whether unstarted tasks have expired."""


async def promote_due_tasks(
    database: Database, now: datetime, queues: Sequence[str], limit: int = 1000
) -> PromotionResult:
    """Queue the tasks that are due."""
    row = await database.write_one(SQL.promote_due_tasks, now, limit, list(queues))
    assert row is not None
    return PromotionResult(row["promoted"], row["next_due"], row["limited"], row["has_expired"])


async def claim_tasks(
    database: Database,
    worker_id: UUID,
    queues: Sequence[str],
    limit: int,
    lease: timedelta,
    cursor: ClaimCursor | None = None,
    excluded_ids: Iterable[UUID] = (),
    known: KnownHandlers | None = None,
) -> list[Task]:
    """Claim up to ``limit`` tasks of queues without limits, most urgent first, except ``excluded_ids``.

    Only tasks of ``known`` jobs and step kinds are claimed (None: all tasks).

    Without retries: a lease starts at the request, and tasks of a claim whose reply was lost are recovered when it
    expires.
    """
    known_positions = cursor.positions if cursor else {}
    positions = [known_positions.get(queue, QUEUE_START) for queue in queues]
    ranks, instants, ids = ([position[i] for position in positions] for i in range(3))
    # guard: claim.no_blind_retry
    rows = await database.write_once(
        SQL.claim_tasks, worker_id, lease, list(queues), limit, ranks, instants, ids, list(excluded_ids),
        *claim_parameters(known),
    )  # fmt: skip
    return _sort_by_urgency(_CLAIMED_TASKS.all(rows))


async def claim_limited_tasks(
    database: Database,
    worker_id: UUID,
    queues: Sequence[str],
    limit: int,
    lease: timedelta,
    key_cursor: LimitKeyCursor | None = None,
    excluded_ids: Iterable[UUID] = (),
    known: KnownHandlers | None = None,
    free_count: int | None = None,
) -> list[Task]:
    """Claim up to ``limit`` tasks without exceeding the limit of any queue or key; under a rate limit up to
    ``free_count`` (default: ``limit``), because a task that has taken a token must start now.

    Each transaction reads a limited number of keys, so that other claims can run in between. It claims the most urgent
    tasks of the first keys that have any, and returns nothing only if no key has one. Only claims under the same cap
    wait for each other.
    """
    key_cursor = LimitKeyCursor() if key_cursor is None else key_cursor
    key_cursor.begin_claim(queues)
    key_cursor.next_token_at = None
    rated_count = limit if free_count is None else max(min(free_count, limit), 0)
    unlocked_scopes: list[str] = []
    try_count = 0
    while True:
        starts = key_cursor.start_keys(queues)

        async def claim(
            connection: Connection, starts: list[str] = starts, scopes: list[str] = unlocked_scopes
        ) -> tuple[Row, list[Row], bool]:
            locks = await connection.fetchrow(SQL.lock_limits, list(queues), starts, LIMIT_KEYS_PER_CLAIM, scopes)
            assert locks is not None
            values = (
                worker_id, lease, list(queues), limit, locks["queues_of_keys"], locks["keys"], list(excluded_ids),
                *claim_parameters(known), locks["capped_scopes"], locks["uncapped_scopes"],
            )  # fmt: skip
            if not locks["capped_scopes"]:
                rows = list(await connection.fetch(SQL.claim_uncapped_tasks, *values, locks["batches_of_keys"]))
                if rows[0]["id"] is not None or not locks["keys"]:
                    return locks, rows, False
            # also where the fast path claimed nothing: it does not report scopes that were not locked
            rows = list(await connection.fetch(SQL.claim_limited_tasks, *values, rated_count))
            parked_count = 0
            if rows[0]["exhausted_scopes"]:
                scopes_and_keys = (rows[0]["exhausted_scopes"], locks["queues_of_keys"], locks["keys"])
                parked_count = await connection.fetchval(SQL.park_tasks, *scopes_and_keys, TASKS_PER_PARKING)
            return locks, rows, parked_count >= TASKS_PER_PARKING

        locks, rows, has_more_to_park = await database.transaction(claim, tries=1)
        if rows[0]["next_token_at"] is not None:
            key_cursor.expect_token(rows[0]["next_token_at"])
        claimed = [_task_in_limit_slot(_LIMITED_TASKS, row) for row in rows if row["id"] is not None]
        unlocked_scopes, try_count = list(rows[0]["unlocked_scopes"]), try_count + 1
        may_have_more = rows[0]["is_incomplete"] or bool(unlocked_scopes) or has_more_to_park
        if may_have_more and not claimed and (has_more_to_park or try_count < _MAX_LOCK_TRIES):
            continue  # with the missing locks, or when the concurrent claim has committed
        key_cursor.record_end_keys(queues, locks["end_keys"], rows[0]["full_queues"] or ())
        try_count = 0
        if may_have_more and claimed:
            # Without a claimed task, another session holds the rows: the next poll tries again, not a loop at once.
            key_cursor.expect_more(queues)
        if claimed or not key_cursor.has_unseen_keys:
            return _sort_by_urgency(claimed)


async def claim_standby_tasks(
    database: Database,
    worker_id: UUID,
    limit_slots: Mapping[str, QueuePosition],
    limit: int,
    lease: timedelta,
    excluded_ids: Iterable[UUID] = (),
    known: KnownHandlers | None = None,
) -> list[Task]:
    """Claim up to ``limit`` standby tasks for each limit slot, after the given queue position.

    A standby task starts when a task in its slot ends (`Settlement.successor`). Without retries, like any claim.
    """
    ranks, instants, ids = ([position[i] for position in limit_slots.values()] for i in range(3))
    values = (worker_id, lease, list(limit_slots), limit, list(excluded_ids), ranks, instants, ids)
    rows = await database.write_once(SQL.claim_standby_tasks, *values, *claim_parameters(known))
    return _sort_by_urgency([_task_in_limit_slot(_STANDBY_TASKS, row) for row in rows])


def _task_in_limit_slot(mapper: PositionalMapper[Task], row: Row) -> Task:
    task = mapper.one(row)
    task.limit_slot = row["limit_slot"]
    return task


def _sort_by_urgency(tasks: list[Task]) -> list[Task]:
    tasks.sort(key=lambda task: (-task.priority, task.run_at, task.id))
    return tasks


# --- renew ----------------------------------------------------------------------------------------------------------


async def renew_leases(
    database: Database, worker_id: UUID, held: Sequence[tuple[UUID, int, str | None]], lease: timedelta
) -> set[UUID]:
    """Extend the leases of tasks given as (id, fence, progress); return the ids of the extended ones.

    A missing task is no longer held, or its row is locked: see `find_held_tasks`.
    """
    ids, fences, progress = to_columns(held) if held else ([], [], [])
    rows = await database.write_all(SQL.renew_leases, worker_id, lease, ids, fences, progress)
    return {row["id"] for row in rows}


async def find_held_tasks(database: Database, worker_id: UUID, held: Sequence[tuple[UUID, int]]) -> set[UUID]:
    """Return the ids of those tasks, given as (id, fence), that this worker holds."""
    return {row["id"] for row in await database.fetch_all(SQL.find_held_tasks, worker_id, *to_columns(held))}


async def find_open_tasks(connection: Connection, task_ids: Collection[UUID]) -> set[UUID]:
    """Return the ids of those tasks that have not ended."""
    return {row["id"] for row in await connection.fetch(SQL.find_open_tasks, list(task_ids))}


async def mark_overrun_tasks(database: Database, worker_id: UUID, held: Sequence[tuple[UUID, int]]) -> set[UUID]:
    """Mark tasks, given as (id, fence), that ran far over their time limit and whose leases are no longer renewed.

    Return the marked ids.
    """
    rows = await database.write_all(SQL.mark_overrun_tasks, worker_id, *to_columns(held))
    return {row["id"] for row in rows}


async def list_cancel_requests(database: Database, worker_id: UUID) -> list[tuple[UUID, int, Actor]]:
    """Return (id, fence, actor) of the running tasks of this worker whose cancellation is requested."""
    rows = await database.fetch_all(SQL.list_cancel_requests, worker_id)
    return [(row["id"], row["fence"], Actor(row["cancel_type"], row["cancel_id"], row["cancel_name"])) for row in rows]


# --- hand back ------------------------------------------------------------------------------------------------------


async def return_tasks_to_queue(database: Database, worker_id: UUID, tasks: Sequence[Task]) -> set[UUID]:
    """Return claimed tasks that were never started to their queues; no attempt is recorded."""
    rows = await database.write_all(
        SQL.return_tasks_to_queue, worker_id, [task.id for task in tasks], [task.fence for task in tasks]
    )
    return {row["id"] for row in rows}


# --- recovery and cancellation -----------------------------------------------------------------------------------


async def has_recoverable_tasks(database: Database) -> bool:
    """Return whether a recovery sweep would find a task."""
    return bool(await database.fetch_value(SQL.has_recoverable_tasks))


async def lock_expired_tasks(connection: Connection, limit: int, excluded_ids: Sequence[UUID] = ()) -> list[Task]:
    """Lock the executions, batches and manifests of tasks with an expired lease, then lock and return the tasks."""
    owners = await _lock_owners(connection, SQL.list_owners_of_expired_tasks, limit, list(excluded_ids))
    return _LOST_TASKS.all(await connection.fetch(SQL.lock_expired_tasks, limit, list(excluded_ids), *owners))


async def lock_tasks_of_worker(
    connection: Connection, worker_id: UUID, limit: int, excluded_ids: Sequence[UUID] = ()
) -> list[Task]:
    """Lock the executions, batches and manifests of tasks of an ended worker, then lock and return the tasks."""
    owners = await _lock_owners(connection, SQL.list_owners_of_worker_tasks, limit, list(excluded_ids), worker_id)
    return _LOST_TASKS.all(
        await connection.fetch(SQL.lock_tasks_of_worker, limit, list(excluded_ids), *owners, worker_id)
    )


async def _lock_owners(connection: Connection, statement: str, *values: Any) -> tuple[list[UUID], ...]:
    """Lock the executions, batches and manifests of tasks in the order in which `finish` locks them."""
    rows = await connection.fetch(statement, *values)
    execution_ids, batch_ids, manifest_ids = (sorted({row[n] for row in rows} - {None}) for n in range(3))
    await executions.lock_executions(connection, execution_ids)  # guard: recovery.executions_locked_first
    await batches.lock_batches_shared(connection, batch_ids)  # guard: recovery.batches_locked_first
    await manifests.lock_manifests_and_dependents(connection, manifest_ids)
    return execution_ids, batch_ids, manifest_ids


async def load_tasks_to_cancel(database: Database, ids: Sequence[UUID]) -> list[Task]:
    """Return tasks with the columns that a cancellation needs."""
    return _TASKS_TO_CANCEL.all(await database.fetch_all(SQL.load_tasks_to_cancel, ids))


async def list_expired_tasks(database: Database, now: datetime, limit: int) -> list[Task]:
    """Return tasks that have not started before they expired."""
    return _TASKS_TO_CANCEL.all(await database.fetch_all(SQL.list_expired_tasks, now, limit))


async def load_task_to_cancel(database: Database, task_id: UUID) -> Task | None:
    """Return a task with the columns that a cancellation needs."""
    return _TASKS_TO_CANCEL.optional(await database.fetch_one(SQL.load_task_to_cancel, task_id))


async def load_attempt_began_at(database: Database, task_id: UUID) -> datetime | None:
    """Return when the current attempt at a deferred task began."""
    began_at: datetime | None = await database.fetch_value(SQL.load_attempt_began_at, task_id)
    return began_at


async def request_cancellation(database: Database, task: Task, by: Actor) -> bool:
    """Request cancellation of a running task; return False if it is not running under this fence any more."""
    row = await database.write_one(SQL.request_cancellation, task.id, task.fence, by.type, by.id, by.name)
    return row is not None
