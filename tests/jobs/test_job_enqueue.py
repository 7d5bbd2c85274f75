"""`job.enqueue` and typed results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from tenuto import Context, Enqueued, PermanentFailure, Record, Tenuto
from tenuto.errors import Invalid
from tenuto.jobs.registry import Job, JobWithContext, TaskOptions
from tenuto.model.definitions.policies import TaskPolicy
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory


@dataclass
class Report:
    names: list[str]
    count: int


class Answer(BaseModel):
    text: str


async def test_job_enqueues_its_own_tasks(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def double(n: int) -> int:
        return 2 * n

    async with worker():
        task = await double.enqueue(3)
        record = await app.wait(task, timeout=10)
    assert isinstance(task, Enqueued)
    assert isinstance(record, Record)
    assert (record.state, record.output, record.task_id) == ("completed", 6, task.id)


async def test_job_enqueues_with_options(app: Tenuto) -> None:
    @app.job
    async def double(n: int) -> int:
        return 2 * n

    job = double.using(queue="mail", priority=4, unique_key="one", delay="1h")
    first, second = await job.enqueue(3), await job.enqueue(n=4)
    stored = await app.task(first)
    assert second == Enqueued(first.id, created=False)
    assert (stored.queue, stored.priority, stored.unique_key, stored.input) == ("mail", 4, "one", {"n": 3})
    with pytest.raises(Invalid, match="the argument n is missing"):
        await double.enqueue()  # type: ignore[call-overload]


async def test_job_with_context_first_is_enqueued_without_it(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(max_attempts=2)
    async def describe(ctx: Context, n: int) -> str:
        return f"{n} at attempt {ctx.attempt}"

    assert isinstance(describe, JobWithContext)
    async with worker():
        assert (await app.wait(await describe.enqueue(7), timeout=10)).output == "7 at attempt 1"
    assert await describe(fake_context(attempt=3), 8) == "8 at attempt 3"


def fake_context(attempt: int) -> Any:
    class Fake:
        pass

    fake = Fake()
    fake.attempt = attempt  # type: ignore[attr-defined]
    return fake


async def test_result_has_the_type_that_the_job_returns(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def report() -> Report:
        return Report(["a"], 1)

    @app.job
    def answer() -> list[Answer]:
        return [Answer(text="yes")]

    async with worker():
        task = await report.enqueue()
        assert (await app.wait(task, timeout=10)).output == Report(["a"], 1)
        assert (await app.wait(task.id, timeout=10)).output == {"names": ["a"], "count": 1}, "plain data for an id"
        assert (await app.wait(await answer.enqueue(), timeout=10)).output == [Answer(text="yes")]


async def test_result_of_an_older_version_stays_plain_data(app: Tenuto) -> None:
    @app.job
    async def report() -> Report:
        return Report(["a"], 1)

    assert report.load_output({"title": "stored by an older version"}) == {"title": "stored by an older version"}


async def test_output_of_a_failed_task_is_none(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def fails() -> int:
        raise PermanentFailure("no")

    async with worker():
        record = await app.wait(await fails.enqueue(), timeout=10)
    output: Any = record.output
    assert (record.state, output) == ("failed", None)


async def test_job_without_an_app_cannot_be_enqueued() -> None:
    def alone() -> None: ...

    job = Job(alone, "alone", TaskPolicy(), TaskOptions(), isolated=False)
    with raises_code("job.not_registered"):
        await job.enqueue()
