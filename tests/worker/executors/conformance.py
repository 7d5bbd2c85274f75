"""What any task server must pass (J8): a class of tests, run for each by a subclass that says how it is made.

    class TestMine(Conformance):
        def make(self, terms: Terms) -> TaskServer:
            return MyServer(terms)

The first part hands attempts to the server by hand and sees what it reports; the second puts it under a real worker on
a real database. What is tried is what docs/how-to/executors.md asks for.
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
from tenuto.model.policies import TaskPolicy
from tenuto.model.tasks import Outcome, OutcomeReason, OutcomeStatus
from tenuto.worker.executors import Executor, ExecutorContext, ExecutorFactory
from tenuto.worker.worker import Worker
from tests.support.model_values import make_held_task
from tests.support.waiting import eventually, eventually_blocking
from tests.worker.executors import conformance_jobs

ANA = Actor.user("ana", "Ana")
SLOTS = 8
ENDLESS = pytest.mark.parametrize(
    "endless", [conformance_jobs.tick, conformance_jobs.tick_plainly], ids=lambda job: job.name
)


class Court:
    """A server on trial: attempts go in, reports come out."""

    def __init__(self, make: ExecutorFactory) -> None:
        self._reports: queue.Queue[AttemptResult] = queue.Queue()
        self.reported: list[AttemptResult] = []
        self.server = make(ExecutorContext(conformance_jobs.app.jobs, SystemClock(), self._deliver, SLOTS))
        self.server.start()

    def _deliver(self, ends: Sequence[AttemptResult]) -> None:
        for end in ends:
            self._reports.put(end)

    def attempt(self, job: Job[..., Any], *args: Any, **fields: Any) -> Attempt:
        given = {"input": job.dump_input(args, {}), "name": job.name, "policy_json": job.policy_json}
        task = make_held_task(**{**given, **fields})
        return Attempt(task, Context(task), monotonic_seconds() + 600, monotonic_seconds())

    def begin(self, job: Job[..., Any], *args: Any, **fields: Any) -> Attempt:
        attempt = self.attempt(job, *args, **fields)
        self.server.launch([attempt])
        return attempt

    def report(self, attempt: Attempt) -> Outcome | None:
        """What is reported of an attempt; the code is over by then."""
        while not (found := [outcome for one, outcome in self.reported if one is attempt]):
            one, outcome = self._reports.get(timeout=60)
            assert one.has_ended, "an attempt is reported only after its code has ended"
            self.reported.append((one, outcome))
        assert len(found) == 1, "an attempt is reported once"
        return found[0]

    def run(self, job: Job[..., Any], *args: Any, **fields: Any) -> Outcome:
        outcome = self.report(self.begin(job, *args, **fields))
        assert outcome is not None
        return outcome

    def nothing_more_comes(self) -> None:
        """After the server has closed, so nobody is left who might still speak."""
        self.server.close()
        assert self._reports.empty()


def has_begun(file: Path) -> None:
    eventually_blocking(lambda: file.exists() and file.read_text(), timeout=60)


class Conformance:
    """What a task server promises."""

    keeps_steps: ClassVar[bool] = True
    """Whether code that it runs can store steps and sleep: it needs a way to the worker's database for that."""

    def make(self, terms: ExecutorContext) -> Executor:
        """The server that is tried."""
        raise NotImplementedError

    @pytest.fixture
    def court(self) -> Iterator[Court]:
        court = Court(self.make)
        yield court
        court.nothing_more_comes()

    # --- what code comes to -----------------------------------------------------------------------------------------

    def test_what_code_returns_is_reported(self, court: Court) -> None:
        for job in (conformance_jobs.double, conformance_jobs.double_plainly):
            outcome = court.run(job, 21)
            assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED, "42")
            assert outcome.started_at is not None
            assert outcome.ended_at is not None
            assert outcome.started_at <= outcome.ended_at
        outcome = court.run(conformance_jobs.nothing)
        assert (outcome.status, outcome.output, outcome.error) == (OutcomeStatus.COMPLETED, None, None)

    def test_code_knows_whose_attempt_it_is(self, court: Court) -> None:
        attempt = court.begin(conformance_jobs.who, attempt=3, fence=7)
        outcome = court.report(attempt)
        assert outcome is not None
        key = attempt.task.id
        assert outcome.output == f'{{"key":"{key}","attempt":3,"fence":7,"by":"Ana"}}'

    def test_what_code_raises_is_reported_as_failed(self, court: Court) -> None:
        outcome = court.run(conformance_jobs.fail)
        assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.ERROR, True)
        assert outcome.error is not None
        assert '"ValueError"' in outcome.error
        assert "no flour" in outcome.error
        assert "in fail" in outcome.error  # the line it came from
        assert court.run(conformance_jobs.fail_for_good).may_retry is False
        later = court.run(conformance_jobs.fail_for_now)
        assert later.retry_at is not None
        assert later.ended_at is not None
        assert 80 < (later.retry_at - later.ended_at).total_seconds() < 100

    def test_code_that_wants_to_end_the_process_only_fails(self, court: Court) -> None:
        outcome = court.run(conformance_jobs.leave)
        assert (outcome.status, outcome.reason) == (OutcomeStatus.FAILED, OutcomeReason.ERROR)
        assert court.run(conformance_jobs.double, 1).output == "2"

    def test_a_job_nobody_knows_and_input_that_does_not_fit_are_refused(self, court: Court) -> None:
        outcome = court.run(conformance_jobs.double, 1, name="unheard_of")
        assert (outcome.status, outcome.reason, outcome.may_retry) == (
            OutcomeStatus.FAILED,
            OutcomeReason.REFUSED,
            True,
        )
        outcome = court.run(conformance_jobs.double, 1, input='{"n": "many"}')
        assert (outcome.status, outcome.reason, outcome.may_retry) == (
            OutcomeStatus.FAILED,
            OutcomeReason.REFUSED,
            False,
        )

    def test_warnings_and_errors_colour_what_has_been_done(self, court: Court) -> None:
        assert court.run(conformance_jobs.warn).status is OutcomeStatus.COMPLETED_WITH_WARNING
        assert court.run(conformance_jobs.err).status is OutcomeStatus.COMPLETED_WITH_ERROR
        outcome = court.run(conformance_jobs.unstorable)
        assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED_WITH_WARNING, None)

    def test_progress_is_heard_while_code_runs_and_its_log_is_kept(self, court: Court, tmp_path: Path) -> None:
        attempt = court.begin(conformance_jobs.tell, tmp_path / "flag")
        eventually_blocking(lambda: '"kneading"' in (attempt.context.progress_json or ""), timeout=60)
        assert court.reported == []
        (tmp_path / "flag").touch()
        outcome = court.report(attempt)
        assert outcome is not None
        assert outcome.log is not None
        assert "kneading" in outcome.log
        assert outcome.progress == '{"done": 3, "total": 10, "message": "kneading"}'

    # --- side by side -----------------------------------------------------------------------------------------------

    def test_as_many_as_there_are_slots_run_side_by_side_and_launching_waits_for_nobody(
        self, court: Court, tmp_path: Path
    ) -> None:
        attempts = [court.attempt(conformance_jobs.meet, tmp_path, str(number), SLOTS) for number in range(SLOTS)]
        court.server.launch(attempts[:-1])  # returns, though none of these can end yet
        court.server.launch(attempts[-1:])
        outcomes = [court.report(attempt) for attempt in attempts]
        assert [outcome.status for outcome in outcomes if outcome is not None] == [OutcomeStatus.COMPLETED] * SLOTS

    def test_one_that_fails_leaves_its_neighbours_alone(self, court: Court, tmp_path: Path) -> None:
        lasting = court.begin(conformance_jobs.tell, tmp_path / "flag")
        assert court.run(conformance_jobs.fail).status is OutcomeStatus.FAILED
        stopped = court.begin(conformance_jobs.tick, tmp_path / "ticks")
        has_begun(tmp_path / "ticks")
        stopped.stop(StopReason.CANCELLED, ANA)
        court.report(stopped)
        (tmp_path / "flag").touch()
        outcome = court.report(lasting)
        assert outcome is not None
        assert outcome.status is OutcomeStatus.COMPLETED

    # --- stopping ---------------------------------------------------------------------------------------------------

    @ENDLESS
    def test_code_has_really_stopped_when_it_is_reported(
        self, court: Court, tmp_path: Path, endless: Job[..., Any]
    ) -> None:
        file = tmp_path / "ticks"
        attempt = court.begin(endless, file)
        has_begun(file)
        attempt.stop(StopReason.CANCELLED, ANA)
        outcome = court.report(attempt)
        ticks = file.read_text()
        assert outcome is not None
        assert (outcome.status, outcome.reason) == (OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED)
        assert outcome.error is not None
        assert "Ana" in outcome.error
        assert outcome.started_at is not None
        threading.Event().wait(0.1)  # long enough for twenty more of them
        assert file.read_text() == ticks

    @pytest.mark.parametrize(
        ("reason", "status", "recorded"),
        [
            (StopReason.TIMED_OUT, OutcomeStatus.FAILED, OutcomeReason.TIMED_OUT),
            (StopReason.HANDED_BACK, OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK),
        ],
    )
    def test_why_it_was_stopped_is_what_is_reported(
        self, court: Court, tmp_path: Path, reason: StopReason, status: OutcomeStatus, recorded: OutcomeReason
    ) -> None:
        attempt = court.begin(
            conformance_jobs.tick, tmp_path / "ticks", policy_json=TaskPolicy(timeout_seconds=5.0).to_json()
        )
        has_begun(tmp_path / "ticks")
        assert attempt.deadline is not None  # the limit runs from when the code began
        attempt.stop(reason)
        attempt.stop(StopReason.CANCELLED, ANA)  # the first reason stands
        outcome = court.report(attempt)
        assert outcome is not None
        assert (outcome.status, outcome.reason) == (status, recorded)

    def test_of_code_whose_lease_is_lost_nothing_is_said_but_that_it_has_stopped(
        self, court: Court, tmp_path: Path
    ) -> None:
        attempt = court.begin(conformance_jobs.tick_plainly, tmp_path / "ticks")
        has_begun(tmp_path / "ticks")
        attempt.stop(StopReason.LEASE_LOST)
        assert court.report(attempt) is None

    @ENDLESS
    def test_what_was_stopped_before_it_began_does_not_begin(
        self, court: Court, tmp_path: Path, endless: Job[..., Any]
    ) -> None:
        attempt = court.attempt(endless, tmp_path / "ticks")
        attempt.stop(StopReason.CANCELLED, ANA)
        court.server.launch([attempt])
        outcome = court.report(attempt)
        assert outcome is not None
        assert outcome.status is OutcomeStatus.CANCELLED
        assert not (tmp_path / "ticks").exists()

    def test_stops_that_come_again_and_from_everywhere_are_one_stop(self, court: Court, tmp_path: Path) -> None:
        attempts = [court.begin(conformance_jobs.tick, tmp_path / f"ticks-{number}") for number in range(4)]
        for number in range(4):
            has_begun(tmp_path / f"ticks-{number}")

        def press() -> None:
            for attempt in attempts:
                for _ in range(20):
                    attempt.stop(StopReason.CANCELLED, ANA)

        pressing = [threading.Thread(target=press) for _ in range(4)]
        for thread in pressing:
            thread.start()
        for thread in pressing:
            thread.join()
        for attempt in attempts:
            outcome = court.report(attempt)
            assert outcome is not None
            assert outcome.status is OutcomeStatus.CANCELLED
            attempt.stop(StopReason.TIMED_OUT)  # too late: nothing is there to be stopped

    def test_a_look_in_between_disturbs_nobody(self, court: Court, tmp_path: Path) -> None:
        attempt = court.begin(conformance_jobs.tell, tmp_path / "flag")
        for _ in range(5):
            court.server.check_for_stalls()
        (tmp_path / "flag").touch()
        court.report(attempt)

    def test_nothing_is_left_when_it_has_closed(self, tmp_path: Path) -> None:
        threads = set(threading.enumerate())
        court = Court(self.make)
        attempt = court.begin(conformance_jobs.tick_plainly, tmp_path / "ticks")
        has_begun(tmp_path / "ticks")
        attempt.stop(StopReason.HANDED_BACK)
        court.report(attempt)
        court.nothing_more_comes()
        pid = int((tmp_path / "ticks").read_text().split()[0])
        eventually_blocking(lambda: pid == os.getpid() or not Path(f"/proc/{pid}").exists())
        eventually_blocking(lambda: all(thread in threads or not thread.is_alive() for thread in threading.enumerate()))

    # --- under a worker ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def worker(self, app: Tenuto, **given: Any) -> AsyncIterator[Worker]:
        app.jobs.jobs_by_name.update(conformance_jobs.app.jobs.jobs_by_name)
        settings = {"slots": SLOTS, "poll_seconds": 60, "grace_seconds": 0, **given}
        async with app.worker(executor=self.make, **settings) as worker:
            yield worker

    async def test_under_a_worker_tasks_run_are_retried_and_recorded(self, app: Tenuto) -> None:
        async with self.worker(app):
            done = [await app.enqueue(conformance_jobs.double, n) for n in range(20)]
            again = await app.wait(await app.enqueue(conformance_jobs.fail_once), timeout=60)
            assert [(await app.wait(task, timeout=60))["output"] for task in done] == [2 * n for n in range(20)]
        assert (again["status"], again["attempt"], again["output"]) == ("completed", 2, 2)

    @ENDLESS
    async def test_under_a_worker_who_cancels_stops_the_code(
        self, app: Tenuto, tmp_path: Path, endless: Job[..., Any]
    ) -> None:
        file = tmp_path / "ticks"
        async with self.worker(app):
            task = await app.enqueue(endless, file)
            await eventually(lambda: file.exists() and file.read_text(), timeout=60)
            assert await app.cancel(task.id) == "stopping"
            record = await app.wait(task, timeout=60)
            assert (record["status"], record["reason"]) == ("cancelled", "requested")

    async def test_under_a_worker_time_limits_hold(self, app: Tenuto, tmp_path: Path) -> None:
        async with self.worker(app):
            task = await app.enqueue(conformance_jobs.tick, tmp_path / "ticks")
            database = await app.open()
            again_and_again = replace(
                conformance_jobs.tick.policy.retry, max_retries=1000
            )  # it is still there to be cancelled
            policy = TaskPolicy(again_and_again, timeout_seconds=0.3).to_json()
            # Set before it is claimed or not: either this attempt or the one after the hand-back is bound by it.
            await database.fetch_all("UPDATE tenuto.tasks SET policy = $1 WHERE id = $2", policy, task.id)
            await eventually(lambda: (tmp_path / "ticks").exists(), timeout=60)
        async with self.worker(app):
            await eventually(lambda: self._timed_out(app, task.id), timeout=60)
            await app.cancel(task.id)
            await app.wait(task, timeout=60)

    @staticmethod
    async def _timed_out(app: Tenuto, task_id: Any) -> bool:
        return any(attempt["reason"] == "timed_out" for attempt in await app.attempts(task_id))

    async def test_under_a_worker_caps_hold(self, app: Tenuto, tmp_path: Path) -> None:
        (tmp_path / "here").mkdir()
        async with self.worker(app):
            tasks = [
                await app.enqueue(conformance_jobs.count_neighbours, tmp_path / "here", str(number))
                for number in range(8)
            ]
            most = [(await app.wait(task, timeout=60))["output"] for task in tasks]
        assert max(most) == 2

    async def test_a_worker_that_leaves_hands_back_what_its_server_runs(self, app: Tenuto, tmp_path: Path) -> None:
        file = tmp_path / "ticks"
        async with self.worker(app):
            task = await app.enqueue(conformance_jobs.tick_plainly, file)
            await eventually(lambda: file.exists() and file.read_text(), timeout=60)
        ticks = file.read_text()
        attempts = await app.attempts(task.id)
        assert [attempt["reason"] for attempt in attempts] == ["handed_back", None]
        assert (await app.task(task.id))["state"] == "queued"
        assert file.read_text() == ticks

    async def test_chains_go_on_after_the_last_step_or_say_that_they_cannot(self, app: Tenuto) -> None:
        async with self.worker(app):
            record = await app.wait(await app.enqueue(conformance_jobs.chained, 1), timeout=60)
        if self.keeps_steps:
            assert (record["status"], record["output"], record["attempt"]) == ("completed", "2", 2)
        else:
            assert record["status"] == "failed"
            assert "has no step checkpoints and cannot sleep" in record["error"]["message"]
