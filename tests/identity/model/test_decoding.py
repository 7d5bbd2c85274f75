"""Decoding of cells, fingerprints and addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto_identity.model.decoding import (
    Decoding,
    address_key,
    decode_key,
    decode_object,
    fingerprint,
)
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.values import DataType, Value
from tests.identity.model.strategies import EVERY_TYPE, attributes_of_every_type, documents

KEY = decode_key([EVERY_TYPE], Decoding())


def cells(document: dict[str, list[Value]]) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(("true" if value else "false") if isinstance(value, bool) else str(value) for value in values)
        for name, values in document.items()
    }


@given(documents(attributes_of_every_type()))
@settings(max_examples=60)
def test_every_data_type_is_decoded_from_its_text(document: Any) -> None:
    blank = {name for name, values in document.items() if any(not str(value).strip() for value in values)}
    expected = {name: values for name, values in document.items() if name not in blank}
    found = decode_object(EVERY_TYPE, cells(expected), Decoding())
    assert not found.errors
    assert found.attributes == expected


@pytest.mark.parametrize("text", ["plain", " ", "", "\t", "a b", "é", "x" * 2000, "a\u200bb"])
def test_text_is_decoded_alike_alone_and_with_others(text: str) -> None:
    alone = decode_object(EVERY_TYPE, {"text_many": (text,)}, Decoding()).attributes.get("text_many", [])
    both = decode_object(EVERY_TYPE, {"text_many": (text, "other")}, Decoding()).attributes["text_many"]
    assert sorted([*alone, "other"]) == both


@pytest.mark.parametrize("text", ["E0001", " ", "", "cn=a b", "é", "x" * 2000, "a\u200bb"])
def test_reference_is_decoded_alike_alone_and_with_others(text: str) -> None:
    """A second value makes the short path for single values impossible."""
    alone = decode_object(EVERY_TYPE, {"reference_many": (text,)}, Decoding()).references.get("reference_many", ())
    both = decode_object(EVERY_TYPE, {"reference_many": (text, "other")}, Decoding()).references["reference_many"]
    assert {*alone, "other"} == set(both)


UNUSUAL_DATES = ("2026-02-30", " 2026-01-31 ", "20260131", " ", "")


@given(st.one_of(st.dates().map(str), st.text(max_size=12), st.sampled_from(UNUSUAL_DATES)))
def test_date_is_decoded_alike_with_and_without_formats(text: str) -> None:
    cells = {"date_one": (text,)}
    known = decode_object(EVERY_TYPE, cells, Decoding())
    general = decode_object(EVERY_TYPE, cells, Decoding(date_formats=("never: %Y",)))
    assert (known.attributes, bool(known.errors)) == (general.attributes, bool(general.errors))


def test_references_are_raw_and_outside_of_the_document() -> None:
    found = decode_object(EVERY_TYPE, {"reference_many": ("b", "a", "a"), "text_one": ("x",)}, Decoding())
    assert found.attributes == {"text_one": ["x"]}
    assert found.references == {"reference_many": ("a", "b")}


def test_bad_value_keeps_the_old_value_and_the_other_attributes() -> None:
    raw = {"date_one": ("soon",), "text_one": ("x",), "integer_one": ("1", "2")}
    found = decode_object(EVERY_TYPE, raw, Decoding(), old={"date_one": ["2020-01-01"]})
    assert found.attributes == {"date_one": ["2020-01-01"], "text_one": ["x"]}
    assert [error.attribute for error in found.errors] == ["integer_one", "date_one"]
    assert "soon" in found.errors[1].message
    assert not found.is_rejected
    assert decode_object(EVERY_TYPE, raw, Decoding(rejects_bad_values=True)).is_rejected


def test_numbers_and_dates_follow_the_locale() -> None:
    german = Decoding(decimal_separator=",", thousands_separator=".", date_formats=("%d.%m.%Y",))
    raw = {"decimal_one": ("1.234,50",), "date_one": ("31.12.2026",), "datetime_one": ("2026-01-01T00:00:00Z",)}
    assert decode_object(EVERY_TYPE, raw, german).attributes == {
        "decimal_one": ["1234.5"],
        "datetime_one": ["2026-01-01T00:00:00Z"],
        "date_one": ["2026-12-31"],
    }


def test_bytes_are_decoded_by_type() -> None:
    guid = bytes.fromhex("579ebfc98516894cbafbff5af830be8a")
    found = decode_object(
        EVERY_TYPE, {"guid_one": (guid,), "binary_one": (b"\x00",), "text_one": (b"\xc3\xa9",)}, Decoding()
    )
    assert found.attributes["guid_one"] == ["c9bf9e57-1685-4c89-bafb-ff5af830be8a"]
    assert found.attributes["binary_one"] == ["AA=="]
    assert found.attributes["text_one"] == ["é"]
    assert decode_object(EVERY_TYPE, {"text_one": (b"\xff",)}, Decoding()).errors


def test_fingerprint_covers_every_part() -> None:
    base = fingerprint(KEY, "p", "a", "c", {"x": ("1",)})
    assert base == fingerprint(KEY, "p", "a", "c", {"x": ("1",)})
    assert len(base) == 16
    others = [
        fingerprint(KEY, "q", "a", "c", {"x": ("1",)}),
        fingerprint(KEY, "p", "b", "c", {"x": ("1",)}),
        fingerprint(KEY, "p", "a", "d", {"x": ("1",)}),
        fingerprint(KEY, "p", "a", "c", {"x": ("2",)}),
        fingerprint(KEY, "p", "a", "c", {"x": ("1", "")}),
        fingerprint(KEY, "p", "a", "c", {"x": ("1",), "y": ("",)}),
        fingerprint(b"other", "p", "a", "c", {"x": ("1",)}),
    ]
    assert base not in others
    assert len(set(others)) == len(others)


@pytest.mark.parametrize(
    "changed",
    [
        Decoding(decimal_separator=","),
        Decoding(date_formats=("%d",)),
        Decoding(rejects_bad_values=True),
        Decoding(source=(("multi_value_delimiter", ";"),)),
    ],
)
def test_decode_key_changes_with_every_setting_that_matters(changed: Decoding) -> None:
    assert decode_key([EVERY_TYPE], changed) != KEY
    integer = replace(
        EVERY_TYPE, attributes={**EVERY_TYPE.attributes, "text_one": Attribute("text_one", DataType.INTEGER)}
    )
    assert decode_key([integer], Decoding()) != KEY


def test_address_key_is_a_normalised_dn_or_folded_text() -> None:
    directory = ObjectType("user", "id", {}, address_is_dn=True)
    assert address_key("CN=Ada , OU=X", directory) == address_key("cn=ada,ou=x", directory)
    assert address_key(" ADA ", replace(directory, address_is_dn=False)) == "ada"
