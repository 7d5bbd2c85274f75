"""The lists of definition files: parsed, checked against each other, planned, and applied with their versions.

A declaration takes effect only if it differs from the previous one, so that changes by operators remain. Nothing is
deleted because a declaration is missing, except with prune.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tenuto.errors import Conflict, Invalid
from tenuto.extension import ChangeAuthor, DefinitionList, ListChange, ListEntry, ListPlan
from tenuto.postgres.database import Connection
from tenuto_identity.connectors.registry import find_connector, parse_settings
from tenuto_identity.definitions.affected_objects import count_affected, mark_affected
from tenuto_identity.model.definitions.rule_definitions import bind_rule, check_metaverse_type, parse_rule
from tenuto_identity.model.definitions.system_definitions import SystemDefinition, parse_metaverse_type, parse_system
from tenuto_identity.model.definitions.templates import parse_template
from tenuto_identity.model.schema import MetaverseType
from tenuto_identity.store import definitions, transaction_settings
from tenuto_identity.store.definitions import DefinitionChange, DefinitionKind, DefinitionRow, StoredDefinitions

_LISTS = {
    DefinitionKind.SYSTEM: "systems",
    DefinitionKind.METAVERSE_TYPE: "metaverse",
    DefinitionKind.SYNC_RULE: "sync_rules",
    DefinitionKind.TEMPLATE: "templates",
}
LIST_NAMES = tuple(_LISTS.values())
_NOUNS = {
    DefinitionKind.SYSTEM: "connected system",
    DefinitionKind.METAVERSE_TYPE: "metaverse type",
    DefinitionKind.SYNC_RULE: "sync rule",
    DefinitionKind.TEMPLATE: "template",
}


@dataclass(frozen=True, slots=True)
class Declared:
    """An entry of a list: its plain data, as it is stored, and its parsed value."""

    key: str
    fields: dict[str, Any]
    parsed: Any


def definition_lists() -> list[DefinitionList[Any]]:
    """Return the lists in the order in which they are applied: rules refer to systems and types."""
    return [_list(kind, *parts) for kind, parts in _KINDS.items()]


def _list(
    kind: DefinitionKind, parse: Callable[[object], Any], key: Callable[[Any], str], check: Callable[..., Any]
) -> DefinitionList[Any]:
    def parse_entry(entry: ListEntry) -> Declared:
        parsed = parse(entry.value)
        return Declared(key(parsed), dict(entry.value), parsed)

    async def check_entry(connection: Connection, value: Declared, declared: Mapping[str, Sequence[Any]]) -> None:
        async with transaction_settings.schema_of_identity(connection):
            stored = await definitions.load_definitions(connection)
            await check(connection, value, _merge(stored, declared), stored)

    async def plan(connection: Connection, declared: Sequence[Declared], prune: bool) -> ListPlan:
        async with transaction_settings.schema_of_identity(connection):
            return await _plan(connection, kind, declared, prune)

    async def apply(connection: Connection, planned: ListPlan, author: ChangeAuthor) -> None:
        async with transaction_settings.schema_of_identity(connection):
            await apply_changes(connection, kind, planned.changes, author, origin="file")

    return DefinitionList(_LISTS[kind], parse_entry, lambda value: cast(Declared, value).key, plan, apply, check_entry)


async def plan_declared(
    connection: Connection, declared: Mapping[str, Sequence[Any]], *, prune: bool = False
) -> list[tuple[DefinitionKind, ListPlan]]:
    """Check the entries of lists, given as plain data, and compare them with the tables that the connection uses."""
    parsed: dict[str, list[Declared]] = {}
    for kind, (parse, key, _) in _KINDS.items():
        name = _LISTS[kind]
        for index, value in enumerate(declared.get(name, ())):
            try:
                found = parse(value)
            except Invalid as error:
                raise _located(error, name, index) from error
            parsed.setdefault(name, []).append(Declared(key(found), dict(value), found))
    stored = await definitions.load_definitions(connection)
    plans: list[tuple[DefinitionKind, ListPlan]] = []
    for kind, (_, _, check) in _KINDS.items():
        name = _LISTS[kind]
        for index, each in enumerate(parsed.get(name, ())):
            try:
                await check(connection, each, _merge(stored, parsed), stored)
            except Invalid as error:
                raise _located(error, name, index) from error
        plans.append((kind, await _plan(connection, kind, parsed.get(name, ()), prune)))
    return plans


async def apply_declared(
    connection: Connection, declared: Mapping[str, Sequence[Any]], author: ChangeAuthor, *, prune: bool = False
) -> None:
    """Check the entries of lists and apply them to the tables that the connection uses."""
    for kind, planned in await plan_declared(connection, declared, prune=prune):
        await apply_changes(connection, kind, planned.changes, author, origin="file")


def _located(error: Invalid, name: str, index: int) -> Invalid:
    field = f"{name}[{index}].{error.field}" if error.field else f"{name}[{index}]"
    return Invalid(error.message, code=error.code, field=field, remedy=error.remedy)


# --- checks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Merged:
    """Stored definitions, replaced by those that the files declare."""

    systems: Mapping[str, SystemDefinition]
    types: Mapping[str, MetaverseType]


def _merge(stored: StoredDefinitions, declared: Mapping[str, Sequence[Any]]) -> Merged:
    systems = {row.name: parse_system(row.definition) for row in stored.of_kind(DefinitionKind.SYSTEM)}
    types = {row.name: parse_metaverse_type(row.definition) for row in stored.of_kind(DefinitionKind.METAVERSE_TYPE)}
    systems |= {each.key: each.parsed for each in declared.get("systems", ())}
    types |= {each.key: each.parsed for each in declared.get("metaverse", ())}
    return Merged(systems, types)


async def _check_system(connection: Connection, value: Declared, merged: Merged, stored: StoredDefinitions) -> None:
    new: SystemDefinition = value.parsed
    kind = find_connector(new.connector)
    parse_settings(kind, new.settings)
    for index, profile in enumerate(new.run_profiles.values()):
        if profile.preview:
            raise Invalid(
                f"the run profile {profile.name} has preview: true, which exports do not support",
                code="identity.definition.preview_unsupported",
                field=f"run_profiles[{index}].preview",
                remedy=f"remove it, and use `tenuto identity preview {value.key!r} {profile.name!r}`",
            )
    row = next((row for row in stored.of_kind(DefinitionKind.SYSTEM) if row.name == value.key), None)
    if row is None or not await definitions.has_objects(connection, row.number):
        return
    before = parse_system(row.definition)
    for index, (name, object_type) in enumerate(new.types.items()):
        if name in before.types and before.types[name].anchor != object_type.anchor:
            raise Invalid(
                f"the anchor of {name} cannot change from {before.types[name].anchor} to {object_type.anchor}"
                " while the system has objects",
                code="identity.definition.anchor_changed",
                field=f"types[{index}].anchor",
                remedy=f"clear the system first: `tenuto identity clear {value.key!r}`",
            )


async def _check_type(connection: Connection, value: Declared, merged: Merged, stored: StoredDefinitions) -> None:
    check_metaverse_type(value.parsed, merged.systems, merged.types)


async def _check_rule(connection: Connection, value: Declared, merged: Merged, stored: StoredDefinitions) -> None:
    bind_rule(value.parsed, 1, merged.systems, merged.types)


async def _check_template(connection: Connection, value: Declared, merged: Merged, stored: StoredDefinitions) -> None:
    value.parsed.check(merged.types)


# --- plan and apply -------------------------------------------------------------------------------------------------


async def _plan(connection: Connection, kind: DefinitionKind, declared: Sequence[Declared], prune: bool) -> ListPlan:
    stored = await definitions.load_definitions(connection)
    rows = {row.name: row for row in stored.of_kind(kind)}
    changes = [_compare(each, rows.get(each.key)) for each in declared]
    if prune:
        keys = {each.key for each in declared}
        changes += [
            ListChange(row.name, "deleted", row.definition, None)
            for row in rows.values()
            if row.origin == "file" and row.name not in keys
        ]
    return ListPlan([await _with_count(connection, kind, change, stored) for change in changes])


async def _with_count(
    connection: Connection, kind: DefinitionKind, change: ListChange, stored: StoredDefinitions
) -> ListChange:
    """Return a change with the number of objects that it makes the next delta sync evaluate."""
    count = 0 if change.effect == "unchanged" else await count_affected(connection, kind, change, stored)
    if not count:
        return change
    noun = "object" if count == 1 else "objects"
    return replace(change, notes=[f"{count:,} {noun} will be evaluated by the next delta sync"])


def _compare(declared: Declared, row: DefinitionRow | None) -> ListChange:
    if row is not None and row.definition != declared.fields and row.declared == declared.fields:
        return ListChange(declared.key, "unchanged", row.definition, row.definition)  # changed by an operator
    return ListChange.compare(declared.key, None if row is None else row.definition, declared.fields)


async def apply_changes(
    connection: Connection,
    kind: DefinitionKind,
    changes: Sequence[ListChange],
    author: ChangeAuthor,
    *,
    origin: str,
) -> None:
    """Make changes of one kind; raise `Conflict` if a definition is not what it was when they were planned."""
    await definitions.lock_definitions(connection)
    stored = await definitions.load_definitions(connection)
    rows = {row.name: row for row in stored.of_kind(kind)}
    changing = [change for change in changes if change.effect != "unchanged"]
    if all(_is_made(change, rows.get(change.key)) for change in changing):
        return  # by an earlier try whose acknowledgement was lost
    version = await definitions.increment_rules_version(connection)
    context = DefinitionChange(author.actor.name, author.now, author.reason, origin)
    for change in changing:
        row = rows.get(change.key)
        before = None if row is None else row.definition
        if before != change.before:
            raise Conflict(
                f"the {_NOUNS[kind]} {change.key!r} has changed since the plan was made",
                code="identity.definition.changed_since_plan",
                remedy="plan again",
            )
        await _apply_change(connection, kind, change, row, version, context)
        if kind is DefinitionKind.SYNC_RULE and change.after is None and row is not None:
            await _recall(connection, row, stored, author)
    await mark_affected(connection, kind, changing, stored)


async def _recall(connection: Connection, row: DefinitionRow, stored: StoredDefinitions, author: ChangeAuthor) -> None:
    """Have a task withdraw what a deleted rule contributed to identities."""
    side = row.definition.get("in")
    system = next((each for each in stored.systems if side is not None and each.name == side.get("system")), None)
    if side is None or system is None:
        return
    type_number = stored.type_numbers.get((system.number, side["type"]))
    if type_number is not None:
        await definitions.insert_recall(connection, row, system.number, type_number, author.actor, author.now)


def _is_made(change: ListChange, row: DefinitionRow | None) -> bool:
    return bool((None if row is None else row.definition) == change.after)


async def _apply_change(
    connection: Connection,
    kind: DefinitionKind,
    change: ListChange,
    row: DefinitionRow | None,
    version: int,
    context: DefinitionChange,
) -> None:
    after = change.after
    declared = after if context.origin == "file" else row.declared if row is not None else None
    if after is None:
        assert row is not None
        await _check_unused(connection, kind, row)
        await definitions.delete_definition(connection, row, version, context)
        return
    if row is None:
        number = await definitions.insert_definition(
            connection, kind, change.key, after, version, context, declared=declared
        )
    else:
        number = row.number
        await definitions.update_definition(connection, row, after, version, context, declared=declared)
    if kind is DefinitionKind.SYSTEM:
        system = parse_system(after)
        await definitions.add_object_types(connection, number, list(system.types))
        await definitions.add_names(
            connection, [name for object_type in system.types.values() for name in object_type.attributes]
        )
        await definitions.set_system_state(connection, change.key, "active" if system.enabled else "disabled")
    elif kind is DefinitionKind.METAVERSE_TYPE:
        await definitions.add_names(connection, parse_metaverse_type(after).attributes)


async def _check_unused(connection: Connection, kind: DefinitionKind, row: DefinitionRow) -> None:
    if kind is DefinitionKind.SYSTEM and await definitions.has_objects(connection, row.number):
        raise Conflict(
            f"the system {row.name!r} has objects",
            code="identity.system.in_use",
            remedy=f"delete it with `tenuto identity delete-system {row.name!r}`",
        )
    if kind is DefinitionKind.METAVERSE_TYPE and await definitions.has_identities(connection, row.number):
        raise Conflict(
            f"there are metaverse objects of the type {row.name!r}",
            code="identity.metaverse_type.in_use",
            remedy="delete the metaverse objects first, or keep the type",
        )


_Parts = tuple[Callable[[object], Any], Callable[[Any], str], Callable[..., Any]]
_KINDS: dict[DefinitionKind, _Parts] = {
    DefinitionKind.SYSTEM: (parse_system, lambda parsed: parsed.name, _check_system),
    DefinitionKind.METAVERSE_TYPE: (parse_metaverse_type, lambda parsed: parsed.name, _check_type),
    DefinitionKind.SYNC_RULE: (parse_rule, lambda parsed: parsed.name, _check_rule),
    DefinitionKind.TEMPLATE: (parse_template, lambda parsed: parsed.name, _check_template),
}
"""How the entries of each list are parsed, named and checked, in the order in which they are applied."""
