"""Preview: the runs of a profile or of a schedule, executed by the same processors on a scratch copy of the tables.

Connectors are opened for reading, and requests are kept instead of being sent. The copy is dropped at the end; what the
runs would do is stored as the result of the preview.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenuto.errors import UserError
from tenuto.extension import ExtensionServices
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.logs import Log
from tenuto.postgres.database import Connection, Database
from tenuto_identity.connectors.contract import Connector
from tenuto_identity.model.definitions.system_definitions import RunKind, RunProfile
from tenuto_identity.model.rules.sync_rules import Direction
from tenuto_identity.model.sync.explanation import sensitive_attributes
from tenuto_identity.runs import run_lifecycle
from tenuto_identity.runs.connector_opener import decoding_of
from tenuto_identity.runs.definition_snapshot import System, load_configuration
from tenuto_identity.runs.preview_connector import PreviewConnector, PreviewedSystem
from tenuto_identity.runs.profile_processors import choose_processor
from tenuto_identity.runs.run_lifecycle import WAIT_SECONDS, RunOutcome
from tenuto_identity.store import previews, sync_marks, transaction_settings

QUOTING_FIELDS = ("problem", "warnings")
"""Texts of a step that can quote values of objects."""
log = Log("tenuto.identity.previews")


@dataclass(frozen=True, slots=True)
class PreviewStep:
    """A run profile to be previewed."""

    system: str
    profile: str | RunProfile
    """The name of a profile of the system, or one that the system does not define."""
    group: int = 0
    """Steps of one group run at the same time in a schedule; a failed step stops the groups after it."""
    continue_on_failure: bool = False


class _Preview:
    def __init__(self, services: ExtensionServices, ctx: Context, database: Database, id: UUID, schema: str) -> None:
        self._services = services
        self._ctx = ctx
        self._database = database
        self._id = id
        self._schema = schema
        self._systems: dict[str, PreviewedSystem] = {}
        self._outcomes: list[RunOutcome] = []
        self._last_item = 0
        self._last_request = 0

    async def run(self, connection: Connection, steps: Sequence[PreviewStep]) -> list[dict[str, Any]]:
        """Execute the steps in order until a failed one stops the groups after it."""
        shown: list[dict[str, Any]] = []
        failed_group: int | None = None
        for number, step in enumerate(steps, 1):
            if failed_group is not None and step.group > failed_group:
                break
            self._ctx.progress(number - 1, len(steps), f"{_name(step.profile)} of {step.system}")
            outcome = await run_lifecycle.execute_part(
                self._ctx,
                self._database,
                step.system,
                step.profile,
                lambda profile: choose_processor(self._services, self._ctx, profile, open_for=self._open),
                schema=self._schema,
                previewed=True,
            )
            sent = self._systems[step.system].take_requests() if step.system in self._systems else []
            shown.append({**outcome.to_json(), "step": number, "requests": len(sent)})
            await self._keep(connection, number, outcome, sent, shown)
            if not outcome.is_good and not step.continue_on_failure:
                failed_group = step.group
        return shown

    def _open(self, connector: Connector, system: System, _profile: RunProfile) -> Connector:
        previewed = self._systems.setdefault(system.name, PreviewedSystem(decoding_of(system)))
        return PreviewConnector(connector, previewed, system.definition.types.values())

    async def _keep(
        self,
        connection: Connection,
        number: int,
        outcome: RunOutcome,
        sent: Sequence[dict[str, Any]],
        shown: Sequence[dict[str, Any]],
    ) -> None:
        async with transaction_settings.transaction(connection, self._schema, whole_tables=True):
            self._last_item = await previews.keep_items(connection, self._id, number, outcome.run_id, self._last_item)
            await transaction_settings.prepare(connection, whole_tables=True)
            self._last_request = await previews.write_requests(
                connection, self._id, number, outcome.system, self._last_request, sent
            )
            await previews.store_steps(connection, self._id, shown)


async def run_preview(
    services: ExtensionServices,
    ctx: Context,
    database: Database,
    steps: Sequence[PreviewStep],
    change_definitions: Callable[[Connection], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """Preview steps as this attempt; ``change_definitions`` changes the definitions of the scratch copy first.

    Without steps, it shows what follows from the changed definitions. The preview has the id of the task.
    """
    id = ctx.task_id
    async with ctx.connection() as connection, _scratch_copy(ctx, connection, id) as schema:
        async with transaction_settings.transaction(connection):
            if not await previews.begin_preview(connection, id):
                raise PermanentFailure(
                    f"there is no preview {id}", code="identity.preview.not_found", remedy="start another one"
                )
        state, problem, shown = "failed", None, []
        try:
            async with connection.transaction(isolation="repeatable_read"):
                await transaction_settings.prepare(connection, whole_tables=True)
                await previews.create_scratch_copy(connection, schema)
            async with transaction_settings.transaction(connection, schema, whole_tables=True):
                sensitive = sensitive_attributes((await load_configuration(connection)).rules)
                if change_definitions is not None:
                    await change_definitions(connection)
                    # guard: identity.preview_declared_sensitive
                    sensitive |= sensitive_attributes((await load_configuration(connection)).rules)
                if not steps:
                    steps = await _find_following_steps(connection)
            async with transaction_settings.transaction(connection):
                await previews.store_sensitive(connection, id, sorted(sensitive))
            shown = await _Preview(services, ctx, database, id, schema).run(connection, steps)
            state = "completed"
        except UserError as error:
            problem = error.message
            raise PermanentFailure(error.message, code=error.code, remedy=error.remedy) from error
        except Exception as error:
            problem = str(error)
            raise
        finally:
            if not ctx.lease_lost:
                await asyncio.shield(asyncio.ensure_future(_end(connection, database, id, schema, state, problem)))
    log.info("preview ended", preview=id, steps=len(shown))
    # Viewers may read the result of a task; texts that can quote values are in the record of the preview only.
    results = [{name: value for name, value in each.items() if name not in QUOTING_FIELDS} for each in shown]
    return {"preview": str(id), "steps": results}


async def _find_following_steps(connection: Connection) -> list[PreviewStep]:
    """Return what follows from definitions that were just applied: delta syncs of the systems with marked objects, then
    exports to the systems that out rules write to. One that fails stops no other of its kind."""
    configuration = await load_configuration(connection)
    marked = set(await sync_marks.list_marked_systems(connection))
    written = {rule.system for rule in configuration.rules.rules if rule.enabled and rule.direction is Direction.OUT}
    active = [each for _, each in sorted(configuration.systems.items()) if each.row.state == "active"]
    return [
        *(
            PreviewStep(each.name, _profile_of(each, RunKind.DELTA_SYNC, "Delta Sync"), 0, continue_on_failure=True)
            for each in active
            if each.number in marked
        ),
        *(
            PreviewStep(each.name, _profile_of(each, RunKind.EXPORT, "Export"), 1, continue_on_failure=True)
            for each in active
            if each.name in written and marked
        ),
    ]


def _profile_of(system: System, kind: RunKind, name: str) -> RunProfile:
    """Return the first run profile of a kind, or a plain one if the system defines none."""
    return next((each for each in system.definition.run_profiles.values() if each.kind is kind), RunProfile(name, kind))


def _name(profile: str | RunProfile) -> str:
    return profile if isinstance(profile, str) else profile.name


async def _end(
    connection: Connection, database: Database, id: UUID, schema: str, state: str, problem: str | None
) -> None:
    async with transaction_settings.transaction(connection, whole_tables=True):
        await previews.end_preview(connection, id, state, problem, database.clock.now())
        await previews.drop_scratch_copy(connection, schema)


@asynccontextmanager
async def _scratch_copy(ctx: Context, connection: Connection, id: UUID) -> AsyncIterator[str]:
    """Return the schema for the copy: a separate one, or the shared one if the login may not create schemas."""
    if await previews.may_create_schemas(connection):
        yield previews.scratch_schema(id)
        return
    while not await previews.try_shared_schema(connection):
        ctx.progress(0, None, "waiting for another preview, because the login may not create schemas")
        await ctx.sleep(WAIT_SECONDS)
    try:
        yield previews.SHARED_SCHEMA
    finally:
        await previews.release_shared_schema(connection)
