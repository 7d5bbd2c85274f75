"""What a directory has: its schema, partitions and containers."""

from __future__ import annotations

from collections.abc import Iterable

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.ldap import filters
from tenuto_identity.connectors.ldap.directory import Directory, attribute_values
from tenuto_identity.connectors.ldap.protocol.client import Scope, Search
from tenuto_identity.connectors.ldap.schema_parser import AttributeType, DirectorySchema
from tenuto_identity.model import dn
from tenuto_identity.model.schema import (
    RESERVED_NAMES,
    Attribute,
    Container,
    ObjectType,
    Schema,
    Writable,
    is_credential,
)
from tenuto_identity.model.values import DataType, Equality, EqualityKind

CONTAINER_CLASSES = ("organizationalUnit", "organization", "locality", "container", "domain", "dcObject", "country")
_OPERATIONAL = {
    "createTimestamp": DataType.DATETIME,
    "modifyTimestamp": DataType.DATETIME,
    "memberOf": DataType.REFERENCE,
}


def load_schema(directory: Directory) -> DirectorySchema:
    """Return the schema of a directory; empty if the account may not read it."""
    where = directory.root_dse.first("subschemaSubentry")
    if not where:
        return DirectorySchema((), ())
    search = Search(where, Scope.BASE, "(objectClass=*)", ("attributeTypes", "objectClasses"))
    reply = directory.request(directory.limited(search))
    if reply.code or not reply.entries:
        return DirectorySchema((), ())
    (entry,) = reply.entries
    return DirectorySchema(
        (each.decode("utf-8", "replace") for each in attribute_values(entry, "attributeTypes")),
        (each.decode("utf-8", "replace") for each in attribute_values(entry, "objectClasses")),
    )


def check_selection(schema: DirectorySchema, types: Iterable[ObjectType], directory: Directory) -> None:
    """Raise `ConnectorError` if a selected class or attribute is not in the schema: its values would look cleared."""
    if schema.object_class("top") is None:
        return  # the schema cannot be read
    for each in types:
        class_name = directory.settings.object_class(each.name)
        if schema.object_class(class_name) is None:
            raise ConnectorError(
                "missing_class",
                f"the directory has no object class {class_name!r}",
                remedy="name the class as the schema does, or set settings.types.NAME.object_class",
            )
        missing = [name for name in each.attributes if schema.attribute(name) is None]
        if missing:
            raise ConnectorError(
                "missing_attribute",
                f"the directory has no attribute {', '.join(missing)} of the type {each.name}",
                remedy="remove the attribute from the type, or correct its name",
            )


def discover(directory: Directory, selected: Iterable[ObjectType]) -> Schema:
    """Return the object types, partitions and containers of a directory."""
    schema = load_schema(directory)
    known = {each.name: each for each in selected}
    types = {each.name: _object_type(directory, schema, each.name, None) for each in schema.structural_classes()}
    for name, each in known.items():
        class_name = directory.settings.object_class(name)
        if schema.object_class(class_name) is not None:
            types[name] = _object_type(directory, schema, class_name, each)
    readable = tuple(each for each in directory.bases if directory.probe(each, ("1.1",)) is not None)
    return Schema(
        types=tuple(types[name] for name in sorted(types, key=str.lower)),
        partitions=readable,
        containers=_containers(directory, readable),
    )


def _object_type(
    directory: Directory, schema: DirectorySchema, class_name: str, selected: ObjectType | None
) -> ObjectType:
    """Return a type with the attributes of its class, spelled as in the definition if they are selected."""
    spelled = {}
    for name in selected.attributes if selected else ():
        found = schema.attribute(name)
        if found is not None:
            spelled[found.name] = name
    anchor = directory.anchor
    attributes: dict[str, Attribute] = {}
    allowed = schema.attributes_of(class_name)
    chosen = [found for name in spelled if (found := schema.attribute(name))]
    operational = [found for name in _OPERATIONAL if (found := schema.attribute(name))]
    for each in (*allowed, *operational, *chosen):
        name = spelled.get(each.name, each.name)
        if name not in attributes and name not in RESERVED_NAMES and not is_credential(name):
            attributes[name] = _attribute(each, name)
    attributes.setdefault(anchor, Attribute(anchor, DataType.GUID, writable=Writable.NO))
    return ObjectType(
        name=selected.name if selected else class_name,
        anchor=selected.anchor if selected and selected.anchor in attributes else anchor,
        attributes=attributes,
        address_is_dn=True,
    )


def _attribute(found: AttributeType, name: str) -> Attribute:
    data_type = found.data_type
    if name.lower() in ("entryuuid", "objectguid"):
        data_type = DataType.GUID
    equality = Equality()
    if data_type is DataType.REFERENCE:
        equality = Equality(EqualityKind.DN)
    elif data_type is DataType.DATETIME:
        equality = Equality(EqualityKind.INSTANT)
    elif data_type is DataType.TEXT and found.ignores_case:
        equality = Equality(EqualityKind.IGNORE_CASE)
    return Attribute(
        name,
        _OPERATIONAL.get(found.name, data_type),
        multi=not found.is_single,
        writable=Writable.YES if found.is_writable else Writable.NO,
        equality=equality,
    )


def _containers(directory: Directory, bases: Iterable[str]) -> tuple[Container, ...]:
    found: list[Container] = []
    condition = filters.any_of(*(filters.equal("objectClass", each) for each in CONTAINER_CLASSES))
    for base in bases:
        for page in directory.search_pages(Search(base, Scope.SUBTREE, condition)):
            for entry in page:
                parent = dn.parent(entry.dn)
                name = dn.parse(entry.dn)[0][0].value if entry.dn else ""
                is_top = dn.normalize(entry.dn) == dn.normalize(base)
                found.append(Container(entry.dn, name, None if is_top else parent))
    return tuple(sorted(found, key=lambda each: (dn.depth(each.address), dn.normalize(each.address))))
