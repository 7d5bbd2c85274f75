"""The entry point: what identity synchronisation contributes to Tenuto. Everything else is imported when it is
needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Page,
    PageAssets,
    Panel,
    PartitionedTable,
    PlanPreview,
    ProcessRole,
    Retention,
    RouterEntry,
    SearchSource,
    Service,
    StepKind,
)
from tenuto.extras import require_extra

if TYPE_CHECKING:
    from tenuto_identity.operations.identity_operations import IdentityOperations
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
        from tenuto_identity.operations.identity_operations import IdentityOperations

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

    def pages(self) -> Sequence[Page]:
        def page(path: str, title: str, target: str, *query: str, parent: str | None = None) -> Page:
            template = f"{target.partition(':')[2].removeprefix('load_')}.html"
            return Page(
                path,
                title,
                f"tenuto_identity.pages.{target}",
                template,
                navigation=None if parent else "Identity",
                topics=["identity.runs"],
                query=query,
                parent=parent,
            )

        return [
            page("systems", "Systems", "systems:load_systems", "state", "after"),
            page("runs", "Runs", "runs:load_runs", "system", "state", "after"),
            page("exports", "Pending exports", "exports:load_exports", "system", "state", "errors", "after"),
            page("rules", "Sync rules", "rules:load_rules", "system"),
            page("held", "Held systems", "systems:load_held"),
            page("previews", "Previews", "previews:load_previews", "after"),
            page("identities", "Identities", "identities:load_identities", "q", "type", "deletion", "after"),
            page("objects", "Connector space", "identities:load_objects", "q", "system", "state", "joined", "after"),
            page("systems/{system}", "System {system}", "systems:load_system", "after", parent="systems"),
            page("runs/{run}", "Run", "runs:load_run", "change", "error", "show", "after", parent="runs"),
            page(
                "previews/{preview}",
                "Preview",
                "previews:load_preview",
                *("tab", "system", "kind", "errors", "after"),
                parent="previews",
            ),
            page("identities/{id}", "Identity", "identities:load_identity", "before", parent="identities"),
            page("objects/{system}/{anchor}", "{anchor}", "identities:load_object", parent="objects"),
        ]

    def panels(self) -> Sequence[Panel]:
        pages, topics = "tenuto_identity.pages", ["identity.runs"]
        held, result = f"{pages}.systems:load_held_panel", f"{pages}.runs:load_run_panel"
        return [
            Panel("overview", "Held systems", held, "held_panel.html", topics=topics),
            Panel("step:run_profile", "Result", result, "run_panel.html", topics=topics),
        ]

    def searches(self) -> Sequence[SearchSource]:
        return [SearchSource("tenuto_identity.pages.systems:search_systems")]

    def page_assets(self) -> PageAssets:
        folder = Path(__file__).parent / "pages"
        return PageAssets(folder / "templates", folder / "static")

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

    async def preview_plan(self, app: Any, declared: Mapping[str, Sequence[Any]], prune: bool) -> PlanPreview:
        from tenuto_identity.cli.preview_text import preview_plan

        return await preview_plan(app, declared, prune=prune)

    def definition_lists(self) -> Sequence[DefinitionList[Any]]:
        from tenuto_identity.definitions.definition_lists import definition_lists

        return definition_lists()
