"""Variables of expressions: the attributes of a connector space object or of a metaverse object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenuto_identity.model.objects import ConnectorObject, MetaverseObject
from tenuto_identity.model.rules.expression_values import (
    Kind,
    Variables,
)
from tenuto_identity.model.schema import ADDRESS, Attribute, MetaverseType, ObjectType
from tenuto_identity.model.values import DataType, Document, python_value

_KINDS = {
    DataType.TEXT: Kind.TEXT,
    DataType.INTEGER: Kind.NUMBER,
    DataType.DECIMAL: Kind.NUMBER,
    DataType.BOOLEAN: Kind.BOOLEAN,
    DataType.DATETIME: Kind.INSTANT,
    DataType.DATE: Kind.INSTANT,
    DataType.BINARY: Kind.BINARY,
    DataType.GUID: Kind.TEXT,
}


def kind_of(attribute: Attribute) -> Kind:
    """Return the type of an attribute in expressions."""
    return Kind.LIST if attribute.multi else _KINDS[attribute.type]


def object_kinds(object_type: ObjectType) -> dict[str, Kind]:
    """Return the variables of expressions of in rules. References are mapped, not computed."""
    return {**_attribute_kinds(object_type.attributes), ADDRESS: Kind.TEXT, "system": Kind.TEXT}


def metaverse_kinds(metaverse_type: MetaverseType) -> dict[str, Kind]:
    """Return the variables of expressions of out rules."""
    return {**_attribute_kinds(metaverse_type.attributes), "system": Kind.TEXT, "deletion_scheduled": Kind.BOOLEAN}


def object_variables(object: ConnectorObject, object_type: ObjectType) -> Variables:
    """Return the variables of an object for in rules."""
    known = {ADDRESS: object.address or None, "system": object.system}
    return _variables(object.attributes, object_type.attributes, known)


def metaverse_variables(metaverse: MetaverseObject, metaverse_type: MetaverseType, system: str) -> Variables:
    """Return the variables of a metaverse object for the out rules of a system."""
    known = {"system": system, "deletion_scheduled": metaverse.deletion_scheduled_at is not None}
    return _variables(metaverse.attributes, metaverse_type.attributes, known)


def with_value(variables: Variables, value: Any) -> Variables:
    """Return the variables with ``value``, for mappings with ``for_each``."""
    return Variables(variables.__getitem__, {"value": value})


def _attribute_kinds(attributes: Mapping[str, Attribute]) -> dict[str, Kind]:
    return {name: kind_of(attribute) for name, attribute in attributes.items() if not attribute.is_reference}


def _variables(document: Document, attributes: Mapping[str, Attribute], known: Mapping[str, Any]) -> Variables:
    def load(name: str) -> Any:
        values = document.get(name)
        attribute = attributes.get(name)
        if not values or attribute is None:
            return None
        if attribute.multi:
            return [python_value(value, attribute.type) for value in values]
        return python_value(values[0], attribute.type)

    return Variables(load, known)
