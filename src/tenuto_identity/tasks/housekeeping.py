"""Housekeeping: due deletions become tasks of their original initiators, due re-evaluations become sync marks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tenuto.extension import ExtensionServices, Service
from tenuto.ids import new_id
from tenuto.logs import Log
from tenuto.model.access.actors import Actor, ActorType
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import PollingLoop
from tenuto_identity.model.objects import MetaverseObject
from tenuto_identity.runs.definition_snapshot import Configuration, load_configuration
from tenuto_identity.runs.page_context import display_of, load_identity_context
from tenuto_identity.settings import IdentitySettings
from tenuto_identity.store import definitions, metaverse, previews, run_items, runs, sync_marks, transaction_settings
from tenuto_identity.store.metaverse import DueDeletion
from tenuto_identity.store.run_items import ChangeRecord, Item
from tenuto_identity.store.runs import NewRun
from tenuto_identity.store.sync_marks import MarkReason
from tenuto_identity.tasks.system_tasks import DUE_DELETIONS
from tenuto_identity.tasks.task_creation import enqueue_step

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
    await _end_abandoned_runs(database, now)  # guard: identity.housekeeping_ends_abandoned_runs
    if await previews.is_anything_expired(database, now):
        await _drop_previews(database, now)
    if await definitions.has_recalls(database):
        await _enqueue_recalls(services, database)
    if not await metaverse.is_anything_due(database, now):
        return

    async def mark(connection: Connection) -> list[DueDeletion]:
        await transaction_settings.prepare(connection)
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
        await _delete_without_systems(connection, [each for each in due if each.system is None], now)
        return due

    await _enqueue_deletions(services, database, await database.transaction(mark))


async def _end_abandoned_runs(database: Database, now: datetime) -> None:
    """End open runs whose task has ended: they would keep all other runs of their systems waiting."""
    for each in await transaction_settings.read_with(database, runs.end_abandoned_runs, now):
        log.warning("abandoned run ended", run_id=each.id, task_id=each.task_id, system=each.system)


async def _enqueue_deletions(services: ExtensionServices, database: Database, due: list[DueDeletion]) -> None:
    """Enqueue one task for each system and initiator: the deletion is done in the name of the original initiator."""
    grouped: dict[tuple[Actor, str], list[int]] = {}
    for each in due:
        if each.system is not None:
            grouped.setdefault((_initiator_of(each), each.system), []).append(each.id)
    for (actor, system), ids in grouped.items():
        await enqueue_step(
            services,
            database,
            "identity.delete_due",
            {"system": system, "identities": ids},
            actor,
            unique_key=f"identity.housekeeping:{system}:{actor.type.value}:{actor.id or actor.name}",
        )


def _initiator_of(due: DueDeletion) -> Actor:
    initiator = due.deletion_initiator or {}
    return Actor(ActorType(initiator.get("type", "system")), initiator.get("id"), initiator.get("name", "housekeeping"))


async def _delete_without_systems(connection: Connection, due: Sequence[DueDeletion], now: datetime) -> None:
    """Delete metaverse objects when there are no systems any more: no task can, and nothing has to be exported.

    The deletions of each initiator are recorded as a run without a system."""
    if not due:
        return
    await metaverse.lock_identities(connection, [each.id for each in due])
    configuration = await load_configuration(connection)
    context = await load_identity_context(connection, configuration, "", [each.id for each in due])
    grouped: dict[Actor, dict[int, MetaverseObject]] = {}
    for each in due:
        identity = context.identities.get(each.id)
        # guard: identity.due_again_after_lock
        if identity is not None and identity.delete_after is not None and identity.delete_after <= now:
            grouped.setdefault(_initiator_of(each), {})[each.id] = identity
    for actor, identities in grouped.items():
        await _delete_of_initiator(connection, configuration, actor, identities, now)


async def _delete_of_initiator(
    connection: Connection,
    configuration: Configuration,
    actor: Actor,
    identities: dict[int, MetaverseObject],
    now: datetime,
) -> None:
    await metaverse.delete_identities(connection, list(identities), now)
    deleted: list[Item] = []
    changes: list[ChangeRecord] = []
    for number, (id, identity) in enumerate(identities.items(), 1):
        display = display_of(identity.attributes, configuration.rules.metaverse_types[identity.type].display)
        deleted.append(Item(number, metaverse_id=id, type=identity.type, display=display, change="Deleted"))
        before = {name: [list(values), []] for name, values in identity.attributes.items()}
        changes.append(ChangeRecord(number, "identity", id, before))
    run_id = new_id()
    run = NewRun(
        run_id,
        run_id,  # no task
        0,
        runs.NO_SYSTEM_NUMBER,
        DUE_DELETIONS.name,
        DUE_DELETIONS.kind,
        configuration.rules_version,
        now,
        actor,
        counts={"processed": len(deleted), "items": len(deleted), "changes": {"Deleted": len(deleted)}},
    )
    await runs.insert_ended_run(connection, run)
    await run_items.write_items(connection, run_id, deleted, changes)
    log.info("identities deleted without systems", identities=len(deleted), run_id=run_id)


async def _drop_previews(database: Database, now: datetime) -> None:
    """Delete previews that are past their time, and scratch copies that killed workers left."""

    async def drop(connection: Connection) -> list[str]:
        await transaction_settings.prepare(connection, whole_tables=True)
        return await previews.drop_expired(connection, now)

    for name in await database.transaction(drop):
        log.warning("abandoned preview dropped", schema=name)


async def _enqueue_recalls(services: ExtensionServices, database: Database) -> None:
    """Enqueue a task for each deleted rule, in the name of the user who deleted it."""
    for each in await transaction_settings.read_with(database, definitions.list_recalls):
        await enqueue_step(
            services,
            database,
            "identity.recall",
            {"system": each.system, "rule_number": each.rule_number, "type_number": each.type_number},
            Actor(ActorType(each.initiator_type), each.initiator_id, each.initiator_name),
            unique_key=f"identity.recall:{each.rule_number}",
        )
