"""The application object of Tenuto: a facade over jobs, database, operations and services.

An app opens its database on first use, starts an embedded server if no database is configured, and closes everything in
`close` or at the end of ``async with``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tenuto import processes
from tenuto.app_databases import Connections
from tenuto.clock import SystemClock
from tenuto.diagnostics.doctor import ReportProgress
from tenuto.errors import Invalid, TenutoError, quoted
from tenuto.extension import Extension, ExtensionServices
from tenuto.extension.registry import ExtensionRegistry
from tenuto.extension.schemas import ExtensionSchemas
from tenuto.jobs.context import current_context
from tenuto.jobs.registry import JobEnqueuer, JobRegistry
from tenuto.jobs.step_kind import StepKind
from tenuto.logs import Log
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import IdempotencyKey, OperationCaller
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.definitions.steps import MANIFEST, SCHEDULE
from tenuto.model.doctor_findings import Finding
from tenuto.observability.status import InstallationStatus
from tenuto.operations.admin import backups
from tenuto.operations.admin.api_keys import ApiKeys
from tenuto.operations.admin.audit_log import AuditLog
from tenuto.operations.admin.backup_encryption import check_passphrase
from tenuto.operations.admin.invitations import Invitations
from tenuto.operations.admin.named_logs import Logs
from tenuto.operations.admin.secrets import Secrets
from tenuto.operations.bound_operation import OperationGroup
from tenuto.operations.built_in_extensions import BUILT_IN
from tenuto.operations.definitions.manifests import Manifests, check_manifest_step
from tenuto.operations.definitions.plans import Plans
from tenuto.operations.definitions.schedules import Schedules
from tenuto.operations.events.approvals import Approvals
from tenuto.operations.events.external_events import Events
from tenuto.operations.extension_operations import ExtensionOperations
from tenuto.operations.reports import Reports
from tenuto.operations.work.batches import Batch, Batches
from tenuto.operations.work.bulk_operations import BulkOperations
from tenuto.operations.work.dead_letters import DeadLetters
from tenuto.operations.work.executions import Executions
from tenuto.operations.work.queues import QueueOperations
from tenuto.operations.work.tasks import TaskOperations, Tasks
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.postgres.servers.server_selection import ConnectionCheck
from tenuto.registration import Registration
from tenuto.scheduling import manifest_step, schedule_step
from tenuto.service import health_file
from tenuto.settings import ExecutorName, Settings, check_sections, load_section, load_settings
from tenuto.steps.built_in_kinds import StepServices, register_step_kinds
from tenuto.store import partitions
from tenuto.store.access.audit_recorder import AuditedDatabase
from tenuto.store.work.workers import Declarations
from tenuto.worker.executors import ExecutorFactory
from tenuto.worker.executors.selection import load_worker
from tenuto.worker.watchdog import DEFAULT_TIMING, WorkerTiming
from tenuto.worker.worker import Worker

log = Log("tenuto.app")


class Tenuto(Registration, TaskOperations, QueueOperations):
    """One application: its jobs, its database and its operations."""

    bulk_operations: BulkOperations
    approvals: Approvals
    events: Events
    logs: Logs

    def __init__(
        self,
        database: str | None = None,
        *,
        home: Path | str | None = None,
        settings: Settings | None = None,
        actor: Actor | None = None,
        extensions: Iterable[Extension] = (),
        allow_unknown_sections: bool = False,
    ) -> None:
        """``extensions`` are used besides the installed ones. With ``allow_unknown_sections``, a table of the settings
        file that belongs to no known extension is logged and reported by the doctor; otherwise it is an error."""
        self.settings = settings or load_settings(database=database, home=home)
        self.extension_registry = ExtensionRegistry(
            extensions,
            disabled=lambda: self.settings.disabled_extensions,
            built_in=BUILT_IN,
            create_services=self._extension_services,
        )
        self._check_sections(allow_unknown=allow_unknown_sections)
        self._extension_schemas = ExtensionSchemas(self.extension_registry)
        self._sections: dict[str, BaseModel | None] = {}
        """The settings sections of extensions that have been read."""
        self.extensions = ExtensionOperations(self.extension_registry, self._extension_services)
        self.jobs = JobRegistry()
        self._drivers = {}
        self._actor = actor or Actor.system("app")
        self._connections = Connections(self._current_settings)
        caller = OperationCaller(self._current_actor)
        super().__init__(self.open, caller)
        self.schedules = Schedules(self.open, caller, self.jobs)
        self.executions = Executions(self.open, caller)
        self.manifests = Manifests(self.open, caller, self.jobs)
        self.dead_letters = DeadLetters(self.open, caller, self.jobs, self._current_settings)
        self.tasks = Tasks(self.open, caller, self.dead_letters)
        self.batches = Batches(self.open, caller, self.manifests, self.dead_letters)
        self.plans = Plans(self.open, caller, self.schedules, self.manifests, self.jobs, self.extension_registry)
        self.reports = Reports(self.open, caller)
        self.api_keys = ApiKeys(self.open, caller)
        self.invitations = Invitations(self.open, caller, self.api_keys)
        self.audit = AuditLog(self.open, self._current_settings)
        self.status = InstallationStatus(self.open, self._current_settings, self.extension_registry)
        self.secrets = Secrets(self.open, caller, self._current_settings)
        for extension in BUILT_IN:
            operations = extension.operations(self._extension_services(extension))
            if operations is not None and not hasattr(type(self), extension.name):  # `doctor` is a method
                setattr(self, extension.name, operations)
        self.jobs.add_kind(StepKind(SCHEDULE, lambda: schedule_step.schedule_step_job(self.open)))
        self.jobs.add_kind(
            StepKind(
                MANIFEST,
                lambda: manifest_step.manifest_step_job(self.open, self.manifests.run),
                check=partial(check_manifest_step, self.jobs),
            )
        )
        self.jobs.load_more_kinds = self._register_extension_kinds
        self.jobs.explain_missing_kind = self.extension_registry.explain_missing_kind
        register_step_kinds(
            self.jobs, StepServices(self.open, self._current_settings, self.secrets.resolve_text, self._drivers)
        )

    # --- database and caller ----------------------------------------------------------------------------------------

    async def open(self) -> Database:
        """Return the database of the app; the first call opens it. For the app of an audited caller it is read-only."""
        database = await self._connections.open()
        return AuditedDatabase(database) if self._caller.is_audited else database

    @property
    def is_open(self) -> bool:
        """Whether the database is open."""
        return self._connections.is_open

    async def connect(
        self, *, for_worker: bool = False, check_schema: bool = True, connect_seconds: float | None = None
    ) -> Database:
        """Open a separate database that the caller closes; start and migrate the embedded one if necessary.

        ``connect_seconds`` replaces the setting of this name.
        """
        return await self._connections.connect(
            for_worker=for_worker, check_schema=check_schema, connect_seconds=connect_seconds
        )

    async def close(self) -> None:
        """Close the database; an embedded server stops after its last user has disconnected.

        In a job or a portal that uses the app of a running service, this does nothing: the service closes the app.
        """
        if self._connections.may_close_here():
            await self.executions.close()
            await self.api_keys.close()
        await self._connections.close()

    async def __aenter__(self) -> Tenuto:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def acting_as(
        self,
        actor: Actor,
        *,
        source: str = "code",
        reason: str | None = None,
        idempotency_key: IdempotencyKey | None = None,
        correlation_id: str | None = None,
    ) -> Tenuto:
        """Return this app for an actor: its operations run on behalf of the actor, and the audit trail records every
        change with actor, source, reason and correlation id.

        ``source`` is where the actor is, such as an IP address. Both apps share database, jobs and services.
        """
        if not isinstance(actor, Actor):
            raise Invalid(
                f"the actor must be an Actor, not {quoted(actor, 60)}",
                code="actor.type.invalid",
                field="actor",
                remedy='write it like Actor.user("ana")',
            )
        caller = OperationCaller(lambda: actor, True, source, reason, idempotency_key, correlation_id)
        bound = self.for_caller(caller)
        for name, group in vars(self).items():
            if isinstance(group, OperationGroup | ExtensionOperations):
                setattr(bound, name, group.for_caller(caller))
        return bound

    def reading_from(self, replica: Database) -> Tenuto:
        """Return this app, whose queries read from a read replica; changes still go to the primary.

        `open` returns the primary, too.
        """
        bound = super().reading_from(replica)
        for name, group in vars(self).items():
            if isinstance(group, OperationGroup | ExtensionOperations):
                setattr(bound, name, group.reading_from(replica))
        return bound

    def _current_actor(self) -> Actor:
        context = current_context.get()
        return self._actor if context is None else context.initiator

    def _job_enqueuer(self) -> JobEnqueuer:
        return self.enqueue

    def _database_now(self) -> datetime | None:
        return self._connections.now()

    def _current_settings(self) -> Settings:
        """Return the settings; tests replace them while the app exists."""
        return self.settings

    def _check_sections(self, *, allow_unknown: bool) -> None:
        try:
            check_sections(self.extension_registry.names)
        except Invalid as error:
            if not allow_unknown or error.code != "settings.section.unknown":
                raise
            remedy = "name the app that uses the extension with --app, install the extension, or correct the table"
            self.extension_registry.report_failure(error.field or "", "settings", error, remedy)

    def _register_extension_kinds(self) -> None:
        self.jobs.load_more_kinds = lambda: None  # once
        self.extension_registry.register_step_kinds(self.jobs)

    def _extension_services(self, extension: Extension) -> ExtensionServices:
        async def open_database() -> Database:
            database = await self.open()
            await self._extension_schemas.prepare(database, extension, migrate=self.settings.database is None)
            return database

        def get_section() -> BaseModel | None:
            if extension.name not in self._sections:
                model = extension.settings()
                self._sections[extension.name] = None if model is None else load_section(extension.name, model)
            return self._sections[extension.name]

        return ExtensionServices(
            self.open if extension.migrations() is None else open_database,
            self._current_settings,
            get_section,
            self.jobs,
            self._caller,
            self.secrets.resolve_text,
            self._connect_for_checks,
            self.extension_registry,
        )

    async def _connect_for_checks(self) -> Database:
        """Open a separate database whose schemas may not fit; those of the embedded database are migrated."""
        is_embedded = self.settings.database is None
        database = await self.connect(check_schema=is_embedded)
        try:
            await self._extension_schemas.prepare_all(database, migrate=is_embedded)
        except BaseException:
            await database.close()
            raise
        return database

    async def bulk_enqueue(
        self,
        manifest: Manifest | str,
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        key: Callable[[Any], str] | None = None,
        batch_key: str | None = None,
        name: str | None = None,
        atomic: bool = False,
    ) -> Batch:
        """Run a manifest for many inputs as one batch; see `Batches.enqueue`."""
        return await self.batches.enqueue(manifest, inputs, key=key, batch_key=batch_key, name=name, atomic=atomic)

    # --- installation -----------------------------------------------------------------------------------------------

    def migration_script(self) -> str:
        """Return the SQL that `migrate` runs on an empty database."""
        return migrator.render_script(self._extension_schemas.readable_components())

    async def pending_migration_script(self) -> str:
        """Return the SQL that `migrate` would run on the database as it is."""
        reached = await self._load_schema_versions()
        return migrator.render_script(self._extension_schemas.readable_components(), reached)

    async def migration_status(self) -> list[migrator.ComponentStatus]:
        """Return the version of the schema of the core and of each extension, and the migrations that are missing."""
        reached = await self._load_schema_versions()
        return migrator.describe_status(reached, self._extension_schemas.readable_components())

    async def _load_schema_versions(self) -> dict[str, int]:
        database = await self.connect(check_schema=False)
        try:
            return await migrator.load_versions(database)
        finally:
            await database.close()

    async def migrate(self) -> list[migrator.Migration]:
        """Migrate the schemas of the core and of all extensions, create the partitions of the coming months, and return
        the migrations applied now."""
        database = await self.connect(check_schema=False)
        try:
            applied = await migrator.migrate(database)
            now, period = database.clock.now(), partitions.configured_period(self.settings)
            await partitions.ensure_partitions(database, now, period)
            applied += await self._extension_schemas.migrate(database)
            for table in self.extension_registry.partitioned_tables():
                try:
                    await partitions.ensure_partitions_of_table(database, table, now, period)
                except TenutoError as error:  # the table may be in use; services create the partitions, too
                    log.warning("partitions not created", table=table.name, error=str(error))
            return applied
        finally:
            await database.close()

    async def doctor(self, on_finding: ReportProgress = lambda _finding, _number, _count: None) -> list[Finding]:
        """Check the server, the schema, the clocks and all consistency rules, and return the findings.

        ``on_finding`` is called with each finding, its number and the number of all checks.
        """
        findings: list[Finding] = await self.extensions.doctor.run_checks(on_finding)
        return findings

    async def backup(
        self,
        file: Path | str,
        on_progress: backups.ReportProgress = lambda _text: None,
        *,
        passphrase: str | None = None,
    ) -> backups.BackupDescription:
        """Write the database, the master keys, the audit keys and checkpoints and the admin key to one file.

        The database may be in use. Only the owner may read the file: anyone with the file can decrypt all secrets.
        With a ``passphrase`` the file is encrypted.
        """
        if passphrase is not None:
            check_passphrase(passphrase)
        database = await self.connect()
        try:
            return await backups.create_backup(database, self.settings, Path(file), on_progress, passphrase=passphrase)
        finally:
            await database.close()

    async def restore(
        self,
        file: Path | str,
        *,
        replace: bool = False,
        on_progress: backups.ReportProgress = lambda _text: None,
        passphrase: str | None = None,
    ) -> backups.RestoreResult:
        """Restore a backup into a database without Tenuto's tables, or with ``replace`` instead of what is there.

        The file is checked before an embedded database is created. The audit log that was restored gets an entry, and
        sessions, login links and open invitations end: they may have ended after the backup.
        """
        backup = await asyncio.to_thread(backups.open_backup, Path(file), passphrase)
        try:
            database = await self.connect(check_schema=False)
            try:
                result = await backups.restore_backup(database, self.settings, backup, on_progress, replace=replace)
                await self.migrate()
                operation = await self._begin(
                    "backup.restore", target=Path(file).name, after=asdict(result.backup), database=database
                )
                end_access = partial(backups.end_restored_access, by=operation.actor.name)
                messages = await operation.database.transaction(end_access)
            finally:
                await database.close()
        finally:
            backup.close()
        return backups.RestoreResult(result.backup, result.written_files, [*result.messages, *messages])

    def health(self, service: str, name: str | None = None) -> list[health_file.Health]:
        """Read the health files of a service on this machine, without using the database."""
        return health_file.read_health(self.settings.home, service, SystemClock().now(), name)

    # --- services ---------------------------------------------------------------------------------------------------

    def worker(
        self,
        *,
        executor: ExecutorFactory | ExecutorName | None = None,
        app_name: str | None = None,
        timing: WorkerTiming = DEFAULT_TIMING,
        **options: Any,
    ) -> AbstractAsyncContextManager[Worker]:
        """Run a worker in this process for the duration of the block. ``options`` are worker settings.

        ``executor`` is a name, or makes an executor; by default the settings choose one. An executor on a cluster needs
        the ``app_name``, MODULE:OBJECT.
        """
        worker_settings, make_executor = load_worker(executor, app_name, options)
        return processes.background_worker(
            self.connect_for_services,
            self.jobs,
            self.settings,
            worker_settings,
            self.extension_registry,
            make_executor,
            timing,
            self._declarations(),
        )

    def scheduler(self, *, name: str | None = None) -> AbstractAsyncContextManager[None]:
        """Run a scheduler in this process for the duration of the block."""
        return processes.background_scheduler(
            self.connect_for_services, self.settings, self.extension_registry, name, self._declarations()
        )

    async def run_worker(
        self,
        *,
        executor: ExecutorFactory | ExecutorName | None = None,
        app_name: str | None = None,
        prune: bool = False,
        **options: Any,
    ) -> None:
        """Run a worker process until a signal stops it; for ``prune`` see `connect_for_services`, for ``executor`` and
        ``app_name`` see `worker`."""
        worker_settings, make_executor = load_worker(executor, app_name, options)
        await processes.run_worker(
            partial(self.connect_for_services, prune=prune, connect_seconds=0.0),
            self.jobs,
            self.settings,
            worker_settings,
            self.extension_registry,
            make_executor,
            self._declarations(),
        )

    async def run_scheduler(self, *, name: str | None = None, prune: bool = False) -> None:
        """Run a scheduler process until a signal stops it; for ``prune`` see `connect_for_services`."""
        await processes.run_scheduler(
            partial(self.connect_for_services, prune=prune, connect_seconds=0.0),
            self.settings,
            self.extension_registry,
            name=name,
            declarations=self._declarations(),
        )

    async def run(
        self,
        *,
        on_ready: Callable[[Worker], None] = lambda _worker: None,
        alongside: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
        app_name: str | None = None,
        prune: bool = False,
        **options: Any,
    ) -> None:
        """Run scheduler and worker in one process until a signal stops it; enter ``alongside`` meanwhile.

        For ``prune`` see `connect_for_services`, for ``app_name`` see `worker`.
        """
        worker_settings, make_executor = load_worker(None, app_name, options)
        await processes.run_all(
            partial(self.connect_for_services, prune=prune, connect_seconds=0.0),
            self.jobs,
            self.settings,
            worker_settings,
            self.extension_registry,
            on_ready,
            make_executor,
            alongside,
            self._declarations(),
        )

    def _declarations(self) -> Declarations | None:
        """What this app declares in code; None for an app without jobs and declarations, such as that of a scheduler
        that runs without an app."""
        declared = Declarations(list(self.schedules.declared), list(self.manifests.declared))
        return declared if self.jobs.jobs_by_name or declared.schedules or declared.manifests else None

    async def connect_for_services(
        self,
        *,
        prune: bool = False,
        connect_seconds: float | None = None,
        check_connection: ConnectionCheck | None = None,
    ) -> Database:
        """Open a database for a service in this process and deploy the declared schedules and manifests.

        Schedules and manifests from code that neither this app nor another running app declares any more are logged;
        with ``prune`` they are deleted. ``check_connection`` checks every new connection of the app from now on.
        """
        self._connections.bind_to_running_loop()
        if check_connection is not None:
            self._connections.gate.check = check_connection
        database = await self.connect(for_worker=True, connect_seconds=connect_seconds)
        try:
            await self.manifests.deploy(database)  # before the schedules, whose steps may run them
            await self.schedules.deploy(database)
            if self._declarations() is not None:
                await self.schedules.report_undeclared(database, prune=prune)
                await self.manifests.report_undeclared(database, prune=prune)
            await self._extension_schemas.prepare_all(database, migrate=self.settings.database is None)
        except BaseException:
            await database.close()
            raise
        return database
