"""`tenuto operation` and `--where`: bulk operations on the command line, also when the scheduler is killed."""

from __future__ import annotations

import signal

import pytest

from tenuto import Tenuto
from tests.cli.conftest import Shell
from tests.support.waiting import eventually, eventually_blocking


def enqueue(shell: Shell, count: int) -> None:
    for _ in range(count):
        shell("run", "double", "--input", '{"n": 1}')


def test_tasks_are_cancelled_by_where_and_followed_until_the_end(shell: Shell) -> None:
    enqueue(shell, 3)
    refused = shell("task", "cancel", "--where", "name:double", "-o", "json")
    assert refused.error["code"] == "cli.confirmation.unavailable"
    shell.start_service("scheduler", "--name", "s1").wait_for_line("scheduler started")
    result = shell("task", "cancel", "--where", "name:double", "--reason", "not needed", "--yes", "--wait")
    assert (result.code, result.out.splitlines()[-1]) == (0, "3 of 3 done"), result
    assert shell("task", "list", "--count").out == "0\n"
    (listed,) = shell("operation", "list", "-o", "json").json
    assert (listed["kind"], listed["state"], listed["reason"]) == ("task.cancel", "ended", "not needed")
    shown = shell("operation", "show", listed["id"]).out
    assert "name is double" in shown
    assert "3 of 3 done" in shown
    assert shell("operation", "items", listed["id"], "-o", "json").json == []
    nothing = shell("execution", "cancel", "--where", "state:in_progress", "--yes")
    assert (nothing.code, nothing.err) == (0, "no executions match: state is in_progress\n")


def test_failed_tasks_are_retried_by_where(shell: Shell) -> None:
    for _ in range(2):
        shell("run", "hopeless")
    worker = shell.start_service("worker", "--name", "w1")
    eventually_blocking(lambda: shell("dead-letter", "list", "--count").out == "2\n", 30)
    worker.stop()
    shell.start_service("scheduler", "--name", "s1")
    where = ("--where", "name:hopeless error:~cannot")
    result = shell("task", "retry", *where, "--note", "try again", "--yes", "--wait")
    assert (result.code, result.out.splitlines()[-1]) == (0, "2 of 2 done"), result
    assert shell("task", "list", "--where", "name:hopeless", "--count").out == "2\n"
    assert shell("dead-letter", "list", "--state", "retried", "--count").out == "2\n"
    both = shell("task", "retry", *where, "--input", "{}", "-o", "json")
    assert both.error["code"] == "cli.option.conflict"


def test_cancel_commands_take_one_id_or_a_filter(shell: Shell) -> None:
    for resource in ("task", "execution"):
        assert shell(resource, "cancel", "-o", "json").error["code"] == "cli.option.requires_other"
        both = shell(resource, "cancel", "019a8b3c", "--where", "id:01", "-o", "json")
        assert both.error["code"] == "cli.option.conflict"
        assert shell(resource, "cancel", "019a8b3c", "--yes", "-o", "json").error["code"] == "cli.option.requires_other"


def test_operation_is_started_and_aborted(shell: Shell) -> None:
    enqueue(shell, 2)
    id = shell("operation", "start", "task.cancel", "--where", "name:double", "--yes").out.strip()
    aborted = shell("operation", "abort", id[:20], "-o", "json").json
    assert (aborted["state"], aborted["item_count"], aborted["succeeded_count"]) == ("aborted", 2, 0)
    assert shell("operation", "watch", id).code == 1
    assert shell("task", "list", "--count").out == "2\n"


@pytest.mark.slow
async def test_c30_operation_of_a_killed_scheduler_is_completed_by_another_one(shell: Shell, app: Tenuto) -> None:
    """The scheduler dies by SIGKILL in the middle; afterwards every task was cancelled once, as counted."""
    count = 6000

    @app.job(name="double")
    async def double(n: int) -> int:
        return n

    await app.enqueue_many(double, [{"n": number} for number in range(count)])
    started = await app.bulk_operations.create("task.cancel", "name:double", expected=count)
    database = await app.open()

    async def load_counts() -> tuple[int, int]:
        """Return the number of processed and of open tasks, at one moment."""
        row = await database.fetch_one(
            "SELECT (SELECT succeeded FROM tenuto.bulk_operations) AS done, count(*) AS open FROM tenuto.tasks"
        )
        assert row is not None
        return row["done"], row["open"]

    async def has_begun() -> bool:
        return (await load_counts())[0] > 0

    first = shell.start_service("scheduler", "--name", "s1")
    await eventually(has_begun, 60)
    first.stop(signal.SIGKILL)
    done, open_count = await load_counts()
    assert 0 < done < count, "the scheduler was killed in the middle"
    assert done + open_count == count, "no task is cancelled without being counted"
    shell.start_service("scheduler", "--name", "s2")
    ended = await app.bulk_operations.wait(started.id, 100)
    assert (ended.item_count, ended.succeeded_count, ended.failed_count, ended.skipped_count) == (count, count, 0, 0)
    row = await database.fetch_one("SELECT count(*) AS rows, count(DISTINCT task_id) AS tasks FROM tenuto.activities")
    assert row is not None
    assert (row["rows"], row["tasks"]) == (count, count)


def test_schedule_is_backfilled_and_the_backfill_paused_resumed_and_watched(shell: Shell) -> None:
    shell("schedule", "add", "daily", "--cron", "0 2 * * *", "--step", 'double:{"n": 1}')
    period = ("schedule", "backfill", "daily", "--from", "2025-03-01", "--to", "2025-03-03")
    preview = shell(*period, "--preview", "-o", "json").json
    assert preview["instants"] == [f"2025-03-0{day}T02:00:00+00:00" for day in (1, 2, 3)]
    assert "3 runs; 0 due times have a run" in shell(*period, "--preview").err
    started = shell(*period, "--parallel", "2", "--reason", "the source was late", "-o", "json").json
    assert (started["item_count"], started["max_running"]) == (3, 2)
    assert "paused by" in shell("operation", "pause", started["id"]).err
    assert "paused" in shell("operation", "show", started["id"]).out
    shell("operation", "resume", started["id"])
    shell.start_service("scheduler", "--name", "s1")
    shell.start_service("worker", "--name", "w1")
    result = shell("operation", "watch", started["id"], "--timeout", "60")
    assert (result.code, result.out.splitlines()[-1]) == (0, "3 of 3 done"), result
    assert len(shell("execution", "list", "--where", "origin:backfill state:completed", "-o", "json").json) == 3
    again = shell(*period, "-o", "json")
    assert again.error["code"] == "schedule.backfill.nothing_to_run"
