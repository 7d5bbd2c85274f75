"""Time moved by hand: everything that falls due happens at its instant, by the code that does it in a service."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tenuto import Actor, Context, RetryPolicy, Step, Tenuto, cron, every, manual
from tenuto.errors import Conflict, Invalid
from tenuto.simulation.inputs import Given
from tenuto.testing import TimeMachine, on_database, run_until_idle

MONDAY = datetime(2026, 3, 23, tzinfo=UTC)
LONDON = ZoneInfo("Europe/London")


def minutes(start: datetime, end: datetime) -> list[datetime]:
    """Every minute after the start up to the end, included."""
    return [start + timedelta(minutes=n) for n in range(1, int((end - start).total_seconds() // 60) + 1)]


async def ledger(app: Tenuto, name: str) -> list[tuple[datetime, str]]:
    """The whole ledger of a schedule, the oldest first."""
    rows: list[tuple[datetime, str]] = []
    before = None
    while page := await app.schedules.ledger(name, before=before, limit=500):
        rows += [(row["due_at"], row["decision"]) for row in page]
        before = page[-1]["due_at"]
    return rows[::-1]


async def test_a_week_of_two_schedules_runs_and_the_ledger_is_complete(tenuto_app: Tenuto) -> None:
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
        happened = await time.advance(days=7)
        assert time.now == end
        # The clock of London jumps on the Sunday: 01:30 is not, and is run at 02:00. Found minute by minute.
        walls = [(minute, minute.astimezone(LONDON)) for minute in minutes(MONDAY, end)]
        polls = [minute for minute, _ in walls if minute.minute % 15 == 0]
        nights = [minute for minute, wall in walls if (wall.hour, wall.minute) == (1, 30)]
        nights.append(next(minute for minute, wall in walls if wall.date().day == 29 and wall.hour == 2))
        assert await ledger(app, "Poll") == [(instant, "fired") for instant in polls]
        assert await ledger(app, "Nightly") == [(instant, "fired") for instant in sorted(nights)]
        runs = await app.executions.list(schedule="Nightly")
        assert {(run["state"], run["started_at"] == run["due_at"] == run["ended_at"]) for run in runs} == {
            ("completed", True)
        }
        assert await app.tasks() == []
    assert (len(polls), len(nights)) == (672, 7)
    assert done == {"poll": 672, "import": 7, "a": 7, "b": 7}
    assert (happened.fired, happened.ended) == (679, 672 + 21)


async def test_retries_wait_by_the_moved_clock_before_and_after_the_present(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    tries: list[datetime] = []

    @app.job(retry=RetryPolicy(max_retries=3, base_seconds=3600, cap_seconds=86_400, jitter=0))
    async def fails(ctx: Context) -> None:
        tries.append(time.now)
        if ctx.attempt < 3:
            raise ConnectionError("not yet")

    for start in (datetime(2001, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)):
        tries.clear()
        async with TimeMachine(app, start=start) as time:
            task = await app.enqueue(fails)
            await time.run_until_idle()
            assert (await app.task(task.id))["state"] == "scheduled"
            await time.advance("30m")
            assert len(tries) == 1
            await time.advance(days=1)
            assert tries == [start, start + timedelta(hours=1), start + timedelta(hours=3)]
            assert [each["status"] for each in await app.attempts(task.id)] == ["failed", "failed", "completed"]
            assert [each["started_at"] for each in await app.attempts(task.id)] == tries


@pytest.mark.parametrize(
    ("overlap", "decisions"),
    [
        ("skip", ["fired", "skipped", "skipped", "fired", "skipped", "skipped"]),
        ("allow", ["fired"] * 6),
        ("queue_one", ["fired", "fired", "coalesced", "fired", "coalesced", "coalesced"]),
        ("cancel_previous", ["fired"] * 6),
    ],
)
async def test_runs_that_take_their_time_meet_each_other(
    tenuto_app: Tenuto, overlap: str, decisions: list[str]
) -> None:
    """Runs of 25 minutes every 10; and the simulation says the same beforehand."""
    app = tenuto_app

    @app.job
    async def work() -> None: ...

    app.schedule("Busy", every("10m"), [Step.job(work)], overlap=overlap)
    async with TimeMachine(app, start=MONDAY, takes={"work": "25m"}) as time:
        end = MONDAY + timedelta(minutes=65)
        foreseen = await app.schedules.simulate(MONDAY + timedelta(seconds=1), end, Given(seconds={"Busy": 1500}))
        await time.advance_to(end)
        assert await ledger(app, "Busy") == [(run.due_at, str(run.decision)) for run in foreseen.runs]
        runs = sorted((run["started_at"], run["ended_at"]) for run in await app.executions.list() if run["ended_at"])
        assert runs == sorted(
            (run.starts_at, run.ends_at) for run in foreseen.runs if run.ends_at is not None and run.ends_at <= end
        )
    assert [str(run.decision) for run in foreseen.runs] == decisions


async def test_a_time_limit_is_reached_by_the_moved_clock(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job(timeout="10m", max_retries=1)
    async def slow() -> None: ...

    async with TimeMachine(app, start=MONDAY, takes={"slow": "1h"}) as time:
        task = await app.enqueue(slow)
        await time.advance(minutes=9)
        assert (await app.task(task.id))["state"] == "running"
        await time.advance(minutes=1)
        last = (await app.attempts(task.id))[-1]
        assert (last["status"], last["reason"], last["ended_at"]) == ("failed", "timed_out", time.now)


async def test_so_is_that_of_a_step_that_waits_for_a_manifest(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job
    async def slow() -> None: ...

    app.manifest("slow", slow)
    app.schedule("impatient", manual(), [Step.manifest("slow", timeout="10m")])
    app.schedule("patient", manual(), [Step.manifest("slow", timeout="2h")])
    async with app, TimeMachine(app, start=MONDAY, takes={"slow": "1h"}) as time:
        await app.manifests.deploy()
        for name, lasts, state in (("impatient", 10, "failed"), ("patient", 61, "completed")):
            run = await app.schedules.run(name)
            assert run.execution_id is not None
            await time.advance(minutes=lasts - 1)
            assert (await app.executions.get(run.execution_id))["state"] == "in_progress"
            await time.advance(minutes=2)
            assert (await app.executions.get(run.execution_id))["state"] == state
            await time.advance(hours=2)


async def test_what_is_held_can_be_cancelled(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job
    async def slow() -> None: ...

    app.schedule("Slow", manual(), [Step.job(slow), Step.job(slow, name="second")])
    async with TimeMachine(app, start=MONDAY, takes={"slow": "1h"}) as time:
        run = (await app.schedules.run("Slow")).execution_id
        assert run is not None
        await time.advance(minutes=5)
        with app.acting_as(Actor.user("ana")):
            assert await app.executions.cancel(run) == "stopping"
        await time.run_until_idle()
        found = await app.executions.get(run)
        assert (found["state"], found["ended_at"]) == ("cancelled", time.now)


async def test_a_schedule_that_runs_another_goes_through(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job
    async def work() -> None: ...

    app.schedule("Inner", manual(), [Step.job(work)])
    app.schedule("Outer", cron("0 6 * * *"), [Step.schedule("Inner"), Step.job(work)])
    async with TimeMachine(app, start=MONDAY, takes={"work": "20m"}) as time:
        await time.advance(days=1)
        (outer,) = await app.executions.list(schedule="Outer")
        (inner,) = await app.executions.list(schedule="Inner")
    assert (outer["state"], outer["ended_at"]) == ("completed", MONDAY + timedelta(hours=6, minutes=40))
    assert (inner["state"], inner["ended_at"]) == ("completed", MONDAY + timedelta(hours=6, minutes=20))


async def test_a_manifest_with_a_clock_runs_at_every_instant_of_a_month_and_others_after_it(tenuto_app: Tenuto) -> None:
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
            await time.run_until_idle()  # in 2040 what was due since 2001 has to be caught up with
            done.clear()
            happened = await time.advance(days=30)
            nights = [start + timedelta(days=n, hours=1, minutes=30) for n in range(30)]
            assert done == [(part, night) for night in nights for part in ("import", "load", "report")]
            assert (happened.fired, happened.ended) == (90, 90)
            last = await app.manifests.get("report")
            assert (last.last_run_at, last.last_successful_run, last.next_run_at) == (nights[-1], nights[-1], None)


async def test_a_manifest_that_fails_is_tried_again_and_leaves_a_letter_in_machine_time(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    tries: list[datetime] = []
    is_broken = True

    @app.job
    async def fetch() -> None:
        tries.append(time.now)
        if is_broken:
            raise ConnectionError("the server is away")

    @app.job
    async def load() -> None: ...

    back_off = RetryPolicy(max_retries=3, base_seconds=600, jitter=0)
    app.manifest("fetch", fetch, trigger=cron("0 6 * * *"), retry=back_off)
    app.manifest("load", load, after="fetch")
    async with TimeMachine(app, start=MONDAY) as time:
        await time.advance(days=3)
        six = MONDAY + timedelta(hours=6)
        assert tries == [six, six + timedelta(minutes=10), six + timedelta(minutes=30)]
        (letter,) = await app.dead_letters.list()
        assert (letter["external_id"], letter["dead_lettered_at"]) == ("fetch", tries[-1])
        assert (await app.manifests.get("fetch")).next_run_at == six + timedelta(days=3)
        assert (await app.manifests.get("load")).last_run_at is None
        is_broken = False
        await app.dead_letters.retry(letter["id"])
        await time.run_until_idle()
        assert (tries[3:], (await app.manifests.get("load")).last_run_at) == ([time.now], time.now)
        await time.advance(days=1)
        assert tries[4:] == [six + timedelta(days=3)]


async def test_a_manifest_that_cannot_run_after_another_yet_does_so_once_it_can(tenuto_app: Tenuto) -> None:
    """A service would look at it every half minute, for weeks if need be; here time is not spent on that."""
    app = tenuto_app
    loads: list[datetime] = []

    @app.job
    async def fetch() -> None: ...

    @app.job(max_retries=1)
    async def load() -> None:
        loads.append(time.now)
        if len(loads) == 2:
            raise ValueError("nobody knows this format")

    app.manifest("fetch", fetch, trigger=every("1h"))
    app.manifest("load", load, after="fetch")
    async with TimeMachine(app, start=MONDAY, takes={"load": "90m"}) as time:
        await time.advance(hours=1)
        assert loads == [time.now]
        await time.advance(days=7)
        assert loads == [MONDAY + timedelta(hours=1), MONDAY + timedelta(hours=2, minutes=30)]
        (letter,) = await app.dead_letters.list()
        assert len(await app.manifests.polls(limit=500)) < 400
        await app.dead_letters.acknowledge(letter["id"])
        await time.advance(minutes=1)
        assert len(loads) == 3


async def test_until_idle_runs_what_comes_after_a_manifest_run_by_hand(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    done: list[str] = []

    @app.job
    def work(part: str) -> None:
        done.append(part)

    app.manifest("first", work, properties={"part": "first"})
    app.manifest("second", work, after="first", properties={"part": "second"})
    async with app:
        assert (await run_until_idle(app)).ended == 0
        await app.manifests.run("first")
        assert (await run_until_idle(app)).ended == 2
    assert done == ["first", "second"]


async def test_what_cannot_be_read_does_not_hold_up_the_others(tenuto_app: Tenuto) -> None:
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
        await database.all("UPDATE tenuto.schedules SET plan = '{}' WHERE name = 'bad'")
        await database.all("""UPDATE tenuto.manifests SET definition = '{"a": 1}' WHERE external_id = 'm-bad'""")
        await time.advance(hours=3)
    assert done == {"good": 3, "m-good": 3}


async def test_what_could_not_be_read_runs_once_it_can(tenuto_app: Tenuto) -> None:
    app = tenuto_app
    done: Counter[str] = Counter()

    @app.job
    async def count(what: str) -> None:
        done[what] += 1

    app.schedule("s", every("1h"), [Step.job(count, "s")])
    app.manifest("m", count, trigger=every("1h"), properties={"what": "m"})
    async with app, TimeMachine(app, start=MONDAY) as time:
        database = await app.open()
        (schedule,) = await database.all("SELECT plan FROM tenuto.schedules")
        (manifest,) = await database.all("SELECT definition FROM tenuto.manifests")
        await database.all("UPDATE tenuto.schedules SET plan = '{}'")
        await database.all("""UPDATE tenuto.manifests SET definition = '{"a": 1}'""")
        await time.advance(hours=1)
        await database.all("UPDATE tenuto.schedules SET plan = $1", schedule["plan"])
        await database.all("UPDATE tenuto.manifests SET definition = $1", manifest["definition"])
        await time.advance(minutes=1)
        assert done == {"s": 1, "m": 1}
        await time.advance(hours=1)
    assert done == {"s": 2, "m": 2}


async def test_a_limit_and_a_paused_queue_hold_as_ever(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job(limit=1)
    async def printing() -> None: ...

    @app.job(queue="mail")
    async def send() -> None: ...

    async with TimeMachine(app, start=MONDAY, takes={"printing": "10m"}) as time:
        await app.pause_queue("mail")
        letter = await app.enqueue(send)
        pages = [await app.enqueue(printing) for _ in range(3)]
        await time.advance(hours=1)
        ends = [(await app.attempts(page.id))[-1]["ended_at"] for page in pages]
        assert ends == [MONDAY + timedelta(minutes=n) for n in (10, 20, 30)]
        assert (await app.task(letter.id))["state"] == "queued"
        await app.resume_queue("mail")
        await time.run_until_idle()
        assert (await app.attempts(letter.id))[-1]["status"] == "completed"


async def test_until_idle_runs_what_is_due_and_what_that_asks_for(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job
    async def first() -> None:
        await app.enqueue(second)
        await app.enqueue(second.using(delay="1h"))

    @app.job
    def second() -> None: ...

    async with app:
        await app.enqueue(first)
        assert (await run_until_idle(app)).ended == 2
        (later,) = await app.tasks()
        assert later["state"] == "scheduled"
        assert (await run_until_idle(app)).ended == 0


async def test_a_job_that_asks_for_itself_for_ever_is_told_of(tenuto_app: Tenuto) -> None:
    app = tenuto_app

    @app.job
    async def again() -> None:
        await app.enqueue(again)

    async with app:
        await app.enqueue(again)
        with pytest.raises(Conflict, match="more than 50 attempts"):
            await run_until_idle(app, most=50)


async def test_the_clock_is_given_back_and_the_app_closed_if_it_was(tenuto_app: Tenuto) -> None:
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


async def test_time_goes_one_way_and_needs_a_zone(tenuto_app: Tenuto) -> None:
    with pytest.raises(Invalid, match="no time zone"):
        TimeMachine(tenuto_app, start=datetime(2026, 1, 1))  # noqa: DTZ001
    machine = TimeMachine(tenuto_app, start=MONDAY)
    with pytest.raises(Conflict, match="not running"):
        await machine.advance(days=1)
    async with machine as time:
        with pytest.raises(Invalid, match="past"):
            await time.advance_to(MONDAY - timedelta(seconds=1))


async def test_an_app_of_the_program_is_put_on_a_database_of_the_test(tenuto_database: str, tmp_path: Path) -> None:
    app = Tenuto("postgresql://nowhere.invalid/tenuto", home=tmp_path)

    @app.job
    async def work() -> int:
        return 7

    with on_database(app, tenuto_database):
        async with app:
            task = await app.enqueue(work)
            await run_until_idle(app)
            assert (await app.activity(task.id))["output"] == 7
    assert app.settings.database == "postgresql://nowhere.invalid/tenuto"
