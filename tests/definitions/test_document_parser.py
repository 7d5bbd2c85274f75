"""Document parser: YAML 1.2 and TOML become plain data, and unsupported text is rejected."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.definitions.document_parser import MAX_BYTES, parse_document
from tenuto.errors import Invalid
from tests.support.errors import raises_code


def parse_value(text: str, name: str = "file.yaml") -> Any:
    return parse_document(name, text.encode()).value


def parse_error(text: str, name: str = "file.yaml") -> Invalid:
    with pytest.raises(Invalid) as rejected:
        parse_document(name, text.encode())
    return rejected.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1", {"a": 1}),
        ("a: -0x1F", {"a": "-0x1F"}),
        ("a: 0x1F", {"a": 31}),
        ("a: 1.5e3", {"a": 1500.0}),
        ("a: 1.", {"a": 1.0}),
        ("a: true", {"a": True}),
        ("a: False", {"a": False}),
        ("a: ~", {"a": None}),
        ("a:", {"a": None}),
        ("a: 'true'", {"a": "true"}),
        ("a: !!str 12", {"a": "12"}),
        ("a: y", {"a": "y"}),
        ("a: 2031-12-25", {"a": "2031-12-25"}),
        ("a: 2031-12-25T01:02:03Z", {"a": "2031-12-25T01:02:03Z"}),
        ("a: 06:30", {"a": "06:30"}),
        ("a: 0 2 * * *", {"a": "0 2 * * *"}),
        ("a: {b: [1, {c: d}]}", {"a": {"b": [1, {"c": "d"}]}}),
        ("a: |\n  two\n  lines\n", {"a": "two\nlines\n"}),
        ("on: 1\n12: 2\nnull: 3", {"on": 1, "12": 2, "null": 3}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("", None),
        ("\ufeffa: 1", {"a": 1}),
    ],
)
def test_yaml_is_parsed_to_plain_data(text: str, expected: Any) -> None:
    assert parse_value(text) == expected


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        *((word, word) for word in ("on", "On", "off", "yes", "Yes", "no", "NO", "y", "n")),
        ("18:30", "18:30"),
        ("1:02:03", "1:02:03"),
        ("0755", 755),
        ("-0755", -755),
        ("+12", 12),
        ("0o17", 15),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        ("<<", "<<"),
        ("=", "="),
        ("1" * 150, int("1" * 150)),
    ],
)
def test_yaml_scalar_is_what_yaml_1_2_says(scalar: str, expected: Any) -> None:
    found = parse_value(f"a: [{scalar}]")["a"][0]
    assert (found, type(found)) == (expected, type(expected))
    assert parse_value(f'a: "{scalar}"') == {"a": scalar}


@pytest.mark.parametrize("scalar", [".inf", "-.INF", ".nan", "1e999", "1" * 5000, "0x" + "f" * 5000, "!!int x"])
def test_yaml_number_that_cannot_be_stored_is_rejected(scalar: str) -> None:
    error = parse_error(f"schedules:\n  - times: [{scalar}]\n")
    assert error.code == "definition_file.number.invalid"
    assert error.message.startswith(f"file.yaml, line 2: schedules[0].times[0]: {scalar.removeprefix('!!int ')[:80]} ")
    assert "in quotes" in (error.remedy or "")


@pytest.mark.parametrize(
    ("text", "line", "remedy"),
    [
        ("a:\n  cron: */5 * * * *\n", 2, "put a text that begins with * in quotes, such as a cron line"),
        ("a:\n  cron: * * * * *\n", 2, "put a text that begins with * in quotes, such as a cron line"),
        ("a:\n  cron: @daily\n", 2, "put a text that begins with @ in quotes, such as a cron line"),
        ("a:\n  cron: *daily\n", 2, "put a text that begins with * in quotes"),
        ("name: HR: nightly\n", 1, "put a text that contains a colon in quotes"),
        ("a:\n\tb: 1\n", 2, "indent with blanks"),
        ("a: [1, 2\nb: 3\n", 2, "check the quotes, brackets and indentation"),
        ("a: 'x\n", 2, "check the quotes, brackets and indentation"),
    ],
)
def test_yaml_syntax_error_has_line_and_remedy(text: str, line: int, remedy: str) -> None:
    error = parse_error(text)
    assert error.code == "definition_file.syntax"
    assert error.message.startswith(f"file.yaml, line {line}")
    assert remedy in (error.remedy or "")


@pytest.mark.parametrize(
    ("text", "code", "location"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "name.duplicate", "line 4: b.c"),
        ("a: 1\n'a': 2", "name.duplicate", "line 2: a"),
        ("a: !!python/object/apply:os.system [x]", "yaml.unsupported", "line 1: a"),
        ("a: !Secret x", "yaml.unsupported", "line 1: a"),
        ("a: !!int '3'", "yaml.unsupported", "line 1: a"),
        ("a: &x {b: 1}\nc:\n  <<: *x", "yaml.unsupported", "line 3: c['<<']"),
        ("? [a]\n: b", "name.invalid", "line 1"),
        ("? &x a\n: 1\n*x : 2", "name.duplicate", "line 1: a"),
        ("'': 1", "name.invalid", "line 1"),
        ("a: &x [*x]", "too_deep", "line 1: a[0]"),
        ("a: &x {b: *x}", "too_deep", "line 1: a.b"),
        ("a: 1\n---\nb: 2", "syntax", "line 2"),
        ("[" * 100_000, "too_deep", "line 1"),
        ("- " * 100_000, "too_deep", "line 1"),
        ("a: \x01", "syntax", "line 1"),
    ],
)
def test_unsupported_yaml_is_rejected(text: str, code: str, location: str) -> None:
    error = parse_error(text)
    assert error.code == f"definition_file.{code}"
    assert error.message.startswith(f"file.yaml, {location}")


def test_yaml_alias_copies_are_counted() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert parse_error("\n".join(lines)).code == "definition_file.too_many_values"


def test_yaml_document_with_too_many_values_is_rejected() -> None:
    assert parse_error(f"a: [{'1,' * 500_000}]").code == "definition_file.too_many_values"


def test_yaml_text_that_aliases_copy_is_counted() -> None:
    assert parse_error(f"a: &a {'x' * 50_000}\nb: [{'*a, ' * 100}]").code == "definition_file.too_large"
    assert parse_error(f"a: &a {{ {'x' * 1000}: 1 }}\nb: [{'*a, ' * 3000}]").code == "definition_file.too_large"


def test_lines_below_long_names_take_little_memory() -> None:
    found = parse_document("file.yaml", f"? {'a' * 40_000}\n: [{'1, ' * 20_000}]\nb: 1".encode())
    assert sum(len(path) for path in found.line_numbers) < 100_000
    assert found.location(f"{'a' * 40_000}[7]") == "file.yaml"
    assert found.location("b") == "file.yaml, line 3"


@pytest.mark.parametrize("name", ["file.yaml", "file.toml"])
def test_document_that_is_too_large_is_rejected(name: str) -> None:
    assert parse_error("#" * (MAX_BYTES + 1), name).code == "definition_file.too_large"


@pytest.mark.parametrize("name", ["file.txt", "file", "yaml"])
def test_document_of_unknown_format_is_rejected(name: str) -> None:
    assert parse_error("a: 1", name).code == "definition_file.format.unknown"


def test_document_that_is_not_utf_8_is_rejected() -> None:
    with raises_code("definition_file.encoding.invalid") as rejected:
        parse_document("file.yaml", b"a: \xff")
    assert "at byte 3" in rejected.value.message


def test_yaml_document_has_the_line_of_each_value() -> None:
    document = parse_document("f.yaml", b"schedules:\n- name: x\n\n  steps:\n  - job: a\n    input: {n: 1}\n")
    assert document.location("schedules[0].name") == "f.yaml, line 2"
    assert document.location("schedules[0].steps[0].input.n") == "f.yaml, line 6"
    assert document.location("schedules[0].steps[0].queue") == "f.yaml, line 5", (
        "a missing value has the line of its parent"
    )
    assert document.location("nothing[0]") == "f.yaml"


def test_toml_is_parsed_to_plain_data() -> None:
    text = 'a = 06:30:00\nb = 2031-12-25\nc = 2031-12-25T01:02:03Z\nd = [1, {e = "x"}]\nf = 01:02:03\n'
    assert parse_value(text, "file.toml") == {
        "a": "06:30", "b": "2031-12-25", "c": "2031-12-25T01:02:03+00:00", "d": [1, {"e": "x"}], "f": "01:02:03",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code", "location"),
    [
        ("cron = 0 2 * * *", "syntax", "file.toml"),
        ("a = 1\na = 2", "syntax", "file.toml"),
        ("a = inf", "number.invalid", "file.toml: a: inf"),
        (f"a = {'[' * 10_000}", "too_deep", "file.toml"),
        (f"a = {'[' * 60}{']' * 60}", "too_deep", "file.toml: a[0]"),
    ],
)
def test_invalid_toml_is_rejected(text: str, code: str, location: str) -> None:
    error = parse_error(text, "file.toml")
    assert error.code == f"definition_file.{code}"
    assert error.message.startswith(location)


letters = st.characters(
    max_codepoint=0xFFFF, exclude_categories=["Cs"]
)  # escaped surrogate pairs of JSON are not valid YAML
names = st.text(letters, min_size=1, max_size=99)  # with escapes not longer than YAML allows for names
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(letters),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_yaml_round_trips_plain_data(data: Any) -> None:
    """Written as JSON, a subset of YAML, with unsupported characters escaped."""
    assert parse_value(json.dumps({"x": data})) == {"x": data}


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    for name in ("file.yaml", "file.toml"):
        with suppress(Invalid):
            json.dumps(parse_document(name, text.encode("utf-8", "surrogatepass")).value, allow_nan=False)
