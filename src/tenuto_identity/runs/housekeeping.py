"""Housekeeping: due deletions become tasks of their original initiators, due re-evaluations become sync marks."""

from __future__ import annotations

from collections.abc import Mapping

from tenuto.extension import ExtensionServices, Service
from tenuto.logs import Log
from tenuto.model.actors import Actor, ActorType
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import PollingLoop
from tenuto_identity.runs.task_enqueuing import enqueue_step
from tenuto_identity.settings import IdentitySettings
from tenuto_identity.store import definitions, metaverse, session, sync_marks
from tenuto_identity.store.metaverse import DueDeletion
from tenuto_identity.store.sync_marks import MarkReason

REEVALUATION_BATCH = 5_000
log = Log("tenuto.identity.housekeeping")


def housekeeping_service(services: ExtensionServices) -> Service:
    """A service that looks for due work at an interval. Several may run: each piece of work is taken once."""

    async def run_cycle() -> float:
        await run_housekeeping(services)
        return services.section(IdentitySettings).housekeeping_seconds

    return PollingLoop("identity-housekeeping", run_cycle, log)


async def run_housekeeping(services: ExtensionServices) -> None:
    """Run one cycle: mark what must be evaluated again, and enqueue the deletions that are due."""
    database = await services.open_database()
    now = database.clock.now()
    if not await metaverse.is_anything_due(database, now):
        return

    async def mark(connection: Connection) -> tuple[list[DueDeletion], dict[str, int]]:
        await session.prepare(connection)
        for name in await metaverse.reset_interrupted_deletions(connection):
            log.warning("interrupted deletion of a system reset", system=name)
        identities = await metaverse.take_due_reevaluations(connection, now, REEVALUATION_BATCH)
        await sync_marks.mark_joined_objects(connection, identities, MarkReason.REEVALUATION)
        found = await metaverse.take_due_object_reevaluations(connection, now, REEVALUATION_BATCH)
        await sync_marks.set_marks(connection, found, MarkReason.REEVALUATION)
        if identities or found:
            log.info("objects marked for re-evaluation", identities=len(identities), objects=len(found))
        limit = services.section(IdentitySettings).deletions_per_cycle
        due = await metaverse.find_due_deletions(connection, now, limit)
        stored = await definitions.load_definitions(connection)
        return due, {row.name: row.number for row in stored.systems}

    due, systems = await database.transaction(mark)
    await _enqueue_deletions(services, database, due, systems)


async def _enqueue_deletions(
    services: ExtensionServices, database: Database, due: list[DueDeletion], systems: Mapping[str, int]
) -> None:
    """Enqueue one task for each system and initiator: the deletion is done in the name of the original initiator."""
    grouped: dict[tuple[str, str | None, str, str], list[int]] = {}
    for each in due:
        initiator = each.deletion_initiator or {}
        system = str(initiator.get("system"))
        if system not in systems:  # it was deleted since
            system = next(iter(systems), "")
        key = initiator.get("type", "system"), initiator.get("id"), initiator.get("name", "housekeeping"), system
        grouped.setdefault(key, []).append(each.id)
    for (kind, id, name, system), ids in grouped.items():
        if system:
            await enqueue_step(
                services,
                database,
                "identity.delete_due",
                {"system": system, "identities": ids},
                Actor(ActorType(kind), id, name),
                unique_key=f"identity.housekeeping:{system}:{kind}:{id or name}",
            )
