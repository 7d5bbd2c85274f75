"""Syntax of ``--step`` and of ``--set step.argument=value``."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto.cli.definitions.step_syntax import parse_overrides, parse_step_group
from tenuto.errors import Invalid
from tests.support.errors import raises_code


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
def test_step_is_parsed(text: str, expected: list[tuple[str, str, dict[str, Any], str]]) -> None:
    assert [(step.kind, step.target, dict(step.arguments), step.name) for step in parse_step_group(text)] == expected


def test_step_options_have_the_names_of_the_code() -> None:
    (step,) = parse_step_group("a continue_on_failure timeout=5m max_attempts=7 queue=slow priority=-2")
    assert step.continue_on_failure
    assert (dict(step.rules), step.queue, step.priority) == ({"timeout": "5m", "max_attempts": 7}, "slow", -2)
    assert not parse_step_group("a continue_on_failure=false")[0].continue_on_failure
    (step,) = parse_step_group('a when="steps.b.output.n > 0" needs=b')
    assert (step.when, step.needs) == ("steps.b.output.n > 0", ("b",))
    assert parse_step_group('a needs=["b", "load rows"] name=x, c')[0].needs == ("b", "load rows")


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "step.syntax.invalid", "expected the target of the step, at the end"),
        ("a,", "step.syntax.invalid", "expected the target of the step, at the end"),
        (",a", "step.syntax.invalid", "expected the target of the step, at ',a'"),
        ("a:{", "step.syntax.invalid", "expected arguments as a JSON object"),
        ("a:{'n': 1}", "step.syntax.invalid", "expected arguments as a JSON object"),
        ('"a":[1]', "step.syntax.invalid", "not a JSON object"),
        ("a needs=[1]", "step.syntax.invalid", "needs must be a list of step names"),
        ('"a', "step.syntax.invalid", "expected a text in double quotes"),
        ("a colour=red", "step.option.unknown", "'colour'"),
        ("a b", "step.option.unknown", "'b'"),
        ("a name", "step.syntax.invalid", "name needs a value"),
        ("a name=", "step.syntax.invalid", "a value for name"),
        ("a priority=high", "step.syntax.invalid", "priority must be a whole number"),
        ("a continue_on_failure=maybe", "step.syntax.invalid", "continue_on_failure must be true or false"),
        ('a name="x"y', "step.option.unknown", "'y'"),
    ],
)
def test_step_with_invalid_syntax_is_rejected_with_the_place(text: str, code: str, message: str) -> None:
    with raises_code(code, Invalid) as caught:
        parse_step_group(text)
    assert message in caught.value.message
    assert caught.value.field == "--step"
    assert caught.value.remedy


def test_condition_with_invalid_syntax_is_rejected_by_the_option() -> None:
    with raises_code("step.when.syntax") as caught:
        parse_step_group('a when="steps.b"')
    assert caught.value.field == "--step, when"


def test_step_with_an_invalid_option_value_is_rejected_by_the_option() -> None:
    with pytest.raises(Invalid) as caught:
        parse_step_group("a timeout=soon")
    assert caught.value.field == "--step, timeout"


def test_override_value_is_json_or_else_text() -> None:
    texts = ["a.n=5", "a.of=five", "HR v1.2.n=[1]", 'a.text="5"', "a.nothing=null", "a.line=x=y"]
    assert parse_overrides(texts) == {
        "a": {"n": 5, "of": "five", "text": "5", "nothing": None, "line": "x=y"},
        "HR v1.2": {"n": [1]},
    }
    assert parse_overrides(None) == {}


@pytest.mark.parametrize("text", ["a", "a.n", "n=1", ".n=1", "a.=1"])
def test_override_without_step_or_argument_is_rejected(text: str) -> None:
    with raises_code("cli.set.invalid") as caught:
        parse_overrides([text])
    assert caught.value.field == "--set"
