"""The values a task is made of (S7, bad inputs B85, B91): checked when made, the same after a trip through JSON."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model.actors import Actor, ActorType
from tenuto.model.policies import MAX_TIMEOUT_SECONDS, TaskPolicy, RetryPolicy, policy_from_json
from tenuto.model.stored_values import MAX_INPUT_BYTES
from tenuto.model.tasks import TaskState, check_new_task, error_json, parse_instant, parse_duration_seconds
from tests.support.model_values import NOON, make_new_task

# --- policies ------------------------------------------------------------------------------------------------------

policies = st.builds(
    TaskPolicy,
    st.builds(
        RetryPolicy,
        max_retries=st.integers(0, 1000),
        base_seconds=st.floats(0, 86_400),
        factor=st.floats(1, 100),
        cap_seconds=st.floats(0, 86_400),
        jitter=st.floats(0, 1),
    ),
    timeout_seconds=st.none() | st.floats(0, MAX_TIMEOUT_SECONDS, exclude_min=True),
    on_lost=st.sampled_from(["retry", "fail"]),
)


@given(policies)
def test_a_policy_is_the_same_after_it_was_stored(policy: TaskPolicy) -> None:
    assert policy_from_json(policy.to_json()) == policy


def test_the_usual_policy_is_stored_as_nothing() -> None:
    assert TaskPolicy().to_json() == "{}"
    assert policy_from_json("{}") == TaskPolicy()


def test_a_rule_that_a_newer_version_wrote_is_passed_over() -> None:
    assert policy_from_json('{"max_retries": 5, "of_the_future": {"a": 1}}') == TaskPolicy(RetryPolicy(max_retries=5))


@pytest.mark.parametrize(
    ("stored", "policy"),
    [
        ('{"on_lost": "fail", "max_retries": 5000}', TaskPolicy(on_lost="fail")),
        ('{"timeout_seconds": 5, "max_retries": "many", "factor": 3}', TaskPolicy(RetryPolicy(factor=3), 5)),
        ('{"timeout_seconds": "soon", "jitter": 0}', TaskPolicy(RetryPolicy(jitter=0))),
        ('{"timeout_seconds": {"a": 1}, "base_seconds": null}', TaskPolicy()),
        ('{"on_lost": "of the future"}', TaskPolicy(on_lost="fail")),
        ("[]", TaskPolicy()),
        ("3", TaskPolicy()),
        ("{", TaskPolicy()),
    ],
)
def test_what_can_be_read_of_a_policy_holds_though_the_rest_cannot(stored: str, policy: TaskPolicy) -> None:
    assert policy_from_json(stored) == policy


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, MAX_TIMEOUT_SECONDS + 1])
def test_a_time_limit_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(Invalid) as refusal:
        TaskPolicy(timeout_seconds=timeout)
    assert refusal.value.field == "timeout"


def test_an_unknown_rule_for_losses_is_refused() -> None:
    with pytest.raises(Invalid) as refusal:
        TaskPolicy(on_lost="ignore")  # type: ignore[arg-type]
    assert refusal.value.field == "on_lost"


# --- spans ---------------------------------------------------------------------------------------------------------


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
def test_a_span_may_be_given_in_several_ways(given_as: Any, in_seconds: float | None) -> None:
    assert parse_duration_seconds(given_as, field="timeout") == in_seconds


@pytest.mark.parametrize("words", ["", "s", "h", "1", "1w", "one hour", "1 hour", "h1", "1h30m", "--1s"])
def test_words_that_are_no_span_are_refused_with_an_example(words: str) -> None:
    with pytest.raises(Invalid, match="'15m'") as refusal:
        parse_duration_seconds(words, field="timeout")
    assert refusal.value.field == "timeout"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2031-05-17T12:00:00Z", NOON),
        ("2031-05-17T14:00:00+02:00", NOON),
        ("2031-05-17 12:00:00+00:00", NOON),
    ],
)
def test_an_instant_is_written_with_its_offset(text: str, found: datetime) -> None:
    assert parse_instant(text, field="run_at") == found


@pytest.mark.parametrize("text", ["", "tomorrow", "2031-05-17T12:00:00", "2031-13-01T00:00:00Z", "1e3", "\uff19"])
def test_words_that_are_no_instant_are_refused(text: str) -> None:
    with pytest.raises(Invalid) as refusal:
        parse_instant(text, field="run_at")
    assert refusal.value.field == "run_at"


# --- new tasks -----------------------------------------------------------------------------------------------------


def test_a_task_is_queued_if_due_and_scheduled_if_not() -> None:
    assert make_new_task(created_at=NOON).state is TaskState.QUEUED
    assert make_new_task(created_at=NOON, run_at=NOON).state is TaskState.QUEUED
    assert make_new_task(created_at=NOON, run_at=NOON - timedelta(days=1)).state is TaskState.QUEUED
    assert make_new_task(created_at=NOON, run_at=NOON + timedelta(seconds=1)).state is TaskState.SCHEDULED


def test_a_task_in_order_passes_as_it_is() -> None:
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
def test_a_task_that_cannot_be_is_refused_by_its_field(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refusal:
        check_new_task(make_new_task(**fields))
    assert refusal.value.field == field


# --- actors and errors ---------------------------------------------------------------------------------------------


def test_an_actor_is_a_kind_an_id_and_a_name_as_it_was_then() -> None:
    assert Actor.user("ana") == Actor(ActorType.USER, "ana", "ana")
    assert Actor.user("ana", "Ana") == Actor(ActorType.USER, "ana", "Ana")
    assert Actor.api_key("k1", "nightly") == Actor(ActorType.API_KEY, "k1", "nightly")
    assert Actor.system("scheduler") == Actor(ActorType.SYSTEM, None, "scheduler")


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_an_actor_without_a_short_name_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as refusal:
        Actor.system(name)
    assert refusal.value.field == "actor.name"


@given(st.text(max_size=50), st.text(max_size=50))
def test_a_failure_is_recorded_as_json_the_database_can_keep(message: str, stack: str) -> None:
    text = error_json("ValueError", message, step="bake", stack=stack)
    assert "\x00" not in text
    assert "\\u0000" not in text
    text.encode("utf-8")
    assert json.loads(text)["step"] == "bake"
