"""Time machine: due work runs at its instant on a manual clock, with the code of the services."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tenuto import Actor, Context, RetryPolicy, Step, Tenuto, cron, every, manual
from tenuto.errors import Conflict, Invalid
from tenuto.simulation.input_loader import SimulationOptions
from tenuto.testing import TimeMachine, run_until_idle, use_database
from tests.support.errors import raises_code

MONDAY = datetime(2026, 3, 23, tzinfo=UTC)
LONDON = ZoneInfo("Europe/London")


def minutes(start: datetime, end: datetime) -> list[datetime]:
    """Return every minute after the start up to and including the end."""
    return [start + timedelta(minutes=n) for n in range(1, int((end - start).total_seconds() // 60) + 1)]


async def load_ledger(app: Tenuto, name: str) -> list[tuple[datetime, str]]:
    """Return the whole occurrence ledger of a schedule, oldest entry first."""
    rows: list[tuple[datetime, str]] = []
    before = None
    while page := await app.schedules.ledger(name, before=before, limit=500):
        rows += [(row.due_at, row.decision) for row in page]
        before = page[-1].due_at
    return rows[::-1]


@pytest.mark.slow
async def test_time_machine_runs_a_week_of_schedules_with_complete_ledger(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    done: Counter[str] = Counter()

    @app.job
    async def poll() -> None:
        done["poll"] += 1

    @app.job
    def nightly(part: str) -> None:
        done[part] += 1

    app.schedule("Poll", every("15m"), [Step.job(poll)])
    app.schedule(
        "Nightly",
        cron("30 1 * * *", zone="Europe/London"),
        [Step.job(nightly, "import", name="import"), [Step.job(nightly, part, name=part) for part in ("a", "b")]],
    )
    end = MONDAY + timedelta(days=7)
    async with app, TimeMachine(app, start=MONDAY) as time:
        summary = await time.advance(days=7)
        assert time.now == end
        # On Sunday the clock of London skips 01:30, so the run is at 02:00. Expected instants are found by minutes.
        walls = [(minute, minute.astimezone(LONDON)) for minute in minutes(MONDAY, end)]
        polls = [minute for minute, _ in walls if minute.minute % 15 == 0]
        nights = [minute for minute, wall in walls if (wall.hour, wall.minute) == (1, 30)]
        nights.append(next(minute for minute, wall in walls if wall.date().day == 29 and wall.hour == 2))
        assert await load_ledger(app, "Poll") == [(instant, "fired") for instant in polls]
        assert await load_ledger(app, "Nightly") == [(instant, "fired") for instant in sorted(nights)]
        runs = await app.executions.list(schedule="Nightly")
        assert {(run.state, run.started_at == run.due_at == run.ended_at) for run in runs} == {("completed", True)}
        assert await app.tasks() == []
    assert (len(polls), len(nights)) == (672, 7)
    assert done == {"poll": 672, "import": 7, "a": 7, "b": 7}
    assert (summary.fired_count, summary.ended_count) == (679, 672 + 21)


async def test_retries_wait_on_the_manual_clock_in_past_and_future(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    tries: list[datetime] = []

    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=3600, cap_seconds=86_400, jitter=0))
    async def fails(ctx: Context) -> None:
        tries.append(time.now)
        if ctx.attempt < 3:
            raise ConnectionError("not yet")

    for start in (datetime(2001, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)):
        tries.clear()
        async with TimeMachine(app, start=start) as time:
            task = await app.enqueue(fails)
            await time.run_until_idle()
            assert (await app.task(task.id)).state == "scheduled"
            await time.advance("30m")
            assert len(tries) == 1
            await time.advance(days=1)
            assert tries == [start, start + timedelta(hours=1), start + timedelta(hours=3)]
            assert [each.state for each in await app.attempts(task.id)] == ["failed", "failed", "completed"]
            assert [each.started_at for each in await app.attempts(task.id)] == tries


@pytest.mark.parametrize(
    ("overlap", "decisions"),
    [
        ("skip", ["fired", "skipped", "skipped", "fired", "skipped", "skipped"]),
        ("allow", ["fired"] * 6),
        ("queue_one", ["fired", "fired", "coalesced", "fired", "coalesced", "coalesced"]),
        ("cancel_previous", ["fired"] * 6),
    ],
)
async def test_overlap_policies_apply_to_runs_with_durations(
    tenuto_app: Tenuto, overlap: str, decisions: list[str]
) -> None:
    """Runs of 25 minutes every 10 minutes; the simulation predicts the same."""
    app = tenuto_app

    @app.job
    async def work() -> None: ...

    app.schedule("Busy", every("10m"), [Step.job(work)], overlap=overlap)
    async with TimeMachine(app, start=MONDAY, durations={"work": "25m"}) as time:
        end = MONDAY + timedelta(minutes=65)
        predicted = await app.schedules.simulate(
            MONDAY + timedelta(seconds=1), end, SimulationOptions(run_seconds={"Busy": 1500})
        )
        await time.advance_to(end)
        assert await load_ledger(app, "Busy") == [(run.due_at, str(run.decision)) for run in predicted.runs]
        runs = sorted((run.started_at, run.ended_at) for run in await app.executions.list() if run.ended_at)
        assert runs == sorted(
            (run.starts_at, run.ends_at) for run in predicted.runs if run.ends_at is not None and run.ends_at <= end
        )
    assert [str(run.decision) for run in predicted.runs] == decisions


async def test_task_times_out_on_the_manual_clock(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job(timeout="10m", max_attempts=1)
    async def slow() -> None: ...

    async with TimeMachine(app, start=MONDAY, durations={"slow": "1h"}) as time:
        task = await app.enqueue(slow)
        await time.advance(minutes=9)
        assert (await app.task(task.id)).state == "running"
        await time.advance(minutes=1)
        last = (await app.attempts(task.id))[-1]
        assert (last.state, last.reason, last.ended_at) == ("failed", "timed_out", time.now)


@pytest.mark.slow
async def test_manifest_step_times_out_on_the_manual_clock(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job
    async def slow() -> None: ...

    app.manifest("slow", slow)
    app.schedule("impatient", manual(), [Step.manifest("slow", timeout="10m")])
    app.schedule("patient", manual(), [Step.manifest("slow", timeout="2h")])
    async with app, TimeMachine(app, start=MONDAY, durations={"slow": "1h"}) as time:
        await app.manifests.deploy()
        for name, lasts, state in (("impatient", 10, "failed"), ("patient", 61, "completed")):
            run = await app.schedules.run(name)
            assert run.execution_id is not None
            await time.advance(minutes=lasts - 1)
            assert (await app.executions.get(run.execution_id)).state == "in_progress"
            await time.advance(minutes=2)
            assert (await app.executions.get(run.execution_id)).state == state
            await time.advance(hours=2)


async def test_held_attempt_can_be_cancelled(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job
    async def slow() -> None: ...

    app.schedule("Slow", manual(), [Step.job(slow), Step.job(slow, name="second")])
    async with TimeMachine(app, start=MONDAY, durations={"slow": "1h"}) as time:
        run = (await app.schedules.run("Slow")).execution_id
        assert run is not None
        await time.advance(minutes=5)
        assert await app.acting_as(Actor.user("ana")).executions.cancel(run) == "stopping"
        await time.run_until_idle()
        found = await app.executions.get(run)
        assert (found.state, found.ended_at) == ("cancelled", time.now)


async def test_schedule_step_runs_in_the_time_machine(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job
    async def work() -> None: ...

    app.schedule("Inner", manual(), [Step.job(work)])
    app.schedule("Outer", cron("0 6 * * *"), [Step.schedule("Inner"), Step.job(work)])
    async with TimeMachine(app, start=MONDAY, durations={"work": "20m"}) as time:
        await time.advance(days=1)
        (outer,) = await app.executions.list(schedule="Outer")
        (inner,) = await app.executions.list(schedule="Inner")
    assert (outer.state, outer.ended_at) == ("completed", MONDAY + timedelta(hours=6, minutes=40))
    assert (inner.state, inner.ended_at) == ("completed", MONDAY + timedelta(hours=6, minutes=20))


@pytest.mark.slow
async def test_manifest_with_trigger_and_its_dependents_run_for_a_month(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    done: list[tuple[str, datetime]] = []

    @app.job
    async def work(part: str) -> None:
        done.append((part, time.now))

    app.manifest("import", work, trigger=cron("30 1 * * *"), properties={"part": "import"})
    app.manifest("load", work, after="import", properties={"part": "load"})
    app.manifest("report", work, after="load", properties={"part": "report"})
    app.manifest("by-hand", work, properties={"part": "by hand"})
    for start in (datetime(2001, 4, 1, tzinfo=UTC), datetime(2040, 4, 1, tzinfo=UTC)):
        done.clear()
        async with TimeMachine(app, start=start) as time:
            await time.run_until_idle()  # in 2040 the runs missed since 2001 come first
            done.clear()
            summary = await time.advance(days=30)
            nights = [start + timedelta(days=n, hours=1, minutes=30) for n in range(30)]
            assert done == [(part, night) for night in nights for part in ("import", "load", "report")]
            assert (summary.fired_count, summary.ended_count) == (90, 90)
            last = await app.manifests.get("report")
            assert (last.last_run_at, last.last_successful_run_at, last.next_run_at) == (nights[-1], nights[-1], None)


async def test_failed_manifest_is_retried_and_leaves_a_dead_letter_on_the_manual_clock(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    tries: list[datetime] = []
    is_broken = True

    @app.job
    async def fetch() -> None:
        tries.append(time.now)
        if is_broken:
            raise ConnectionError("server unavailable")

    @app.job
    async def load() -> None: ...

    back_off = RetryPolicy(max_attempts=3, base_seconds=600, jitter=0)
    app.manifest("fetch", fetch, trigger=cron("0 6 * * *"), retry=back_off)
    app.manifest("load", load, after="fetch")
    async with TimeMachine(app, start=MONDAY) as time:
        await time.advance(days=3)
        six = MONDAY + timedelta(hours=6)
        assert tries == [six, six + timedelta(minutes=10), six + timedelta(minutes=30)]
        (letter,) = await app.dead_letters.list()
        assert (letter.external_id, letter.dead_lettered_at) == ("fetch", tries[-1])
        assert (await app.manifests.get("fetch")).next_run_at == six + timedelta(days=3)
        assert (await app.manifests.get("load")).last_run_at is None
        is_broken = False
        await app.dead_letters.retry(letter.id)
        await time.run_until_idle()
        assert (tries[3:], (await app.manifests.get("load")).last_run_at) == ([time.now], time.now)
        await time.advance(days=1)
        assert tries[4:] == [six + timedelta(days=3)]


@pytest.mark.slow
async def test_dependent_manifest_runs_as_soon_as_it_is_able_to(tenuto_app: Tenuto) -> None:
    """A service polls every 30 seconds; the time machine does not repeat polls without effect."""
    app = tenuto_app
    loads: list[datetime] = []

    @app.job
    async def fetch() -> None: ...

    @app.job(max_attempts=1)
    async def load() -> None:
        loads.append(time.now)
        if len(loads) == 2:
            raise ValueError("unknown format")

    app.manifest("fetch", fetch, trigger=every("1h"))
    app.manifest("load", load, after="fetch")
    async with TimeMachine(app, start=MONDAY, durations={"load": "90m"}) as time:
        await time.advance(hours=1)
        assert loads == [time.now]
        await time.advance(days=7)
        assert loads == [MONDAY + timedelta(hours=1), MONDAY + timedelta(hours=2, minutes=30)]
        (letter,) = await app.dead_letters.list()
        assert len(await app.manifests.polls(limit=500)) < 400
        await app.dead_letters.acknowledge(letter.id)
        await time.advance(minutes=1)
        assert len(loads) == 3


async def test_run_until_idle_runs_dependents_of_a_manual_manifest_run(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    done: list[str] = []

    @app.job
    def work(part: str) -> None:
        done.append(part)

    app.manifest("first", work, properties={"part": "first"})
    app.manifest("second", work, after="first", properties={"part": "second"})
    async with app:
        assert (await run_until_idle(app)).ended_count == 0
        await app.manifests.run("first")
        assert (await run_until_idle(app)).ended_count == 2
    assert done == ["first", "second"]


async def test_unreadable_definitions_do_not_block_others(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    done: Counter[str] = Counter()

    @app.job
    async def count(what: str) -> None:
        done[what] += 1

    for what in ("bad", "good"):
        app.schedule(what, every("1h"), [Step.job(count, what)])
        app.manifest(f"m-{what}", count, trigger=every("1h"), properties={"what": f"m-{what}"})
    async with app, TimeMachine(app, start=MONDAY) as time:
        await app.manifests.deploy()
        database = await app.open()
        await database.fetch_all("UPDATE tenuto.schedules SET plan = '{}' WHERE name = 'bad'")
        await database.fetch_all("""UPDATE tenuto.manifests SET definition = '{"a": 1}' WHERE external_id = 'm-bad'""")
        await time.advance(hours=3)
    assert done == {"good": 3, "m-good": 3}


async def test_repaired_definitions_run_again(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    done: Counter[str] = Counter()

    @app.job
    async def count(what: str) -> None:
        done[what] += 1

    app.schedule("s", every("1h"), [Step.job(count, "s")])
    app.manifest("m", count, trigger=every("1h"), properties={"what": "m"})
    async with app, TimeMachine(app, start=MONDAY) as time:
        database = await app.open()
        (schedule,) = await database.fetch_all("SELECT plan FROM tenuto.schedules")
        (manifest,) = await database.fetch_all("SELECT definition FROM tenuto.manifests")
        await database.fetch_all("UPDATE tenuto.schedules SET plan = '{}'")
        await database.fetch_all("""UPDATE tenuto.manifests SET definition = '{"a": 1}'""")
        await time.advance(hours=1)
        await database.fetch_all("UPDATE tenuto.schedules SET plan = $1", schedule["plan"])
        await database.fetch_all("UPDATE tenuto.manifests SET definition = $1", manifest["definition"])
        await time.advance(minutes=1)
        assert done == {"s": 1, "m": 1}
        await time.advance(hours=1)
    assert done == {"s": 2, "m": 2}


async def test_time_machine_respects_limits_and_paused_queues(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job(limit=1)
    async def printing() -> None: ...

    @app.job(queue="mail")
    async def send() -> None: ...

    async with TimeMachine(app, start=MONDAY, durations={"printing": "10m"}) as time:
        await app.pause_queue("mail")
        letter = await app.enqueue(send)
        pages = [await app.enqueue(printing) for _ in range(3)]
        await time.advance(hours=1)
        ends = [(await app.attempts(page.id))[-1].ended_at for page in pages]
        assert ends == [MONDAY + timedelta(minutes=n) for n in (10, 20, 30)]
        assert (await app.task(letter.id)).state == "queued"
        await app.resume_queue("mail")
        await time.run_until_idle()
        assert (await app.attempts(letter.id))[-1].state == "completed"


async def test_run_until_idle_runs_due_tasks_and_their_children(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job
    async def first() -> None:
        await app.enqueue(second)
        await app.enqueue(second.using(delay="1h"))

    @app.job
    def second() -> None: ...

    async with app:
        await app.enqueue(first)
        assert (await run_until_idle(app)).ended_count == 2
        (later,) = await app.tasks()
        assert later.state == "scheduled"
        assert (await run_until_idle(app)).ended_count == 0


async def test_run_until_idle_stops_at_max_attempts(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job
    async def again() -> None:
        await app.enqueue(again)

    async with app:
        await app.enqueue(again)
        with raises_code("testing.attempts.too_many", Conflict):
            await run_until_idle(app, max_attempts=50)


async def test_time_machine_restores_clock_and_open_state(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    async with TimeMachine(app, start=MONDAY) as time:
        database = await app.open()
        assert database.clock.now() == time.now == MONDAY
    was_open = [app.is_open]
    async with app:
        database = await app.open()
        async with TimeMachine(app, start=MONDAY):
            pass
        was_open.append(app.is_open)
        assert abs(datetime.now(UTC) - database.clock.now()) < timedelta(minutes=1)
        assert await app.workers() == []
    assert was_open == [False, True]


async def test_time_machine_rejects_naive_and_earlier_instants(tenuto_app: Tenuto) -> None:
    with raises_code("value.instant.no_utc_offset", Invalid):
        TimeMachine(tenuto_app, start=datetime(2026, 1, 1))  # noqa: DTZ001
    machine = TimeMachine(tenuto_app, start=MONDAY)
    with raises_code("testing.time_machine.closed", Conflict):
        await machine.advance(days=1)
    async with machine as time:
        with raises_code("testing.clock.backwards", Invalid):
            await time.advance_to(MONDAY - timedelta(seconds=1))


async def test_use_database_moves_an_app_to_the_database_of_the_test(tenuto_database: str, tmp_path: Path) -> None:
    app = Tenuto("postgresql://nowhere.invalid/tenuto", home=tmp_path)

    @app.job
    async def work() -> int:
        return 7

    with use_database(app, tenuto_database):
        async with app:
            task = await app.enqueue(work)
            await run_until_idle(app)
            assert (await app.activity(task.id)).output == 7
    assert app.settings.database == "postgresql://nowhere.invalid/tenuto"
