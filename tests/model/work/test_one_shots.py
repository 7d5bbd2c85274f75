"""One-shots (O1, O3): validation of the instant, and status and history from attempts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy, policy_from_json
from tenuto.model.work import one_shots
from tenuto.model.work.one_shots import AttemptError, OneShotAttempt, PendingCancellation, RuntimeStatus
from tests.support.errors import raises_code

NOW = datetime(2031, 5, 17, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-07-07T15:00:00+08:00", datetime(2025, 7, 7, 7, 0, tzinfo=UTC)),
        ("2031-05-17T12:00:00Z", NOW),
        ("2031-05-17t12:00:00z", NOW),
        ("2031-05-17T12:00Z", NOW),
        ("2031-05-17T12:00:00+00", NOW),
        ("2031-05-17T12:00:00-0000", NOW),
        ("2031-05-17T12:00:00.250Z", NOW + timedelta(milliseconds=250)),
        ("2031-05-17T12:00:00,25Z", NOW + timedelta(milliseconds=250)),
        ("2031-05-17T12:00:00.123456789Z", NOW + timedelta(microseconds=123_456)),
        ("2061-05-17T12:00:00+05:45", datetime(2061, 5, 17, 6, 15, tzinfo=UTC)),
        ("2028-02-29T23:59:59-12:00", datetime(2028, 3, 1, 11, 59, 59, tzinfo=UTC)),
    ],
)
def test_one_shot_exec_at_with_offset_is_converted_to_utc(text: str, expected: datetime) -> None:
    found = one_shots.parse_exec_at(text, NOW, "accept")
    assert found == expected
    assert found.tzinfo is UTC


@pytest.mark.parametrize(
    "given",
    [
        "", " ", "now", "tomorrow", "2031-05-17", "2031-05-17T12:00:00", "2031-05-17T12:00", "20310517T120000Z",
        "2031-W20-6T12:00:00Z", "2031-05-17 12:00:00Z", "2031-05-17T12:00:00 Z", " 2031-05-17T12:00:00Z",
        "2031-05-17T12:00:00Z\n", "2031-13-01T00:00:00Z", "2031-02-30T00:00:00Z", "2031-05-17T25:00:00Z",
        "2031-05-17T24:00:01Z", "2031-05-17T12:60:00Z", "2031-05-17T12:00:60Z", "2031-05-17T12:00:00+25:00",
        "2031-05-17T12:00:00+99:99", "2031-05-17T12:00:00 Europe/Berlin", "2031-05-17T12:00:00.Z",
        "2031-05-17T12:00:00.1234567890Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "1969-12-31T23:59:59Z", "12031-05-17T12:00:00Z",
        "+2031-05-17T12:00:00Z", "\u0662031-05-17T12:00:00Z",
        "2031-05-17T12:00:00Z" + "0" * 10_000, "1936872000", 1936872000, 1936872000.5, None, True, [],
        {}, NOW.replace(tzinfo=None), datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=14))),
    ],
)  # fmt: skip
def test_invalid_one_shot_exec_at_is_rejected(given: Any) -> None:
    with pytest.raises(Invalid) as rejected:
        one_shots.parse_exec_at(given, NOW, "accept")
    assert rejected.value.field == "exec_at"
    assert rejected.value.remedy
    assert len(str(rejected.value)) < 500


@given(st.text())
def test_any_text_as_one_shot_exec_at_is_parsed_or_rejected(text: str) -> None:
    with suppress(Invalid):
        assert one_shots.parse_exec_at(text, NOW, "accept").tzinfo is UTC


def test_past_one_shot_exec_at_is_accepted_or_rejected_by_policy() -> None:
    past = NOW - timedelta(milliseconds=1)
    assert one_shots.parse_exec_at(past, NOW, "accept") == past
    assert one_shots.parse_exec_at(NOW, NOW, "refuse") == NOW
    with raises_code("one_shot.exec_at.in_the_past"):
        one_shots.parse_exec_at(past, NOW, "refuse")


@pytest.mark.parametrize(
    ("is_job", "max_attempts", "expected"),
    [
        (True, None, RetryPolicy(max_attempts=9, base_seconds=3)),
        (True, 4, RetryPolicy(max_attempts=4, base_seconds=3)),
        (False, None, RetryPolicy(max_attempts=1)),
        (False, 4, RetryPolicy(max_attempts=4)),
    ],
)
def test_one_shot_of_a_job_keeps_its_retry_policy_and_others_have_one_attempt(
    is_job: bool, max_attempts: int | None, expected: RetryPolicy
) -> None:
    of_handler = RetryPolicy(max_attempts=9, base_seconds=3)
    chosen = one_shots.choose_retry_policy(of_handler, is_job=is_job, retry=None, max_attempts=max_attempts)
    assert chosen == expected
    with raises_code("one_shot.retry.conflict"):
        one_shots.choose_retry_policy(of_handler, is_job=is_job, retry=of_handler, max_attempts=2)


def test_one_shot_policy_has_the_handlers_timeout() -> None:
    of_handler = TaskPolicy(RetryPolicy(max_attempts=9), timeout_seconds=15, on_lost="fail")
    alone = policy_from_json(one_shots.one_shot_policy_json(of_handler, RetryPolicy(max_attempts=1), None))
    assert alone == TaskPolicy(RetryPolicy(max_attempts=1), 15, "fail")
    asked = policy_from_json(one_shots.one_shot_policy_json(of_handler, RetryPolicy(max_attempts=2), 3))
    assert asked == TaskPolicy(RetryPolicy(max_attempts=2), 3, "fail")


def make_attempt(number: int, state: str, **more: Any) -> OneShotAttempt:
    """Make an attempt as the store returns it."""
    started = state not in ("scheduled", "queued")
    ended = state not in ("scheduled", "queued", "running")
    at = NOW + timedelta(minutes=number)
    attempt = OneShotAttempt(
        task_id=UUID(int=1), attempt=number, state=state, reason=None, final=ended, name="log.append", created_at=NOW,
        run_at=at, started_at=at if started else None, ended_at=at + timedelta(seconds=1) if ended else None,
        worker="here-1" if started else None, input={"message": "Hello"}, output=None, error=None, progress=None,
        tags=[], initiator_name="Ana", cancel_at=None, cancel_name=None,
    )  # fmt: skip
    return replace(attempt, **more)


FAILED = {"reason": "error", "error": {"type": "ValueError", "message": "no", "stack": "Traceback …"}}


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (make_attempt(1, "scheduled"), "Pending"),
        (make_attempt(1, "queued"), "Pending"),
        (make_attempt(1, "running"), "Running"),
        (make_attempt(1, "completed"), "Completed"),
        (make_attempt(1, "completed_with_warning"), "Completed"),
        (make_attempt(1, "completed_with_error"), "Failed"),
        (make_attempt(1, "failed"), "Failed"),
        (make_attempt(1, "cancelled", reason="requested"), "Terminated"),
    ],
    ids=lambda value: value.state if isinstance(value, OneShotAttempt) else value,
)
def test_one_shot_status_follows_from_the_last_attempt(last: OneShotAttempt, status: str) -> None:
    assert one_shots.runtime_status([last]) == status
    assert one_shots.describe_one_shot([last]).runtime_status is RuntimeStatus(status)


def test_one_shot_waiting_for_a_retry_is_pending_with_its_error() -> None:
    described = one_shots.describe_one_shot(
        [make_attempt(1, "failed", final=False, **FAILED), make_attempt(2, "scheduled")]
    )
    assert described.runtime_status == "Pending"
    assert described.exec_at == NOW + timedelta(minutes=1)
    assert described.next_attempt_at == NOW + timedelta(minutes=2)
    assert described.error == AttemptError("ValueError", "no", "error")
    assert described.ended_at is None


def test_one_shot_failure_before_success_is_only_in_the_history() -> None:
    attempts = [
        make_attempt(1, "failed", final=False, **FAILED),
        make_attempt(2, "cancelled", final=False, reason="handed_back"),
        make_attempt(3, "completed", output={"entry": 1}),
    ]
    described = one_shots.describe_one_shot(attempts, history=True)
    assert (described.runtime_status, described.error, described.output) == ("Completed", None, {"entry": 1})
    assert [(event.event, event.attempt) for event in described.history] == [
        ("Created", 1), ("Scheduled", 1), ("Started", 1), ("Failed", 1), ("Retried", 2), ("Started", 2),
        ("HandedBack", 2), ("Retried", 3), ("Started", 3), ("Completed", 3),
    ]  # fmt: skip
    instants = [event.at for event in described.history]
    assert instants == sorted(instants)


def test_one_shot_with_pending_cancellation_is_running_and_names_the_actor() -> None:
    running = make_attempt(1, "running", cancel_at=NOW + timedelta(hours=1), cancel_name="Ben")
    described = one_shots.describe_one_shot([running], history=True)
    assert described.runtime_status == "Running"
    assert described.stopping == PendingCancellation(NOW + timedelta(hours=1), "Ben")
    assert described.history[-1].event == "Stopping"
