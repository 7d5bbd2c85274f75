"""Seats under a limit go from one task to the next within a worker; nobody ever sees one too many."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from tenuto import RetryPolicy, Tenuto
from tenuto.engine.seats import KEPT_FOR, OPEN_FOR, Seats, heirs, seated
from tenuto.handlers.attempts import Attempt, Stop
from tenuto.handlers.context import Context
from tenuto.model.tasks import Outcome, Settlement, Status
from tests.model.making import a_held_task
from tests.waiting import eventually

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
    gate = asyncio.Event()

    @app.job(limit=MOST)
    async def quick() -> None:
        pass

    @app.job(limit_key="job:quick", limit=MOST)
    async def long() -> None:
        await gate.wait()

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


def test_seats_go_round_every_now_and_then(attempts: list[Attempt]) -> None:
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
