"""The example Nightly HR Sync (S12) with real processes and files: every event of its timeline, and four nights.

Triggers in the database record all changes of tasks, execution and schedule with their order and transaction. The test
reads that record, so it does not depend on timing.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.store.service_notifications import notify_services
from tenuto.store.work.executions import ExecutionRecord
from tests.cli.conftest import Service, Shell, clean_environment
from tests.support.waiting import eventually

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nightly_hr_sync"
NAME = "Nightly HR Sync"
IMPORT, SYNC, AD_EXPORT, LDAP_EXPORT, AD_CONFIRM, LDAP_CONFIRM = range(6)
"""Step indexes in the plan."""

TRACE = """
CREATE TABLE trace (
    number bigserial PRIMARY KEY,
    tx bigint NOT NULL DEFAULT txid_current(),
    event text NOT NULL,
    step integer,
    was text,
    becomes text
);
CREATE FUNCTION trace_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO trace (event, step, becomes) VALUES ('task', NEW.step_index, NEW.state);
    ELSIF TG_OP = 'UPDATE' THEN
        IF OLD.state <> NEW.state THEN
            INSERT INTO trace (event, step, was, becomes) VALUES ('task', NEW.step_index, OLD.state, NEW.state);
        END IF;
    ELSE
        INSERT INTO trace (event, step, was) VALUES ('task', OLD.step_index, OLD.state);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER trace_task AFTER INSERT OR UPDATE OR DELETE ON tenuto.tasks
    FOR EACH ROW EXECUTE FUNCTION trace_task();
CREATE FUNCTION trace_activity() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO trace (event, step, becomes) VALUES ('activity', NEW.step_index, NEW.status);
    RETURN NULL;
END $$;
CREATE TRIGGER trace_activity AFTER INSERT ON tenuto.activities FOR EACH ROW EXECUTE FUNCTION trace_activity();
CREATE FUNCTION trace_execution() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO trace (event, was, becomes)
    SELECT 'execution', CASE WHEN TG_OP = 'UPDATE' THEN OLD.state || ' ' || OLD.current_group END,
           NEW.state || ' ' || NEW.current_group
    WHERE TG_OP = 'INSERT' OR (OLD.state, OLD.current_group) IS DISTINCT FROM (NEW.state, NEW.current_group);
    RETURN NULL;
END $$;
CREATE TRIGGER trace_execution AFTER INSERT OR UPDATE ON tenuto.executions
    FOR EACH ROW EXECUTE FUNCTION trace_execution();
CREATE FUNCTION trace_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO trace (event, was, becomes) VALUES ('last run', OLD.last_run_at::text, NEW.last_run_at::text);
    INSERT INTO trace (event, was, becomes) VALUES ('next run', OLD.next_run_at::text, NEW.next_run_at::text);
    RETURN NULL;
END $$;
CREATE TRIGGER trace_schedule AFTER UPDATE ON tenuto.schedules FOR EACH ROW EXECUTE FUNCTION trace_schedule()
"""


@dataclass(frozen=True)
class TransactionRecord:
    """The changes of one transaction, in order."""

    events: list[tuple[str, Any, Any, Any]]

    def of(self, event: str) -> list[tuple[Any, Any, Any]]:
        return [(step, was, becomes) for name, step, was, becomes in self.events if name == event]

    def moved(self, was: str | None, becomes: str | None) -> list[int]:
        """Return the steps whose tasks changed from one state to another."""
        return sorted(step for step, before, after in self.of("task") if (before, after) == (was, becomes))

    @property
    def kinds(self) -> set[str]:
        return {name for name, *_ in self.events}


@pytest.fixture
def shell(url: str, tmp_path: Path) -> Iterator[Shell]:
    """A shell in the directory of the example, with the HR file in the files of its home."""
    files = tmp_path / "home" / "files"
    files.mkdir(parents=True)
    shutil.copy(EXAMPLE / "people.csv", files)
    services: list[Service] = []
    yield Shell(
        EXAMPLE,
        clean_environment(
            TENUTO_DATABASE=url,
            TENUTO_HOME=str(tmp_path / "home"),
            TENUTO_DISABLED_EXTENSIONS="notifications",
            PYTHONDONTWRITEBYTECODE="1",
        ),
        services,
    )
    for service in services:
        service.clean_up()


@pytest.fixture
async def transactions(shell: Shell, app: Tenuto) -> list[TransactionRecord]:
    """Apply and run the example, make its schedule due, and return the changes by transaction."""
    assert shell("migrate").code == 0
    applied = shell("apply", "nightly.yaml", "--reason", "the first night")
    assert applied.code == 0, applied.err
    assert f"applied by {_login()}" in applied.err
    shell.start_service("up").wait_for_line("stop with Ctrl-C")
    database = await app.open()
    for statement in TRACE.split(";\nCREATE "):
        await database.fetch_all(statement if statement.startswith("\nCREATE") else f"CREATE {statement}")
    last_night = await _last_night(app)
    async with database.connection() as connection, connection.transaction():  # no scheduler can fire it in between
        await connection.execute("UPDATE tenuto.schedules SET next_run_at = $1", last_night)
        await connection.execute("TRUNCATE trace")
    await notify_services(database, ["schedules"])
    found = await eventually(lambda: _ended(app), 30)
    await app.executions.wait(found.id, 30)
    rows = await database.fetch_all("SELECT tx, event, step, was, becomes FROM trace ORDER BY number")
    # Ordered by the first write; transactions that change the same execution wait for each other.
    order = list(dict.fromkeys(row["tx"] for row in rows))
    ordered = sorted(rows, key=lambda row: order.index(row["tx"]))
    return [
        TransactionRecord([tuple(row)[1:] for row in of_one])
        for _, of_one in groupby(ordered, key=lambda row: row["tx"])
    ]


async def _last_night(app: Tenuto) -> datetime:
    """Return the last instant at which the schedule would have been due."""
    schedule, now = await app.schedules.get(NAME), (await app.open()).clock.now()
    due = schedule.definition.trigger.next_after(now - timedelta(hours=26))
    assert due is not None
    following = schedule.definition.trigger.next_after(due)
    assert following is not None
    return following if following <= now else due


async def _ended(app: Tenuto) -> ExecutionRecord | None:
    found = await app.executions.list(schedule=NAME)
    return found[0] if found and found[0].ended_at is not None else None


def _login() -> str:
    from tenuto.cli.command import login_name

    return login_name()


@pytest.mark.slow
async def test_nightly_hr_sync_follows_the_documented_timeline(
    transactions: list[TransactionRecord], app: Tenuto, tmp_path: Path
) -> None:
    following = iter(transactions)

    # 1. Scheduler creates execution, queues ALL 6 tasks: index 0 as queued, the others as waiting.
    created = next(following)
    assert created.of("execution") == [(None, None, "in_progress 0")]
    assert created.moved(None, "queued") == [IMPORT]
    assert created.moved(None, "waiting") == [SYNC, AD_EXPORT, LDAP_EXPORT, AD_CONFIRM, LDAP_CONFIRM]
    assert {"last run", "next run"} <= created.kinds, "in the same transaction"

    # 2. Worker picks up index 0 task, executes Full Import.
    assert next(following).moved("queued", "running") == [IMPORT]

    # 3. Worker completes: index 1 becomes queued, in the transaction that ends the task.
    handed_over = next(following)
    assert handed_over.of("activity") == [(IMPORT, None, "completed")]
    assert handed_over.moved("running", None) == [IMPORT]
    assert handed_over.of("execution") == [(None, "in_progress 0", "in_progress 1")]

    # 4. Worker picks up index 1 task, executes Full Sync.
    assert_claimed([SYNC], handed_over, following)

    # 5. Worker completes: index 2, both tasks, becomes queued.
    handed_over = next(following)
    assert handed_over.of("activity") == [(SYNC, None, "completed")]
    assert handed_over.of("execution") == [(None, "in_progress 1", "in_progress 2")]

    # 6. Worker dispatches BOTH index 2 tasks in parallel: before either ends.
    assert_claimed([AD_EXPORT, LDAP_EXPORT], handed_over, following)

    # 7. First export completes: one remains, so it waits. 8. Second export completes: index 3 becomes queued.
    second = take_ends([AD_EXPORT, LDAP_EXPORT], following)
    assert second.of("execution") == [(None, "in_progress 2", "in_progress 3")]

    # 9. Worker dispatches BOTH index 3 tasks in parallel.
    assert_claimed([AD_CONFIRM, LDAP_CONFIRM], second, following)

    # 10. Both confirming imports complete: no more steps.
    other = take_ends([AD_CONFIRM, LDAP_CONFIRM], following)

    # 11. Execution marked Completed, in the same transaction; and no further change.
    assert other.of("execution") == [(None, "in_progress 3", "completed 3")]
    assert list(following) == []

    await _check_schedule_and_execution(app)
    _check_target_systems(tmp_path / "home" / "files")


def assert_claimed(steps: list[int], handed_over: TransactionRecord, following: Iterator[TransactionRecord]) -> None:
    """Assert that a group is claimed as a whole, in the transaction that queued it or in the next one."""
    if handed_over.moved("waiting", "running"):
        assert handed_over.moved("waiting", "running") == steps
    else:
        assert handed_over.moved("waiting", "queued") == steps
        assert next(following).moved("queued", "running") == steps


def take_ends(steps: list[int], following: Iterator[TransactionRecord]) -> TransactionRecord:
    """Assert that the steps of a group complete and that only the last end advances the execution; return that one.

    A worker records outcomes that are ready together in one transaction."""
    ended: list[int] = []
    while True:
        transaction = next(following)
        found = transaction.of("activity")
        assert {status for _, _, status in found} == {"completed"}
        ended += [step for step, _, _ in found]
        assert transaction.moved("running", None) == sorted(step for step, _, _ in found)
        if sorted(ended) == steps:
            return transaction
        assert transaction.kinds == {"activity", "task"}, "no group advances"
        assert len(transaction.of("task")) == 1


async def _check_schedule_and_execution(app: Tenuto) -> None:
    (listed,) = await app.executions.list(schedule=NAME)
    execution = await app.executions.get(listed.id)
    assert (execution.state, execution.error, execution.failed_step_count) == ("completed", None, 0)
    assert (execution.origin, execution.initiator_name) == ("trigger", "scheduler")
    assert [(step.group, step.name, step.state) for step in execution.steps] == [
        (0, "HR System - Full Import", "completed"),
        (1, "HR System - Full Sync", "completed"),
        (2, "AD - Export", "completed"),
        (2, "LDAP - Export", "completed"),
        (3, "AD - Confirming Import", "completed"),
        (3, "LDAP - Confirming Import", "completed"),
    ]
    schedule = await app.schedules.get(NAME)
    assert schedule.last_run_at == execution.started_at
    assert schedule.next_run_at == schedule.definition.trigger.next_after(execution.started_at)
    (entry,) = await app.schedules.ledger(NAME)
    assert (entry.decision, entry.execution_id) == ("fired", listed.id)
    assert entry.due_at == execution.due_at
    assert await app.tasks() == []


def _check_target_systems(files: Path) -> None:
    ad, ldap = (_read_rows(files / name) for name in ("ad.csv", "ldap.csv"))
    people = ["ada.lovelace", "alan.turing", "edsger.dijkstra", "grace.hopper", "radia.perlman"]
    assert sorted(row["account"] for row in ad) == sorted(row["uid"] for row in ldap) == people
    assert {row["account"]: row["manager"] for row in ad}["alan.turing"] == "ada.lovelace"


def _read_rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_nightly_hr_sync_shows_joiner_mover_and_leaver(shell: Shell, tmp_path: Path) -> None:
    assert shell("migrate").code == 0
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "nights.py"), str(tmp_path)],
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, first, joiner, mover, leaver = done.stdout.split("\nNight ")
    assert "Added 5" in first
    assert "AD   + barbara.liskov" in joiner
    assert "LDAP + barbara.liskov" in joiner
    assert "AD   ~ alan.turing" in mover
    assert "manager ada.lovelace → grace.hopper" in mover
    assert "LDAP" in mover
    assert "LDAP ~" not in mover, "LDAP has no attribute that changed"
    assert "AD   - edsger.dijkstra" in leaver
    assert "LDAP - edsger.dijkstra" in leaver
    assert len(_read_rows(tmp_path / "files" / "ad.csv")) == len(_read_rows(tmp_path / "files" / "ldap.csv")) == 5


def test_nightly_hr_sync_readme_links_existing_files() -> None:
    readme = (EXAMPLE / "README.md").read_text("utf-8")
    for file in ("nightly.yaml", "people.csv", "nights.py"):
        assert f"]({file})" in readme
        assert (EXAMPLE / file).is_file()
