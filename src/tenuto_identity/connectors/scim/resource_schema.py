"""What a SCIM service offers: its features, resource types and attributes, read from its discovery endpoints.

A service without ``/ResourceTypes`` and ``/Schemas`` is taken to have the users and groups of RFC 7643.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.scim.client import Json, ScimClient

CORE_USER: Final = "urn:ietf:params:scim:schemas:core:2.0:User"
CORE_GROUP: Final = "urn:ietf:params:scim:schemas:core:2.0:Group"
ENTERPRISE_USER: Final = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
LIST_RESPONSE: Final = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
DEFAULT_BULK_OPERATIONS: Final = 100
DEFAULT_BULK_BYTES: Final = 100_000
"""Limits of a bulk request, if the server does not say."""


@dataclass(frozen=True, slots=True)
class SchemaAttribute:
    """An attribute, or a sub-attribute of a complex one."""

    name: str
    type: str = "string"
    """``string``, ``boolean``, ``decimal``, ``integer``, ``dateTime``, ``binary``, ``reference`` or ``complex``."""
    multi: bool = False
    case_exact: bool = False
    mutability: str = "readWrite"
    """``readOnly``, ``readWrite``, ``immutable`` or ``writeOnly``."""
    is_returned: bool = True
    is_unique: bool = False
    """The server refuses a second resource with the same value."""
    reference_types: tuple[str, ...] = ()
    """Resource types that a reference may name."""
    sub_attributes: tuple[SchemaAttribute, ...] = ()

    def sub(self, name: str) -> SchemaAttribute | None:
        """Return a sub-attribute, whatever the case of its name."""
        return next((each for each in self.sub_attributes if each.name.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A resource type with the attributes of its schema and of its extensions."""

    name: str
    endpoint: str
    schema: str
    attributes: Mapping[tuple[str, str], SchemaAttribute]
    """(Schema URN or "" for the core schema, name in lower case) → attribute."""
    extensions: tuple[str, ...] = ()

    def find(self, schema: str, name: str) -> SchemaAttribute | None:
        return self.attributes.get((schema, name.lower()))


@dataclass(frozen=True, slots=True)
class Features:
    """What the service supports."""

    patch: bool = True
    filter: bool = True
    sort: bool = False
    etag: bool = False
    max_results: int | None = None
    """Largest page of a filtered list."""
    bulk: bool = False
    max_operations: int = DEFAULT_BULK_OPERATIONS
    """Operations in one bulk request, and its size."""
    max_payload_bytes: int = DEFAULT_BULK_BYTES


@dataclass(frozen=True, slots=True)
class ServiceSchema:
    """Features and resource types of a service."""

    features: Features
    types: tuple[ResourceType, ...]

    def resource_type(self, name: str) -> ResourceType:
        """Return a resource type by its name; raise `ConnectorError` if the service has none."""
        found = next((each for each in self.types if each.name.lower() == name.lower()), None)
        if found is None:
            known = ", ".join(each.name for each in self.types)
            raise ConnectorError(
                "missing_class",
                f"the service has no resource type {name!r}",
                remedy=f"name the type as the service does ({known}), or set settings.types.NAME.resource",
            )
        return found


def load_schema(client: ScimClient) -> ServiceSchema:
    """Read what the service offers."""
    features = _load_features(client)
    listed = _load_list(client, "/ResourceTypes")
    described = _load_list(client, "/Schemas")
    schemas = {
        str(each["id"]): tuple(_parse_attribute(part) for part in _objects(each.get("attributes")))
        for each in described or ()
        if each.get("id")
    }
    for urn, attributes in _BUILT_IN.items():
        schemas.setdefault(urn, attributes)
    types = _DEFAULT_TYPES if listed is None else listed
    return ServiceSchema(features, tuple(_resource_type(each, schemas) for each in types if each.get("endpoint")))


def _load_features(client: ScimClient) -> Features:
    answer = client.get("/ServiceProviderConfig")
    found = answer.body
    if answer.status == 404 or found is None:
        if client.get("/ResourceTypes").status == 404 and client.get("/Users", {"count": 0}).status == 404:
            raise ConnectorError(
                "missing_service",
                f"there is no SCIM service at {client.settings.url!r}",
                remedy="check the setting url; many services end with /scim/v2",
            )
        return Features()
    maximum = _number(_feature(found, "filter").get("maxResults"))
    bulk = _feature(found, "bulk")
    return Features(
        patch=_feature(found, "patch").get("supported") is True,
        filter=_feature(found, "filter").get("supported") is True,
        sort=_feature(found, "sort").get("supported") is True,
        etag=_feature(found, "etag").get("supported") is True,
        max_results=maximum if maximum is not None and maximum > 1 else None,
        bulk=bulk.get("supported") is True,
        max_operations=_number(bulk.get("maxOperations")) or DEFAULT_BULK_OPERATIONS,
        max_payload_bytes=_number(bulk.get("maxPayloadSize")) or DEFAULT_BULK_BYTES,
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _feature(config: Json, name: str) -> Json:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _load_list(client: ScimClient, path: str) -> list[Json] | None:
    """Return the resources of a discovery endpoint; None if the service does not have it."""
    answer = client.get(path)
    if answer.status == 404 or answer.body is None:
        return None
    found = _objects(answer.body.get("Resources"))
    total = answer.body.get("totalResults", len(found))
    if total != len(found):
        raise ConnectorError("incomplete", f"GET {path}: the server sent {len(found)} of {total} resources")
    return found


def _objects(value: Any) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _parse_attribute(value: Json) -> SchemaAttribute:
    types = value.get("referenceTypes")
    return SchemaAttribute(
        name=str(value.get("name", "")),
        type=str(value.get("type") or "string"),
        multi=value.get("multiValued") is True,
        case_exact=value.get("caseExact") is True,
        mutability=str(value.get("mutability") or "readWrite"),
        is_returned=value.get("returned") != "never",
        is_unique=value.get("uniqueness") in ("server", "global"),
        reference_types=tuple(str(each) for each in types) if isinstance(types, list) else (),
        sub_attributes=tuple(_parse_attribute(each) for each in _objects(value.get("subAttributes"))),
    )


def _resource_type(value: Json, schemas: Mapping[str, tuple[SchemaAttribute, ...]]) -> ResourceType:
    core = str(value.get("schema") or "")
    extensions = tuple(
        str(each["schema"]) for each in _objects(value.get("schemaExtensions")) if each.get("schema") in schemas
    )
    attributes = {("", each.name.lower()): each for each in (*_COMMON, *schemas.get(core, ()))}
    for urn in extensions:
        attributes.update({(urn, each.name.lower()): each for each in schemas[urn]})
    endpoint = "/" + str(value["endpoint"]).strip("/")
    return ResourceType(str(value.get("name") or value.get("id") or ""), endpoint, core, attributes, extensions)


# --- attributes of RFC 7643 -----------------------------------------------------------------------------------------


def _plain(*names: str) -> tuple[SchemaAttribute, ...]:
    return tuple(SchemaAttribute(name) for name in names)


def _complex(name: str, *subs: SchemaAttribute, multi: bool = False) -> SchemaAttribute:
    return SchemaAttribute(name, "complex", multi, sub_attributes=subs)


def _lists(*names: str) -> Iterable[SchemaAttribute]:
    parts = (*_plain("value", "display", "type"), SchemaAttribute("primary", "boolean"))
    return (_complex(name, *parts, multi=True) for name in names)


def _reference(name: str, *types: str, mutability: str = "readWrite") -> SchemaAttribute:
    """A complex attribute whose ``value`` is the id of another resource."""
    link = SchemaAttribute("$ref", "reference", case_exact=True, reference_types=types)
    value = replace(SchemaAttribute("value", case_exact=True), mutability=mutability)
    return _complex(name, value, link, *_plain("display", "type"))


_COMMON: Final = (
    SchemaAttribute("id", case_exact=True, mutability="readOnly", is_unique=True),
    SchemaAttribute("externalId", case_exact=True),
    replace(
        _complex(
            "meta",
            SchemaAttribute("resourceType", mutability="readOnly"),
            SchemaAttribute("created", "dateTime", mutability="readOnly"),
            SchemaAttribute("lastModified", "dateTime", mutability="readOnly"),
            SchemaAttribute("location", mutability="readOnly", case_exact=True),
            SchemaAttribute("version", mutability="readOnly", case_exact=True),
        ),
        mutability="readOnly",
    ),
)
"""Attributes of every resource; schemas do not name them."""
_BUILT_IN: Final[Mapping[str, tuple[SchemaAttribute, ...]]] = {
    CORE_USER: (
        SchemaAttribute("userName", is_unique=True),
        _complex(
            "name",
            *_plain("formatted", "familyName", "givenName", "middleName", "honorificPrefix", "honorificSuffix"),
        ),
        *_plain("displayName", "nickName", "profileUrl", "title", "userType", "preferredLanguage", "locale"),
        SchemaAttribute("timezone"),
        SchemaAttribute("active", "boolean"),
        SchemaAttribute("password", mutability="writeOnly", is_returned=False),
        *_lists("emails", "phoneNumbers", "ims", "photos", "entitlements", "roles", "x509Certificates"),
        _complex(
            "addresses",
            *_plain("formatted", "streetAddress", "locality", "region", "postalCode", "country", "type"),
            multi=True,
        ),
        replace(_reference("groups", "Group", mutability="readOnly"), multi=True, mutability="readOnly"),
    ),
    CORE_GROUP: (
        SchemaAttribute("displayName"),
        replace(_reference("members", "User", "Group"), multi=True),
    ),
    ENTERPRISE_USER: (
        *_plain("employeeNumber", "costCenter", "organization", "division", "department"),
        _reference("manager", "User"),
    ),
}
_DEFAULT_TYPES: Final[list[Json]] = [
    {"name": "User", "endpoint": "/Users", "schema": CORE_USER, "schemaExtensions": [{"schema": ENTERPRISE_USER}]},
    {"name": "Group", "endpoint": "/Groups", "schema": CORE_GROUP},
]
