"""One-shots (O1–O6): created, found, run on time, stopped, wiped; the registry is what the tasks are."""

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
from tenuto.settings import load
from tests.support.engine_fixtures import Quick
from tests.support.waiting import eventually

ANA = Actor.user("u-17", "Ana")
FAR = "2056-11-16T12:00:00+08:00"
A_MOMENT = timedelta(seconds=2)
"""By so much the clock of a worker may be behind the database's: as long as it took to hear of it."""

Ask = Callable[..., Awaitable[list[dict[str, Any]]]]


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def registry(app: Tenuto) -> list[UUID]:
    return [each["id"] for each in await app.one_shots.list(limit=1000)]


async def ended(app: Tenuto, id: UUID) -> dict[str, Any]:
    """Its status, once it has ended."""

    async def look() -> dict[str, Any] | None:
        found = await app.one_shots.status(id, history=True)
        return found if found["ended_at"] is not None else None

    found: dict[str, Any] = await eventually(look)
    return found


@pytest.fixture
def jobs(app: Tenuto) -> Tenuto:
    """Jobs to ask for."""

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


async def test_a_one_shot_waits_in_the_registry_runs_within_a_second_and_leaves_its_story(
    jobs: Tenuto, worker: Quick
) -> None:
    for _ in range(3):
        if await runs_within_a_second(jobs, worker):
            return
    raise AssertionError("none of three began within a second")  # a machine that stands still may spoil one


async def runs_within_a_second(jobs: Tenuto, worker: Quick) -> bool:
    """Whether it has begun in time; all else is checked."""
    async with worker():
        with jobs.acting_as(ANA):
            at = soon(2.5)
            made = await jobs.one_shots.create(at, "bread.bake", {"loaves": 3}, tags=["order-7"])
        waiting = await jobs.one_shots.status(made.id)
        assert (waiting["status"], waiting["exec_at"], waiting["created_by"]) == ("Pending", at, "Ana")
        (listed,) = await jobs.one_shots.list()
        assert (listed["id"], listed["name"], listed["exec_at"], listed["status"], listed["tags"]) == (
            made.id, "bread.bake", at, "Pending", ["kitchen", "order-7"],
        )  # fmt: skip
        done = await ended(jobs, made.id)
    assert (done["status"], done["output"]) == ("Completed", "3 loaves from the big oven")
    assert done["input"] == {"loaves": 3, "oven": "big"}
    assert [event["event"] for event in done["history"]] == ["Created", "Scheduled", "Started", "Completed"]
    assert await registry(jobs) == []
    past, *_ = await jobs.one_shots.past()
    assert (past["id"], past["status"], past["exec_at"]) == (made.id, "Completed", at)
    assert done["started_at"] - at > -A_MOMENT
    return bool(done["started_at"] - at < timedelta(seconds=1))


async def test_a_failing_handler_ends_the_one_shot_and_its_outcome_says_so(jobs: Tenuto, worker: Quick) -> None:
    once = await jobs.one_shots.create(soon(-5), "bread.burn")
    again = await jobs.one_shots.create(
        soon(-5), "bread.burn", retry=RetryPolicy(max_retries=3, base_seconds=0), tags=["again"]
    )
    async with worker():
        first, second = await ended(jobs, once.id), await ended(jobs, again.id)
    assert (first["status"], first["attempts"]) == ("Failed", 1)
    assert first["error"] == {"type": "ValueError", "message": "burnt at attempt 1", "reason": "error"}
    assert (second["status"], second["attempts"]) == ("Failed", 3)
    assert [event["event"] for event in second["history"]] == [
        "Created", "Scheduled", "Started", "Failed", "Retried", "Started", "Failed", "Retried", "Started", "Failed",
    ]  # fmt: skip
    assert second["exec_at"] == again.exec_at
    assert await registry(jobs) == []
    assert [each["id"] for each in await jobs.one_shots.past(status="failed", tags=["again"])] == [again.id]
    assert await jobs.one_shots.past(status="Completed") == []


async def test_what_cannot_be_done_is_refused_by_name_before_anything_is_kept(jobs: Tenuto, sql: Ask) -> None:
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
        "since": jobs.one_shots.list(since=soon(0).replace(tzinfo=None)),
    }
    for field, attempted in refusals.items():
        with pytest.raises(Invalid) as refusal:
            await attempted
        assert refusal.value.field == field
    with pytest.raises(Invalid, match="payload: contains a NUL"):
        await create(FAR, "bread.bake", {"loaves": 1, "oven": "\0"})
    # nor may anybody run programs this way who may only have jobs run
    for kind in ("executable", "powershell", "sql", "schedule", "job"):
        with pytest.raises(Invalid, match="prompt_type"):
            await create(FAR, kind, {})
    assert await sql("SELECT id FROM tenuto.tasks") == []


async def test_the_same_id_is_the_same_one_shot_also_after_it_has_ended(jobs: Tenuto, worker: Quick) -> None:
    id = new_id()
    made = [await jobs.one_shots.create(FAR, "bread.bake", {"loaves": 1}, id=id) for _ in range(3)]
    assert [(each.id, each.created) for each in made] == [(id, True), (id, False), (id, False)]
    assert await registry(jobs) == [id]
    assert await jobs.one_shots.cancel(id) == "terminated"
    assert not (await jobs.one_shots.create(FAR, "bread.bake", {"loaves": 1}, id=id)).created
    assert await registry(jobs) == []
    other = await jobs.enqueue(jobs.jobs.get("bread.bake"), loaves=1)
    with pytest.raises(Conflict, match="something else"):
        await jobs.one_shots.create(FAR, "bread.bake", {"loaves": 1}, id=other.id)


async def test_code_asks_with_a_job_and_its_arguments(jobs: Tenuto) -> None:
    bake = jobs.jobs.get("bread.bake")
    made = await jobs.once(bake, at=FAR, loaves=2)
    status = await jobs.one_shots.status(made.id)
    assert (status["exec_at"], status["input"]) == (
        datetime(2056, 11, 16, 4, 0, tzinfo=UTC), {"loaves": 2, "oven": "big"},
    )  # fmt: skip
    keyed = [await jobs.once(bake.using(key="friday"), 1, at=FAR) for _ in range(2)]
    assert keyed[0].id == keyed[1].id
    assert [each.created for each in keyed] == [True, False]
    with pytest.raises(Invalid, match=r"at: .* has no offset"):
        await jobs.once(bake, at="2056-11-16T12:00:00", loaves=2)


async def test_deleting_stops_what_waits_and_what_runs_and_only_one_shots(jobs: Tenuto, worker: Quick) -> None:
    waiting = await jobs.one_shots.create(FAR, "bread.rest")
    running = await jobs.one_shots.create(soon(-1), "bread.rest")
    ordinary = await jobs.enqueue(jobs.jobs.get("bread.rest").using(delay="1h"))
    async with worker():
        await eventually(lambda: is_running(jobs, running.id))
        with jobs.acting_as(ANA):
            assert await jobs.one_shots.cancel(waiting.id) == "terminated"
            assert await jobs.one_shots.cancel(running.id) == "stopping"
        assert await registry(jobs) == []
        assert (await ended(jobs, running.id))["status"] == "Terminated"
    for id in (waiting.id, running.id):
        told = await jobs.one_shots.status(id, history=True)
        assert (told["status"], told["error"]["message"]) == ("Terminated", "cancelled by Ana")
        assert told["history"][-1]["event"] == "Terminated"
        assert await jobs.one_shots.cancel(id) == "ended"
    for verb in (jobs.one_shots.cancel, jobs.one_shots.status):
        for id in (ordinary.id, new_id()):
            with pytest.raises(NotFound):
                await verb(id)
    assert (await jobs.task(ordinary.id))["state"] == "scheduled"


async def is_running(app: Tenuto, id: UUID) -> bool:
    return bool((await app.one_shots.status(id))["status"] == "Running")


async def test_a_thousand_created_at_once_are_all_listed_and_wiped_in_one_go(
    jobs: Tenuto, worker: Quick, sql: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.operations.one_shots.SOME", 300)  # several rounds within the one transaction
    made = await asyncio.gather(
        *(jobs.one_shots.create(soon(3600 + n % 7), "bread.bake", {"loaves": n}) for n in range(1000))
    )
    ordinary = await jobs.enqueue(jobs.jobs.get("bread.bake").using(delay="1h"), 1)
    rows = await jobs.one_shots.list(limit=1000)
    assert {each["id"] for each in rows} == {each.id for each in made}
    assert [each["run_at"] for each in rows] == sorted(each["run_at"] for each in rows)
    paged, after = [], None
    while page := await jobs.one_shots.list(limit=333, after=after):
        paged += [each["id"] for each in page]
        after = (page[-1]["run_at"], page[-1]["id"])
    assert paged == [each["id"] for each in rows]
    async with worker():
        running = await jobs.one_shots.create(soon(-1), "bread.rest")
        await eventually(lambda: is_running(jobs, running.id))
        with jobs.acting_as(ANA):
            wiped = await jobs.one_shots.wipe()
        assert set(wiped.terminated) == {each.id for each in made} | {running.id}
        assert len(wiped.terminated) == 1001
        assert wiped.stopping == [running.id]
        assert await registry(jobs) == []
        assert (await ended(jobs, running.id))["status"] == "Terminated"
    written = await sql(
        "SELECT count(*), count(DISTINCT xmin::text) AS at_once FROM tenuto.activities WHERE claimed_at IS NULL"
    )
    assert [dict(each) for each in written] == [{"count": 1000, "at_once": 1}]
    assert (await jobs.one_shots.wipe()).terminated == []
    assert (await jobs.task(ordinary.id))["state"] == "scheduled"


async def test_a_wipe_that_fails_leaves_every_one_of_them(
    jobs: Tenuto, sql: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.operations.one_shots.SOME", 10)
    made = [await jobs.one_shots.create(FAR, "bread.bake", {"loaves": n}) for n in range(25)]
    # a record of the last one is there already: the end of that one cannot be written
    await sql(
        "INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at,"
        " run_at, ended_at, fence, failures, losses, input, initiator_type, initiator_name)"
        " VALUES ($1, $1, 1, 'failed', true, 'job', 'x', 'default', 0, now(), now(), now(), 0, 0, 0, '{}',"
        " 'system', 'x')",
        made[-1].id,
    )
    with pytest.raises(Exception, match="UniqueViolation"):
        await jobs.one_shots.wipe()
    assert set(await registry(jobs)) == {each.id for each in made}


async def test_search_and_filters_narrow_the_registry(jobs: Tenuto) -> None:
    create = jobs.one_shots.create
    one = (await create(soon(100), "bread.bake", {"loaves": 1, "oven": "50% hot_"}, tags=["a", "b"])).id
    two = (await create(soon(200), "bread.rest", tags=["b"])).id
    three = (await create(soon(300), "bread.burn")).id
    asked: list[tuple[dict[str, Any], list[UUID]]] = [
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
        ({"since": soon(150)}, [two, three]),
        ({"since": soon(150), "until": soon(250)}, [two]),
        ({"limit": 2}, [one, two]),
    ]
    for filters, expected in asked:
        assert [each["id"] for each in await jobs.one_shots.list(**filters)] == expected, filters
    assert await jobs.one_shots.find(str(one)) == one
    with pytest.raises(Conflict, match="several"):
        await jobs.one_shots.find(str(one)[:4])
    with pytest.raises(NotFound):
        await jobs.one_shots.find("ffffffff")


async def test_what_has_passed_is_refused_where_that_is_the_rule(url: str, tmp_path: Path) -> None:
    async with Tenuto(settings=load(database=url, home=tmp_path, one_shots_in_the_past="refuse")) as app:

        @app.job
        async def bake() -> None: ...

        with pytest.raises(Invalid, match=r"exec_at: .* has passed"):
            await app.one_shots.create(soon(-60), "bake")
        with pytest.raises(Invalid, match=r"at: .* has passed"):
            await app.once(bake, at=soon(-60))
        await app.one_shots.create(soon(60), "bake")
        assert len(await registry(app)) == 1


async def test_deleting_while_they_start_leaves_none_running_and_none_in_between(jobs: Tenuto, worker: Quick) -> None:
    """The first surely runs, the last surely waits; of those between, each may do either."""
    begun: set[int] = set()
    done: set[int] = set()

    @jobs.job(name="race")
    async def race(n: int) -> None:
        begun.add(n)
        await asyncio.sleep(0.005 if n else 60)
        done.add(n)

    made = [await jobs.one_shots.create(soon(-1), "race", {"n": n}) for n in range(119)]
    made.append(await jobs.one_shots.create(FAR, "race", {"n": 119}))

    async with worker(slots=40):
        await eventually(lambda: 0 in begun)
        # The last to be made first: those that have just begun meet their end, and so do those that are about to.
        answers = await asyncio.gather(*(jobs.one_shots.cancel(each.id) for each in reversed(made)))
        stories = [await ended(jobs, each.id) for each in made]
    answers.reverse()
    assert await registry(jobs) == []
    assert (answers[0], answers[-1]) == ("stopping", "terminated")
    for n, (answer, story) in enumerate(zip(answers, stories, strict=True)):
        if answer == "terminated":
            assert n not in begun
        if answer == "ended":
            assert story["status"] == "Completed"
        assert (n in done) == (story["status"] == "Completed")
        assert story["status"] in ("Completed", "Terminated")
        assert [event["event"] for event in story["history"]].count(story["status"]) == 1


async def test_wiping_while_they_are_made_and_started_loses_none(jobs: Tenuto, worker: Quick) -> None:
    made: list[UUID] = []
    wiped: list[UUID] = []
    over = asyncio.Event()

    async def make() -> None:
        for n in range(150):
            at = FAR if n % 3 == 2 else soon(n % 3 - 1)
            made.append((await jobs.one_shots.create(at, "bread.bake", {"loaves": n})).id)
        over.set()

    async def wipe() -> None:
        while not over.is_set():
            wiped.extend((await jobs.one_shots.wipe()).terminated)

    async with worker(slots=20):
        await asyncio.gather(make(), wipe(), wipe())
        wiped.extend((await jobs.one_shots.wipe()).terminated)
        stories = {id: await ended(jobs, id) for id in made}
    assert len(wiped) == len(set(wiped))
    assert await registry(jobs) == []
    terminated = {id for id, story in stories.items() if story["status"] == "Terminated"}
    assert set(made[2::3]) <= terminated <= set(wiped)
    assert {story["status"] for story in stories.values()} <= {"Completed", "Terminated"}
