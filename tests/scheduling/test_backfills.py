"""Backfills (S5, X): past due instants get one run each, paced, pausable, abortable, and the job sees its interval."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from signal import SIGKILL
from typing import Any
from uuid import UUID

import pytest

from tenuto import Context, RetryPolicy, Step, Tenuto, cron, every, manual
from tenuto.ids import new_id
from tenuto.model.triggers import Trigger
from tenuto.model.work.logical_time import find_previous_instant
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.operations.work.bulk_processor import process_chunk
from tenuto.scheduling import firing
from tests.support.errors import raises_code
from tests.support.http_site import Site, make_response
from tests.support.service_fixtures import WorkerFactory

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]
DAILY = cron("0 2 * * *")
FIRST, LAST = date(2025, 3, 1), date(2025, 3, 5)
INSTANTS = [datetime(2025, 3, day, 2, tzinfo=UTC) for day in range(1, 6)]
DAY = timedelta(days=1)

KILLED_PROCESSOR = """
import asyncio, os, signal, sys
from tenuto import Tenuto
from tenuto.operations.work.bulk_processor import process_chunk
from tenuto.scheduling import backfills
from tenuto.store.work import bulk_operations

async def main():
    database = await Tenuto(database=sys.argv[1]).connect()
    if sys.argv[2] == "after":
        await process_chunk(database)
        os.kill(os.getpid(), signal.SIGKILL)

    async def process(connection):
        operation = await bulk_operations.lock_next_operation(connection)
        now = database.clock.now()
        await backfills.advance_backfill(connection, operation.id, operation.schedule_id, operation.actor, now, 500)
        os.kill(os.getpid(), signal.SIGKILL)

    await database.transaction(process)

asyncio.run(main())
"""


@pytest.fixture
async def loader(app: Tenuto) -> Tenuto:
    """An app with a daily schedule that records its logical times."""

    @app.job(max_attempts=1)
    async def load(ctx: Context, fail_on: int = 0) -> list[str]:
        if ctx.scheduled_for.day == fail_on:
            raise ValueError("no data for that day")
        start, end = ctx.interval or (ctx.scheduled_for, ctx.scheduled_for)
        return [ctx.scheduled_for.isoformat(), start.isoformat(), end.isoformat()]

    await app.schedules.create(schedule_definition("daily", DAILY, [Step.job(load)]))
    return app


async def process(app: Tenuto) -> int:
    """Process chunks until no backfill has anything to do."""
    database, count = await app.open(), 0
    while await process_chunk(database):
        count += 1
    return count


async def open_runs(app: Tenuto) -> list[datetime]:
    return sorted(each.due_at for each in await app.executions.list("origin:backfill state:in_progress"))


async def test_backfill_runs_each_past_instant_once_in_order_and_gives_the_job_its_interval(
    loader: Tenuto, worker: WorkerFactory, sql: Sql
) -> None:
    preview = await loader.schedules.preview_backfill("daily", FIRST, LAST)
    assert (list(preview.instants), preview.existing_count) == (INSTANTS, 0)
    started = await loader.schedules.backfill("daily", FIRST, LAST, reason="the source was late")
    assert (started.kind, started.item_count, started.max_running) == ("schedule.backfill", 5, 1)
    async with worker():
        for done_count, due_at in enumerate(INSTANTS):
            await process(loader)
            runs = await loader.executions.list("origin:backfill")
            assert len(runs) == done_count + 1, "one at a time, oldest first"
            run = await loader.executions.wait(runs[0].id, 30)
            assert (run.due_at, run.state) == (due_at, "completed")
    await process(loader)
    ended = await loader.bulk_operations.wait(started.id, 5)
    assert (ended.state, ended.succeeded_count, ended.remaining_count) == ("ended", 5, 0)
    outputs = await sql("SELECT output FROM tenuto.activities ORDER BY id")
    assert [each["output"] for each in outputs] == [
        f'["{due.isoformat()}", "{(due - DAY).isoformat()}", "{due.isoformat()}"]' for due in INSTANTS
    ]
    entries = await loader.schedules.ledger("daily")
    assert [(each.due_at, each.origin, each.decision) for each in reversed(entries)] == [
        (due, "backfill", "fired") for due in INSTANTS
    ]


async def test_backfill_keeps_at_most_the_given_number_of_executions_open(loader: Tenuto) -> None:
    await loader.schedules.backfill("daily", FIRST, LAST, parallel=3)
    await process(loader)
    assert await open_runs(loader) == INSTANTS[:3]
    assert await process(loader) == 0, "a saturated backfill has nothing to do"
    await loader.executions.cancel((await loader.executions.list("state:in_progress"))[0].id)
    await process(loader)
    assert len(await open_runs(loader)) == 3


async def test_instants_with_a_run_are_not_run_again(loader: Tenuto, sql: Sql) -> None:
    first = await loader.schedules.backfill("daily", FIRST, date(2025, 3, 2), parallel=10)
    await process(loader)
    second = await loader.schedules.backfill("daily", FIRST, LAST, parallel=10)
    assert (first.item_count, second.item_count) == (2, 3)
    await process(loader)
    assert await open_runs(loader) == INSTANTS
    with raises_code("schedule.backfill.nothing_to_run"):
        await loader.schedules.backfill("daily", FIRST, LAST)


async def test_two_backfills_of_the_same_period_run_each_instant_once(loader: Tenuto) -> None:
    """Both select all instants before either has started one."""
    first = await loader.schedules.backfill("daily", FIRST, LAST, parallel=10)
    second = await loader.schedules.backfill("daily", FIRST, LAST, parallel=10)
    await process(loader)
    assert await open_runs(loader) == INSTANTS
    found = [await loader.bulk_operations.get(each.id) for each in (first, second)]
    assert sorted(each.skipped_count for each in found) == [0, 5]
    [skipped, *_] = await loader.bulk_operations.items(next(each.id for each in found if each.skipped_count))
    assert skipped.code == "schedule.backfill.exists"


async def test_database_refuses_a_second_run_of_a_backfilled_instant(loader: Tenuto, sql: Sql) -> None:
    await loader.schedules.backfill("daily", FIRST, FIRST)
    await process(loader)
    statement = (
        "INSERT INTO tenuto.occurrences SELECT (jsonb_populate_record(o, $1::jsonb)).* FROM tenuto.occurrences o"
    )
    with pytest.raises(Exception, match="occurrences_backfilled_once"):
        await sql(f"{statement} RETURNING 1", f'{{"id": "{new_id()}"}}')


async def test_fired_instant_is_left_out_and_a_missed_one_is_run(loader: Tenuto, sql: Sql) -> None:
    insert = (
        "INSERT INTO tenuto.occurrences (id, schedule_id, schedule_name, due_at, origin, decision, execution_id,"
        " decided_at, decided_by) SELECT $1, id, name, $2, 'trigger', $3, $4, now(), 'test' FROM tenuto.schedules"
        " RETURNING 1"
    )
    await sql(insert, new_id(), INSTANTS[0], "fired", new_id())
    await sql(insert, new_id(), INSTANTS[1], "missed", None)
    preview = await loader.schedules.preview_backfill("daily", FIRST, LAST)
    assert (list(preview.instants), preview.existing_count) == (INSTANTS[1:], 1)


async def test_paused_backfill_starts_nothing_until_it_is_resumed(loader: Tenuto) -> None:
    started = await loader.schedules.backfill("daily", FIRST, LAST, parallel=10)
    paused = await loader.bulk_operations.pause(started.id)
    assert paused.paused_at is not None
    assert await process(loader) == 0
    assert (await loader.bulk_operations.resume(started.id)).paused_at is None
    await process(loader)
    assert await open_runs(loader) == INSTANTS


async def test_aborted_backfill_starts_no_further_run_and_its_instants_can_be_backfilled_again(loader: Tenuto) -> None:
    started = await loader.schedules.backfill("daily", FIRST, LAST)
    await process(loader)
    await loader.bulk_operations.abort(started.id)
    await process(loader)
    assert await open_runs(loader) == INSTANTS[:1]
    assert (await loader.schedules.backfill("daily", FIRST, LAST)).item_count == 4
    with raises_code("operation.already_ended"):
        await loader.bulk_operations.pause(started.id)


async def test_failed_run_is_counted_and_the_others_go_on(app: Tenuto, loader: Tenuto, worker: WorkerFactory) -> None:
    job = loader.jobs.get_job("load")
    await loader.schedules.create(schedule_definition("picky", DAILY, [Step.job(job, input={"fail_on": 2})]))
    started = await loader.schedules.backfill("picky", FIRST, LAST, parallel=5)
    await process(loader)
    async with worker():
        for run in await loader.executions.list("origin:backfill"):
            await loader.executions.wait(run.id, 30)
    await process(loader)
    ended = await loader.bulk_operations.get(started.id)
    assert (ended.state, ended.succeeded_count, ended.failed_count) == ("ended", 4, 1)
    [item] = await loader.bulk_operations.items(started.id)
    assert (item.outcome, item.code) == ("failed", "execution.failed")
    assert "no data for that day" in (item.message or "")
    [failed] = await loader.executions.list("origin:backfill state:failed")
    assert item.item_id == failed.id


async def test_running_backfill_does_not_hold_back_ordinary_runs(loader: Tenuto) -> None:
    await loader.schedules.backfill("daily", FIRST, LAST, parallel=2)
    await process(loader)
    assert (await loader.schedules.run("daily")).decision == "fired", "by the fast path"
    assert (await loader.schedules.run("daily")).decision == "skipped"
    with raises_code("schedule.running"):
        await loader.schedules.delete("daily")


async def test_due_schedule_fires_beside_a_backfill(loader: Tenuto) -> None:
    await loader.schedules.backfill("daily", FIRST, LAST)
    await process(loader)
    database = await loader.open()
    assert await firing.fire_due_schedules(database, database.clock.now() + DAY, "test") == 1
    [entry] = await loader.schedules.ledger("daily", where="origin:trigger")
    assert entry.decision == "fired"


async def test_repeated_request_creates_one_backfill(loader: Tenuto) -> None:
    request = new_id()
    first = await loader.schedules.backfill("daily", FIRST, LAST, request_id=request)
    second = await loader.schedules.backfill("daily", FIRST, LAST, request_id=request)
    assert first.id == second.id == request
    assert len(await loader.bulk_operations.list()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["within", "after"])
async def test_backfill_survives_the_death_of_its_scheduler(loader: Tenuto, url: str, moment: str) -> None:
    await loader.schedules.backfill("daily", FIRST, LAST, parallel=2)
    process_ = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED_PROCESSOR, url, moment)
    assert await process_.wait() == -SIGKILL
    await process(loader)
    assert await open_runs(loader) == INSTANTS[:2], "neither lost nor doubled"


async def test_bad_backfills_are_refused(loader: Tenuto) -> None:
    backfill = loader.schedules.backfill
    with raises_code("schedule.backfill.period"):
        await backfill("daily", LAST, FIRST)
    with raises_code("schedule.backfill.parallel"):
        await backfill("daily", FIRST, LAST, parallel=0)
    with raises_code("value.instant.invalid"):
        await backfill("daily", "yesterday", LAST)
    with raises_code("value.instant.no_utc_offset"):
        await backfill("daily", "2025-01-01T00:00:00", LAST)
    with raises_code("schedule.not_found"):
        await backfill("nightly", FIRST, LAST)
    with raises_code("operation.kind.not_selectable"):
        await loader.bulk_operations.create("schedule.backfill", "")
    job = loader.jobs.get_job("load")
    await loader.schedules.create(schedule_definition("by hand", manual(), [Step.job(job)]))
    with raises_code("schedule.backfill.no_trigger"):
        await backfill("by hand", FIRST, LAST)
    await loader.schedules.create(schedule_definition("often", every("1s"), [Step.job(job)]))
    with raises_code("schedule.backfill.too_many"):
        await backfill("often", FIRST, LAST)


@pytest.mark.parametrize(
    ("trigger", "due_at", "previous"),
    [
        (DAILY, INSTANTS[1], INSTANTS[0]),
        (cron("0 2 * * mon-fri"), datetime(2025, 3, 3, 2, tzinfo=UTC), datetime(2025, 2, 28, 2, tzinfo=UTC)),
        (cron("0 0 29 2 *"), datetime(2028, 2, 29, tzinfo=UTC), datetime(2024, 2, 29, tzinfo=UTC)),
        (cron("0 0 * * *", zone="Europe/London", start="2025-03-01"), datetime(2025, 3, 1, tzinfo=UTC), None),
    ],
)
def test_previous_instant_of_a_trigger(trigger: Trigger, due_at: datetime, previous: datetime | None) -> None:
    assert find_previous_instant(trigger, due_at, "") == previous


async def test_triggered_run_and_its_retry_carry_due_instant_and_interval(
    app: Tenuto, worker: WorkerFactory, sql: Sql
) -> None:
    seen: list[tuple[datetime, tuple[datetime, datetime] | None]] = []
    reported = threading.Event()

    @app.job(max_attempts=1)
    async def report(ctx: Context) -> None:
        reported.set()
        seen.append((ctx.scheduled_for, ctx.interval))
        if len(seen) == 1:
            raise ValueError("first")

    await app.schedules.create(schedule_definition("frequent", every("1s"), [Step.job(report)]))
    async with worker(), app.scheduler():
        await asyncio.to_thread(reported.wait, 60)
        await app.schedules.disable("frequent")
        for run in await app.executions.list():
            await app.executions.wait(run.id, 30)
        failed = await app.executions.list("state:failed")
        retry: UUID = await app.executions.retry(failed[0].id)
        await app.executions.wait(retry, 30)
    due_at = failed[0].due_at
    assert seen[0] == seen[-1] == (due_at, (due_at - timedelta(seconds=1), due_at))


async def test_manual_run_has_one_logical_time_in_all_steps_attempts_and_retries(
    app: Tenuto, worker: WorkerFactory
) -> None:
    seen: list[tuple[datetime, tuple[datetime, datetime] | None]] = []
    is_broken = True

    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=0))
    async def load(ctx: Context, last: bool) -> None:
        seen.append((ctx.scheduled_for, ctx.interval))
        if last and is_broken:
            raise ValueError("the source is down")

    steps = [Step.job(load, last=False, name="first"), Step.job(load, last=True, name="last")]
    await app.schedules.create(schedule_definition("on demand", manual(), steps))
    async with worker():
        run = await app.schedules.run("on demand")
        assert run.execution_id is not None
        assert (await app.executions.wait(run.execution_id, 30)).state == "failed"
        is_broken = False
        ended = await app.executions.wait(await app.executions.retry(run.execution_id), 30)
    assert ended.state == "completed"
    assert seen == [(ended.due_at, None)] * 4


async def test_task_keeps_its_logical_time_in_retries_sleeps_and_after_its_dead_letter(
    app: Tenuto, worker: WorkerFactory
) -> None:
    seen: list[datetime] = []

    def fail_every_second_time(ctx: Context) -> None:
        seen.append(ctx.scheduled_for)
        if len(seen) % 2:
            raise ValueError("the source is down")

    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=0))
    async def load(ctx: Context) -> None:
        fail_every_second_time(ctx)

    @app.job(max_attempts=1)
    async def load_once(ctx: Context) -> None:
        fail_every_second_time(ctx)

    @app.workflow
    async def follow(ctx: Context) -> str:
        await ctx.sleep(0.01)
        return ctx.scheduled_for.isoformat()

    async with worker():
        retried = await app.wait(await app.enqueue(load), 30)
        followed = await app.wait(await app.enqueue(follow), 30)
        failed = await app.wait(await app.enqueue(load_once), 30)
        (letter,) = await app.dead_letters.list()
        await app.wait(await app.dead_letters.retry(letter.id), 30)
    assert (retried.attempt, failed.attempt) == (2, 1)
    assert seen == [retried.created_at] * 2 + [failed.created_at] * 2
    assert datetime.fromisoformat(followed.output) == followed.created_at


async def test_programs_and_scripts_get_the_logical_time(
    app: Tenuto, worker: WorkerFactory, sql: Sql, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    app.settings = app.settings.model_copy(update={"files_directory": folder})
    names = ("SCHEDULED_FOR", "INTERVAL_START", "INTERVAL_END")
    show = " ".join(f"${{TENUTO_{name}-none}}" for name in names)
    parameters = {name.lower(): {"run": name.lower()} for name in names}
    script = (
        "CREATE TABLE IF NOT EXISTS runs (a, b, c);"
        "INSERT INTO runs VALUES (:scheduled_for, :interval_start, :interval_end)"
    )
    steps = [
        Step.executable("/bin/sh", "-c", f"echo {show}", name="program"),
        Step.of("sql", {"connection": "sqlite:///runs.db", "script": script, "parameters": parameters}, name="script"),
    ]
    sqlite3.connect(folder / "runs.db").close()
    await app.schedules.create(schedule_definition("daily", DAILY, steps))
    await app.schedules.backfill("daily", FIRST, FIRST)
    async with worker():
        await process(app)
        (run,) = await app.executions.list("origin:backfill")
        ended = await app.executions.wait(run.id, 30)
        assert ended.state == "completed", ended.error
        manual_run = await app.schedules.run("daily")
        assert manual_run.execution_id is not None
        assert (await app.executions.wait(manual_run.execution_id, 30)).state == "completed"
    due, before = "2025-03-01T02:00:00Z", "2025-02-28T02:00:00Z"
    printed = [each["out"] for each in await sql(
        "SELECT output ->> 'stdout' AS out FROM tenuto.activities WHERE kind = 'executable' ORDER BY id"
    )]  # fmt: skip
    assert printed[0].split() == [due, before, due]
    assert printed[1].split()[1:] == ["none", "none"]
    with closing(sqlite3.connect(folder / "runs.db")) as file:
        backfilled, by_hand = file.execute("SELECT * FROM runs").fetchall()
    assert backfilled == (due, before, due)
    assert by_hand[0].endswith("Z")
    assert by_hand[1:] == (None, None)


RAW = "$${run.interval_end}"
"""An escaped reference."""


@pytest.mark.parametrize("is_dependent", [False, True])
async def test_http_steps_send_the_logical_time(app: Tenuto, worker: WorkerFactory, *, is_dependent: bool) -> None:
    @app.job
    async def extract() -> dict[str, int]:
        return {"rows": 7}

    app.settings = app.settings.model_copy(update={"http_allowed_hosts": ("127.0.0.1",)})
    with Site({"/day": make_response(200)}) as site:
        rows = "${steps.extract.output.rows}" if is_dependent else "7"
        request = {
            "url": site.url("/day?to=${run.scheduled_for}&rows=" + rows),
            "headers": {"X-From": "${run.interval_start}"},
            "body": {
                "to": "${ run.interval_end }",
                "text": "since ${run.interval_start}.",
                "raw": "$${run.interval_end}",
            },
        }
        steps = [Step.job(extract), Step.of("http.call", request, name="send")]
        await app.schedules.create(schedule_definition("daily", DAILY, steps))
        await app.schedules.backfill("daily", FIRST, FIRST)
        async with worker():
            await process(app)
            (run,) = await app.executions.list("origin:backfill")
            ended = await app.executions.wait(run.id, 30)
            assert ended.state == "completed", ended.error
            by_hand = await app.schedules.run("daily")
            assert by_hand.execution_id is not None
            assert (await app.executions.wait(by_hand.execution_id, 30)).state == "completed"
    backfilled, manual_run = site.requests
    due, before = "2025-03-01T02:00:00Z", "2025-02-28T02:00:00Z"
    assert backfilled.target == f"/day?to={due.replace(':', '%3A')}&rows=7"
    assert backfilled.headers["x-from"] == before
    assert json.loads(backfilled.body) == {"to": due, "text": f"since {before}.", "raw": "${run.interval_end}"}
    assert json.loads(manual_run.body) == {"to": None, "text": "since .", "raw": "${run.interval_end}"}
    assert manual_run.headers["x-from"] == ""


async def test_python_step_takes_the_logical_time_as_an_argument(app: Tenuto, worker: WorkerFactory) -> None:
    seen: list[tuple[str, str]] = []

    @app.job
    async def load(day: str, rows: str) -> str:
        seen.append((day, rows))
        return "7"

    first = Step.job(load, "${run.scheduled_for}", rows="none", name="first")
    second = Step.job(load, day="${run.interval_start}", rows=first.output, name="second")
    await app.schedules.create(schedule_definition("daily", DAILY, [first, second]))
    await app.schedules.backfill("daily", FIRST, FIRST)
    async with worker():
        await process(app)
        (run,) = await app.executions.list("origin:backfill")
        assert (await app.executions.wait(run.id, 30)).state == "completed"
    assert seen == [("2025-03-01T02:00:00Z", "none"), ("2025-02-28T02:00:00Z", "7")]


async def test_retry_of_an_execution_keeps_the_logical_time_of_its_steps(app: Tenuto, worker: WorkerFactory) -> None:
    app.settings = app.settings.model_copy(update={"http_allowed_hosts": ("127.0.0.1",)})
    with Site({"/day": [make_response(400), make_response(200)]}) as site:
        request = {"url": site.url("/day"), "body": {"to": "${run.scheduled_for}"}}
        await app.schedules.create(schedule_definition("daily", DAILY, [Step.of("http.call", request, name="send")]))
        await app.schedules.backfill("daily", FIRST, FIRST)
        async with worker():
            await process(app)
            (run,) = await app.executions.list("origin:backfill")
            assert (await app.executions.wait(run.id, 30)).state == "failed"
            retry = await app.executions.retry(run.id)
            assert (await app.executions.wait(retry, 30)).state == "completed"
    assert [json.loads(each.body) for each in site.requests] == [{"to": "2025-03-01T02:00:00Z"}] * 2


@pytest.mark.parametrize(
    ("kind", "arguments", "code", "path"),
    [
        ("http.call", {"url": "http://x/${run.started}"}, "step.reference.syntax", "url"),
        ("http.call", {"url": "http://x", "body": {"a": ["${run}"]}}, "step.reference.syntax", "body.a.0"),
        ("executable", {"program": "/bin/${run.scheduled_for}"}, "step.reference.not_allowed", "program"),
    ],
)
async def test_wrong_reference_to_the_run_is_rejected_when_the_schedule_is_saved(
    app: Tenuto, kind: str, arguments: dict[str, Any], code: str, path: str
) -> None:
    with raises_code(code) as rejected:
        await app.schedules.create(schedule_definition("daily", DAILY, [Step.of(kind, arguments, name="send")]))
    assert rejected.value.field == f"steps.send.arguments.{path}"
