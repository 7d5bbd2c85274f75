"""Workflows whose code changes while they run: patches, versions, and changes that are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from tenuto import Context, RetryPolicy, Tenuto
from tenuto.postgres.database import Database
from tests.support.errors import raises_code
from tests.support.waiting import eventually

MakeProgram = Callable[[], Tenuto]


@pytest.fixture
async def program(app: Tenuto) -> AsyncIterator[MakeProgram]:
    """Make programs on one database: the code before and after a deployment."""
    async with AsyncExitStack() as stack:
        programs: list[Tenuto] = []

        def make() -> Tenuto:
            made = Tenuto(settings=app.settings)
            programs.append(made)
            stack.push_async_callback(made.close)
            return made

        yield make


@pytest.fixture
def calls() -> Counter[str]:
    """How often each step ran."""
    return Counter()


def add_workflow(
    app: Tenuto, steps: str, calls: Counter[str], *, version: str | None = None, name: str = "ship", failing: str = "",
    max_attempts: int = 2,
) -> Any:  # fmt: skip
    """Register a workflow: each character is a step of this name, `?` waits for an event, `(x)` is a patch with step x,
    `[` and `]` enclose steps that run in parallel. The steps in ``failing`` fail."""

    async def step(symbol: str) -> str:
        calls[symbol] += 1
        if symbol in failing:
            raise ConnectionError(f"{symbol} is not ready")
        return symbol

    async def run(ctx: Context, key: str) -> str:
        done, places = "", iter(steps)
        for symbol in places:
            if symbol == "?":
                await ctx.wait_for_event("go", key=key)
            elif symbol == "(":
                patched = next(places)
                next(places)
                if ctx.patched(f"add {patched}"):
                    done += await ctx.step.using(name=patched)(step, patched)
            elif symbol == "[":
                group = []
                while (symbol := next(places)) != "]":
                    group.append(ctx.step.using(name=symbol)(step, symbol))
                done += "".join(await ctx.gather(*group))
            else:
                done += await ctx.step.using(name=symbol)(step, symbol)
        return done

    options: dict[str, Any] = {"version": version} if version else {}
    return app.workflow(name=name, retry=RetryPolicy(max_attempts=max_attempts, base_seconds=0, jitter=0), **options)(
        run
    )


async def begin(app: Tenuto, job: Any, key: str = "one") -> UUID:
    """Enqueue a run and return when it waits for its event."""
    async with app.worker(slots=1):
        task = await app.enqueue(job, key)
        await eventually(lambda: is_parked(app, task.id))
    return task.id


async def is_parked(app: Tenuto, task: UUID) -> bool:
    return (await app.task(task)).state == "scheduled" and (await app.task(task)).fence > 0


async def end(app: Tenuto, task: UUID, key: str = "one") -> Any:
    """Let a run continue and return its record."""
    await app.events.send("go", key=key)
    async with app.worker(slots=1):
        return await app.wait(task, timeout=20)


@pytest.mark.parametrize(
    ("before", "after", "output", "ran"),
    [
        ("ab?c", "a(x)b?c", "abc", ""),  # passed the place of the patch before it existed
        ("ab?c", "ab?(x)c", "abxc", "x"),  # had not reached it
        ("ab?c", "ab?c(x)", "abcx", "x"),
        ("[ab]?c", "(x)[ab]?c", "abc", ""),
    ],
)
async def test_patched_code_is_used_by_runs_that_have_not_passed_its_place(
    program: MakeProgram, calls: Counter[str], before: str, after: str, output: str, ran: str
) -> None:
    old, new = program(), program()
    task = await begin(old, add_workflow(old, before, calls))
    changed = add_workflow(new, after, calls)
    record = await end(new, task)
    assert record.output == output
    assert (calls["a"], calls["x"]) == (1, len(ran))
    later = await begin(new, changed, "two")
    assert "x" in (await end(new, later, "two")).output


async def test_decision_about_a_patch_stays_after_a_rollback_of_the_program(
    program: MakeProgram, calls: Counter[str]
) -> None:
    new, old, again = program(), program(), program()
    task = await begin(new, add_workflow(new, "(x)a?b", calls))
    old_job = add_workflow(old, "a?b", calls)
    assert old_job.name == "ship"
    refused = await end(old, task)
    assert (refused.state, refused.error["type"]) == ("failed", "tenuto.EngineError")
    assert "the history of the task has '1 x', but the code calls 'a' there" in refused.error["message"]
    add_workflow(again, "(x)a?b", calls)
    retried = await again.tasks.retry(task)  # the dead letter, with the history of the failed task
    async with again.worker(slots=1):
        record = await again.wait(retried, timeout=20)
    assert (record.output, calls) == ("xab", {"x": 1, "a": 1, "b": 1})


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("ab?c", "ax?c", "'2 b', but the code calls 'x'"),
        ("ab?c", "a?bc", "'2 b', but the code calls 'ctx.wait_for_event'"),
        ("a?bc", "ab?c", "'2 ctx.wait_for_event', but the code calls 'b'"),
        ("a[bc]?d", "ab?d", "'2 ctx.gather', but the code calls 'b'"),
        ("a[bc]?d", "a[b]?d", "'2.2.1 c', but the workflow ended without it"),
        ("ab?c", "a", "'2 b', but the workflow ended without it"),
    ],
)
async def test_changed_code_without_a_patch_is_found(
    program: MakeProgram, calls: Counter[str], before: str, after: str, problem: str
) -> None:
    old, new = program(), program()
    task = await begin(old, add_workflow(old, before, calls))
    add_workflow(new, after, calls)
    record = await end(new, task)
    assert (record.state, record.error["type"]) == ("failed", "tenuto.EngineError")
    assert problem in record.error["message"]
    assert calls["a"] == 1


async def test_run_continues_with_the_version_that_it_has_begun_with(
    program: MakeProgram, calls: Counter[str], sql: Any
) -> None:
    first, both, second = program(), program(), program()
    task = await begin(first, add_workflow(first, "a?b", calls, version="1"))
    add_workflow(both, "x?y", calls, version="10")
    add_workflow(both, "a?b", calls, version="1")
    later = await begin(both, both.jobs.get_job("ship"), "two")
    assert calls["x"] == 1, "new runs use the highest version"

    # A worker of the previous program does not continue the new run, and one of the next program not the old run.
    add_workflow(second, "x?y", calls, version="10")
    for app, run, key in ((first, later, "two"), (second, task, "one")):
        await app.events.send("go", key=key)
        async with app.worker(slots=1):
            await eventually(partial(has_message, app, run, "waits for a worker with version"))
            codes = [each.code for each in (await app.why(run)).reasons]
        assert codes == ["not_due", "unknown_version"]
    await sql("UPDATE tenuto.tasks SET run_at = now()")  # they are looked at again after 15 seconds
    async with both.worker(slots=1):
        assert (await both.wait(task, timeout=40)).output == "ab"
        assert (await both.wait(later, timeout=40)).output == "xy"
    assert calls == {"a": 1, "b": 1, "x": 1, "y": 1}


@pytest.mark.parametrize("steps", ["ab", "[ab]"])
async def test_run_keeps_its_version_when_its_first_step_failed_before_a_deployment(
    program: MakeProgram, calls: Counter[str], sql: Any, steps: str
) -> None:
    first, both, second = program(), program(), program()
    task = await first.enqueue(add_workflow(first, steps, calls, version="1", failing="a"), "one")
    async with first.worker(slots=1):
        await eventually(lambda: calls["a"])
        dead = await first.wait(task, timeout=20)
    assert (dead.state, dead.attempt) == ("failed", 2)
    add_workflow(second, "xy", calls, version="2")
    retried = await second.tasks.retry(task.id)  # the history of the dead letter has the version and no call
    async with second.worker(slots=1):
        await eventually(partial(has_message, second, retried, "waits for a worker with version 1"))
    await sql("UPDATE tenuto.tasks SET run_at = now()")  # it is looked at again after 15 seconds
    add_workflow(both, "xy", calls, version="2")
    add_workflow(both, steps, calls, version="1")
    async with both.worker(slots=1):
        record = await both.wait(retried, timeout=40)
    assert (record.state, record.output, calls["x"]) == ("completed", "ab", 0)


async def test_attempts_of_a_run_use_one_version_although_its_first_step_fails(
    program: MakeProgram, calls: Counter[str]
) -> None:
    """The retry after the deployment of version 2 uses version 1, and so does each later attempt."""
    first, both = program(), program()
    job = add_workflow(first, "a?b", calls, version="1", failing="a", max_attempts=100)
    task = await first.enqueue(job, "one")
    async with first.worker(slots=1):
        await eventually(lambda: calls["a"])
    add_workflow(both, "x?y", calls, version="2")
    add_workflow(both, "a?b", calls, version="1")
    async with both.worker(slots=1):
        await eventually(lambda: is_parked(both, task.id))
    assert (await end(both, task.id)).output == "ab"
    assert (calls["x"], calls["y"]) == (0, 0)


@pytest.mark.parametrize("steps", ["[ab]", "[ba]"])
async def test_parallel_branch_stores_nothing_before_the_version_is_stored(
    program: MakeProgram, calls: Counter[str], database: Database, steps: str
) -> None:
    """A crash between the two would leave a history that no version can continue."""
    app = program()
    job = add_workflow(app, steps, calls, version="1")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(database.connection())
        task = await app.enqueue(job, "one")
        transaction = connection.transaction()
        await transaction.start()
        # The first branch waits for the end of this transaction when it stores the version.
        await connection.execute(
            "INSERT INTO tenuto.chain_steps (task_id, name, output, fence, ended_at)"
            " VALUES ($1, 'version', '{}', 0, now())",
            task.id,
        )
        await stack.enter_async_context(app.worker(slots=1))
        await eventually(lambda: database.fetch_value(waiting))
        assert calls == {}, "no step has begun"
        await transaction.rollback()
        assert (await app.wait(task, timeout=20)).output in ("ab", "ba")
    assert calls["a"] == calls["b"] == 1


async def has_message(app: Tenuto, task: UUID, text: str) -> bool:
    progress = (await app.task(task)).progress or {}
    return text in progress.get("message", "")


def test_same_version_is_registered_once(app: Tenuto, calls: Counter[str]) -> None:
    add_workflow(app, "a", calls, version="1")
    add_workflow(app, "b", calls, version="2")
    assert app.jobs.known_handlers().jobs["ship"] == "2, 1"
    with raises_code("job.name.duplicate"):
        add_workflow(app, "c", calls, version="2")
    app.job(name="plain")(lambda: None)
    with raises_code("job.name.duplicate"):
        add_workflow(app, "c", calls, name="plain")
