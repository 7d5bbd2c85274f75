"""The step kinds of Tenuto, and the resolution of steps when a definition is saved.

A kind is a module with ``KIND`` and ``create_job(services)``: a built-in job with typed arguments. It gets database,
settings and secrets as `StepServices` and does not import the app. A resolved step has a known kind, valid arguments
and a complete policy, so that the scheduler needs neither the code nor the options of the job.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol, cast

from tenuto.errors import Invalid, StoreError, TenutoError, UnknownJob
from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job, JobRegistry, TaskOptions
from tenuto.jobs.step_kind import StepCheck, StepDefaults, StepKind
from tenuto.model import validation
from tenuto.model.access.secrets import TextOrSecret
from tenuto.model.definitions.policies import TaskPolicy, default_step_policy
from tenuto.model.definitions.run_references import check_run_references
from tenuto.model.definitions.schedules import Plan, ScheduleDefinition
from tenuto.model.definitions.sql_scripts import ScriptDriver
from tenuto.model.definitions.step_dependencies import check_step_dependencies
from tenuto.model.definitions.step_expressions import has_references
from tenuto.model.definitions.steps import SCHEDULE, Step, override_policy
from tenuto.postgres import read_transactions
from tenuto.postgres.database import Connection, Database
from tenuto.settings import Settings


@dataclass(frozen=True, slots=True)
class StepServices:
    """Services for the handlers of steps."""

    open_database: Callable[[], Awaitable[Database]]
    """Returns the database of Tenuto."""
    get_settings: Callable[[], Settings]
    reveal_secret: Callable[[Context, TextOrSecret], Awaitable[str]]
    """Returns the text; a secret is redacted from then on in everything the attempt leaves behind."""
    drivers: Mapping[str, ScriptDriver] = field(default_factory=dict)
    """Registered drivers for SQL scripts, besides the built-in ones."""


class StepKindModule(Protocol):
    """Interface of the module of a step kind."""

    KIND: str

    def create_job(self, services: StepServices) -> Job[..., Any]: ...


_MODULES = {
    "executable": "tenuto.steps.programs.executable",
    "http.call": "tenuto.steps.http_call",
    "log.append": "tenuto.steps.log_append",
    "powershell": "tenuto.steps.programs.powershell",
    "sql": "tenuto.steps.sql_script",
}
"""The module of each kind."""


def register_step_kinds(jobs: JobRegistry, services: StepServices) -> None:
    """Register all kinds. The module of a kind is imported when its first step is checked or run."""
    for kind, module in _MODULES.items():
        jobs.add_kind(StepKind(kind, partial(_create_job, module, services)))


def _create_job(module: str, services: StepServices) -> Job[..., Any]:
    return cast(StepKindModule, import_module(module)).create_job(services)


# --- resolution -----------------------------------------------------------------------------------------------------


def resolve_definition(
    definition: ScheduleDefinition, jobs: JobRegistry, *, each_alone: bool = False
) -> ScheduleDefinition:
    """Return the definition with all steps resolved. ``each_alone`` leaves out what they take from each other."""
    return replace(definition, plan=resolve_plan(definition.plan, jobs, each_alone=each_alone))


def resolve_plan(plan: Plan, jobs: JobRegistry, *, each_alone: bool = False) -> Plan:
    """Return the plan with all steps resolved. ``each_alone`` leaves out what they take from each other."""
    _check_names_are_unique(plan)
    resolved = plan.map_steps(lambda step: _resolve_step(step, jobs))

    if not each_alone:
        check_dependencies(resolved, jobs)
    return resolved


def check_dependencies(plan: Plan, jobs: JobRegistry) -> None:
    """Raise `Invalid` for what steps cannot take from each other. Types of unknown jobs are not compared."""

    def output_schema(step: Step) -> Mapping[str, Any]:
        try:
            return jobs.get_handler(step.kind, step.target).output_schema()
        except TenutoError:
            return {}

    def input_schema(step: Step) -> Mapping[str, Any]:
        try:
            return jobs.get_handler(step.kind, step.target).input_schema()
        except TenutoError:
            return {}

    check_step_dependencies(plan, output_schema, input_schema)


def _resolve_step(step: Step, jobs: JobRegistry) -> Step:
    with _located(step):
        job = jobs.get_handler(step.kind, step.target)
        if step.kind == SCHEDULE and step.rules.get("timeout") is not None:
            raise Invalid(
                "a step that runs a schedule cannot have a timeout",
                code="step.timeout.not_supported",
                field="timeout",
                remedy="set timeouts on the steps of that schedule",
            )
        check_run_references(step.kind, step.arguments)
        arguments, text = _validate_arguments(step, job)
        options, policy = job.options, default_step_policy(job.policy)
        kind = jobs.kinds.get(step.kind)
        if kind is not None and kind.derive is not None:
            _require_known_arguments(step, job)
            options, policy = _merge_defaults(options, policy, kind.derive(job.load_arguments(text)))
        takes_rate = step.rate_key is None and options.rate_key is not None
        expires_in = options.expires_in
        takes_limit = step.limit_key is None and options.limit_key is not None
        return replace(
            step,
            arguments=arguments,
            policy=override_policy(step.policy or policy, **step.rules),
            rules={},
            queue=step.queue or options.queue,
            priority=options.priority if step.priority is None else step.priority,
            limit_key=options.limit_key if takes_limit else step.limit_key,
            limit_max=options.limit if takes_limit else step.limit_max,
            rate_key=options.rate_key if takes_rate else step.rate_key,
            rate_limit=options.rate_limit if takes_rate else step.rate_limit,
            expires_seconds=(
                expires_in.total_seconds()
                if expires_in is not None and step.expires_seconds is None
                else step.expires_seconds
            ),
        )


def _validate_arguments(step: Step, job: Job[..., Any]) -> tuple[dict[str, Any], str]:
    """Return all arguments, and as JSON those without values of earlier steps, which are validated."""
    if not has_references(step.arguments):
        text = job.validate_input(validation.dump_json(dict(step.arguments), field="arguments"))
        return json.loads(text), text
    validation.dump_json(dict(step.arguments), field="arguments")
    fixed, dependent = _split_arguments(step)
    if unknown := dependent.keys() - job.parameters.keys():
        job.validate_partial_input(dict.fromkeys(unknown))  # refuses them
    checked = job.validate_partial_input(fixed)
    if missing := sorted(job.required_parameters - step.arguments.keys()):
        raise Invalid(f"the argument {missing[0]} is missing", code="job.input.invalid", field=missing[0])
    return {name: checked.get(name, value) for name, value in step.arguments.items()}, json.dumps(checked)


def _require_known_arguments(step: Step, job: Job[..., Any]) -> None:
    """Raise `Invalid` if the options of the step follow from arguments that are not known yet."""
    _, dependent = _split_arguments(step)
    if names := sorted(dependent.keys() & job.required_parameters):
        raise Invalid(
            f"{names[0]} cannot come from an earlier step, because options of the step follow from it",
            code="step.reference.not_allowed",
            field=names[0],
            remedy="write the value itself",
        )


def _split_arguments(step: Step) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments that are known, and those that contain values of earlier steps."""
    dependent = {name: value for name, value in step.arguments.items() if has_references(value)}
    return {name: value for name, value in step.arguments.items() if name not in dependent}, dependent


def _merge_defaults(options: TaskOptions, policy: TaskPolicy, derived: StepDefaults) -> tuple[TaskOptions, TaskPolicy]:
    return (
        replace(
            options,
            queue=derived.queue or options.queue,
            priority=options.priority if derived.priority is None else derived.priority,
            limit_key=options.limit_key if derived.limit_key is None else derived.limit_key,
            limit=options.limit if derived.limit is None else derived.limit,
        ),
        derived.policy or policy,
    )


_APP_REMEDY = "name the app that registers it: --app module:object"

Declared = Mapping[str, Mapping[str, Any]]
"""What definition files declare, by list and key."""


async def check_steps(
    open_database: Callable[[], Awaitable[Database]], plan: Plan, jobs: JobRegistry, declared: Declared | None = None
) -> None:
    """Check the arguments of resolved steps against the database, as far as their kinds demand it.

    ``declared`` is what the same definition files declare, which may not exist yet.
    """
    if any(_find_check(step, jobs) is not None for _, _, step in plan.enumerate_steps()):
        database = await open_database()
        await read_transactions.read(database, lambda connection: check_steps_in_tx(connection, plan, jobs, declared))


async def check_steps_in_tx(
    connection: Connection, plan: Plan, jobs: JobRegistry, declared: Declared | None = None
) -> None:
    """Like `check_steps`, within a transaction."""
    for _, _, step in plan.enumerate_steps():
        if (check := _find_check(step, jobs)) is None:
            continue
        job = jobs.get_handler(step.kind, step.target)
        known, dependent = _split_arguments(step)
        if dependent.keys() & job.required_parameters:
            continue  # they are checked when the step runs
        arguments = job.load_arguments(validation.dump_json(known, field="arguments"))
        with _located(step):
            await check(StepCheck(connection, arguments, declared or {}))


def _find_check(step: Step, jobs: JobRegistry) -> Callable[[StepCheck], Awaitable[None]] | None:
    kind = jobs.kinds.get(step.kind)
    return None if kind is None else kind.check


@contextmanager
def _located(step: Step) -> Iterator[None]:
    """Name the step in errors, also in those of the code of an extension."""
    try:
        yield
    except StoreError:
        raise
    except TenutoError as error:
        raise _in_step(step, error) from error
    except Exception as error:  # code of the step kind: the caller learns which one is at fault
        raise Invalid(
            f"step {step.name!r}: the step kind {step.kind!r} failed: {type(error).__name__}: {error}",
            code="step.kind.failed",
            field=f"steps.{step.name}",
            remedy="report it to the author of the step kind",
        ) from error


def _join_remedies(first: str | None, second: str) -> str:
    return second if first is None else f"{first} Or {second}"


def _in_step(step: Step, error: TenutoError) -> Invalid:
    is_unknown = isinstance(error, UnknownJob)
    return Invalid(
        f"step {step.name!r}: {error.message}",
        code=error.code,
        field=f"steps.{step.name}.{error.field}" if error.field else f"steps.{step.name}",
        remedy=_join_remedies(error.remedy, _APP_REMEDY) if is_unknown else error.remedy,
    )


def _check_names_are_unique(plan: Plan) -> None:
    seen: set[str] = set()
    for _, _, step in plan.enumerate_steps():
        if step.name in seen:
            raise Invalid(
                f"two steps are named {step.name!r}",
                code="step.name.duplicate",
                field="steps",
                remedy="give one of them another name",
            )
        seen.add(step.name)
