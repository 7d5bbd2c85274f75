"""Tasks beside the run profiles: due deletions of metaverse objects, approved holds, clearing and deleting a system.

Each is a run with its own profile, so that it has items, is fenced and excludes other runs of the system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from tenuto.model.work.tasks import OutcomeStatus
from tenuto.postgres.database import Connection
from tenuto_identity.model.definitions.system_definitions import RunKind, RunProfile
from tenuto_identity.model.sync.engine import DeleteAfter, DeleteNow, deletion_rule
from tenuto_identity.runs.imports.deletion_detector import obsolete_pending
from tenuto_identity.runs.object_keys import rebuild_object_keys
from tenuto_identity.runs.page_context import display_of, load_identity_context
from tenuto_identity.runs.run_lifecycle import Page, Run
from tenuto_identity.runs.sync_decisions import (
    IdentityState,
    ObjectResult,
    PageDecision,
    UnjoinedObjects,
    decide_outbound,
    display_of_identity,
)
from tenuto_identity.runs.sync_run import PageWriter, Selection, SyncRun
from tenuto_identity.store import definitions, exports, metaverse, objects, runs, sync_marks
from tenuto_identity.store.definitions import DefinitionChange, DefinitionKind
from tenuto_identity.store.sync_marks import MarkReason

CLEAR_PAGE_SIZE = 2_000

DUE_DELETIONS = RunProfile("Due Deletions", RunKind.DELTA_SYNC)
APPROVAL = RunProfile("Approval", RunKind.FULL_IMPORT)
CLEARING = RunProfile("Clear", RunKind.FULL_IMPORT)
DELETION = RunProfile("Delete", RunKind.FULL_SYNC)
RECALL = RunProfile("Recall", RunKind.DELTA_SYNC)


# --- deletions of metaverse objects ---------------------------------------------------------------------------------


async def delete_due(run: Run, ids: Sequence[int]) -> OutcomeStatus:
    """Delete metaverse objects whose grace period has ended, with delete exports to their targets."""

    async def delete(connection: Connection, page: Page) -> None:
        now = run.now()
        context = await load_identity_context(connection, run.configuration, run.system.name, ids)
        decision = PageDecision()
        for id, identity in context.identities.items():
            if identity.delete_after is None or identity.delete_after > now:  # cancelled or postponed meanwhile
                continue
            decision.identities[id] = IdentityState(
                id,
                run.configuration.rules.metaverse_types[identity.type],
                identity,
                identity,
                {each: context.objects[each] for each in context.joined.get(id, ()) if each in context.objects},
                is_deleted=True,
                results=[ObjectResult()],
            )
        loaded = dict(context.exports)
        unjoined = UnjoinedObjects({}, {})
        await asyncio.to_thread(decide_outbound, run.configuration, context, decision, unjoined, now)
        await PageWriter(run, context, decision, unjoined, loaded, now).write(connection, page)
        for state in decision.identities.values():
            number = page.add_item(
                change="Deleted",
                metaverse_id=state.id,
                type=state.type.name,
                display=display_of_identity(state),
                detail=state.results[0].detail or None,
            )
            before = {name: [list(values), []] for name, values in state.current.attributes.items()}
            page.add_change(number, "identity", state.id, before)
        page.counts.processed += len(decision.identities)

    await run.write_page(delete)
    return await run.finish()


# --- holds ----------------------------------------------------------------------------------------------------------


async def apply_approval(run: Run, held_run: UUID) -> OutcomeStatus:
    """Obsolete exactly the objects that a held run found deleted and that have not come back, and end the hold."""
    await obsolete_pending(run, held_run)

    async def release(connection: Connection) -> None:
        if await runs.release_hold(connection, run.system.number, held_run):
            await runs.drop_pending_clearings(connection, run.system.number)

    return await run.finish(release)


# --- deleted rules --------------------------------------------------------------------------------------------------


class RecallRun(SyncRun):
    """Synchronises the objects that the deletion of a rule marked: without the rule, the next contribution wins, or the
    attribute has no value any more. Other marked objects wait for their sync."""

    def __init__(self, run: Run, page_size: int, rule_number: int, type_number: int) -> None:
        super().__init__(run, page_size)
        self._rule_number = rule_number
        self._type_number = type_number

    async def process(self) -> OutcomeStatus:
        run = self._run
        for system in self._configuration.systems.values():
            await rebuild_object_keys(run, system)
        self._since_stamp = await run.read(sync_marks.draw_stamp)
        cursor = 0
        while True:
            marks = await run.read(
                sync_marks.load_marks_since, self._system.number, cursor, MarkReason.RULE, 0, self._page_size
            )
            if not marks:
                break
            cursor = marks[-1].object_id
            ids = [mark.object_id for mark in marks]

            async def load(connection: Connection, ids: list[int] = ids) -> Selection:
                found = await objects.load_objects(connection, ids)
                return Selection.of_rows([row for row in found if row.type_number == self._type_number])

            await self._process_page(load)
        await self._sync_references()

        async def end(connection: Connection) -> None:
            await definitions.delete_recall(connection, self._rule_number)

        return await self._finish(end)


# --- systems --------------------------------------------------------------------------------------------------------


async def clear_system(run: Run) -> OutcomeStatus:
    """Delete the objects, exports and marks of a system page by page; the metaverse is not touched."""
    await _clear(run)

    async def forget(connection: Connection) -> None:
        await objects.delete_watermarks(connection, run.system.number)
        await _forget_findings(connection, run)
        await runs.clear_hold(connection, run.system.number)

    return await run.finish(forget)


async def _clear(run: Run) -> None:
    while True:

        async def clear(connection: Connection, page: Page) -> int:
            ids = await objects.list_ids(connection, run.system.number, 0, CLEAR_PAGE_SIZE)
            await exports.delete_exports(connection, ids)
            await sync_marks.delete_marks_of_objects(connection, ids)
            page.counts.processed += len(await objects.delete_objects(connection, ids))
            return len(ids)

        if not await run.write_page(clear):
            return
        run.at("clear_page_committed")


async def delete_system(run: Run, change: DefinitionChange) -> OutcomeStatus:
    """Delete a system: schedule orphans by their deletion rule, clear it, delete its rules and its definition.

    If it fails, the state returns to active, and it can be repeated.
    """
    try:
        await run.write_page(_set_state, run, "deleting")
        await _schedule_orphans(run)
        await _clear(run)

        async def remove(connection: Connection) -> None:
            await definitions.lock_definitions(connection)
            stored = await definitions.load_definitions(connection)
            version = await definitions.increment_rules_version(connection)
            for row in stored.of_kind(DefinitionKind.SYNC_RULE):
                side = row.definition.get("in") or row.definition.get("out") or {}
                if side.get("system") == run.system.name:
                    await definitions.delete_definition(connection, row, version, change)
            for row in stored.of_kind(DefinitionKind.SYSTEM):
                if row.name == run.system.name:
                    await definitions.delete_definition(connection, row, version, change)
            await objects.delete_watermarks(connection, run.system.number)
            await definitions.delete_recalls_of_system(connection, run.system.number)
            await _forget_findings(connection, run)

        return await run.finish(remove)
    except BaseException:
        if not run.ctx.lease_lost:
            await asyncio.shield(
                asyncio.ensure_future(run.read(definitions.set_system_state, run.system.name, "active"))
            )
        raise


async def _forget_findings(connection: Connection, run: Run) -> None:
    """Drop what imports have found and nothing has let pass."""
    await runs.drop_pending_deletions_of_system(connection, run.system.number, run.id)
    await runs.drop_pending_clearings(connection, run.system.number)


async def _set_state(connection: Connection, page: Page, run: Run, state: str) -> None:
    await definitions.set_system_state(connection, run.system.name, state)


async def _schedule_orphans(run: Run) -> None:
    """Apply the deletion rule to every metaverse object that loses its object in this system."""
    after = 0
    while True:
        joined = await run.read(metaverse.list_joined, run.system.number, after, CLEAR_PAGE_SIZE)
        if not joined:
            return
        after = joined[-1][0]
        await run.write_page(_schedule_page, run, [metaverse_id for _, metaverse_id in joined])


async def _schedule_page(connection: Connection, page: Page, run: Run, ids: Sequence[int]) -> None:
    now, system = run.now(), run.system.name
    context = await load_identity_context(connection, run.configuration, system, ids)
    actor = run.record.initiator
    initiator = {
        "type": actor.type.value, "id": actor.id, "name": actor.name, "run": str(run.id), "system": system,
    }  # fmt: skip
    writes: list[metaverse.IdentityWrite] = []
    for id, identity in context.identities.items():
        metaverse_type = run.configuration.rules.metaverse_types[identity.type]
        remaining = {context.objects[each].system for each in context.joined.get(id, ())} - {system}
        decision = deletion_rule(metaverse_type, identity.origin, system, remaining)
        row = context.identity_rows[id]
        if not isinstance(decision, DeleteNow | DeleteAfter) or row.delete_after is not None:
            continue
        grace = decision.grace if isinstance(decision, DeleteAfter) else None
        writes.append(
            metaverse.IdentityWrite(
                id,
                row.type_number,
                row.attributes,
                row.provenance,
                row.display,
                row.origin,
                now,
                now + grace if grace is not None else now,
                initiator,
                row.reevaluate_at,
            )
        )
        page.add_item(
            change="ScheduledForDeletion",
            metaverse_id=id,
            type=identity.type,
            display=display_of(identity.attributes, metaverse_type.display),
        )
    await metaverse.lock_identities(connection, [each.id for each in writes])
    await metaverse.update_identities(connection, writes, now)
    page.counts.processed += len(writes)
