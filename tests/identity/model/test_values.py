"""Data types, canonical forms and equality."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto_identity.model.values import (
    BadValue,
    DataType,
    Equality,
    EqualityKind,
    canonical_document,
    canonical_value,
    canonical_values,
    fold_key,
    normalize_anchor,
    python_value,
)
from tests.identity.model.strategies import EQUALITIES, SCALARS, attributes_of_every_type, documents, texts, values_of


@pytest.mark.parametrize("data_type", DataType)
def test_every_data_type_has_a_canonical_form(data_type: DataType) -> None:
    example: dict[DataType, Any] = {
        DataType.TEXT: "x",
        DataType.INTEGER: "7",
        DataType.DECIMAL: "7.50",
        DataType.BOOLEAN: "Yes",
        DataType.DATETIME: "20260131080000.5Z",
        DataType.DATE: "2026-01-31",
        DataType.BINARY: b"\x00\xff",
        DataType.GUID: "{C9BF9E57-1685-4C89-BAFB-FF5AF830BE8A}",
        DataType.REFERENCE: "cn=x",
    }
    expected = {
        DataType.TEXT: "x",
        DataType.INTEGER: 7,
        DataType.DECIMAL: "7.5",
        DataType.BOOLEAN: True,
        DataType.DATETIME: "2026-01-31T08:00:00.500000Z",
        DataType.DATE: "2026-01-31",
        DataType.BINARY: "AP8=",
        DataType.GUID: "c9bf9e57-1685-4c89-bafb-ff5af830be8a",
        DataType.REFERENCE: "cn=x",
    }
    found = canonical_value(example[data_type], data_type)
    assert found == expected[data_type]
    assert type(found) is type(expected[data_type])


@pytest.mark.parametrize("data_type", SCALARS)
@given(data=st.data())
def test_decoding_and_encoding_a_value_changes_nothing(data_type: DataType, data: st.DataObject) -> None:
    value = data.draw(values_of(data_type))
    assert canonical_value(value, data_type) == value
    assert canonical_value(python_value(value, data_type), data_type) == value
    assert json.loads(json.dumps([value])) == [value]


@given(documents(attributes_of_every_type()))
def test_documents_survive_json_and_are_canonical(document: Any) -> None:
    assert canonical_document(json.loads(json.dumps(document))) == document


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        ("soon", DataType.DATE),
        ("soon", DataType.DATETIME),
        ("2026-13-01", DataType.DATE),
        ("9223372036854775808", DataType.INTEGER),
        ("1.5", DataType.INTEGER),
        ("1e400", DataType.DECIMAL),
        ("NaN", DataType.DECIMAL),
        ("maybe", DataType.BOOLEAN),
        ("not base64!", DataType.BINARY),
        ("1234", DataType.GUID),
        ("a\x00b", DataType.TEXT),
        ("\udc80", DataType.TEXT),
        ("x" * (1024 * 1024 + 1), DataType.TEXT),
        (True, DataType.INTEGER),
        (["list"], DataType.TEXT),
    ],
)
def test_value_that_does_not_fit_is_refused(value: object, data_type: DataType) -> None:
    with pytest.raises(BadValue):
        canonical_value(value, data_type)


def test_large_integers_are_exact() -> None:
    assert canonical_value("9007199254740993", DataType.INTEGER) == 9007199254740993
    assert canonical_value("9223372036854775807", DataType.INTEGER) == 9223372036854775807


@given(st.lists(texts))
def test_values_are_sorted_and_unique(values: list[str]) -> None:
    found = canonical_values(values)
    assert found == sorted(set(values))
    assert canonical_values(reversed(found)) == found


def test_keys_fold_case_width_and_blanks_and_have_no_wildcards() -> None:
    assert fold_key("ADA@Example.org ") == fold_key("ada@example.ORG")
    assert fold_key("straße") == fold_key("STRASSE")
    assert fold_key("\u0131") != fold_key("i")
    assert fold_key("a_b") != fold_key("axb")
    assert fold_key("50%") != fold_key("50x")
    assert fold_key("\uff21") == fold_key("a")
    assert fold_key(" \u00a0 ") == ""


@given(texts)
def test_folding_is_idempotent(text: str) -> None:
    assert fold_key(fold_key(text)) == fold_key(text)


@pytest.mark.parametrize(
    ("equality", "left", "right", "expected"),
    [
        (Equality(), "A", "a", False),
        (Equality(EqualityKind.IGNORE_CASE), "A ", "a", True),
        (Equality(EqualityKind.DN), "CN=Ada,OU=x", "cn=ada, ou=X", True),
        (Equality(EqualityKind.NUMBER), "1.50", "1.5", True),
        (Equality(EqualityKind.NUMBER, equivalent=(0, 2**63 - 1)), 0, 2**63 - 1, True),
        (Equality(EqualityKind.INSTANT), "2026-01-01T00:00:00.4Z", "20260101000000Z", True),
        (Equality(EqualityKind.INSTANT), "2026-01-01T00:00:01Z", "2026-01-01T00:00:00Z", False),
        (Equality(EqualityKind.MASK, bits=2), 514, 546, True),
        (Equality(EqualityKind.MASK, bits=2), 512, 514, False),
    ],
)
def test_equality_allows_what_the_server_may_change(equality: Equality, left: Any, right: Any, expected: bool) -> None:
    assert equality.are_equal([left], [right]) is expected
    assert equality.are_equal([right], [left]) is expected


@pytest.mark.parametrize("equality", EQUALITIES, ids=lambda each: each.kind.value)
@pytest.mark.parametrize("data_type", SCALARS)
@settings(max_examples=10)
@given(data=st.data())
def test_equality_of_every_kind_accepts_every_data_type(
    equality: Equality, data_type: DataType, data: st.DataObject
) -> None:
    value, other = data.draw(values_of(data_type)), data.draw(values_of(data_type))
    assert equality.key(value) == equality.key(value)
    assert equality.are_equal([value, other], [other, value])


@given(st.text(st.characters(max_codepoint=127), max_size=20))
@settings(max_examples=200)
def test_ascii_keys_and_anchors_equal_those_of_the_general_code(text: str) -> None:
    """A character outside of ASCII, which neither form changes, takes the general path."""
    assert fold_key(f"{text}\u4e00") == fold_key(f"{text}x")[:-1] + "\u4e00"
    assert normalize_anchor(f"{text}\u4e00") == normalize_anchor(f"{text}x")[:-1] + "\u4e00"
