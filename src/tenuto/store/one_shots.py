"""One-shots: creating them, and reading the registry, which is no table but a view of the tasks themselves.

Nothing here decides, and nothing ends a task: that is `lifecycle.completion`, for one-shots as for all others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

from tenuto.errors import Unavailable
from tenuto.model.actors import Actor
from tenuto.model.tasks import NewTask, Task
from tenuto.postgres.database import Connection, Database, Row, TooSlow
from tenuto.postgres.sql_loader import beside
from tenuto.store.access import audit_recorder
from tenuto.store.access.audit_recorder import Deed
from tenuto.store.activities import Record, ids_beginning, record
from tenuto.store.bulk_copy import array_literals, columns_of
from tenuto.store.tasks import TAGS, row_of

SQL = beside(__file__)

Standing = Literal["open", "ended"]
TaskRow: TypeAlias = tuple[Any, ...]

_NO_ID = UUID(int=0)
_BEFORE_ALL = (datetime(1970, 1, 1, tzinfo=UTC), _NO_ID)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a list is narrowed to; everything may be left out."""

    prompt_type: str | None = None
    tags: list[str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    search: str | None = None


def row_of_one(task: NewTask) -> TaskRow:
    """A one-shot as it is stored. Made where it is asked for: whoever asks is in its trace."""
    return row_of(task)


class _HasBeen(Exception):
    """What was created a moment ago has ended before: nothing of this may stand."""


async def create(database: Database, task: NewTask, *, again: bool = False) -> bool:
    """Create a one-shot that is nobody's deed; False if its id is there already, or has been.

    ``again``: it may have been created before, and even be ending at this moment.
    """
    row = row_of(task)
    if not again:
        try:
            return bool(await database.once(SQL.create, *row))
        except Unavailable as error:
            _unless_too_slow(error)
    return bool(await _with_a_second_look(database, SQL.create, row))


async def create_on_record(database: Database, asked: Sequence[tuple[TaskRow, Deed]]) -> list[bool | None]:
    """Create one-shots that somebody has asked for, each with its entry, in one statement: whether it was created, as
    `create` says; None if the key of its request has been used for something else."""
    rows = [(*row, *audit_recorder.entry_of(deed), *_key_of(deed)) for row, deed in asked]
    try:
        created = await _create_all(database, rows)
    except Unavailable as error:
        _unless_too_slow(error)
        created = [await _create_again(database, row) for row in rows]
    for (_, deed), made in zip(asked, created, strict=True):
        deed.written = bool(made)
    return created


async def _create_all(database: Database, rows: Sequence[tuple[Any, ...]]) -> list[bool | None]:
    if len(rows) == 1:
        answers = await database.once(SQL.create_on_record, *rows[0])
    else:
        columns = columns_of(rows)
        columns[TAGS] = array_literals(columns[TAGS])
        answers = await database.once(SQL.create_several_on_record, *columns)
    return [bool(answer["created"]) if answer["allowed"] else None for answer in answers]


async def _create_again(database: Database, row: tuple[Any, ...]) -> bool | None:
    answers = await _with_a_second_look(database, SQL.create_on_record, row)
    return any(answer["created"] for answer in answers) if all(answer["allowed"] for answer in answers) else None


async def _with_a_second_look(database: Database, statement: str, row: tuple[Any, ...]) -> list[Row]:
    """Ask for what may have been created before. Whoever was just ending it is out of the way by the time it could be
    created anew, and then its record can be seen: nothing is created, and nothing is answered."""

    async def act(connection: Connection) -> list[Row]:
        answers = await connection.fetch(statement, *row)
        if await connection.fetchval(SQL.has_been, row[0]):
            raise _HasBeen
        return answers

    try:
        return await database.transaction(act)
    except _HasBeen:
        return []


def _unless_too_slow(error: Unavailable) -> None:
    """What took too long would again; everything else is worth asking once more."""
    if isinstance(error, TooSlow):
        raise error


def _key_of(deed: Deed) -> tuple[Any, ...]:
    key = deed.request_key
    return (None, None, None, None) if key is None else (key.actor, key.key, key.fingerprint, key.subject)


async def standing(database: Database, id: UUID) -> Standing | None:
    """Whether a one-shot is open or has ended; None if there is none of this id."""
    found: Standing | None = await database.value(SQL.standing, id)
    return found


async def attempts(database: Database, id: UUID) -> list[Record]:
    """Every attempt at a one-shot so far, the first one first; none if there is no such one-shot."""
    return [record(row) for row in await database.all(SQL.attempts, id)]


async def registry(
    database: Database, wanted: Wanted, *, running: bool | None, after: tuple[datetime, UUID] | None, limit: int
) -> list[Record]:
    """What is still to end, the next one first."""
    start = after or _BEFORE_ALL
    if wanted.since is not None:
        start = max(start, (wanted.since, _NO_ID))
    values = (*start, wanted.until, wanted.prompt_type, running, wanted.tags, wanted.search, limit)
    return [record(row) for row in await database.all(SQL.registry, *values)]


async def past(
    database: Database, wanted: Wanted, *, statuses: Sequence[str] | None, below: UUID | None, limit: int
) -> list[Record]:
    """What has ended, the newest first."""
    values: tuple[Any, ...] = (
        below, wanted.prompt_type, None if statuses is None else list(statuses), wanted.tags, wanted.since,
        wanted.until, wanted.search, limit,
    )  # fmt: skip
    return [record(row) for row in await database.all(SQL.past, *values)]


async def find(database: Database, prefix: str) -> list[UUID]:
    """Up to three one-shots whose ids begin with what a person typed."""
    return [row["id"] for row in await database.all(SQL.find_by_prefix, *ids_beginning(prefix))]


# --- what a wipe needs ----------------------------------------------------------------------------------------------


async def hold_waiting(connection: Connection, limit: int) -> AsyncIterator[list[Task]]:
    """All of the registry that nobody runs, in parts, held until the transaction ends.

    Here and below their input is left out: who ends them does not need it.
    """
    await connection.execute(SQL.for_many)
    place = _BEFORE_ALL
    while part := [Task(*row) for row in await connection.fetch(SQL.hold_waiting, *place, limit)]:
        yield part
        place = (part[-1].run_at, part[-1].id)


async def hold_some(connection: Connection, limit: int) -> list[Task]:
    """Some of the registry, held until the transaction ends; fewer than the limit means: all there were."""
    return [Task(*row) for row in await connection.fetch(SQL.hold_some, limit)]


async def ask_to_stop(connection: Connection, ids: Sequence[UUID], now: datetime, by: Actor) -> None:
    """Running one-shots are asked to stop; they are no longer part of the registry."""
    await connection.execute(SQL.ask_to_stop, list(ids), now, by.type, by.id, by.name)


async def stopped_at(database: Database, ids: Sequence[UUID], now: datetime) -> set[UUID]:
    """Which of these were ended or asked to stop at this instant."""
    return {row["id"] for row in await database.all(SQL.stopped_at, list(ids), now)}
