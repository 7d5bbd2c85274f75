"""Schedules in definition files: conversion of plain data, and errors with their location."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto import Step, at, cron, every, manual
from tenuto.definitions.definition_files import DeclaredSchedule, parse_schedules
from tenuto.definitions.document_parser import Document, parse_document
from tenuto.errors import Invalid
from tenuto.model.definitions.policies import RetryPolicy
from tenuto.model.definitions.schedules import Misfire, OverlapPolicy, Plan, ScheduleDefinition
from tests.support.errors import raises_code

YAML = """
schedules:
  - name: nightly
    description: All of it
    cron: "0 2 * * *"
    zone: Europe/London
    excluded: [2031-12-25]
    overlap: queue_one
    misfire: {policy: all, max_runs: 5}
    steps:
      - job: load
        input: {table: users, rows: 10}
        name: Load users
        timeout: 1h
        retry: {max_attempts: 5, base_seconds: 1}
        queue: slow
        priority: 7
      - - job: left
          continue_on_failure: true
          max_attempts: 2
        - kind: log.append
          arguments: {text: hello}
          name: say
      - schedule: other
  - name: other
    steps: [{job: tidy}]
"""
TOML = """
[[schedules]]
name = "nightly"
description = "All of it"
overlap = "queue_one"
misfire = {policy = "all", max_runs = 5}
trigger = {cron = "0 2 * * *", zone = "Europe/London", excluded = [2031-12-25]}

[[schedules.steps]]
index = 10
job = "load"
input = {table = "users", rows = 10}
name = "Load users"
timeout = "1h"
retry = {max_attempts = 5, base_seconds = 1}
queue = "slow"
priority = 7

[[schedules.steps]]
index = 20
job = "left"
continue_on_failure = true
max_attempts = 2

[[schedules.steps]]
index = 30
schedule = "other"

[[schedules.steps]]
index = 20
kind = "log.append"
arguments = {text = "hello"}
name = "say"

[[schedules]]
name = "other"
steps = [{job = "tidy"}]
"""


def parse(text: str, name: str = "file.yaml") -> list[DeclaredSchedule]:
    return parse_schedules([parse_document(name, text.encode())])


def parse_schedule(**schedule: Any) -> ScheduleDefinition:
    (found,) = parse_schedules([Document("file", {"schedules": [{"name": "x", "steps": [{"job": "a"}], **schedule}]})])
    return found.definition


def parse_error(content: Any) -> Invalid:
    with pytest.raises(Invalid) as rejected:
        parse_schedules([Document("file", content)])
    return rejected.value


def step_error(**step: Any) -> Invalid:
    return parse_error({"schedules": [{"name": "x", "steps": [{"job": "a"}, step]}]})


def test_schedule_file_supports_all_options_of_code() -> None:
    nightly, other = (each.definition for each in parse(YAML))
    assert nightly == ScheduleDefinition(
        "nightly",
        cron("0 2 * * *", zone="Europe/London", excluded=["2031-12-25"]),
        Plan(
            (
                (
                    Step(
                        "job",
                        "load",
                        {"table": "users", "rows": 10},
                        "Load users",
                        rules={"timeout": "1h", "retry": {"max_attempts": 5, "base_seconds": 1}},
                        queue="slow",
                        priority=7,
                    ),
                ),
                (
                    Step("job", "left", continue_on_failure=True, rules={"max_attempts": 2}),
                    Step("log.append", "log.append", {"text": "hello"}, "say"),
                ),
                (Step("schedule", "other"),),
            )
        ),
        "All of it",
        OverlapPolicy.QUEUE_ONE,
        Misfire("all", 5),  # type: ignore[arg-type]
    )
    assert other == ScheduleDefinition("other", manual(), Plan.from_steps([Step("job", "tidy")]))


def test_times_in_a_yaml_file_need_no_quotes() -> None:
    (found,) = parse("schedules: [{name: on, times: [06:00, 18:30], steps: [{job: no, input: {answer: yes}}]}]")
    assert found.definition.trigger == at(["06:00", "18:30"])
    assert (found.name, found.definition.plan.groups[0][0].arguments) == ("on", {"answer": "yes"})


def test_equivalent_schedule_files_in_yaml_and_toml_are_equal() -> None:
    in_yaml, in_toml = parse(YAML), parse(TOML, "file.toml")
    assert [each.definition for each in in_yaml] == [each.definition for each in in_toml]


@pytest.mark.parametrize(
    ("fields", "trigger"),
    [
        ({}, manual()),
        ({"trigger": "manual"}, manual()),
        ({"trigger": {"kind": "manual"}}, manual()),
        ({"cron": "@daily"}, cron("@daily")),
        ({"trigger": {"kind": "cron", "cron": "@daily"}}, cron("@daily")),
        ({"times": ["06:00", "18:30"], "days": "weekdays"}, at(["06:00", "18:30"], days="weekdays")),
        ({"every": "15m", "between": ["22:00", "06:00"]}, every("15m", between=("22:00", "06:00"))),
        ({"trigger": {"every": "90s", "jitter": "5s"}}, every("90s", jitter="5s")),
    ],
)
def test_trigger_in_a_file_is_inline_or_nested(fields: dict[str, Any], trigger: Any) -> None:
    assert parse_schedule(**fields).trigger == trigger


def test_steps_with_equal_indices_in_a_file_are_a_group() -> None:
    found = parse_schedule(
        steps=[
            {"index": 900, "job": "last"},
            {"index": 0, "job": "first"},
            {"index": 7, "job": "left"},
            {"index": 7, "job": "right"},
        ]
    )
    assert [[step.name for step in group] for group in found.plan.groups] == [["first"], ["left", "right"], ["last"]]


@pytest.mark.parametrize(
    ("content", "path", "code"),
    [
        (None, "file", "definition.empty"),
        ([], "file", "definition.empty"),
        ({}, "file: schedules", "definition.empty"),
        ({"schedule": []}, "file: schedule", "definition.field.unknown"),
        ({"schedules": {}}, "file: schedules", "definition.not_a_list"),
        ({"schedules": ["x"]}, "file: schedules[0]", "definition.not_a_mapping"),
        ({"schedules": [{"steps": []}]}, "file: schedules[0].name", "definition.field.missing"),
        ({"schedules": [{"name": "x"}]}, "file: schedules[0].steps", "definition.field.missing"),
        ({"schedules": [{"name": "x", "steps": []}]}, "file: schedules[0].steps", "schedule.steps.empty"),
        ({"schedules": [{"name": 7, "steps": []}]}, "file: schedules[0].name", "definition.field.not_text"),
        ({"schedules": [{"name": "x", "steps": [[]]}]}, "file: schedules[0].steps[0]", "schedule.steps.empty"),
        (
            {"schedules": [{"name": "x", "steps": [[[{"job": "a"}]]]}]},
            "file: schedules[0].steps[0][0]",
            "definition.step.nested_group",
        ),
        (
            {"schedules": [{"name": "x", "steps": [{"job": "a"}]}] * 2},
            "file: schedules[1].name",
            "definition.duplicate",
        ),
    ],
)
def test_invalid_schedule_file_is_rejected_with_its_location(content: Any, path: str, code: str) -> None:
    error = parse_error(content)
    assert (error.field, error.code) == (path, code)
    assert error.message.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("fields", "path", "code", "remedy"),
    [
        ({"enabled": False}, "enabled", "definition.field.unknown", "tenuto schedule disable"),
        ({"overlaps": "skip"}, "overlaps", "definition.field.unknown", "did you mean overlap?"),
        (
            {"colour": "red"},
            "colour",
            "definition.field.unknown",
            "a schedule has name, description, trigger, cron,",
        ),
        ({"overlap": "both"}, "overlap", "schedule.overlap.unknown", "use one of skip, queue_one"),
        ({"misfire": "never"}, "misfire", "schedule.misfire.unknown", "use one of once, all, skip"),
        (
            {"misfire": {"policy": "all", "max_run": 1}},
            "misfire.max_run",
            "definition.field.unknown",
            "did you mean max_runs?",
        ),
        ({"misfire": {"max_runs": 0}}, "misfire.max_runs", "schedule.misfire.max_runs.out_of_range", ""),
        ({"description": 5}, "description", "definition.field.not_text", ""),
        ({"description": None}, "description", "definition.field.empty", ""),
        ({"cron": "0 25 * * *"}, "cron.hour", "trigger.cron.item.invalid", ""),
        ({"cron": 5}, "cron", "trigger.cron.invalid", ""),
        ({"cron": "@daily", "every": "1h"}, "every", "definition.trigger.conflict", ""),
        ({"cron": "@daily", "zone": "Europe/Lodnon"}, "zone", "trigger.zone.unknown", "Europe/London"),
        ({"cron": "@daily", "days": "mon"}, "days", "trigger.field.unknown", ""),
        ({"zone": "UTC"}, None, "definition.trigger.incomplete", ""),
        ({"trigger": {"zone": "UTC"}}, "trigger", "definition.trigger.incomplete", ""),
        ({"trigger": {"crn": "@daily"}}, "trigger.crn", "definition.field.unknown", "did you mean cron?"),
        ({"times": ["06:00"], "on": "mon"}, "on", "definition.field.unknown", "did you mean days?"),
        ({"trigger": {"at": "06:00"}}, "trigger.at", "definition.field.unknown", "did you mean times?"),
        (
            {"cron": "@daily", "misfire": {"max_runs": 10}},
            "misfire.max_runs",
            "schedule.misfire.parameter_not_applicable",
            "use the policy all",
        ),
        (
            {"cron": "@daily", "misfire": {"policy": "once", "max_runs": 3}},
            "misfire.max_runs",
            "schedule.misfire.parameter_not_applicable",
            "use the policy all",
        ),
        ({"trigger": {"cron": "nonsense"}}, "trigger.cron", "trigger.cron.field_count", ""),
        ({"trigger": {"kind": "moon", "cron": "@daily"}}, "trigger.kind", "trigger.kind.unknown", ""),
        ({"trigger": {"cron": "@daily"}, "zone": "UTC"}, "zone", "definition.trigger.conflict", ""),
        ({"trigger": "daily"}, "trigger", "definition.not_a_mapping", ""),
        ({"times": [390]}, "times", "trigger.time_of_day.invalid", ""),
    ],
)
def test_invalid_schedule_field_in_a_file_is_rejected_with_its_path(
    fields: dict[str, Any], path: str | None, code: str, remedy: str
) -> None:
    error = parse_error({"schedules": [{"name": "x", "steps": [{"job": "a"}], **fields}]})
    assert (error.field, error.code) == (f"file: schedules[0]{'' if path is None else f'.{path}'}", code)
    assert error.message.startswith(f"{error.field}: ")
    assert remedy in (error.remedy or "")


@pytest.mark.parametrize(
    ("fields", "path", "code", "remedy"),
    [
        ({}, "", "definition.step.target", "give one of job, schedule or kind"),
        ({"job": "b", "schedule": "c"}, "", "definition.step.target", ""),
        ({"jop": "b"}, ".jop", "definition.field.unknown", "did you mean job?"),
        (
            {"job": "b", "retry": {"max_atempts": 1}},
            ".retry.max_atempts",
            "definition.field.unknown",
            "did you mean max_attempts?",
        ),
        ({"job": "b", "retry": {"max_attempts": 9999}}, ".retry.max_attempts", "retry.value.out_of_range", ""),
        ({"job": "b", "retry": {"max_attempts": "3"}}, ".retry.max_attempts", "retry.value.invalid", ""),
        ({"job": "b", "retry": {"max_attempts": 2.5}}, ".retry.max_attempts", "retry.value.invalid", ""),
        ({"job": "b", "retry": {"factor": [1]}}, ".retry.factor", "retry.value.invalid", ""),
        ({"job": "b", "retry": 3}, ".retry", "retry.invalid", ""),
        ({"job": "b", "retry": {"jitter": 0}, "max_attempts": 1}, ".max_attempts", "retry.max_attempts.conflict", ""),
        ({"job": "b", "max_attempts": -1}, ".max_attempts", "retry.value.out_of_range", ""),
        ({"job": "b", "timeout": "soon"}, ".timeout", "value.duration.invalid", ""),
        ({"job": "b", "timeout": ["1h"]}, ".timeout", "value.duration.invalid", ""),
        ({"job": "b", "timeout": True}, ".timeout", "value.duration.invalid", ""),
        ({"job": "b", "priority": "high"}, ".priority", "task.priority.out_of_range", ""),
        ({"job": "b", "queue": "no such name"}, ".queue", "value.name.invalid", ""),
        ({"job": "b", "on_lost": "wait"}, ".on_lost", "task.on_lost.unknown", ""),
        (
            {"job": "b", "continue_on_failure": "yes"},
            ".continue_on_failure",
            "step.continue_on_failure.invalid",
            "",
        ),
        ({"job": "b", "input": [1]}, ".input", "definition.not_a_mapping", ""),
        ({"job": "b", "arguments": {}}, ".arguments", "definition.step.input.not_applicable", "write input: …"),
        ({"job": "b", "target": "c"}, ".target", "definition.step.input.not_applicable", "leave it out"),
        ({"job": "x" * 300}, ".job", "value.label.invalid", ""),
        ({"job": None}, ".job", "definition.field.empty", ""),
        ({"job": "a"}, "", "step.name.duplicate", ""),
        ({"schedule": "b", "input": {}}, ".input", "definition.step.input.not_applicable", "leave it out"),
        (
            {"kind": "log.append", "input": {}},
            ".input",
            "definition.step.input.not_applicable",
            "write arguments: …",
        ),
        ({"kind": "job", "arguments": {}}, ".kind", "definition.step.kind.reserved", "write job: NAME"),
        ({"job": "b", "index": 1}, "", "definition.step.mixed_groups", ""),
    ],
)
def test_invalid_step_field_in_a_file_is_rejected_with_its_path(
    fields: dict[str, Any], path: str, code: str, remedy: str
) -> None:
    error = step_error(**fields)
    step = 0 if "index" in fields else 1  # the other step has no index and is at fault
    assert (error.field, error.code) == (f"file: schedules[0].steps[{step}]{path}", code)
    assert error.message.startswith(f"{error.field}: ")
    assert remedy in (error.remedy or "")


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        ([{"job": "a", "index": 0}, {"job": "b"}], "steps[1]"),
        ([{"job": "a", "index": 0}, [{"job": "b"}]], "steps[1]"),
        ([{"job": "a"}, [{"job": "b", "index": 1}]], "steps[1][0].index"),
        ([{"job": "a", "index": "1"}], "steps[0].index"),
        ([{"job": "a", "index": -1}], "steps[0].index"),
        ([{"job": "a", "index": True}], "steps[0].index"),
    ],
)
def test_lists_and_indices_of_steps_in_a_file_are_not_mixed(steps: list[Any], path: str) -> None:
    assert parse_error({"schedules": [{"name": "x", "steps": steps}]}).field == f"file: schedules[0].{path}"


def test_definition_file_error_has_file_and_line() -> None:
    with raises_code("definition.field.unknown") as rejected:
        parse(YAML.replace("base_seconds", "base_second"))
    assert rejected.value.field == "file.yaml, line 15: schedules[0].steps[0].retry.base_second"


def test_schedule_declared_in_two_files_is_rejected_with_both_locations() -> None:
    text = b"schedules: [{name: x, steps: [{job: a}]}]"
    with raises_code("definition.duplicate") as rejected:
        parse_schedules([parse_document("one.yaml", text), parse_document("two.yml", text)])
    assert str(rejected.value).startswith(
        "two.yml, line 1: schedules[0].name: 'x' is declared already, at one.yaml, line 1"
    )


@pytest.mark.parametrize(
    ("field", "location"),
    [
        ("steps.Load users.rows", "line 12: schedules[0].steps[0].input.rows"),
        ("steps.Load users.input", "line 12: schedules[0].steps[0].input"),
        ("steps.Load users.timeout", "line 14: schedules[0].steps[0].timeout"),
        ("steps.Load users", "line 11: schedules[0].steps[0]"),
        ("steps.say.text", "line 22: schedules[0].steps[1][1].arguments.text"),
        ("cron", "line 5: schedules[0].cron"),
        ("steps", "line 10: schedules[0].steps"),
        (None, "line 3: schedules[0]"),
    ],
)
def test_later_error_of_a_declared_schedule_has_its_location(field: str | None, location: str) -> None:
    nightly, _ = parse(YAML)
    assert nightly.locate_error(Invalid("is wrong", code="test.error", field=field)).field == f"file.yaml, {location}"


def test_max_attempts_in_code_must_be_a_whole_number() -> None:
    for wrong in ("3", 2.5, True, None):
        with raises_code("retry.value.invalid"):
            RetryPolicy(max_attempts=wrong)  # type: ignore[arg-type]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
step_field_names = st.sampled_from(
    [
        *("job", "schedule", "kind", "input", "arguments", "target", "index", "name", "queue", "priority"),
        *("continue_on_failure", "timeout", "retry", "max_attempts", "on_lost"),
    ]
)
schedule_field_names = st.sampled_from(
    [
        *("description", "trigger", "cron", "times", "every", "zone", "days", "between", "anchor", "start", "end"),
        *("excluded", "jitter", "overlap", "misfire"),
    ]
)
steps = st.dictionaries(step_field_names, anything, max_size=4)
retries = st.dictionaries(
    st.sampled_from(["max_attempts", "base_seconds", "factor", "cap_seconds", "jitter"]), anything
)
misfires = st.dictionaries(st.sampled_from(["policy", "max_runs", "grace_seconds"]), anything)


@given(st.dictionaries(schedule_field_names, anything, max_size=4), steps, retries, misfires)
def test_any_schedule_file_content_is_parsed_or_rejected_with_its_location(
    schedule: dict[str, Any], step: dict[str, Any], retry: dict[str, Any], misfire: dict[str, Any]
) -> None:
    for definition in (
        {"name": "x", "steps": [{"job": "a"}], **schedule},
        {"name": "x", "steps": [{"job": "a", **step}]},
        {"name": "x", "steps": [{"job": "a", "retry": retry}], "misfire": misfire},
        {"name": "x", "steps": [{"job": "a"}], "trigger": {"kind": "interval", **schedule}},
    ):
        assert _error_location(definition).startswith("file: schedules[0]")


def _error_location(schedule: dict[str, Any]) -> str:
    try:
        parse_schedules([Document("file", {"schedules": [schedule]})])
    except Invalid as rejected:
        return rejected.field or "nowhere"
    return "file: schedules[0], accepted"
