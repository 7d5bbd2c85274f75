"""The step kinds of Tenuto, and the resolution of steps when a definition is saved.

A kind is a module with ``KIND`` and ``create_job(services)``: a built-in job with typed arguments. It gets database,
settings and secrets as `StepServices` and does not import the app. A resolved step has a known kind, valid arguments
and a complete policy, so that the scheduler needs neither the code nor the options of the job.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol, cast

from tenuto.errors import Invalid, TenutoError, UnknownJob
from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job, JobRegistry
from tenuto.model import validation
from tenuto.model.schedules import Plan, ScheduleDefinition
from tenuto.model.secrets import TextOrSecret
from tenuto.model.sql_scripts import ScriptDriver
from tenuto.model.steps import SCHEDULE, Step, override_policy
from tenuto.postgres.database import Database
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
    "http.call": "tenuto.steps.http.call",
    "log.append": "tenuto.steps.log_append",
    "powershell": "tenuto.steps.programs.powershell",
    "sql": "tenuto.steps.sql.script",
}
"""The module of each kind."""


def register_step_kinds(jobs: JobRegistry, services: StepServices) -> None:
    """Register all kinds. The module of a kind is imported when its first step is checked or run."""
    for kind, module in _MODULES.items():
        jobs.add_lazy_handler(kind, partial(_create_job, module, services))


def _create_job(module: str, services: StepServices) -> Job[..., Any]:
    return cast(StepKindModule, import_module(module)).create_job(services)


# --- resolution -----------------------------------------------------------------------------------------------------


def resolve_definition(definition: ScheduleDefinition, jobs: JobRegistry) -> ScheduleDefinition:
    """Return the definition with all steps resolved."""
    return replace(definition, plan=resolve_plan(definition.plan, jobs))


def resolve_plan(plan: Plan, jobs: JobRegistry) -> Plan:
    """Return the plan with all steps resolved."""
    _check_names_are_unique(plan)
    return plan.map_steps(lambda step: _resolve_step(step, jobs))


def _resolve_step(step: Step, jobs: JobRegistry) -> Step:
    try:
        job = jobs.get_handler(step.kind, step.target)
        if step.kind == SCHEDULE and step.rules.get("timeout") is not None:
            raise Invalid(
                "a step that runs a schedule cannot have a timeout",
                code="step.timeout.not_supported",
                field="timeout",
                remedy="set timeouts on the steps of that schedule",
            )
        arguments = json.loads(job.validate_input(validation.dump_json(dict(step.arguments), field="arguments")))
        options = job.options
        takes_limit = step.limit_key is None and options.limit_key is not None
        return replace(
            step,
            arguments=arguments,
            policy=override_policy(step.policy or job.policy, **step.rules),
            rules={},
            queue=step.queue or options.queue,
            priority=options.priority if step.priority is None else step.priority,
            limit_key=options.limit_key if takes_limit else step.limit_key,
            limit_max=options.limit if takes_limit else step.limit_max,
        )
    except TenutoError as error:
        is_unknown = isinstance(error, UnknownJob)
        raise Invalid(
            f"step {step.name!r}: {error.message}",
            code=error.code,
            field=f"steps.{step.name}.{error.field}" if error.field else f"steps.{step.name}",
            remedy="name the app that registers it: --app module:object" if is_unknown else error.remedy,
        ) from error


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
