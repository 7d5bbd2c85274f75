"""JSON read strictly: what stands there twice is refused by its name, however long the text is."""

from __future__ import annotations

import json

import pytest

from tenuto.model import stored_values


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 3}', '[{"c": {"a": 1, "a": 1}}]', '{"\\u0061": 1, "a": 2}'])
def test_a_name_that_is_there_twice_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(stored_values.DuplicateKey, match="'a' is there twice") as refusal:
        stored_values.parse_strict_json(text)
    assert refusal.value.name == "a"


def test_a_name_twice_at_the_end_of_many_is_found_at_once() -> None:
    names = [f"n{number}" for number in range(200_000)]
    text = "{" + ", ".join(f"{json.dumps(name)}: 1" for name in [*names, names[-1]]) + "}"
    with pytest.raises(stored_values.DuplicateKey, match="'n199999' is there twice"):
        stored_values.parse_strict_json(text)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=f"{word} is not a number JSON knows"):
        stored_values.parse_strict_json(f'{{"n": {word}}}')
