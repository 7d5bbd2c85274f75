"""Example data: metaverse objects generated from a template in one transaction, with progress."""

from __future__ import annotations

import asyncio
from typing import Any

from tenuto.jobs.context import Context, PermanentFailure
from tenuto.postgres.database import Connection, Database
from tenuto_identity.model.definitions.templates import GeneratedObject, ObjectGenerator, Template, parse_template
from tenuto_identity.model.objects import MetaverseObject, Origin
from tenuto_identity.model.sync.matcher import metaverse_keys
from tenuto_identity.runs.definition_snapshot import Configuration, load_configuration
from tenuto_identity.runs.import_reader import index_key
from tenuto_identity.runs.page_context import display_of
from tenuto_identity.store import metaverse, transaction_settings
from tenuto_identity.store.definitions import DefinitionKind
from tenuto_identity.store.metaverse import IdentityWrite, MetaverseReference

PAGE_OBJECTS = 2_000


async def generate_from_template(ctx: Context, database: Database, name: str, seed: str) -> dict[str, Any]:
    """Generate the objects of a template. A repeated attempt of the same task generates nothing."""
    async with ctx.connection() as connection, transaction_settings.transaction(connection):
        done = await metaverse.load_template_run(connection, ctx.task_id)
        if done is not None:
            return {"template": name, "created": done}
        configuration = await load_configuration(connection)
        template = _find(configuration, name)
        total = sum(part.count for part in template.objects)
        created = 0
        ids_by_type: dict[str, list[int]] = {}
        for part in template.objects:
            metaverse_type = configuration.rules.metaverse_types[part.type]
            generator = ObjectGenerator(part, metaverse_type, f"{seed}:{name}")
            own = ids_by_type.setdefault(part.type, [])
            first = len(own)
            for start in range(0, part.count, PAGE_OBJECTS):
                ctx.raise_if_cancelled()
                count = min(PAGE_OBJECTS, part.count - start)
                counts = {each: len(ids) for each, ids in ids_by_type.items()}
                numbers = range(start, start + count)
                page = await asyncio.to_thread(generator.generate_many, numbers, counts)
                own += await metaverse.draw_ids(connection, count)
                new = own[first + start :]
                await _write(connection, configuration, part.type, new, page, ids_by_type, first, database)
                created += count
                ctx.progress(created, total, f"{created} of {total} objects generated")
        await metaverse.insert_template_run(connection, ctx.task_id, name, seed, created, database.clock.now())
    return {"template": name, "created": created}


def _find(configuration: Configuration, name: str) -> Template:
    for row in configuration.stored.of_kind(DefinitionKind.TEMPLATE):
        if row.name == name:
            return parse_template(row.definition)
    raise PermanentFailure(
        f"there is no template {name!r}",
        code="identity.template.not_found",
        remedy="apply a definition file that contains it",
    )


async def _write(
    connection: Connection,
    configuration: Configuration,
    type_name: str,
    ids: list[int],
    page: list[GeneratedObject],
    ids_by_type: dict[str, list[int]],
    first: int,
    database: Database,
) -> None:
    metaverse_type = configuration.rules.metaverse_types[type_name]
    type_number = configuration.metaverse_type_numbers[type_name]
    matched = configuration.rules.matched_attributes(type_name)
    writes: list[IdentityWrite] = []
    references: list[MetaverseReference] = []
    keys: dict[int, list[tuple[int, int, str]]] = {}
    for id, each in zip(ids, page, strict=True):
        writes.append(
            IdentityWrite(
                id,
                type_number,
                each.attributes,
                {},
                display_of(each.attributes, metaverse_type.display),
                Origin.INTERNAL,
                None,
                None,
                None,
                None,
            )
        )
        for name, numbers in each.references.items():
            targets = ids_by_type[metaverse_type.attributes[name].to or type_name]
            offset = first if metaverse_type.attributes[name].to == type_name else 0
            references += [
                MetaverseReference(id, configuration.attribute_numbers[name], targets[offset + number], 0)
                for number in numbers
            ]
        value = MetaverseObject(id, type_name, each.attributes)
        keys[id] = [
            (type_number, configuration.attribute_numbers[name], index_key(key))
            for name, found in metaverse_keys(value.attributes, matched).items()
            for key in sorted(found)
        ]
    now = database.clock.now()
    await metaverse.insert_identities(connection, writes, now)
    await metaverse.write_references(connection, [], references)
    await metaverse.replace_keys(connection, keys, are_new=True)
