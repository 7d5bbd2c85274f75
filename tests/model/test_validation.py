"""Validation of stored texts and JSON (bad inputs B62, B78, B79, B85, B87), and strict JSON parsing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model import validation
from tenuto.model.validation import (
    MAX_TAGS,
    check_json_text,
    check_label,
    check_name,
    check_tags,
    check_text,
    check_title,
    dump_json,
    truncate_text,
)
from tests.support.errors import raises_code


def check_rejected(text: str, code: str) -> None:
    with raises_code(code) as rejected:
        check_json_text(text, field="input")
    assert rejected.value.field == "input"


@pytest.mark.parametrize(
    "text",
    [
        '"a\x00b"',  # raw
        r'"\u0000"',  # escaped
        r'"a\\\u0000"',  # an escaped backslash, then an escaped NUL
        r'{"k\u0000":1}',  # in a key
        r'"\\\\\u0000"',
    ],
)
def test_json_text_with_nul_is_rejected(text: str) -> None:
    check_rejected(text, "value.nul_character")


@pytest.mark.parametrize("text", [r'"\\u0000"', r'"C:\\users\\u0000"', r'"\\\\u0000"', r'"u0000"', r'"\u0001"'])
def test_json_text_with_escaped_backslash_before_u0000_is_accepted(text: str) -> None:
    assert check_json_text(text, field="input") == text


@pytest.mark.parametrize(
    "text",
    [
        '"\ud800"',  # raw halves
        '"\udfff tail"',
        r'"\ud800"',  # escaped halves
        r'"\uDFFF"',
        r'"\ude00\ud83d"',  # the wrong way round
        r'"\\\ud800"',  # an escaped backslash before it
        r'{"\udc00":1}',
        '"\ud83d\ude00"',  # two raw halves are not a pair in Python
    ],
)
def test_json_text_with_lone_surrogate_is_rejected(text: str) -> None:
    check_rejected(text, "value.lone_surrogate")


@pytest.mark.parametrize("text", [r'"\ud83d\ude00"', '"😀"', r'"\\ud800"', r'"\u00e4\u20ac"', '"äöü€"'])
def test_json_text_with_complete_characters_is_accepted(text: str) -> None:
    assert check_json_text(text, field="input") == text


@pytest.mark.parametrize(("character", "width"), [("a", 1), ("ä", 2), ("€", 3), ("😀", 4)])
def test_text_size_is_counted_in_bytes(character: str, width: int) -> None:
    limit = 400
    fits = character * (limit // width)
    assert check_text(fits, field="input", limit=limit) == fits
    with raises_code("value.too_large"):
        check_text(fits + character, field="input", limit=limit)


@given(st.text(max_size=60))
def test_text_is_accepted_exactly_if_postgresql_can_store_it(text: str) -> None:
    def storable() -> bool:
        try:
            return len(text.encode("utf-8")) <= 100 and "\x00" not in text
        except UnicodeEncodeError:
            return False

    try:
        accepted = check_text(text, field="input", limit=100) == text
    except Invalid:
        accepted = False
    assert accepted is storable()


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(plain)
def test_dumped_json_round_trips_or_is_rejected(value: Any) -> None:
    try:
        text = dump_json(value, field="input")
    except Invalid:
        assert "\x00" in str(value) or "\\x00" in repr(value) or not _is_printable(repr(value) + str(value))
    else:
        assert json.loads(text) == value


def _is_printable(text: str) -> bool:
    return "\\ud" not in text and text.isprintable()


@given(st.text(max_size=20))
def test_json_escaping_does_not_change_acceptance(text: str) -> None:
    def accepted(ensure_ascii: bool) -> bool:
        try:
            check_json_text(json.dumps(text, ensure_ascii=ensure_ascii), field="input")
        except Invalid:
            return False
        return True

    assert accepted(True) == accepted(False)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [math.nan], {"a": math.inf}])
def test_dump_json_rejects_nan_and_infinity(value: Any) -> None:
    with raises_code("value.json.invalid"):
        dump_json(value, field="input")


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {"a": object()}])
def test_dump_json_rejects_other_types(value: Any) -> None:
    with raises_code("value.json.invalid"):
        dump_json(value, field="input")


def test_dump_json_rejects_deeply_nested_values() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with raises_code("value.json.too_deep"):
        dump_json(deep, field="input")
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Invalid):
        dump_json(endless, field="input")


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 5000 + "]" * 5000, '{"a":' * 3000 + "1" + "}" * 3000])
def test_deeply_nested_json_text_is_rejected(text: str) -> None:
    check_rejected(text, "value.json.too_deep")


def test_brackets_in_a_json_string_are_not_nesting() -> None:
    text = json.dumps("[" * 5000)
    assert check_json_text(text, field="input") == text


@pytest.mark.parametrize("text", ["1" * 5000, "[-" + "7" * 5000 + "]", '{"n":1' + "0" * 5000 + "}"])
def test_json_number_with_too_many_digits_is_rejected(text: str) -> None:
    check_rejected(text, "value.number.too_long")


def test_digits_in_a_json_string_are_accepted() -> None:
    text = json.dumps("1" * 5000)
    assert check_json_text(text, field="input") == text


def test_dump_json_rejects_a_number_with_too_many_digits() -> None:
    with pytest.raises(Invalid):
        dump_json({"n": 10**5000}, field="input")


# --- truncation -----------------------------------------------------------------------------------------------------


@given(st.text(max_size=200), st.integers(10, 100))
def test_truncated_text_can_always_be_stored(text: str, limit: int) -> None:
    truncated = truncate_text(text, limit)
    truncated.encode("utf-8")
    assert "\x00" not in truncated
    assert len(truncated) <= limit + 60  # the note of the cut


def test_truncated_text_keeps_beginning_and_end() -> None:
    truncated = truncate_text("a" * 1000 + "b" * 1000, 100)
    assert truncated.startswith("a" * 50)
    assert truncated.endswith("b" * 50)
    assert "1900 characters cut" in truncated


def test_truncated_text_escapes_unstorable_characters() -> None:
    assert truncate_text("a\x00b\ud800c", 100) == "a␀b\\ud800c"


# --- names, labels, tags -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["bake", "a", "9", "_x", "shop.orders:send/v2-final", "x" * 200])
def test_valid_name_is_accepted(text: str) -> None:
    assert check_name(text, field="name") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a b",
        "a\n",
        "-rf",
        ".hidden",
        "/abs",
        "\u00e9",  # one character, composed and decomposed: both look the same
        "e\u0301",
        "\uff19",  # full width
        "a\x00",
        "a\u202eb",  # reverses the direction of writing
        "x" * 201,
        "x" * 1_000_000,
        "'; DROP TABLE tasks;--",
        5,
        None,
        b"bake",
    ],
)
def test_invalid_name_is_rejected(text: Any) -> None:
    with pytest.raises(Invalid) as rejected:
        check_name(text, field="queue")
    assert rejected.value.field == "queue"
    assert len(str(rejected.value)) < 300


@pytest.mark.parametrize("text", ["", "x" * 201, "a\x00", "\ud800"])
def test_invalid_label_is_rejected(text: str) -> None:
    with pytest.raises(Invalid) as rejected:
        check_label(text, field="unique_key")
    assert rejected.value.field == "unique_key"


@pytest.mark.parametrize("text", ["order 17", "😀" * 200, "'; DROP TABLE tasks;--", '{"a"}', "\\"])
def test_label_may_be_any_text(text: str) -> None:
    assert check_label(text, field="unique_key") == text


def test_tags_are_unique_and_keep_their_order() -> None:
    assert check_tags(["b", "a", "b", "c", "a"]) == ["b", "a", "c"]


@pytest.mark.parametrize(
    "given", [[""], ["x" * 65], ["a\x00"], [str(n) for n in range(MAX_TAGS + 1)], [str(n) for n in range(10_000)]]
)
def test_invalid_tags_are_rejected(given: list[str]) -> None:
    with pytest.raises(Invalid) as rejected:
        check_tags(given)
    assert rejected.value.field == "tags"


@pytest.mark.parametrize("invisible", ["\x1b[31m", "\x07", "\r", "\x7f", "\x9b", "\u200e", "\u202e", "\u2066"])
def test_title_and_tag_with_invisible_characters_are_rejected(invisible: str) -> None:
    with raises_code("value.invisible_character") as rejected:
        check_title(f"e{invisible}vil", field="name")
    assert rejected.value.field == "name"
    assert f"U+{ord(invisible[0]):04X}" in rejected.value.message
    with pytest.raises(Invalid):
        check_tags([f"e{invisible}vil"])
    assert check_tags([f"e{invisible}vil"], check=check_label) == [f"e{invisible}vil"], (
        "older stored tags can be searched for"
    )


# --- strict JSON ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 3}', '[{"c": {"a": 1, "a": 1}}]', '{"\\u0061": 1, "a": 2}'])
def test_strict_json_rejects_a_duplicate_key(text: str) -> None:
    with pytest.raises(validation.DuplicateKey) as rejected:
        validation.parse_strict_json(text)
    assert rejected.value.name == "a"


def test_strict_json_finds_a_duplicate_key_among_many() -> None:
    names = [f"n{number}" for number in range(200_000)]
    text = "{" + ", ".join(f"{json.dumps(name)}: 1" for name in [*names, names[-1]]) + "}"
    with pytest.raises(validation.DuplicateKey) as rejected:
        validation.parse_strict_json(text)
    assert rejected.value.name == "n199999"


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_strict_json_rejects_nan_and_infinity(constant: str) -> None:
    with pytest.raises(ValueError, match=constant):
        validation.parse_strict_json(f'{{"n": {constant}}}')
