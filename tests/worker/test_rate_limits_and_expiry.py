"""Rate limits and expiry as a program sees them: options of jobs, queues and manifests; `why`; outcomes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest

from tenuto import RetryLater, RetryPolicy, Step, Tenuto, manual
from tenuto.diagnostics.reasons import ReasonCode
from tenuto.errors import Invalid
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


async def test_job_with_a_rate_limit_starts_one_task_per_token(app: Tenuto, worker: WorkerFactory) -> None:
    started = []

    @app.job(rate_limit="20/s")
    async def call(n: int) -> None:
        started.append(n)

    async with worker():
        await app.enqueue_many(call, range(12))
        await eventually(lambda: len(started) == 12, timeout=20)
    instants = sorted(each.claimed_at for each in await app.activities(limit=50) if each.claimed_at is not None)
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    assert min(gaps) >= timedelta(milliseconds=50)


async def test_rate_limit_of_a_job_holds_for_its_tasks_steps_and_manifest_runs_together(
    app: Tenuto, worker: WorkerFactory
) -> None:
    @app.job(rate_limit="20/s")
    async def call(n: int = 0) -> None: ...

    @app.job
    async def prepare() -> None: ...

    steps: list[Step | list[Step]] = [
        Step.job(prepare),
        [Step.job(call, n, name=f"call {n}") for n in range(4)],
        Step.job(call, 5),
    ]
    app.schedule("Nightly", manual(), steps)
    manifest = app.manifest("load", call, on_demand=True)
    app.manifest("single", call)
    async with worker(), worker():
        started = await app.schedules.run("Nightly")
        await app.bulk_enqueue(manifest, [{"n": n} for n in range(4)])
        await app.manifests.run("single")
        await app.enqueue_many(call, range(4))
        assert started.execution_id is not None
        execution = await app.executions.wait(started.execution_id, timeout=30)
        assert execution.state == "completed"
        await eventually(lambda: _all_ended(app), timeout=30)
    attempts = await app.activities(name="call", limit=50)
    assert len(attempts) == 14
    instants = sorted(each.claimed_at for each in attempts if each.claimed_at is not None)
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    assert min(gaps) >= timedelta(milliseconds=50)


async def test_step_of_a_job_with_expiry_fails_its_execution(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def extract() -> None: ...

    @app.job(expires_in="0.3s", queue="slow")
    async def alert() -> None: ...

    app.schedule("Alerts", manual(), [Step.job(extract), Step.job(alert), Step.job(extract, name="after")])
    async with worker(queues=("default",), poll_seconds=0.2):
        started = await app.schedules.run("Alerts")
        assert started.execution_id is not None
        record = await app.executions.wait(started.execution_id, timeout=20)
    assert record.state == "failed"
    assert record.error is not None
    assert "'alert' expired before it started" in record.error
    attempts = {each.name: each for each in await app.activities(limit=10)}
    assert (attempts["alert"].state, attempts["alert"].reason) == ("cancelled", "expired")


async def test_why_names_the_rate_limit_and_the_next_token(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(rate_limit="2/h", rate_key="mail")
    async def send() -> None: ...

    first, second = await app.enqueue(send), await app.enqueue(send)
    async with worker():
        await app.wait(first, timeout=20)
        (reason,) = (await app.why(second)).reasons
    assert reason.code is ReasonCode.RATE_LIMIT
    assert "tasks with the rate key mail may start 2 per hour; the next token comes at" in reason.message
    assert reason.ends_at is not None


async def test_task_that_expires_in_the_queue_ends_as_expired(app: Tenuto, worker: WorkerFactory) -> None:
    ran = []

    @app.job(expires_in="0.2s", queue="slow")
    async def late() -> None:
        ran.append(1)

    task = await app.enqueue(late)
    (reason, *_) = [each for each in (await app.why(task)).reasons if each.code is ReasonCode.EXPIRES]
    assert "it expires at" in reason.message
    async with worker(queues=("default",)):  # any worker ends it, also one that does not serve its queue
        record = await app.wait(task, timeout=20)
    assert (record.state, record.reason, record.started_at) == ("cancelled", "expired", None)
    assert ran == []
    assert not await app.dead_letters.list()
    (ended,) = (await app.why(task)).reasons
    assert ended.code is ReasonCode.ENDED
    assert "expired" in ended.message


async def test_task_that_expires_while_it_waits_for_a_retry_is_not_started_again(
    app: Tenuto, worker: WorkerFactory
) -> None:
    attempts = []

    @app.job(expires_in="0.6s", retry=RetryPolicy(base_seconds=60, jitter=0))
    async def failing() -> None:
        attempts.append(1)
        raise ConnectionError

    async with worker():
        task = await app.enqueue(failing)
        await eventually(lambda: len(attempts) == 1)
        record = await app.wait(task, timeout=20)
    assert (record.state, record.reason, record.attempt) == ("cancelled", "expired", 2)
    assert len(attempts) == 1
    assert not await app.dead_letters.list()


async def test_running_task_does_not_expire(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(expires_in="0.3s")
    async def long() -> str:
        await asyncio.sleep(0.9)
        return "done"

    async with worker():
        task = await app.enqueue(long)
        record = await app.wait(task, timeout=20)
    assert (record.state, record.output) == ("completed", "done")


async def test_expiry_counts_from_the_earliest_start(app: Tenuto) -> None:
    @app.job
    async def later() -> None: ...

    task = await app.enqueue(later.using(delay="1h", expires_in="10m"))
    database = await app._open()
    row = await database.fetch_one("SELECT run_at, expires_at FROM tenuto.tasks WHERE id = $1", task.id)
    assert row is not None
    assert row["expires_at"] - row["run_at"] == timedelta(minutes=10)


async def test_items_and_runs_of_a_manifest_expire(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(queue="slow")
    async def load(n: int = 0) -> None: ...

    manifest = app.manifest("load", load, on_demand=True, expires_in="0.2s")
    await app.manifests.deploy()
    await app.bulk_enqueue(manifest, [{"n": n} for n in range(3)])
    async with worker(queues=("default",)):
        await eventually(lambda: _all_ended(app), timeout=20)
    assert [each.reason for each in await app.activities(limit=10)] == ["expired"] * 3
    assert not await app.dead_letters.list()


async def _all_ended(app: Tenuto) -> bool:
    return not await app.tasks()


async def test_expiry_of_a_one_shot_counts_from_its_instant(app: Tenuto) -> None:
    @app.job
    async def ping() -> None: ...

    made = await app.one_shots.create("2131-01-01T00:00:00Z", "ping", expires_in="1h")
    database = await app._open()
    row = await database.fetch_one("SELECT run_at, expires_at FROM tenuto.tasks WHERE id = $1", made.id)
    assert row is not None
    assert row["expires_at"] - row["run_at"] == timedelta(hours=1)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"rate_limit": "fast"}, "rate_limit.text.invalid"),
        ({"rate_key": "k"}, "task.rate_limit.incomplete"),
        ({"expires_in": 0}, "task.expires_in.out_of_range"),
        ({"expires_in": "1h", "expires_at": "2131-01-01T00:00:00Z"}, "task.expires_at.conflict"),
        ({"run_at": "2131-01-02T00:00:00Z", "expires_at": "2131-01-01T00:00:00Z"}, "task.expires_at.before_run_at"),
        ({"expires_at": "2131-01-01T00:00:00"}, "value.instant.no_utc_offset"),
    ],
)
async def test_bad_option_is_refused(app: Tenuto, options: dict[str, object], code: str) -> None:
    @app.job
    async def ping() -> None: ...

    with raises_code(code, Invalid):
        ping.using(**options)  # type: ignore[arg-type]


async def test_rate_of_a_group_of_manifests_applies_to_its_runs(app: Tenuto, worker: WorkerFactory) -> None:
    started = []

    @app.job
    async def load(n: int) -> None:
        started.append(n)

    manifest = app.manifest("load", load, on_demand=True, group="imports")
    await app.manifests.deploy()
    await app.manifests.change_group("imports", rate_limit="4/h burst 2")
    await app.bulk_enqueue(manifest, [{"n": n} for n in range(5)])
    async with worker():
        await eventually(lambda: len(started) == 2)
        (waiting, *_) = [task for task in await app.tasks() if task.state != "running"]
        codes = [each.code for each in (await app.why(waiting.id)).reasons]
        assert codes == [ReasonCode.RATE_LIMIT]
        await app.manifests.change_group("imports", rate_limit=None)
        await eventually(lambda: len(started) == 5, timeout=20)


async def test_deferred_task_does_not_keep_its_token(app: Tenuto, worker: WorkerFactory) -> None:
    calls = []

    @app.job(rate_limit="10/s")
    async def again() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RetryLater("again", after=0)

    async with worker():
        task = await app.enqueue(again)
        record = await app.wait(task, timeout=20)
    assert (record.state, len(calls)) == ("completed", 2)
