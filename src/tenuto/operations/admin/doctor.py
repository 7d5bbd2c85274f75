"""The doctor as an operation: ``app.extensions.doctor.run_checks()``."""

from __future__ import annotations

from tenuto.diagnostics.doctor import ReportProgress, run_checks
from tenuto.extension import ExtensionServices
from tenuto.model.doctor_findings import Finding
from tenuto.operations.bound_operation import OperationGroup


class Doctor(OperationGroup):
    """Examination of the installation. It changes nothing."""

    def __init__(self, services: ExtensionServices) -> None:
        super().__init__(services.open_database, services.caller)
        self._services = services

    async def run_checks(self, on_finding: ReportProgress = lambda _finding, _number, _count: None) -> list[Finding]:
        """Run the checks of all extensions and return the findings; see `Tenuto.doctor`."""
        database = await self._services.connect()
        try:
            return await run_checks(database, self._services.extensions, on_finding)
        finally:
            await database.close()
