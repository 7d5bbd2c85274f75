"""Step kinds of identity synchronisation: ``run_profile``, and the tasks of operations and housekeeping."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from tenuto.errors import Invalid
from tenuto.extension import ExtensionServices, StepCheck, StepDefaults, StepKind
from tenuto.jobs.context import Context
from tenuto.model.policies import RetryPolicy, TaskPolicy
from tenuto.model.tasks import OutcomeStatus
from tenuto_identity.model.definition_reader import suggestion
from tenuto_identity.model.definitions import RunKind, RunProfile
from tenuto_identity.runs import lifecycle, tasks
from tenuto_identity.runs.connections import decoding_of, open_connector
from tenuto_identity.runs.export_run import ExportRun
from tenuto_identity.runs.import_run import ImportRun
from tenuto_identity.runs.lifecycle import Run
from tenuto_identity.runs.sync_run import SyncRun
from tenuto_identity.runs.template_task import generate_from_template
from tenuto_identity.settings import IdentitySettings
from tenuto_identity.store import definitions, session
from tenuto_identity.store.definitions import DefinitionChange

POLICY = TaskPolicy(retry=RetryPolicy(max_attempts=1), on_lost="retry")
"""A failed run is final, because the next one repeats it; a lost one is repeated at once."""


class RunProfileArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    system: str
    """Name of the connected system."""
    profile: str
    """Name of one of its run profiles."""


def run_profile_kind(services: ExtensionServices) -> StepKind:
    """The step kind ``run_profile``: one run of a run profile."""

    async def run_profile(arguments: RunProfileArguments, ctx: Context) -> dict[str, Any]:
        """Execute a run profile of a connected system."""
        database = await services.open_database()

        def choose(profile: RunProfile) -> lifecycle.Processor:
            async def process(run: Run) -> OutcomeStatus:
                if profile.kind in (RunKind.FULL_SYNC, RunKind.DELTA_SYNC):
                    return await SyncRun(run, services.section(IdentitySettings).sync_page).process()
                async with open_connector(services, ctx, run.system) as connector:
                    if profile.kind is RunKind.EXPORT:
                        return await ExportRun(run, connector).process()
                    return await ImportRun(run, connector, decoding_of(run.system)).process()

            return process

        return await lifecycle.execute(ctx, database, arguments.system, arguments.profile, choose)

    async def check(step: StepCheck) -> None:
        arguments: RunProfileArguments = step.arguments
        await check_profile(step, arguments.system, arguments.profile)

    return StepKind.of(
        "run_profile",
        RunProfileArguments,
        run_profile,
        help="Execute a run profile of a connected system",
        policy=POLICY,
        check=check,
        derive=_derive_of(services),
    )


class SystemArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    system: str
    """Name of the connected system."""


class ApprovalArguments(SystemArguments):
    run: UUID
    """The run whose hold was approved."""


class DueDeletionArguments(SystemArguments):
    identities: list[int]
    """Metaverse objects whose grace period has ended."""


class DeleteArguments(SystemArguments):
    reason: str | None = None


class TemplateArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    template: str
    """Name of the template."""
    seed: str = "1"
    """The same seed generates the same values."""


def template_kind(services: ExtensionServices) -> StepKind:
    """The step kind ``identity.template``: example data."""

    async def generate(arguments: TemplateArguments, ctx: Context) -> dict[str, Any]:
        """Generate metaverse objects from a template."""
        return await generate_from_template(ctx, await services.open_database(), arguments.template, arguments.seed)

    return StepKind.of(
        "identity.template",
        TemplateArguments,
        generate,
        help="Generate metaverse objects from a template",
        policy=POLICY,
    )


def task_kinds(services: ExtensionServices) -> list[StepKind]:
    """The step kinds of tasks that operations and housekeeping enqueue."""

    def kind(
        name: str,
        arguments: type[Any],
        profile: RunProfile,
        process: Callable[[Run, Any], Awaitable[OutcomeStatus]],
        help: str,
        allowed_states: tuple[str, ...] = ("active", "disabled"),
    ) -> StepKind:
        async def execute(arguments: Any, ctx: Context) -> dict[str, Any]:
            database = await services.open_database()
            return await lifecycle.execute(
                ctx,
                database,
                arguments.system,
                profile,
                lambda _: lambda run: process(run, arguments),
                allowed_states=allowed_states,
            )

        execute.__annotations__["arguments"] = arguments
        return StepKind.of(name, arguments, execute, help=help, policy=POLICY, derive=_derive_of(services))

    return [
        kind(
            "identity.delete_due",
            DueDeletionArguments,
            tasks.DUE_DELETIONS,
            lambda run, arguments: tasks.delete_due(run, arguments.identities),
            "Delete metaverse objects whose grace period has ended",
        ),
        kind(
            "identity.approve",
            ApprovalArguments,
            tasks.APPROVAL,
            lambda run, arguments: tasks.apply_approval(run, arguments.run),
            "Apply the deletions that a guard held and a user approved",
        ),
        kind(
            "identity.clear",
            SystemArguments,
            tasks.CLEARING,
            lambda run, arguments: tasks.clear_system(run),
            "Delete all objects of a connected system from the connector space",
        ),
        kind(
            "identity.delete",
            DeleteArguments,
            tasks.DELETION,
            lambda run, arguments: tasks.delete_system(
                run, DefinitionChange(run.record.initiator.name, run.now(), arguments.reason, "hand")
            ),
            "Delete a connected system with its objects and rules",
            ("active", "disabled", "deleting"),
        ),
    ]


def _derive_of(services: ExtensionServices) -> Callable[[Any], StepDefaults]:
    """Run one task of a system at a time. That syncs exclude each other is ensured when they begin."""

    def derive(arguments: Any) -> StepDefaults:
        return StepDefaults(
            limit_key=f"identity:{arguments.system}", limit=1, queue=services.section(IdentitySettings).queue
        )

    return derive


async def check_profile(step: StepCheck, system: str, profile: str) -> None:
    """Refuse a system or a run profile that neither exists nor is declared in the same files."""
    if system in step.declared.get("systems", ()):
        return  # the files declare it; the run names a profile that is missing
    async with session.schema_of_identity(step.connection) as connection:
        stored = await definitions.load_definitions(connection)
    rows = {row.name: row for row in stored.of_kind(definitions.DefinitionKind.SYSTEM)}
    if system not in rows:
        raise Invalid(
            f"there is no connected system {system!r}",
            code="identity.system.not_found",
            field="arguments.system",
            remedy=suggestion(system, rows) or "list them with `tenuto identity systems`",
        )
    profiles = [each["name"] for each in rows[system].definition.get("run_profiles", ())]
    if profile not in profiles:
        raise Invalid(
            f"the system {system!r} has no run profile {profile!r}",
            code="identity.profile.not_found",
            field="arguments.profile",
            remedy=suggestion(profile, profiles) or f"its run profiles are: {', '.join(profiles) or 'none'}",
        )
