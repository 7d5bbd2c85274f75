"""What may be stored as text and JSON (bad inputs B62, B78, B79, B85, B87): refused by field, or kept as it is."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model import stored_values
from tenuto.model.stored_values import (
    MAX_TAGS,
    dump_json,
    truncate_text,
    check_label,
    check_name,
    check_json_text,
    check_text,
    check_tags,
    check_title,
)


def refusal_of(text: str, limit: int = stored_values.MAX_INPUT_BYTES) -> str:
    with pytest.raises(Invalid) as refusal:
        check_json_text(text, field="input", limit=limit)
    assert refusal.value.field == "input"
    return str(refusal.value)


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
def test_a_nul_is_refused_raw_or_escaped(text: str) -> None:
    assert "NUL" in refusal_of(text)


@pytest.mark.parametrize("text", [r'"\\u0000"', r'"C:\\users\\u0000"', r'"\\\\u0000"', r'"u0000"', r'"\u0001"'])
def test_a_backslash_and_the_letters_u0000_are_not_a_nul(text: str) -> None:
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
def test_half_a_surrogate_pair_is_refused_raw_or_escaped(text: str) -> None:
    assert "surrogate" in refusal_of(text)


@pytest.mark.parametrize("text", [r'"\ud83d\ude00"', '"😀"', r'"\\ud800"', r'"\u00e4\u20ac"', '"äöü€"'])
def test_whole_characters_pass_however_they_are_written(text: str) -> None:
    assert check_json_text(text, field="input") == text


@pytest.mark.parametrize(("character", "width"), [("a", 1), ("ä", 2), ("€", 3), ("😀", 4)])
def test_size_is_counted_in_bytes_to_the_last_one(character: str, width: int) -> None:
    limit = 400
    fits = character * (limit // width)
    assert check_text(fits, field="input", limit=limit) == fits
    with pytest.raises(Invalid, match="larger than 400 bytes"):
        check_text(fits + character, field="input", limit=limit)


@given(st.text(max_size=60))
def test_a_text_is_taken_exactly_if_the_database_could_keep_it(text: str) -> None:
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
def test_plain_data_comes_back_as_it_went_in_or_is_refused(value: Any) -> None:
    try:
        text = dump_json(value, field="input")
    except Invalid:
        assert "\x00" in str(value) or "\\x00" in repr(value) or not _is_whole(repr(value) + str(value))
    else:
        assert json.loads(text) == value


def _is_whole(text: str) -> bool:
    return "\\ud" not in text and text.isprintable()


@given(st.text(max_size=20))
def test_escaping_changes_nothing_about_what_is_accepted(text: str) -> None:
    def accepted(ensure_ascii: bool) -> bool:
        try:
            check_json_text(json.dumps(text, ensure_ascii=ensure_ascii), field="input")
        except Invalid:
            return False
        return True

    assert accepted(True) == accepted(False)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [math.nan], {"a": math.inf}])
def test_numbers_that_json_has_not_are_refused(value: Any) -> None:
    with pytest.raises(Invalid, match="not JSON"):
        dump_json(value, field="input")


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {"a": object()}])
def test_what_json_has_no_word_for_is_refused(value: Any) -> None:
    with pytest.raises(Invalid, match="not JSON"):
        dump_json(value, field="input")


def test_a_value_nested_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Invalid, match="nested too deeply"):
        dump_json(deep, field="input")
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Invalid):
        dump_json(endless, field="input")


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 5000 + "]" * 5000, '{"a":' * 3000 + "1" + "}" * 3000])
def test_a_text_nested_without_end_is_refused(text: str) -> None:
    assert "nested too deeply" in refusal_of(text)


def test_brackets_inside_a_string_are_not_nesting() -> None:
    text = json.dumps("[" * 5000)
    assert check_json_text(text, field="input") == text


@pytest.mark.parametrize("text", ["1" * 5000, "[-" + "7" * 5000 + "]", '{"n":1' + "0" * 5000 + "}"])
def test_a_number_longer_than_python_will_read_is_refused(text: str) -> None:
    assert "digits" in refusal_of(text)


def test_the_same_digits_in_a_string_are_text() -> None:
    text = json.dumps("1" * 5000)
    assert check_json_text(text, field="input") == text


def test_a_number_of_5000_digits_is_refused_as_a_value_too() -> None:
    with pytest.raises(Invalid):
        dump_json({"n": 10**5000}, field="input")


# --- what must be kept somehow -------------------------------------------------------------------------------------


@given(st.text(max_size=200), st.integers(10, 100))
def test_words_about_a_failure_are_always_storable(text: str, limit: int) -> None:
    kept = truncate_text(text, limit)
    kept.encode("utf-8")
    assert "\x00" not in kept
    assert len(kept) <= limit + 60  # the note of the cut


def test_a_long_text_keeps_its_beginning_and_its_end_and_says_how_much_is_missing() -> None:
    kept = truncate_text("a" * 1000 + "b" * 1000, 100)
    assert kept.startswith("a" * 50)
    assert kept.endswith("b" * 50)
    assert "1900 characters cut" in kept


def test_unstorable_characters_are_shown_and_not_dropped() -> None:
    assert truncate_text("a\x00b\ud800c", 100) == "a␀b\\ud800c"


# --- names, labels, tags -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["bake", "a", "9", "_x", "shop.orders:send/v2-final", "x" * 200])
def test_a_name_people_type_is_taken(text: str) -> None:
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
        "\u00e9",  # one letter, composed and decomposed: twins that look alike
        "e\u0301",
        "\uff19",  # full width
        "a\x00",
        "a\u202eb",  # turns the reading direction
        "x" * 201,
        "x" * 1_000_000,
        "'; DROP TABLE tasks;--",
        5,
        None,
        b"bake",
    ],
)
def test_what_is_not_a_name_is_refused(text: Any) -> None:
    with pytest.raises(Invalid) as refusal:
        check_name(text, field="queue")
    assert refusal.value.field == "queue"
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("text", ["", "x" * 201, "a\x00", "\ud800"])
def test_a_label_that_cannot_be_kept_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as refusal:
        check_label(text, field="unique_key")
    assert refusal.value.field == "unique_key"


@pytest.mark.parametrize("text", ["order 17", "😀" * 200, "'; DROP TABLE tasks;--", '{"a"}', "\\"])
def test_a_label_may_be_any_text(text: str) -> None:
    assert check_label(text, field="unique_key") == text


def test_each_tag_is_kept_once_in_the_order_given() -> None:
    assert check_tags(["b", "a", "b", "c", "a"]) == ["b", "a", "c"]


@pytest.mark.parametrize(
    "given", [[""], ["x" * 65], ["a\x00"], [str(n) for n in range(MAX_TAGS + 1)], [str(n) for n in range(10_000)]]
)
def test_tags_without_measure_are_refused(given: list[str]) -> None:
    with pytest.raises(Invalid) as refusal:
        check_tags(given)
    assert refusal.value.field == "tags"


@pytest.mark.parametrize("unseen", ["\x1b[31m", "\x07", "\r", "\x7f", "\x9b", "\u200e", "\u202e", "\u2066"])
def test_what_nobody_sees_and_a_terminal_obeys_is_in_no_title_and_no_tag(unseen: str) -> None:
    with pytest.raises(Invalid, match=f"U\\+{ord(unseen[0]):04X}") as refusal:
        check_title(f"e{unseen}vil", field="name")
    assert refusal.value.field == "name"
    with pytest.raises(Invalid):
        check_tags([f"e{unseen}vil"])
    assert check_tags([f"e{unseen}vil"], check=check_label) == [f"e{unseen}vil"], "what was stored once can be looked for"
