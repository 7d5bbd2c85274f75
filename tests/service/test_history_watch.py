"""Marks of a process, and what it does when the database does not have them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tenuto.postgres.database import Connection, Database
from tenuto.service.lost_commit_watch import IDLE_MARK_SECONDS, HistoryWatch, read_all_marks, read_mark
from tenuto.service.process_identity import ProcessIdentity
from tenuto.store import database_history


class Exited(BaseException):
    pass


@pytest.fixture
def identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessIdentity]:
    def leave(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr(os, "_exit", leave)
    identity = ProcessIdentity.acquire("scheduler", tmp_path, "one")
    yield identity
    identity.release()


async def start(db: Database, home: Path, identity: ProcessIdentity, marks: int = 2) -> HistoryWatch:
    watch = HistoryWatch(home, identity)
    await watch.recall()
    await watch.begin(db)
    for _ in range(marks):
        await watch._record_mark(db)
    return watch


async def lose_marks(db: Database, statement: str = "UPDATE tenuto.history_marks SET number = number - 1") -> None:
    await db.write_value(statement)


@pytest.mark.parametrize(
    "loss", ["UPDATE tenuto.history_marks SET number = number - 1", "DELETE FROM tenuto.history_marks"]
)
async def test_process_that_finds_an_older_mark_exits(
    db: Database, tmp_path: Path, identity: ProcessIdentity, loss: str
) -> None:
    await start(db, tmp_path, identity)
    await lose_marks(db, loss)
    with pytest.raises(Exited) as caught:
        async with db._pool._pool.acquire() as first, db._pool._pool.acquire() as second:
            assert first is not second
    assert caught.value.args == (75,)


async def test_process_that_finds_its_newest_mark_goes_on(
    db: Database, tmp_path: Path, identity: ProcessIdentity
) -> None:
    await start(db, tmp_path, identity)
    async with db._pool._pool.acquire() as first, db._pool._pool.acquire() as second:
        assert first is not second
    mark = read_mark(tmp_path, "scheduler", "one")
    assert mark is not None
    assert mark.seen.number == 2
    assert read_all_marks(tmp_path) == [mark]


class ConnectionWithMarkMeanwhile:
    """A connection whose reply arrives after another mark of the process was acknowledged."""

    def __init__(self, connection: Connection, db: Database, watch: HistoryWatch) -> None:
        self._connection, self._db, self._watch = connection, db, watch

    async def fetch(self, *query: Any) -> Any:
        reply = await self._connection.fetch(*query)
        await self._watch._record_mark(self._db)
        return reply


async def test_mark_acknowledged_while_a_connection_is_checked_is_not_a_loss(
    db: Database, tmp_path: Path, identity: ProcessIdentity
) -> None:
    watch = await start(db, tmp_path, identity)
    async with db.connection() as connection:
        await watch.check_connection(cast("Connection", ConnectionWithMarkMeanwhile(connection, db, watch)))
    assert [mark.seen.number for mark in read_all_marks(tmp_path)] == [3]


async def test_restarted_process_records_the_loss_once_and_goes_on(
    db: Database, tmp_path: Path, identity: ProcessIdentity
) -> None:
    await start(db, tmp_path, identity)
    await lose_marks(db)
    db.gate.check = None
    for _ in range(2):
        await start(db, tmp_path, identity, marks=1)
    (loss,) = await database_history.list_losses(db, db.clock.now().replace(year=2000))
    assert (loss.service, loss.name, loss.seen_number, loss.found_number) == ("scheduler", "one", 2, 1)


async def test_process_marks_at_once_and_then_only_while_it_writes(
    db: Database, tmp_path: Path, identity: ProcessIdentity
) -> None:
    watch = await start(db, tmp_path, identity, marks=0)

    async def mark_after_a_cycle() -> int:
        await watch._run_cycle()
        found = read_mark(tmp_path, "scheduler", "one")
        return 0 if found is None else found.seen.number

    assert await mark_after_a_cycle() == 1
    assert await mark_after_a_cycle() == 1, "idle"
    for _ in range(20):
        await db.write_value("SELECT 1")
    assert await mark_after_a_cycle() == 2
    watch._marked_at -= IDLE_MARK_SECONDS
    assert await mark_after_a_cycle() == 3


async def test_unreadable_mark_counts_as_none(tmp_path: Path, db: Database, identity: ProcessIdentity) -> None:
    await start(db, tmp_path, identity)
    (tmp_path / "run" / "history-scheduler-one.json").write_text("{", encoding="utf-8")
    assert read_mark(tmp_path, "scheduler", "one") is None
    await start(db, tmp_path, identity)
