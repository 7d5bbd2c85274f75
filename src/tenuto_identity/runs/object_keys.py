"""Keys by which out rules find existing objects of a target: written by imports, made again after a rule changed."""

from __future__ import annotations

from typing import Any

from tenuto.postgres.database import Connection
from tenuto_identity.model.objects import ConnectorObject
from tenuto_identity.model.rules.sync_rules import Direction
from tenuto_identity.model.sync.matcher import match_attempts
from tenuto_identity.model.values import Document
from tenuto_identity.runs.definition_snapshot import System
from tenuto_identity.runs.import_reader import index_key
from tenuto_identity.runs.run_lifecycle import Page, Run
from tenuto_identity.store import objects

KEY_PAGE_SIZE = 5_000


def object_match_keys(
    run: Run, system: str, type_name: str, object_id: int, attributes: Document
) -> list[tuple[int, str, Any]]:
    """Return the keys by which out rules find an object, as (number of the metaverse attribute, key, value)."""
    configuration = run.configuration
    value = ConnectorObject(object_id, system, type_name, None, attributes=attributes)
    found: list[tuple[int, str, Any]] = []
    for rule in configuration.rules.rules:
        if (
            not rule.enabled
            or rule.direction is not Direction.OUT
            or (rule.system, rule.object_type) != (system, type_name)
        ):
            continue
        metaverse_type = configuration.rules.metaverse_types[rule.metaverse_type]
        object_type = configuration.rules.object_type(system, type_name)
        for attempt in match_attempts(value, object_type, [rule], metaverse_type.attributes, run.now()):
            number = configuration.attribute_numbers[attempt.match.metaverse]
            found += [(number, index_key(key), stored) for key, stored in attempt.keys.items()]
    return found


async def rebuild_object_keys(run: Run, system: System) -> None:
    """Make the keys of all objects of a target again if its match rules are not those that the keys were made by."""
    signature = run.configuration.match_signature(system.name)
    has_rules = run.configuration.has_match_rules(system.name)
    if system.row.keyed_by == signature or (system.row.keyed_by is None and not has_rules):
        return
    after = 0
    while True:

        async def write(connection: Connection, page: Page, after: int = after) -> int | None:
            rows = await objects.load_objects_page(connection, system.number, after, KEY_PAGE_SIZE)
            await objects.replace_object_keys(
                connection,
                system.number,
                {
                    row.id: object_match_keys(
                        run, system.name, system.type_names[row.type_number], row.id, row.attributes
                    )
                    for row in rows
                    if system.type_names.get(row.type_number) in system.definition.types
                },
            )
            if not rows:
                await objects.store_keyed_by(connection, system.number, signature)
                return None
            return rows[-1].id

        last = await run.write_page(write)
        if last is None:
            return
        after = last
