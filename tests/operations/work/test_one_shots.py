"""One-shots (O1–O6): create, list, run on time, cancel one and cancel all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tenuto import Actor, Context, RetryPolicy, Tenuto
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.model.work.one_shots import AttemptError, OneShotStatus
from tenuto.settings import load_settings
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

ANA = Actor.user("u-17", "Ana")
FAR = "2056-11-16T12:00:00+08:00"
CLOCK_TOLERANCE = timedelta(seconds=2)
"""Maximum lag of a worker's clock behind the database clock."""

Query = Callable[..., Awaitable[list[dict[str, Any]]]]


def from_now(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def list_ids(app: Tenuto) -> list[UUID]:
    return [each.id for each in await app.one_shots.list(limit=1000)]


async def wait_until_ended(app: Tenuto, id: UUID) -> OneShotStatus:
    """Return the status of a one-shot after its end."""

    async def load_ended() -> OneShotStatus | None:
        found = await app.one_shots.status(id, history=True)
        return found if found.ended_at is not None else None

    found: OneShotStatus = await eventually(load_ended)
    return found


@pytest.fixture
def jobs(app: Tenuto) -> Tenuto:
    """An app with the jobs bread.bake, bread.burn and bread.rest."""

    @app.job(name="bread.bake", tags=["kitchen"], timeout="20s")
    async def bake(loaves: int, oven: str = "big") -> str:
        return f"{loaves} loaves from the {oven} oven"

    @app.job(name="bread.burn")
    async def burn(ctx: Context) -> None:
        raise ValueError(f"burnt at attempt {ctx.attempt}")

    @app.job(name="bread.rest")
    async def rest() -> None:
        await asyncio.sleep(60)

    return app


@pytest.mark.slow
async def test_one_shot_runs_within_a_second_and_has_a_history(jobs: Tenuto, worker: WorkerFactory) -> None:
    for _ in range(3):
        if await runs_within_a_second(jobs, worker):
            return
    raise AssertionError("none of three started within a second")  # a stalled machine may delay one


async def runs_within_a_second(jobs: Tenuto, worker: WorkerFactory) -> bool:
    """Return whether the one-shot started in time; assert everything else."""
    async with worker():
        at = from_now(2.5)
        made = await jobs.acting_as(ANA).one_shots.create(at, "bread.bake", {"loaves": 3}, tags=["order-7"])
        waiting = await jobs.one_shots.status(made.id)
        assert (waiting.runtime_status, waiting.exec_at, waiting.created_by) == ("Pending", at, "Ana")
        (listed,) = await jobs.one_shots.list()
        assert (listed.id, listed.prompt_type, listed.exec_at, listed.runtime_status, listed.tags) == (
            made.id, "bread.bake", at, "Pending", ["kitchen", "order-7"],
        )  # fmt: skip
        done = await wait_until_ended(jobs, made.id)
    assert (done.runtime_status, done.output) == ("Completed", "3 loaves from the big oven")
    assert done.input == {"loaves": 3, "oven": "big"}
    assert [event.event for event in done.history] == ["Created", "Scheduled", "Started", "Completed"]
    assert await list_ids(jobs) == []
    past, *_ = await jobs.one_shots.list_ended()
    assert (past.id, past.runtime_status, past.exec_at) == (made.id, "Completed", at)
    assert done.started_at is not None
    assert done.started_at - at > -CLOCK_TOLERANCE
    return bool(done.started_at - at < timedelta(seconds=1))


async def test_one_shot_with_failing_handler_ends_as_failed(jobs: Tenuto, worker: WorkerFactory) -> None:
    once = await jobs.one_shots.create(from_now(-5), "bread.burn", max_attempts=1)
    again = await jobs.one_shots.create(
        from_now(-5), "bread.burn", retry=RetryPolicy(max_attempts=3, base_seconds=0), tags=["again"]
    )
    async with worker():
        first, second = await wait_until_ended(jobs, once.id), await wait_until_ended(jobs, again.id)
    assert (first.runtime_status, first.attempt_count) == ("Failed", 1)
    assert first.error == AttemptError("ValueError", "burnt at attempt 1", "error")
    assert (second.runtime_status, second.attempt_count) == ("Failed", 3)
    assert [event.event for event in second.history] == [
        "Created", "Scheduled", "Started", "Failed", "Retried", "Started", "Failed", "Retried", "Started", "Failed",
    ]  # fmt: skip
    assert second.exec_at == again.exec_at
    assert await list_ids(jobs) == []
    assert [each.id for each in await jobs.one_shots.list_ended(status="failed", tags=["again"])] == [again.id]
    assert await jobs.one_shots.list_ended(status="Completed") == []


async def test_invalid_one_shot_is_an_error_and_stores_nothing(jobs: Tenuto, sql: Query) -> None:
    create = jobs.one_shots.create
    refusals = {
        "prompt_type": create(FAR, "bread.eat"),
        "payload.loaves": create(FAR, "bread.bake", {}),
        "payload.colour": create(FAR, "bread.bake", {"loaves": 1, "colour": "brown"}),
        "payload": create(FAR, "bread.bake", [1]),  # type: ignore[arg-type]
        "exec_at": create("2056-11-16T12:00:00", "bread.bake", {"loaves": 1}),
        "tags": create(FAR, "bread.bake", {"loaves": 1}, tags=["x" * 65]),
        "timeout": create(FAR, "bread.bake", {"loaves": 1}, timeout=-1),
        "search": jobs.one_shots.list(search=""),
        "limit": jobs.one_shots.list(limit=0),
        "status": jobs.one_shots.list(status="Asleep"),
        "since": jobs.one_shots.list(since=from_now(0).replace(tzinfo=None)),
    }
    for field, attempted in refusals.items():
        with pytest.raises(Invalid) as refusal:
            await attempted
        assert refusal.value.field == field
    with raises_code("value.nul_character", Invalid):
        await create(FAR, "bread.bake", {"loaves": 1, "oven": "\0"})
    # callers that may run jobs must not be able to run programs
    for kind in ("executable", "powershell", "sql", "schedule", "job"):
        with raises_code("one_shot.prompt_type.unknown", Invalid):
            await create(FAR, kind, {})
    assert await sql("SELECT id FROM tenuto.tasks") == []


async def test_one_shot_with_same_id_is_created_once_even_after_its_end(jobs: Tenuto, worker: WorkerFactory) -> None:
    id = new_id()
    made = [await jobs.one_shots.create(FAR, "bread.bake", {"loaves": 1}, id=id) for _ in range(3)]
    assert [(each.id, each.created) for each in made] == [(id, True), (id, False), (id, False)]
    assert await list_ids(jobs) == [id]
    assert await jobs.one_shots.cancel(id) == "terminated"
    assert not (await jobs.one_shots.create(FAR, "bread.bake", {"loaves": 1}, id=id)).created
    assert await list_ids(jobs) == []
    other = await jobs.enqueue(jobs.jobs.get_job("bread.bake"), loaves=1)
    with raises_code("one_shot.id.in_use", Conflict):
        await jobs.one_shots.create(FAR, "bread.bake", {"loaves": 1}, id=other.id)


async def test_app_once_creates_a_one_shot_of_a_job_with_arguments(jobs: Tenuto) -> None:
    bake = jobs.jobs.get_job("bread.bake")
    made = await jobs.once(bake, at=FAR, loaves=2)
    status = await jobs.one_shots.status(made.id)
    assert (status.exec_at, status.input) == (
        datetime(2056, 11, 16, 4, 0, tzinfo=UTC), {"loaves": 2, "oven": "big"},
    )  # fmt: skip
    keyed = [await jobs.once(bake.using(unique_key="friday"), 1, at=FAR) for _ in range(2)]
    assert keyed[0].id == keyed[1].id
    assert [each.created for each in keyed] == [True, False]
    with raises_code("one_shot.exec_at.no_utc_offset", Invalid):
        await jobs.once(bake, at="2056-11-16T12:00:00", loaves=2)


async def test_cancel_ends_waiting_and_running_one_shots_only(jobs: Tenuto, worker: WorkerFactory) -> None:
    waiting = await jobs.one_shots.create(FAR, "bread.rest")
    running = await jobs.one_shots.create(from_now(-1), "bread.rest")
    ordinary = await jobs.enqueue(jobs.jobs.get_job("bread.rest").using(delay="1h"))
    async with worker():
        await eventually(lambda: is_running(jobs, running.id))
        acting = jobs.acting_as(ANA)
        assert await acting.one_shots.cancel(waiting.id) == "terminated"
        assert await acting.one_shots.cancel(running.id) == "stopping"
        assert await list_ids(jobs) == []
        assert (await wait_until_ended(jobs, running.id)).runtime_status == "Terminated"
    for id in (waiting.id, running.id):
        status = await jobs.one_shots.status(id, history=True)
        assert (status.runtime_status, status.error) == (
            "Terminated", AttemptError("tenuto.Cancelled", "cancelled by Ana", "requested"),
        )  # fmt: skip
        assert status.history[-1].event == "Terminated"
        assert await jobs.one_shots.cancel(id) == "ended"
    for operation in (jobs.one_shots.cancel, jobs.one_shots.status):
        for id in (ordinary.id, new_id()):
            with raises_code("one_shot.not_found", NotFound):
                await operation(id)
    assert (await jobs.task(ordinary.id)).state == "scheduled"


async def is_running(app: Tenuto, id: UUID) -> bool:
    return bool((await app.one_shots.status(id)).runtime_status == "Running")


async def test_cancel_all_ends_a_thousand_one_shots_in_one_transaction(
    jobs: Tenuto, worker: WorkerFactory, sql: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tenuto.operations.work.one_shots.CANCEL_CHUNK_SIZE", 300
    )  # several statements in one transaction
    made = await asyncio.gather(
        *(jobs.one_shots.create(from_now(3600 + n % 7), "bread.bake", {"loaves": n}) for n in range(1000))
    )
    ordinary = await jobs.enqueue(jobs.jobs.get_job("bread.bake").using(delay="1h"), 1)
    rows = await jobs.one_shots.list(limit=1000)
    assert {each.id for each in rows} == {each.id for each in made}
    assert [each.run_at for each in rows] == sorted(each.run_at for each in rows)
    paged, after = [], None
    while page := await jobs.one_shots.list(limit=333, after=after):
        paged += [each.id for each in page]
        after = (page[-1].run_at, page[-1].id)
    assert paged == [each.id for each in rows]
    async with worker():
        running = await jobs.one_shots.create(from_now(-1), "bread.rest")
        await eventually(lambda: is_running(jobs, running.id))
        cancelled = await jobs.acting_as(ANA).one_shots.cancel_all()
        assert set(cancelled.terminated) == {each.id for each in made} | {running.id}
        assert len(cancelled.terminated) == 1001
        assert cancelled.stopping == [running.id]
        assert await list_ids(jobs) == []
        assert (await wait_until_ended(jobs, running.id)).runtime_status == "Terminated"
    written = await sql(
        "SELECT count(*), count(DISTINCT xmin::text) AS at_once FROM tenuto.activities WHERE claimed_at IS NULL"
    )
    assert [dict(each) for each in written] == [{"count": 1000, "at_once": 1}]
    assert (await jobs.one_shots.cancel_all()).terminated == []
    assert (await jobs.task(ordinary.id)).state == "scheduled"


async def test_failed_cancel_all_leaves_all_one_shots(
    jobs: Tenuto, sql: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.operations.work.one_shots.CANCEL_CHUNK_SIZE", 10)
    made = [await jobs.one_shots.create(FAR, "bread.bake", {"loaves": n}) for n in range(25)]
    # the activity of the last one exists already, so its end cannot be written
    await sql(
        "INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at,"
        " run_at, ended_at, fence, failures, losses, input, initiator_type, initiator_name)"
        " VALUES ($1, $1, 1, 'failed', true, 'job', 'x', 'default', 0, now(), now(), now(), 0, 0, 0, '{}',"
        " 'system', 'x')",
        made[-1].id,
    )
    with pytest.raises(Exception, match="UniqueViolation"):
        await jobs.one_shots.cancel_all()
    assert set(await list_ids(jobs)) == {each.id for each in made}


async def test_one_shot_list_filters_and_searches(jobs: Tenuto) -> None:
    create = jobs.one_shots.create
    one = (await create(from_now(100), "bread.bake", {"loaves": 1, "oven": "50% hot_"}, tags=["a", "b"])).id
    two = (await create(from_now(200), "bread.rest", tags=["b"])).id
    three = (await create(from_now(300), "bread.burn")).id
    cases: list[tuple[dict[str, Any], list[UUID]]] = [
        ({}, [one, two, three]),
        ({"tags": ["b"]}, [one, two]),
        ({"tags": ["a", "b"]}, [one]),
        ({"tags": ["c"]}, []),
        ({"prompt_type": "bread.rest"}, [two]),
        ({"status": "pending"}, [one, two, three]),
        ({"status": "Running"}, []),
        ({"search": "HOT_"}, [one]),
        ({"search": "%"}, [one]),
        ({"search": "bread.b"}, [one, three]),
        ({"search": "kitchen"}, [one]),
        ({"since": from_now(150)}, [two, three]),
        ({"since": from_now(150), "until": from_now(250)}, [two]),
        ({"limit": 2}, [one, two]),
    ]
    for filters, expected in cases:
        assert [each.id for each in await jobs.one_shots.list(**filters)] == expected, filters
    assert await jobs.one_shots.find(str(one)) == one
    with raises_code("id.prefix.ambiguous", Conflict):
        await jobs.one_shots.find(str(one)[:4])
    with raises_code("id.prefix.not_found", NotFound):
        await jobs.one_shots.find("ffffffff")


async def test_one_shot_in_the_past_is_an_error_if_configured(url: str, tmp_path: Path) -> None:
    async with Tenuto(settings=load_settings(database=url, home=tmp_path, past_one_shots="refuse")) as app:

        @app.job
        async def bake() -> None: ...

        with raises_code("one_shot.exec_at.in_the_past", Invalid):
            await app.one_shots.create(from_now(-60), "bake")
        with raises_code("one_shot.exec_at.in_the_past", Invalid):
            await app.once(bake, at=from_now(-60))
        await app.one_shots.create(from_now(60), "bake")
        assert len(await list_ids(app)) == 1


async def test_cancel_of_starting_one_shots_ends_each_consistently(jobs: Tenuto, worker: WorkerFactory) -> None:
    """The first one-shot certainly runs and the last one waits; each of the others may do either."""
    started: set[int] = set()
    done: set[int] = set()

    @jobs.job(name="race")
    async def race(n: int) -> None:
        started.add(n)
        await asyncio.sleep(0.005 if n else 60)
        done.add(n)

    made = [await jobs.one_shots.create(from_now(-1), "race", {"n": n}) for n in range(119)]
    made.append(await jobs.one_shots.create(FAR, "race", {"n": 119}))

    async with worker(slots=40):
        await eventually(lambda: 0 in started)
        # In reverse order, so that some have just started and others are about to start.
        results = await asyncio.gather(*(jobs.one_shots.cancel(each.id) for each in reversed(made)))
        statuses = [await wait_until_ended(jobs, each.id) for each in made]
    results.reverse()
    assert await list_ids(jobs) == []
    assert (results[0], results[-1]) == ("stopping", "terminated")
    for n, (result, status) in enumerate(zip(results, statuses, strict=True)):
        if result == "terminated":
            assert n not in started
        if result == "ended":
            assert status.runtime_status == "Completed"
        assert (n in done) == (status.runtime_status == "Completed")
        assert status.runtime_status in ("Completed", "Terminated")
        assert [str(event.event) for event in status.history].count(status.runtime_status) == 1


async def test_cancel_all_concurrent_with_creation_loses_no_one_shot(jobs: Tenuto, worker: WorkerFactory) -> None:
    made: list[UUID] = []
    cancelled: list[UUID] = []
    over = asyncio.Event()

    async def create() -> None:
        for n in range(150):
            at = FAR if n % 3 == 2 else from_now(n % 3 - 1)
            made.append((await jobs.one_shots.create(at, "bread.bake", {"loaves": n})).id)
        over.set()

    async def cancel_all() -> None:
        while not over.is_set():
            cancelled.extend((await jobs.one_shots.cancel_all()).terminated)

    async with worker(slots=20):
        await asyncio.gather(create(), cancel_all(), cancel_all())
        cancelled.extend((await jobs.one_shots.cancel_all()).terminated)
        statuses = {id: await wait_until_ended(jobs, id) for id in made}
    assert len(cancelled) == len(set(cancelled))
    assert await list_ids(jobs) == []
    terminated = {id for id, status in statuses.items() if status.runtime_status == "Terminated"}
    assert set(made[2::3]) <= terminated <= set(cancelled)
    assert {status.runtime_status for status in statuses.values()} <= {"Completed", "Terminated"}


async def test_one_shot_of_a_job_is_retried_as_the_job_declares(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=0))
    async def flaky(ctx: Context) -> int:
        if ctx.task.attempt == 1:
            raise ConnectionError("not yet")
        return ctx.task.attempt

    created = await app.one_shots.create(from_now(-5), "flaky")
    async with worker():
        status = await wait_until_ended(app, created.id)
    assert (status.runtime_status, status.output, status.attempt_count) == ("Completed", 2, 2)
