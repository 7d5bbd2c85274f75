"""Attributes of a definition as places in a resource.

The name of an attribute is its SCIM path: ``userName``, ``name.familyName``, ``emails`` (the values of the list),
``emails[type eq "work"].value`` (one element), ``members``, ``URN:department`` (an attribute of an extension).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.scim.client import Json
from tenuto_identity.connectors.scim.resource_schema import ResourceType, SchemaAttribute
from tenuto_identity.model.schema import Attribute
from tenuto_identity.model.values import DataType, Value

_PATH: Final = re.compile(
    r"(?:(?P<schema>urn:.+):)?(?P<name>[A-Za-z$][\w$-]*)"
    r"(?:\[\s*(?P<key>[A-Za-z$][\w$-]*)\s+eq\s+(?P<wanted>\"(?:[^\"\\]|\\.)*\")\s*\])?"
    r"(?:\.(?P<sub>[A-Za-z$][\w$-]*))?",
    re.IGNORECASE,
)
_VALUE: Final = "value"


class Shape(Enum):
    """Where in a resource the values of a path are."""

    SINGLE = "single"
    """``title``"""
    PART = "part"
    """A sub-attribute of a complex attribute: ``name.familyName``"""
    LIST = "list"
    """Plain values: ``schemas``"""
    ELEMENTS = "elements"
    """A sub-attribute of each element of a list: ``emails``, which is ``emails.value``"""
    CHOSEN = "chosen"
    """A sub-attribute of one element: ``emails[type eq "work"].value``"""


@dataclass(frozen=True, slots=True)
class Place:
    """A path that a resource type has."""

    schema: str
    """URN of the extension; "" for the core schema."""
    name: str
    shape: Shape
    leaf: SchemaAttribute
    """The attribute that has the value."""
    owner: SchemaAttribute
    """The attribute ``name``: the leaf itself, or the complex attribute around it."""
    key: str = ""
    """For ``CHOSEN``: sub-attribute that chooses the element, and its value."""
    wanted: str = ""

    @property
    def is_list(self) -> bool:
        return self.shape in (Shape.LIST, Shape.ELEMENTS)

    @property
    def is_writable(self) -> bool:
        """Whether values can be written: elements are added and removed by their ``value`` only."""
        if self.owner.mutability == "readOnly" or self.leaf.mutability == "readOnly":
            return False
        return self.shape is not Shape.ELEMENTS or self.leaf.name == _VALUE

    @property
    def owner_path(self) -> str:
        """Path of the attribute, without element and sub-attribute."""
        return f"{self.schema}:{self.name}" if self.schema else self.name

    @property
    def element_path(self) -> str:
        """Path of the chosen element."""
        return f"{self.owner_path}[{self.key} eq {quote_value(self.wanted)}]"

    @property
    def path(self) -> str:
        """Path of the value."""
        match self.shape:
            case Shape.PART:
                return f"{self.owner_path}.{self.leaf.name}"
            case Shape.CHOSEN:
                return f"{self.element_path}.{self.leaf.name}"
            case _:
                return self.owner_path

    @property
    def is_pointer(self) -> bool:
        """Whether the value stands for the whole complex attribute, as in ``manager.value``."""
        return self.shape is Shape.PART and self.leaf.name == _VALUE

    # --- reading ----------------------------------------------------------------------------------------------------

    def values(self, resource: Json) -> list[Any]:
        """Return the values in a resource."""
        holder = _get(resource, self.schema) if self.schema else resource
        found = _get(holder, self.name) if isinstance(holder, dict) else None
        if found is None:
            return []
        match self.shape:
            case Shape.SINGLE | Shape.LIST:
                return _present(found if isinstance(found, list) else [found])
            case Shape.PART:
                return _present([_part(found, self.leaf.name)])
            case Shape.ELEMENTS:
                elements = found if isinstance(found, list) else [found]
                return _present(_part(each, self.leaf.name) for each in elements)
            case Shape.CHOSEN:
                return _present(_part(each, self.leaf.name) for each in self._chosen(found)[:1])

    def has_element(self, resource: Json) -> bool:
        """Return whether the chosen element exists."""
        holder = _get(resource, self.schema) if self.schema else resource
        return bool(self._chosen(_get(holder, self.name))) if isinstance(holder, dict) else False

    def _chosen(self, elements: Any) -> list[Json]:
        wanted = self.wanted.casefold()
        return [
            each
            for each in (elements if isinstance(elements, list) else [])
            if isinstance(each, dict) and str(_get(each, self.key) or "").casefold() == wanted
        ]

    # --- writing into a whole resource, for POST and PUT --------------------------------------------------------------

    def put(self, resource: Json, values: Iterable[Any]) -> None:
        """Set the values in a resource; without values, remove the attribute. Other parts stay as they are."""
        found = list(values)
        holder = _child(resource, self.schema, create=bool(found)) if self.schema else resource
        if holder is None:
            return
        name = _spelled(holder, self.name)
        old = holder.get(name)
        match self.shape:
            case Shape.SINGLE:
                new: Any = found[0] if found else None
            case Shape.LIST:
                new = found
            case Shape.PART:
                new = dict(old) if isinstance(old, dict) else {}
                new.pop(_spelled(new, self.leaf.name), None)
                if self.is_pointer:
                    new = {}
                if found:
                    new[self.leaf.name] = found[0]
            case Shape.ELEMENTS:
                known = {str(_part(each, _VALUE)): each for each in old} if isinstance(old, list) else {}
                new = [known.get(str(each), {_VALUE: each}) for each in found]
            case Shape.CHOSEN:
                new = self._with_element(old if isinstance(old, list) else [], found)
        if new is None or new in ([], {}):
            holder.pop(name, None)
        else:
            holder[name] = new

    def _with_element(self, old: list[Any], values: list[Any]) -> list[Any]:
        chosen = self._chosen(old)
        if not values:
            return [each for each in old if each not in chosen]
        if not chosen:
            return [*old, self.new_element(values[0])]
        return [{**each, self.leaf.name: values[0]} if each is chosen[0] else each for each in old]

    def new_element(self, value: Any) -> Json:
        """Return a new element for a value."""
        return {self.key: self.wanted, self.leaf.name: value} if self.shape is Shape.CHOSEN else {_VALUE: value}


def resolve(name: str, resource_type: ResourceType) -> Place:
    """Return the place of an attribute; raise `ConnectorError` if the resource type does not have it."""
    found = _PATH.fullmatch(name)
    if found is None:
        raise _unknown(name, resource_type, 'write NAME, NAME.PART, NAME[type eq "work"].PART or URN:NAME')
    schema = found["schema"] or ""
    schema = "" if schema.lower() == resource_type.schema.lower() else schema
    schema = next((each for each in resource_type.extensions if each.lower() == schema.lower()), schema)
    owner = resource_type.find(schema, found["name"])
    if owner is None:
        raise _unknown(name, resource_type, "remove the attribute from the type, or correct its name")
    if owner.type != "complex":
        if found["sub"] or found["key"]:
            raise _unknown(name, resource_type, f"{owner.name} has no parts; write {owner.name}")
        return Place(schema, owner.name, Shape.LIST if owner.multi else Shape.SINGLE, owner, owner)
    leaf = owner.sub(found["sub"] or _VALUE)
    if leaf is None:
        parts = ", ".join(f"{owner.name}.{each.name}" for each in owner.sub_attributes)
        raise _unknown(name, resource_type, f"select one of its parts: {parts}")
    if found["key"]:
        if not owner.multi:
            raise _unknown(name, resource_type, f"{owner.name} is not a list; write {owner.name}.{leaf.name}")
        return Place(schema, owner.name, Shape.CHOSEN, leaf, owner, found["key"], json.loads(found["wanted"]))
    return Place(schema, owner.name, Shape.ELEMENTS if owner.multi else Shape.PART, leaf, owner)


def _unknown(name: str, resource_type: ResourceType, remedy: str) -> ConnectorError:
    return ConnectorError(
        "missing_attribute", f"the resource type {resource_type.name} has no attribute {name!r}", remedy=remedy
    )


# --- values ---------------------------------------------------------------------------------------------------------


def quote_value(value: Any) -> str:
    """Return a value as filters and paths of SCIM write it. The only place that builds them from data."""
    return json.dumps(value, ensure_ascii=False)


def to_cell(value: Any) -> str:
    """Return a JSON value as a cell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def to_json(value: Value, attribute: Attribute | None) -> Any:
    """Return a stored value as JSON."""
    if attribute is not None and attribute.type is DataType.DECIMAL:
        number = float(str(value))
        return int(number) if number.is_integer() else number
    return value


def _present(values: Iterable[Any]) -> list[Any]:
    return [each for each in values if each is not None and each != ""]


def _part(element: Any, name: str) -> Any:
    """Return a sub-attribute. Some servers deliver the value alone, or a reference without its ``value``."""
    if not isinstance(element, dict):
        return element if name == _VALUE else None
    found = _get(element, name)
    if found is None and name == _VALUE and isinstance(link := _get(element, "$ref"), str):
        return link.rstrip("/").rpartition("/")[2]
    return found


def _get(holder: Mapping[str, Any], name: str) -> Any:
    """Return a member, whatever the case of its name."""
    if name in holder:
        return holder[name]
    folded = name.lower()
    return next((value for key, value in holder.items() if key.lower() == folded), None)


def _spelled(holder: Mapping[str, Any], name: str) -> str:
    folded = name.lower()
    return name if name in holder else next((key for key in holder if key.lower() == folded), name)


def _child(resource: Json, name: str, *, create: bool) -> Json | None:
    key = _spelled(resource, name)
    found = resource.get(key)
    if isinstance(found, dict):
        return found
    if not create:
        return None
    made: Json = {}
    resource[key] = made
    return made
