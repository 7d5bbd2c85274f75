"""The schema of a SCIM service as the schema of a connected system, and the check of a selection against it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.scim.paths import Place, resolve
from tenuto_identity.connectors.scim.resource_schema import ResourceType, SchemaAttribute, ServiceSchema
from tenuto_identity.connectors.scim.settings import ScimSettings
from tenuto_identity.model.schema import RESERVED_NAMES, Attribute, ObjectType, Schema, Writable, is_credential
from tenuto_identity.model.values import DataType, Equality, EqualityKind

ANCHOR = "id"
_TYPES = {
    "boolean": DataType.BOOLEAN,
    "decimal": DataType.DECIMAL,
    "integer": DataType.INTEGER,
    "dateTime": DataType.DATETIME,
    "binary": DataType.BINARY,
}
_ADDRESSES = ("userName", "displayName", "externalId")
"""Attributes that are the address of an object, the first one that the resource type has."""


def address_name(object_type: ObjectType, resource_type: ResourceType) -> str:
    """Return the attribute that is the address of an object."""
    if object_type.address is not None:
        return object_type.address
    return next((each for each in _ADDRESSES if resource_type.find("", each) is not None), ANCHOR)


def check_selection(schema: ServiceSchema, types: Iterable[ObjectType], settings: ScimSettings) -> None:
    """Raise `ConnectorError` if the service does not have a selected type or attribute, or has it in another form."""
    for object_type in types:
        resource_type = schema.resource_type(settings.resource_name(object_type.name))
        if object_type.anchor != ANCHOR:
            raise ConnectorError(
                "anchor",
                f"the type {object_type.name} has the anchor {object_type.anchor}",
                remedy=f"choose the anchor {ANCHOR}: it is the only attribute that a server never changes",
            )
        for name, attribute in object_type.attributes.items():
            place = resolve(name, resource_type)
            if not place.leaf.is_returned or place.leaf.mutability == "writeOnly":
                raise ConnectorError(
                    "missing_attribute",
                    f"the server never returns the attribute {name} of {resource_type.name}",
                    remedy="remove the attribute from the type",
                )
            if attribute.multi and not place.is_list:
                raise ConnectorError(
                    "attribute_form",
                    f"the attribute {name} of {resource_type.name} has one value, and the type says multi",
                    remedy=f"remove multi from {name}",
                )


def discover(schema: ServiceSchema, selected: Iterable[ObjectType], settings: ScimSettings) -> Schema:
    """Return the resource types as object types; selected ones with the names of the definition."""
    names: dict[str, str] = {}
    by_resource: dict[str, list[ObjectType | None]] = {}
    for each in selected:
        resource = settings.resource_name(each.name).lower()
        by_resource.setdefault(resource, []).append(each)
        names.setdefault(resource, each.name)
    return Schema(
        tuple(
            _object_type(resource_type, chosen, names)
            for resource_type in schema.types
            for chosen in by_resource.get(resource_type.name.lower(), [None])
        )
    )


def _object_type(resource_type: ResourceType, selected: ObjectType | None, names: dict[str, str]) -> ObjectType:
    attributes: dict[str, Attribute] = {}
    chosen = tuple(selected.attributes) if selected else ()
    spelled = {name.lower(): name for name in chosen}
    for path in (*_paths(resource_type), *chosen):
        name = spelled.get(path.lower(), path)
        if name in attributes or name in RESERVED_NAMES or is_credential(name):
            continue
        try:
            place = resolve(name, resource_type)
        except ConnectorError:
            continue  # a selected attribute that the service does not have any more
        if place.leaf.is_returned and place.leaf.mutability != "writeOnly":
            attributes[name] = _attribute(name, place, names)
    empty = ObjectType(resource_type.name, ANCHOR)
    address = address_name(selected or empty, resource_type)
    return ObjectType(
        name=selected.name if selected else resource_type.name,
        anchor=ANCHOR,
        attributes=attributes,
        address=address if address in attributes else None,
    )


def _paths(resource_type: ResourceType) -> Iterator[str]:
    """Yield a path for each value that the resource type has."""
    for (schema, _), attribute in resource_type.attributes.items():
        path = f"{schema}:{attribute.name}" if schema else attribute.name
        if attribute.type != "complex":
            yield path
            continue
        if attribute.sub("value") is not None:
            yield path
        if not attribute.multi:
            yield from (
                f"{path}.{each.name}" for each in attribute.sub_attributes if each.name not in ("value", "$ref")
            )


def _attribute(name: str, place: Place, names: dict[str, str]) -> Attribute:
    target = _target(place.owner, names) if place.leaf.name == "value" else None
    data_type = DataType.REFERENCE if target else _TYPES.get(place.leaf.type, DataType.TEXT)
    equality = Equality()
    if data_type is DataType.TEXT and not place.leaf.case_exact:
        equality = Equality(EqualityKind.IGNORE_CASE)
    elif data_type is DataType.DATETIME:
        equality = Equality(EqualityKind.INSTANT)
    elif data_type is DataType.DECIMAL:
        equality = Equality(EqualityKind.NUMBER)
    writable = Writable.YES if place.is_writable else Writable.NO
    if (
        writable is Writable.YES
        and "immutable" in (place.owner.mutability, place.leaf.mutability)
        and not place.is_list
    ):
        writable = Writable.ON_CREATE
    return Attribute(name, data_type, multi=place.is_list, to=target, writable=writable, equality=equality)


def _target(owner: SchemaAttribute, names: dict[str, str]) -> str | None:
    """Return the object type that an attribute refers to; None if it holds no ids of resources."""
    link = owner.sub("$ref")
    types = [each for each in (link.reference_types if link else ()) if each not in ("external", "uri")]
    return names.get(types[0].lower(), types[0]) if types else None
