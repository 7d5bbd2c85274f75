"""Optional parts of Tenuto that use the contract for extensions: one-shots, bulk operations, named logs, events,
approvals, the doctor.

Every app has them. Their operations are also attributes of the app: ``app.one_shots``, ``app.logs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tenuto.extension import (
    AuditAction,
    CommandEntry,
    DoctorCheck,
    EventTopics,
    Extension,
    ExtensionServices,
    MetricSource,
    Page,
    Panel,
    ProcessRole,
    Retention,
    RouterEntry,
    Service,
    StepKind,
)

if TYPE_CHECKING:
    from tenuto.operations.admin.doctor import Doctor
    from tenuto.operations.admin.named_logs import Logs
    from tenuto.operations.events.approvals import Approvals
    from tenuto.operations.events.external_events import Events
    from tenuto.operations.work.bulk_operations import BulkOperations
    from tenuto.operations.work.one_shots import OneShots


class OneShotsExtension(Extension):
    """Tasks that run once, at a given instant."""

    name = "one_shots"

    def operations(self, services: ExtensionServices) -> OneShots:
        from tenuto.operations.work.one_shots import OneShots

        return OneShots(services.open_database, services.caller, services.jobs, services.get_settings)

    def routers(self) -> Sequence[RouterEntry]:
        return [RouterEntry("tenuto.api.routes.one_shots:router", prefix="")]

    def commands(self) -> Sequence[CommandEntry]:
        help = "Run something once, at a given time"
        return [CommandEntry("once", "Work", help, "tenuto.cli.work.one_shots:one_shots")]

    def audit_actions(self) -> Sequence[AuditAction]:
        return [
            AuditAction("one_shot.create", "A one-shot was created."),
            AuditAction("one_shot.cancel", "A one-shot was cancelled."),
            AuditAction("one_shot.wipe", "All one-shots were cancelled."),
        ]


class BulkOperationsExtension(Extension):
    """One action on many objects, tracked and processed by schedulers."""

    name = "bulk_operations"

    def operations(self, services: ExtensionServices) -> BulkOperations:
        from tenuto.operations.work.bulk_operations import BulkOperations

        return BulkOperations(services.open_database, services.caller, services.get_settings)

    def routers(self) -> Sequence[RouterEntry]:
        return [RouterEntry("tenuto.api.routes.bulk_operations:router", prefix="")]

    def commands(self) -> Sequence[CommandEntry]:
        help = "Act on many objects at once, and track it"
        return [CommandEntry("operation", "Work", help, "tenuto.cli.work.bulk_operations:operations")]

    def background_services(self, role: ProcessRole, services: ExtensionServices) -> Sequence[Service]:
        from tenuto.operations.work.bulk_processor import BulkProcessor

        return [BulkProcessor(services.open_database)] if role is ProcessRole.SCHEDULER else []

    def retention(self) -> Sequence[Retention]:
        from tenuto.store.work.bulk_operations import delete_old_operations

        return [Retention("operations", delete_old_operations)]

    def audit_actions(self) -> Sequence[AuditAction]:
        return [
            AuditAction("operation.create", "A bulk operation was started."),
            AuditAction("operation.abort", "A bulk operation was aborted."),
            AuditAction("operation.pause", "A bulk operation was paused."),
            AuditAction("operation.resume", "A bulk operation was resumed."),
        ]


class NamedLogsExtension(Extension):
    """Logs to which steps and operators append."""

    name = "logs"

    def operations(self, services: ExtensionServices) -> Logs:
        from tenuto.operations.admin.named_logs import Logs

        return Logs(services.open_database, services.caller)

    def routers(self) -> Sequence[RouterEntry]:
        return [RouterEntry("tenuto.api.routes.admin.named_logs:router", prefix="")]

    def commands(self) -> Sequence[CommandEntry]:
        return [CommandEntry("log", "Work", "Read named logs and append to them", "tenuto.cli.admin.named_logs:logs")]

    def retention(self) -> Sequence[Retention]:
        from tenuto.store.named_logs import delete_old_entries

        return [Retention("entries", delete_old_entries)]

    def audit_actions(self) -> Sequence[AuditAction]:
        return [AuditAction("log.append", "An entry was appended to a log.")]


class DoctorExtension(Extension):
    """Checks of the installation."""

    name = "doctor"

    def operations(self, services: ExtensionServices) -> Doctor:
        from tenuto.operations.admin.doctor import Doctor

        return Doctor(services)

    def doctor_checks(self) -> Sequence[DoctorCheck]:
        from tenuto.diagnostics.core_checks import core_checks

        return core_checks()

    def commands(self) -> Sequence[CommandEntry]:
        help = "Check the installation for problems"
        return [CommandEntry("doctor", "Administration", help, "tenuto.cli.admin.doctor:run_doctor")]


class EventsExtension(Extension):
    """Events from outside, for which tasks wait."""

    name = "events"

    def operations(self, services: ExtensionServices) -> Events:
        from tenuto.operations.events.external_events import Events

        return Events(services.open_database, services.caller, services.get_settings)

    def routers(self) -> Sequence[RouterEntry]:
        return [RouterEntry("tenuto.api.routes.external_events:router", prefix="")]

    def commands(self) -> Sequence[CommandEntry]:
        help = "Send events to the tasks that wait for them"
        return [CommandEntry("event", "Work", help, "tenuto.cli.work.external_events:events")]

    def pages(self) -> Sequence[Page]:
        views, topics = "tenuto.web.views.work.external_events", ("events.sent", "queues", "activities")
        query = ("name", "key", "state", "after", "waits_after")
        return [
            Page("", "Events", f"{views}:load_events", "list.html", navigation="Operate", query=query, topics=topics),
            Page("{id}", "Event", f"{views}:load_event", "show.html", parent="", topics=topics[:1]),
        ]

    def event_topics(self) -> Sequence[EventTopics]:
        from tenuto.observability.event_topics import event_topics

        return event_topics()

    def doctor_checks(self) -> Sequence[DoctorCheck]:
        from tenuto.diagnostics.event_checks import event_checks

        return event_checks()

    def metrics(self) -> Sequence[MetricSource]:
        from tenuto.observability.external_event_metrics import event_metrics

        return event_metrics()

    def retention(self) -> Sequence[Retention]:
        from tenuto.store.events.external_events import delete_expired_events, delete_orphaned_waits

        return [
            Retention("events", delete_expired_events, cutoff=lambda now, _: now),
            Retention("event waits", delete_orphaned_waits),
        ]

    def audit_actions(self) -> Sequence[AuditAction]:
        return [AuditAction("event.send", "An event was sent to the tasks that wait for it.")]


class ApprovalsExtension(Extension):
    """Steps that wait until persons approve."""

    name = "approvals"

    def step_kinds(self, services: ExtensionServices) -> Sequence[StepKind]:
        from tenuto.scheduling.approval_step import approval_kind

        return [approval_kind(services.open_database)]

    def operations(self, services: ExtensionServices) -> Approvals:
        from tenuto.operations.events.approvals import Approvals

        return Approvals(services.open_database, services.caller)

    def routers(self) -> Sequence[RouterEntry]:
        return [RouterEntry("tenuto.api.routes.approvals:router", prefix="")]

    def commands(self) -> Sequence[CommandEntry]:
        help = "Approve or reject what steps wait for"
        return [CommandEntry("approval", "Work", help, "tenuto.cli.work.approvals:approvals")]

    def pages(self) -> Sequence[Page]:
        views, topics, query = "tenuto.web.views.work.approvals", ("approvals.pending",), ("state", "after")
        return [
            Page("", "Approvals", f"{views}:load_approvals", "list.html", "Operate", query=query, topics=topics),
            Page("{id}", "Approval", f"{views}:load_approval", "show.html", parent="", topics=topics),
        ]

    def event_topics(self) -> Sequence[EventTopics]:
        from tenuto.observability.event_topics import approval_topics

        return approval_topics()

    def panels(self) -> Sequence[Panel]:
        views, topics = "tenuto.web.views.work.approvals", ("approvals.pending",)
        return [
            Panel("overview", "Waiting for approval", f"{views}:load_pending_panel", "panel.html", topics=topics),
            Panel("execution", "Approvals", f"{views}:load_execution_panel", "panel.html", topics=topics),
        ]

    def retention(self) -> Sequence[Retention]:
        from tenuto.store.events.approvals import delete_ended_approvals

        return [Retention("approvals", delete_ended_approvals)]

    def audit_actions(self) -> Sequence[AuditAction]:
        return [
            AuditAction("approval.approve", "A person approved what a step waits for."),
            AuditAction("approval.reject", "A person rejected what a step waits for."),
            AuditAction("approval.link", "A link with which a person decides was created."),
        ]


BUILT_IN: tuple[Extension, ...] = (
    DoctorExtension(),  # first: its prerequisites are checked before the checks of the others
    OneShotsExtension(),
    BulkOperationsExtension(),
    NamedLogsExtension(),
    EventsExtension(),
    ApprovalsExtension(),
)
