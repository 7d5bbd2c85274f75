"""Seats under a limit go from one task to the next within a worker; nobody ever sees one too many."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from tenuto import RetryPolicy, Tenuto
from tenuto.clock import steady
from tenuto.jobs.attempts import Attempt, Stop
from tenuto.jobs.context import Context
from tenuto.model.tasks import Outcome, Settlement, Status
from tenuto.store import tasks as store
from tenuto.worker import worker as engine
from tenuto.worker.limit_handoff import KEPT_FOR, OPEN_FOR, Seats, heirs, seated
from tenuto.worker.prefetch import Pace
from tests.support.model_values import a_held_task
from tests.support.waiting import eventually

MOST = 3


class Running:
    """How much of the code runs at once."""

    now = most = ended = 0

    async def __aenter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    async def __aexit__(self, *_: object) -> None:
        self.now -= 1
        self.ended += 1


async def test_seats_are_handed_on_and_never_more_run_than_may(app: Tenuto) -> None:
    running = Running()

    @app.job(limit=MOST, retry=RetryPolicy(max_retries=9, base_seconds=0))
    async def quick(number: int) -> None:
        async with running:
            await asyncio.sleep(0)
            if number % 50 == 7 and running.ended % 2:  # some are tried again
                raise ValueError("try again")

    await app.enqueue_many(quick, [{"number": number} for number in range(1500)])
    db = await app.open()
    seen = []
    async with app.worker(slots=20) as worker:
        while await db.value("SELECT EXISTS (SELECT FROM tenuto.tasks)"):
            seen.append(await db.value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running' AND NOT standby"))
        handed_on = worker._seats.handed_on
    assert running.most == MOST
    assert max(seen) <= MOST
    assert handed_on > 100
    assert await db.value("SELECT count(*) FROM tenuto.activities WHERE final AND status = 'completed'") == 1500


async def test_long_work_has_nobody_standing_by_for_long(app: Tenuto) -> None:
    gate = threading.Event()

    @app.job(limit=MOST)
    async def quick() -> None:
        pass

    @app.job(limit_key="job:quick", limit=MOST)
    async def long() -> None:
        await asyncio.to_thread(gate.wait, 60)  # code has a loop of its own

    await app.enqueue_many(quick, [{}] * 300)
    await app.enqueue_many(long, [{}] * 20)
    db = await app.open()
    async with app.worker(slots=20):

        async def only_what_runs_is_held() -> bool:
            held = "SELECT count(*), count(*) FILTER (WHERE standby) FROM tenuto.tasks WHERE state = 'running'"
            return tuple(await db.one(held) or ()) == (MOST, 0)

        await eventually(only_what_runs_is_held, 30)
        gate.set()
        await eventually(lambda: db.value("SELECT NOT EXISTS (SELECT FROM tenuto.tasks)"), 30)


# --- who has whose seat ---------------------------------------------------------------------------------------------


@pytest.fixture
def attempts() -> list[Attempt]:
    made = [an_attempt() for _ in range(4)]
    for attempt in made[1:]:
        attempt.standby = True
    return made


def an_attempt() -> Attempt:
    task = a_held_task()
    return Attempt(task, Context(task), 0.0, 0.0)


def over(*attempts: Attempt) -> list[tuple[Attempt, Outcome]]:
    return [(attempt, Outcome(Status.COMPLETED, ended_at=datetime.now(UTC))) for attempt in attempts]


def test_of_a_row_that_ends_together_the_last_has_the_seat_of_the_first(attempts: list[Attempt]) -> None:
    first, second, third, _ = attempts
    first.heir, second.heir = second, third
    assert heirs(over(first)) == [second]
    assert heirs(over(first, second)) == [third, None]
    assert heirs(over(first, second, third)) == [None, None, None]
    assert heirs(over(second)) == [None]  # the database has not seen it in a seat
    second.standby = False
    assert heirs(over(second)) == [third]


def test_an_heir_counts_once_it_has_its_seat_and_stops_if_it_got_none(attempts: list[Attempt]) -> None:
    first, second, third, fourth = attempts
    first.heir, third.heir = second, fourth
    batch = over(first, third)
    settlements = [Settlement(attempt.task, outcome) for attempt, outcome in batch]
    settlements[0].heir = second.task.id
    seated(batch, settlements)
    assert (second.standby, second.stop_reason) == (False, None)
    assert (fourth.standby, fourth.stop_reason) == (True, Stop.HANDED_BACK)


def test_seats_go_round_every_now_and_then(attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tenuto.worker.limit_handoff.steady", lambda: 1000.0
    )  # they are open for a hundredth of a second only
    first, *waiting = attempts
    for attempt in attempts:
        attempt.task.seat = "a seat"
    seats = Seats()
    seats.stand_by(waiting)
    seats._opened -= KEPT_FOR + OPEN_FOR / 2
    assert seats.hand_on(first) is None  # everybody is to have a chance now
    seats._opened -= OPEN_FOR
    assert seats.hand_on(first) is waiting[0]
    assert (seats.count, first.heir) == (2, waiting[0])
    waiting[0].stop(Stop.HANDED_BACK)
    assert seats.hand_on(waiting[0]) is None  # it may have been stopped because it has no seat
    assert seats.give_back() == waiting[1:]
    assert seats.hand_on(first) is None


def test_where_limits_may_have_changed_nothing_is_handed_on_and_all_goes_back(attempts: list[Attempt]) -> None:
    first, *waiting = attempts
    for attempt in attempts:
        attempt.task.seat = "a seat"
    seats = Seats()
    seats.stand_by(waiting)
    seats.distrust()
    assert seats.hand_on(first) is None
    assert seats.oldest() < 0  # so the worker returns it with its next breath
    assert seats.give_back() == waiting
    seats.stand_by(waiting[:1])
    assert seats.hand_on(first) is waiting[0]


def test_what_was_being_taken_when_limits_changed_goes_back_too(attempts: list[Attempt]) -> None:
    first, *waiting = attempts
    for attempt in attempts:
        attempt.task.seat = "a seat"
    seats = Seats()
    seats.distrust()  # the database has been asked, and has not answered yet
    seats.stand_by(waiting)
    assert seats.hand_on(first) is None
    assert seats.oldest() < 0
    assert seats.give_back() == waiting


def test_while_limits_may_have_changed_nobody_is_asked_to_stand_by(attempts: list[Attempt]) -> None:
    first = attempts[0]
    first.task.seat = "a seat"
    seats, pace = Seats(), Pace()
    pace._takes = 0.01
    seats.distrust()
    seats.claimed([first.task])
    assert seats.short_of([first], pace, 10) == ({}, 0)
    assert seats.give_back(pause=60) == []  # nothing was taken under other limits: there is nothing to pause for
    kinds, each = seats.short_of([first], pace, 10)
    assert (list(kinds), each) == (["a seat"], 5)


def test_of_seats_nobody_stands_by_for_nothing_is_kept() -> None:
    seats = Seats()
    for number in range(50):
        before, after = an_attempt(), an_attempt()
        before.task.seat = after.task.seat = f"a seat of batch {number}"
        seats.stand_by([after])
        assert seats.hand_on(before) is after
    assert seats._standing_by == {}
    assert seats.oldest() > steady()


@pytest.mark.parametrize("verb", ["pause", "cancel"])
async def test_what_stands_by_of_a_batch_never_begins_once_it_is_paused_or_cancelled(
    app: Tenuto, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(engine, "_AHEAD_AT_MOST", 60)  # else what stands by goes back by itself after a second
    running, begun, gate = Running(), 0, asyncio.Event()
    loop = asyncio.get_running_loop()
    gate.set()

    @app.job
    async def quick(number: int) -> None:
        nonlocal begun
        begun += 1
        async with running:
            if not gate.is_set():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), loop))

    made = app.manifest("quick", quick, max_active=MOST)
    await app.manifests.deploy()
    batch = await app.bulk_enqueue(made, [{"number": number} for number in range(5000)])
    async with app.worker(slots=20, poll_seconds=60) as worker:
        await eventually(lambda: worker._seats.count > MOST * 2, 30)
        gate.clear()
        await eventually(lambda: running.now == MOST)
        before = begun
        assert worker._seats.count > 0
        await getattr(batch, verb)()
        await eventually(lambda: worker._seats.count == 0, what="it goes back")
        gate.set()
        db = await app.open()
        await eventually(lambda: db.value("SELECT NOT EXISTS (SELECT FROM tenuto.tasks WHERE state = 'running')"))
        assert begun == before
        left = {row["state"] for row in await db.all("SELECT state FROM tenuto.tasks")}
        assert left == ({"waiting"} if verb == "pause" else set())


@pytest.mark.parametrize("change", [{"max_active": 1}, {"enabled": False}], ids=["a lower cap", "switched off"])
async def test_a_change_of_a_group_holds_for_seats_that_would_have_been_handed_on(
    app: Tenuto, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(engine, "_AHEAD_AT_MOST", 60)  # else what stands by goes back by itself after a second
    running, begun, gate = Running(), list[int](), asyncio.Event()
    loop = asyncio.get_running_loop()
    gate.set()

    @app.job
    async def quick(number: int) -> None:
        async with running:
            begun.append(running.now)
            if not gate.is_set():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), loop))

    made = app.manifest("quick", quick, group="reports")
    await app.manifests.deploy()
    await app.manifests.change_group("reports", max_active=8)
    await app.bulk_enqueue(made, [{"number": number} for number in range(5000)])
    async with app.worker(slots=20, poll_seconds=60) as worker:
        await eventually(lambda: worker._seats.count > 16, 30)
        gate.clear()
        await eventually(lambda: running.now == 8)
        before = len(begun)
        assert worker._seats.count > 0
        await app.manifests.change_group("reports", **change)
        await eventually(lambda: worker._seats.count == 0, what="it goes back")
        gate.set()
        if most := change.get("max_active", 0):
            await eventually(lambda: len(begun) > before + 20)
        else:
            db = await app.open()
            await eventually(lambda: db.value("SELECT NOT EXISTS (SELECT FROM tenuto.tasks WHERE state = 'running')"))
    assert max(begun[before:], default=0) == most


async def test_a_worker_whose_limited_work_is_blocked_does_not_ask_again_and_again(
    app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, gate = 0, asyncio.Event()
    loop = asyncio.get_running_loop()
    claim = store.claim_under_limits

    async def counted(*given: Any, **options: Any) -> Any:
        nonlocal claims
        claims += 1
        return await claim(*given, **options)

    @app.job
    async def plain() -> None: ...

    @app.job(limit=1)
    async def lone() -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), loop))

    monkeypatch.setattr(store, "claim_under_limits", counted)
    async with app.worker(slots=10, poll_seconds=60) as worker:
        await app.enqueue(plain)  # fewer than it asked for: it is going to look back
        await eventually(lambda: worker.finished == 1)
        await app.enqueue(lone)
        await app.enqueue(lone)
        await eventually(lambda: len(worker._held) == 1)
        worker._look_back()
        before = claims
        await asyncio.sleep(0.3)
        assert claims - before < 10
        gate.set()
        await eventually(lambda: worker.finished == 3)
