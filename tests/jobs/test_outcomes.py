"""Outcomes of attempts (W2, W4, W5, J9): returned values, errors and stops; each attempt ends exactly once."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tenuto import Actor, Context, Job, PermanentFailure, RetryLater, TenutoError
from tenuto.clock import monotonic_seconds
from tenuto.errors import Invalid
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.validation import MAX_OUTPUT_BYTES
from tenuto.model.work.tasks import Outcome, OutcomeReason, OutcomeStatus
from tests.jobs.conftest import RunnerHarness
from tests.support.model_values import make_held_task
from tests.support.waiting import eventually_blocking

ANA = Actor.user("ana", "Ana")
KINDS = ["async", "plain"]


def create_job(harness: RunnerHarness, kind: str, function: Callable[[], Any], **options: Any) -> Job[..., Any]:
    """Create a job of either kind with the same code."""
    if kind == "plain":
        return harness.app.job(name="bake", **options)(function)

    async def bake() -> Any:
        return function()

    return harness.app.job(name="bake", **options)(bake)


def create_raising(error: BaseException | Callable[[], BaseException]) -> Callable[[], None]:
    def bake() -> None:
        raise error() if callable(error) else error

    return bake


def load_error(outcome: Outcome) -> dict[str, str]:
    assert outcome.error is not None
    error: dict[str, str] = json.loads(outcome.error)
    return error


# --- return values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_returned_value_is_the_output(harness: RunnerHarness, kind: str) -> None:
    outcome = harness.run(create_job(harness, kind, lambda: {"loaves": 3}))
    assert (outcome.status, outcome.reason, outcome.error) == (OutcomeStatus.COMPLETED, None, None)
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
        "x" * (MAX_OUTPUT_BYTES + 1),
        10**5000,
        lambda: None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_unstorable_result_completes_with_a_warning(harness: RunnerHarness, kind: str, value: Any) -> None:
    outcome = harness.run(create_job(harness, kind, lambda: value))
    assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED_WITH_WARNING, None)
    assert "the result could not be stored" in load_error(outcome)["message"]


@dataclass
class Report:
    mean: float
    rows: list[Any] = field(default_factory=list)


class Model(BaseModel):
    mean: float | None = None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "output"),
        (-math.inf, "output"),
        ({"mean": math.nan}, "output.mean"),
        ({"rows": [1.5, {"mean": math.inf}]}, "output.rows[1].mean"),
        ((1, math.nan), "output[1]"),
        ({math.nan: 1}, "output.nan"),
        (Report(math.nan), "output.mean"),
        (Report(1.0, [math.nan]), "output.rows[0]"),
        ([Model(mean=math.nan)], "output[0].mean"),
    ],
    ids=str,
)
def test_number_that_json_cannot_express_completes_with_a_warning_that_names_it(
    harness: RunnerHarness, kind: str, value: Any, path: str
) -> None:
    outcome = harness.run(create_job(harness, kind, lambda: value))
    assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED_WITH_WARNING, None)
    assert f"the result could not be stored: {path} is NaN or infinite" in load_error(outcome)["message"]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"mean": None, "n": 1.5}, {"mean": None, "n": 1.5}),
        (Decimal("NaN"), "NaN"),
        ({None: 1}, {"None": 1}),
        (Model(), {"mean": None}),
        ([float("1e308"), -0.0, True], [1e308, -0.0, True]),
        (
            {"at": datetime(2030, 1, 1, tzinfo=UTC), "for": timedelta(seconds=90)},
            {"at": "2030-01-01T00:00:00Z", "for": "PT1M30S"},
        ),
        ({frozenset({1})}, [[1]]),
    ],
    ids=str,
)
def test_result_with_null_or_odd_types_is_stored(harness: RunnerHarness, value: Any, stored: Any) -> None:
    outcome = harness.run(create_job(harness, "plain", lambda: value))
    assert outcome.status is OutcomeStatus.COMPLETED
    assert json.loads(outcome.output or "") == stored


def test_deeply_nested_result_completes_with_a_warning(harness: RunnerHarness) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    outcome = harness.run(create_job(harness, "plain", lambda: deep))
    assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED_WITH_WARNING, None)


async def unawaited() -> None:
    raise AssertionError("must not run")


def unfinished_generator() -> Iterator[int]:
    yield 1
    raise RuntimeError("must not run")


async def unused_async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("unfinished", "remedy"),
    [
        (unawaited, "make the job an async def"),
        (unfinished_generator, "return a list"),
        (unused_async_generator, "return a list"),
    ],
)
def test_returned_generator_or_awaitable_fails_the_attempt(
    harness: RunnerHarness, kind: str, unfinished: Callable[[], Any], remedy: str
) -> None:
    outcome = harness.run(create_job(harness, kind, lambda: unfinished()))
    assert (outcome.status, outcome.may_retry, outcome.output) == (OutcomeStatus.FAILED, False, None)
    assert remedy in load_error(outcome)["message"]


def test_reported_warnings_and_errors_set_the_status(harness: RunnerHarness) -> None:
    @harness.app.job
    def bake(warn: bool, fail: bool, ctx: Context) -> int:
        if warn:
            ctx.warn("low on flour")
        if fail:
            ctx.error("no water")
        return 7

    outcome = harness.run(bake, warn=True, fail=False)
    assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED_WITH_WARNING, "7")
    assert load_error(outcome)["message"] == "low on flour"
    outcome = harness.run(bake, warn=True, fail=True)
    assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED_WITH_ERROR, "7")
    assert load_error(outcome) == {"type": "tenuto.Error", "message": "no water", "step": "bake"}


def test_outcome_contains_the_last_progress(harness: RunnerHarness) -> None:
    @harness.app.job
    async def bake(ctx: Context) -> None:
        ctx.progress(3, 10, "kneading")

    assert json.loads(harness.run(bake).progress or "") == {"done": 3, "total": 10, "message": "kneading"}


# --- errors ----------------------------------------------------------------------------------------------------------


class OutOfFlour(Exception):
    pass


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be printed")

    __repr__ = __str__


def knead() -> None:
    raise OutOfFlour("not a gram")


@pytest.mark.parametrize("kind", KINDS)
def test_failure_is_recorded_with_type_message_step_and_stack(harness: RunnerHarness, kind: str) -> None:
    outcome = harness.run(create_job(harness, kind, knead))
    assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.ERROR, True)
    error = load_error(outcome)
    assert error["type"].endswith("test_outcomes.OutOfFlour")
    assert (error["message"], error["step"]) == ("not a gram", "bake")
    assert "in knead" in error["stack"]
    assert 'raise OutOfFlour("not a gram")' in error["stack"]
    assert "tenuto/jobs" not in error["stack"], "frames of Tenuto are left out"


def test_builtin_error_is_recorded_with_its_name_and_cause(harness: RunnerHarness) -> None:
    @harness.app.job
    def bake() -> None:
        try:
            knead()
        except OutOfFlour as error:
            raise ZeroDivisionError("no bread") from error

    error = load_error(harness.run(bake))
    assert error["type"] == "ZeroDivisionError"
    assert "not a gram" in error["stack"]


@pytest.mark.parametrize("kind", KINDS)
def test_unprintable_error_is_recorded(harness: RunnerHarness, kind: str) -> None:
    outcome = harness.run(create_job(harness, kind, create_raising(UnprintableError)))
    assert (outcome.status, outcome.reason) == (OutcomeStatus.FAILED, OutcomeReason.ERROR)
    assert load_error(outcome)["type"].endswith("UnprintableError")


class ErrorWithoutModule(Exception):
    __module__ = None  # type: ignore[assignment]


class ErrorThatExitsWhenPrinted(Exception):
    def __str__(self) -> str:
        raise SystemExit


class RetryLaterWithoutDelay(RetryLater):
    def __init__(self) -> None:
        """Leaves the attribute ``after`` undefined."""


class ErrorWithUnstorableName(Exception):
    pass


ErrorWithUnstorableName.__qualname__ = "Un\x00storable\ud800"


class RetryLaterWithHugeDelay(RetryLater):
    def __init__(self) -> None:
        super().__init__("far too long", after=1)
        self.after = timedelta.max


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "error",
    [
        RetryLaterWithoutDelay,
        ErrorThatExitsWhenPrinted,
        ErrorWithoutModule,
        ErrorWithUnstorableName,
        RetryLaterWithHugeDelay,
    ],
)
def test_error_with_broken_class_fails_the_attempt(
    harness: RunnerHarness, kind: str, error: type[BaseException]
) -> None:
    """Without an outcome the attempt would hold its slot and its task for ever."""
    attempt = harness.start(create_job(harness, kind, create_raising(error)))
    outcome = harness.wait_for_outcome(attempt, timeout=10)
    assert outcome is not None
    assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.ERROR, True)
    assert (attempt.has_ended, load_error(outcome)["step"]) == (True, "bake")
    assert "\\u0000" not in (outcome.error or "")
    (outcome.error or "").encode()


@pytest.mark.parametrize("message", ["a\x00b", "\ud800", "x" * 5_000_000, ""])
def test_recorded_error_can_be_stored_whatever_its_message(harness: RunnerHarness, message: str) -> None:
    error = load_error(harness.run(create_job(harness, "plain", create_raising(ValueError(message)))))
    assert "\x00" not in error["message"]
    assert len(json.dumps(error)) < 100_000


def test_recursion_error_fails_the_attempt(harness: RunnerHarness) -> None:
    def bake() -> None:
        bake()

    error = load_error(harness.run(create_job(harness, "plain", bake)))
    assert error["type"] == "RecursionError"
    assert len(error["stack"]) < 40_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_system_exit_fails_only_the_attempt(harness: RunnerHarness, kind: str, error: BaseException) -> None:
    job = create_job(harness, kind, create_raising(error))
    outcome = harness.run(job)
    assert (outcome.status, outcome.reason) == (OutcomeStatus.FAILED, OutcomeReason.ERROR)
    assert load_error(outcome)["type"].endswith(type(error).__name__)
    assert harness.run(job).status is OutcomeStatus.FAILED, "the next attempt runs"


@pytest.mark.parametrize("kind", KINDS)
def test_permanent_failure_is_not_retried(harness: RunnerHarness, kind: str) -> None:
    outcome = harness.run(create_job(harness, kind, create_raising(PermanentFailure("burnt"))))
    assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.ERROR, False)
    assert load_error(outcome)["message"] == "burnt"


@pytest.mark.parametrize("kind", KINDS)
def test_retry_later_sets_the_time_of_the_retry(harness: RunnerHarness, kind: str) -> None:
    outcome = harness.run(create_job(harness, kind, create_raising(RetryLater("oven is hot", after=90))))
    assert outcome.may_retry
    assert outcome.retry_at is not None
    assert outcome.ended_at is not None
    assert outcome.retry_at - outcome.ended_at == timedelta(seconds=90)


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_raised_without_stop_request_fails_the_attempt(harness: RunnerHarness, kind: str) -> None:
    def bake(ctx: Context) -> None:
        ctx.request_stop()
        ctx.raise_if_cancelled()

    async def bake_async(ctx: Context) -> None:
        bake(ctx)

    job = harness.app.job(name="bake")(bake if kind == "plain" else bake_async)
    outcome = harness.run(job)
    assert (outcome.status, outcome.reason) == (OutcomeStatus.FAILED, OutcomeReason.ERROR)


# --- input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_stored_input_fails_permanently_as_refused(harness: RunnerHarness, kind: str) -> None:
    ran = []

    def bake(flour: int) -> None:
        ran.append(flour)

    async def bake_async(flour: int) -> None:
        ran.append(flour)

    job = harness.app.job(name="bake")(bake if kind == "plain" else bake_async)
    outcome = harness.run(job, 1, _fields={"input": '{"flour": "much"}'})
    assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.REFUSED, False)
    assert load_error(outcome)["message"].startswith("flour:")
    assert ran == []


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_raised_by_the_job_is_an_ordinary_failure(harness: RunnerHarness, kind: str) -> None:
    outcome = harness.run(
        create_job(harness, kind, create_raising(Invalid("no such bread", code="test.error", field="bread")))
    )
    assert (outcome.reason, outcome.may_retry) == (OutcomeReason.ERROR, True)


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_raised_in_a_folder_named_like_tenuto_is_an_ordinary_failure(
    harness: RunnerHarness, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "tenuto" / "jobs" / "mine.py"
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
    job = harness.app.job(name="bake")(module.bake if kind == "plain" else module.bake_async)
    outcome = harness.run(job)
    assert (outcome.reason, outcome.may_retry) == (OutcomeReason.ERROR, True)


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_input_of_another_job_is_an_ordinary_failure(harness: RunnerHarness, kind: str) -> None:
    @harness.app.job
    def other(n: int) -> None: ...

    outcome = harness.run(create_job(harness, kind, lambda: other.dump_input(("much",), {})))
    assert (outcome.reason, outcome.may_retry) == (OutcomeReason.ERROR, True)


def test_unregistered_job_is_deferred_without_an_attempt(harness: RunnerHarness) -> None:
    @harness.app.job
    def bake() -> None: ...

    outcome = harness.run(bake, _fields={"name": "wash"})
    assert (outcome.status, outcome.reason, outcome.error) == (OutcomeStatus.COMPLETED, None, None)
    assert outcome.deferral is not None
    assert outcome.deferral.resume_at is not None


def test_unknown_job_raised_by_running_code_is_an_ordinary_failure(harness: RunnerHarness) -> None:
    @harness.app.job
    def bake() -> None:
        harness.app.jobs.get_job("wash")

    outcome = harness.run(bake)
    assert (outcome.status, outcome.reason, outcome.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.ERROR, True)
    assert "'wash'" in load_error(outcome)["message"]


# --- stops -----------------------------------------------------------------------------------------------------------


def test_cancelled_async_job_can_clean_up(harness: RunnerHarness) -> None:
    started, cleaned = threading.Event(), threading.Event()

    @harness.app.job
    async def bake() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    attempt = harness.start(bake)
    started.wait(10)
    attempt.stop(StopReason.CANCELLED, ANA)
    outcome = harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert (outcome.status, outcome.reason, outcome.may_retry) == (
        OutcomeStatus.CANCELLED,
        OutcomeReason.REQUESTED,
        False,
    )
    assert load_error(outcome)["message"] == "cancelled by Ana"
    assert cleaned.is_set()


def test_runner_stops_a_busy_loop_in_a_thread(harness: RunnerHarness) -> None:
    started = threading.Event()
    turns = 0

    @harness.app.job
    def spin() -> None:
        nonlocal turns
        started.set()
        while True:
            try:
                turns += 1
            except Exception:
                turns = 0

    attempt = harness.start(spin)
    started.wait(10)
    attempt.stop(StopReason.CANCELLED, ANA)
    outcome = harness.wait_for_outcome(attempt, timeout=10)
    assert outcome is not None
    assert outcome.status is OutcomeStatus.CANCELLED
    assert not _changes(lambda: turns)


def _changes(count: Callable[[], int]) -> bool:
    before = count()
    deadline = time.monotonic() + 0.05
    while time.monotonic() < deadline:
        if count() != before:
            return True
    return False


def test_runner_reuses_the_thread_of_a_stopped_job(harness: RunnerHarness) -> None:
    started = threading.Event()

    @harness.app.job
    def spin() -> None:
        started.set()
        while True:
            pass

    @harness.app.job
    def count(n: int) -> int:
        return sum(1 for _ in range(n))

    for _ in range(5):
        started.clear()
        attempt = harness.start(spin)
        started.wait(10)
        attempt.stop(StopReason.CANCELLED, ANA)
        harness.wait_for_outcome(attempt)
        outcomes = [harness.wait_for_outcome(attempt) for attempt in [harness.start(count, 20_000) for _ in range(8)]]
        assert [outcome and outcome.output for outcome in outcomes] == ["20000"] * 8


def test_plain_job_that_waits_ends_on_a_stop_request(harness: RunnerHarness) -> None:
    started = threading.Event()

    @harness.app.job
    def patient(ctx: Context) -> str:
        started.set()
        while not ctx.wait(30):
            pass
        return "tidied up"

    attempt = harness.start(patient)
    started.wait(10)
    attempt.stop(StopReason.HANDED_BACK)
    assert harness.wait_for_outcome(attempt) is not None, "the attempt ends at once"


@pytest.mark.parametrize("kind", KINDS)
def test_attempt_stopped_before_its_start_never_runs(harness: RunnerHarness, kind: str) -> None:
    ran = []
    job = create_job(harness, kind, lambda: ran.append(1))
    task = make_held_task(name="bake")
    attempt = Attempt(task, Context(task), monotonic_seconds() + 60, monotonic_seconds())
    attempt.stop(StopReason.CANCELLED, ANA)
    harness.runner.launch([attempt])
    outcome = harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert outcome.status is OutcomeStatus.CANCELLED
    assert ran == []
    assert harness.run(job).status is OutcomeStatus.COMPLETED


@pytest.mark.parametrize("kind", KINDS)
def test_attempt_with_expired_lease_never_runs(harness: RunnerHarness, kind: str) -> None:
    """Happens in a process that was frozen after the claim and continues before its watchdog does."""
    ran = []
    create_job(harness, kind, lambda: ran.append(1))
    task = make_held_task(name="bake")
    attempt = Attempt(task, Context(task), monotonic_seconds(), monotonic_seconds())
    harness.runner.launch([attempt])
    assert harness.wait_for_outcome(attempt) is None, "another worker may hold the task: nothing is reported"
    assert ran == []


@pytest.mark.parametrize(
    ("stop", "status", "reason"),
    [
        (StopReason.TIMED_OUT, OutcomeStatus.FAILED, OutcomeReason.TIMED_OUT),
        (StopReason.HANDED_BACK, OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK),
        (StopReason.CANCELLED, OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED),
        (StopReason.LEASE_LOST, None, None),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_stop_reason_decides_the_outcome(
    harness: RunnerHarness, kind: str, stop: StopReason, status: OutcomeStatus | None, reason: OutcomeReason | None
) -> None:
    started = threading.Event()

    async def wait_async() -> None:
        started.set()
        await asyncio.sleep(60)

    def wait() -> None:
        started.set()
        while True:
            time.sleep(0.001)

    function: Any = wait_async if kind == "async" else wait
    job: Job[..., Any] = harness.app.job(name="bake", timeout=60)(function)
    attempt = harness.start(job)
    started.wait(10)
    attempt.stop(stop, ANA)
    attempt.stop(StopReason.CANCELLED, ANA)  # the first reason is final
    outcome = harness.wait_for_outcome(attempt)
    assert (outcome and outcome.status, outcome and outcome.reason) == (status, reason)


def test_stopped_attempt_keeps_log_and_progress(harness: RunnerHarness) -> None:
    started = threading.Event()

    @harness.app.job
    async def bake(ctx: Context) -> None:
        print("kneading")
        ctx.progress(1, 2)
        started.set()
        await asyncio.sleep(60)

    attempt = harness.start(bake)
    started.wait(10)
    attempt.stop(StopReason.CANCELLED, ANA)
    outcome = harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert "kneading" in (outcome.log or "")
    assert json.loads(outcome.progress or "") == {"done": 1, "total": 2}


def test_each_stop_request_cancels_the_code_again(harness: RunnerHarness) -> None:
    started = threading.Event()
    refusals: list[int] = []

    @harness.app.job
    async def stubborn() -> None:
        started.set()
        while len(refusals) < 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                refusals.append(1)
        await asyncio.sleep(60)

    attempt = harness.start(stubborn)
    started.wait(10)
    for times in (1, 2):
        attempt.stop(StopReason.CANCELLED, ANA)
        eventually_blocking(lambda times=times: len(refusals) == times)  # type: ignore[misc]
    attempt.stop(StopReason.CANCELLED, ANA)
    outcome = harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert outcome.status is OutcomeStatus.CANCELLED


def test_stop_of_an_ended_attempt_has_no_effect(harness: RunnerHarness) -> None:
    @harness.app.job
    def bake() -> int:
        return 7

    attempt = harness.start(bake)
    outcome = harness.wait_for_outcome(attempt)
    attempt.stop(StopReason.CANCELLED, ANA)
    assert outcome is not None
    assert outcome.status is OutcomeStatus.COMPLETED
    assert attempt.stop_reason is None


def test_time_limit_starts_with_the_code(harness: RunnerHarness) -> None:
    @harness.app.job(timeout=50)
    async def limited() -> None: ...

    @harness.app.job
    async def free() -> None: ...

    before = monotonic_seconds()
    attempt = harness.start(limited)
    harness.wait_for_outcome(attempt)
    assert attempt.deadline is not None
    assert before + 50 <= attempt.deadline <= monotonic_seconds() + 50
    attempt = harness.start(free)
    harness.wait_for_outcome(attempt)
    assert attempt.deadline is None
    assert TaskPolicy().timeout_seconds is None


def test_public_errors_are_tenuto_errors() -> None:
    assert issubclass(PermanentFailure, TenutoError)
    assert issubclass(RetryLater, TenutoError)
    assert issubclass(Invalid, TenutoError)
