"""References to outputs of earlier steps, and conditions: one meaning in Python and as text."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model.definitions.step_expressions import (
    Condition,
    StepOutput,
    StepResult,
    StepStatus,
    find_references,
    parse_condition,
    resolve_arguments,
    to_condition,
)
from tenuto.model.definitions.steps import Step, step_from_fields
from tests.support.errors import raises_code

A, B = Step("job", "a"), Step("job", "load rows")
RESULTS = {
    "a": StepResult(StepStatus.SUCCEEDED, {"n": 3, "text": "x/y z", "rows": [{"id": 7}], "none": None, "ok": False}),
    "load rows": StepResult(StepStatus.FAILED),
    "skipped": StepResult(StepStatus.SKIPPED),
}


@pytest.mark.parametrize(
    ("condition", "text", "is_met"),
    [
        (A.succeeded, "steps.a.succeeded", True),
        (A.failed | B.failed, 'steps.a.failed or steps["load rows"].failed', True),
        (~A.succeeded & A.skipped, "not steps.a.succeeded and steps.a.skipped", False),
        (~(A.succeeded & A.skipped), "not (steps.a.succeeded and steps.a.skipped)", True),
        (A.output["n"] > 2, "steps.a.output.n > 2", True),
        (A.output["n"] <= 2.5, "steps.a.output.n <= 2.5", False),
        (A.output["rows"][0]["id"] == 7, "steps.a.output.rows[0].id == 7", True),
        (A.output["text"] < "y", 'steps.a.output.text < "y"', True),
        (A.output["n"] == "3", 'steps.a.output.n == "3"', False),
        (A.output["n"] != "3", 'steps.a.output.n != "3"', True),
        (A.output["none"] == None, "steps.a.output.none == null", True),  # noqa: E711
        (A.output["ok"] == False, "steps.a.output.ok == false", True),  # noqa: E712
        (B.output["n"] > 0, 'steps["load rows"].output.n > 0', False),
        (B.output["n"] != 0, 'steps["load rows"].output.n != 0', False),
        (to_condition(A.output["rows"]), "steps.a.output.rows", True),
        (to_condition(A.output["ok"]), "steps.a.output.ok", False),
        (to_condition(A.output["missing"]), "steps.a.output.missing", False),
    ],
)
def test_condition_in_python_and_as_text(condition: Condition, text: str, is_met: bool) -> None:
    assert str(condition) == text
    assert parse_condition(text) == condition
    assert parse_condition(text).is_met(RESULTS) is is_met


names = st.text(min_size=1, max_size=8).filter(lambda name: "\x00" not in name and name.isprintable())
paths = st.lists(names | st.integers(0, 99), max_size=3)
literals = st.none() | st.booleans() | st.integers(-9999, 9999) | st.floats(-9, 9, allow_nan=False) | names


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> Condition:
    kind = draw(st.integers(0, 5 if depth else 2))
    if kind == 0:
        return draw(st.sampled_from([A.succeeded, B.failed, A.skipped]))
    output = StepOutput(draw(names), tuple(draw(paths)))
    if kind == 1:
        return to_condition(output)
    if kind == 2:
        return output == draw(literals)
    if kind == 3:
        return ~draw(conditions(depth - 1))
    left, right = draw(conditions(depth - 1)), draw(conditions(depth - 1))
    return left & right if kind == 4 else left | right


@given(conditions())
def test_text_of_any_condition_has_the_same_meaning(condition: Condition) -> None:
    again = parse_condition(str(condition))
    assert str(again) == str(condition)
    assert _outcome(again) == _outcome(condition)


def _outcome(condition: Condition) -> object:
    try:
        return condition.is_met(RESULTS)
    except Invalid as error:
        return error.code


@given(st.text(alphabet="steps.aoutput()[]\"'<>=! 019andornot", max_size=40))
def test_any_text_is_a_condition_or_is_rejected(text: str) -> None:
    with suppress(Invalid):
        assert parse_condition(str(parse_condition(text))) == parse_condition(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "step.when.syntax"),
        ("True", "step.when.syntax"),
        ("steps.a", "step.when.syntax"),
        ("steps.a.output >", "step.when.syntax"),
        ("steps.a.output = 3", "step.when.syntax"),
        ("steps.a.output > steps.b.output", "step.when.syntax"),
        ("steps.a.succeeded and", "step.when.syntax"),
        ("(steps.a.succeeded", "step.when.syntax"),
        ("steps.a.succeeded)", "step.when.syntax"),
        ("steps.a.output.__class__()", "step.when.syntax"),
        ("steps.a.output > null", "step.when.type_mismatch"),
        ("steps.a.succeeded or " * 200 + "steps.a.failed", "step.when.too_long"),
        ("(" * 100 + "steps.a.succeeded" + ")" * 100, "step.when.syntax"),
    ],
)
def test_text_that_is_no_condition_is_rejected(text: str, code: str) -> None:
    with raises_code(code):
        parse_condition(text)


def test_condition_and_output_are_not_values_in_python() -> None:
    for use in (lambda: bool(A.succeeded), lambda: bool(A.output), lambda: list(A.output)):
        with raises_code("step.expression.used_as_value"):
            use()
    with raises_code("step.expression.used_as_value"):
        Step.log("x", fields={"ok": A.succeeded})
    with raises_code("step.when.literal"):
        _ = A.output["n"] == [1]
    with raises_code("step.when.invalid"):
        Step("job", "b", when=3)  # type: ignore[arg-type]
    with raises_code("step.needs.invalid"):
        Step("job", "b", needs="a")  # type: ignore[arg-type]


def test_step_with_expressions_round_trips() -> None:
    step = Step("job", "b", {"x": str(A.output["n"])}, needs=[A, "load rows"], when=A.output["n"] > 0)  # type: ignore[arg-type]
    assert (step.needs, step.when) == (("a", "load rows"), "steps.a.output.n > 0")
    assert step_from_fields(json.loads(json.dumps(step.to_fields()))) == step
    assert step.predecessors == {"a", "load rows"}


@pytest.mark.parametrize(
    ("kind", "arguments", "resolved"),
    [
        ("job", {"x": "${steps.a.output.rows}"}, {"x": [{"id": 7}]}),
        ("job", {"x": {"deep": ["${steps.a.output.n}"]}}, {"x": {"deep": [3]}}),
        ("job", {"x": "${steps.a.output.none}"}, {"x": None}),
        ("job", {"x": "n=${ steps.a.output.n } ${steps.a.output.rows}"}, {"x": 'n=3 [{"id":7}]'}),
        ("job", {"x": "$${steps.a.output.n} ${HOME}"}, {"x": "${steps.a.output.n} ${HOME}"}),
        ("executable", {"args": ["${steps.a.output.n}"]}, {"args": ["3"]}),
        ("executable", {"stdin": "${steps.a.output.rows}"}, {"stdin": '[{"id":7}]'}),
        ("http.call", {"url": "http://x/${steps.a.output.text}"}, {"url": "http://x/x%2Fy%20z"}),
        ("http.call", {"body": {"n": "${steps.a.output.n}"}}, {"body": {"n": 3}}),
        ("sql", {"parameters": {"n": "${steps.a.output.n}"}}, {"parameters": {"n": 3}}),
    ],
)
def test_references_become_values(kind: str, arguments: dict[str, Any], resolved: dict[str, Any]) -> None:
    assert json.loads(resolve_arguments(kind, arguments, RESULTS)) == resolved


@pytest.mark.parametrize(
    ("kind", "arguments", "code", "field"),
    [
        ("job", {"x": ["${steps.a.output.missing}"]}, "step.reference.path_not_found", "x.0"),
        ("job", {"x": "${steps.a.output.rows[1]}"}, "step.reference.path_not_found", "x"),
        ("job", {"x": '${steps["load rows"].output}'}, "step.reference.no_output", "x"),
        ("job", {"x": "${steps.other.output}"}, "step.reference.no_output", "x"),
        ("job", {"x": "is ${steps.a.output.none}"}, "step.reference.not_text", "x"),
        ("executable", {"args": ["${steps.a.output.none}"]}, "step.reference.not_text", "args.0"),
    ],
)
def test_reference_without_a_usable_value_is_named(kind: str, arguments: dict[str, Any], code: str, field: str) -> None:
    with raises_code(code) as rejected:
        resolve_arguments(kind, arguments, RESULTS)
    assert rejected.value.field == field


def test_output_that_looks_like_a_secret_reference_reveals_no_secret() -> None:
    results = {"a": StepResult(StepStatus.SUCCEEDED, {"token": {"secret": "database-password"}})}
    for arguments in ({"headers": {"X": "${steps.a.output.token}"}}, {"body": "${steps.a.output}"}):
        with raises_code("step.reference.secret"):
            resolve_arguments("http.call", arguments, results)
    assert json.loads(resolve_arguments("job", {"x": "${steps.a.output.token}"}, results)) == {
        "x": {"secret": "database-password"}
    }


def test_unreadable_reference_is_named_with_its_place() -> None:
    for text in ("${steps}", "${steps.a}", "${steps.a.outputs}", "${steps.a.output.}", "${steps.a.output"):
        with raises_code("step.reference.syntax") as rejected:
            list(find_references({"x": {"y": text}}))
        assert rejected.value.field == "x.y"
