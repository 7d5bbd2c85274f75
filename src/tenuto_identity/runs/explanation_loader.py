"""Loading of what explains one object or identity: the page context of a page of one, without any change."""

from __future__ import annotations

from datetime import datetime

from tenuto.errors import NotFound
from tenuto.postgres.database import Connection
from tenuto_identity.model.definitions.definition_reader import suggestion
from tenuto_identity.model.objects import ConnectorObject
from tenuto_identity.model.schema import ADDRESS
from tenuto_identity.model.sync.explanation import (
    DeletedExplanation,
    IdentityExplanation,
    ObjectExplanation,
    PastChange,
    explain_deleted,
    explain_identity,
    explain_object,
    sensitive_attributes,
)
from tenuto_identity.model.sync.matcher import Candidate
from tenuto_identity.model.sync.outbound import Target
from tenuto_identity.runs.definition_snapshot import Configuration, load_configuration
from tenuto_identity.runs.page_context import (
    load_identity_context,
    match_attempts_of,
    match_keys_of,
    to_connector_objects,
)
from tenuto_identity.store import list_queries, metaverse, objects
from tenuto_identity.store.list_queries import HistoryEntry

MAX_HISTORY = 1_000


async def load_explanation(
    connection: Connection, system: str, anchor: str, now: datetime, reveals: bool
) -> IdentityExplanation | ObjectExplanation | DeletedExplanation:
    """Explain the identity that an object is joined to, or why the object is not joined; from the history, if the
    object was deleted."""
    configuration = await load_configuration(connection)
    if system not in configuration.systems:
        raise NotFound(
            f"there is no system {system!r}",
            code="identity.system.not_found",
            field="system",
            remedy=suggestion(system, configuration.systems),
        )
    ids = await objects.find_by_anchor(connection, configuration.systems[system].number, anchor)
    rows = await objects.load_objects(connection, ids)
    found = to_connector_objects(configuration, rows, await objects.load_references(connection, ids))
    if not found:
        number = configuration.systems[system].number
        deleted = await list_queries.find_deleted_identity(connection, number, anchor)
        if deleted is not None:
            return await load_identity_explanation(connection, deleted, now, reveals)
        raise NotFound(
            f"the system {system!r} has no object with the anchor {anchor!r}",
            code="identity.object.not_found",
            field="anchor",
            remedy="check the anchor; a deleted object is explained until its history is past the retention",
        )
    each = next(iter(found.values()))
    if each.metaverse_id is None:
        return await _explain_unjoined(connection, configuration, each, now, reveals)
    return await _explain_joined(connection, configuration, each.metaverse_id, system, now, reveals)


async def load_identity_explanation(
    connection: Connection, id: int, now: datetime, reveals: bool
) -> IdentityExplanation | DeletedExplanation:
    """Explain a metaverse object; from its history, if it was deleted."""
    configuration = await load_configuration(connection)
    if not await metaverse.load_identities(connection, [id]):
        return await _explain_deleted(connection, configuration, id, reveals)
    joined = await objects.load_joined_objects(connection, [id])
    systems = [configuration.system_names[each.system_number] for each in joined]
    system = next(iter(systems), "")
    return await _explain_joined(connection, configuration, id, system, now, reveals)


def no_identity(id: int) -> NotFound:
    return NotFound(
        f"there is no metaverse object {id}",
        code="identity.identity.not_found",
        remedy="list them with `tenuto identity identities`",
    )


async def _explain_deleted(
    connection: Connection, configuration: Configuration, id: int, reveals: bool
) -> DeletedExplanation:
    last = await list_queries.load_last_item(connection, id)
    entries = await list_queries.list_changes(connection, id, None, MAX_HISTORY)
    if last is None or not entries:
        raise no_identity(id)
    history = [
        PastChange(
            each.run_id, each.system, each.profile, each.started_at, each.subject, each.change, each.anchor, each.diff
        )
        for each in entries
    ]
    hidden = frozenset(
        name
        for each in entries
        if each.subject == "identity"
        for name in hidden_in_history(configuration, each, reveals)
    )
    return explain_deleted(id, *last, history, hidden=hidden)


def hidden_in_history(configuration: Configuration, entry: HistoryEntry, reveals: bool) -> frozenset[str]:
    """Return the attributes of a change whose values the caller may not see.

    Those that the definitions do not know any more are among them, because they may have been sensitive. So are those
    of an object whose system is not known any more."""
    if reveals:
        return frozenset()
    rules = configuration.rules
    if entry.subject == "identity":
        known = [each.attributes for each in rules.metaverse_types.values()]
    else:
        known = [each.attributes for (system, _), each in rules.object_types.items() if system == entry.system]
    sensitive = sensitive_attributes(rules)
    return frozenset(
        name
        for name in entry.diff
        if name in sensitive or (name != ADDRESS and not any(name in attributes for attributes in known))
    )


async def _explain_joined(
    connection: Connection,
    configuration: Configuration,
    metaverse_id: int,
    system: str,
    now: datetime,
    reveals: bool,
) -> IdentityExplanation:
    context = await load_identity_context(connection, configuration, system, [metaverse_id])
    identity = context.identities[metaverse_id]
    joined = {each.system: each for each in context.objects.values()}
    targets = [
        Target(
            name,
            rules,
            configuration.systems[name].definition.types,
            joined.get(name),
            context.exports.get(joined[name].id) if name in joined else None,
        )
        for name, rules in configuration.rules.outbound_by_system(identity.type).items()
    ]
    return explain_identity(identity, joined.values(), targets, configuration.rules, now, reveals=reveals)


async def _explain_unjoined(
    connection: Connection, configuration: Configuration, each: ConnectorObject, now: datetime, reveals: bool
) -> ObjectExplanation:
    attempts = match_attempts_of(configuration, each, now)
    keys = match_keys_of(configuration, [attempts])
    hits = await metaverse.find_by_keys(connection, keys, configuration.systems[each.system].number)
    candidates: dict[str, dict[tuple[str, str], list[Candidate]]] = {}
    for (type_number, attribute, key), found in hits.items():
        by_key = candidates.setdefault(configuration.metaverse_type_names[type_number], {})
        by_key[configuration.attribute_names[attribute], key] = [
            Candidate(hit.object_id, hit.attributes, hit.joined_object_id) for hit in found
        ]
    return explain_object(each, attempts, candidates, configuration.rules, now, reveals=reveals)
