"""Text of YAML and TOML becomes plain data, and whatever could mean two things is refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tenuto.definitions import document_parser
from tenuto.definitions.document_parser import MAX_BYTES, MAX_VALUES, parse_document
from tenuto.errors import Invalid


@pytest.fixture(params=["CSafeLoader", "SafeLoader"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML with its parser in C, and where there is none."""
    monkeypatch.setattr(document_parser, "_LOADER", getattr(yaml, request.param))


def value(text: str, name: str = "file.yaml") -> Any:
    return parse_document(name, text.encode()).value


def refusal(text: str, name: str = "file.yaml") -> str:
    with pytest.raises(Invalid) as refused:
        parse_document(name, text.encode())
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "meant"),
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
def test_yaml_becomes_plain_data(text: str, meant: Any) -> None:
    assert value(text) == meant


@pytest.mark.parametrize(
    ("written", "why", "instead"),
    [
        ("on", "true to some readers", 'write true, or the word in quotes: "on"'),
        ("No", "false to some readers", 'write false, or the word in quotes: "No"'),
        ("18:30", "the number 1110 to some readers", 'write it in quotes: "18:30"'),
        ("1:02:03", "the number 3723 to some readers", 'write it in quotes: "1:02:03"'),
        ("0755", "a different number to different readers", 'the text in quotes: "0755"'),
        ("1_000", "a different number to different readers", "write the number plainly"),
        ("0o17", "a different number to different readers", "write the number plainly"),
        (".inf", "no number that can be stored", "give a number"),
        ("1e999", "no number that can be stored", "give a number"),
    ],
)
def test_what_readers_of_yaml_disagree_on_is_refused_by_name(written: str, why: str, instead: str) -> None:
    said = refusal(f"schedules:\n  - times: [{written}]\n")
    assert said.startswith(f"file.yaml, line 2: schedules[0].times[0]: {written} ")
    assert why in said
    assert instead in said
    assert value(f'a: "{written}"') == {"a": written}


@pytest.mark.parametrize(
    ("text", "line", "remedy"),
    [
        ("a:\n  cron: */5 * * * *\n", 2, "put a text that begins with * in quotes, such as a line of cron"),
        ("a:\n  cron: * * * * *\n", 2, "put a text that begins with * in quotes, such as a line of cron"),
        ("a:\n  cron: @daily\n", 2, "put a text that begins with @ in quotes, such as a line of cron"),
        ("a:\n  cron: *daily\n", 2, "put a text that begins with * in quotes"),
        ("name: HR: nightly\n", 1, "put a text with a colon in it in quotes"),
        ("a:\n\tb: 1\n", 2, "indent with blanks"),
        ("a: [1, 2\nb: 3\n", 2, "look at the quotes, brackets and indents"),
        ("a: 'x\n", 2, "look at the quotes, brackets and indents"),
    ],
)
def test_what_is_not_yaml_is_told_with_its_line_and_what_is_mostly_the_matter(
    text: str, line: int, remedy: str
) -> None:
    said = refusal(text)
    assert said.startswith(f"file.yaml, line {line}")
    assert remedy in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "line 4: b.c: is given twice, first on line 3"),
        ("a: 1\n'a': 2", "line 2: a: is given twice"),
        ("a: !!python/object/apply:os.system [x]", "a: has the tag"),
        ("a: !Secret x", "a: has the tag !Secret"),
        ("a: !!int '3'", "a: has the tag"),
        ("a: &x {b: 1}\nc:\n  <<: *x", "merging is not supported"),
        ("? [a]\n: b", "has a name that is not text"),
        ("? &x a\n: 1\n*x : 2", "has a name that is not text"),
        ("'': 1", "has a field without a name"),
        ("a: &x [*x]", "a[0]: points at &x, which does not stand before it"),
        ("a: 1\n---\nb: 2", "line 2: a second document begins"),
        ("[" * 100_000, "is nested too deeply"),
        ("a: \x01", "line 1: is not YAML"),
    ],
)
def test_what_could_surprise_is_refused(text: str, why: str) -> None:
    assert why in refusal(text)


def test_copies_made_by_aliases_are_counted() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert f"more than {MAX_VALUES:,} values" in refusal("\n".join(lines))


@pytest.mark.parametrize("name", ["file.yaml", "file.toml"])
def test_a_file_has_a_largest_size(name: str) -> None:
    assert f"is larger than {MAX_BYTES:,} bytes" in refusal("#" * (MAX_BYTES + 1), name)


@pytest.mark.parametrize("name", ["file.txt", "file", "yaml"])
def test_another_format_is_refused(name: str) -> None:
    assert "is neither YAML nor TOML" in refusal("a: 1", name)


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(Invalid, match=r"is not UTF-8: .* at byte 3"):
        parse_document("file.yaml", b"a: \xff")


def test_every_value_has_its_line() -> None:
    document = parse_document("f.yaml", b"schedules:\n- name: x\n\n  steps:\n  - job: a\n    input: {n: 1}\n")
    assert document.location("schedules[0].name") == "f.yaml, line 2"
    assert document.location("schedules[0].steps[0].input.n") == "f.yaml, line 6"
    assert document.location("schedules[0].steps[0].queue") == "f.yaml, line 5", "what is not there: where it belongs"
    assert document.location("nothing[0]") == "f.yaml"


def test_toml_becomes_the_same_plain_data() -> None:
    text = 'a = 06:30:00\nb = 2031-12-25\nc = 2031-12-25T01:02:03Z\nd = [1, {e = "x"}]\nf = 01:02:03\n'
    assert value(text, "file.toml") == {
        "a": "06:30", "b": "2031-12-25", "c": "2031-12-25T01:02:03+00:00", "d": [1, {"e": "x"}], "f": "01:02:03",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cron = 0 2 * * *", "is not TOML"),
        ("a = 1\na = 2", "is not TOML"),
        ("a = inf", "file.toml: a: inf is no number that can be stored"),
        (f"a = {'[' * 10_000}", "is nested too deeply"),
        (f"a = {'[' * 60}{']' * 60}", "is nested too deeply"),
    ],
)
def test_toml_that_cannot_be_taken_is_refused(text: str, why: str) -> None:
    assert why in refusal(text, "file.toml")


letters = st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])  # JSON's escapes of pairs are not YAML's
names = st.text(letters, min_size=1, max_size=99)  # with their escapes no longer than YAML takes names to be
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(letters),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(letters, min_size=1, max_size=99), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_data_comes_back_from_yaml_as_it_was(data: Any) -> None:
    """Written as JSON, which YAML contains; characters no YAML may hold are escaped in it."""
    assert value(json.dumps({"x": data})) == {"x": data}


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for name in ("file.yaml", "file.toml"):
        with suppress(Invalid):
            json.dumps(parse_document(name, text.encode("utf-8", "surrogatepass")).value, allow_nan=False)
