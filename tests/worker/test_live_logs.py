"""Live logs: lines of a running attempt reach a client that watches; nothing is written while no client does."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from tenuto import Context, Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.jobs.attempt_log import AttemptLog
from tenuto.operations.work.attempt_logs import select_text
from tenuto.postgres.database import Database
from tenuto.store.work import live_logs
from tenuto.store.work.live_logs import LiveText
from tenuto.worker import live_logs as worker_logs
from tenuto.worker.live_logs import LiveLogs
from tests.support.errors import raises_code
from tests.support.model_values import make_held_task
from tests.support.service_fixtures import WorkerFactory
from tests.support.tasks import read_rows
from tests.support.waiting import eventually

STOP = threading.Event()


@pytest.fixture(autouse=True)
def stop_jobs() -> Any:
    STOP.clear()
    yield
    STOP.set()


@pytest.fixture
async def running(app: Tenuto, worker: WorkerFactory) -> AsyncIterator[UUID]:
    """An attempt that logs a line every 50 ms until it is stopped."""

    @app.job
    def chatter(ctx: Context) -> None:
        ctx.redact("hunter2")
        number = 0
        while not STOP.wait(0.05):
            ctx.log.info("line %d hunter2", number)
            number += 1

    async with worker():
        task = await app.enqueue(chatter)

        async def is_running() -> bool:
            return (await app.activity(task.id)).state == "running"

        await eventually(is_running)
        yield task.id
        STOP.set()


async def read_until(app: Tenuto, id: UUID, text: str) -> str:
    """Follow the log until it contains a text."""
    seen, offset = "", None

    async def read_more() -> bool:
        nonlocal seen, offset
        page = await app.activity_log(id, from_offset=offset)
        seen, offset = seen + page.text, page.next_offset
        return text in seen

    await eventually(read_more, 20)
    return seen


async def test_log_of_a_running_attempt_is_followed_and_equals_the_final_log(app: Tenuto, running: UUID) -> None:
    seen = await read_until(app, running, "line 30")
    assert "hunter2" not in seen, "secrets are redacted"
    STOP.set()
    await app.wait(running, 20)
    final = await app.activity_log(running)
    assert final.is_complete
    assert final.text.startswith(seen), "order and text equal the final log"
    rest = await app.activity_log(running, from_offset=len(seen))
    assert seen + rest.text == final.text
    database = await app.open()

    async def is_removed() -> bool:
        return await read_rows(database, "live_logs") == []

    await eventually(is_removed)


async def test_log_is_removed_when_no_client_watches_it_any_more(app: Tenuto, running: UUID) -> None:
    database = await app.open()
    await read_until(app, running, "line 3")
    assert await read_rows(database, "live_logs") != []
    await database.fetch_all("UPDATE tenuto.log_watches SET watched_until = clock_timestamp()")

    async def is_removed() -> bool:
        return await read_rows(database, "live_logs") == []

    await eventually(is_removed)


async def test_log_that_no_client_watches_is_not_written(db: Database) -> None:
    attempt, logs = FakeAttempt(), LiveLogs()
    attempt.log.info("hello")
    for _ in range(3):
        await send(db, logs, attempt)
    assert await read_rows(db, "live_logs") == []
    await live_logs.watch(db, [attempt.activity_id])
    await send(db, logs, attempt)
    assert len(await read_rows(db, "live_logs")) == 1


async def test_tail_returns_the_last_lines_of_a_running_attempt(app: Tenuto, running: UUID) -> None:
    await read_until(app, running, "line 8")
    page = await app.activity_log(running, tail=3)
    assert len(page.text.splitlines()) == 3
    assert not page.is_complete
    assert page.next_offset - page.first_offset == len(page.text)


async def test_log_of_unknown_activity_and_wrong_range_are_refused(app: Tenuto, db: Database) -> None:
    with raises_code("activity.not_found"):
        await app.activity_log(UUID(int=1))
    with raises_code("activity.log.range"):
        await app.activity_log(UUID(int=1), tail=1, from_offset=1)


class FakeAttempt:
    """An attempt as far as live logs use it."""

    def __init__(self) -> None:
        self.context: Any = self
        self.task = make_held_task()
        self.activity_id = self.task.activity_id
        self.has_log = True
        self.log = AttemptLog(self.task)


async def send(db: Database, logs: LiveLogs, *attempts: FakeAttempt) -> None:
    logs.check_watches()
    await logs.send(db, attempts)  # type: ignore[arg-type]


async def test_worker_sends_the_logs_of_a_limited_number_of_attempts(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_logs, "MAX_WATCHED_ATTEMPTS", 3)
    attempts = [FakeAttempt() for _ in range(5)]
    for attempt in attempts:
        attempt.log.info("hello")
    await live_logs.watch(db, [attempt.activity_id for attempt in attempts])
    logs = LiveLogs()
    await send(db, logs, *attempts)
    assert len({row["activity_id"] for row in await read_rows(db, "live_logs")}) == 3


async def test_worker_leaves_out_lines_beyond_the_limit_and_a_reader_sees_the_gap(db: Database) -> None:
    attempt, logs = FakeAttempt(), LiveLogs()
    attempt.log.info("first")
    await live_logs.watch(db, [attempt.activity_id])
    await send(db, logs, attempt)
    started_at = monotonic_seconds()
    for number in range(200):
        attempt.log.info("%d %s", number, "x" * 2000)
        if number in (100, 199):
            await send(db, logs, attempt)
    sent = sum(len(row["text"]) for row in await read_rows(db, "live_logs"))
    seconds = monotonic_seconds() - started_at
    assert sent <= worker_logs.MAX_CHARACTERS_PER_SECOND * (1 + seconds), "no more than a second allows"
    page = select_text(await live_logs.list_texts(db, attempt.activity_id, 0), None, None, is_complete=False)
    assert "characters are shown when the attempt has ended" in page.text

    async def is_last_line_sent() -> bool:
        await send(db, logs, attempt)
        texts = await live_logs.list_texts(db, attempt.activity_id, 0)
        return any("199 xxx" in each.text for each in texts)

    await eventually(is_last_line_sent)


async def test_old_texts_of_a_long_watched_log_are_deleted(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_logs, "_KEPT_CHARACTERS", 1000)
    attempt, logs = FakeAttempt(), LiveLogs()
    await live_logs.watch(db, [attempt.activity_id])
    for number in range(60):
        attempt.log.info("line %d %s", number, "x" * 100)
        await send(db, logs, attempt)
    assert len(await read_rows(db, "live_logs")) < 40


async def test_abandoned_live_logs_are_removed_by_housekeeping(db: Database) -> None:
    attempt = FakeAttempt()
    attempt.log.info("hello")
    await live_logs.watch(db, [attempt.activity_id])
    await send(db, LiveLogs(), attempt)
    await live_logs.remove_abandoned(db)
    assert len(await read_rows(db, "live_logs")) == 1
    await db.fetch_all("UPDATE tenuto.live_logs SET written_at = written_at - interval '2 min'")
    await live_logs.remove_abandoned(db)
    assert len(await read_rows(db, "live_logs")) == 1, "a client watches it"
    await db.fetch_all("UPDATE tenuto.log_watches SET watched_until = watched_until - interval '2 min'")
    await live_logs.remove_abandoned(db)
    assert (await read_rows(db, "live_logs"), await read_rows(db, "log_watches")) == ([], [])


def test_live_lines_are_neither_lost_nor_repeated_while_another_thread_logs() -> None:
    log = AttemptLog(make_held_task())

    def write_lines() -> None:
        for _ in range(2000):
            log.add_line("info", "x")

    threads = [threading.Thread(target=write_lines) for _ in range(3)]
    for thread in threads:
        thread.start()
    _, lines = log.start_live()
    while any(thread.is_alive() for thread in threads):
        lines += log.take_live_lines()
    lines += log.take_live_lines()
    assert len(lines) == 6000


def test_line_whose_thread_is_interrupted_while_a_client_begins_to_watch_is_sent_once() -> None:
    log = AttemptLog(make_held_task())
    log.add_line("info", "first")
    started: list[str] = []

    class InterruptedAppend(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            started.extend(log.start_live()[1])  # as on the thread of the watchdog

    log._head = InterruptedAppend(log._head or [])
    log.add_line("info", "second")
    log._head = list(log._head)
    log.add_line("info", "third")
    texts = [line.split()[-1] for line in [*started, *log.take_live_lines()]]
    assert texts == ["first", "second", "third"]


def test_reader_cuts_a_part_that_begins_before_its_offset() -> None:
    texts = [LiveText(0, "one\ntwo\n"), LiveText(8, "three\n")]
    assert select_text(texts, None, 4, is_complete=False).text == "two\nthree\n"
    assert select_text(texts, 1, None, is_complete=False).text == "three\n"
    assert select_text([], None, 7, is_complete=False).next_offset == 7
    cut = select_text([LiveText(100, "late\n")], None, None, is_complete=False)
    assert (cut.first_offset, cut.next_offset) == (100, 105)
