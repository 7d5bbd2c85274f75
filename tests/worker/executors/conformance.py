"""Conformance tests of executors (J8). A subclass runs them for one executor:

    class TestMyExecutor(Conformance):
        def make_executor(self, context: ExecutorContext) -> Executor:
            return MyExecutor(context)

The first part launches attempts directly and checks what the executor delivers. The second part runs the executor in a
worker on a database. docs/how-to/executors.md describes the contract.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tenuto import Actor, Job, Tenuto
from tenuto.clock import SystemClock, monotonic_seconds
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.jobs.context import Context
from tenuto.jobs.runner import AttemptResult
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.work.tasks import Outcome, OutcomeReason, OutcomeStatus
from tenuto.worker.executors import Executor, ExecutorContext, ExecutorFactory
from tenuto.worker.worker import Worker
from tests.support.model_values import make_held_task
from tests.support.waiting import eventually, eventually_blocking
from tests.worker.executors import conformance_jobs

ANA = Actor.user("ana", "Ana")
SLOTS = 8
ENDLESS = pytest.mark.parametrize(
    "endless", [conformance_jobs.tick, conformance_jobs.tick_in_thread], ids=lambda job: job.name
)


class ExecutorHarness:
    """Launches attempts in an executor and collects their results."""

    def __init__(self, make_executor: ExecutorFactory) -> None:
        self._delivered: queue.Queue[AttemptResult] = queue.Queue()
        self.results: list[AttemptResult] = []
        self.executor = make_executor(ExecutorContext(conformance_jobs.app.jobs, SystemClock(), self._deliver, SLOTS))
        self.executor.start()

    def _deliver(self, results: Sequence[AttemptResult]) -> None:
        for result in results:
            self._delivered.put(result)

    def make_attempt(self, job: Job[..., Any], *args: Any, **fields: Any) -> Attempt:
        defaults = {"input": job.dump_input(args, {}), "name": job.name, "policy_json": job.policy_json}
        task = make_held_task(**{**defaults, **fields})
        return Attempt(task, Context(task), monotonic_seconds() + 600, monotonic_seconds())

    def start(self, job: Job[..., Any], *args: Any, **fields: Any) -> Attempt:
        attempt = self.make_attempt(job, *args, **fields)
        self.executor.launch([attempt])
        return attempt

    def wait_for_outcome(self, attempt: Attempt) -> Outcome | None:
        """Wait until the result of an attempt is delivered, and return its outcome."""
        while not (found := [outcome for ended, outcome in self.results if ended is attempt]):
            ended, outcome = self._delivered.get(timeout=60)
            assert ended.has_ended, "a result is delivered only after the code has ended"
            self.results.append((ended, outcome))
        assert len(found) == 1, "a result is delivered once"
        return found[0]

    def run(self, job: Job[..., Any], *args: Any, **fields: Any) -> Outcome:
        outcome = self.wait_for_outcome(self.start(job, *args, **fields))
        assert outcome is not None
        return outcome

    def close_and_expect_no_results(self) -> None:
        """Close the executor, after which it delivers nothing."""
        self.executor.close()
        assert self._delivered.empty()


def wait_until_written(file: Path) -> None:
    eventually_blocking(lambda: file.exists() and file.read_text(), timeout=60)


class Conformance:
    """Tests that every executor must pass."""

    has_checkpoints: ClassVar[bool] = True
    """Whether chains can store steps and sleep: their code needs access to the worker's database for that."""

    runs_elsewhere: ClassVar[bool] = False
    """Whether code runs in processes that the executor has not started, and that remain when it is closed."""

    def make_executor(self, context: ExecutorContext) -> Executor:
        """Return the executor to test."""
        raise NotImplementedError

    @pytest.fixture
    def harness(self) -> Iterator[ExecutorHarness]:
        harness = ExecutorHarness(self.make_executor)
        yield harness
        harness.close_and_expect_no_results()

    # --- outcomes --------------------------------------------------------------------------------------------------

    def test_executor_reports_return_value(self, harness: ExecutorHarness) -> None:
        for job in (conformance_jobs.double, conformance_jobs.double_in_thread):
            outcome = harness.run(job, 21)
            assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED, "42")
            assert outcome.started_at is not None
            assert outcome.ended_at is not None
            assert outcome.started_at <= outcome.ended_at
        outcome = harness.run(conformance_jobs.return_nothing)
        assert (outcome.status, outcome.output, outcome.error) == (OutcomeStatus.COMPLETED, None, None)

    def test_executor_gives_code_the_context_of_its_attempt(self, harness: ExecutorHarness) -> None:
        attempt = harness.start(conformance_jobs.describe_attempt, attempt=3, fence=7)
        outcome = harness.wait_for_outcome(attempt)
        assert outcome is not None
        key = attempt.task.id
        assert outcome.output == f'{{"key":"{key}","attempt":3,"fence":7,"by":"Ana"}}'

    def test_executor_reports_exceptions_as_failures(self, harness: ExecutorHarness) -> None:
        outcome = harness.run(conformance_jobs.fail)
        assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.ERROR, True)
        assert outcome.error is not None
        assert '"ValueError"' in outcome.error
        assert "no flour" in outcome.error
        assert "in fail" in outcome.error  # the line it came from
        assert harness.run(conformance_jobs.fail_for_good).may_retry is False
        later = harness.run(conformance_jobs.fail_until_later)
        assert later.retry_at is not None
        assert later.ended_at is not None
        assert 80 < (later.retry_at - later.ended_at).total_seconds() < 100

    def test_executor_survives_system_exit_of_a_job(self, harness: ExecutorHarness) -> None:
        outcome = harness.run(conformance_jobs.exit_process)
        assert (outcome.status, outcome.reason) == (OutcomeStatus.FAILED, OutcomeReason.ERROR)
        assert harness.run(conformance_jobs.double, 1).output == "2"

    def test_executor_defers_unknown_job_and_rejects_invalid_input(self, harness: ExecutorHarness) -> None:
        outcome = harness.run(conformance_jobs.double, 1, name="unheard_of")
        assert outcome.status is OutcomeStatus.COMPLETED
        assert outcome.deferral is not None, "no attempt is counted"
        outcome = harness.run(conformance_jobs.double, 1, input='{"n": "many"}')
        assert (outcome.status, outcome.reason, outcome.may_retry) == (
            OutcomeStatus.FAILED,
            OutcomeReason.REFUSED,
            False,
        )

    def test_executor_reports_warnings_and_errors_in_the_status(self, harness: ExecutorHarness) -> None:
        assert harness.run(conformance_jobs.record_warning).status is OutcomeStatus.COMPLETED_WITH_WARNING
        assert harness.run(conformance_jobs.record_error).status is OutcomeStatus.COMPLETED_WITH_ERROR
        outcome = harness.run(conformance_jobs.return_unstorable)
        assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED_WITH_WARNING, None)

    def test_executor_passes_on_progress_and_log_of_running_code(
        self, harness: ExecutorHarness, tmp_path: Path
    ) -> None:
        attempt = harness.start(conformance_jobs.report_progress, tmp_path / "flag")
        eventually_blocking(lambda: '"kneading"' in (attempt.context.progress_json or ""), timeout=60)
        assert harness.results == []
        (tmp_path / "flag").touch()
        outcome = harness.wait_for_outcome(attempt)
        assert outcome is not None
        assert outcome.log is not None
        assert "kneading" in outcome.log
        assert outcome.progress == '{"done": 3, "total": 10, "message": "kneading"}'

    # --- concurrency ------------------------------------------------------------------------------------------------

    def test_executor_runs_an_attempt_in_every_slot_and_launch_does_not_block(
        self, harness: ExecutorHarness, tmp_path: Path
    ) -> None:
        attempts = [
            harness.make_attempt(conformance_jobs.wait_for_others, tmp_path, str(number), SLOTS)
            for number in range(SLOTS)
        ]
        harness.executor.launch(attempts[:-1])  # returns although none of these can end yet
        harness.executor.launch(attempts[-1:])
        outcomes = [harness.wait_for_outcome(attempt) for attempt in attempts]
        assert [outcome.status for outcome in outcomes if outcome is not None] == [OutcomeStatus.COMPLETED] * SLOTS

    def test_failed_and_stopped_attempts_do_not_affect_others(self, harness: ExecutorHarness, tmp_path: Path) -> None:
        running = harness.start(conformance_jobs.report_progress, tmp_path / "flag")
        assert harness.run(conformance_jobs.fail).status is OutcomeStatus.FAILED
        stopped = harness.start(conformance_jobs.tick, tmp_path / "ticks")
        wait_until_written(tmp_path / "ticks")
        stopped.stop(StopReason.CANCELLED, ANA)
        harness.wait_for_outcome(stopped)
        (tmp_path / "flag").touch()
        outcome = harness.wait_for_outcome(running)
        assert outcome is not None
        assert outcome.status is OutcomeStatus.COMPLETED

    # --- stopping ---------------------------------------------------------------------------------------------------

    @ENDLESS
    def test_executor_reports_stopped_code_only_after_it_has_stopped(
        self, harness: ExecutorHarness, tmp_path: Path, endless: Job[..., Any]
    ) -> None:
        file = tmp_path / "ticks"
        attempt = harness.start(endless, file)
        wait_until_written(file)
        attempt.stop(StopReason.CANCELLED, ANA)
        outcome = harness.wait_for_outcome(attempt)
        ticks = file.read_text()
        assert outcome is not None
        assert (outcome.status, outcome.reason) == (OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED)
        assert outcome.error is not None
        assert "Ana" in outcome.error
        assert outcome.started_at is not None
        threading.Event().wait(0.1)  # long enough for twenty more ticks
        assert file.read_text() == ticks

    @pytest.mark.parametrize(
        ("reason", "status", "recorded"),
        [
            (StopReason.TIMED_OUT, OutcomeStatus.FAILED, OutcomeReason.TIMED_OUT),
            (StopReason.HANDED_BACK, OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK),
        ],
    )
    def test_executor_reports_the_first_stop_reason(
        self,
        harness: ExecutorHarness,
        tmp_path: Path,
        reason: StopReason,
        status: OutcomeStatus,
        recorded: OutcomeReason,
    ) -> None:
        attempt = harness.start(
            conformance_jobs.tick, tmp_path / "ticks", policy_json=TaskPolicy(timeout_seconds=5.0).to_json()
        )
        wait_until_written(tmp_path / "ticks")
        assert attempt.deadline is not None  # the limit runs from the start of the code
        attempt.stop(reason)
        attempt.stop(StopReason.CANCELLED, ANA)  # the first reason is final
        outcome = harness.wait_for_outcome(attempt)
        assert outcome is not None
        assert (outcome.status, outcome.reason) == (status, recorded)

    def test_executor_reports_no_outcome_after_a_lost_lease(self, harness: ExecutorHarness, tmp_path: Path) -> None:
        attempt = harness.start(conformance_jobs.tick_in_thread, tmp_path / "ticks")
        wait_until_written(tmp_path / "ticks")
        attempt.stop(StopReason.LEASE_LOST)
        assert harness.wait_for_outcome(attempt) is None

    @ENDLESS
    def test_executor_does_not_start_code_that_was_stopped_before(
        self, harness: ExecutorHarness, tmp_path: Path, endless: Job[..., Any]
    ) -> None:
        attempt = harness.make_attempt(endless, tmp_path / "ticks")
        attempt.stop(StopReason.CANCELLED, ANA)
        harness.executor.launch([attempt])
        outcome = harness.wait_for_outcome(attempt)
        assert outcome is not None
        assert outcome.status is OutcomeStatus.CANCELLED
        assert not (tmp_path / "ticks").exists()

    def test_repeated_stops_from_several_threads_give_one_result(
        self, harness: ExecutorHarness, tmp_path: Path
    ) -> None:
        attempts = [harness.start(conformance_jobs.tick, tmp_path / f"ticks-{number}") for number in range(4)]
        for number in range(4):
            wait_until_written(tmp_path / f"ticks-{number}")

        def stop_all() -> None:
            for attempt in attempts:
                for _ in range(20):
                    attempt.stop(StopReason.CANCELLED, ANA)

        stopping_threads = [threading.Thread(target=stop_all) for _ in range(4)]
        for thread in stopping_threads:
            thread.start()
        for thread in stopping_threads:
            thread.join()
        for attempt in attempts:
            outcome = harness.wait_for_outcome(attempt)
            assert outcome is not None
            assert outcome.status is OutcomeStatus.CANCELLED
            attempt.stop(StopReason.TIMED_OUT)  # too late: the code has ended

    def test_stall_check_does_not_disturb_running_code(self, harness: ExecutorHarness, tmp_path: Path) -> None:
        attempt = harness.start(conformance_jobs.report_progress, tmp_path / "flag")
        for _ in range(5):
            harness.executor.check_for_stalls()
        (tmp_path / "flag").touch()
        harness.wait_for_outcome(attempt)

    def test_closed_executor_leaves_no_threads_or_processes(self, tmp_path: Path) -> None:
        threads = set(threading.enumerate())
        harness = ExecutorHarness(self.make_executor)
        attempt = harness.start(conformance_jobs.tick_in_thread, tmp_path / "ticks")
        wait_until_written(tmp_path / "ticks")
        attempt.stop(StopReason.HANDED_BACK)
        harness.wait_for_outcome(attempt)
        harness.close_and_expect_no_results()
        pid = int((tmp_path / "ticks").read_text().split()[0])
        assert not (self.runs_elsewhere and pid == os.getpid())
        eventually_blocking(lambda: self.runs_elsewhere or pid == os.getpid() or not Path(f"/proc/{pid}").exists())
        eventually_blocking(lambda: all(thread in threads or not thread.is_alive() for thread in threading.enumerate()))

    # --- under a worker ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def worker(self, app: Tenuto, **options: Any) -> AsyncIterator[Worker]:
        app.jobs.jobs_by_name.update(conformance_jobs.app.jobs.jobs_by_name)
        settings = {"slots": SLOTS, "poll_seconds": 60, "grace_seconds": 0, **options}
        async with app.worker(executor=self.make_executor, **settings) as worker:
            yield worker

    async def test_worker_with_executor_runs_retries_and_records_tasks(self, app: Tenuto) -> None:
        async with self.worker(app):
            tasks = [await app.enqueue(conformance_jobs.double, n) for n in range(20)]
            retried = await app.wait(await app.enqueue(conformance_jobs.fail_once), timeout=60)
            assert [(await app.wait(task, timeout=60)).output for task in tasks] == [2 * n for n in range(20)]
        assert (retried.state, retried.attempt, retried.output) == ("completed", 2, 2)

    @ENDLESS
    async def test_worker_with_executor_stops_cancelled_code(
        self, app: Tenuto, tmp_path: Path, endless: Job[..., Any]
    ) -> None:
        file = tmp_path / "ticks"
        async with self.worker(app):
            task = await app.enqueue(endless, file)
            await eventually(lambda: file.exists() and file.read_text(), timeout=60)
            assert await app.cancel(task.id) == "stopping"
            record = await app.wait(task, timeout=60)
            assert (record.state, record.reason) == ("cancelled", "requested")

    async def test_worker_with_executor_enforces_time_limits(self, app: Tenuto, tmp_path: Path) -> None:
        async with self.worker(app):
            task = await app.enqueue(conformance_jobs.tick, tmp_path / "ticks")
            database = await app.open()
            retry = replace(
                conformance_jobs.tick.policy.retry, max_attempts=1000
            )  # the task still exists when cancelled
            policy = TaskPolicy(retry, timeout_seconds=0.3).to_json()
            # The limit applies to this attempt, or to the next one if the task was already claimed.
            await database.fetch_all("UPDATE tenuto.tasks SET policy = $1 WHERE id = $2", policy, task.id)
            await eventually(lambda: (tmp_path / "ticks").exists(), timeout=60)
        async with self.worker(app):
            await eventually(lambda: self._timed_out(app, task.id), timeout=60)
            await app.cancel(task.id)
            await app.wait(task, timeout=60)

    @staticmethod
    async def _timed_out(app: Tenuto, task_id: Any) -> bool:
        return any(attempt.reason == "timed_out" for attempt in await app.attempts(task_id))

    async def test_worker_with_executor_respects_limits(self, app: Tenuto, tmp_path: Path) -> None:
        (tmp_path / "here").mkdir()
        async with self.worker(app):
            tasks = [
                await app.enqueue(conformance_jobs.count_concurrent_runs, tmp_path / "here", str(number))
                for number in range(8)
            ]
            most = [(await app.wait(task, timeout=60)).output for task in tasks]
        assert max(most) == 2

    async def test_stopping_worker_hands_back_running_tasks_of_its_executor(self, app: Tenuto, tmp_path: Path) -> None:
        file = tmp_path / "ticks"
        async with self.worker(app):
            task = await app.enqueue(conformance_jobs.tick_in_thread, file)
            await eventually(lambda: file.exists() and file.read_text(), timeout=60)
        ticks = file.read_text()
        attempts = await app.attempts(task.id)
        assert [attempt.reason for attempt in attempts] == ["handed_back", None]
        assert (await app.task(task.id)).state == "queued"
        assert file.read_text() == ticks

    async def test_chain_continues_after_its_last_step_or_fails_without_checkpoints(self, app: Tenuto) -> None:
        async with self.worker(app):
            record = await app.wait(await app.enqueue(conformance_jobs.chained, 1), timeout=60)
        if self.has_checkpoints:
            assert (record.state, record.output, record.attempt) == ("completed", "2", 2)
        else:
            assert record.state == "failed"
            assert "has no step checkpoints and cannot sleep" in record.error["message"]

    async def test_workflow_continues_after_its_last_step_or_fails_without_checkpoints(self, app: Tenuto) -> None:
        async with self.worker(app):
            record = await app.wait(await app.enqueue(conformance_jobs.flow, 1), timeout=60)
            parent = await app.wait(await app.enqueue(conformance_jobs.parent, 21), timeout=60)
        if not self.has_checkpoints:
            assert "has no step checkpoints and cannot sleep" in record.error["message"]
            return
        assert (record.state, record.output, record.attempt) == ("completed", 5, 2)
        if self.runs_elsewhere:
            assert "cannot run double as a child" in parent.error["message"]
        else:
            assert (parent.state, parent.output) == ("completed", 42)

    async def test_job_waits_for_an_event_or_fails_without_checkpoints(self, app: Tenuto) -> None:
        async with self.worker(app):
            task = await app.enqueue(conformance_jobs.wait_for_greeting)
            if self.has_checkpoints:
                await eventually(lambda: app.events.waits_of_task(task.id), timeout=60)
                await app.events.send("greeting", "hello", key="a")
            record = await app.wait(task, timeout=60)
        if self.has_checkpoints:
            assert (record.state, record.output, record.attempt) == ("completed", "hello", 1)
        else:
            assert record.state == "failed"
