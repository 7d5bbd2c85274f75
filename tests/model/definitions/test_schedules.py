"""Schedules (S3, S6, S13): validation of steps, plans and definitions, round trips, comparison and cycles."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tenuto.errors import Invalid
from tenuto.model.access.secrets import SecretRef
from tenuto.model.definitions.dependency_order import check_no_cycle
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.definitions.schedules import (
    MAX_GROUPS,
    MAX_STEPS,
    Misfire,
    MisfirePolicy,
    OverlapPolicy,
    Plan,
    ScheduleDefinition,
    changed_fields,
    misfire_from_fields,
    misfire_from_json,
    override_arguments,
    plan_from_fields,
    plan_from_json,
)
from tenuto.model.definitions.steps import Step, StepOptions, override_policy, step_from_fields
from tenuto.model.triggers import cron, manual, trigger_from_fields
from tests.support.errors import raises_code
from tests.support.schedules import make_definition, make_plan, make_step

# --- steps ----------------------------------------------------------------------------------------------------------


def test_step_name_defaults_to_its_target() -> None:
    assert Step("job", "bake").name == "bake"
    assert Step("job", "bake", name="the bread").name == "the bread"


def test_step_stores_its_overrides_of_the_job() -> None:
    step = Step.schedule("other", continue_on_failure=True, max_attempts=3, queue="slow", priority=5, name="n")
    assert (step.kind, step.target, step.name, step.continue_on_failure) == ("schedule", "other", "n", True)
    assert (step.queue, step.priority, step.rules) == ("slow", 5, {"max_attempts": 3})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": ""}, "kind"),
        ({"target": ""}, "target"),
        ({"name": "a\x00b"}, "name"),
        ({"arguments": [1]}, "arguments"),
        ({"continue_on_failure": "yes"}, "continue_on_failure"),
        ({"queue": "not a name"}, "queue"),
        ({"priority": True}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"priority": 100_000}, "priority"),
        ({"rules": {"timeout": "soon"}}, "timeout"),
        ({"rules": {"timeout": -1}}, "timeout"),
        ({"rules": {"retry": {"often": 3}}}, "retry.often"),
        ({"rules": {"retry": 3}}, "retry"),
        ({"rules": {"retry": {}, "max_attempts": 3}}, "max_attempts"),
        ({"rules": {"on_lost": "cry"}}, "on_lost"),
    ],
)
def test_invalid_step_field_is_rejected(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as rejected:
        Step(**{"kind": "job", "target": "bake", **fields})
    assert rejected.value.field == field


def test_step_constructors_separate_arguments_and_options() -> None:
    secret = SecretRef(secret="token")
    own: StepOptions = {"continue_on_failure": True, "timeout": "5m", "max_attempts": 2, "queue": "slow", "priority": 3}
    steps = {
        "executable": Step.executable(
            "/bin/x", "a", "b", env={"T": secret}, success_codes=(0, 2), sha256="0" * 64, **own
        ),
        "powershell": Step.powershell("/srv/x.ps1", "-Days", "3", program="pwsh", stdin={"secret": "s"}, **own),
        "log.append": Step.log("done", "calls", {"n": 1}, **own),
        "sql": Step.sql("hr", "SELECT :a", parameters={"a": None, "b": secret}, statement_timeout="1m", **own),
    }
    arguments = {kind: dict(step.arguments) for kind, step in steps.items()}
    assert arguments == {
        "executable": {
            "program": "/bin/x", "args": ["a", "b"], "env": {"T": {"secret": "token"}}, "success_codes": [0, 2],
            "sha256": "0" * 64,
        },
        "powershell": {
            "script": "/srv/x.ps1", "args": ["-Days", "3"], "program": "pwsh", "stdin": {"secret": "s"}
        },
        "log.append": {"message": "done", "log": "calls", "fields": {"n": 1}},
        "sql": {
            "connection": "hr", "script": "SELECT :a", "parameters": {"a": None, "b": {"secret": "token"}},
            "timeout": "1m",
        },
    }  # fmt: skip
    for kind, step in steps.items():
        assert (step.kind, step.continue_on_failure, step.queue, step.priority) == (kind, True, "slow", 3)
        assert step.rules == {"timeout": "5m", "max_attempts": 2}
    call = Step.http(
        secret, "PUT", timeout=9, headers={"A": "b"}, expected_status=[200, "3xx"], retry={"max_attempts": 5}
    )
    assert (call.kind, call.name, call.rules) == ("http.call", "http.call", {"retry": {"max_attempts": 5}})
    assert call.arguments == {
        "url": {"secret": "token"}, "method": "PUT", "timeout": 9, "headers": {"A": "b"},
        "expected_status": [200, "3xx"],
    }  # fmt: skip
    names = [
        Step.sql("hr", script_file="a/b.sql").name,
        Step.sql("hr", "SELECT 1", name="mine").name,
        steps["sql"].name,
    ]
    assert names == ["b.sql", "mine", "sql on hr"]


def test_unknown_step_option_or_field_is_rejected() -> None:
    with raises_code("step.option.unknown") as rejected:
        Step.schedule("other", timeuot="1h")  # type: ignore[call-arg]
    assert rejected.value.field == "timeuot"
    with raises_code("step.field.unknown") as rejected:
        step_from_fields({"kind": "job", "target": "bake", "colour": "red"})
    assert rejected.value.field == "colour"


def test_step_fields_round_trip() -> None:
    full = Step(
        "job",
        "bake",
        {"loaves": 3},
        "the bread",
        continue_on_failure=True,
        policy=TaskPolicy(RetryPolicy(max_attempts=7), 60.0, "fail"),
        queue="oven",
        priority=-3,
        limit_key="oven",
        limit_max=2,
    )
    for step in (full, Step("job", "bake"), Step.schedule("other", max_attempts=3, timeout="90s")):
        assert step_from_fields(json.loads(json.dumps(step.to_fields()))) == step


def test_step_rules_are_stored_as_plain_data() -> None:
    step = Step.schedule("other", retry=RetryPolicy(max_attempts=2), timeout=timedelta(minutes=2))
    written = json.loads(json.dumps(step.to_fields()))
    assert written["rules"]["timeout"] == 120
    assert override_policy(TaskPolicy(), **step_from_fields(written).rules) == TaskPolicy(
        RetryPolicy(max_attempts=2), 120.0
    )


def test_policy_override_changes_only_the_given_rules() -> None:
    job = TaskPolicy(RetryPolicy(max_attempts=9, base_seconds=3), 60.0, "fail")
    assert override_policy(job, max_attempts=2) == TaskPolicy(RetryPolicy(max_attempts=2, base_seconds=3), 60.0, "fail")
    assert override_policy(job, retry={"base_seconds": 1}).retry == RetryPolicy(max_attempts=9, base_seconds=1)
    assert override_policy(job, timeout="1h", on_lost="retry") == TaskPolicy(job.retry, 3600.0, "retry")


# --- plans ----------------------------------------------------------------------------------------------------------


def test_nested_list_in_a_plan_is_a_parallel_group() -> None:
    plan = make_plan("a", ["b", "c"], "d")
    assert [(group, number, step.name) for group, number, step in plan.enumerate_steps()] == [
        (0, 0, "a"),
        (1, 1, "b"),
        (1, 2, "c"),
        (2, 3, "d"),
    ]
    assert [plan.step_at(number).name for number in range(4)] == ["a", "b", "c", "d"]
    assert plan.step_count == 4


def test_plan_step_position_out_of_range_raises_index_error() -> None:
    with pytest.raises(IndexError):
        make_plan("a", ["b", "c"], "d").step_at(4)


@pytest.mark.parametrize("groups", [[], ["a", []]], ids=["no steps", "an empty group"])
def test_plan_without_steps_or_with_an_empty_group_is_rejected(groups: Any) -> None:
    with raises_code("schedule.steps.empty") as rejected:
        make_plan(*groups)
    assert rejected.value.field == "steps"


def test_plan_entry_that_is_not_a_step_is_rejected() -> None:
    for steps in (["bake"], [[make_step("a"), 5]], [5]):
        with raises_code("schedule.steps.invalid") as rejected:
            Plan.from_steps(steps)  # type: ignore[arg-type]
        assert rejected.value.field == "steps"


def test_plan_with_too_many_groups_or_steps_is_rejected() -> None:
    one = make_step("a")
    assert Plan(((one,),) * MAX_GROUPS).step_count == MAX_GROUPS
    with raises_code("schedule.steps.too_many_groups"):
        Plan(((one,),) * (MAX_GROUPS + 1))
    with raises_code("schedule.steps.too_many"):
        Plan(((one,) * (MAX_STEPS + 1),))


def test_plan_json_round_trip() -> None:
    plan = make_plan("a", ["b", make_step("c", continue_on_failure=True, arguments={"wörd": "✓"})])
    assert plan_from_json(plan.to_json()) == plan


@pytest.mark.parametrize("stored", ["a", {"a": 1}, ["a"], [{"kind": "job"}], [[5]], 5, None])
def test_invalid_plan_data_is_rejected(stored: Any) -> None:
    with pytest.raises(Invalid):
        plan_from_fields(stored)


def test_argument_override_replaces_only_the_given_arguments() -> None:
    plan = make_plan(make_step("a", arguments={"x": 1, "y": 2}), "b")
    changed = override_arguments(plan, {"a": {"y": 5}})
    assert dict(changed.step_at(0).arguments) == {"x": 1, "y": 5}
    assert changed.step_at(1) == plan.step_at(1)
    assert dict(plan.step_at(0).arguments) == {"x": 1, "y": 2}


def test_argument_override_for_unknown_step_or_without_mapping_is_rejected() -> None:
    with raises_code("schedule.step.not_found") as rejected:
        override_arguments(make_plan("a", "b"), {"c": {}})
    assert rejected.value.field == "c"
    assert "a, b" in (rejected.value.remedy or "")
    with raises_code("step.arguments.invalid") as rejected:
        override_arguments(make_plan("a"), {"a": 5})  # type: ignore[dict-item]
    assert rejected.value.field == "a"


# --- cycles ---------------------------------------------------------------------------------------------------------


def make_schedule_of_schedules(name: str, *names: str) -> ScheduleDefinition:
    return ScheduleDefinition(name, manual(), make_plan(*(Step.schedule(each) for each in names)))


def test_schedule_that_runs_itself_is_rejected() -> None:
    with raises_code("schedule.steps.cycle"):
        check_no_cycle(make_schedule_of_schedules("A", "A"), {})


def test_schedule_cycle_through_others_is_rejected_with_its_path() -> None:
    with raises_code("schedule.steps.cycle") as rejected:
        check_no_cycle(make_schedule_of_schedules("A", "B"), {"B": ["C"], "C": ["D", "A"], "D": []})
    assert "A → B → C → A" in rejected.value.message


def test_schedule_cycle_check_uses_the_new_plan() -> None:
    check_no_cycle(make_schedule_of_schedules("A", "B"), {"A": ["A"], "B": []})


def test_two_paths_to_the_same_schedule_are_no_cycle() -> None:
    check_no_cycle(make_schedule_of_schedules("A", "B", "C"), {"B": ["D"], "C": ["D"], "D": []})


def test_schedule_cycle_check_ends_despite_a_cycle_of_other_schedules() -> None:
    check_no_cycle(make_schedule_of_schedules("A", "B"), {"B": ["C"], "C": ["B"]})


# --- definitions ----------------------------------------------------------------------------------------------------


def test_schedule_definition_fields_round_trip() -> None:
    definition = make_definition(
        "a",
        ["b", "c"],
        trigger=cron("0 2 * * mon", zone="Europe/London"),
        overlap="queue_one",
        misfire={"policy": "all", "max_runs": 3},
        description="a description",
    )
    fields = json.loads(json.dumps(definition.to_fields()))
    again = ScheduleDefinition(
        fields["name"],
        trigger_from_fields(fields["trigger"]),
        plan_from_fields(fields["steps"]),
        fields["description"],
        fields["overlap"],
        misfire_from_fields(fields["misfire"]),
    )
    assert again == definition


def test_schedule_definition_defaults() -> None:
    made = ScheduleDefinition("n", manual(), make_plan("a"))
    assert (made.trigger, made.overlap, made.misfire, made.description) == (manual(), OverlapPolicy.SKIP, Misfire(), "")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": " n"}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"name": "n" * 1000}, "name"),
        ({"trigger": "0 2 * * *"}, "trigger"),
        ({"description": "x" * 5000}, "description"),
        ({"overlap": "fight"}, "overlap"),
    ],
)
def test_invalid_schedule_definition_field_is_rejected(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as rejected:
        ScheduleDefinition(**{"name": "n", "trigger": manual(), "plan": make_plan("a"), **fields})
    assert rejected.value.field == field


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("never", "misfire"),
        (5, "misfire"),
        ({"policy": "all", "max_runs": 0}, "misfire.max_runs"),
        ({"policy": "all", "max_runs": 1001}, "misfire.max_runs"),
        ({"policy": "all", "max_runs": True}, "misfire.max_runs"),
        ({"policy": "skip", "grace_seconds": 0}, "misfire.grace_seconds"),
        ({"policy": "skip", "grace_seconds": "5m"}, "misfire.grace_seconds"),
        ({"policy": "skip", "grace": 5}, "misfire.grace"),
        ({"policy": "skip", "grace_seconds": 59}, "misfire.grace_seconds"),
        ({"max_runs": 10}, "misfire.max_runs"),
        ({"policy": "once", "max_runs": 100}, "misfire.max_runs"),
        ({"policy": "skip", "max_runs": 3}, "misfire.max_runs"),
        ({"policy": "all", "grace_seconds": 90}, "misfire.grace_seconds"),
        ({"grace_seconds": 300}, "misfire.grace_seconds"),
    ],
)
def test_invalid_misfire_policy_is_rejected(given: Any, field: str) -> None:
    with pytest.raises(Invalid) as rejected:
        misfire_from_fields(given)
    assert rejected.value.field == field


def test_misfire_policy_is_given_by_name_or_fields() -> None:
    assert misfire_from_fields("all") == Misfire(MisfirePolicy.ALL)
    for misfire in (Misfire(), Misfire(MisfirePolicy.ALL, max_runs=5), Misfire(MisfirePolicy.SKIP, grace_seconds=90)):
        assert misfire_from_fields(misfire.to_fields()) == misfire


def test_misfire_parameter_of_another_policy_is_rejected_with_a_remedy() -> None:
    with raises_code("schedule.misfire.parameter_not_applicable") as rejected:
        Misfire(MisfirePolicy.ONCE, max_runs=3)
    assert rejected.value.remedy == "use the policy all, or leave max_runs out"
    with raises_code("schedule.misfire.parameter_not_applicable"):
        Misfire(MisfirePolicy.ALL, grace_seconds=90)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"max_runs": 10}, Misfire()),
        ({"policy": "once", "max_runs": 3}, Misfire()),
        ({"policy": "all", "max_runs": 3, "grace_seconds": 3}, Misfire(MisfirePolicy.ALL, max_runs=3)),
        ({"policy": "skip", "grace_seconds": 5}, Misfire(MisfirePolicy.SKIP, grace_seconds=60)),
    ],
)
def test_stored_misfire_policy_with_invalid_parameters_is_readable(stored: Any, expected: Misfire) -> None:
    assert misfire_from_json(json.dumps(stored)) == expected


def test_changed_fields_compares_two_versions() -> None:
    before, after = make_definition("a").to_fields(), make_definition("a", description="new").to_fields()
    assert changed_fields(before, after) == {"description": ("", "new")}
    assert changed_fields(after, after) == {}
    assert changed_fields(None, {"name": "n"}) == {"name": (None, "n")}
    assert changed_fields({"name": "n"}, None) == {"name": ("n", None)}
