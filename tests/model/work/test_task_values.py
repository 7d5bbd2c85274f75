"""Task values (S7, bad inputs B85, B91): validation of new tasks, policies, durations, instants and actors."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model.access.actors import Actor, ActorType
from tenuto.model.definitions.policies import MAX_TIMEOUT_SECONDS, RetryPolicy, TaskPolicy, policy_from_json
from tenuto.model.validation import MAX_INPUT_BYTES
from tenuto.model.work.tasks import TaskState, check_new_task, error_json, parse_duration_seconds, parse_instant
from tests.support.errors import raises_code
from tests.support.model_values import NOON, make_new_task

# --- policies ------------------------------------------------------------------------------------------------------

policies = st.builds(
    TaskPolicy,
    st.builds(
        RetryPolicy,
        max_attempts=st.integers(1, 1000),
        base_seconds=st.floats(0, 86_400),
        factor=st.floats(1, 100),
        cap_seconds=st.floats(0, 86_400),
        jitter=st.floats(0, 1),
    ),
    timeout_seconds=st.none() | st.floats(0, MAX_TIMEOUT_SECONDS, exclude_min=True),
    on_lost=st.sampled_from(["retry", "fail"]),
)


@given(policies)
def test_task_policy_json_round_trip(policy: TaskPolicy) -> None:
    assert policy_from_json(policy.to_json()) == policy


def test_default_task_policy_is_stored_as_empty_object() -> None:
    assert TaskPolicy().to_json() == "{}"
    assert policy_from_json("{}") == TaskPolicy()


def test_unknown_field_of_a_stored_task_policy_is_ignored() -> None:
    assert policy_from_json('{"max_attempts": 5, "later_field": {"a": 1}}') == TaskPolicy(RetryPolicy(max_attempts=5))


@pytest.mark.parametrize(
    ("stored", "policy"),
    [
        ('{"on_lost": "fail", "max_attempts": 5000}', TaskPolicy(on_lost="fail")),
        ('{"timeout_seconds": 5, "max_attempts": "many", "factor": 3}', TaskPolicy(RetryPolicy(factor=3), 5)),
        ('{"max_retries": 5}', TaskPolicy(RetryPolicy(max_attempts=5))),
        ('{"max_retries": 0}', TaskPolicy(RetryPolicy(max_attempts=1))),
        ('{"max_retries": 5, "max_attempts": 7}', TaskPolicy(RetryPolicy(max_attempts=7))),
        ('{"max_retries": "many"}', TaskPolicy()),
        ('{"timeout_seconds": "soon", "jitter": 0}', TaskPolicy(RetryPolicy(jitter=0))),
        ('{"timeout_seconds": {"a": 1}, "base_seconds": null}', TaskPolicy()),
        ('{"on_lost": "later"}', TaskPolicy(on_lost="fail")),
        ("[]", TaskPolicy()),
        ("3", TaskPolicy()),
        ("{", TaskPolicy()),
    ],
)
def test_readable_fields_of_a_stored_task_policy_apply(stored: str, policy: TaskPolicy) -> None:
    assert policy_from_json(stored) == policy


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, MAX_TIMEOUT_SECONDS + 1])
def test_task_timeout_out_of_range_is_rejected(timeout: float) -> None:
    with pytest.raises(Invalid) as rejected:
        TaskPolicy(timeout_seconds=timeout)
    assert rejected.value.field == "timeout"


def test_unknown_on_lost_is_rejected() -> None:
    with pytest.raises(Invalid) as rejected:
        TaskPolicy(on_lost="ignore")  # type: ignore[arg-type]
    assert rejected.value.field == "on_lost"


# --- durations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_as", "in_seconds"),
    [
        (None, None),
        (90, 90.0),
        (0.5, 0.5),
        ("90s", 90.0),
        ("15m", 900.0),
        ("1h", 3600.0),
        ("2d", 172_800.0),
        ("1.5h", 5400.0),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_duration_is_parsed_from_seconds_text_or_timedelta(given_as: Any, in_seconds: float | None) -> None:
    assert parse_duration_seconds(given_as, field="timeout") == in_seconds


@pytest.mark.parametrize("text", ["", "s", "h", "1", "1w", "one hour", "1 hour", "h1", "1h30m", "--1s"])
def test_invalid_duration_is_rejected_with_an_example(text: str) -> None:
    with raises_code("value.duration.invalid") as rejected:
        parse_duration_seconds(text, field="timeout")
    assert rejected.value.field == "timeout"
    assert "'15m'" in str(rejected.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2031-05-17T12:00:00Z", NOON),
        ("2031-05-17T14:00:00+02:00", NOON),
        ("2031-05-17 12:00:00+00:00", NOON),
    ],
)
def test_instant_with_offset_is_parsed(text: str, expected: datetime) -> None:
    assert parse_instant(text, field="run_at") == expected


@pytest.mark.parametrize("text", ["", "tomorrow", "2031-05-17T12:00:00", "2031-13-01T00:00:00Z", "1e3", "\uff19"])
def test_invalid_instant_is_rejected(text: str) -> None:
    with pytest.raises(Invalid) as rejected:
        parse_instant(text, field="run_at")
    assert rejected.value.field == "run_at"


# --- new tasks -----------------------------------------------------------------------------------------------------


def test_new_task_is_queued_if_due_and_scheduled_otherwise() -> None:
    assert make_new_task(created_at=NOON).state is TaskState.QUEUED
    assert make_new_task(created_at=NOON, run_at=NOON).state is TaskState.QUEUED
    assert make_new_task(created_at=NOON, run_at=NOON - timedelta(days=1)).state is TaskState.QUEUED
    assert make_new_task(created_at=NOON, run_at=NOON + timedelta(seconds=1)).state is TaskState.SCHEDULED


def test_valid_new_task_is_returned_unchanged() -> None:
    task = make_new_task(
        queue="mail",
        priority=-1000,
        run_at=NOON,
        unique_key="order 17",
        limit_key="printer",
        limit_max=1,
        tags=["a", "b"],
        correlation_id="c",
    )
    assert check_new_task(task) is task


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("name", {"name": "a b"}),
        ("name", {"name": "x" * 1_000_000}),
        ("queue", {"queue": ""}),
        ("queue", {"queue": "x" * 65}),
        ("priority", {"priority": 1001}),
        ("priority", {"priority": -1001}),
        ("priority", {"priority": 0.5}),
        ("priority", {"priority": "high"}),
        ("run_at", {"run_at": datetime(2031, 1, 1)}),  # noqa: DTZ001 - that it is naive is the point
        ("run_at", {"run_at": datetime(1, 1, 1, tzinfo=UTC)}),
        ("run_at", {"run_at": datetime(9999, 12, 31, tzinfo=UTC)}),
        ("run_at", {"run_at": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-14)))}),
        ("unique_key", {"unique_key": ""}),
        ("unique_key", {"unique_key": "x" * 201}),
        ("unique_key", {"unique_key": "a\x00"}),
        ("limit_key", {"limit_key": "\ud800", "limit_max": 1}),
        ("correlation_id", {"correlation_id": "x" * 201}),
        ("limit", {"limit_key": "printer"}),
        ("limit", {"limit_max": 1}),
        ("limit", {"limit_key": "printer", "limit_max": 0}),
        ("limit", {"limit_key": "printer", "limit_max": 100_001}),
        ("limit", {"limit_key": "printer", "limit_max": 1.5}),
        ("unique_key", {"unique_key": 17}),
        ("tags", {"tags": [17]}),
        ("run_at", {"run_at": 17}),
        ("tags", {"tags": [str(n) for n in range(10_000)]}),
        ("tags", {"tags": [""]}),
        ("input", {"input": '"' + "x" * MAX_INPUT_BYTES + '"'}),
        ("input", {"input": r'"\u0000"'}),
        ("input", {"input": r'"\ud800"'}),
    ],
)
def test_invalid_new_task_field_is_rejected(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as rejected:
        check_new_task(make_new_task(**fields))
    assert rejected.value.field == field


# --- actors and errors ---------------------------------------------------------------------------------------------


def test_actor_has_type_id_and_name() -> None:
    assert Actor.user("ana") == Actor(ActorType.USER, "ana", "ana")
    assert Actor.user("ana", "Ana") == Actor(ActorType.USER, "ana", "Ana")
    assert Actor.api_key("k1", "nightly") == Actor(ActorType.API_KEY, "k1", "nightly")
    assert Actor.system("scheduler") == Actor(ActorType.SYSTEM, None, "scheduler")


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_actor_name_of_invalid_length_is_rejected(name: str) -> None:
    with pytest.raises(Invalid) as rejected:
        Actor.system(name)
    assert rejected.value.field == "actor.name"


@given(st.text(max_size=50), st.text(max_size=50))
def test_error_json_can_always_be_stored(message: str, stack: str) -> None:
    text = error_json("ValueError", message, step="bake", stack=stack)
    assert "\x00" not in text
    assert "\\u0000" not in text
    text.encode("utf-8")
    assert json.loads(text)["step"] == "bake"


def test_new_task_with_a_number_of_too_many_digits_is_refused_by_code() -> None:
    with raises_code("task.priority.out_of_range"):
        check_new_task(make_new_task(priority=10**5000))
