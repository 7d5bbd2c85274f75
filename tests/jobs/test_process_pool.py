"""Isolated jobs (W2, W4): in child processes that can be killed, with everything they started."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenuto import Actor, Context, Job
from tenuto.clock import steady
from tenuto.jobs.attempts import Attempt, Stop
from tenuto.model.tasks import Outcome, Reason, Status
from tests.jobs.conftest import Bench
from tests.support import isolated_jobs as jobs
from tests.support.waiting import eventually_here

ANA = Actor.user("ana", "Ana")


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.app.jobs.by_name.update(jobs.app.jobs.by_name)
    return bench


def error_of(outcome: Outcome) -> dict[str, str]:
    assert outcome.error is not None
    error: dict[str, str] = json.loads(outcome.error)
    return error


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def begun(bench: Bench, job: Job[..., Any], file: Path) -> tuple[Attempt, list[int]]:
    """An attempt that hangs, and the ids of the two processes it consists of."""
    attempt = bench.begin(job, file)
    eventually_here(lambda: file.exists() and file.read_text(), timeout=30)
    return attempt, [int(pid) for pid in file.read_text().split()]


def test_plain_and_async_functions_run_in_another_process_and_answer(bench: Bench) -> None:
    assert bench.run(jobs.double, 21).output == "42"
    assert bench.run(jobs.triple, 14).output == "42"
    assert bench.run(jobs.process_id).output != str(os.getpid())


def test_a_child_finds_jobs_however_they_were_registered(bench: Bench) -> None:
    assert bench.run(jobs.halved, 84).output == "42"
    assert bench.run(jobs.resized, 84).output == "42"
    assert bench.run(jobs.squared, n=6).output == "36"
    assert bench.run(jobs.cubed, n=3).output == "27"
    assert bench.run(jobs.Kitchen.stir, 42).output == "42"
    assert bench.run(jobs.kneading, 42).output == "-42"


def test_a_job_a_child_cannot_find_is_refused_for_good_in_plain_words(bench: Bench) -> None:
    elsewhere = bench.app.job(name="elsewhere", isolated=True)(jobs.resize)  # its own module does not know of it
    for job in (jobs.nowhere["kept"], elsewhere):
        outcome = bench.run(job, 84)
        assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.FAILED, Reason.REFUSED, False)
        message = error_of(outcome)["message"]
        assert f"imports tests.support.isolated_jobs finds no job {job.name} in it" in message
        assert "at the top of tests.support.isolated_jobs" in message


def test_a_child_is_used_again_and_runs_one_attempt_at_a_time(bench: Bench) -> None:
    pids = {bench.run(jobs.process_id).output for _ in range(5)}
    assert len(pids) == 1
    attempts = [bench.begin(jobs.process_id) for _ in range(4)]
    outcomes = [bench.outcome(attempt) for attempt in attempts]
    assert all(outcome is not None and outcome.status is Status.COMPLETED for outcome in outcomes)


def test_the_context_in_a_child_speaks_of_the_same_attempt(bench: Bench) -> None:
    attempt = bench.begin(jobs.who, _fields={"attempt": 2, "fence": 5})
    outcome = bench.outcome(attempt)
    assert outcome is not None
    assert json.loads(outcome.output or "") == {
        "key": str(attempt.task.id),
        "attempt": 2,
        "fence": 5,
        "by": "Ana",
    }


def test_log_and_progress_come_out_of_a_child(bench: Bench) -> None:
    outcome = bench.run(jobs.say)
    words = [line.split(maxsplit=2)[1:] for line in (outcome.log or "").splitlines()]
    assert words == [
        ["print", "printed"],
        ["info", "logged"],
        ["warning", "mine: loudly"],
        ["stderr", "to stderr"],
        ["print", "unfinished"],
    ]
    assert json.loads(outcome.progress or "") == {"done": 3, "total": 10, "message": "kneading"}


def test_a_child_that_shouts_is_heard_within_the_cap(bench: Bench) -> None:
    outcome = bench.run(jobs.shout, 5000)
    assert outcome.output == "5000"
    assert "lines cut" in (outcome.log or "") or len(outcome.log or "") < 300_000


def test_warnings_and_unstorable_results_are_told_as_everywhere(bench: Bench) -> None:
    outcome = bench.run(jobs.warn)
    assert (outcome.status, outcome.output) == (Status.COMPLETED_WITH_WARNING, "7")
    outcome = bench.run(jobs.unstorable)
    assert (outcome.status, outcome.output) == (Status.COMPLETED_WITH_WARNING, None)
    assert "could not be stored" in error_of(outcome)["message"]


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
def test_a_failure_in_a_child_is_recorded_as_everywhere(bench: Bench, how: str, kind: str, may_retry: bool) -> None:
    outcome = bench.run(jobs.fail, how)
    assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.FAILED, Reason.ERROR, may_retry)
    error = error_of(outcome)
    assert (error["type"], error["step"]) == (kind, "fail")
    assert "in fail" in error["stack"]
    assert "tenuto/jobs/child" not in error["stack"]
    assert (outcome.retry_at is not None) == (how == "later")


def test_an_input_refused_in_a_child_is_final(bench: Bench) -> None:
    outcome = bench.run(jobs.double, 1, _fields={"input": '{"n": "many"}'})
    assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.FAILED, Reason.REFUSED, False)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exit code 3"),
        ("segfault", "signal 11 (SIGSEGV)"),
        (str(int(signal.SIGKILL)), "signal 9 (SIGKILL)"),
        ("40", "signal 40"),  # a real-time signal has a number but no name
    ],
)
def test_a_child_that_dies_is_a_failed_attempt_that_says_how(bench: Bench, how: str, words: str) -> None:
    outcome = bench.run(jobs.die, how)
    assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.FAILED, Reason.ERROR, True)
    error = error_of(outcome)
    assert error["type"] == "tenuto.ChildDied"
    assert words in error["message"]
    assert bench.run(jobs.double, 21).output == "42", "and the next attempt has a child again"


@pytest.mark.parametrize(
    ("stop", "status", "reason"),
    [
        (Stop.CANCELLED, Status.CANCELLED, Reason.REQUESTED),
        (Stop.TIMED_OUT, Status.FAILED, Reason.TIMED_OUT),
        (Stop.LEASE_LOST, None, None),
    ],
)
def test_stopping_kills_the_child_and_what_it_started_however_deaf(
    bench: Bench, tmp_path: Path, stop: Stop, status: Status | None, reason: Reason | None
) -> None:
    job = jobs.hang
    attempt, pids = begun(bench, job, tmp_path / "pids")
    attempt.task.policy_json = '{"timeout_seconds": 60}'
    assert all(runs(pid) for pid in pids)
    attempt.stop(stop, ANA)
    outcome = bench.outcome(attempt)
    assert (outcome and outcome.status, outcome and outcome.reason) == (status, reason)
    eventually_here(lambda: not any(runs(pid) for pid in pids))


def test_a_child_that_dies_by_itself_leaves_nothing_running_behind(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    assert bench.run(jobs.die_and_leave, file).status is Status.FAILED
    child, below = (int(pid) for pid in file.read_text().split())
    try:
        eventually_here(lambda: not runs(child) and not runs(below))
    finally:
        if runs(below):
            os.kill(below, signal.SIGKILL)


@pytest.mark.parametrize(("escapes", "end_can_be_waited_for"), [(False, True), (True, True), (True, False)])
def test_a_child_that_is_killed_is_missed_at_once_although_a_fork_of_it_lives(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, escapes: bool, end_can_be_waited_for: bool
) -> None:
    """A fork holds the pipe as well, which would stay open for as long as that lives."""
    if not end_can_be_waited_for:  # as on other systems than Linux
        monkeypatch.delattr(os, "pidfd_open")
    file = tmp_path / "pids"
    try:
        outcome = bench.outcome(bench.begin(jobs.die_with_a_fork, file, escapes=escapes))
        assert outcome is not None
        assert "signal 9 (SIGKILL)" in error_of(outcome)["message"]
        child, below = (int(pid) for pid in file.read_text().split())
        eventually_here(lambda: not runs(child) and (escapes or not runs(below)))
        assert bench.run(jobs.double, 21).output == "42"
    finally:
        for pid in map(int, file.read_text().split()):
            if runs(pid):
                os.kill(pid, signal.SIGKILL)


def test_nothing_of_a_child_stays_open_with_the_worker(bench: Bench) -> None:
    bench.run(jobs.die, "exit")
    before = psutil.Process().num_fds()
    for _ in range(3):
        bench.run(jobs.die, "exit")
    assert psutil.Process().num_fds() <= before


def test_what_returns_work_still_to_be_done_has_failed_in_a_child_too(bench: Bench) -> None:
    outcome = bench.run(jobs.unawaited, 1)
    assert (outcome.status, outcome.may_retry, outcome.output) == (Status.FAILED, False, None)
    assert "make the job an async def" in error_of(outcome)["message"]


def test_a_job_in_a_child_may_set_up_its_streams_and_write_bytes(bench: Bench) -> None:
    outcome = bench.run(jobs.set_up_its_streams)
    assert outcome.output == "6", outcome.error
    assert (outcome.log or "").endswith(" bytes\n")


@pytest.mark.parametrize("how", ["unmade", "homeless", "wordless"])
def test_whatever_the_classes_of_an_error_do_a_child_answers(bench: Bench, how: str) -> None:
    outcome = bench.run(jobs.fail, how)
    assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.FAILED, Reason.ERROR, True)
    assert error_of(outcome)["type"] != "tenuto.ChildDied"


def test_an_idle_child_that_died_is_replaced_and_nobody_is_blamed(bench: Bench) -> None:
    pid = int(bench.run(jobs.process_id).output or "")
    os.kill(pid, signal.SIGKILL)
    eventually_here(lambda: not runs(pid))
    assert bench.run(jobs.double, 21).output == "42"


def test_stopping_an_attempt_that_has_its_answer_does_not_hit_the_next_one(bench: Bench) -> None:
    """Its child may be at work for somebody else already."""
    children = bench.runner._children
    task = jobs.double
    ended = bench.begin(task, 1)
    bench.outcome(ended)
    late = Attempt(ended.task, Context(ended.task), 0, 0)
    assert children.run(late, task, bench.runner._clock) is not None
    late.stop(Stop.CANCELLED, ANA)
    assert bench.run(jobs.double, 21).output == "42"


def test_a_child_is_not_told_of_work_whose_lease_is_over(bench: Bench) -> None:
    task = bench.begin(jobs.double, 21).task
    attempt = Attempt(task, Context(task), steady(), steady())
    bench.runner.launch([attempt])
    assert bench.outcome(attempt) is None


def test_when_the_runner_closes_its_children_are_gone(bench: Bench, tmp_path: Path) -> None:
    idle = int(bench.run(jobs.process_id).output or "")
    _, pids = begun(bench, jobs.hang, tmp_path / "pids")
    bench.close()
    eventually_here(lambda: not any(runs(pid) for pid in [idle, *pids]))
