"""The doctor with its own checks only, on a database of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tenuto.clock import Clock
from tenuto.diagnostics import doctor
from tenuto.diagnostics.core_checks import Limits, Sleep, core_checks
from tenuto.extension import DoctorCheck, Extension, ExtensionServices
from tenuto.jobs.registry import JobRegistry
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.doctor_findings import Finding
from tenuto.operations.built_in_extensions import DoctorExtension
from tenuto.postgres.database import Database
from tenuto.settings import Settings
from tests.support.extension_registries import make_registry


async def run_checks(
    database: Database,
    settings: Settings,
    *,
    limits: Limits | None = None,
    clock: Clock | None = None,
    sleep: Sleep = asyncio.sleep,
    report: doctor.ReportProgress = lambda finding, number, total: None,
) -> list[Finding]:
    """Run the checks of Tenuto itself."""

    class CoreChecks(DoctorExtension):
        def doctor_checks(self) -> Sequence[DoctorCheck]:
            return core_checks(limits=limits, clock=clock, sleep=sleep)

    async def open_database() -> Database:
        return database

    async def reveal_secret(*_: object) -> Any:
        raise NotImplementedError

    def create_services(extension: Extension) -> ExtensionServices:
        return ExtensionServices(
            open_database,
            lambda: settings,
            lambda: None,
            JobRegistry(),
            OperationCaller(lambda: Actor.system("test")),
            reveal_secret,
            open_database,
            registry,
        )

    registry = make_registry(built_in=[CoreChecks()], create_services=create_services)
    return await doctor.run_checks(database, registry, report)
