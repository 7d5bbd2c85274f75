"""The doctor on tasks, queues and the server: no findings for sound data, and one for each kind of damage."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto import PermanentFailure, RetryPolicy, Tenuto
from tenuto.clock import SystemClock
from tenuto.diagnostics.core_checks import Limits
from tenuto.diagnostics.statement_checks import CHECKS
from tenuto.ids import new_id, smallest_id_at
from tenuto.model.doctor_findings import Finding, Severity
from tenuto.model.partition_ranges import PartitionPeriod
from tenuto.postgres.database import Database
from tenuto.settings import Settings, load_settings
from tenuto.store import partitions
from tenuto.store.reports import doctor as store
from tests.support.doctor import run_checks
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

RegisterWorker = Callable[..., Awaitable[UUID]]
EXPECTED_FINDINGS = {"server", "dead_letters_open"}
"""The server of the tests runs without fsync, and tasks that fail for good leave dead letters."""


def limits_without_recheck_delay(settings: Settings) -> Limits:
    return replace(Limits.from_settings(settings), recheck_delay=timedelta(0))


async def run_doctor(database: Database, settings: Settings, **options: Any) -> dict[str, Finding]:
    """Return findings that are not ok, by name, without recheck delay; on a busy machine, reading the clock is slow."""
    limits = options.get("limits") or limits_without_recheck_delay(settings)
    options["limits"] = replace(limits, clock_skew=timedelta(minutes=1))
    return {
        finding.name: finding
        for finding in await run_checks(database, settings, **options)
        if finding.severity is not Severity.OK and finding.name not in EXPECTED_FINDINGS
    }


async def execute_without_triggers(database: Database, statement: str, *values: Any) -> None:
    """Execute a statement that triggers would refuse."""
    async with database.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(statement, *values)


async def fail_task_three_times(app: Tenuto) -> UUID:
    """Run a task that ends after three attempts, and return its id."""

    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=0))
    async def always_fails() -> None:
        raise ValueError("not yet")

    async with app.worker(poll_seconds=0.05):
        return (await app.wait(await app.enqueue(always_fails), timeout=60)).task_id


async def insert_task(database: Database, worker_id: UUID | None, **columns: Any) -> UUID:
    """Insert a task that this worker runs, or a queued one without a worker."""
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


# ---- sound data


async def test_doctor_reports_nothing_for_sound_tasks(app: Tenuto, database: Database, settings: Settings) -> None:
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
    assert {finding.name for finding in await app.doctor()} >= {check.name for check in CHECKS}


def test_doctor_runs_every_statement_of_its_sql_file() -> None:
    used = {check.name for check in CHECKS} | {"server", "history_begins", "ledgers", "texts"}
    used |= {
        "enabled_schedules",
        "enabled_manifests",
        "queued_requests",
        "set_small_work_memory",
        "write_temporary_file",
    }
    assert used == {name for name, _ in store.SQL}


def test_doctor_checks_have_a_meaning_and_a_remedy() -> None:
    for check in CHECKS:
        assert check.meaning.endswith(".")
        assert check.remedy


# ---- workers and leases


async def test_doctor_finds_task_held_by_unregistered_worker(database: Database, settings: Settings) -> None:
    task_id = await insert_task(database, new_id())
    found = (await run_doctor(database, settings))["task_held_by_missing_worker"]
    assert found.severity is Severity.PROBLEM
    assert str(task_id) in found.details[0]


async def test_doctor_finds_task_held_by_worker_that_ended_long_ago(
    database: Database, settings: Settings, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    await insert_task(database, worker_id)
    await database.fetch_all("UPDATE tenuto.workers SET ended_at = now() - interval '1 s' WHERE id = $1", worker_id)
    assert "task_held_by_missing_worker" not in await run_doctor(database, settings)
    await database.fetch_all("UPDATE tenuto.workers SET ended_at = now() - interval '1 min' WHERE id = $1", worker_id)
    assert "task_held_by_missing_worker" in await run_doctor(database, settings)


async def test_doctor_finds_expired_lease_that_two_sweeps_missed(
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
async def test_doctor_finds_missing_attempt(app: Tenuto, database: Database, settings: Settings, attempt: int) -> None:
    task_id = await fail_task_three_times(app)
    await execute_without_triggers(
        database, "DELETE FROM tenuto.activities WHERE task_id = $1 AND attempt = $2", task_id, attempt
    )
    found = (await run_doctor(database, settings))["attempt_missing"]
    assert f"task {task_id}" in found.details[0]
    assert f"attempt {attempt + 1}" in found.details[0]


async def test_doctor_accepts_attempts_deleted_by_retention(
    app: Tenuto, database: Database, settings: Settings
) -> None:
    """Retention drops a month with the first attempts; later attempts remain."""
    task_id = await fail_task_three_times(app)
    old = smallest_id_at(datetime.now(UTC) - timedelta(days=100))
    await execute_without_triggers(database, "DELETE FROM tenuto.activities WHERE id = $1", task_id)
    await execute_without_triggers(database, "UPDATE tenuto.activities SET task_id = $1", old)
    assert await run_doctor(database, settings) == {}


@pytest.mark.parametrize("attempt", [2, 4])
async def test_doctor_finds_open_task_without_previous_attempt(
    app: Tenuto, database: Database, settings: Settings, attempt: int
) -> None:
    @app.job
    async def later() -> None: ...

    task = await app.enqueue(later.using(delay=timedelta(hours=1)))
    await database.fetch_all("UPDATE tenuto.tasks SET attempt = $1, activity_id = gen_random_uuid()", attempt)
    found = (await run_doctor(database, settings))["attempt_missing_of_open_task"]
    assert f"task {task.id} (later)" in found.details[0]
    assert f"attempt {attempt}" in found.details[0]


async def test_doctor_finds_attempt_recorded_twice(app: Tenuto, database: Database, settings: Settings) -> None:
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
    assert f"task {task_id} (always_fails)" in found.details[0]
    assert "attempt 2 has 2 records" in found.details[0]


async def test_doctor_finds_first_attempt_whose_id_differs_from_its_task(
    app: Tenuto, database: Database, settings: Settings
) -> None:
    task_id = await fail_task_three_times(app)
    other_id = new_id()
    await execute_without_triggers(database, "UPDATE tenuto.activities SET id = $2 WHERE id = $1", task_id, other_id)
    found = (await run_doctor(database, settings))["first_attempt_id_wrong"]
    assert f"activity {other_id} (always_fails)" in found.details[0]
    assert f"task {task_id}" in found.details[0]


async def test_doctor_finds_task_that_ended_twice(app: Tenuto, database: Database, settings: Settings) -> None:
    task_id = await fail_task_three_times(app)
    await execute_without_triggers(
        database, "UPDATE tenuto.activities SET final = true WHERE task_id = $1 AND attempt = 1", task_id
    )
    found = await run_doctor(database, settings)
    assert f"task {task_id} (always_fails)" in found["task_ended_twice"].details[0]
    assert "2 times" in found["task_ended_twice"].details[0]
    assert "attempt 2" in found["attempt_after_end"].details[0]


async def test_doctor_finds_attempt_after_the_final_one(app: Tenuto, database: Database, settings: Settings) -> None:
    task_id = await fail_task_three_times(app)
    await execute_without_triggers(
        database, "UPDATE tenuto.activities SET final = (attempt = 2) WHERE task_id = $1", task_id
    )
    found = await run_doctor(database, settings)
    assert "attempt 3" in found["attempt_after_end"].details[0]
    assert "task_ended_twice" not in found


@pytest.mark.parametrize("attempt", [1, 3, 4])
async def test_doctor_finds_open_task_with_final_record(
    app: Tenuto, database: Database, settings: Settings, attempt: int
) -> None:
    task_id = await fail_task_three_times(app)
    if attempt == 1:
        await execute_without_triggers(database, "DELETE FROM tenuto.activities WHERE attempt > 1")
    last = await database.fetch_value("SELECT id FROM tenuto.activities WHERE attempt = $1", attempt)
    await insert_task(database, None, id=task_id, activity_id=last or new_id(), attempt=attempt)
    found = (await run_doctor(database, settings))["task_open_and_ended"]
    assert f"task {task_id} (work)" in found.details[0]


async def test_doctor_finds_task_lost_between_two_attempts(app: Tenuto, database: Database, settings: Settings) -> None:
    task_id = await fail_task_three_times(app)
    await execute_without_triggers(
        database, "DELETE FROM tenuto.activities WHERE task_id = $1 AND attempt = 3", task_id
    )
    found = (await run_doctor(database, settings))["task_lost"]
    assert f"task {task_id} (always_fails)" in found.details[0]
    assert "attempt 2" in found.details[0]


# ---- limits and queues


async def test_doctor_finds_limit_key_exceeded_by_live_leases(
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


async def test_doctor_finds_queue_over_its_limit(
    app: Tenuto, database: Database, settings: Settings, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    for _ in range(2):
        await insert_task(database, worker_id)
    await app.limit_queue("default", 1)
    found = (await run_doctor(database, settings))["queue_limit_exceeded"]
    assert (found.severity, found.details) == (Severity.WARNING, ["queue default: 2 running, 1 allowed"])


@pytest.mark.parametrize("limit", [None, 1])
async def test_doctor_finds_queue_without_worker(
    app: Tenuto, database: Database, settings: Settings, register_worker: RegisterWorker, limit: int | None
) -> None:
    @app.job(queue="mail", limit=limit)
    async def send() -> None: ...

    await register_worker()
    await app.enqueue(send)
    found = (await run_doctor(database, settings))["queue_without_worker"]
    assert found.severity is Severity.WARNING
    assert [detail.partition(" ·")[0] for detail in found.details] == [
        "no live worker serves queue mail: 1 task waiting"
    ]
    await database.fetch_all("UPDATE tenuto.workers SET queues = '{default,mail}'")
    assert "queue_without_worker" not in await run_doctor(database, settings)
    await database.fetch_all("UPDATE tenuto.workers SET seen_at = now() - interval '10 min'")
    assert "queue_without_worker" in await run_doctor(database, settings)


async def test_doctor_finds_task_waiting_beside_idle_worker(
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
    assert "worker idle" in found.details[0]
    await database.fetch_all("UPDATE tenuto.workers SET slots = 1")
    await insert_task(database, await database.fetch_value("SELECT id FROM tenuto.workers"))
    assert "task_waits_beside_idle_worker" not in await run_doctor(database, settings)


async def test_doctor_accepts_long_queue_whose_tasks_are_being_claimed(
    app: Tenuto,
    database: Database,
    settings: Settings,
    register_worker: RegisterWorker,
) -> None:
    """A worker with a long queue has free slots between claims, and the queue always has a first task."""

    @app.job
    async def work() -> None: ...

    await register_worker("busy")
    await database.fetch_all("UPDATE tenuto.workers SET started_at = now() - interval '1 h'")
    for _ in range(5):
        await app.enqueue(work)
    await database.fetch_all("UPDATE tenuto.tasks SET run_at = now() - interval '1 h'")

    claimed_count = 0

    async def claim_and_replace() -> None:
        nonlocal claimed_count
        while True:
            await database.fetch_all(
                "UPDATE tenuto.tasks SET id = $1, activity_id = $1, run_at = run_at + interval '1 ms' WHERE id ="
                " (SELECT id FROM tenuto.tasks ORDER BY run_at, id LIMIT 1)",
                new_id(),
            )
            claimed_count += 1

    async def wait_for_claims(seconds: float) -> None:
        assert seconds > 0
        before = claimed_count
        await eventually(lambda: claimed_count > before + 1)  # the first claim may have begun before

    claims = asyncio.create_task(claim_and_replace())
    found = await run_doctor(database, settings, limits=Limits.from_settings(settings), sleep=wait_for_claims)
    assert "task_waits_beside_idle_worker" not in found
    claims.cancel()


async def test_doctor_accepts_tasks_waiting_in_paused_or_full_queue(
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


async def test_doctor_notes_paused_queue(app: Tenuto, database: Database, settings: Settings) -> None:
    await app.pause_queue("mail", "server is down")
    found = (await run_doctor(database, settings))["queue_paused"]
    assert found.severity is Severity.NOTE
    assert "queue mail" in found.details[0]
    assert "by app: server is down" in found.details[0]


async def test_doctor_finds_due_task_that_is_not_promoted(app: Tenuto, database: Database, settings: Settings) -> None:
    @app.job
    async def work() -> None: ...

    task = await app.enqueue(work.using(delay=timedelta(hours=1)))
    assert await run_doctor(database, settings) == {}
    await database.fetch_all("UPDATE tenuto.tasks SET run_at = now() - interval '2 min'")
    found = (await run_doctor(database, settings))["task_overdue"]
    assert (found.severity, str(task.id) in found.details[0]) == (Severity.WARNING, True)


async def test_doctor_finds_parked_task_that_no_token_releases(
    app: Tenuto, database: Database, settings: Settings
) -> None:
    @app.job(rate_limit="1/h")
    async def work() -> None: ...

    task = await app.enqueue(work)
    await database.fetch_all(
        "UPDATE tenuto.tasks SET state = 'scheduled', parked_for = 'rate a', run_at = now() - interval '2 min'"
    )
    await database.fetch_all("INSERT INTO tenuto.rate_buckets VALUES ('rate a', '1/h', now(), now())")
    assert "task_overdue" not in await run_doctor(database, settings)
    await database.fetch_all("UPDATE tenuto.rate_buckets SET release_at = NULL")
    found = (await run_doctor(database, settings))["task_overdue"]
    assert (found.severity, str(task.id) in found.details[0]) == (Severity.WARNING, True)
    await database.fetch_all("DELETE FROM tenuto.rate_buckets")
    assert "task_overdue" in await run_doctor(database, settings)


async def test_doctor_notes_repairs_of_recovery_sweeps(database: Database, settings: Settings) -> None:
    await database.fetch_all("INSERT INTO tenuto.repairs VALUES ('lease_expired', 3, now())")
    found = (await run_doctor(database, settings))["repairs_made"]
    assert found.severity is Severity.NOTE
    assert found.details[0].startswith("3 tasks were recovered from workers that died")


async def test_doctor_lists_only_the_first_offending_rows(database: Database, settings: Settings) -> None:
    worker_id = new_id()
    for _ in range(25):
        await insert_task(database, worker_id)
    found = (await run_doctor(database, settings))["task_held_by_missing_worker"]
    assert len(found.details) == 21
    assert found.details[-1] == "… and more"


# ---- server and schema


@pytest.mark.parametrize(
    ("statement", "detail"),
    [
        (
            "ALTER TABLE tenuto.activities DISABLE TRIGGER activities_are_written_once",
            "disabled on tenuto.activities",
        ),
        ("ALTER TABLE tenuto.activities_old DISABLE TRIGGER ALL", "disabled on tenuto.activities_old"),
        ("DROP TRIGGER activities_are_not_emptied ON tenuto.activities", "missing on tenuto.activities"),
        ("DROP TRIGGER activities_are_not_emptied ON tenuto.activities_old", "missing on tenuto.activities_old"),
    ],
)
async def test_doctor_finds_missing_or_disabled_trigger_of_activities(
    database: Database, settings: Settings, statement: str, detail: str
) -> None:
    await database.fetch_all(statement)
    found = (await run_doctor(database, settings))["triggers_missing"]
    assert found.severity is Severity.PROBLEM
    assert [each for each in found.details if each.endswith(detail)]


async def test_doctor_finds_long_transaction_and_shows_how_to_end_it(
    url: str, database: Database, settings: Settings
) -> None:
    connection = await asyncpg.connect(url, server_settings={"application_name": "forgetful"})
    await connection.execute("BEGIN")
    await connection.fetch("SELECT FROM tenuto.tasks")
    limits = replace(Limits.from_settings(settings), transaction_age=timedelta(0))
    found = (await run_doctor(database, settings, limits=limits))["long_transaction"]
    assert found.severity is Severity.WARNING
    assert "forgetful" in found.details[0]
    assert "idle in transaction" in found.details[0]
    assert f"pg_terminate_backend({connection.get_server_pid()})" in found.details[0]
    assert "long_transaction" not in await run_doctor(database, settings)
    await connection.close()


async def test_doctor_finds_missing_partition(database: Database, settings: Settings) -> None:
    month = datetime.now(UTC).strftime("activities_%Y_%m")
    await database.fetch_all(f"DROP TABLE tenuto.{month}")
    found = (await run_doctor(database, settings))["partitions"]
    assert (found.severity, found.details) == (Severity.WARNING, [f"{month} is missing"])


async def test_doctor_finds_services_that_create_partitions_of_another_period(
    database: Database, settings: Settings
) -> None:
    by_day, by_month = (
        settings.model_copy(update={"partition_period": period})
        for period in (PartitionPeriod.DAY, PartitionPeriod.MONTH)
    )
    assert "partitions" not in await run_doctor(database, by_month)
    found = (await run_doctor(database, by_day))["partitions"]
    assert found.severity is Severity.WARNING
    assert "TENUTO_PARTITION_PERIOD is day, but activities_" in found.details[0]
    await partitions.ensure_partitions(database, datetime.now(UTC), PartitionPeriod.DAY)
    assert "partitions" not in await run_doctor(database, by_day)
    assert "partitions" not in await run_doctor(database, settings), "without the setting"
    found = (await run_doctor(database, by_month))["partitions"]
    assert "TENUTO_PARTITION_PERIOD is month, but activities_" in found.details[0]


async def test_doctor_finds_server_that_may_lose_commits(database: Database, settings: Settings) -> None:
    """The server of the tests may be one."""
    found = {finding.name: finding for finding in await run_checks(database, settings)}["server"]
    if await database.fetch_value("SELECT current_setting('fsync')") == "off":
        assert found.severity is Severity.WARNING
        assert "fsync is off" in found.details
    else:
        assert found.severity is Severity.OK


class ShiftedClock(SystemClock):
    """A machine clock that is this many seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self._shift = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._shift


@pytest.mark.parametrize(("shift_seconds", "direction"), [(3600, "ahead"), (-3600, "behind"), (0, None)])
async def test_doctor_finds_clock_skew(
    database: Database, settings: Settings, shift_seconds: float, direction: str | None
) -> None:
    found = (await run_doctor(database, settings, clock=ShiftedClock(shift_seconds))).get("clock")
    if direction is None:
        assert found is None
    else:
        assert found is not None
        (detail,) = found.details
        assert re.search(rf" (359\d|360\d)\.\d s {direction}$", detail), detail


async def test_doctor_finds_full_disk_of_embedded_database(database: Database, tmp_path: Path) -> None:
    embedded = load_settings(home=tmp_path).model_copy(update={"database": None})
    limits = replace(Limits.from_settings(embedded), free_disk_bytes=2**62)
    found = (await run_doctor(database, embedded, limits=limits))["disk"]
    assert "GiB free of" in found.details[0]
    assert "disk" not in await run_doctor(database, embedded, limits=Limits.from_settings(embedded))


async def test_doctor_omits_other_checks_without_schema(empty_url: str, settings: Settings) -> None:
    database = await Database.open(empty_url)
    found = await run_doctor(database, settings)
    await database.close()
    assert list(found) == ["schema"]
    assert "tenuto migrate" in (found["schema"].remedy or "")


async def test_doctor_warns_when_a_query_times_out(url: str, database: Database, settings: Settings) -> None:
    locker = await asyncpg.connect(url)
    await locker.execute("BEGIN; LOCK TABLE tenuto.repairs IN ACCESS EXCLUSIVE MODE")
    found = (await run_doctor(database, settings))["repairs_made"]
    assert found.severity is Severity.WARNING
    assert "timed out" in found.details[0]
    await locker.close()


async def test_doctor_changes_nothing(database: Database, settings: Settings) -> None:
    statements = [sql for _, sql in store.SQL]
    assert not [sql for sql in statements if "FOR UPDATE" in sql or "INSERT" in sql or "DELETE" in sql]
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        async with database.connection() as connection, connection.transaction(readonly=True):
            await connection.execute("DELETE FROM tenuto.tasks")


async def test_doctor_reports_nothing_while_tasks_run(app: Tenuto, database: Database, settings: Settings) -> None:
    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=0))
    async def sometimes(n: int) -> None:
        if n % 3 == 0:
            raise ValueError(str(n))

    await app.enqueue_many(sometimes, range(2000))
    async with app.worker(slots=50):
        while await app.tasks(limit=1):
            assert await run_doctor(database, settings) == {}
            await asyncio.sleep(0)
    assert await run_doctor(database, settings) == {}
