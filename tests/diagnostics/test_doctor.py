"""The doctor: silent on sound data, and each kind of damage, done by hand, is named with what to do about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto import PermanentFailure, RetryPolicy, Tenuto
from tenuto.clock import SystemClock
from tenuto.diagnostics import doctor
from tenuto.diagnostics.checks import CHECKS, Severity
from tenuto.diagnostics.checks import Finding
from tenuto.diagnostics.doctor import Limits, examine
from tenuto.ids import smallest_id_at, new_id
from tenuto.postgres.database import Database
from tenuto.settings import Settings, load_settings
from tenuto.store.reports import doctor as store
from tests.support.waiting import eventually

RegisterWorker = Callable[..., Awaitable[UUID]]
EXPECTED_FINDINGS = {"server"}  # the tests' server does not force commits to disk, and the doctor says so


def limits_without_recheck_delay(settings: Settings) -> Limits:
    return replace(Limits.from_settings(settings), recheck_delay=timedelta(0))


async def run_doctor(database: Database, settings: Settings, **given: Any) -> dict[str, Finding]:
    """What the doctor has to say, but for the tests' own server. What it asks for twice, it asks for at once. On a busy
    machine it may take a while until it hears what time it is at the database."""
    given["limits"] = replace(given.get("limits") or limits_without_recheck_delay(settings), clock_skew=timedelta(minutes=1))
    return {
        finding.name: finding
        for finding in await examine(database, settings, **given)
        if finding.severity is not Severity.OK and finding.name not in EXPECTED_FINDINGS
    }


async def execute_without_triggers(database: Database, statement: str, *values: Any) -> None:
    """Change what the guards do not let anybody change."""
    async with database.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(statement, *values)


async def fail_task_three_times(app: Tenuto) -> UUID:
    """A task that ended at its third attempt; the records are like any other's."""

    @app.job(retry=RetryPolicy(max_retries=3, base_seconds=0))
    async def third_time() -> None:
        raise ValueError("not yet")

    async with app.worker(poll_seconds=0.05):
        return (await app.wait(await app.enqueue(third_time), timeout=60))["task_id"]  # type: ignore[no-any-return]


async def insert_task(database: Database, worker_id: UUID | None, **columns: Any) -> UUID:
    """A task that this worker holds, or that nobody does."""
    task_id = new_id()
    values: dict[str, Any] = {
        "id": task_id,
        "activity_id": task_id,
        "state": "running" if worker_id else "queued",
        "queue": "default",
        "rank": 0,
        "run_at": datetime.now(UTC),
        "kind": "job",
        "name": "work",
        "input": "{}",
        "policy": "{}",
        "created_at": datetime.now(UTC),
        "fence": 1,
        "worker_id": worker_id,
        "claimed_at": datetime.now(UTC) if worker_id else None,
        "lease_until": datetime.now(UTC) + timedelta(seconds=30) if worker_id else None,
        "initiator_type": "system",
        "initiator_name": "test",
        **columns,
    }
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    await database.fetch_all(f"INSERT INTO tenuto.tasks ({', '.join(values)}) VALUES ({places})", *values.values())
    return task_id


# ---- sound


async def test_sound_data_leaves_the_doctor_nothing_to_say(app: Tenuto, database: Database, settings: Settings) -> None:
    @app.job
    async def fine() -> None: ...

    @app.job
    async def hopeless() -> None:
        raise PermanentFailure("no")

    await fail_task_three_times(app)
    async with app.worker():
        for job in (fine, hopeless):
            await app.wait(await app.enqueue(job), timeout=60)
        await app.enqueue(fine.using(delay=timedelta(hours=1)))
        assert await run_doctor(database, settings) == {}
    assert {finding.name for finding in await app.doctor()} >= {rule.name for rule in CHECKS}


def test_every_question_in_the_file_is_asked() -> None:
    asked = {rule.name for rule in CHECKS} | {"server", "history_begins", "ledgers", "texts"}
    asked |= {"enabled_schedules", "enabled_manifests", "queued_requests"}
    assert asked == {name for name, _ in store.SQL}


def test_every_answer_says_what_it_means_and_what_to_do() -> None:
    for rule in CHECKS:
        assert rule.meaning.endswith(".")
        assert rule.remedy


# ---- holders and leases


async def test_a_task_held_by_a_worker_nobody_knows_is_found(database: Database, settings: Settings) -> None:
    task_id = await insert_task(database, new_id())
    found = (await run_doctor(database, settings))["task_held_by_missing_worker"]
    assert found.severity is Severity.PROBLEM
    assert str(task_id) in found.details[0]


async def test_a_task_held_by_a_worker_that_left_long_ago_is_found(
    database: Database, settings: Settings, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    await insert_task(database, worker_id)
    await database.fetch_all("UPDATE tenuto.workers SET ended_at = now() - interval '1 s' WHERE id = $1", worker_id)
    assert "task_held_by_missing_worker" not in await run_doctor(database, settings)
    await database.fetch_all("UPDATE tenuto.workers SET ended_at = now() - interval '1 min' WHERE id = $1", worker_id)
    assert "task_held_by_missing_worker" in await run_doctor(database, settings)


async def test_a_lease_that_ran_out_is_found_once_the_sweep_has_missed_it_twice(
    database: Database, settings: Settings, register_worker: RegisterWorker
) -> None:
    task_id = await insert_task(database, await register_worker(), lease_until=datetime.now(UTC) - timedelta(seconds=5))
    assert "lease_expired" not in await run_doctor(database, settings)
    await database.fetch_all("UPDATE tenuto.tasks SET lease_until = now() - interval '11 s'")
    found = (await run_doctor(database, settings))["lease_expired"]
    assert found.severity is Severity.PROBLEM
    assert str(task_id) in found.details[0]


# ---- the records of attempts


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_gap_in_the_attempts_is_found(
    app: Tenuto, database: Database, settings: Settings, attempt: int
) -> None:
    task_id = await fail_task_three_times(app)
    await execute_without_triggers(database, "DELETE FROM tenuto.activities WHERE task_id = $1 AND attempt = $2", task_id, attempt)
    found = (await run_doctor(database, settings))["attempt_missing"]
    assert f"attempt {attempt + 1} is recorded, the one before it is not" in found.details[0]


async def test_a_gap_that_retention_has_made_is_none(app: Tenuto, database: Database, settings: Settings) -> None:
    """A month that was dropped took the first attempts along; the later ones are younger and still there."""
    task_id = await fail_task_three_times(app)
    old = smallest_id_at(datetime.now(UTC) - timedelta(days=100))
    await execute_without_triggers(database, "DELETE FROM tenuto.activities WHERE id = $1", task_id)
    await execute_without_triggers(database, "UPDATE tenuto.activities SET task_id = $1", old)
    assert await run_doctor(database, settings) == {}


@pytest.mark.parametrize("attempt", [2, 4])
async def test_an_open_task_without_its_last_attempt_is_found(
    app: Tenuto, database: Database, settings: Settings, attempt: int
) -> None:
    @app.job
    async def later() -> None: ...

    task = await app.enqueue(later.using(delay=timedelta(hours=1)))
    await database.fetch_all("UPDATE tenuto.tasks SET attempt = $1, activity_id = gen_random_uuid()", attempt)
    found = (await run_doctor(database, settings))["attempt_missing_of_open_task"]
    assert f"task {task.id} (later) is at attempt {attempt}" in found.details[0]


async def test_an_attempt_recorded_twice_is_found(app: Tenuto, database: Database, settings: Settings) -> None:
    task_id = await fail_task_three_times(app)
    columns = (
        "attempt, status, final, kind, name, queue, priority, created_at, run_at, ended_at, fence, failures, losses"
    )
    await execute_without_triggers(
        database,
        f"INSERT INTO tenuto.activities (id, task_id, {columns}, input, initiator_type, initiator_name)"
        f" SELECT $2, task_id, {columns}, input, initiator_type, initiator_name"
        " FROM tenuto.activities WHERE task_id = $1 AND attempt = 2",
        task_id,
        new_id(),
    )
    found = (await run_doctor(database, settings))["attempt_recorded_twice"]
    assert f"task {task_id} (third_time): attempt 2 has 2 records" in found.details[0]


async def test_a_first_attempt_with_an_id_of_its_own_is_found(
    app: Tenuto, database: Database, settings: Settings
) -> None:
    task_id = await fail_task_three_times(app)
    other = new_id()
    await execute_without_triggers(database, "UPDATE tenuto.activities SET id = $2 WHERE id = $1", task_id, other)
    found = (await run_doctor(database, settings))["first_attempt_id_wrong"]
    assert f"activity {other} (third_time) is attempt 1 of task {task_id}" in found.details[0]


async def test_a_task_that_ended_twice_is_found(app: Tenuto, database: Database, settings: Settings) -> None:
    task_id = await fail_task_three_times(app)
    await execute_without_triggers(database, "UPDATE tenuto.activities SET final = true WHERE task_id = $1 AND attempt = 1", task_id)
    found = await run_doctor(database, settings)
    assert f"task {task_id} (third_time) has ended 2 times" in found["task_ended_twice"].details[0]
    assert "attempt 2 came after the last one" in found["attempt_after_end"].details[0]


async def test_an_attempt_after_the_last_one_is_found(app: Tenuto, database: Database, settings: Settings) -> None:
    task_id = await fail_task_three_times(app)
    await execute_without_triggers(database, "UPDATE tenuto.activities SET final = (attempt = 2) WHERE task_id = $1", task_id)
    found = await run_doctor(database, settings)
    assert "attempt 3 came after the last one" in found["attempt_after_end"].details[0]
    assert "task_ended_twice" not in found


@pytest.mark.parametrize("attempt", [1, 3, 4])
async def test_an_open_task_that_has_ended_is_found(
    app: Tenuto, database: Database, settings: Settings, attempt: int
) -> None:
    task_id = await fail_task_three_times(app)
    if attempt == 1:
        await execute_without_triggers(database, "DELETE FROM tenuto.activities WHERE attempt > 1")
    last = await database.fetch_value("SELECT id FROM tenuto.activities WHERE attempt = $1", attempt)
    await insert_task(database, None, id=task_id, activity_id=last or new_id(), attempt=attempt)
    found = (await run_doctor(database, settings))["task_open_and_ended"]
    assert f"task {task_id} (work) is open" in found.details[0]


async def test_a_task_that_vanished_between_two_attempts_is_found(
    app: Tenuto, database: Database, settings: Settings
) -> None:
    task_id = await fail_task_three_times(app)
    await execute_without_triggers(database, "DELETE FROM tenuto.activities WHERE task_id = $1 AND attempt = 3", task_id)
    found = (await run_doctor(database, settings))["task_lost"]
    assert f"task {task_id} (third_time) was to be tried again after attempt 2, and is gone" in found.details[0]


# ---- limits and queues


async def test_a_key_over_its_limit_is_found_counting_live_leases(
    database: Database, settings: Settings, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    for lease in (30, 30, -5):
        until = datetime.now(UTC) + timedelta(seconds=lease)
        await insert_task(database, worker_id, limit_key="printer", limit_max=2, lease_until=until)
    assert "key_limit_exceeded" not in await run_doctor(database, settings)
    await insert_task(database, worker_id, limit_key="printer", limit_max=2)
    found = (await run_doctor(database, settings))["key_limit_exceeded"]
    assert found.details == ["key printer: 3 running, 2 allowed"]


async def test_a_queue_over_its_limit_is_found(
    app: Tenuto, database: Database, settings: Settings, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    for _ in range(2):
        await insert_task(database, worker_id)
    await app.limit_queue("default", 1)
    found = (await run_doctor(database, settings))["queue_limit_exceeded"]
    assert (found.severity, found.details) == (Severity.WARNING, ["queue default: 2 running, 1 allowed"])


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_queue_without_a_worker_is_found(
    app: Tenuto, database: Database, settings: Settings, register_worker: RegisterWorker, limit: int | None
) -> None:
    @app.job(queue="mail", limit=limit)
    async def send() -> None: ...

    await register_worker()
    await app.enqueue(send)
    found = (await run_doctor(database, settings))["queue_without_worker"]
    assert found.severity is Severity.WARNING
    assert found.details == ["queue mail: 1 waiting, and no living worker"]
    await database.fetch_all("UPDATE tenuto.workers SET queues = '{default,mail}'")
    assert "queue_without_worker" not in await run_doctor(database, settings)
    await database.fetch_all("UPDATE tenuto.workers SET seen_at = now() - interval '10 min'")
    assert "queue_without_worker" in await run_doctor(database, settings)


async def test_a_task_that_waits_beside_an_idle_worker_is_found(
    app: Tenuto, database: Database, settings: Settings, register_worker: RegisterWorker
) -> None:
    @app.job
    async def work() -> None: ...

    await register_worker("idle")
    await database.fetch_all("UPDATE tenuto.workers SET started_at = now() - interval '1 h'")
    await app.enqueue(work)
    assert "task_waits_beside_idle_worker" not in await run_doctor(database, settings)
    await database.fetch_all("UPDATE tenuto.tasks SET run_at = now() - interval '2 min'")
    found = (await run_doctor(database, settings))["task_waits_beside_idle_worker"]
    assert "worker idle has free slots" in found.details[0]
    await database.fetch_all("UPDATE tenuto.workers SET slots = 1")
    await insert_task(database, await database.fetch_value("SELECT id FROM tenuto.workers"))
    assert "task_waits_beside_idle_worker" not in await run_doctor(database, settings)


async def test_a_queue_that_is_being_worked_off_is_none_that_nobody_takes_from(
    app: Tenuto,
    database: Database,
    settings: Settings,
    register_worker: RegisterWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever takes from a long queue has a free slot for a moment again and again, and there is always a foremost."""

    @app.job
    async def work() -> None: ...

    await register_worker("busy")
    await database.fetch_all("UPDATE tenuto.workers SET started_at = now() - interval '1 h'")
    for _ in range(5):
        await app.enqueue(work)
    await database.fetch_all("UPDATE tenuto.tasks SET run_at = now() - interval '1 h'")

    taken = 0

    async def take() -> None:
        nonlocal taken
        while True:
            await database.fetch_all(
                "UPDATE tenuto.tasks SET id = $1, activity_id = $1, run_at = run_at + interval '1 ms' WHERE id ="
                " (SELECT id FROM tenuto.tasks ORDER BY run_at, id LIMIT 1)",
                new_id(),
            )
            taken += 1

    async def until_some_are_taken(seconds: float) -> None:
        assert seconds > 0
        before = taken
        await eventually(lambda: taken > before + 1)  # the first of them may have been under way

    monkeypatch.setattr(doctor, "asyncio", SimpleNamespace(sleep=until_some_are_taken, to_thread=asyncio.to_thread))
    taking = asyncio.create_task(take())
    assert "task_waits_beside_idle_worker" not in await run_doctor(database, settings, limits=Limits.from_settings(settings))
    taking.cancel()


async def test_a_queue_that_is_paused_or_full_has_a_reason_to_wait(
    app: Tenuto, database: Database, settings: Settings, register_worker: RegisterWorker
) -> None:
    @app.job
    async def work() -> None: ...

    worker_id = await register_worker()
    await database.fetch_all("UPDATE tenuto.workers SET started_at = now() - interval '1 h'")
    await insert_task(database, worker_id)
    await app.enqueue(work)
    await database.fetch_all("UPDATE tenuto.tasks SET run_at = now() - interval '2 min'")
    await app.limit_queue("default", 1)
    assert await run_doctor(database, settings) == {}
    await app.limit_queue("default", None)
    await app.pause_queue("default", "so")
    assert set(await run_doctor(database, settings)) == {"queue_paused"}


async def test_a_paused_queue_is_noted(app: Tenuto, database: Database, settings: Settings) -> None:
    await app.pause_queue("mail", "server is down")
    found = (await run_doctor(database, settings))["queue_paused"]
    assert (found.severity, found.details) == (Severity.NOTE, ["queue mail was paused by app: server is down"])


async def test_a_task_nobody_promotes_is_found(app: Tenuto, database: Database, settings: Settings) -> None:
    @app.job
    async def work() -> None: ...

    task = await app.enqueue(work.using(delay=timedelta(hours=1)))
    assert await run_doctor(database, settings) == {}
    await database.fetch_all("UPDATE tenuto.tasks SET run_at = now() - interval '2 min'")
    found = (await run_doctor(database, settings))["task_overdue"]
    assert (found.severity, str(task.id) in found.details[0]) == (Severity.WARNING, True)


async def test_what_the_nets_have_repaired_is_noted(database: Database, settings: Settings) -> None:
    await database.fetch_all("INSERT INTO tenuto.repairs VALUES ('lease_expired', 3, now())")
    found = (await run_doctor(database, settings))["repairs_made"]
    assert found.severity is Severity.NOTE
    assert found.details[0].startswith("lease_expired: 3 tasks so far")


async def test_only_some_of_many_offenders_are_named(database: Database, settings: Settings) -> None:
    worker_id = new_id()
    for _ in range(25):
        await insert_task(database, worker_id)
    found = (await run_doctor(database, settings))["task_held_by_missing_worker"]
    assert len(found.details) == 21
    assert found.details[-1] == "… and more"


# ---- the ground


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "ALTER TABLE tenuto.activities DISABLE TRIGGER activities_are_written_once",
            "switched off on tenuto.activities",
        ),
        ("ALTER TABLE tenuto.activities_old DISABLE TRIGGER ALL", "switched off on tenuto.activities_old"),
        ("DROP TRIGGER activities_are_not_emptied ON tenuto.activities", "missing on tenuto.activities"),
        ("DROP TRIGGER activities_are_not_emptied ON tenuto.activities_old", "missing on tenuto.activities_old"),
    ],
)
async def test_a_past_that_can_be_rewritten_is_found(
    database: Database, settings: Settings, change: str, said: str
) -> None:
    await database.fetch_all(change)
    found = (await run_doctor(database, settings))["triggers_missing"]
    assert found.severity is Severity.PROBLEM
    assert [detail for detail in found.details if detail.endswith(said)]


async def test_a_transaction_left_open_is_found_and_how_to_end_it(
    url: str, database: Database, settings: Settings
) -> None:
    connection = await asyncpg.connect(url, server_settings={"application_name": "forgetful"})
    await connection.execute("BEGIN")
    await connection.fetch("SELECT FROM tenuto.tasks")
    bounds = replace(Limits.from_settings(settings), transaction_age=timedelta(0))
    found = (await run_doctor(database, settings, limits=bounds))["long_transaction"]
    assert found.severity is Severity.WARNING
    assert "forgetful, idle in transaction" in found.details[0]
    assert f"pg_terminate_backend({connection.get_server_pid()})" in found.details[0]
    assert "long_transaction" not in await run_doctor(database, settings)
    await connection.close()


async def test_a_missing_partition_is_found(database: Database, settings: Settings) -> None:
    month = datetime.now(UTC).strftime("activities_%Y_%m")
    await database.fetch_all(f"DROP TABLE tenuto.{month}")
    found = (await run_doctor(database, settings))["partitions"]
    assert (found.severity, found.details) == (Severity.WARNING, [f"{month} is missing"])


async def test_a_server_that_may_lose_commits_is_found(database: Database, settings: Settings) -> None:
    """The tests' own server is one."""
    found = {finding.name: finding for finding in await examine(database, settings)}["server"]
    if await database.fetch_value("SELECT current_setting('fsync')") == "off":
        assert found.severity is Severity.WARNING
        assert "fsync is off" in found.details
    else:
        assert found.severity is Severity.OK


class ShiftedClock(SystemClock):
    """A machine's clock that is so many seconds off."""

    def __init__(self, seconds: float) -> None:
        self._by = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._by


@pytest.mark.parametrize(("shift", "said"), [(3600, "ahead"), (-3600, "behind"), (0, None)])
async def test_a_clock_that_is_off_is_found(
    database: Database, settings: Settings, shift: float, said: str | None
) -> None:
    found = (await run_doctor(database, settings, clock=ShiftedClock(shift))).get("clock")
    if said is None:
        assert found is None
    else:
        assert found is not None
        (told,) = found.details
        assert re.fullmatch(rf"it is (359\d|360\d)\.\d s {said}", told), told


async def test_a_full_disk_under_an_embedded_database_is_found(database: Database, tmp_path: Path) -> None:
    embedded = load_settings(home=tmp_path).model_copy(update={"database": None})
    bounds = replace(Limits.from_settings(embedded), free_disk_bytes=2**62)
    found = (await run_doctor(database, embedded, limits=bounds))["disk"]
    assert "GiB free of" in found.details[0]
    assert "disk" not in await run_doctor(database, embedded, limits=Limits.from_settings(embedded))


async def test_without_a_schema_nothing_more_is_asked(empty_url: str, settings: Settings) -> None:
    database = await Database.open(empty_url)
    found = await run_doctor(database, settings)
    await database.close()
    assert list(found) == ["schema"]
    assert found["schema"].remedy == "run `tenuto migrate`"


async def test_a_question_that_takes_too_long_is_a_warning(url: str, database: Database, settings: Settings) -> None:
    locker = await asyncpg.connect(url)
    await locker.execute("BEGIN; LOCK TABLE tenuto.repairs IN ACCESS EXCLUSIVE MODE")
    found = (await run_doctor(database, settings))["repairs_made"]
    assert (found.severity, found.details) == (Severity.WARNING, ["the question took too long"])
    await locker.close()


async def test_the_doctor_changes_nothing(database: Database, settings: Settings) -> None:
    asked = [sql for _, sql in store.SQL]
    assert not [sql for sql in asked if "FOR UPDATE" in sql or "INSERT" in sql or "DELETE" in sql]
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        async with database.connection() as connection, connection.transaction(readonly=True):
            await connection.execute("DELETE FROM tenuto.tasks")


async def test_the_doctor_looks_while_work_goes_on(app: Tenuto, database: Database, settings: Settings) -> None:
    @app.job(retry=RetryPolicy(max_retries=3, base_seconds=0))
    async def sometimes(n: int) -> None:
        if n % 3 == 0:
            raise ValueError(str(n))

    await app.enqueue_many(sometimes, range(2000))
    async with app.worker(slots=50):
        while await app.tasks(limit=1):
            assert await run_doctor(database, settings) == {}
            await asyncio.sleep(0)
    assert await run_doctor(database, settings) == {}
