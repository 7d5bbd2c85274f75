"""Objects that a change of definitions affects: they are marked, so that the next delta sync evaluates them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenuto.extension import ListChange
from tenuto.postgres.database import Connection
from tenuto_identity.store import sync_marks
from tenuto_identity.store.definitions import DefinitionKind, StoredDefinitions, load_definitions


async def mark_affected(
    connection: Connection, kind: DefinitionKind, changes: Sequence[ListChange], before: StoredDefinitions
) -> None:
    """Mark every object whose type is affected by a changed rule, metaverse type or system."""
    if kind is DefinitionKind.TEMPLATE:
        return
    after = await load_definitions(connection)
    for system_number, type_number in sorted(
        affected_types(kind, changes, before) | affected_types(kind, changes, after)
    ):
        await sync_marks.mark_objects_of_type(connection, system_number, type_number)


async def count_affected(
    connection: Connection, kind: DefinitionKind, change: ListChange, stored: StoredDefinitions
) -> int:
    """Return how many stored objects a change would mark."""
    if kind is DefinitionKind.TEMPLATE:
        return 0
    return sum(
        [
            await sync_marks.count_objects_of_type(connection, system_number, type_number)
            for system_number, type_number in sorted(affected_types(kind, [change], stored))
        ]
    )


def affected_types(
    kind: DefinitionKind, changes: Sequence[ListChange], stored: StoredDefinitions
) -> set[tuple[int, int]]:
    """Return the object types that changes concern, as (system number, type number).

    A change of an in rule concerns its own object type. A change of an out rule, or of a metaverse type, concerns the
    types of all rules of the metaverse type: any of their objects leads to the metaverse objects.
    """
    rules = [row.definition for row in stored.of_kind(DefinitionKind.SYNC_RULE)]
    sides: list[dict[str, Any]] = []
    for change in changes:
        for definition in (change.before, change.after):
            if definition is None:
                continue
            match kind:
                case DefinitionKind.SYNC_RULE:
                    sides.append(_side(definition))
                    if "out" in definition:
                        sides += [_side(rule) for rule in rules if _metaverse_type(rule) == _metaverse_type(definition)]
                case DefinitionKind.METAVERSE_TYPE:
                    sides += [_side(rule) for rule in rules if _metaverse_type(rule) == definition["type"]]
                case DefinitionKind.SYSTEM if change.before is not None:
                    sides += [
                        {"system": change.key, "type": object_type["name"]} for object_type in definition["types"]
                    ]
                case _:
                    pass
    numbers = {row.name: row.number for row in stored.systems}
    found = ((numbers.get(side["system"]), side["type"]) for side in sides)
    return {
        (system, stored.type_numbers[system, name])
        for system, name in found
        if system is not None and (system, name) in stored.type_numbers
    }


def _side(rule: dict[str, Any]) -> dict[str, Any]:
    side: dict[str, Any] = rule.get("in") or rule.get("out") or {}
    return side


def _metaverse_type(rule: dict[str, Any]) -> str:
    side = _side(rule)
    return str(side.get("to") or side.get("from"))
