"""From what code did to what is recorded (W2, W4, W5, J9): returned, raised, was stopped; each ends exactly once."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenuto import Actor, Context, Job, PermanentFailure, RetryLater, TenutoError
from tenuto.clock import steady
from tenuto.errors import Invalid
from tenuto.jobs.attempts import Attempt, Stop
from tenuto.model.policies import Policy
from tenuto.model.stored_values import MAX_OUTPUT
from tenuto.model.tasks import Outcome, Reason, Status
from tests.jobs.conftest import Bench
from tests.support.model_values import a_held_task
from tests.support.waiting import eventually_here

ANA = Actor.user("ana", "Ana")
KINDS = ["async", "plain"]


def as_job(bench: Bench, kind: str, function: Callable[[], Any], **options: Any) -> Job[..., Any]:
    """The same code as a job of either kind."""
    if kind == "plain":
        return bench.app.job(name="bake", **options)(function)

    async def bake() -> Any:
        return function()

    return bench.app.job(name="bake", **options)(bake)


def raising(error: BaseException | Callable[[], BaseException]) -> Callable[[], None]:
    def bake() -> None:
        raise error() if callable(error) else error

    return bake


def error_of(outcome: Outcome) -> dict[str, str]:
    assert outcome.error is not None
    error: dict[str, str] = json.loads(outcome.error)
    return error


# --- returning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_code_returns_is_its_output(bench: Bench, kind: str) -> None:
    outcome = bench.run(as_job(bench, kind, lambda: {"loaves": 3}))
    assert (outcome.status, outcome.reason, outcome.error) == (Status.COMPLETED, None, None)
    assert json.loads(outcome.output or "") == {"loaves": 3}
    assert outcome.started_at is not None
    assert outcome.ended_at is not None
    assert outcome.started_at <= outcome.ended_at


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "value",
    [
        object(),
        "a\x00b",
        "\ud800",
        b"\xff",
        {"deep": object()},
        "x" * (MAX_OUTPUT + 1),
        10**5000,
        lambda: None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_that_cannot_be_stored_does_not_undo_the_work(bench: Bench, kind: str, value: Any) -> None:
    outcome = bench.run(as_job(bench, kind, lambda: value))
    assert (outcome.status, outcome.output) == (Status.COMPLETED_WITH_WARNING, None)
    assert "the result could not be stored" in error_of(outcome)["message"]


def test_a_result_nested_without_end_does_not_undo_the_work(bench: Bench) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    outcome = bench.run(as_job(bench, "plain", lambda: deep))
    assert (outcome.status, outcome.output) == (Status.COMPLETED_WITH_WARNING, None)


async def unawaited() -> None:
    raise AssertionError("nobody runs it")


def half_way() -> Iterator[int]:
    yield 1
    raise RuntimeError("half way")


async def never_asked() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("unfinished", "remedy"),
    [(unawaited, "make the job an async def"), (half_way, "return a list"), (never_asked, "return a list")],
)
def test_code_that_returns_work_still_to_be_done_has_failed_and_is_told_what_to_do(
    bench: Bench, kind: str, unfinished: Callable[[], Any], remedy: str
) -> None:
    outcome = bench.run(as_job(bench, kind, lambda: unfinished()))
    assert (outcome.status, outcome.may_retry, outcome.output) == (Status.FAILED, False, None)
    assert remedy in error_of(outcome)["message"]


def test_a_warning_and_an_error_the_code_spoke_of_set_the_status(bench: Bench) -> None:
    @bench.app.job
    def bake(warn: bool, fail: bool, ctx: Context) -> int:
        if warn:
            ctx.warn("low on flour")
        if fail:
            ctx.error("no water")
        return 7

    outcome = bench.run(bake, warn=True, fail=False)
    assert (outcome.status, outcome.output) == (Status.COMPLETED_WITH_WARNING, "7")
    assert error_of(outcome)["message"] == "low on flour"
    outcome = bench.run(bake, warn=True, fail=True)
    assert (outcome.status, outcome.output) == (Status.COMPLETED_WITH_ERROR, "7")
    assert error_of(outcome) == {"type": "tenuto.Error", "message": "no water", "step": "bake"}


def test_the_last_progress_goes_into_the_record(bench: Bench) -> None:
    @bench.app.job
    async def bake(ctx: Context) -> None:
        ctx.progress(3, 10, "kneading")

    assert json.loads(bench.run(bake).progress or "") == {"done": 3, "total": 10, "message": "kneading"}


# --- raising -------------------------------------------------------------------------------------------------------


class OutOfFlour(Exception):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I have no words")

    __repr__ = __str__


def knead() -> None:
    raise OutOfFlour("not a gram")


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_is_recorded_with_type_message_step_and_stack(bench: Bench, kind: str) -> None:
    outcome = bench.run(as_job(bench, kind, knead))
    assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.FAILED, Reason.ERROR, True)
    error = error_of(outcome)
    assert error["type"].endswith("test_outcomes.OutOfFlour")
    assert (error["message"], error["step"]) == ("not a gram", "bake")
    assert "in knead" in error["stack"]
    assert 'raise OutOfFlour("not a gram")' in error["stack"]
    assert "tenuto/jobs" not in error["stack"], "our own frames would only be in the way"


def test_an_error_of_pythons_own_goes_by_its_plain_name_and_its_cause_is_kept(bench: Bench) -> None:
    @bench.app.job
    def bake() -> None:
        try:
            knead()
        except OutOfFlour as error:
            raise ZeroDivisionError("no bread") from error

    error = error_of(bench.run(bake))
    assert error["type"] == "ZeroDivisionError"
    assert "not a gram" in error["stack"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_cannot_even_be_printed_is_recorded(bench: Bench, kind: str) -> None:
    outcome = bench.run(as_job(bench, kind, raising(Unprintable)))
    assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.ERROR)
    assert error_of(outcome)["type"].endswith("Unprintable")


class Homeless(Exception):
    __module__ = None  # type: ignore[assignment]


class Wordless(Exception):
    def __str__(self) -> str:
        raise SystemExit


class Unmade(RetryLater):
    def __init__(self) -> None:
        """Does not say how long to wait."""


class Unstorable(Exception):
    pass


Unstorable.__qualname__ = "Un\x00storable\ud800"


class Endless(RetryLater):
    def __init__(self) -> None:
        super().__init__("far too long", after=1)
        self.after = timedelta.max


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [Unmade, Wordless, Homeless, Unstorable, Endless])
def test_whatever_the_classes_of_an_error_do_its_attempt_ends_as_failed(
    bench: Bench, kind: str, error: type[BaseException]
) -> None:
    """Without an outcome its slot and its task would be held for ever."""
    attempt = bench.begin(as_job(bench, kind, raising(error)))
    outcome = bench.outcome(attempt, timeout=10)
    assert outcome is not None
    assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.FAILED, Reason.ERROR, True)
    assert (attempt.over, error_of(outcome)["step"]) == (True, "bake")
    assert "\\u0000" not in (outcome.error or "")
    (outcome.error or "").encode()


@pytest.mark.parametrize("message", ["a\x00b", "\ud800", "x" * 5_000_000, ""])
def test_whatever_an_error_says_the_record_can_be_stored(bench: Bench, message: str) -> None:
    error = error_of(bench.run(as_job(bench, "plain", raising(ValueError(message)))))
    assert "\x00" not in error["message"]
    assert len(json.dumps(error)) < 100_000


def test_an_endless_recursion_is_a_failure_like_any_other(bench: Bench) -> None:
    def bake() -> None:
        bake()

    error = error_of(bench.run(as_job(bench, "plain", bake)))
    assert error["type"] == "RecursionError"
    assert len(error["stack"]) < 40_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_code_that_tries_to_end_the_process_only_fails(bench: Bench, kind: str, error: BaseException) -> None:
    job = as_job(bench, kind, raising(error))
    outcome = bench.run(job)
    assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.ERROR)
    assert error_of(outcome)["type"].endswith(type(error).__name__)
    assert bench.run(job).status is Status.FAILED, "and the next attempt runs"


@pytest.mark.parametrize("kind", KINDS)
def test_a_permanent_failure_is_not_tried_again(bench: Bench, kind: str) -> None:
    outcome = bench.run(as_job(bench, kind, raising(PermanentFailure("burnt"))))
    assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.FAILED, Reason.ERROR, False)
    assert error_of(outcome)["message"] == "burnt"


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_may_say_when_it_is_to_be_tried_again(bench: Bench, kind: str) -> None:
    outcome = bench.run(as_job(bench, kind, raising(RetryLater("oven is hot", after=90))))
    assert outcome.may_retry
    assert outcome.retry_at is not None
    assert outcome.ended_at is not None
    assert outcome.retry_at - outcome.ended_at == timedelta(seconds=90)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_that_code_raises_by_itself_is_its_own_failure(bench: Bench, kind: str) -> None:
    def bake(ctx: Context) -> None:
        ctx.tell_to_stop()
        ctx.check()

    async def bake_async(ctx: Context) -> None:
        bake(ctx)

    job = bench.app.job(name="bake")(bake if kind == "plain" else bake_async)
    outcome = bench.run(job)
    assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.ERROR)


# --- input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_the_type_refuses_is_final_and_says_refused(bench: Bench, kind: str) -> None:
    ran = []

    def bake(flour: int) -> None:
        ran.append(flour)

    async def bake_async(flour: int) -> None:
        ran.append(flour)

    job = bench.app.job(name="bake")(bake if kind == "plain" else bake_async)
    outcome = bench.run(job, 1, _fields={"input": '{"flour": "much"}'})
    assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.FAILED, Reason.REFUSED, False)
    assert error_of(outcome)["message"].startswith("flour:")
    assert ran == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_error_raised_by_the_code_itself_is_an_ordinary_failure(bench: Bench, kind: str) -> None:
    outcome = bench.run(as_job(bench, kind, raising(Invalid("no such bread", field="bread"))))
    assert (outcome.reason, outcome.may_retry) == (Reason.ERROR, True)


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_wherever_the_code_lies_even_in_a_folder_of_our_name(bench: Bench, kind: str, tmp_path: Path) -> None:
    file = tmp_path / "tenuto" / "handlers" / "mine.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from tenuto.errors import Invalid\ndef bake():\n    raise Invalid('no such bread')\n"
        "async def bake_async():\n    bake()\n"
    )
    spec = importlib.util.spec_from_file_location("mine_in_tenuto", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    job = bench.app.job(name="bake")(module.bake if kind == "plain" else module.bake_async)
    outcome = bench.run(job)
    assert (outcome.reason, outcome.may_retry) == (Reason.ERROR, True)


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_refused_by_another_job_that_the_code_asked_for_is_an_ordinary_failure(
    bench: Bench, kind: str
) -> None:
    @bench.app.job
    def other(n: int) -> None: ...

    outcome = bench.run(as_job(bench, kind, lambda: other.dump_input(("much",), {})))
    assert (outcome.reason, outcome.may_retry) == (Reason.ERROR, True)


def test_a_job_that_is_not_registered_here_is_refused_but_may_be_known_elsewhere(bench: Bench) -> None:
    @bench.app.job
    def bake() -> None: ...

    outcome = bench.run(bake, _fields={"name": "wash"})
    assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.FAILED, Reason.REFUSED, True)
    assert "'wash'" in error_of(outcome)["message"]
    assert "restart the worker if the job is new" in error_of(outcome)["message"]


# --- being stopped -------------------------------------------------------------------------------------------------


def test_cancelled_async_code_is_thrown_out_where_it_waits_and_may_clean_up(bench: Bench) -> None:
    begun, cleaned = threading.Event(), threading.Event()

    @bench.app.job
    async def bake() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    attempt = bench.begin(bake)
    begun.wait(10)
    attempt.stop(Stop.CANCELLED, ANA)
    outcome = bench.outcome(attempt)
    assert outcome is not None
    assert (outcome.status, outcome.reason, outcome.may_retry) == (Status.CANCELLED, Reason.REQUESTED, False)
    assert error_of(outcome)["message"] == "cancelled by Ana"
    assert cleaned.is_set()


def test_a_busy_loop_in_a_thread_is_really_stopped(bench: Bench) -> None:
    begun = threading.Event()
    turns = 0

    @bench.app.job
    def spin() -> None:
        nonlocal turns
        begun.set()
        while True:
            try:
                turns += 1
            except Exception:
                turns = 0

    attempt = bench.begin(spin)
    begun.wait(10)
    attempt.stop(Stop.CANCELLED, ANA)
    outcome = bench.outcome(attempt, timeout=10)
    assert outcome is not None
    assert outcome.status is Status.CANCELLED
    assert not _moves(lambda: turns)


def _moves(count: Callable[[], int]) -> bool:
    before = count()
    deadline = time.monotonic() + 0.05
    while time.monotonic() < deadline:
        if count() != before:
            return True
    return False


def test_the_thread_of_a_stopped_job_serves_the_next_one_unharmed(bench: Bench) -> None:
    begun = threading.Event()

    @bench.app.job
    def spin() -> None:
        begun.set()
        while True:
            pass

    @bench.app.job
    def count(n: int) -> int:
        return sum(1 for _ in range(n))

    for _ in range(5):
        begun.clear()
        attempt = bench.begin(spin)
        begun.wait(10)
        attempt.stop(Stop.CANCELLED, ANA)
        bench.outcome(attempt)
        outcomes = [bench.outcome(attempt) for attempt in [bench.begin(count, 20_000) for _ in range(8)]]
        assert [outcome and outcome.output for outcome in outcomes] == ["20000"] * 8


def test_a_thread_that_looks_may_leave_in_its_own_way(bench: Bench) -> None:
    begun = threading.Event()

    @bench.app.job
    def patient(ctx: Context) -> str:
        begun.set()
        while not ctx.wait(30):
            pass
        return "tidied up"

    attempt = bench.begin(patient)
    begun.wait(10)
    attempt.stop(Stop.HANDED_BACK)
    assert bench.outcome(attempt) is not None, "one way or the other it ends, and at once"


@pytest.mark.parametrize("kind", KINDS)
def test_code_that_was_to_be_stopped_before_it_began_never_runs(bench: Bench, kind: str) -> None:
    ran = []
    job = as_job(bench, kind, lambda: ran.append(1))
    task = a_held_task(name="bake")
    attempt = Attempt(task, Context(task), steady() + 60, steady())
    attempt.stop(Stop.CANCELLED, ANA)
    bench.runner.launch([attempt])
    outcome = bench.outcome(attempt)
    assert outcome is not None
    assert outcome.status is Status.CANCELLED
    assert ran == []
    assert bench.run(job).status is Status.COMPLETED


@pytest.mark.parametrize("kind", KINDS)
def test_code_whose_lease_is_over_by_the_time_it_would_begin_never_runs(bench: Bench, kind: str) -> None:
    """As in a process that was frozen between the claim and here, and wakes before its watchdog does."""
    ran = []
    as_job(bench, kind, lambda: ran.append(1))
    task = a_held_task(name="bake")
    attempt = Attempt(task, Context(task), steady(), steady())
    bench.runner.launch([attempt])
    assert bench.outcome(attempt) is None, "somebody else may hold the task: nothing is reported"
    assert ran == []


@pytest.mark.parametrize(
    ("stop", "status", "reason"),
    [
        (Stop.TIMED_OUT, Status.FAILED, Reason.TIMED_OUT),
        (Stop.HANDED_BACK, Status.CANCELLED, Reason.HANDED_BACK),
        (Stop.CANCELLED, Status.CANCELLED, Reason.REQUESTED),
        (Stop.LEASE_LOST, None, None),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_why_code_was_stopped_decides_what_is_reported(
    bench: Bench, kind: str, stop: Stop, status: Status | None, reason: Reason | None
) -> None:
    begun = threading.Event()

    async def wait_async() -> None:
        begun.set()
        await asyncio.sleep(60)

    def wait() -> None:
        begun.set()
        while True:
            time.sleep(0.001)

    function: Any = wait_async if kind == "async" else wait
    job: Job[..., Any] = bench.app.job(name="bake", timeout=60)(function)
    attempt = bench.begin(job)
    begun.wait(10)
    attempt.stop(stop, ANA)
    attempt.stop(Stop.CANCELLED, ANA)  # the first reason stands
    outcome = bench.outcome(attempt)
    assert (outcome and outcome.status, outcome and outcome.reason) == (status, reason)


def test_the_words_of_stopped_code_are_kept(bench: Bench) -> None:
    begun = threading.Event()

    @bench.app.job
    async def bake(ctx: Context) -> None:
        print("kneading")
        ctx.progress(1, 2)
        begun.set()
        await asyncio.sleep(60)

    attempt = bench.begin(bake)
    begun.wait(10)
    attempt.stop(Stop.CANCELLED, ANA)
    outcome = bench.outcome(attempt)
    assert outcome is not None
    assert "kneading" in (outcome.log or "")
    assert json.loads(outcome.progress or "") == {"done": 1, "total": 2}


def test_asking_again_presses_harder_on_code_that_would_not_hear(bench: Bench) -> None:
    begun = threading.Event()
    refusals: list[int] = []

    @bench.app.job
    async def stubborn() -> None:
        begun.set()
        while len(refusals) < 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                refusals.append(1)
        await asyncio.sleep(60)

    attempt = bench.begin(stubborn)
    begun.wait(10)
    for times in (1, 2):
        attempt.stop(Stop.CANCELLED, ANA)
        eventually_here(lambda times=times: len(refusals) == times)  # type: ignore[misc]
    attempt.stop(Stop.CANCELLED, ANA)
    outcome = bench.outcome(attempt)
    assert outcome is not None
    assert outcome.status is Status.CANCELLED


def test_stopping_what_has_ended_does_nothing(bench: Bench) -> None:
    @bench.app.job
    def bake() -> int:
        return 7

    attempt = bench.begin(bake)
    outcome = bench.outcome(attempt)
    attempt.stop(Stop.CANCELLED, ANA)
    assert outcome is not None
    assert outcome.status is Status.COMPLETED
    assert attempt.stop_reason is None


def test_a_time_limit_runs_from_the_start_of_the_code(bench: Bench) -> None:
    @bench.app.job(timeout=50)
    async def limited() -> None: ...

    @bench.app.job
    async def free() -> None: ...

    before = steady()
    attempt = bench.begin(limited)
    bench.outcome(attempt)
    assert attempt.deadline is not None
    assert before + 50 <= attempt.deadline <= steady() + 50
    attempt = bench.begin(free)
    bench.outcome(attempt)
    assert attempt.deadline is None
    assert Policy().timeout_seconds is None


def test_our_own_errors_are_what_a_program_can_catch() -> None:
    assert issubclass(PermanentFailure, TenutoError)
    assert issubclass(RetryLater, TenutoError)
    assert issubclass(Invalid, TenutoError)
