"""Checks of a connected system outside of runs: settings and reachability, and the schema that the system has."""

from __future__ import annotations

from typing import Any

from tenuto.extension import ExtensionServices
from tenuto.jobs.context import Context
from tenuto_identity.model.definitions.system_definitions import SystemDefinition
from tenuto_identity.model.schema import ObjectType, Schema
from tenuto_identity.runs.connector_opener import call_connector, open_connector
from tenuto_identity.runs.definition_snapshot import System, load_configuration
from tenuto_identity.runs.run_lifecycle import RunFailed
from tenuto_identity.store import definitions, transaction_settings


async def check_system(services: ExtensionServices, ctx: Context, name: str) -> dict[str, Any]:
    """Check a system as this attempt; a failed check fails it with the message of the connector."""
    system = await _load_system(ctx, name)
    async with open_connector(services, ctx, system, read_only=True) as connector:
        await call_connector(connector.check)
        found = connector.capabilities
    return {
        "system": name,
        "connector": system.definition.connector,
        "full": found.full,
        "delta": found.delta,
        "export": found.export,
        "confirms_immediately": found.confirms_immediately,
        "containers": found.containers,
        "read_one": found.read_one,
    }


async def discover_schema(services: ExtensionServices, ctx: Context, name: str) -> dict[str, Any]:
    """Read the schema of a system and store it; return it with the differences to what is selected."""
    system = await _load_system(ctx, name)
    async with open_connector(services, ctx, system, read_only=True) as connector:
        schema = await call_connector(connector.discover)
    found = describe_schema(schema)
    async with ctx.connection() as connection, transaction_settings.transaction(connection):
        await definitions.store_discovered(connection, system.number, found)
    missing, unselected = compare_schema(schema, system.definition)
    if missing:
        ctx.warn(f"selected but not in the system: {', '.join(missing)}")
    return {"system": name, **found, "missing": missing, "unselected": unselected}


def describe_schema(schema: Schema) -> dict[str, Any]:
    """Return a schema as plain data."""
    return {
        "types": [
            {
                "name": each.name,
                "anchor": each.anchor,
                "attributes": [
                    {
                        "name": attribute.name,
                        "type": attribute.type.value,
                        "multi": attribute.multi,
                        "to": attribute.to,
                        "writable": attribute.writable.value,
                    }
                    for attribute in each.attributes.values()
                ],
            }
            for each in schema.types
        ],
        "partitions": list(schema.partitions),
        "containers": [
            {"address": each.address, "name": each.name, "parent": each.parent} for each in schema.containers
        ],
    }


def compare_schema(schema: Schema, definition: SystemDefinition) -> tuple[list[str], list[str]]:
    """Return what is selected and not in the system, and attributes of selected types that are not selected."""
    types = {each.name: each for each in schema.types}
    missing: list[str] = []
    unselected: list[str] = []
    for name, selected in definition.types.items():
        found = types.get(name)
        if found is None:
            missing.append(name)
            continue
        missing += [f"{name}.{each}" for each in _names(selected) if each not in found.attributes]
        unselected += [f"{name}.{each}" for each in _names(found) if each not in selected.attributes]
    return missing, unselected


def _names(object_type: ObjectType) -> list[str]:
    return list(object_type.attributes)


async def _load_system(ctx: Context, name: str) -> System:
    async with ctx.connection() as connection, transaction_settings.transaction(connection):
        configuration = await load_configuration(connection)
    if name not in configuration.systems:
        raise RunFailed(
            f"there is no connected system {name!r}",
            code="identity.system.not_found",
            remedy="list them with `tenuto identity systems`",
        )
    return configuration.systems[name]
