"""The four writes: start, claim, renew, finish. Whatever moves a task moves it through one of these.

Rows are moved as told; what an outcome means was decided before (`model.tasks.settle`). `finish` has a room of its own,
`lifecycle.completion`, because the end of a task may move an execution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.errors import StoreError, Unavailable
from tenuto.ids import fresh_ids
from tenuto.model.actors import Actor
from tenuto.model.tasks import NewTask, Task, TaskState
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import beside
from tenuto.store import batches, executions, manifests
from tenuto.store.bulk_copy import array_literals, columns_of, copy_alike
from tenuto.store.claim_cursor import NOTHING_BEFORE, Bounds, Lap, Place
from tenuto.tracing import asked, carrying

SQL = beside(__file__)

_COLUMNS = (
    "id", "activity_id", "state", "queue", "rank", "run_at", "kind", "name", "input", "policy", "created_at",
    "unique_key", "limit_key", "limit_max", "tags", "initiator_type", "initiator_id", "initiator_name",
    "correlation_id", "parent_id", "origin",
)  # fmt: skip
TAGS = 13
"""Where the tags stand in `row_of`."""
KEYS_PER_CLAIM = 200
"""How many limited keys of a queue one claim looks at."""


# --- start ----------------------------------------------------------------------------------------------------------


async def start(database: Database, tasks: Sequence[NewTask]) -> set[UUID]:
    """Create tasks and wake who may take them; the ids that were not there before.

    Repeating it with the same tasks is harmless: an id that exists or has been, or a unique key in use, is left alone.
    """
    created = await _start_many(database, tasks)
    await wake(database, {_word(task) for task in tasks})
    return created


async def _start_many(database: Database, tasks: Sequence[NewTask]) -> set[UUID]:
    """The careful way: what is there already, or has been, is left alone."""
    columns = columns_of(row_of(task, 1) for task in tasks)
    columns[TAGS] = array_literals(columns[TAGS])

    async def act(connection: Connection) -> set[UUID]:
        created = {row["id"] for row in await connection.fetch(SQL.start_many, *columns)}
        if created:
            created.difference_update(row["id"] for row in await connection.fetch(SQL.take_back, list(created)))
        return created

    return await database.transaction(act)


async def start_alike(
    database: Database, like: NewTask, inputs: Sequence[str], sent: Callable[[], object] = lambda: None
) -> int:
    """Create tasks that differ only in their input, as fast as the database takes them in; how many.

    Columns in which the pattern has nothing to say are left to their defaults, and the instant of creation to the
    database; but they stand in line by the asker's clock, as single tasks do: what one asks for in turn is taken in
    turn. Nothing here can clash with what is there: the ids are fresh and there is no key. ``sent`` is called as soon
    as there is only the database to wait for.
    """
    assert like.unique_key is None
    shared = dict(zip(_COLUMNS, row_of(like, 2), strict=True))
    for column in ("id", "activity_id", "input", "created_at"):
        del shared[column]
    ids = fresh_ids(len(inputs))

    async def load(connection: Connection) -> None:
        await copy_alike(connection, shared, ids, inputs, sent)

    try:
        await database.copy(load)
    except Unavailable:  # or only the reply was lost; by now they may even have been done
        await _start_many(database, [replace(like, id=id, input=text) for id, text in zip(ids, inputs, strict=True)])
    await wake(database, [_word(like)])
    return len(ids)


def _word(task: NewTask) -> str:
    kind = "limited" if task.limit_key is not None and task.state is TaskState.QUEUED else task.state
    return f"{kind} {task.queue} {-task.priority}"


async def start_or_find(database: Database, task: NewTask, *, again: bool = False) -> UUID:
    """Create a task whose id was made for it just now; its id, or that of the open task that has its key.

    ``again``: it may have been created before under this id, and even have ended since.
    """
    created = bool(await start(database, [task])) if again else await _start_new(database, task)
    while not created:
        standing: UUID | None = await database.value(SQL.standing, task.id, task.unique_key)
        if standing is not None:
            return standing
        created = bool(await start(database, [task]))  # the key was in use and has become free since
    return task.id


async def _start_new(database: Database, task: NewTask) -> bool:
    """Nobody can have done a task yet whose id nobody knows: whether it has been and gone is looked at only when it is
    sent again, because no reply came."""
    try:
        return bool(await database.once(SQL.start_one, *row_of(task, 1)))
    except Unavailable:
        return bool(await start(database, [task]))


async def start_or_find_within(connection: Connection, task: NewTask) -> UUID:
    """As `start_or_find`, in a transaction somebody else commits: the task exists if and only if their work does."""
    while await connection.fetchrow(SQL.start_one, *row_of(task, 1)) is None:
        standing: UUID | None = await connection.fetchval(SQL.standing, task.id, task.unique_key)
        if standing is not None:
            return standing
    return task.id


async def wake(database: Database, words: Iterable[str]) -> None:
    """Tell the services that something has changed; if that fails, polling finds out anyway."""
    with suppress(StoreError):
        await database.all(SQL.wake, list(words))


def row_of(task: NewTask, ids: int = 1) -> tuple[Any, ...]:
    """A task as the statements that create one take it; its id stands so many times."""
    actor = task.initiator
    return (task.id,) * ids + (
        task.state, task.queue, -task.priority, task.run_at or task.created_at, task.kind, task.name, task.input,
        carrying(task.policy, asked(task.name)), task.created_at, task.unique_key, task.limit_key, task.limit_max,
        task.tags, actor.type, actor.id, actor.name, task.correlation_id, task.parent_id, task.origin,
    )  # fmt: skip


# --- claim ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a worker learns by looking ahead."""

    promoted: int
    next_due: datetime | None
    limited: bool
    """Claims must count before they take."""


async def promote(database: Database, now: datetime, queues: Sequence[str], limit: int = 1000) -> Outlook:
    """What has fallen due becomes free to take."""
    row = await database.one(SQL.promote, now, limit, list(queues))
    assert row is not None
    return Outlook(row["promoted"], row["next_due"], row["limited"])


async def claim(
    database: Database,
    worker_id: UUID,
    queues: Sequence[str],
    limit: int,
    lease: timedelta,
    bounds: Bounds | None = None,
    without: Iterable[UUID] = (),
) -> list[Task]:
    """Take up to ``limit`` tasks of queues without limits, most urgent first, but none of ``without``.

    Asked once: a lease counts from the moment of asking, and what a claim took whose reply was lost comes back when
    its lease has run out.
    """
    after = bounds.after if bounds else {}
    places = [after.get(queue, NOTHING_BEFORE) for queue in queues]
    ranks, instants, ids = ([place[i] for place in places] for i in range(3))
    rows = await database.once(SQL.claim, worker_id, lease, list(queues), limit, ranks, instants, ids, list(without))
    return _most_urgent_first([Task(*row) for row in rows])


async def claim_under_limits(
    database: Database,
    worker_id: UUID,
    queues: Sequence[str],
    limit: int,
    lease: timedelta,
    lap: Lap | None = None,
    without: Iterable[UUID] = (),
) -> list[Task]:
    """Take up to ``limit`` tasks without overrunning the limit of any queue or key, not even by one.

    It looks at some keys at a time and lets others claim in between. The most urgent of the first keys among which
    there is something to take are taken; nothing, only if there is nothing under any key.
    """
    lap = Lap() if lap is None else lap
    lap.asked(queues)
    while True:
        starts = lap.starts(queues)

        async def take(connection: Connection, starts: list[str] = starts) -> list[Row]:
            await connection.execute(SQL.lock_limits)
            values = (worker_id, lease, list(queues), limit, starts, KEYS_PER_CLAIM, list(without))
            return list(await connection.fetch(SQL.claim_under_limits, *values))

        rows = await database.transaction(take, tries=1)
        lap.reached(queues, rows[0]["ends"])
        taken = [_seated(tuple(row)[1:]) for row in rows if row["id"] is not None]
        if taken or not lap.left_out:
            return _most_urgent_first(taken)


async def stand_by(
    database: Database,
    worker_id: UUID,
    seats: Mapping[str, Place],
    limit: int,
    lease: timedelta,
    without: Iterable[UUID] = (),
) -> list[Task]:
    """Take up to ``limit`` tasks for each of these seats, after the place named beside it; each begins when one in such
    a seat ends (`Settlement.heir`).

    Asked once, like any claim.
    """
    ranks, instants, ids = ([place[i] for place in seats.values()] for i in range(3))
    values = (worker_id, lease, list(seats), limit, list(without), ranks, instants, ids)
    rows = await database.once(SQL.stand_by, *values)
    return _most_urgent_first([_seated(tuple(row)) for row in rows])


def _seated(row: tuple[Any, ...]) -> Task:
    task = Task(*row[:-1])
    task.seat = row[-1]
    return task


def _most_urgent_first(tasks: list[Task]) -> list[Task]:
    tasks.sort(key=lambda task: (-task.priority, task.run_at, task.id))
    return tasks


# --- renew ----------------------------------------------------------------------------------------------------------


async def renew(
    database: Database, worker_id: UUID, held: Sequence[tuple[UUID, int, str | None]], lease: timedelta
) -> set[UUID]:
    """Prolong the leases of (id, fence, progress). What is missing from the answer is held no longer, or somebody is at
    it just now: `still_held` tells."""
    ids, fences, progress = columns_of(held) if held else ([], [], [])
    rows = await database.all(SQL.renew, worker_id, lease, ids, fences, progress)
    return {row["id"] for row in rows}


async def still_held(database: Database, worker_id: UUID, held: Sequence[tuple[UUID, int]]) -> set[UUID]:
    """Which of (id, fence) this worker holds."""
    return {row["id"] for row in await database.all(SQL.still_held, worker_id, *columns_of(held))}


async def let_go(database: Database, worker_id: UUID, held: Sequence[tuple[UUID, int]]) -> set[UUID]:
    """Say of (id, fence) that it runs far over its time limit and is renewed no more; of which it was said."""
    rows = await database.all(SQL.let_go, worker_id, *columns_of(held))
    return {row["id"] for row in rows}


async def cancellations(database: Database, worker_id: UUID) -> list[tuple[UUID, int, Actor]]:
    """(id, fence, who) of the running tasks of this worker that are to stop."""
    rows = await database.all(SQL.cancellations, worker_id)
    return [(row["id"], row["fence"], Actor(row["cancel_type"], row["cancel_id"], row["cancel_name"])) for row in rows]


# --- return ---------------------------------------------------------------------------------------------------------


async def put_back(database: Database, worker_id: UUID, tasks: Sequence[Task]) -> set[UUID]:
    """Return tasks that were claimed but never started; no attempt is recorded, because none was made."""
    rows = await database.all(SQL.put_back, worker_id, [task.id for task in tasks], [task.fence for task in tasks])
    return {row["id"] for row in rows}


# --- what the nets and the canceller need to see -------------------------------------------------------------------


async def anything_slipped(database: Database) -> bool:
    """Whether a sweep would find something."""
    return bool(await database.value(SQL.anything_slipped))


async def expired(connection: Connection, limit: int, without: Sequence[UUID] = ()) -> list[Task]:
    """Held tasks whose lease has run out, locked until the transaction ends, after all they belong to."""
    held = await _hold_what_they_belong_to(connection, SQL.what_expired_belongs_to, limit, list(without))
    return [Task(*row) for row in await connection.fetch(SQL.expired, limit, list(without), *held)]


async def held_by(connection: Connection, worker_id: UUID, limit: int, without: Sequence[UUID] = ()) -> list[Task]:
    """What a dead worker still holds, locked until the transaction ends, after all it belongs to."""
    held = await _hold_what_they_belong_to(connection, SQL.what_is_held_belongs_to, limit, list(without), worker_id)
    return [Task(*row) for row in await connection.fetch(SQL.held_by, limit, list(without), *held, worker_id)]


async def _hold_what_they_belong_to(connection: Connection, question: str, *values: Any) -> tuple[list[UUID], ...]:
    """The executions, batches and manifests of tasks that are to be ended, held in the order in which the end of a task
    takes them."""
    rows = await connection.fetch(question, *values)
    runs, lots, kept = (sorted({row[n] for row in rows} - {None}) for n in range(3))
    await executions.lock(connection, runs)
    await batches.share(connection, lots)
    await manifests.hold(connection, kept)
    return runs, lots, kept


async def to_cancel(database: Database, task_id: UUID) -> Task | None:
    """A task as a canceller needs to see it."""
    row = await database.one(SQL.to_cancel, task_id)
    return None if row is None else Task(*row)


async def began_at(database: Database, task_id: UUID) -> datetime | None:
    """When the attempt at a task began, if it has been put aside since."""
    found: datetime | None = await database.value(SQL.began_at, task_id)
    return found


async def ask_to_cancel(database: Database, task: Task, by: Actor) -> bool:
    """Ask the holder of a running task to stop it; False if it is not running under that fence any more."""
    row = await database.one(SQL.ask_to_cancel, task.id, task.fence, by.type, by.id, by.name)
    return row is not None
