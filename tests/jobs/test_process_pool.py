"""Isolated jobs (W2, W4): child processes that can be killed together with their descendants."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenuto import Actor, Context, Job
from tenuto.clock import monotonic_seconds
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.jobs.process_pool import ChildProcess
from tenuto.model.work.tasks import Outcome, OutcomeReason, OutcomeStatus
from tests.jobs.conftest import RunnerHarness
from tests.support import isolated_jobs as jobs
from tests.support.waiting import eventually_blocking

ANA = Actor.user("ana", "Ana")


@pytest.fixture
def harness(harness: RunnerHarness) -> RunnerHarness:
    harness.app.jobs.jobs_by_name.update(jobs.app.jobs.jobs_by_name)
    return harness


def load_error(outcome: Outcome) -> dict[str, str]:
    assert outcome.error is not None
    error: dict[str, str] = json.loads(outcome.error)
    return error


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def start_hanging(harness: RunnerHarness, job: Job[..., Any], file: Path) -> tuple[Attempt, list[int]]:
    """Start an attempt that hangs; return it with the ids of its child process and grandchild."""
    attempt = harness.start(job, file)
    eventually_blocking(lambda: file.exists() and file.read_text(), timeout=30)
    return attempt, [int(pid) for pid in file.read_text().split()]


def test_child_process_runs_plain_and_async_functions(harness: RunnerHarness) -> None:
    assert harness.run(jobs.double, 21).output == "42"
    assert harness.run(jobs.triple, 14).output == "42"
    assert harness.run(jobs.process_id).output != str(os.getpid())


def test_child_process_finds_jobs_however_they_are_registered(harness: RunnerHarness) -> None:
    assert harness.run(jobs.halved, 84).output == "42"
    assert harness.run(jobs.resized, 84).output == "42"
    assert harness.run(jobs.squared, n=6).output == "36"
    assert harness.run(jobs.cubed, n=3).output == "27"
    assert harness.run(jobs.Kitchen.stir, 42).output == "42"
    assert harness.run(jobs.kneading, 42).output == "-42"


def test_job_that_a_child_process_cannot_find_is_refused(harness: RunnerHarness) -> None:
    elsewhere = harness.app.job(name="elsewhere", isolated=True)(jobs.resize)  # not assigned to a name in its module
    for job in (jobs.unnamed["job"], elsewhere):
        outcome = harness.run(job, 84)
        assert (outcome.status, outcome.reason, outcome.may_retry) == (
            OutcomeStatus.FAILED,
            OutcomeReason.REFUSED,
            False,
        )
        message = load_error(outcome)["message"]
        assert f"imports tests.support.isolated_jobs finds no job {job.name} in it" in message
        assert "at the top level of tests.support.isolated_jobs" in message


@pytest.mark.slow
def test_child_process_is_reused_and_runs_one_attempt_at_a_time(harness: RunnerHarness) -> None:
    pids = {harness.run(jobs.process_id).output for _ in range(5)}
    assert len(pids) == 1
    attempts = [harness.start(jobs.process_id) for _ in range(4)]
    outcomes = [harness.wait_for_outcome(attempt) for attempt in attempts]
    assert all(outcome is not None and outcome.status is OutcomeStatus.COMPLETED for outcome in outcomes)


def test_context_in_a_child_process_describes_the_attempt(harness: RunnerHarness) -> None:
    attempt = harness.start(jobs.describe_attempt, _fields={"attempt": 2, "fence": 5})
    outcome = harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert json.loads(outcome.output or "") == {
        "key": str(attempt.task.id),
        "attempt": 2,
        "fence": 5,
        "by": "Ana",
    }


def test_child_process_sends_log_and_progress(harness: RunnerHarness) -> None:
    outcome = harness.run(jobs.print_and_log)
    lines = [line.split(maxsplit=2)[1:] for line in (outcome.log or "").splitlines()]
    assert lines == [
        ["print", "printed"],
        ["info", "logged"],
        ["warning", "mine: loudly"],
        ["stderr", "to stderr"],
        ["print", "unfinished"],
    ]
    assert json.loads(outcome.progress or "") == {"done": 3, "total": 10, "message": "kneading"}


def test_log_of_a_child_process_is_limited(harness: RunnerHarness) -> None:
    outcome = harness.run(jobs.print_much, 5000)
    assert outcome.output == "5000"
    assert "lines cut" in (outcome.log or "") or len(outcome.log or "") < 300_000


def test_child_process_reports_warnings_and_unstorable_results(harness: RunnerHarness) -> None:
    outcome = harness.run(jobs.warn)
    assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED_WITH_WARNING, "7")
    outcome = harness.run(jobs.unstorable)
    assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED_WITH_WARNING, None)
    assert "could not be stored" in load_error(outcome)["message"]


@pytest.mark.parametrize(
    ("how", "kind", "may_retry"),
    [
        ("value", "ValueError", True),
        ("permanent", "tenuto.PermanentFailure", False),
        ("later", "tenuto.RetryLater", True),
        ("invalid", "tenuto.Invalid", True),
        ("exit", "SystemExit", True),
    ],
)
def test_failure_in_a_child_process_is_recorded(harness: RunnerHarness, how: str, kind: str, may_retry: bool) -> None:
    outcome = harness.run(jobs.fail, how)
    assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.ERROR, may_retry)
    error = load_error(outcome)
    assert (error["type"], error["step"]) == (kind, "fail")
    assert "in fail" in error["stack"]
    assert "tenuto/jobs/child" not in error["stack"]
    assert (outcome.retry_at is not None) == (how == "later")


def test_invalid_input_in_a_child_process_fails_permanently(harness: RunnerHarness) -> None:
    outcome = harness.run(jobs.double, 1, _fields={"input": '{"n": "many"}'})
    assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.REFUSED, False)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("exit", "exit code 3"),
        ("segfault", "signal 11 (SIGSEGV)"),
        (str(int(signal.SIGKILL)), "signal 9 (SIGKILL)"),
        ("40", "signal 40"),  # a real-time signal has a number but no name
    ],
)
def test_death_of_a_child_process_fails_the_attempt(harness: RunnerHarness, how: str, expected: str) -> None:
    outcome = harness.run(jobs.die, how)
    assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.ERROR, True)
    error = load_error(outcome)
    assert error["type"] == "tenuto.ChildDied"
    assert expected in error["message"]
    assert harness.run(jobs.double, 21).output == "42", "the next attempt gets a new child process"


@pytest.mark.parametrize(
    ("stop", "status", "reason"),
    [
        (StopReason.CANCELLED, OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED),
        (StopReason.TIMED_OUT, OutcomeStatus.FAILED, OutcomeReason.TIMED_OUT),
        (StopReason.LEASE_LOST, None, None),
    ],
)
def test_stop_kills_the_child_process_and_its_descendants(
    harness: RunnerHarness, tmp_path: Path, stop: StopReason, status: OutcomeStatus | None, reason: OutcomeReason | None
) -> None:
    job = jobs.hang
    attempt, pids = start_hanging(harness, job, tmp_path / "pids")
    attempt.task.policy_json = '{"timeout_seconds": 60}'
    assert all(is_running(pid) for pid in pids)
    attempt.stop(stop, ANA)
    outcome = harness.wait_for_outcome(attempt)
    assert (outcome and outcome.status, outcome and outcome.reason) == (status, reason)
    eventually_blocking(lambda: not any(is_running(pid) for pid in pids))


def test_descendants_of_a_dead_child_process_are_killed(harness: RunnerHarness, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    assert harness.run(jobs.die_and_leave, file).status is OutcomeStatus.FAILED
    child, grandchild = (int(pid) for pid in file.read_text().split())
    try:
        eventually_blocking(lambda: not is_running(child) and not is_running(grandchild))
    finally:
        if is_running(grandchild):
            os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize(("escapes", "has_pidfd"), [(False, True), (True, True), (True, False)])
def test_death_of_a_child_process_is_noticed_although_its_fork_lives(
    harness: RunnerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, escapes: bool, has_pidfd: bool
) -> None:
    """A fork holds the pipe open as long as it lives."""
    if not has_pidfd:  # as on systems other than Linux
        monkeypatch.delattr(os, "pidfd_open")
    file = tmp_path / "pids"
    try:
        outcome = harness.wait_for_outcome(harness.start(jobs.die_with_fork, file, escapes=escapes))
        assert outcome is not None
        assert "signal 9 (SIGKILL)" in load_error(outcome)["message"]
        child, grandchild = (int(pid) for pid in file.read_text().split())
        eventually_blocking(lambda: not is_running(child) and (escapes or not is_running(grandchild)))
        assert harness.run(jobs.double, 21).output == "42"
    finally:
        for pid in map(int, file.read_text().split()):
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def test_process_pool_closes_all_descriptors(harness: RunnerHarness) -> None:
    harness.run(jobs.die, "exit")
    before = psutil.Process().num_fds()
    for _ in range(3):
        harness.run(jobs.die, "exit")
    assert psutil.Process().num_fds() <= before


def test_returned_awaitable_fails_in_a_child_process(harness: RunnerHarness) -> None:
    outcome = harness.run(jobs.unawaited, 1)
    assert (outcome.status, outcome.may_retry, outcome.output) == (OutcomeStatus.FAILED, False, None)
    assert "make the job an async def" in load_error(outcome)["message"]


def test_job_in_a_child_process_can_configure_its_streams_and_write_bytes(harness: RunnerHarness) -> None:
    outcome = harness.run(jobs.configure_streams)
    assert outcome.output == "6", outcome.error
    assert (outcome.log or "").endswith(" bytes\n")


@pytest.mark.parametrize("how", ["no_delay", "no_module", "exits_when_printed"])
def test_child_process_responds_to_an_error_with_broken_class(harness: RunnerHarness, how: str) -> None:
    outcome = harness.run(jobs.fail, how)
    assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.ERROR, True)
    assert load_error(outcome)["type"] != "tenuto.ChildDied"


def test_dead_idle_child_process_is_replaced(harness: RunnerHarness) -> None:
    pid = int(harness.run(jobs.process_id).output or "")
    os.kill(pid, signal.SIGKILL)
    eventually_blocking(lambda: not is_running(pid))
    assert harness.run(jobs.double, 21).output == "42"


def test_late_stop_does_not_kill_the_next_attempt(harness: RunnerHarness) -> None:
    """Its child process may already work for another attempt."""
    process_pool = harness.runner._process_pool
    task = jobs.double
    ended = harness.start(task, 1)
    harness.wait_for_outcome(ended)
    late = Attempt(ended.task, Context(ended.task), 0, 0)
    assert process_pool.run(late, task, harness.runner._clock) is not None
    late.stop(StopReason.CANCELLED, ANA)
    assert harness.run(jobs.double, 21).output == "42"


def test_attempt_with_expired_lease_does_not_start_in_a_child_process(harness: RunnerHarness) -> None:
    task = harness.start(jobs.double, 21).task
    attempt = Attempt(task, Context(task), monotonic_seconds(), monotonic_seconds())
    harness.runner.launch([attempt])
    assert harness.wait_for_outcome(attempt) is None


def test_runner_kills_its_child_processes_when_it_closes(harness: RunnerHarness, tmp_path: Path) -> None:
    idle = int(harness.run(jobs.process_id).output or "")
    _, pids = start_hanging(harness, jobs.hang, tmp_path / "pids")
    harness.close()
    eventually_blocking(lambda: not any(is_running(pid) for pid in [idle, *pids]))


def test_child_process_that_two_threads_reap_closes_its_pipe_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor that is closed twice may belong to something else by then."""
    child = ChildProcess()
    meeting, close, met = threading.Barrier(2), child.pipe.close, threading.Event()

    def close_slowly() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(timeout=0.5)
            met.set()
        close()

    monkeypatch.setattr(child.pipe, "close", close_slowly)
    child.kill()
    reapers = [threading.Thread(target=child.reap) for _ in range(2)]
    for each in reapers:
        each.start()
    for each in reapers:
        each.join()
    assert not met.is_set(), "both threads were closing the pipe"
    assert child.pipe.closed
