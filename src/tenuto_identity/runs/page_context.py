"""The page context of a sync: everything that the decisions about a page of objects depend on.

It is loaded by nine statements at most, whatever the page contains (`tests/identity/runs/test_statement_counts.py`).
References are rows beside their objects and have statements of their own; a join would repeat the documents. The
objects beside those of the page, and their references, are known only after the match. Rows become the values of the
model here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tenuto.postgres.database import Connection
from tenuto_identity.model.objects import ConnectorObject, MetaverseObject, ObjectState, Reference
from tenuto_identity.model.rules.sync_rules import Direction
from tenuto_identity.model.schema import ObjectType
from tenuto_identity.model.sync.engine import rules_in_scope
from tenuto_identity.model.sync.matcher import Candidate, MatchAttempt, match_attempts
from tenuto_identity.model.sync.pending_exports import PendingExport
from tenuto_identity.model.values import Document
from tenuto_identity.runs.definition_snapshot import Configuration
from tenuto_identity.runs.import_reader import index_key
from tenuto_identity.store import exports, metaverse, objects, sync_marks
from tenuto_identity.store.metaverse import IdentityRow, MatchKey, MetaverseReference
from tenuto_identity.store.objects import ObjectRow, ReferenceRow
from tenuto_identity.store.sync_marks import SyncMark

_DISPLAY_ATTRIBUTES = (
    "display", "display_name", "displayName", "cn", "name", "mail", "userName", "uid", "login", "sAMAccountName",
)  # fmt: skip


@dataclass(slots=True)
class PageContext:
    """What is known about a page of objects of one system."""

    system: str
    page_ids: list[int]
    objects: dict[int, ConnectorObject]
    """The objects of the page, and all objects joined to the same metaverse objects."""
    object_versions: dict[int, int]
    marks: dict[int, SyncMark]
    attempts: dict[int, tuple[MatchAttempt, ...]]
    """Matching attempts of the unjoined objects of the page."""
    candidates: dict[tuple[str, str, str], list[Candidate]]
    """(metaverse type, attribute, key) → metaverse objects."""
    identities: dict[int, MetaverseObject]
    identity_rows: dict[int, IdentityRow]
    reference_rules: dict[tuple[int, str, int], int]
    """(metaverse object, attribute, target) → rule of the stored reference."""
    joined: dict[int, list[int]]
    """Metaverse object → objects that are joined to it."""
    joined_ids: dict[int, list[int]]
    """The same, with objects of types that are no longer selected."""
    exports: dict[int, PendingExport]
    free_ids: list[int] = field(default_factory=list)
    """Ids for metaverse objects that the page may project."""


async def load_page_context(
    connection: Connection,
    configuration: Configuration,
    system_name: str,
    rows: Sequence[ObjectRow],
    now: datetime,
) -> PageContext:
    """Load what the decisions about these objects depend on."""
    system = configuration.systems[system_name]
    page_ids = [row.id for row in rows]
    marks = await sync_marks.load_marks(connection, page_ids)
    references = await objects.load_references(connection, page_ids)
    page = to_connector_objects(configuration, rows, references)
    attempts = {
        id: found
        for id, each in page.items()
        if each.metaverse_id is None
        and each.state is ObjectState.NORMAL
        and not each.pinned
        and (found := match_attempts_of(configuration, each, now))
    }
    keys = match_keys_of(configuration, attempts.values())
    hits = await metaverse.find_by_keys(connection, keys, system.number)
    names = configuration.attribute_names
    candidates = {
        (configuration.metaverse_type_names[type_number], names[attribute], key): [
            Candidate(hit.object_id, hit.attributes, hit.joined_object_id) for hit in found
        ]
        for (type_number, attribute, key), found in hits.items()
    }
    metaverse_ids = sorted(
        {each.metaverse_id for each in page.values() if each.metaverse_id is not None}
        | {hit.object_id for found in hits.values() for hit in found}
    )
    identity_rows = {row.id: row for row in await metaverse.load_identities(connection, metaverse_ids)}
    identity_references = await metaverse.load_references(connection, metaverse_ids)
    joined_rows = [row for row in await objects.load_joined_objects(connection, metaverse_ids) if row.id not in page]
    joined_references = await objects.load_references(connection, [row.id for row in joined_rows])
    others = to_connector_objects(configuration, joined_rows, joined_references)
    everything = {**page, **others}
    pending = await exports.load_exports(connection, sorted(everything), configuration.system_names)
    joined: dict[int, list[int]] = {}
    for each in everything.values():
        if each.metaverse_id is not None:
            joined.setdefault(each.metaverse_id, []).append(each.id)
    unjoined_count = sum(1 for each in page.values() if each.metaverse_id is None)
    return PageContext(
        system=system_name,
        page_ids=page_ids,
        objects=everything,
        object_versions={row.id: row.version for row in (*rows, *joined_rows)},
        marks=marks,
        attempts=attempts,
        candidates=candidates,
        identities=to_metaverse_objects(configuration, identity_rows.values(), identity_references),
        identity_rows=identity_rows,
        reference_rules={
            (row.object_id, names[row.attribute_number], row.target_id): row.rule_number for row in identity_references
        },
        joined=joined,
        joined_ids=_group_by_identity((*rows, *joined_rows)),
        exports=pending,
        free_ids=await metaverse.draw_ids(connection, unjoined_count),
    )


async def load_identity_context(
    connection: Connection, configuration: Configuration, system_name: str, metaverse_ids: Sequence[int]
) -> PageContext:
    """Load the context of metaverse objects that are deleted: their values, their objects and pending exports."""
    identity_rows = {row.id: row for row in await metaverse.load_identities(connection, metaverse_ids)}
    references = await metaverse.load_references(connection, metaverse_ids)
    rows = await objects.load_joined_objects(connection, metaverse_ids)
    object_references = await objects.load_references(connection, [row.id for row in rows])
    found = to_connector_objects(configuration, rows, object_references)
    joined: dict[int, list[int]] = {}
    for each in found.values():
        if each.metaverse_id is not None:
            joined.setdefault(each.metaverse_id, []).append(each.id)
    return PageContext(
        system=system_name,
        page_ids=[],
        objects=found,
        object_versions={row.id: row.version for row in rows},
        marks={},
        attempts={},
        candidates={},
        identities=to_metaverse_objects(configuration, identity_rows.values(), references),
        identity_rows=identity_rows,
        reference_rules={},
        joined=joined,
        joined_ids=_group_by_identity(rows),
        exports=await exports.load_exports(connection, sorted(found), configuration.system_names),
    )


def _group_by_identity(rows: Iterable[ObjectRow]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows:
        if row.metaverse_id is not None:
            found.setdefault(row.metaverse_id, []).append(row.id)
    return found


def match_attempts_of(
    configuration: Configuration, unjoined: ConnectorObject, now: datetime
) -> tuple[MatchAttempt, ...]:
    """Return the matching attempts of an unjoined object: those of in rules in scope, and of out rules of its type."""
    rules = configuration.rules
    scoped = rules_in_scope(unjoined, rules, now).rules
    outbound = [
        rule
        for rule in rules.rules
        if rule.enabled
        and rule.direction is Direction.OUT
        and rule.system == unjoined.system
        and rule.object_type == unjoined.type
    ]
    object_type = rules.object_type(unjoined.system, unjoined.type)
    return tuple(
        attempt
        for rule in sorted((*scoped, *outbound), key=lambda rule: rule.number)
        for attempt in match_attempts(
            unjoined, object_type, [rule], rules.metaverse_types[rule.metaverse_type].attributes, now
        )
    )


def match_keys_of(configuration: Configuration, attempts: Iterable[Sequence[MatchAttempt]]) -> list[MatchKey]:
    """Return the keys to look up for matching attempts."""
    found: dict[MatchKey, None] = {}
    for each in attempts:
        for attempt in each:
            type_number = configuration.metaverse_type_numbers[attempt.rule.metaverse_type]
            attribute = configuration.attribute_numbers[attempt.match.metaverse]
            found.update(dict.fromkeys((type_number, attribute, index_key(key)) for key in attempt.keys))
    return list(found)


# --- rows to values -------------------------------------------------------------------------------------------------


def to_connector_objects(
    configuration: Configuration, rows: Iterable[ObjectRow], references: Iterable[ReferenceRow]
) -> dict[int, ConnectorObject]:
    """Return rows as objects of the model, by id. Objects whose type is no longer selected are frozen: left out."""
    by_object: dict[int, dict[str, list[Reference]]] = {}
    names = configuration.attribute_names
    for row in references:
        found = by_object.setdefault(row.object_id, {}).setdefault(names[row.attribute_number], [])
        found.append(Reference(row.raw, row.target_id, row.metaverse_id))
    objects_by_id: dict[int, ConnectorObject] = {}
    for each in rows:
        system = configuration.systems_by_number.get(each.system_number)
        type_name = system.type_names.get(each.type_number) if system is not None else None
        if system is None or type_name is None or type_name not in system.definition.types:
            continue
        objects_by_id[each.id] = ConnectorObject(
            each.id,
            system.name,
            type_name,
            each.anchor,
            each.address or "",
            each.attributes,
            {name: tuple(found) for name, found in by_object.get(each.id, {}).items()},
            each.state,
            each.metaverse_id,
            each.join_kind,
            each.pinned,
            frozenset(each.drift_reported),
        )
    return objects_by_id


def to_metaverse_objects(
    configuration: Configuration, rows: Iterable[IdentityRow], references: Iterable[MetaverseReference]
) -> dict[int, MetaverseObject]:
    """Return rows as metaverse objects of the model, by id."""
    by_object: dict[int, dict[str, set[int]]] = {}
    names = configuration.attribute_names
    for row in references:
        by_object.setdefault(row.object_id, {}).setdefault(names[row.attribute_number], set()).add(row.target_id)
    return {
        each.id: MetaverseObject(
            each.id,
            configuration.metaverse_type_names[each.type_number],
            each.attributes,
            {name: frozenset(found) for name, found in by_object.get(each.id, {}).items()},
            {name: (source[0], source[1]) for name, source in each.provenance.items()},
            each.origin,
            each.deletion_scheduled_at,
            each.delete_after,
            (each.deletion_initiator or {}).get("system"),
        )
        for each in rows
    }


def display_of(
    attributes: Document, preferred: str | None = None, *, names: Sequence[str] = _DISPLAY_ATTRIBUTES
) -> str | None:
    """Return the display name of an object for lists and history.

    ``names`` are the attributes to try; `display_names` leaves out those that the type does not have.
    """
    for name in (preferred, *names) if preferred else names:
        values = attributes.get(name) if name else None
        if values:
            return str(values[0])[:200]
    parts: list[str] = []
    for alternatives in (("first", "givenName", "first_name"), ("last", "sn", "last_name")):
        parts += [str(attributes[name][0]) for name in alternatives if attributes.get(name)][:1]
    return " ".join(parts)[:200] or None


def display_names(object_type: ObjectType) -> tuple[str, ...]:
    """Return the attributes of a type that can be the display name of an object, in order of preference."""
    return tuple(name for name in _DISPLAY_ATTRIBUTES if name in object_type.attributes)
