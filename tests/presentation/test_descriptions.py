"""Descriptions of schedules, and of the difference between two versions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tenuto import Step, cron, every
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.definitions.schedules import Misfire, MisfirePolicy, OverlapPolicy, Plan, ScheduleDefinition
from tenuto.model.triggers import describe_trigger
from tenuto.presentation import descriptions


def make_schedule(*steps: Any, **more: Any) -> ScheduleDefinition:
    return ScheduleDefinition("nightly", cron("0 2 * * *"), Plan.from_steps(steps), **more)


def describe_changes(before: ScheduleDefinition, after: ScheduleDefinition) -> dict[str, list[str]]:
    return dict(descriptions.describe_changes(before.to_fields(), after.to_fields()))


A, B, C, D = (Step("job", name) for name in "abcd")


def test_step_description_omits_default_values() -> None:
    assert descriptions.describe_step(A.to_fields()) == "a"
    policy = TaskPolicy(RetryPolicy(max_attempts=5), 300.0, "fail")
    odd = Step("job", "a", {"n": 1}, "other", True, policy, queue="slow", priority=3)
    assert descriptions.describe_step(odd.to_fields()) == (
        'other {"n": 1} (runs a, continues on failure, timeout 5 min, 5 attempts, on lost: fail, queue slow, '
        "priority 3)"
    )
    assert descriptions.describe_step(Step.schedule("Nightly").to_fields()) == "Nightly (schedule)"
    run = {"kind": "run_profile", "name": "HR import", "target": "run_profile"}  # a step kind of an extension
    assert descriptions.describe_step(run) == "HR import (run_profile)"


def test_step_with_one_attempt_says_so() -> None:
    once = Step("job", "a", policy=TaskPolicy(RetryPolicy(max_attempts=1)))
    assert descriptions.describe_step(once.to_fields()) == "a (1 attempt)"


def test_steps_of_a_group_are_joined_by_a_bracket() -> None:
    assert descriptions.describe_steps(Plan.from_steps([A, [B, C, D]]).to_fields()) == [
        ("1 ─", "a"),
        ("2 ┬", "b"),
        ("  ├", "c"),
        ("  └", "d"),
    ]


def test_step_inserted_before_others_is_one_change() -> None:
    assert describe_changes(make_schedule(A, B, C), make_schedule(D, A, B, C)) == {"steps": ["+ ─ d", "  ─ a", "  ─ b"]}


def test_changed_fields_are_described_in_a_fixed_order() -> None:
    before = make_schedule(A)
    after = replace(
        before,
        trigger=every("15m"),
        description="why",
        overlap=OverlapPolicy.QUEUE_ONE,
        misfire=Misfire(MisfirePolicy.SKIP, grace_seconds=600),
    )
    assert list(describe_changes(before, after).items()) == [
        ("description", ["+ why"]),
        ("when", ["- Every day at 02:00, UTC", "+ Every 15 minutes, UTC"]),
        (
            "overlap",
            [
                "- skip: a run that is due while another is active is skipped",
                "+ queue_one: one run that is due while another is active waits for its end",
            ],
        ),
        (
            "missed runs",
            [
                "- once: one run replaces all missed runs",
                "+ skip: a run more than 10 min late is skipped",
            ],
        ),
    ]


def test_change_without_effect_on_the_description_is_shown_as_fields() -> None:
    changed = describe_changes(make_schedule(A), make_schedule(replace(A, limit_key="one", limit_max=1)))
    assert changed["steps"] == [
        '- {"kind": "job", "name": "a", "target": "a"}',
        '+ {"kind": "job", "limit_key": "one", "limit_max": 1, "name": "a", "target": "a"}',
    ]


def test_trigger_of_a_later_version_is_shown_as_fields() -> None:
    assert describe_trigger({"kind": "moon"}) == '{"kind": "moon"}'


def test_instant_is_formatted_in_its_time_zone() -> None:
    instant = datetime(2031, 7, 1, 1, 0, 30, tzinfo=UTC)
    assert descriptions.format_in_zone(instant, "Europe/London") == "Tue 01 Jul 2031 02:00:30 BST"
    assert descriptions.format_in_zone(instant.replace(second=0), "Asia/Kathmandu") == "Tue 01 Jul 2031 06:45 +0545"


def test_field_of_a_created_object_has_no_old_side_and_no_python_text() -> None:
    types = [{"name": "person", "anchor": "id", "multi": True, "attributes": ["id", "mail"]}]
    assert descriptions.describe_field_change("created", None, types) == [
        "+ · name: person", "+   anchor: id", "+   multi: yes", "+   attributes: id, mail",
    ]  # fmt: skip
    assert descriptions.describe_field_change("created", None, {"path": "hr.csv", "delimiter": ";"}) == [
        "+ path: hr.csv", "+ delimiter: ;",
    ]  # fmt: skip
    assert descriptions.describe_field_change("deleted", 7, None) == ["- 7"]
    assert descriptions.describe_field_change("changed", ["a"], []) == ["- a", "+ none"]
    assert descriptions.describe_field_change("changed", True, False) == ["- yes", "+ no"]


def test_change_within_a_structure_shows_the_changed_lines_only() -> None:
    before = {"one": 1, "two": {"deep": 2}, "three": 3, "four": 4, "five": 5}
    after = {**before, "two": {"deep": 7}}
    lines = descriptions.describe_field_change("changed", before, after)
    assert [line for line in lines if line[0] in "+-"] == ["-   deep: 2", "+   deep: 7"]
    assert "  five: 5" not in lines
