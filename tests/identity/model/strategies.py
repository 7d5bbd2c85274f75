"""Hypothesis strategies for values, schemas, objects and changes."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from tenuto_identity.model.objects import ConnectorObject, Reference
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.sync.pending_exports import Change, ChangeOp
from tenuto_identity.model.values import (
    MAX_INTEGER,
    MIN_INTEGER,
    DataType,
    Equality,
    EqualityKind,
    Value,
    canonical_value,
    canonical_values,
)

NOW = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
SCALARS = [each for each in DataType if each is not DataType.REFERENCE]
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)

_PYTHON: dict[DataType, st.SearchStrategy[Any]] = {
    DataType.TEXT: texts,
    DataType.INTEGER: st.integers(MIN_INTEGER, MAX_INTEGER),
    DataType.DECIMAL: st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=6
    ),
    DataType.BOOLEAN: st.booleans(),
    DataType.DATETIME: st.datetimes(timezones=st.just(UTC)),
    DataType.DATE: st.dates(),
    DataType.BINARY: st.binary(max_size=20),
    DataType.GUID: st.uuids().map(str),
}


def values_of(data_type: DataType) -> st.SearchStrategy[Value]:
    """Values in their stored form."""
    return _PYTHON[data_type].map(lambda value: canonical_value(value, data_type))


def documents(attributes: dict[str, Attribute]) -> st.SearchStrategy[dict[str, list[Value]]]:
    """Documents that fit attributes; each attribute may be absent."""
    parts = {
        name: st.lists(values_of(attribute.type), max_size=4 if attribute.multi else 1).map(canonical_values)
        for name, attribute in attributes.items()
        if not attribute.is_reference
    }
    return st.fixed_dictionaries(parts).map(lambda found: {name: each for name, each in found.items() if each})


def attributes_of_every_type() -> dict[str, Attribute]:
    """One single-valued and one multi-valued attribute of each type."""
    found: dict[str, Attribute] = {}
    for data_type in DataType:
        to = "thing" if data_type is DataType.REFERENCE else None
        found[f"{data_type.value}_one"] = Attribute(f"{data_type.value}_one", data_type, to=to)
        found[f"{data_type.value}_many"] = Attribute(f"{data_type.value}_many", data_type, multi=True, to=to)
    return found


EVERY_TYPE = ObjectType("thing", "text_one", attributes_of_every_type())


def reference_sets() -> st.SearchStrategy[dict[str, frozenset[int]]]:
    """References by metaverse id, for the reference attributes of `EVERY_TYPE`."""
    return st.fixed_dictionaries(
        {
            "reference_one": st.frozensets(st.integers(1, 5), max_size=1),
            "reference_many": st.frozensets(st.integers(1, 5), max_size=4),
        }
    ).map(lambda found: {name: each for name, each in found.items() if each})


def connector_object(
    attributes: dict[str, list[Value]], references: dict[str, frozenset[int]], **more: Any
) -> ConnectorObject:
    """An object of `EVERY_TYPE` whose references are resolved."""
    return ConnectorObject(
        id=more.pop("id", 7),
        system=more.pop("system", "T"),
        type="thing",
        anchor=more.pop("anchor", "a7"),
        attributes=attributes,
        references={
            name: tuple(Reference(f"raw{each}", each + 100, each) for each in sorted(ids))
            for name, ids in references.items()
        },
        **more,
    )


@st.composite
def changes(draw: st.DrawFn, attribute: str = "text_many") -> list[Change]:
    """A list of changes of one multi-valued attribute, as merging sees them."""
    found: list[Change] = []
    for _ in range(draw(st.integers(0, 3))):
        op = draw(st.sampled_from([ChangeOp.SET, ChangeOp.ADD, ChangeOp.REMOVE, ChangeOp.CLEAR]))
        values = tuple(draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)))
        found.append(Change(attribute, op, () if op is ChangeOp.CLEAR else values))
    return found


EQUALITIES = [
    Equality(),
    Equality(EqualityKind.IGNORE_CASE),
    Equality(EqualityKind.DN),
    Equality(EqualityKind.NUMBER),
    Equality(EqualityKind.INSTANT, precision_seconds=60),
    Equality(EqualityKind.MASK, bits=0x2),
    Equality(EqualityKind.WRITE_ONLY),
]


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
