"""The entry point: what notifications contribute to Tenuto. Everything else is imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenuto.extension import (
    AuditAction,
    CommandEntry,
    DefinitionList,
    DoctorCheck,
    Extension,
    ExtensionServices,
    MetricSource,
    Page,
    PageAssets,
    ProcessRole,
    Retention,
    RouterEntry,
    SearchSource,
    Service,
    StepKind,
)

if TYPE_CHECKING:
    from tenuto_notifications.operations import NotificationOperations
    from tenuto_notifications.settings import NotificationSettings


class Notifications(Extension):
    """The extension, installed with Tenuto."""

    name = "notifications"
    requires_tenuto = ">=0.1,<0.2"

    def settings(self) -> type[NotificationSettings]:
        from tenuto_notifications.settings import NotificationSettings

        return NotificationSettings

    def migrations(self) -> Path:
        return Path(__file__).parent / "store" / "migrations"

    def step_kinds(self, services: ExtensionServices) -> Sequence[StepKind]:
        from tenuto_notifications.delivery.delivery_step import delivery_kind

        return [delivery_kind(services)]

    def operations(self, services: ExtensionServices) -> NotificationOperations:
        from tenuto_notifications.operations import NotificationOperations

        return NotificationOperations(services)

    def audit_actions(self) -> Sequence[AuditAction]:
        return [
            AuditAction("notifications.rule.create", "A notification rule was created."),
            AuditAction("notifications.rule.edit", "A notification rule was changed."),
            AuditAction("notifications.rule.delete", "A notification rule was deleted."),
            AuditAction("notifications.rule.enable", "A notification rule was enabled."),
            AuditAction("notifications.rule.disable", "A notification rule was disabled."),
            AuditAction("notifications.rule.test", "A test message of a notification rule was sent."),
            AuditAction("notifications.silence.create", "Notifications were silenced."),
            AuditAction("notifications.silence.end", "A silence was ended before its time."),
        ]

    def routers(self) -> Sequence[RouterEntry]:
        return [RouterEntry("tenuto_notifications.routes:router")]

    def commands(self) -> Sequence[CommandEntry]:
        help = "Send messages when something happens"
        return [CommandEntry("notification", "Work", help, "tenuto_notifications.commands:notification")]

    def pages(self) -> Sequence[Page]:
        def page(path: str, title: str, function: str, template: str, *query: str, parent: str | None = None) -> Page:
            return Page(
                path,
                title,
                f"tenuto_notifications.pages:{function}",
                f"{template}.html",
                navigation=None if parent else "Notifications",
                query=query,
                parent=parent,
            )

        return [
            page("rules", "Notification rules", "load_rules", "rules", "after"),
            page("deliveries", "Deliveries", "load_deliveries", "deliveries", "rule", "state", "below"),
            page("silences", "Silences", "load_silences", "silences"),
            page("rules/{name}", "{name}", "load_rule", "rule", parent="rules"),
        ]

    def searches(self) -> Sequence[SearchSource]:
        return [SearchSource("tenuto_notifications.pages:search_rules")]

    def page_assets(self) -> PageAssets:
        return PageAssets(Path(__file__).parent / "templates")

    def background_services(self, role: ProcessRole, services: ExtensionServices) -> Sequence[Service]:
        from tenuto_notifications.collection.collector import Collector

        return [Collector(services)] if role is ProcessRole.SCHEDULER else []

    def retention(self) -> Sequence[Retention]:
        from tenuto_notifications.store import messages, rules

        return [
            Retention("events", messages.delete_old_events),
            Retention("messages", messages.delete_old_messages),
            Retention("conditions", messages.delete_old_episodes),
            Retention("silences", rules.delete_old_silences),
        ]

    def doctor_checks(self) -> Sequence[DoctorCheck]:
        from tenuto_notifications.monitoring import doctor_checks

        return doctor_checks()

    def metrics(self) -> Sequence[MetricSource]:
        from tenuto_notifications.monitoring import metric_sources

        return metric_sources()

    def definition_lists(self) -> Sequence[DefinitionList[Any]]:
        from tenuto_notifications.definitions import NOTIFICATION_RULES

        return [NOTIFICATION_RULES]
