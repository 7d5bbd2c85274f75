"""Frequent mistakes of programmers get an error of Tenuto that names the mistake, never an accident of Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tenuto
from tenuto import Enqueued, Step, Tenuto, cron, manual
from tenuto.errors import Invalid, NotFound
from tenuto.ids import new_id
from tests.support.errors import raises_code


def plain(n: int = 1) -> int:
    return n


async def called() -> None: ...


async def settle(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


@pytest.mark.parametrize(
    "use",
    [
        lambda app, job: app.enqueue(job, 1),
        lambda app, job: app.enqueue_json(job, "{}"),
        lambda app, job: app.enqueue_many(job, [1]),
        lambda app, job: app.once(job, at="2100-01-01T00:00:00Z"),
        lambda app, job: app.enqueue_within(None, job, 1),
        lambda app, job: app.manifest("nightly", job),
        lambda app, job: Step.job(job),
    ],
)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: plain, ["plain() is not a job", "@app.job"]),
        (lambda: "plain", ["'plain'", "not a job"]),
        (called, ["was called"]),
        (lambda: 3, ["3 is not a job"]),
    ],
    ids=["plain function", "name", "called job", "number"],
)
async def test_error_names_what_was_given_instead_of_a_job(
    app: Tenuto, use: Callable[..., Any], given: Callable[[], Any], words: list[str]
) -> None:
    with raises_code("job.type.invalid") as caught:
        await settle(use(app, given()))
    assert all(word in str(caught.value) for word in words), str(caught.value)


async def test_bulk_enqueue_of_a_job_names_the_operation_for_jobs(app: Tenuto) -> None:
    @app.job
    def add(n: int) -> None: ...

    with raises_code("manifest.type.invalid") as caught:
        await app.bulk_enqueue(add, [1])  # type: ignore[arg-type]
    assert "enqueue_many" in str(caught.value)


OPERATIONS_WITH_IDS: list[Callable[[Tenuto, Any], Any]] = [
    lambda app, id: app.wait(id),
    lambda app, id: app.task(id),
    lambda app, id: app.attempts(id),
    lambda app, id: app.chain_steps(id),
    lambda app, id: app.why(id),
    lambda app, id: app.cancel(id),
    lambda app, id: app.activity(id),
    lambda app, id: app.children(id),
    lambda app, id: app.executions.get(id),
    lambda app, id: app.executions.wait(id),
    lambda app, id: app.executions.why(id),
    lambda app, id: app.executions.cancel(id),
    lambda app, id: app.batches.get(id),
    lambda app, id: app.dead_letters.get(id),
]


@pytest.mark.parametrize("use", OPERATIONS_WITH_IDS)
async def test_error_names_the_text_that_is_not_an_id(app: Tenuto, use: Callable[..., Any]) -> None:
    with raises_code("id.invalid") as caught:
        await use(app, "abc")
    assert "'abc'" in str(caught.value)


@pytest.mark.parametrize("use", OPERATIONS_WITH_IDS)
async def test_error_asks_for_a_forgotten_await(app: Tenuto, use: Callable[..., Any]) -> None:
    coroutine = called()
    with raises_code("id.invalid") as caught:
        await use(app, coroutine)
    coroutine.close()
    assert "await" in str(caught.value)


async def test_task_operations_accept_the_result_of_enqueue_and_the_text_of_an_id(app: Tenuto) -> None:
    @app.job
    def add(n: int) -> None: ...

    task = await app.enqueue(add.using(delay="1h"), 1)
    for given in (task, task.id, str(task.id)):
        assert (await app.task(given)).id == task.id  # type: ignore[arg-type]
        assert (await app.why(given)).id == task.id  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await app.task(Enqueued(new_id()))
    assert await app.cancel(task) == "cancelled"


@pytest.mark.parametrize("use", [lambda app, id: app.wait(id, "soon"), lambda app, id: app.executions.wait(id, "soon")])
async def test_wait_refuses_a_timeout_that_is_no_duration(app: Tenuto, use: Callable[..., Any]) -> None:
    with raises_code("value.duration.invalid"):
        await use(app, new_id())


async def test_wait_accepts_a_duration_with_a_unit(app: Tenuto) -> None:
    @app.job
    def add(n: int) -> None: ...

    with raises_code("task.wait.timeout"):
        await app.wait(await app.enqueue(add, 1), timeout="0.01s")


async def test_schedule_with_unknown_overlap_names_the_policies(app: Tenuto) -> None:
    with raises_code("schedule.overlap.unknown") as caught:
        app.schedule("s", manual(), [Step.schedule("other")], overlap="parallel")
    assert "skip, queue_one, allow, cancel_previous" in str(caught.value)


async def test_schedule_with_one_step_instead_of_a_list_is_refused(app: Tenuto) -> None:
    with raises_code("schedule.steps.not_a_list"):
        app.schedule("s", manual(), Step.schedule("other"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("CEST", "Europe/Berlin"),
        ("MEZ", "Europe/Berlin"),
        ("PST", "America/Los_Angeles"),
        ("BST", "Europe/London"),
        ("XYZ", "Europe/Berlin"),
    ],
)
def test_abbreviation_of_a_time_zone_suggests_a_region(zone: str, region: str) -> None:
    with raises_code("trigger.zone.abbreviation") as caught:
        cron("0 2 * * *", zone=zone)
    assert region in str(caught.value)
    assert "EST" not in str(caught.value).replace(zone, "")


async def test_number_instead_of_a_retry_policy_is_refused(app: Tenuto) -> None:
    with raises_code("retry.type.invalid"):
        app.job(retry=3)(plain)  # type: ignore[call-overload]


async def test_missing_and_unknown_arguments_are_named(app: Tenuto) -> None:
    @app.job
    def add(first: int, second: int) -> None: ...

    with pytest.raises(Invalid, match="the argument second is missing"):
        await app.enqueue(add, 1)
    with pytest.raises(Invalid, match="there is no argument third"):
        await app.enqueue(add, 1, 2, third=3)


def test_dir_of_the_package_lists_the_public_names() -> None:
    assert set(tenuto.__all__) <= set(dir(tenuto))
    assert "__version__" in dir(tenuto)
