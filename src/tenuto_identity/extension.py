"""The entry point: what identity synchronisation contributes to Tenuto. Everything else is imported when it is
needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenuto.extension import (
    AuditAction,
    ChangeLog,
    CommandEntry,
    DefinitionList,
    DoctorCheck,
    EventTopics,
    Extension,
    ExtensionServices,
    MetricSource,
    PartitionedTable,
    ProcessRole,
    Retention,
    RouterEntry,
    Service,
    StepKind,
)
from tenuto.extras import require_extra

if TYPE_CHECKING:
    from tenuto_identity.operations.identity import IdentityOperations
    from tenuto_identity.settings import IdentitySettings


class Identity(Extension):
    """The extension. Without the packages of its extra it is not loaded."""

    name = "identity"
    requires_tenuto = ">=0.1,<0.2"

    def __init__(self) -> None:
        require_extra("identity", "identity synchronisation")

    def settings(self) -> type[IdentitySettings]:
        from tenuto_identity.settings import IdentitySettings

        return IdentitySettings

    def migrations(self) -> Path:
        return Path(__file__).parent / "store" / "migrations"

    def partitioned_tables(self) -> Sequence[PartitionedTable]:
        return [PartitionedTable("items", key="id"), PartitionedTable("changes", key="id")]

    def step_kinds(self, services: ExtensionServices) -> Sequence[StepKind]:
        from tenuto_identity.operations.previews import preview_kind
        from tenuto_identity.tasks.step_kinds import connector_kinds, run_profile_kind, task_kinds, template_kind

        return [
            run_profile_kind(services),
            template_kind(services),
            preview_kind(services),
            *connector_kinds(services),
            *task_kinds(services),
        ]

    def operations(self, services: ExtensionServices) -> IdentityOperations:
        from tenuto_identity.operations.identity import IdentityOperations

        return IdentityOperations(services)

    def audit_actions(self) -> Sequence[AuditAction]:
        return [
            AuditAction("identity.run.start", "A run profile was started."),
            AuditAction("identity.system.enable", "A connected system was enabled."),
            AuditAction("identity.system.disable", "A connected system was disabled."),
            AuditAction("identity.system.clear", "The connector space of a system was cleared."),
            AuditAction("identity.system.delete", "A connected system was deleted."),
            AuditAction("identity.template.run", "Example data was generated from a template."),
            AuditAction("identity.hold.approve", "What a guard held was approved."),
            AuditAction("identity.preview.start", "A preview of runs was started."),
            AuditAction("identity.system.check", "The settings of a connected system were checked."),
            AuditAction("identity.system.discover", "The schema of a connected system was read."),
            AuditAction("identity.object.sync", "One object was synchronised."),
            AuditAction("identity.object.join", "An object was joined to an identity by a user."),
            AuditAction("identity.object.unjoin", "An object was disconnected from its identity by a user."),
            AuditAction("identity.object.unpin", "An object was returned to the rules."),
            AuditAction("identity.identity.forget", "The history of an identity was erased."),
            AuditAction("identity.exports.retry", "Pending exports were set to be sent again."),
        ]

    def routers(self) -> Sequence[RouterEntry]:
        modules = ("object_routes", "preview_routes", "routes")
        return [RouterEntry(f"tenuto_identity.api.{module}:router") for module in modules]

    def commands(self) -> Sequence[CommandEntry]:
        description = "Connected systems, runs, pending exports and explanations"
        return [CommandEntry("identity", "Extensions", description, "tenuto_identity.cli.commands:identity")]

    def background_services(self, role: ProcessRole, services: ExtensionServices) -> Sequence[Service]:
        from tenuto_identity.tasks.housekeeping import housekeeping_service

        return [housekeeping_service(services)] if role in (ProcessRole.SCHEDULER, ProcessRole.WORKER) else []

    def retention(self) -> Sequence[Retention]:
        from tenuto_identity.store.runs import delete_ended_runs

        return [Retention("runs", delete_ended_runs)]

    def doctor_checks(self) -> Sequence[DoctorCheck]:
        from tenuto_identity.monitoring import doctor_checks

        return doctor_checks()

    def metrics(self) -> Sequence[MetricSource]:
        from tenuto_identity.monitoring import metric_sources

        return metric_sources()

    def event_topics(self) -> Sequence[EventTopics]:
        from tenuto_identity.monitoring import load_runs_since

        return [EventTopics(("identity.runs",), lambda options: ChangeLog("identity.runs", load_runs_since))]

    def definition_lists(self) -> Sequence[DefinitionList[Any]]:
        from tenuto_identity.definitions.lists import definition_lists

        return definition_lists()
