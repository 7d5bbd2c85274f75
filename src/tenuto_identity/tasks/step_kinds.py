"""Step kinds of identity synchronisation: ``run_profile``, and the tasks of operations and housekeeping."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from tenuto.errors import Invalid
from tenuto.extension import ExtensionServices, StepCheck, StepDefaults, StepKind
from tenuto.jobs.context import Context
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.work.tasks import OutcomeStatus
from tenuto_identity.model.definitions.definition_reader import suggestion
from tenuto_identity.model.definitions.system_definitions import RunProfile
from tenuto_identity.runs import run_lifecycle
from tenuto_identity.runs.profile_processors import choose_processor
from tenuto_identity.runs.run_lifecycle import Run
from tenuto_identity.settings import IdentitySettings
from tenuto_identity.store import definitions, transaction_settings
from tenuto_identity.store.definitions import DefinitionChange
from tenuto_identity.tasks import system_tasks
from tenuto_identity.tasks.single_object import sync_one
from tenuto_identity.tasks.system_checks import check_system, discover_schema
from tenuto_identity.tasks.template_task import generate_from_template

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

        return await run_lifecycle.execute(
            ctx,
            database,
            arguments.system,
            arguments.profile,
            lambda profile: choose_processor(services, ctx, profile),
        )

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


class RecallArguments(SystemArguments):
    rule_number: int
    """Number of the deleted rule."""
    type_number: int
    """Number of the object type whose objects it read."""


class SyncOneArguments(SystemArguments):
    anchor: str
    """Anchor of the object in the system."""
    export: bool = False
    """Send what follows to the targets, and confirm it."""


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
            return await run_lifecycle.execute(
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
            system_tasks.DUE_DELETIONS,
            lambda run, arguments: system_tasks.delete_due(run, arguments.identities),
            "Delete metaverse objects whose grace period has ended",
        ),
        kind(
            "identity.approve",
            ApprovalArguments,
            system_tasks.APPROVAL,
            lambda run, arguments: system_tasks.apply_approval(run, arguments.run),
            "Apply the deletions that a guard held and a user approved",
        ),
        kind(
            "identity.recall",
            RecallArguments,
            system_tasks.RECALL,
            lambda run, arguments: system_tasks.RecallRun(
                run, services.section(IdentitySettings).sync_page, arguments.rule_number, arguments.type_number
            ).process(),
            "Withdraw what a deleted rule contributed to identities",
            ("active",),
        ),
        kind(
            "identity.clear",
            SystemArguments,
            system_tasks.CLEARING,
            lambda run, arguments: system_tasks.clear_system(run),
            "Delete all objects of a connected system from the connector space",
        ),
        kind(
            "identity.delete",
            DeleteArguments,
            system_tasks.DELETION,
            lambda run, arguments: system_tasks.delete_system(
                run, DefinitionChange(run.record.initiator.name, run.now(), arguments.reason, "hand")
            ),
            "Delete a connected system with its objects and rules",
            ("active", "disabled", "deleting"),
        ),
    ]


def connector_kinds(services: ExtensionServices) -> list[StepKind]:
    """The step kinds of tasks that need a connector outside of run profiles."""

    async def sync_one_object(arguments: SyncOneArguments, ctx: Context) -> dict[str, Any]:
        """Import, sync and export one object."""
        database = await services.open_database()
        return await sync_one(services, ctx, database, arguments.system, arguments.anchor, export=arguments.export)

    async def check(arguments: SystemArguments, ctx: Context) -> dict[str, Any]:
        """Check the settings of a system and whether it can be reached."""
        return await check_system(services, ctx, arguments.system)

    async def discover(arguments: SystemArguments, ctx: Context) -> dict[str, Any]:
        """Read the schema of a system, and compare it with what is selected."""
        return await discover_schema(services, ctx, arguments.system)

    def derive(arguments: Any) -> StepDefaults:
        return StepDefaults(queue=services.section(IdentitySettings).queue)

    return [
        StepKind.of(
            "identity.sync_one",
            SyncOneArguments,
            sync_one_object,
            help="Import, sync and export one object now",
            policy=POLICY,
            derive=_derive_of(services),
        ),
        StepKind.of(
            "identity.check",
            SystemArguments,
            check,
            help="Check the settings of a connected system and whether it can be reached",
            policy=POLICY,
            derive=derive,
        ),
        StepKind.of(
            "identity.discover",
            SystemArguments,
            discover,
            help="Read the schema of a connected system",
            policy=POLICY,
            derive=derive,
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
    declared = step.declared.get("systems", {})
    if system in declared:
        _check_profile_name(system, profile, declared[system].parsed.run_profiles)
        return
    async with transaction_settings.schema_of_identity(step.connection) as connection:
        stored = await definitions.load_definitions(connection)
    rows = {row.name: row for row in stored.of_kind(definitions.DefinitionKind.SYSTEM)}
    if system not in rows:
        raise Invalid(
            f"there is no connected system {system!r}",
            code="identity.system.not_found",
            field="arguments.system",
            remedy=suggestion(system, rows) or "list them with `tenuto identity systems`",
        )
    _check_profile_name(system, profile, [each["name"] for each in rows[system].definition.get("run_profiles", ())])


def _check_profile_name(system: str, profile: str, profiles: Collection[str]) -> None:
    if profile not in profiles:
        raise Invalid(
            f"the system {system!r} has no run profile {profile!r}",
            code="identity.profile.not_found",
            field="arguments.profile",
            remedy=suggestion(profile, profiles) or f"its run profiles are: {', '.join(profiles) or 'none'}",
        )
