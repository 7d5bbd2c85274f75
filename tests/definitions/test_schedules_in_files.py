"""Plain data of a file becomes definitions, or is refused by the path of what is wrong, with what to do about it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto import Step, at, cron, every, manual
from tenuto.definitions.definition_files import DeclaredSchedule, parse_schedules
from tenuto.definitions.document_parser import Document, parse_document
from tenuto.errors import Invalid
from tenuto.model.policies import RetryPolicy
from tenuto.model.schedules import ScheduleDefinition, Misfire, OverlapPolicy, Plan

WHOLE = """
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
        retry: {max_retries: 5, base_seconds: 1}
        queue: slow
        priority: 7
      - - job: left
          continue_on_failure: true
          max_retries: 2
        - kind: log.append
          arguments: {text: hello}
          name: say
      - schedule: other
  - name: other
    steps: [{job: tidy}]
"""
IN_TOML = """
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
retry = {max_retries = 5, base_seconds = 1}
queue = "slow"
priority = 7

[[schedules.steps]]
index = 20
job = "left"
continue_on_failure = true
max_retries = 2

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


def declared(text: str, name: str = "file.yaml") -> list[DeclaredSchedule]:
    return parse_schedules([parse_document(name, text.encode())])


def of_data(**schedule: Any) -> ScheduleDefinition:
    (found,) = parse_schedules([Document("file", {"schedules": [{"name": "x", "steps": [{"job": "a"}], **schedule}]})])
    return found.definition


def refusal(whole: Any) -> Invalid:
    with pytest.raises(Invalid) as refused:
        parse_schedules([Document("file", whole)])
    return refused.value


def refused_step(**step: Any) -> Invalid:
    return refusal({"schedules": [{"name": "x", "steps": [{"job": "a"}, step]}]})


def test_a_file_says_all_that_code_can_say() -> None:
    nightly, other = (each.definition for each in declared(WHOLE))
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
                        rules={"timeout": "1h", "retry": {"max_retries": 5, "base_seconds": 1}},
                        queue="slow",
                        priority=7,
                    ),
                ),
                (
                    Step("job", "left", continue_on_failure=True, rules={"max_retries": 2}),
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


def test_yaml_and_toml_lists_and_indices_nested_and_flat_triggers_say_the_same() -> None:
    yaml, toml = declared(WHOLE), declared(IN_TOML, "file.toml")
    assert [each.definition for each in yaml] == [each.definition for each in toml]


@pytest.mark.parametrize(
    ("said", "trigger"),
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
def test_a_trigger_stands_beside_the_name_or_in_a_field_of_its_own(said: dict[str, Any], trigger: Any) -> None:
    assert of_data(**said).trigger == trigger


def test_equal_indices_are_a_group_and_indices_may_be_sparse() -> None:
    found = of_data(
        steps=[
            {"index": 900, "job": "last"},
            {"index": 0, "job": "first"},
            {"index": 7, "job": "left"},
            {"index": 7, "job": "right"},
        ]
    )
    assert [[step.name for step in group] for group in found.plan.groups] == [["first"], ["left", "right"], ["last"]]


@pytest.mark.parametrize(
    ("whole", "path", "words"),
    [
        (None, "file", "declares nothing"),
        ([], "file", "declares nothing"),
        ({}, "file: schedules", "is missing"),
        ({"schedule": []}, "file: schedule", "did you mean schedules?"),
        ({"schedules": {}}, "file: schedules", "is not a list"),
        ({"schedules": ["x"]}, "file: schedules[0]", "is not a set of named fields"),
        ({"schedules": [{"steps": []}]}, "file: schedules[0].name", "is missing"),
        ({"schedules": [{"name": "x"}]}, "file: schedules[0].steps", "is missing"),
        ({"schedules": [{"name": "x", "steps": []}]}, "file: schedules[0].steps", "has no steps"),
        ({"schedules": [{"name": 7, "steps": []}]}, "file: schedules[0].name", "7 is not a text"),
        ({"schedules": [{"name": "x", "steps": [[]]}]}, "file: schedules[0].steps[0]", "a group without steps"),
        (
            {"schedules": [{"name": "x", "steps": [[[{"job": "a"}]]]}]},
            "file: schedules[0].steps[0][0]",
            "is a list within a group",
        ),
        (
            {"schedules": [{"name": "x", "steps": [{"job": "a"}]}] * 2},
            "file: schedules[1].name",
            "'x' is declared already",
        ),
    ],
)
def test_what_is_no_file_of_schedules_is_refused(whole: Any, path: str, words: str) -> None:
    refused = refusal(whole)
    assert refused.field == path
    assert words in str(refused)


@pytest.mark.parametrize(
    ("said", "path", "words"),
    [
        ({"enabled": False}, "enabled", "whether a schedule is enabled is the operator's to say"),
        ({"overlaps": "skip"}, "overlaps", "did you mean overlap?"),
        ({"colour": "red"}, "colour", "a schedule has name, description, trigger, cron,"),
        ({"overlap": "both"}, "overlap", "use one of skip, queue_one"),
        ({"misfire": "never"}, "misfire", "use one of once, all, skip"),
        ({"misfire": {"policy": "all", "max_run": 1}}, "misfire.max_run", "did you mean max_runs?"),
        ({"misfire": {"max_runs": 0}}, "misfire.max_runs", "must be a whole number"),
        ({"description": 5}, "description", "is not a text"),
        ({"description": None}, "description", "is empty"),
        ({"cron": "0 25 * * *"}, "cron.hour", "25"),
        ({"cron": 5}, "cron", ""),
        ({"cron": "@daily", "every": "1h"}, "every", "is given beside cron"),
        ({"cron": "@daily", "zone": "Europe/Lodnon"}, "zone", ""),
        ({"cron": "@daily", "days": "mon"}, "days", "a trigger of kind cron has no such field"),
        ({"zone": "UTC"}, None, "does not say when to run"),
        ({"trigger": {"zone": "UTC"}}, "trigger", "does not say when to run"),
        ({"trigger": {"crn": "@daily"}}, "trigger.crn", "did you mean cron?"),
        ({"times": ["06:00"], "on": "mon"}, "on", "did you mean days?"),
        ({"trigger": {"at": "06:00"}}, "trigger.at", "did you mean times?"),
        ({"cron": "@daily", "misfire": {"max_runs": 10}}, "misfire.max_runs", "goes with the policy all"),
        ({"cron": "@daily", "misfire": {"policy": "once", "max_runs": 3}}, "misfire.max_runs", "and it is once"),
        ({"trigger": {"cron": "nonsense"}}, "trigger.cron", ""),
        ({"trigger": {"kind": "moon", "cron": "@daily"}}, "trigger.kind", "is not a kind of trigger"),
        ({"trigger": {"cron": "@daily"}, "zone": "UTC"}, "zone", "is given beside trigger"),
        ({"trigger": "daily"}, "trigger", "is not a set of named fields"),
        ({"times": [390]}, "times", "390 is not a time of day"),
    ],
)
def test_a_wrong_field_of_a_schedule_is_refused_by_its_path(said: dict[str, Any], path: str | None, words: str) -> None:
    refused = refusal({"schedules": [{"name": "x", "steps": [{"job": "a"}], **said}]})
    assert refused.field == f"file: schedules[0]{'' if path is None else f'.{path}'}"
    assert words in str(refused)


@pytest.mark.parametrize(
    ("said", "path", "words"),
    [
        ({}, "", "does not say what to run"),
        ({"job": "b", "schedule": "c"}, "", "schedule is given beside job"),
        ({"jop": "b"}, ".jop", "did you mean job?"),
        ({"job": "b", "retry": {"max_retires": 1}}, ".retry.max_retires", "did you mean max_retries?"),
        ({"job": "b", "retry": {"max_retries": 9999}}, ".retry.max_retries", "must be between 0 and 1000"),
        ({"job": "b", "retry": {"max_retries": "3"}}, ".retry.max_retries", "'3' is not a number"),
        ({"job": "b", "retry": {"max_retries": 2.5}}, ".retry.max_retries", "2.5 is not a whole number"),
        ({"job": "b", "retry": {"factor": [1]}}, ".retry.factor", "[1] is not a number"),
        ({"job": "b", "retry": 3}, ".retry", "is not a set of rules"),
        ({"job": "b", "retry": {"jitter": 0}, "max_retries": 1}, ".max_retries", "is given beside retry"),
        ({"job": "b", "max_retries": -1}, ".max_retries", "must be between"),
        ({"job": "b", "timeout": "soon"}, ".timeout", "'soon' is not a span"),
        ({"job": "b", "timeout": ["1h"]}, ".timeout", "is not a span"),
        ({"job": "b", "timeout": True}, ".timeout", "True is not a span"),
        ({"job": "b", "priority": "high"}, ".priority", "must be a whole number"),
        ({"job": "b", "queue": "no such name"}, ".queue", "is not a name"),
        ({"job": "b", "on_lost": "wait"}, ".on_lost", "neither 'retry' nor 'fail'"),
        ({"job": "b", "continue_on_failure": "yes"}, ".continue_on_failure", "must be true or false"),
        ({"job": "b", "input": [1]}, ".input", "is not a set of named values"),
        ({"job": "b", "arguments": {}}, ".arguments", "write input: …"),
        ({"job": "b", "target": "c"}, ".target", "leave it out"),
        ({"job": "x" * 300}, ".job", "must be a text of 1 to 200 characters"),
        ({"job": None}, ".job", "is empty"),
        ({"job": "a"}, "", "two steps are named 'a'"),
        ({"schedule": "b", "input": {}}, ".input", "a schedule takes no input"),
        ({"kind": "log.append", "input": {}}, ".input", "write arguments: …"),
        ({"kind": "job", "arguments": {}}, ".kind", "write job: NAME"),
        ({"job": "b", "index": 1}, "", ""),
    ],
)
def test_a_wrong_field_of_a_step_is_refused_by_its_path(said: dict[str, Any], path: str, words: str) -> None:
    refused = refused_step(**said)
    step = 0 if "index" in said else 1  # the other one has no index, and is to blame
    assert refused.field == f"file: schedules[0].steps[{step}]{path}"
    assert words in str(refused)
    assert refused.remedy or words


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
def test_lists_and_indices_are_not_mixed(steps: list[Any], path: str) -> None:
    assert refusal({"schedules": [{"name": "x", "steps": steps}]}).field == f"file: schedules[0].{path}"


def test_a_refusal_names_the_file_and_the_line() -> None:
    with pytest.raises(Invalid) as refused:
        declared(WHOLE.replace("base_seconds", "base_second"))
    assert refused.value.field == "file.yaml, line 15: schedules[0].steps[0].retry.base_second"


def test_a_name_in_two_files_is_refused_and_both_are_told() -> None:
    text = b"schedules: [{name: x, steps: [{job: a}]}]"
    with pytest.raises(Invalid) as refused:
        parse_schedules([parse_document("one.yaml", text), parse_document("two.yml", text)])
    assert str(refused.value).startswith(
        "two.yml, line 1: schedules[0].name: 'x' is declared already, at one.yaml, line 1"
    )


@pytest.mark.parametrize(
    ("field", "told"),
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
def test_what_is_found_wrong_later_is_told_by_its_place_too(field: str | None, told: str) -> None:
    nightly, _ = declared(WHOLE)
    assert nightly.locate_error(Invalid("is wrong", field=field)).field == f"file.yaml, {told}"


def test_retries_are_whole_numbers_in_code_too() -> None:
    for wrong in ("3", 2.5, True, None):
        with pytest.raises(Invalid, match="max_retries"):
            RetryPolicy(max_retries=wrong)  # type: ignore[arg-type]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names_of_a_step = st.sampled_from(
    [
        *("job", "schedule", "kind", "input", "arguments", "target", "index", "name", "queue", "priority"),
        *("continue_on_failure", "timeout", "retry", "max_retries", "on_lost"),
    ]
)
names_of_a_schedule = st.sampled_from(
    [
        *("description", "trigger", "cron", "times", "every", "zone", "days", "between", "anchor", "start", "end"),
        *("excluded", "jitter", "overlap", "misfire"),
    ]
)
steps = st.dictionaries(names_of_a_step, anything, max_size=4)
retries = st.dictionaries(st.sampled_from(["max_retries", "base_seconds", "factor", "cap_seconds", "jitter"]), anything)
misfires = st.dictionaries(st.sampled_from(["policy", "max_runs", "grace_seconds"]), anything)


@given(st.dictionaries(names_of_a_schedule, anything, max_size=4), steps, retries, misfires)
def test_whatever_stands_in_a_file_is_taken_or_refused_with_a_place(
    schedule: dict[str, Any], step: dict[str, Any], retry: dict[str, Any], misfire: dict[str, Any]
) -> None:
    for whole in (
        {"name": "x", "steps": [{"job": "a"}], **schedule},
        {"name": "x", "steps": [{"job": "a", **step}]},
        {"name": "x", "steps": [{"job": "a", "retry": retry}], "misfire": misfire},
        {"name": "x", "steps": [{"job": "a"}], "trigger": {"kind": "interval", **schedule}},
    ):
        assert _place_of_refusal(whole).startswith("file: schedules[0]")


def _place_of_refusal(schedule: dict[str, Any]) -> str:
    try:
        parse_schedules([Document("file", {"schedules": [schedule]})])
    except Invalid as refused:
        return refused.field or "nowhere"
    return "file: schedules[0], taken"
