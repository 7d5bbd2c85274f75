"""From a step as written to a step that can run: its kind known, its arguments checked, its rules complete.

Done when a schedule is saved, so that whoever fires it later needs neither the code nor the job's options.
"""

from __future__ import annotations

import json
from dataclasses import replace

from tenuto.errors import Invalid, TenutoError, UnknownJob
from tenuto.jobs.registry import Jobs
from tenuto.model import stored_values
from tenuto.model.schedules import Definition, Plan
from tenuto.model.steps import SCHEDULE, Step, policy_of


def resolve(definition: Definition, jobs: Jobs) -> Definition:
    """The definition with every step complete, or a refusal that names the step."""
    return replace(definition, plan=resolve_plan(definition.plan, jobs))


def resolve_plan(plan: Plan, jobs: Jobs) -> Plan:
    """Every step of a plan complete."""
    _refuse_names_twice(plan)
    return plan.map(lambda step: _resolved(step, jobs))


def _resolved(step: Step, jobs: Jobs) -> Step:
    try:
        job = jobs.of(step.kind, step.target)
        if step.kind == SCHEDULE and step.rules.get("timeout") is not None:
            raise Invalid("a schedule has none", field="timeout", remedy="give its own steps time limits")
        arguments = json.loads(job.check_input(stored_values.json_of(dict(step.arguments), field="arguments")))
        using = job.using_
        limited = step.limit_key is None and using.limit_key is not None
        return replace(
            step,
            arguments=arguments,
            policy=policy_of(step.policy or job.policy, **step.rules),
            rules={},
            queue=step.queue or using.queue,
            priority=using.priority if step.priority is None else step.priority,
            limit_key=using.limit_key if limited else step.limit_key,
            limit_max=using.limit if limited else step.limit_max,
        )
    except UnknownJob as error:
        raise Invalid(
            error.message, field=f"steps.{step.name}", remedy="name the app that has it: --app module:object"
        ) from error
    except TenutoError as error:
        field = f"steps.{step.name}.{error.field}" if error.field else f"steps.{step.name}"
        raise Invalid(error.message, field=field, remedy=error.remedy) from error


def _refuse_names_twice(plan: Plan) -> None:
    seen: set[str] = set()
    for _, _, step in plan.numbered():
        if step.name in seen:
            raise Invalid(f"two steps are named {step.name!r}", field="steps", remedy="give one another name")
        seen.add(step.name)
