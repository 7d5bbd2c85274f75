"""Definitions of systems and metaverse types in the form of definition files, checked and turned into model values.

The functions take plain data, as YAML or JSON has it, and raise `Invalid` whose ``field`` is the path of the value at
fault. They do not look at the database; `rule_definitions` checks what definitions say about each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tenuto.errors import Invalid, quoted
from tenuto_identity.model import dn
from tenuto_identity.model.definitions.definition_reader import Reader, child, error, suggestion
from tenuto_identity.model.schema import (
    ANCHOR_TYPES,
    RESERVED_NAMES,
    Attribute,
    ContainerScope,
    ContainerSelection,
    DeletionRule,
    DeletionTrigger,
    MetaverseType,
    ObjectType,
    Writable,
    is_credential,
)
from tenuto_identity.model.sync.guards import DEFAULT_LIMITS, GuardKind, GuardLimit, GuardLimits
from tenuto_identity.model.values import MAX_INTEGER, DataType, Equality, EqualityKind

_NAME = re.compile(r"[^\s/\x00-\x1f\x7f][^/\x00-\x1f\x7f]{0,99}")
_METAVERSE_ATTRIBUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,62}")
_ATTRIBUTE = re.compile(r"[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,199}")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")

_SYSTEM_FIELDS = (
    "name", "connector", "settings", "types", "containers", "guards", "run_profiles", "on_bad_value",
    "on_lost_watermark", "enabled", "description",
)  # fmt: skip
_TYPE_FIELDS = ("name", "anchor", "address", "address_format", "attributes", "preset")
_ATTRIBUTE_FIELDS = ("type", "multi", "to", "writable", "equality", "sensitive")
_METAVERSE_FIELDS = ("type", "attributes", "deletion", "display", "description")
_DELETION_FIELDS = ("rule", "sources", "mode", "grace")
_PROFILE_FIELDS = (
    "name", "kind", "page_size", "batch_size", "limit", "preview", "partition", "guards", "on_lost_watermark",
    "evaluate_all",
)  # fmt: skip
_CONTAINER_FIELDS = ("address", "include", "scope")
_EQUALITY_FIELDS = ("kind", "bits", "precision", "equivalent")

AD_EQUALITY: Mapping[str, Equality] = {
    "useraccountcontrol": Equality(EqualityKind.MASK, bits=0x2),
    "accountexpires": Equality(EqualityKind.NUMBER, equivalent=(0, MAX_INTEGER)),
}
"""Equality of attributes that Active Directory changes by itself."""


class RunKind(StrEnum):
    """What a run profile does."""

    FULL_IMPORT = "full_import"
    DELTA_IMPORT = "delta_import"
    FULL_SYNC = "full_sync"
    DELTA_SYNC = "delta_sync"
    EXPORT = "export"


class OnBadValue(StrEnum):
    """What a value that does not fit its type leads to."""

    KEEP = "keep"
    """The old value of the attribute stays, the other attributes are imported."""
    REJECT = "reject"
    """The whole object is rejected."""


class OnLostWatermark(StrEnum):
    """What a delta import does without a valid watermark."""

    FULL = "full"
    FAIL = "fail"


class AddressFormat(StrEnum):
    """Form of the addresses of an object type."""

    TEXT = "text"
    DN = "dn"


@dataclass(frozen=True, slots=True)
class RunProfile:
    """A named kind of work on a system."""

    name: str
    kind: RunKind
    page_size: int | None = None
    batch_size: int | None = None
    limit: int | None = None
    """For exports: how many are sent before the run stops."""
    preview: bool = False
    """For exports: nothing is sent. New definitions with it are refused, because `tenuto identity preview` exists."""
    partition: str | None = None
    guards: GuardLimits | None = None
    on_lost_watermark: OnLostWatermark | None = None
    evaluate_all: bool = False
    """For full syncs: objects are processed although nothing has changed since the last sync."""


@dataclass(frozen=True, slots=True)
class SystemDefinition:
    """A connected system, without its state."""

    name: str
    connector: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, ObjectType] = field(default_factory=dict)
    containers: tuple[ContainerSelection, ...] = ()
    guards: GuardLimits = DEFAULT_LIMITS
    run_profiles: Mapping[str, RunProfile] = field(default_factory=dict)
    on_bad_value: OnBadValue = OnBadValue.KEEP
    on_lost_watermark: OnLostWatermark = OnLostWatermark.FULL
    enabled: bool = True
    description: str = ""


# --- systems --------------------------------------------------------------------------------------------------------


def parse_system(value: object) -> SystemDefinition:
    """Return the definition of a connected system; raise `Invalid`. The connector checks its settings itself."""
    reader = Reader(value, "a system", known=_SYSTEM_FIELDS)
    name = parse_name(reader.text("name"), "name", "a system")
    connector = reader.text("connector")
    settings = reader.raw("settings") or {}
    if not isinstance(settings, Mapping):
        raise error(f"settings {quoted(settings, 60)} is not a mapping of fields", "settings")
    types: dict[str, ObjectType] = {}
    for index, each in enumerate(reader.items("types")):
        path = child("types", index)
        found = _parse_object_type(each, path, connector)
        if found.name in types:
            raise error(f"the type {found.name} is defined twice", child(path, "name"), "rename or remove one of them")
        types[found.name] = found
    if not types:
        raise Invalid(
            f"the system {name} has no types",
            code="identity.definition.field_missing",
            field="types",
            remedy="list the object types that are read or written",
        )
    for index, each in enumerate(types.values()):
        _check_references(each.attributes, types, child(child("types", index), "attributes"))
    return SystemDefinition(
        name=name,
        connector=connector,
        settings=dict(settings),
        types=types,
        containers=tuple(
            _parse_container(each, child("containers", index), types.values())
            for index, each in enumerate(reader.items("containers"))
        ),
        guards=parse_guards(reader.raw("guards"), "guards"),
        run_profiles=_parse_profiles(reader),
        on_bad_value=reader.choice("on_bad_value", OnBadValue, OnBadValue.KEEP),
        on_lost_watermark=reader.choice("on_lost_watermark", OnLostWatermark, OnLostWatermark.FULL),
        enabled=reader.flag("enabled", True),
        description=reader.optional_text("description") or "",
    )


def parse_name(name: str, field_path: str, owner: str) -> str:
    """Return a name of a definition: up to 100 characters, without slashes and control characters."""
    if not _NAME.fullmatch(name):
        raise error(
            f"the name {quoted(name)} of {owner} is not usable",
            field_path,
            "use 1 to 100 characters without slashes and control characters",
        )
    return name


def _parse_object_type(value: object, path: str, connector: str) -> ObjectType:
    reader = Reader(value, "an object type", path, known=_TYPE_FIELDS)
    preset = reader.optional_text("preset")
    if preset not in (None, "ad"):
        raise error(f"preset {quoted(preset)} is not known", reader.at("preset"), suggestion(preset, ["ad"]))
    attributes = _parse_attributes(reader, is_metaverse=False)
    if preset == "ad":
        attributes = {name: _with_ad_equality(attribute) for name, attribute in attributes.items()}
    anchor = reader.text("anchor")
    if anchor not in attributes:
        raise error(
            f"the anchor {quoted(anchor)} is not one of the attributes",
            reader.at("anchor"),
            suggestion(anchor, attributes),
        )
    if attributes[anchor].type not in ANCHOR_TYPES or attributes[anchor].multi:
        raise error(
            f"the anchor {anchor} is a {_describe(attributes[anchor])}",
            reader.at("anchor"),
            "an anchor has one value of type text, integer or guid",
        )
    address = reader.optional_text("address")
    if address is not None and address not in attributes:
        raise error(
            f"the address {quoted(address)} is not one of the attributes",
            reader.at("address"),
            suggestion(address, attributes),
        )
    default = AddressFormat.DN if connector == "ldap" else AddressFormat.TEXT
    return ObjectType(
        name=parse_name(reader.text("name"), reader.at("name"), "an object type"),
        anchor=anchor,
        attributes=attributes,
        address=address,
        address_is_dn=reader.choice("address_format", AddressFormat, default) is AddressFormat.DN,
    )


def _describe(attribute: Attribute) -> str:
    return f"{'multi-valued ' if attribute.multi else ''}{attribute.type.value}"


def _with_ad_equality(attribute: Attribute) -> Attribute:
    found = AD_EQUALITY.get(attribute.name.lower())
    if found is None and attribute.type is DataType.TEXT and attribute.equality.kind is EqualityKind.EXACT:
        found = Equality(EqualityKind.IGNORE_CASE)
    if found is None:
        return attribute
    return Attribute(
        attribute.name, attribute.type, attribute.multi, attribute.to, attribute.writable, found, attribute.sensitive
    )


def _parse_attributes(reader: Reader, *, is_metaverse: bool) -> dict[str, Attribute]:
    fields = Reader(reader.required("attributes"), "attributes", reader.at("attributes"))
    found: dict[str, Attribute] = {}
    for name in fields.names():
        _check_attribute_name(name, fields.at(name), is_metaverse)
        found[name] = _parse_attribute(name, fields.raw(name), fields.at(name), is_metaverse)
    if not found:
        raise error(f"{reader.owner} has no attributes", reader.at("attributes"))
    return found


def _check_attribute_name(name: str, path: str, is_metaverse: bool) -> None:
    pattern = _METAVERSE_ATTRIBUTE if is_metaverse else _ATTRIBUTE
    if not pattern.fullmatch(name):
        raise error(
            f"the attribute name {quoted(name)} is not usable",
            path,
            "use letters, digits and underscores, and begin with a letter"
            if is_metaverse
            else "use 1 to 200 characters without control characters",
        )
    if name in RESERVED_NAMES:
        raise error(f"the attribute name {name} is reserved for expressions", path, "rename the attribute")
    if is_credential(name):
        raise Invalid(
            f"the attribute {name} holds a password or a hash of one",
            code="identity.definition.credential",
            field=path,
            remedy="remove it: credentials are not synchronised",
        )


def _parse_attribute(name: str, value: object, path: str, is_metaverse: bool) -> Attribute:
    if isinstance(value, str):
        value = {"type": value}
    known = ("type", "multi", "to", "sensitive") if is_metaverse else _ATTRIBUTE_FIELDS
    reader = Reader(value, f"the attribute {name}", path, known=known)
    data_type = reader.choice("type", DataType, DataType.TEXT)
    to = reader.optional_text("to")
    if (to is not None) != (data_type is DataType.REFERENCE):
        if to is None:
            raise error(f"the reference {name} does not say what it refers to", path, "add to: TYPE")
        raise error(f"{name} is a {data_type.value} and refers to nothing", reader.at("to"), "remove to")
    return Attribute(
        name=name,
        type=data_type,
        multi=reader.flag("multi", False),
        to=to,
        writable=_parse_writable(reader),
        equality=_parse_equality(reader, data_type),
        sensitive=reader.flag("sensitive", False),
    )


def _parse_writable(reader: Reader) -> Writable:
    value = reader.raw("writable")
    if isinstance(value, bool):
        return Writable.YES if value else Writable.NO
    return reader.choice("writable", Writable, Writable.YES)


def _parse_equality(reader: Reader, data_type: DataType) -> Equality:
    value = reader.raw("equality")
    if value is None:
        match data_type:
            case DataType.DECIMAL:
                return Equality(EqualityKind.NUMBER)
            case DataType.DATETIME:
                return Equality(EqualityKind.INSTANT)
            case _:
                return Equality()
    if isinstance(value, str):
        value = {"kind": value}
    fields = Reader(value, "equality", reader.at("equality"), known=_EQUALITY_FIELDS)
    kind = fields.as_choice(fields.required("kind"), EqualityKind, "kind")
    bits = fields.integer("bits", 0, 0, MAX_INTEGER)
    if (kind is EqualityKind.MASK) != bool(bits):
        raise error(
            "equality mask needs bits, and only mask has them", fields.at("bits"), "write {kind: mask, bits: 2}"
        )
    precision = fields.duration("precision")
    return Equality(
        kind,
        precision_seconds=precision.total_seconds() if precision else 1.0,
        bits=bits,
        equivalent=tuple(fields.items("equivalent")),
    )


def _check_references(attributes: Mapping[str, Attribute], types: Mapping[str, object], path: str) -> None:
    for name, attribute in attributes.items():
        if attribute.to is not None and attribute.to not in types:
            raise error(
                f"{name} refers to the type {quoted(attribute.to)}, which does not exist",
                child(child(path, name), "to"),
                suggestion(attribute.to, types),
            )


def _parse_container(value: object, path: str, types: Iterable[ObjectType]) -> ContainerSelection:
    if isinstance(value, str):
        value = {"address": value}
    reader = Reader(value, "a container", path, known=_CONTAINER_FIELDS)
    address = reader.text("address")
    if any(each.address_is_dn for each in types):
        try:
            dn.parse(address)
        except dn.InvalidDn as problem:
            raise error(
                str(problem), path, "write the DN of the container, such as ou=people,dc=example,dc=org"
            ) from None
    return ContainerSelection(
        address,
        reader.flag("include", True),
        reader.choice("scope", ContainerScope, ContainerScope.SUBTREE),
    )


def _parse_profiles(reader: Reader) -> dict[str, RunProfile]:
    found: dict[str, RunProfile] = {}
    for index, each in enumerate(reader.items("run_profiles")):
        path = child("run_profiles", index)
        profile = _parse_profile(each, path)
        if profile.name in found:
            raise error(f"the run profile {profile.name} is defined twice", child(path, "name"))
        found[profile.name] = profile
    return found


def _parse_profile(value: object, path: str) -> RunProfile:
    reader = Reader(value, "a run profile", path, known=_PROFILE_FIELDS)
    kind = reader.as_choice(reader.required("kind"), RunKind, "kind")
    for name in ("limit", "preview", "batch_size"):
        if name in reader and kind is not RunKind.EXPORT:
            raise error(f"{name} applies to exports only, and this profile is a {kind.value}", reader.at(name))
    if "evaluate_all" in reader and kind is not RunKind.FULL_SYNC:
        raise error(
            f"evaluate_all applies to full syncs only, and this profile is a {kind.value}", reader.at("evaluate_all")
        )
    lost = reader.raw("on_lost_watermark")
    return RunProfile(
        name=parse_name(reader.text("name"), reader.at("name"), "a run profile"),
        kind=kind,
        page_size=reader.integer("page_size", 0, 1, 100_000) if "page_size" in reader else None,
        batch_size=reader.integer("batch_size", 0, 1, 10_000) if "batch_size" in reader else None,
        limit=reader.integer("limit", 0, 1, 10_000_000) if "limit" in reader else None,
        preview=reader.flag("preview", False),
        partition=reader.optional_text("partition"),
        guards=parse_guards(reader.raw("guards"), reader.at("guards")) if "guards" in reader else None,
        on_lost_watermark=None if lost is None else reader.as_choice(lost, OnLostWatermark, "on_lost_watermark"),
        evaluate_all=reader.flag("evaluate_all", False),
    )


def parse_guards(value: object, path: str) -> GuardLimits:
    """Return the limits of guards: ``{deletions: 20%, at_least: 10, clearing: {percent: 50%, at_least: 100}}``."""
    if value is None:
        return DEFAULT_LIMITS
    kinds = {each.value: each for each in GuardKind if each is not GuardKind.EMPTY_SOURCE}
    reader = Reader(value, "guards", path, known=("at_least", "percent", *kinds))
    at_least = reader.integer("at_least", 10, 1, 1_000_000_000)
    default = GuardLimit(_parse_percent(reader, "percent", 20.0), at_least)
    by_kind: dict[GuardKind, GuardLimit] = {}
    for name, kind in kinds.items():
        raw = reader.raw(name)
        if isinstance(raw, Mapping):
            nested = Reader(raw, name, reader.at(name), known=("percent", "at_least"))
            by_kind[kind] = GuardLimit(
                _parse_percent(nested, "percent", default.percent),
                nested.integer("at_least", at_least, 1, 1_000_000_000),
            )
        elif raw is not None:
            by_kind[kind] = GuardLimit(_parse_percent(reader, name, default.percent), at_least)
    return GuardLimits(default, by_kind or None)


def _parse_percent(reader: Reader, name: str, default: float) -> float:
    value = reader.raw(name)
    if value is None:
        return default
    found = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(found.group(1)) if found else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 100:
        raise error(f"{name} {quoted(value, 60)} is not a percentage", reader.at(name), "write 20%")
    return float(number)


# --- metaverse types ------------------------------------------------------------------------------------------------


def parse_metaverse_type(value: object) -> MetaverseType:
    """Return the definition of a metaverse type; raise `Invalid`."""
    reader = Reader(value, "a metaverse type", known=_METAVERSE_FIELDS)
    name = parse_name(reader.text("type"), "type", "a metaverse type")
    attributes = _parse_attributes(reader, is_metaverse=True)
    display = reader.optional_text("display")
    if display is not None and (display not in attributes or attributes[display].is_reference):
        raise error(
            f"display {quoted(display)} is not an attribute with a value", "display", suggestion(display, attributes)
        )
    return MetaverseType(
        name=name,
        attributes=attributes,
        deletion=_parse_deletion(reader.raw("deletion")),
        display=display or next((each for each in ("display", "display_name", "name") if each in attributes), None),
    )


def _parse_deletion(value: object) -> DeletionRule:
    if value is None:
        return DeletionRule()
    if isinstance(value, str):
        value = {"rule": value}
    reader = Reader(value, "deletion", "deletion", known=_DELETION_FIELDS)
    trigger = reader.choice("rule", DeletionTrigger, DeletionTrigger.LAST_CONNECTOR)
    sources = frozenset(reader.texts("sources"))
    if (trigger is DeletionTrigger.AUTHORITATIVE_SOURCE) != bool(sources):
        raise error(
            "the rule authoritative_source needs sources, and only this rule has them",
            reader.at("sources"),
            "write {rule: authoritative_source, sources: [HR]}",
        )
    mode = reader.raw("mode")
    if mode not in (None, "any", "all"):
        raise error(f"mode {quoted(mode)} is not known", reader.at("mode"), suggestion(mode, ["any", "all"]))
    return DeletionRule(trigger, sources, mode == "all", reader.duration("grace"))
