"""Steps as somebody types them."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto.cli.definitions.step_syntax import group_of, overrides_of
from tenuto.errors import Invalid


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sync", [("job", "sync", {}, "sync")]),
        (" sync ", [("job", "sync", {}, "sync")]),
        ("ad:export/2", [("job", "ad:export/2", {}, "ad:export/2")]),
        ('fetch:{"pages": 5, "of": "a, b"}', [("job", "fetch", {"pages": 5, "of": "a, b"}, "fetch")]),
        ('fetch: {"n": {"deep": [1, 2]}} name=x', [("job", "fetch", {"n": {"deep": [1, 2]}}, "x")]),
        ("a,b , c", [("job", each, {}, each) for each in "abc"]),
        ('a:{"n": 1},b:{"n": 2}', [("job", "a", {"n": 1}, "a"), ("job", "b", {"n": 2}, "b")]),
        ('"Nightly HR Sync" kind=schedule', [("schedule", "Nightly HR Sync", {}, "Nightly HR Sync")]),
        ('small name="count, then \\"stop\\""', [("job", "small", {}, 'count, then "stop"')]),
    ],
)
def test_a_step_is_read(text: str, expected: list[tuple[str, str, dict[str, Any], str]]) -> None:
    assert [(step.kind, step.target, dict(step.arguments), step.name) for step in group_of(text)] == expected


def test_the_options_of_a_step_have_the_names_they_have_in_code() -> None:
    (step,) = group_of("a continue_on_failure timeout=5m max_retries=7 queue=slow priority=-2")
    assert step.continue_on_failure
    assert (dict(step.rules), step.queue, step.priority) == ({"timeout": "5m", "max_retries": 7}, "slow", -2)
    assert not group_of("a continue_on_failure=false")[0].continue_on_failure


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "what to run was expected, at the end"),
        ("a,", "what to run was expected, at the end"),
        (",a", "what to run was expected, at ',a'"),
        ("a:{", "arguments as a JSON object was expected"),
        ("a:{'n': 1}", "arguments as a JSON object was expected"),
        ('"a":[1]', "arguments are a JSON object"),
        ('"a', "a text in double quotes was expected"),
        ("a colour=red", "a step has no option 'colour'"),
        ("a b", "a step has no option 'b'"),
        ("a name", "name needs a value"),
        ("a name=", "a value for name was expected"),
        ("a priority=high", "priority is a whole number"),
        ("a continue_on_failure=maybe", "continue_on_failure is true or false"),
        ("a timeout=soon", "'soon' is not a span"),
        ('a name="x"y', "a step has no option 'y'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_place(text: str, what: str) -> None:
    with pytest.raises(Invalid) as refused:
        group_of(text)
    assert what in refused.value.message
    assert refused.value.field
    assert refused.value.remedy


def test_a_value_for_an_argument_is_json_or_else_text() -> None:
    given = ["a.n=5", "a.of=five", "HR v1.2.n=[1]", 'a.text="5"', "a.nothing=null", "a.line=x=y"]
    assert overrides_of(given) == {
        "a": {"n": 5, "of": "five", "text": "5", "nothing": None, "line": "x=y"},
        "HR v1.2": {"n": [1]},
    }
    assert overrides_of(None) == {}


@pytest.mark.parametrize("given", ["a", "a.n", "n=1", ".n=1", "a.=1"])
def test_an_argument_of_no_step_is_refused(given: str) -> None:
    with pytest.raises(Invalid, match="which argument of which step") as refused:
        overrides_of([given])
    assert refused.value.field == "--set"
