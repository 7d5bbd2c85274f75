"""The manifest manager (J5): reap, determine, enqueue; each part stays whatever comes after; every poll says what it
did."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tenuto import Tenuto, every
from tenuto.definitions import manifest_definitions
from tenuto.errors import Conflict, Invalid, StoreError
from tenuto.maintenance.recovery import NET_TIME_LIMIT, sweep
from tenuto.model.policies import Policy, RetryPolicy
from tenuto.model.triggers import cron
from tenuto.operations import dead_letters
from tenuto.postgres.database import Database
from tenuto.scheduling import manifest_manager
from tenuto.scheduling.manifest_manager import NET_LETTER, Managing
from tenuto.store import manifests
from tenuto.store import tasks as store
from tests.races.interleaving import Stepwise
from tests.support.engine_fixtures import Quick
from tests.support.manifests import (
    ANA,
    NOON,
    a_batch,
    a_manifest,
    again,
    author,
    end,
    finish_all,
    kept,
    poll,
    started,
    table,
    take,
)
from tests.support.schedules import MINUTE, repairs
from tests.support.tasks import Register
from tests.support.waiting import eventually

HALF_A_MINUTE = timedelta(seconds=30)


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


# --- determine ------------------------------------------------------------------------------------------------------


async def test_what_is_due_is_enqueued_once_and_planned_anew(db: Database) -> None:
    await kept(db, trigger=every("1m"), properties={"flour": 3}, priority=4, queue="oven", group="g")
    assert (await poll(db, NOON + timedelta(seconds=59))).enqueued == 0
    assert (await poll(db, NOON + MINUTE)).enqueued == 1
    (task,) = await table(db, "tasks")
    assert (task["name"], task["input"], task["queue"], -task["rank"]) == ("bake", '{"flour": 3}', "oven", 4)
    assert (task["initiator_name"], task["limit_group"]) == ("manifest manager", "g")
    stored = await again(db)
    assert (stored.last_run_at, stored.next_run_at) == (NOON + MINUTE, NOON + 2 * MINUTE)
    assert (await poll(db, NOON + MINUTE)).enqueued == 0
    assert len(await table(db, "tasks")) == 1


async def test_cron_follows_its_own_zone_over_a_change_of_the_clocks(db: Database) -> None:
    before = datetime(2031, 3, 29, 12, tzinfo=UTC)  # the clocks of Berlin go forward on the 30th
    await kept(db, now=before, trigger=cron("0 8 * * *", zone="Europe/Berlin"))
    first = (await again(db)).next_run_at
    assert first == datetime(2031, 3, 30, 6, tzinfo=UTC)
    assert (await poll(db, first - timedelta(seconds=1))).enqueued == 0
    assert (await poll(db, first)).enqueued == 1
    assert (await again(db)).next_run_at == datetime(2031, 3, 31, 6, tzinfo=UTC)


@pytest.mark.parametrize("fields", [{}, {"on_demand": True}, {"depends_on": "other"}])
async def test_what_has_no_clock_does_not_run_by_itself(db: Database, fields: dict[str, object]) -> None:
    await kept(db, "other")
    await kept(db, **fields)  # type: ignore[arg-type]
    for day in range(3):
        assert (await poll(db, NOON + timedelta(days=day))).enqueued == 0


async def test_a_long_silence_is_one_run(db: Database) -> None:
    await kept(db, trigger=every("1m"))
    assert (await poll(db, NOON + timedelta(days=3))).enqueued == 1
    assert (await again(db)).next_run_at == NOON + timedelta(days=3, minutes=1)


async def test_what_is_disabled_does_not_run_and_nothing_is_made_up_for(db: Database) -> None:
    await kept(db, trigger=every("1m"))
    await manifest_definitions.switch(db, "bake", author(), enabled=False)
    assert (await again(db)).next_run_at is None
    assert (await poll(db, NOON + timedelta(hours=1))).enqueued == 0
    await manifest_definitions.switch(db, "bake", author(NOON + timedelta(hours=1)), enabled=True)
    assert (await poll(db, NOON + timedelta(hours=1))).enqueued == 0
    assert (await poll(db, NOON + timedelta(hours=1, minutes=1))).enqueued == 1


@pytest.mark.parametrize("state", ["queued", "running", "scheduled"])
async def test_while_a_run_is_not_over_the_next_is_passed_over_and_the_poll_says_why(
    db: Database, me: UUID, state: str
) -> None:
    await kept(db, trigger=every("1m"), policy=Policy(RetryPolicy(max_retries=3)))
    await poll(db, NOON + MINUTE)
    if state != "queued":
        (task,) = await take(db, me)
        if state == "scheduled":
            await end(db, task, "failed")
    result = await poll(db, NOON + 2 * MINUTE)
    assert (result.enqueued, result.skipped) == (0, {"its last run is not over": ["bake"]})
    assert (await again(db)).next_run_at == NOON + 3 * MINUTE
    assert await db.value("SELECT state FROM tenuto.tasks") == state


async def test_an_open_letter_holds_the_manifest_until_it_is_resolved_and_then_counting_begins_anew(
    db: Database, me: UUID
) -> None:
    await kept(db, trigger=every("1m"), policy=Policy(RetryPolicy(max_retries=2, base_seconds=0, jitter=0)))
    await poll(db, NOON + MINUTE)
    for _ in range(2):
        (task,) = await take(db, me)
        await end(db, task, "failed")
    assert (await poll(db, NOON + 2 * MINUTE)).skipped == {"it has an open dead letter": ["bake"]}
    (letter,) = await table(db, "dead_letters")
    assert letter["attempts"] == 2
    await dead_letters.acknowledge(db, [letter["id"]], NOON, ANA, note=None)
    assert (await poll(db, NOON + 3 * MINUTE)).enqueued == 1
    (task,) = await take(db, me)
    assert (task.attempt, task.failures) == (1, 0)
    await end(db, task, "failed")
    assert len(await table(db, "dead_letters", "status = 'awaiting_intervention'")) == 0, "one more failure is allowed"
    assert (await poll(db, NOON + 4 * MINUTE)).enqueued == 0


async def test_counting_begins_anew_after_a_success(db: Database, me: UUID) -> None:
    await kept(db, trigger=every("1m"), policy=Policy(RetryPolicy(max_retries=2, base_seconds=0, jitter=0)))
    for minute in (1, 2, 3):
        assert (await poll(db, NOON + minute * MINUTE)).enqueued == 1
        for status in ("failed", "completed"):
            (task,) = await take(db, me)
            await end(db, task, status)
    assert await table(db, "dead_letters") == []


async def test_letters_and_tasks_of_items_do_not_hold_up_the_manifests_own_run(db: Database, me: UUID) -> None:
    stored = await kept(db, trigger=every("1m"))
    await a_batch(db, stored, 1)
    await started(db, stored, item_key="a")
    await finish_all(db, me, "failed")
    await a_batch(db, stored, 1)
    assert (await poll(db, NOON + MINUTE)).enqueued == 1


async def test_a_disabled_group_holds_its_manifests_and_lends_them_its_priority(db: Database) -> None:
    await kept(db, trigger=every("1m"), group="g", priority=1)
    await manifest_definitions.change_group(db, "g", NOON, ANA, enabled=False, priority=10)
    assert (await poll(db, NOON + MINUTE)).skipped == {"its group is disabled": ["bake"]}
    await manifest_definitions.change_group(db, "g", NOON, ANA, enabled=True)
    assert (await poll(db, NOON + 2 * MINUTE)).enqueued == 1
    assert await db.value("SELECT rank FROM tenuto.tasks") == -11


async def test_what_one_manager_cannot_read_stays_due_for_another_and_harms_only_itself(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("broken", "sound"):
        await kept(db, name, trigger=every("1m"))
    await db.all("""UPDATE tenuto.manifests SET definition = '{"colour": "red"}' WHERE external_id = 'broken'""")
    (before,) = await db.all("SELECT definition FROM tenuto.manifests WHERE external_id = 'sound'")
    older = manifest_manager.none_left_out()
    result = await manifest_manager.poll(db, NOON + MINUTE, "an older one", older)
    assert (result.enqueued, result.skipped) == (1, {"cannot be read": ["broken"]})
    assert (await manifest_manager.poll(db, NOON + MINUTE, "an older one", older)).skipped == {}
    older.try_again()
    await manifest_manager.poll(db, NOON + MINUTE, "an older one", older)
    assert caplog.text.count("a manifest cannot be read") == 1, "not again and again"
    assert await manifests.next_due(db) == NOON + MINUTE, "it stays due for another version"
    await db.all("UPDATE tenuto.manifests SET definition = $1 WHERE external_id = 'broken'", before["definition"])
    assert (await poll(db, NOON + MINUTE)).enqueued == 1


async def test_what_could_not_be_read_is_enqueued_as_soon_as_somebody_has_changed_it(db: Database) -> None:
    await kept(db, trigger=every("1m"))
    (before,) = await db.all("SELECT definition FROM tenuto.manifests")
    await db.all("""UPDATE tenuto.manifests SET definition = '{"colour": "red"}'""")
    older = manifest_manager.none_left_out()
    for skipped in ({"cannot be read": ["bake"]}, {}):
        assert (await manifest_manager.poll(db, NOON + MINUTE, "an older one", older)).skipped == skipped
        assert await manifests.next_due(db, older.ids) is None
    await db.all("UPDATE tenuto.manifests SET definition = $1, version = version + 1", before["definition"])
    assert await manifests.next_due(db, older.ids) == NOON + MINUTE
    assert (await manifest_manager.poll(db, NOON + MINUTE, "an older one", older)).enqueued == 1


async def test_a_trigger_this_version_cannot_read_is_left_for_another_to_plan(db: Database) -> None:
    for name in ("broken", "sound"):
        await kept(db, name, trigger=every("1m"))
    await db.all("UPDATE tenuto.manifests SET planned = false, next_run_at = NULL")
    await db.all("""UPDATE tenuto.manifests SET definition = '{"colour": "red"}' WHERE external_id = 'broken'""")
    await poll(db, NOON)
    rows = {row["external_id"]: (row["next_run_at"], row["planned"]) for row in await table(db, "manifests")}
    assert rows == {"broken": (None, False), "sound": (NOON + MINUTE, True)}


async def test_one_that_cannot_be_enqueued_does_not_hold_up_the_others(db: Database) -> None:
    for number in range(5):
        await kept(db, f"good-{number}", trigger=every("1m"))
    await kept(db, "bad", job="poison", trigger=every("1m"))
    await db.all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    left_out = manifest_manager.none_left_out()
    try:
        result = await manifest_manager.poll(db, NOON + MINUTE, "test", left_out)
        assert (result.enqueued, result.skipped) == (5, {"cannot be enqueued": ["bad"]})
        assert "test_refuse" in (result.error or "")
        assert (await manifest_manager.poll(db, NOON + MINUTE, "test", left_out)).error is None, "not before it is time"
    finally:
        await db.all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")
    left_out.try_again()
    assert (await manifest_manager.poll(db, NOON + MINUTE, "test", left_out)).enqueued == 1


async def test_what_cannot_be_reaped_keeps_nothing_from_being_enqueued(db: Database) -> None:
    await kept(db, trigger=every("1m"))
    await db.all("ALTER TABLE tenuto.activities RENAME COLUMN final TO test_away")
    try:
        result = await poll(db, NOON + MINUTE)
    finally:
        await db.all("ALTER TABLE tenuto.activities RENAME COLUMN test_away TO final")
    assert result.enqueued == 1
    assert (result.error or "").startswith("reaping: ")


async def test_a_manager_is_not_kept_awake_by_what_it_cannot_read(db: Database) -> None:
    await kept(db, now=db.clock.now() - MINUTE, trigger=every("1m"))
    await db.all("""UPDATE tenuto.manifests SET definition = '{"colour": "red"}'""")
    assert await Managing(db, "test", 30.0).round() == 30.0


async def test_more_than_one_batch_of_manifests_is_decided_in_one_poll(db: Database) -> None:
    for number in range(205):
        await kept(db, f"m{number:03}", trigger=every("1m"))
    result = await poll(db, NOON + MINUTE)
    assert result.enqueued == len(await table(db, "tasks")) == 205


async def test_what_nobody_has_planned_is_planned(db: Database) -> None:
    await kept(db, trigger=every("1m"))
    await db.all("UPDATE tenuto.manifests SET planned = false, next_run_at = NULL")
    await poll(db, NOON)
    assert (await again(db)).next_run_at == NOON + MINUTE


# --- dependents -----------------------------------------------------------------------------------------------------


async def test_a_chain_of_manifests_runs_one_after_the_other_each_after_success_only(db: Database, me: UUID) -> None:
    await kept(db, "a", job="a", trigger=every("1h"))
    await kept(db, "b", job="b", depends_on="a")
    await kept(db, "c", job="c", depends_on="b")
    now, ran = NOON + timedelta(hours=1), []
    for _ in range(5):
        await poll(db, now)
        for task in await take(db, me):
            ran.append(task.name)
            await end(db, task)
    assert ran == ["a", "b", "c"]
    await poll(db, now + timedelta(hours=1))
    await finish_all(db, me, "failed")
    assert (await poll(db, now + timedelta(hours=1, seconds=1))).enqueued == 0, "b runs only after success"


async def test_a_blocked_dependent_is_looked_at_again(db: Database, me: UUID) -> None:
    first = await kept(db, "a")
    second = await kept(db, "b", depends_on="a")
    await started(db, second)
    await take(db, me)
    await started(db, first)
    (task,) = await take(db, me)
    await end(db, task)
    now = db.clock.now()
    assert (await poll(db, now)).skipped == {"its last run is not over": ["b"]}
    held = await db.one("SELECT id FROM tenuto.tasks")
    assert held is not None
    await db.all("DELETE FROM tenuto.tasks")
    assert (await poll(db, now)).enqueued == 0
    assert (await poll(db, now + HALF_A_MINUTE)).enqueued == 1


async def test_what_no_longer_runs_after_another_does_not_run_for_what_that_one_did(db: Database, me: UUID) -> None:
    first = await kept(db, "a")
    await kept(db, "b", depends_on="a")
    await started(db, first)
    await finish_all(db, me)
    assert (await again(db, "b")).next_run_at is not None
    await manifest_definitions.edit(db, "b", a_manifest("b", on_demand=True), author())
    assert (await again(db, "b")).next_run_at is None
    assert (await poll(db, db.clock.now() + MINUTE)).enqueued == 0


async def test_a_circle_is_refused_and_so_is_a_parent_nobody_knows_or_that_others_need(db: Database) -> None:
    await kept(db, "a")
    await kept(db, "b", depends_on="a")
    await kept(db, "c", depends_on="b")
    with pytest.raises(Invalid, match="a → c → b → a"):
        await manifest_definitions.edit(db, "a", a_manifest("a", depends_on="c"), author())
    with pytest.raises(Invalid, match="no manifest 'z'"):
        await kept(db, "d", depends_on="z")
    with pytest.raises(Conflict, match="'b' runs after 'a'"):
        await manifest_definitions.delete(db, "a", author())


# --- reap -----------------------------------------------------------------------------------------------------------


async def without_letters(db: Database) -> None:
    """Damage from outside: a final failure of a while ago that left no letter."""
    async with db.connection() as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("DELETE FROM tenuto.dead_letters")
        await connection.execute("UPDATE tenuto.activities SET ended_at = ended_at - interval '5 minutes'")
        await connection.execute("RESET session_replication_role")


async def test_the_net_writes_a_missing_letter_counts_it_and_the_same_poll_heeds_it(db: Database, me: UUID) -> None:
    stored = await kept(db, trigger=every("1m"))
    now = db.clock.now()
    await started(db, stored, now)
    await finish_all(db, me, "failed")
    await without_letters(db)
    await db.all("UPDATE tenuto.manifests SET next_run_at = $1, planned = true", now)
    result = await poll(db, now + MINUTE)
    assert (result.dead_lettered, result.enqueued) == (1, 0)
    assert result.skipped == {"it has an open dead letter": ["bake"]}, "reaped before it is determined what is due"
    assert await repairs(db) == {NET_LETTER: 1}
    assert (await poll(db, now + MINUTE)).dead_lettered == 0


async def test_a_manager_looks_for_missing_letters_when_it_begins_and_then_now_and_then(
    db: Database, me: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest may be due every second, and to look through all that failed of late costs more than a poll."""
    stored = await kept(db)
    managing = Managing(db, "test", 30.0)
    for look, repaired in enumerate([1, 1, 2]):
        await started(db, stored, db.clock.now())
        await finish_all(db, me, "failed")
        await without_letters(db)
        if look == 2:
            monkeypatch.setattr("tenuto.scheduling.manifest_manager.THOROUGH_EVERY", 0.0)
        await managing.round()
        assert (await repairs(db))[NET_LETTER] == repaired


async def test_in_normal_operation_the_nets_find_nothing(db: Database, me: UUID) -> None:
    stored = await kept(db, policy=Policy(RetryPolicy(max_retries=1), timeout_seconds=600))
    await a_batch(db, stored, 3)
    await take(db, me, 1)
    await finish_all(db, me, "failed")
    result = await poll(db, db.clock.now() + timedelta(hours=1))
    assert (result.dead_lettered, result.timed_out) == (0, 0)
    assert await repairs(db) == {}


@pytest.mark.parametrize("net", ["the poll", "the sweep"])
@pytest.mark.parametrize(("max_retries", "lettered"), [(1, 1), (3, 0)])
async def test_a_run_that_its_worker_could_not_stop_is_timed_out_when_it_is_nobodys_any_more(
    db: Database, me: UUID, max_retries: int, lettered: int, net: str
) -> None:
    policy = Policy(RetryPolicy(max_retries=max_retries), timeout_seconds=1.0)
    await started(db, await kept(db, policy=policy), db.clock.now())
    (held,) = await take(db, me)
    await store.let_go(db, me, [(held.id, held.fence)])
    assert (await poll(db, db.clock.now())).timed_out == 0, "its worker still holds it"
    await db.all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s'")
    if net == "the poll":
        result = await poll(db, db.clock.now())
        assert (result.timed_out, result.dead_lettered) == (1, lettered)
    else:
        assert await sweep(db, db.clock.now()) == 1
    (record,) = await table(db, "activities")
    assert (record["status"], record["reason"], record["final"]) == ("failed", "timed_out", bool(lettered))
    assert len(await table(db, "dead_letters")) == lettered
    assert await repairs(db) == {NET_TIME_LIMIT: 1}


async def test_what_was_reaped_stays_though_a_later_part_of_the_poll_fails_and_the_poll_is_recorded(
    db: Database, me: UUID
) -> None:
    stored, other = await kept(db), await kept(db, "other", trigger=every("1m"))
    now = db.clock.now()
    await started(db, stored, now)
    await finish_all(db, me, "failed")
    await without_letters(db)
    await db.all("UPDATE tenuto.manifests SET next_run_at = $1 WHERE id = $2", now, other.id)
    await db.all("ALTER TABLE tenuto.tasks ADD CONSTRAINT no_more CHECK (name <> 'bake') NOT VALID")
    try:
        await poll(db, now + MINUTE)
    finally:
        await db.all("ALTER TABLE tenuto.tasks DROP CONSTRAINT no_more")
    assert len(await table(db, "dead_letters")) == 1
    assert await table(db, "tasks") == []
    (told,) = await manifests.polls(db, below=None, busy=True, limit=10)
    assert (told["dead_lettered"], told["enqueued"]) == (1, 0)
    assert "no_more" in told["error"]
    assert (await poll(db, now + MINUTE)).enqueued == 1, "and nothing of what failed is lost"


async def test_a_poll_without_a_database_says_so(db: Database) -> None:
    away = await Database.open(db.url)
    await away.close()
    with pytest.raises(StoreError):
        await poll(away)


@pytest.mark.parametrize("change", ["disabled", "edited"])
async def test_a_manifest_that_has_come_to_its_end_can_still_be_edited_and_switched_off(
    db: Database, change: str
) -> None:
    over = every("1h", end="2031-05-18")
    await kept(db, trigger=over)
    later = author(NOON + timedelta(days=30))
    if change == "disabled":
        assert await manifest_definitions.switch(db, "bake", later, enabled=False)
        with pytest.raises(Invalid, match="never runs up to its end"):
            await manifest_definitions.switch(db, "bake", later, enabled=True)
    else:
        assert (
            await manifest_definitions.edit(db, "bake", a_manifest(trigger=over, priority=3), later)
        ).manifest.priority == 3
        with pytest.raises(Invalid, match="never runs up to its end"):
            await manifest_definitions.edit(db, "bake", a_manifest(trigger=every("2h", end="2031-05-18")), later)


# --- what a poll says -----------------------------------------------------------------------------------------------


async def test_every_poll_is_recorded_with_what_it_did(db: Database) -> None:
    await kept(db, "a", trigger=every("1m"))
    await poll(db, NOON)
    await poll(db, NOON + MINUTE)
    await poll(db, NOON + 2 * MINUTE)
    skipping, busy, idle = await manifests.polls(db, below=None, busy=False, limit=10)
    assert [told["at"] for told in (idle, busy, skipping)] == [NOON, NOON + MINUTE, NOON + 2 * MINUTE]
    assert [told["enqueued"] for told in (idle, busy, skipping)] == [0, 1, 0]
    assert skipping["skipped"] == {"its last run is not over": {"count": 1, "some": ["a"]}}
    assert {told["by"] for told in (idle, busy, skipping)} == {"a manager"}
    assert all(told["seconds"] > 0 and told["error"] is None for told in (idle, busy, skipping))
    assert [told["at"] for told in await manifests.polls(db, below=None, busy=True, limit=10)] == [
        NOON + 2 * MINUTE,
        NOON + MINUTE,
    ]


# --- the rounds -----------------------------------------------------------------------------------------------------


async def test_a_manager_wakes_when_something_is_due_and_runs_what_depends_on_it(app: Tenuto, worker: Quick) -> None:
    ran: list[str] = []

    @app.job
    async def note(name: str) -> None:
        ran.append(name)

    app.manifest("clock", note, trigger=every("1s"), properties={"name": "clock"})
    app.manifest("after", note, after="clock", properties={"name": "after"})
    async with app, worker(), app.scheduler():
        await eventually(lambda: ran.count("clock") >= 2 and "after" in ran)
        made = await app.manifests.get("clock")
        assert made.last_successful_run is not None

        async def two_are_told_of() -> bool:  # a poll is written down when all of it is done
            return bool(sum(told["enqueued"] for told in await app.manifests.polls(busy=True)) >= 2)

        await eventually(two_are_told_of)
    first = ran.index("clock")
    assert first < ran.index("after")


async def test_a_manifest_made_while_the_manager_sleeps_is_run_in_time(app: Tenuto, worker: Quick) -> None:
    ran: list[int] = []

    @app.job
    async def note() -> None:
        ran.append(1)

    async with app, worker(), app.scheduler():
        await eventually(app.manifests.polls)
        await app.manifests.create(a_manifest(job="note", trigger=every("1s")))
        await eventually(lambda: ran)


async def test_a_worker_keeps_the_time_limit_of_a_manifest(app: Tenuto, worker: Quick) -> None:
    @app.job
    async def linger() -> None:
        await asyncio.sleep(60)

    app.manifest("slow", linger, timeout=0.2, max_retries=1)
    async with app, worker():
        await app.manifests.deploy()
        record = await app.wait(await app.manifests.run("slow"), 10)
        assert (record["status"], record["reason"]) == ("failed", "timed_out")
        (letter,) = await app.dead_letters.list()
        assert letter["external_id"] == "slow"


async def test_the_count_of_a_poll_is_that_of_its_transaction_however_often_it_was_tried(
    db: Database, url: str
) -> None:
    await kept(db, trigger=every("1m"))
    await kept(db, "busy", trigger=every("1m"))
    await started(db, await again(db, "busy"))
    stepwise = await Stepwise.at(url)
    try:
        steps = 0

        async def once() -> None:
            nonlocal steps
            steps += 1
            if steps == 8:
                await db.all(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND state = 'idle in transaction'"
                )

        stepwise.before = once
        result = await poll(stepwise, NOON + MINUTE)
        stepwise.before = stepwise.nothing
        assert (result.enqueued, result.skipped) == (1, {"its last run is not over": ["busy"]})
        assert len(await table(db, "tasks")) == 2
    finally:
        await stepwise.close()
