"""Schedules as values (S3, S6, S13): checked when made, to plain data and back, compared, free of circles."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tenuto.errors import Invalid
from tenuto.model.policies import TaskPolicy, RetryPolicy
from tenuto.model.schedules import (
    MAX_GROUPS,
    MAX_STEPS,
    ScheduleDefinition,
    MisfirePolicy,
    Misfire,
    OverlapPolicy,
    Plan,
    changed_fields,
    misfire_from_fields,
    misfire_from_json,
    plan_from_fields,
    plan_from_json,
    check_no_schedule_cycle,
    override_arguments,
)
from tenuto.model.secrets import SecretRef
from tenuto.model.steps import Step, StepOptions, override_policy, step_from_fields
from tenuto.model.triggers import cron, manual, trigger_from_fields
from tests.support.schedules import make_definition, make_plan, make_step

# --- steps ----------------------------------------------------------------------------------------------------------


def test_a_step_is_called_after_what_it_runs_unless_it_has_a_name() -> None:
    assert Step("job", "bake").name == "bake"
    assert Step("job", "bake", name="the bread").name == "the bread"


def test_a_step_says_what_it_takes_otherwise_than_its_job() -> None:
    step = Step.schedule("other", continue_on_failure=True, max_retries=3, queue="slow", priority=5, name="n")
    assert (step.kind, step.target, step.name, step.continue_on_failure) == ("schedule", "other", "n", True)
    assert (step.queue, step.priority, step.rules) == ("slow", 5, {"max_retries": 3})


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
        ({"rules": {"retry": {}, "max_retries": 3}}, "max_retries"),
        ({"rules": {"on_lost": "cry"}}, "on_lost"),
    ],
)
def test_a_step_that_cannot_be_is_refused_by_the_name_of_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        Step(**{"kind": "job", "target": "bake", **fields})
    assert refused.value.field == field


def test_a_step_of_every_kind_can_be_written_in_code_with_its_arguments_and_the_step_s_own_options() -> None:
    secret = SecretRef(secret="token")
    own: StepOptions = {"continue_on_failure": True, "timeout": "5m", "max_retries": 2, "queue": "slow", "priority": 3}
    steps = {
        "executable": Step.executable(
            "/bin/x", "a", "b", env={"T": secret}, success_codes=(0, 2), sha256="0" * 64, **own
        ),
        "powershell": Step.powershell("/srv/x.ps1", "-Days", "3", program="pwsh", stdin={"secret": "s"}, **own),
        "log.append": Step.log("done", "calls", {"n": 1}, **own),
        "sql": Step.sql("hr", "SELECT :a", parameters={"a": None, "b": secret}, statement_timeout="1m", **own),
    }
    told = {kind: dict(step.arguments) for kind, step in steps.items()}
    assert told == {
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
        assert step.rules == {"timeout": "5m", "max_retries": 2}
    call = Step.http(
        secret, "PUT", timeout=9, headers={"A": "b"}, expected_status=[200, "3xx"], retry={"max_retries": 5}
    )
    assert (call.kind, call.name, call.rules) == ("http.call", "http.call", {"retry": {"max_retries": 5}})
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


def test_an_option_no_step_has_is_refused() -> None:
    with pytest.raises(Invalid) as refused:
        Step.schedule("other", timeuot="1h")  # type: ignore[call-arg]
    assert refused.value.field == "timeuot"
    with pytest.raises(Invalid) as refused:
        step_from_fields({"kind": "job", "target": "bake", "colour": "red"})
    assert refused.value.field == "colour"


def test_a_step_goes_to_plain_data_and_back() -> None:
    full = Step(
        "job",
        "bake",
        {"loaves": 3},
        "the bread",
        continue_on_failure=True,
        policy=TaskPolicy(RetryPolicy(max_retries=7), 60.0, "fail"),
        queue="oven",
        priority=-3,
        limit_key="oven",
        limit_max=2,
    )
    for step in (full, Step("job", "bake"), Step.schedule("other", max_retries=3, timeout="90s")):
        assert step_from_fields(json.loads(json.dumps(step.to_fields()))) == step


def test_rules_are_written_down_as_plain_data() -> None:
    step = Step.schedule("other", retry=RetryPolicy(max_retries=2), timeout=timedelta(minutes=2))
    written = json.loads(json.dumps(step.to_fields()))
    assert written["rules"]["timeout"] == 120
    assert override_policy(TaskPolicy(), **step_from_fields(written).rules) == TaskPolicy(RetryPolicy(max_retries=2), 120.0)


def test_a_rule_changes_what_it_names_and_leaves_the_rest_as_the_job_has_it() -> None:
    job = TaskPolicy(RetryPolicy(max_retries=9, base_seconds=3), 60.0, "fail")
    assert override_policy(job, max_retries=2) == TaskPolicy(RetryPolicy(max_retries=2, base_seconds=3), 60.0, "fail")
    assert override_policy(job, retry={"base_seconds": 1}).retry == RetryPolicy(max_retries=9, base_seconds=1)
    assert override_policy(job, timeout="1h", on_lost="retry") == TaskPolicy(job.retry, 3600.0, "retry")


# --- plans ----------------------------------------------------------------------------------------------------------


def test_a_list_in_the_list_is_a_parallel_group() -> None:
    plan = make_plan("a", ["b", "c"], "d")
    assert [(group, number, step.name) for group, number, step in plan.enumerate_steps()] == [
        (0, 0, "a"),
        (1, 1, "b"),
        (1, 2, "c"),
        (2, 3, "d"),
    ]
    assert [plan.step_at(number).name for number in range(4)] == ["a", "b", "c", "d"]
    assert plan.step_count == 4


def test_a_plan_has_no_fifth_step_of_four() -> None:
    with pytest.raises(IndexError):
        make_plan("a", ["b", "c"], "d").step_at(4)


@pytest.mark.parametrize("groups", [[], ["a", []]], ids=["no steps", "an empty group"])
def test_a_plan_without_steps_or_with_an_empty_group_is_refused(groups: Any) -> None:
    with pytest.raises(Invalid) as refused:
        make_plan(*groups)
    assert refused.value.field == "steps"


def test_what_is_no_step_is_refused() -> None:
    for steps in (["bake"], [[make_step("a"), 5]], [5]):
        with pytest.raises(Invalid) as refused:
            Plan.from_steps(steps)  # type: ignore[arg-type]
        assert refused.value.field == "steps"


def test_a_plan_has_a_size_it_may_not_outgrow() -> None:
    one = make_step("a")
    assert Plan(((one,),) * MAX_GROUPS).step_count == MAX_GROUPS
    for groups in (((one,),) * (MAX_GROUPS + 1), ((one,) * (MAX_STEPS + 1),)):
        with pytest.raises(Invalid):
            Plan(groups)


def test_a_plan_goes_to_json_and_back() -> None:
    plan = make_plan("a", ["b", make_step("c", continue_on_failure=True, arguments={"wörd": "✓"})])
    assert plan_from_json(plan.to_json()) == plan


@pytest.mark.parametrize("stored", ["a", {"a": 1}, ["a"], [{"kind": "job"}], [[5]], 5, None])
def test_what_is_no_plan_is_refused(stored: Any) -> None:
    with pytest.raises(Invalid):
        plan_from_fields(stored)


def test_arguments_for_one_run_replace_those_named_and_leave_the_others() -> None:
    plan = make_plan(make_step("a", arguments={"x": 1, "y": 2}), "b")
    changed = override_arguments(plan, {"a": {"y": 5}})
    assert dict(changed.step_at(0).arguments) == {"x": 1, "y": 5}
    assert changed.step_at(1) == plan.step_at(1)
    assert dict(plan.step_at(0).arguments) == {"x": 1, "y": 2}


def test_arguments_for_a_step_there_is_not_or_that_are_none_are_refused() -> None:
    with pytest.raises(Invalid) as refused:
        override_arguments(make_plan("a", "b"), {"c": {}})
    assert refused.value.field == "c"
    assert "a, b" in (refused.value.remedy or "")
    with pytest.raises(Invalid) as refused:
        override_arguments(make_plan("a"), {"a": 5})  # type: ignore[dict-item]
    assert refused.value.field == "a"


# --- circles --------------------------------------------------------------------------------------------------------


def runs(*names: str) -> Plan:
    return make_plan(*(Step.schedule(name) for name in names))


def test_a_schedule_that_runs_itself_is_refused() -> None:
    with pytest.raises(Invalid, match="A → A"):
        check_no_schedule_cycle("A", runs("A"), {})


def test_a_schedule_that_runs_itself_by_way_of_others_is_refused_with_the_way() -> None:
    with pytest.raises(Invalid, match="A → B → C → A"):
        check_no_schedule_cycle("A", runs("B"), {"B": runs("C"), "C": runs("D", "A"), "D": make_plan("x")})


def test_the_plan_that_is_to_be_counts_and_not_the_one_that_was() -> None:
    check_no_schedule_cycle("A", runs("B"), {"A": runs("A"), "B": make_plan("x")})


def test_two_ways_to_the_same_schedule_are_no_circle() -> None:
    check_no_schedule_cycle("A", runs("B", "C"), {"B": runs("D"), "C": runs("D"), "D": make_plan("x")})


def test_a_circle_that_others_have_among_themselves_does_not_hang_the_search() -> None:
    check_no_schedule_cycle("A", runs("B"), {"B": runs("C"), "C": runs("B")})


# --- definitions ----------------------------------------------------------------------------------------------------


def test_a_definition_goes_to_plain_data_and_back() -> None:
    definition = make_definition(
        "a",
        ["b", "c"],
        trigger=cron("0 2 * * mon", zone="Europe/London"),
        overlap="queue_one",
        misfire={"policy": "all", "max_runs": 3},
        description="what it is for",
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


def test_what_is_not_said_is_the_usual() -> None:
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
def test_a_definition_that_cannot_be_is_refused_by_the_name_of_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        ScheduleDefinition(**{"name": "n", "trigger": manual(), "plan": make_plan("a"), **fields})
    assert refused.value.field == field


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
def test_a_misfire_rule_that_cannot_be_is_refused_by_the_name_of_its_field(given: Any, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        misfire_from_fields(given)
    assert refused.value.field == field


def test_a_misfire_rule_is_its_word_or_its_fields() -> None:
    assert misfire_from_fields("all") == Misfire(MisfirePolicy.ALL)
    for rule in (Misfire(), Misfire(MisfirePolicy.ALL, max_runs=5), Misfire(MisfirePolicy.SKIP, grace_seconds=90)):
        assert misfire_from_fields(rule.to_fields()) == rule


def test_what_the_policy_would_pass_over_is_refused_in_code_too_with_what_to_do() -> None:
    with pytest.raises(Invalid, match="goes with the policy all, and it is once") as refused:
        Misfire(MisfirePolicy.ONCE, max_runs=3)
    assert refused.value.remedy == "say policy all, or leave max_runs out"
    with pytest.raises(Invalid, match="goes with the policy skip, and it is all"):
        Misfire(MisfirePolicy.ALL, grace_seconds=90)


@pytest.mark.parametrize(
    ("stored", "holds"),
    [
        ({"max_runs": 10}, Misfire()),
        ({"policy": "once", "max_runs": 3}, Misfire()),
        ({"policy": "all", "max_runs": 3, "grace_seconds": 3}, Misfire(MisfirePolicy.ALL, max_runs=3)),
        ({"policy": "skip", "grace_seconds": 5}, Misfire(MisfirePolicy.SKIP, grace_seconds=60)),
    ],
)
def test_a_rule_stored_before_that_was_refused_is_read_as_what_holds_of_it(stored: Any, holds: Misfire) -> None:
    assert misfire_from_json(json.dumps(stored)) == holds


def test_two_versions_are_compared_field_by_field() -> None:
    before, after = make_definition("a").to_fields(), make_definition("a", description="new").to_fields()
    assert changed_fields(before, after) == {"description": ("", "new")}
    assert changed_fields(after, after) == {}
    assert changed_fields(None, {"name": "n"}) == {"name": (None, "n")}
    assert changed_fields({"name": "n"}, None) == {"name": ("n", None)}
