"""Form fields from JSON schemas: each schema gets the simplest field that can show its value."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from tenuto import Tenuto
from tenuto.model.validation import INVISIBLE_CHARACTERS
from tenuto.web.components.definition_forms import duration_text, find_schema, make_step_form, make_trigger_form
from tenuto.web.components.schema_forms import FormField, make_arguments_form


def make_form(values: dict[str, Any] | None = None) -> dict[str, FormField]:
    app = Tenuto()

    @app.job
    async def work(
        number: int,
        share: float = 0.5,
        name: str = "x",
        is_full: bool = False,
        mode: Literal["delta", "full"] = "delta",
        note: str | None = None,
        tags: list[str] = [],  # noqa: B006
        codes: list[int] = [],  # noqa: B006
        options: dict[str, int] = {},  # noqa: B006
        wait: int | str = 1,
    ) -> None: ...

    form = make_arguments_form("input", work.input_schema(), values)
    return {field.name: field for field in form.fields}


def test_schema_chooses_the_type_of_a_field() -> None:
    fields = make_form()
    assert {name: field.type for name, field in fields.items()} == {
        "number": "number",
        "share": "number",
        "name": "text",
        "is_full": "checkbox",
        "mode": "text",
        "note": "text",
        "tags": "lines",
        "codes": "numbers",
        "options": "json",
        "wait": "scalar",
    }
    assert fields["number"].is_required
    assert fields["number"].is_whole
    assert not fields["share"].is_whole
    assert (fields["name"].placeholder, fields["name"].value) == ("x", "")
    assert list(fields["mode"].options) == ["delta", "full"]


def test_stored_values_are_shown_and_marked_as_given() -> None:
    fields = make_form({"number": 3, "note": None, "name": "", "tags": ["a", "b"], "codes": [1, 2], "is_full": True})
    assert (fields["number"].value, fields["number"].is_given) == ("3", True)
    assert not fields["share"].is_given
    assert fields["note"].empty == "null"
    assert fields["name"].empty == "text"
    assert fields["tags"].value == "a\nb"
    assert fields["codes"].value == "1, 2"
    assert fields["is_full"].is_checked


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", "many"),
        ("name", {"secret": "hr/name"}),
        ("tags", ["two\nlines"]),
        ("tags", [" blank"]),
        ("codes", ["x"]),
        ("wait", "15"),
        ("mode", 3),
        ("name", "\x1b[31mred"),
        ("note", "two\r\nlines"),
        ("tags", ["a\x9bb"]),
        ("wait", "\x07"),
    ],
)
def test_value_that_a_field_cannot_show_is_edited_as_json(name: str, value: Any) -> None:
    assert make_form({name: value})[name].type == "json"


def test_control_characters_are_shown_as_json_escapes_and_keep_their_meaning() -> None:
    values = {"number": 1, "name": "\x1b[2J\x9b31m \x7f \u202e \\x1b ü\n", "other": "\x9b"}
    app = Tenuto()

    @app.job
    async def work(number: int, name: str = "x") -> None: ...

    form = make_arguments_form("input", work.input_schema(), values)
    [name, rest] = [field for field in form.fields if field.type in ("json", "rest")]
    assert name.value == r'"\u001b[2J\u009b31m \u007f \u202e \\x1b ü\n"'
    assert not [text for text in (name.value, rest.value, form.document) if INVISIBLE_CHARACTERS.search(text)]
    assert json.loads(name.value) == values["name"]
    assert json.loads(rest.value) == {"other": "\x9b"}
    assert json.loads(form.document) == values


def test_arguments_outside_of_the_schema_are_kept() -> None:
    rest = make_form({"number": 1, "other": {"a": 1}})[""]
    assert (rest.type, '"other"' in rest.value) == ("rest", True)


def test_unknown_job_is_edited_as_json_only() -> None:
    app = Tenuto()
    step = make_step_form(app, {"job": "elsewhere", "input": {"n": 1}})
    assert step.arguments is not None
    assert not step.arguments.is_known
    assert '"n": 1' in step.arguments.document
    assert "does not know the job" in find_schema(app, "job", "elsewhere")[1]


def test_every_step_kind_has_a_form() -> None:
    app = Tenuto()
    for kind in app.jobs.kinds:
        step = make_step_form(app, {"kind": kind} if kind != "schedule" else {"schedule": "other"})
        assert (step.arguments is None) == (kind == "schedule"), kind
        assert step.arguments is None or step.arguments.is_known


def test_trigger_and_durations_are_shown_as_they_are_entered() -> None:
    assert [duration_text(each) for each in (5400, 3600.0, 90, 172_800, 1.5, "15m", "90", None)] == [
        "90m", "1h", "90s", "2d", "1.5", "15m", "90s", "",
    ]  # fmt: skip
    form = make_trigger_form({"kind": "interval", "every": 900, "between": ["09:00", "17:00"], "days": ["mon", "tue"]})
    assert (form.every, form.opens, form.closes, form.days, form.zone) == ("15m", "09:00", "17:00", "mon, tue", "UTC")
