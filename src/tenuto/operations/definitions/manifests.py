"""Manifest operations (``app.manifests``): declare, change, list, group and run manifests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Literal
from uuid import UUID

from pydantic import BaseModel

from tenuto.definitions import manifest_definitions
from tenuto.definitions.definition_files import DeclaredManifest
from tenuto.definitions.manifest_definitions import MANIFESTS
from tenuto.diagnostics.definition_diagnosis import diagnose_manifest
from tenuto.diagnostics.reasons import Diagnosis
from tenuto.errors import Invalid, NotFound, UnknownJob, quoted
from tenuto.ids import new_id
from tenuto.jobs.registry import Job, JobRegistry, require_job
from tenuto.jobs.step_kind import StepCheck
from tenuto.model import validation
from tenuto.model.definitions.manifests import Manifest, ScheduleType, parse_on_dead_letter
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy, resolve_max_retries, resolve_retry_policy
from tenuto.model.definitions.steps import override_policy
from tenuto.model.triggers import ManualTrigger, Trigger
from tenuto.model.work.tasks import parse_duration_seconds, parse_expires_in
from tenuto.operations.argument_checks import MAX_LIMIT, check_limit
from tenuto.operations.bound_operation import change_context
from tenuto.operations.definitions import manifest_runs
from tenuto.operations.definitions.definition_operations import DefinitionOperations
from tenuto.operations.definitions.manifest_runs import RunRequest
from tenuto.postgres.database import Database
from tenuto.scheduling import manifest_manager
from tenuto.scheduling.manifest_manager import PollResult
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import (
    ManifestDetails,
    ManifestGroupRecord,
    ManifestOutcome,
    ManifestRecord,
    PollRecord,
    StoredManifest,
)
from tenuto.store.service_notifications import notify_services

_POLICY_FIELDS = ("timeout", "retry", "max_attempts", "on_lost")


class Manifests(DefinitionOperations[DeclaredManifest, Manifest, StoredManifest]):
    """Operations on manifests."""

    _definitions = MANIFESTS
    _key_field = "external_id"
    _notified_services: ClassVar[Sequence[str]] = ("manifests", "limits")

    def _already_declared(self, key: str) -> Invalid:
        return Invalid(
            f"a manifest with the external_id {key!r} is already declared",
            code="manifest.already_declared",
            field="external_id",
            remedy="change one external_id",
        )

    def _read_declaration(self, entry: DeclaredManifest) -> Manifest:
        return self.from_declaration(entry)

    async def _check(self, database: Database, new: Manifest) -> Manifest:
        return self.check(new)

    def _must_be_checked(self, new: Manifest, present: Manifest) -> bool:
        return _checked_parts(new) != _checked_parts(present)

    def check(self, manifest: Manifest) -> Manifest:
        """Return a manifest with checked properties; its job must be registered."""
        job = self._jobs.get_job(manifest.job)
        properties = _check_properties(job, manifest.properties)
        if manifest.schedule_type not in (ScheduleType.ON_DEMAND, ScheduleType.NONE):
            missing = sorted(job.required_parameters - properties.keys())
            if missing:
                raise Invalid(
                    f"the manifest {manifest.external_id!r} runs automatically and needs the property {missing[0]!r}",
                    code="manifest.property.missing",
                    field=f"properties.{missing[0]}",
                )
        property_type = ", ".join(f"{name}: {_type_name(job.parameters[name])}" for name in properties)
        return replace(manifest, properties=properties, property_type=property_type)

    def from_declaration(self, declared: DeclaredManifest) -> Manifest:
        """Build a manifest from a file; values that the file omits come from the job."""
        try:
            job = self._jobs.get_job(declared.job)
        except UnknownJob as error:
            raise Invalid(
                f"the manifest {declared.external_id!r} refers to the unknown job {declared.job!r}",
                code="manifest.job.unknown",
                field="job",
                remedy="name a job of the app, or name the app with --app",
            ) from error
        policy_options = {name: declared.options[name] for name in _POLICY_FIELDS if name in declared.options}
        options = {name: value for name, value in declared.options.items() if name not in _POLICY_FIELDS}
        built = build_manifest(job, declared.external_id, **options)
        return self.check(replace(built, policy=override_policy(job.policy, **policy_options)))

    # --- inspect ----------------------------------------------------------------------------------------------------

    async def list(
        self,
        *,
        after: str | None = None,
        enabled: bool | None = None,
        group: str | None = None,
        search: str | None = None,
        limit: int = 100,
    ) -> Sequence[ManifestRecord]:
        """List manifests by external id, each with its open runs."""
        return await manifests.list_manifests(
            await self._open(), after=after, enabled=enabled, group=group, search=search, limit=check_limit(limit)
        )

    async def why(self, external_id: str) -> Diagnosis:
        """Explain why a manifest does not run, or when it will; of an open run the reasons of its task."""
        return await diagnose_manifest(await self._open(), external_id)

    async def details(self, external_id: str, *, limit: int = 5) -> ManifestDetails:
        """Return a manifest with open runs, last runs, group, dependent manifests and dead letters."""
        database = await self._open()
        stored = await MANIFESTS.get(database, external_id)
        return await manifests.load_details(database, stored, check_limit(limit))

    async def recent_outcomes(self, manifest_ids: Collection[UUID], count: int = 20) -> Sequence[ManifestOutcome]:
        """List the last ended runs of each of some manifests, batch items included, oldest first."""
        return await manifests.list_recent_outcomes(await self._open(), manifest_ids, check_limit(count))

    async def polls(
        self, *, below: UUID | None = None, only_busy: bool = False, limit: int = 50
    ) -> Sequence[PollRecord]:
        """List the polls of the manifest manager, newest first; ``only_busy`` omits those without effect."""
        return await manifests.list_polls(await self._open(), below=below, busy=only_busy, limit=check_limit(limit))

    # --- groups -----------------------------------------------------------------------------------------------------

    async def groups(self, *, after: str | None = None, limit: int = MAX_LIMIT) -> Sequence[ManifestGroupRecord]:
        """List the manifest groups by name (``*`` is all manifests) with their active runs."""
        return await manifests.list_groups(await self._open(), after=after, limit=check_limit(limit))

    async def group(self, name: str) -> ManifestGroupRecord:
        """Return one group with its active runs."""
        found = await manifests.list_groups(await self._open(), [name])
        if not found:
            raise NotFound(
                f"there is no manifest group {quoted(name)}",
                code="manifest_group.not_found",
                remedy="see `tenuto manifest groups`",
            )
        return found[0]

    async def change_group(
        self,
        name: str,
        *,
        max_active: int | Literal["keep"] | None = "keep",
        priority: int | None = None,
        enabled: bool | None = None,
        rate_limit: str | None = "keep",
    ) -> None:
        """Change the limits, the priority, and the enabled state of a group.

        ``rate_limit`` is the maximum number of starts per second, minute or hour, such as ``100/m``; None removes it.
        """
        if name != manifests.ALL_MANIFESTS:
            validation.check_name(name, field="group", limit=64)
        operation = await self._begin("manifest_group.change", target=name)
        await manifest_definitions.change_group(
            operation.database,
            name,
            change_context(operation),
            max_active=max_active,
            priority=priority,
            enabled=enabled,
            rate_limit=rate_limit,
        )
        await notify_services(operation.database, ["limits"])

    # --- run --------------------------------------------------------------------------------------------------------

    async def run(
        self, external_id: str, arguments: Mapping[str, Any] | None = None, *, request_id: UUID | None = None
    ) -> UUID:
        """Run a manifest now with its properties and these arguments, and return the task id.

        It is an error if an earlier run is open. Calls with the same ``request_id`` create one run.
        """

        def make_input(stored: StoredManifest) -> str:
            return _dump_run_input(self._job(stored), stored.manifest, arguments)

        return await self._start("manifest.run", external_id, make_input, None, request_id)

    async def enqueue(
        self, external_id: str, item: Any, *, key: str | None = None, request_id: UUID | None = None
    ) -> UUID:
        """Run a manifest for one item and return the task id.

        It is an error if a run with this key is open. Calls with the same ``request_id`` create one task.
        """
        if key is not None:
            validation.check_label(key, field="key")
        return await self._start(
            "manifest.enqueue",
            external_id,
            lambda stored: self.item_serializer(stored)(item),
            key or str(new_id()),
            request_id,
        )

    async def _start(
        self,
        action: str,
        external_id: str,
        make_input: Callable[[StoredManifest], str],
        key: str | None,
        request_id: UUID | None,
    ) -> UUID:
        if not isinstance(external_id, str):
            raise Invalid(
                f"the manifest to run is given as {type(external_id).__name__}",
                code="manifest.external_id.invalid",
                field="external_id",
                remedy="give its external_id",
            )
        id = request_id or new_id()
        operation = await self._begin(action, target=external_id, after={"task_id": str(id), "item": key})
        request = RunRequest(external_id, id, operation, make_input, key, may_exist=request_id is not None)
        return await manifest_runs.start_run(await self._open_shared(), request)

    async def dependents(self, key: str) -> Sequence[str]:
        """Return the external ids of the manifests that run after this one."""
        return await manifests.list_dependents(await self._open(), key)

    async def poll(self) -> PollResult:
        """Run one cycle of the manifest manager."""
        operation = await self._begin("manifest.poll")
        return await manifest_manager.poll_manifests(operation.database, operation.now, operation.actor.name)

    # --- internals --------------------------------------------------------------------------------------------------

    def _job(self, stored: StoredManifest) -> Job[..., Any]:
        return self._jobs.get_job(stored.manifest.job)

    def item_serializer(self, stored: StoredManifest) -> Callable[[Any], str]:
        """Return the function that serialises the input of one item."""
        return _item_serializer(self._job(stored), stored.manifest.properties)


async def check_manifest_step(jobs: JobRegistry, check: StepCheck) -> None:
    """Check a step that runs a manifest: the manifest exists, and its job accepts the input of the step."""
    external_id = check.arguments["manifest"]
    if external_id in check.declared.get("manifests", ()):
        return  # checked again when the files are applied
    stored = await manifests.find_manifest(check.connection, external_id)
    if stored is None:
        similar = await manifests.find_similar_external_ids(check.connection, external_id)
        raise Invalid(
            f"there is no manifest {external_id!r}",
            code="schedule.step.manifest_not_found",
            field="arguments.manifest",
            remedy=f"did you mean {similar[0]!r}?" if similar else "create the manifest first",
        )
    job = jobs.jobs_by_name.get(stored.manifest.job)
    if job is None:
        return  # a job of another program: its worker checks the input
    try:
        _dump_run_input(job, stored.manifest, check.arguments.get("input"))
    except Invalid as error:
        field = "arguments.input" if error.field is None else f"arguments.input.{error.field}"
        raise Invalid(error.message, code=error.code, field=field, remedy=error.remedy) from error


def _dump_run_input(job: Job[..., Any], manifest: Manifest, arguments: Mapping[str, Any] | None) -> str:
    """Return the input of a run: the properties of the manifest, overridden by these arguments."""
    return job.dump_input((), {**manifest.properties, **(arguments or {})})


def _checked_parts(manifest: Manifest) -> tuple[Any, ...]:
    by_itself = manifest.schedule_type not in (ScheduleType.ON_DEMAND, ScheduleType.NONE)
    return manifest.job, dict(manifest.properties), by_itself


def build_manifest(
    job: Job[..., Any],
    external_id: str,
    *,
    trigger: Trigger | None = None,
    on_demand: bool = False,
    after: Manifest | str | None = None,
    properties: Any = None,
    name: str = "",
    description: str = "",
    max_attempts: int | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | str | timedelta | None = None,
    queue: str | None = None,
    priority: int | None = None,
    group: str | None = None,
    max_active: int | None = None,
    max_retries: int | None = None,
    on_dead_letter: Literal["block", "continue"] = "block",
    expires_in: float | str | timedelta | None = None,
) -> Manifest:
    """Build a manifest of a job; omitted values come from the job. ``max_retries`` means ``max_attempts``."""
    require_job(job)
    max_attempts = resolve_max_retries(max_retries, max_attempts=max_attempts, retry=retry)
    own_retry = (
        job.policy.retry if max_attempts is None and retry is None else resolve_retry_policy(max_attempts, retry)
    )
    limit = job.policy.timeout_seconds if timeout is None else parse_duration_seconds(timeout, field="timeout")
    expires = job.options.expires_in if expires_in is None else parse_expires_in(expires_in)
    return Manifest(
        external_id,
        job.name,
        name,
        description,
        _check_properties(job, arguments_from_properties(job, properties)),
        "",
        trigger or ManualTrigger(),
        on_demand,
        after.external_id if isinstance(after, Manifest) else after,
        TaskPolicy(own_retry, limit, job.policy.on_lost),
        queue or job.options.queue,
        job.options.priority if priority is None else priority,
        group,
        job.options.limit if max_active is None else max_active,
        parse_on_dead_letter(on_dead_letter),
        None if expires is None else expires.total_seconds(),
        job.options.rate_key,
        job.options.rate_limit,
    )


def _check_properties(job: Job[..., Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return job.validate_partial_input(properties)
    except Invalid as error:
        error.field = f"properties.{error.field}"
        raise


def arguments_from_properties(job: Job[..., Any], properties: Any) -> dict[str, Any]:
    """Return properties as arguments; they are a mapping, or a value of the type of one parameter."""
    if properties is None:
        return {}
    if isinstance(properties, Mapping):
        return dict(properties)
    matching = [name for name, annotation in job.parameters.items() if annotation is type(properties)]
    if len(matching) == 1:
        return {matching[0]: properties}
    if isinstance(properties, BaseModel):
        fields = {name: getattr(properties, name) for name in type(properties).model_fields}
    elif dataclasses.is_dataclass(properties) and not isinstance(properties, type):
        fields = {field.name: getattr(properties, field.name) for field in dataclasses.fields(properties)}
    else:
        fields = {}
    if fields and fields.keys() <= job.parameters.keys():
        return fields
    known = ", ".join(f"{name}: {_type_name(kind)}" for name, kind in job.parameters.items()) or "no parameters"
    raise Invalid(
        f"properties of type {type(properties).__name__} match no parameter of the job {job.name!r}",
        code="manifest.properties.mismatch",
        field="properties",
        remedy=f"the job has {known}",
    )


def _item_serializer(job: Job[..., Any], properties: Mapping[str, Any]) -> Callable[[Any], str]:
    free = [name for name in job.parameters if name not in properties]
    names = job.parameters.keys()

    def dump(item: Any) -> str:
        if (type(item) is dict or isinstance(item, Mapping)) and item.keys() <= names:
            return job.dump_input((), {**properties, **item})
        if not free:
            raise Invalid(
                f"the manifest sets all parameters of the job {job.name!r}, so the job takes no item",
                code="manifest.item.no_parameter",
                field="input",
            )
        return job.dump_input((), {**properties, free[0]: item})

    return dump


def _type_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))
