"""Definition of a workflow: its function as that of a job, and which of its versions a run uses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from tenuto.errors import Invalid, UnknownJob, quoted
from tenuto.jobs.context import Context
from tenuto.jobs.registry import WORKFLOW, Job, context_parameter_of
from tenuto.jobs.workflows.workflow_run import WorkflowRun


def workflow_function(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return the function of a workflow as that of a job."""
    if not inspect.iscoroutinefunction(function):
        raise Invalid(
            f"the workflow {quoted(getattr(function, '__name__', function))} is not an async def function",
            code="workflow.function.not_async",
            field="workflow",
            remedy="write an async def with a parameter `ctx: Context`; the steps that it calls may be plain functions",
        )
    parameter = context_parameter_of(function)
    if parameter is None:
        raise Invalid(
            f"the workflow {function.__name__} has no parameter annotated Context",
            code="workflow.context.missing",
            field="workflow",
            remedy="write it like: async def ship(ctx: Context, number: int) -> str",
        )
    signature = inspect.signature(function)

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        ctx: Context = bound.arguments[parameter]
        if ctx.workflow is None:
            ctx.workflow = WorkflowRun(ctx)
        return await ctx.workflow.execute(functools.partial(function, *bound.args, **bound.kwargs))

    setattr(run, WORKFLOW, True)
    return run


async def choose_version(job: Job[..., Any], ctx: Context) -> Job[..., Any]:
    """Return the version of a workflow that a run has begun with, or the current one for a run that has stored nothing.

    Raise `UnknownJob` if this process does not have the version: the task waits for a process that has it.
    """
    assert job.versions is not None
    ctx.workflow = WorkflowRun(ctx)
    history = await ctx.workflow.load_history()
    # The version is stored before the first step runs, so that it may be known although no call is stored.
    if history.is_empty and history.version is None:  # guard: workflows.version_before_first_call
        ctx.workflow.pin_version(job.version)
        return job
    found = job.versions.get(history.version)  # guard: workflows.version_of_run
    if found is None:
        named = f"{describe_version(history.version)} of workflow {job.name}"
        ctx.progress(0, message=f"waits for a worker with {named}")
        raise UnknownJob(
            f"the task has begun with {named}, which is not registered in this process",
            code="workflow.version.unknown",
            remedy="register the old function beside the new one, with its version, until its tasks have ended",
        )
    return found


def describe_version(version: str | None) -> str:
    """Return a version in messages."""
    return "the function without a version" if version is None else f"version {version}"
