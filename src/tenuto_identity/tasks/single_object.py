"""Synchronise one object now: read it, sync it, export what follows and confirm it, with pages of one.

The processors are those of whole runs; here they are limited to single objects. Nothing else of the systems is read or
sent, no watermark moves, and no other deletion is detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenuto.errors import NotFound
from tenuto.extension import ExtensionServices
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.model.work.tasks import OutcomeStatus
from tenuto.postgres.database import Connection, Database
from tenuto_identity.connectors.contract import Connector, ConnectorError, ReadComplete, ReadScope
from tenuto_identity.model.decoding import Decoding, canonical_anchor
from tenuto_identity.model.definitions.system_definitions import RunKind, RunProfile
from tenuto_identity.model.sync.guards import GuardKind
from tenuto_identity.model.sync.pending_exports import ExportState
from tenuto_identity.model.values import BadValue
from tenuto_identity.runs import run_lifecycle
from tenuto_identity.runs.connector_opener import decoding_of, open_connector
from tenuto_identity.runs.definition_snapshot import Configuration, System, load_configuration
from tenuto_identity.runs.export_run import ExportRun
from tenuto_identity.runs.imports.deletion_detector import obsolete_pending
from tenuto_identity.runs.imports.import_run import ImportRun
from tenuto_identity.runs.object_keys import rebuild_object_keys
from tenuto_identity.runs.run_lifecycle import Run, RunFailed, RunOutcome, held_system
from tenuto_identity.runs.sync_run import SyncRun, load_all
from tenuto_identity.settings import IdentitySettings
from tenuto_identity.store import exports, objects, runs, sync_marks, transaction_settings

IMPORT_ONE = RunProfile("Import One", RunKind.DELTA_IMPORT)
SYNC_ONE = RunProfile("Sync One", RunKind.DELTA_SYNC)
EXPORT_ONE = RunProfile("Export One", RunKind.EXPORT)


class SingleImport(ImportRun):
    """Imports the objects with these anchors."""

    _counts_cleared = False

    def __init__(self, run: Run, connector: Connector, decoding: Decoding, anchors: Sequence[str]) -> None:
        super().__init__(run, connector, decoding)
        self._anchors = tuple(anchors)

    async def process(self) -> OutcomeStatus:
        """Read the objects; one that the source does not have any more is deleted, unless a guard holds it."""
        run = self._run
        if not self._connector.capabilities.read_one:
            raise ConnectorError(
                "read_one_unsupported",
                f"the connector of {self._system.name!r} cannot read single objects",
                remedy="run an import of the system",
            )
        definition = self._system.definition
        scope = ReadScope(tuple(definition.types.values()), definition.containers, anchors=self._anchors)
        await self._confirmation.begin()
        await self._load_state()
        await self._read_pages(scope, None)
        stored = await run.read(_find_objects, self._system, self._anchors)
        missing = [id for id in stored if id not in self._seen]
        if not stored:
            raise RunFailed(
                f"neither {self._system.name!r} nor its connector space has an object"
                f" {', '.join(map(repr, self._anchors))}",
                code="identity.object.not_found",
                remedy="check the anchor",
            )
        if missing:
            await self._deletions.keep_missing(missing)
            guards = await self._detect_deletions_of_one()
            run.held = [guard.message for guard in guards]
            if guards:
                await run.read(runs.delete_pending_deletions, run.id, missing)
            else:
                await obsolete_pending(run, run.id)
        return await run.finish()

    async def _detect_deletions_of_one(self) -> list[Any]:
        found = await self._deletions.detect(ReadComplete(types=()), is_delta=True)
        return [guard for guard in found if guard.kind is GuardKind.DELETIONS]


class SingleSync(SyncRun):
    """Synchronises these objects."""

    def __init__(self, run: Run, page_size: int, ids: Sequence[int]) -> None:
        super().__init__(run, page_size)
        self._ids = list(ids)

    async def process(self) -> OutcomeStatus:
        for system in self._configuration.systems.values():
            await rebuild_object_keys(self._run, system)
        self._since_stamp = await self._run.read(sync_marks.draw_stamp)
        await self._process_page(load_all(self._ids))
        return await self._finish()


async def sync_one(
    services: ExtensionServices, ctx: Context, database: Database, system: str, anchor: str, *, export: bool
) -> dict[str, Any]:
    """Import and sync one object as this attempt; with ``export``, send and confirm what follows for its identity."""
    single = _SingleObject(services, ctx, database, system, anchor)
    await single.run(export=export)
    return {"system": system, "anchor": anchor, "steps": [each.to_json() for each in single.outcomes]}


class _SingleObject:
    def __init__(self, services: ExtensionServices, ctx: Context, database: Database, system: str, anchor: str) -> None:
        self._services = services
        self._ctx = ctx
        self._database = database
        self._system = system
        self._anchor = anchor
        self.outcomes: list[RunOutcome] = []

    async def run(self, *, export: bool) -> None:
        configuration = await self._read(load_configuration)
        if self._system not in configuration.systems:
            raise NotFound(f"there is no connected system {self._system!r}", code="identity.system.not_found")
        held = configuration.systems[self._system].row.held
        if held is not None and not held.get("deletes_only"):  # its sync would be refused, after the import
            raise held_system(self._system, held)
        await self._import(self._system, [self._anchor])
        ids = await self._read(_find_objects, configuration.systems[self._system], [self._anchor])
        concerned = set(await self._read(_joined_objects, ids))
        if ids:
            await self._sync(ids)
            concerned |= set(await self._read(_joined_objects, ids))
        waiting = await self._read(_load_waiting, sorted(concerned), configuration)
        if export:
            for target, target_ids in waiting.items():
                await self._export(configuration.systems[target], target_ids)
        bad = [each for each in self.outcomes if not each.is_good]
        if bad:
            self._ctx.error("; ".join(f"{each.profile} of {each.system}: {_problem(each)}" for each in bad))

    async def _read(self, work: Any, *arguments: Any) -> Any:
        async with self._ctx.connection() as connection, transaction_settings.transaction(connection):
            return await work(connection, *arguments)

    async def _execute(self, system: str, profile: RunProfile, process: run_lifecycle.Processor) -> RunOutcome:
        outcome = await run_lifecycle.execute_part(self._ctx, self._database, system, profile, lambda _: process)
        self.outcomes.append(outcome)
        return outcome

    async def _import(self, system: str, anchors: Sequence[str]) -> None:
        async def process(run: Run) -> OutcomeStatus:
            async with open_connector(self._services, self._ctx, run.system) as connector:
                return await SingleImport(run, connector, decoding_of(run.system), anchors).process()

        outcome = await self._execute(system, IMPORT_ONE, process)
        if outcome.status is OutcomeStatus.FAILED:
            raise PermanentFailure(
                f"{system}: {_problem(outcome)}", code="identity.sync_one.import_failed", remedy="see the run"
            )

    async def _sync(self, ids: Sequence[int]) -> None:
        page = self._services.section(IdentitySettings).sync_page
        outcome = await self._execute(self._system, SYNC_ONE, lambda run: SingleSync(run, page, ids).process())
        if outcome.status is OutcomeStatus.FAILED:
            raise PermanentFailure(
                f"{self._system}: {_problem(outcome)}", code="identity.sync_one.sync_failed", remedy="see the run"
            )

    async def _export(self, target: System, ids: Sequence[int]) -> None:
        confirms = True

        async def process(run: Run) -> OutcomeStatus:
            nonlocal confirms
            async with open_connector(self._services, self._ctx, run.system) as connector:
                capabilities = connector.capabilities
                confirms = capabilities.confirms_immediately or not capabilities.read_one
                return await ExportRun(run, connector, only=ids).process()

        outcome = await self._execute(target.name, EXPORT_ONE, process)
        if confirms or outcome.status is OutcomeStatus.FAILED:
            return
        anchors = await self._read(_anchors_of, ids)
        if anchors:
            await self._import(target.name, anchors)


def _problem(outcome: RunOutcome) -> str:
    errors = ", ".join(f"{count} {error}" for error, count in sorted(outcome.counts.errors.items()))
    return "; ".join(outcome.held) or outcome.problem or errors or outcome.status.value


async def _find_objects(connection: Connection, system: System, anchors: Sequence[str]) -> list[int]:
    """Return the objects of a system with these anchors, which may be written as the system writes them."""
    wanted: dict[str, None] = {}
    for anchor in anchors:
        for object_type in system.definition.types.values():
            try:
                wanted[canonical_anchor(anchor, object_type)] = None
            except BadValue:
                continue
    return [id for each in wanted for id in await objects.find_by_anchor(connection, system.number, each)]


async def _joined_objects(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Return all objects of the identities that these objects are joined to."""
    rows = await objects.load_objects(connection, ids)
    identities = sorted({row.metaverse_id for row in rows if row.metaverse_id is not None})
    return [row.id for row in await objects.load_joined_objects(connection, identities)]


async def _load_waiting(
    connection: Connection, ids: Sequence[int], configuration: Configuration
) -> dict[str, list[int]]:
    """Return the objects among these whose exports can be sent or confirmed, by system."""
    found: dict[str, list[int]] = {}
    for id, pending in (await exports.load_exports(connection, ids, configuration.system_names)).items():
        # Those of a lost attempt are executing or exported.
        if pending.state is not ExportState.FAILED:
            found.setdefault(pending.system, []).append(id)
    return found


async def _anchors_of(connection: Connection, ids: Sequence[int]) -> list[str]:
    return [row.anchor for row in await objects.load_objects(connection, ids) if row.anchor is not None]
