"""The processor of each kind of run profile. Runs, previews and the sync of one identity use the same ones."""

from __future__ import annotations

from collections.abc import Callable

from tenuto.extension import ExtensionServices
from tenuto.jobs.context import Context
from tenuto.model.work.tasks import OutcomeStatus
from tenuto_identity.connectors.contract import Connector
from tenuto_identity.model.definitions.system_definitions import RunKind, RunProfile
from tenuto_identity.runs.connector_opener import decoding_of, open_connector
from tenuto_identity.runs.definition_snapshot import System
from tenuto_identity.runs.export_run import ExportRun
from tenuto_identity.runs.imports.import_run import ImportRun
from tenuto_identity.runs.run_lifecycle import Processor, Run
from tenuto_identity.runs.sync_run import SyncRun
from tenuto_identity.settings import IdentitySettings


def choose_processor(
    services: ExtensionServices,
    ctx: Context,
    profile: RunProfile,
    *,
    open_for: Callable[[Connector, System, RunProfile], Connector] | None = None,
) -> Processor:
    """Return the processor of a run profile. ``open_for`` is given by a preview: the connector is opened for reading,
    and the processor uses what the function returns for it."""

    async def process(run: Run) -> OutcomeStatus:
        if profile.kind in (RunKind.FULL_SYNC, RunKind.DELTA_SYNC):
            return await SyncRun(run, services.section(IdentitySettings).sync_page).process()
        async with open_connector(services, ctx, run.system, read_only=open_for is not None) as opened:
            connector = opened if open_for is None else open_for(opened, run.system, profile)
            if profile.kind is RunKind.EXPORT:
                return await ExportRun(run, connector).process()
            return await ImportRun(run, connector, decoding_of(run.system)).process()

    return process
