"""`Job.call`: run a job here and now, without worker and database.

The input passes through the same validation and JSON as that of a task, and the result is returned as its caller would
receive it. There is one attempt: no retry, no time limit, no record.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from tenuto.clock import SystemClock
from tenuto.errors import EngineError, Invalid
from tenuto.ids import new_id
from tenuto.jobs.context import Context, StepSleep, StepWait, current_context
from tenuto.jobs.outcomes import reject_unfinished_result
from tenuto.jobs.registry import Job
from tenuto.model.access.actors import ActorType
from tenuto.model.work.tasks import NewTask, Task

_CALLER = "direct call"


def call_job(job: Job[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a job with these arguments; return its result, or a coroutine for an ``async def`` job."""
    return call_with_input(job, job.dump_input(args, kwargs))


def call_with_input(job: Job[..., Any], text: str, prepare: Callable[[Context], None] = lambda _context: None) -> Any:
    """Run a job with JSON input; ``prepare`` receives its context before the start."""
    context = _new_context(job, job.validate_input(text))
    prepare(context)
    arguments = job.load_input(context.task.input)
    if job.context_parameter is not None:
        arguments[job.context_parameter] = context
    if job.is_async:
        return _call_async(job, context, arguments)
    token = current_context.set(context)
    try:
        return _load_result(job, job.function(**arguments))
    finally:
        current_context.reset(token)


async def _call_async(job: Job[..., Any], context: Context, arguments: dict[str, Any]) -> Any:
    token = current_context.set(context)
    try:
        return _load_result(job, await job.function(**arguments))
    finally:
        current_context.reset(token)


def _load_result(job: Job[..., Any], value: Any) -> Any:
    """Return a result as it comes back from the database."""
    reject_unfinished_result(value)
    try:
        text = job.dump_output(value)
    except (PydanticSerializationError, ValidationError, ValueError, TypeError) as error:
        raise Invalid(
            f"the result of job {job.name} cannot be stored: {error}",
            code="job.call.result_not_storable",
            field="output",
            remedy="return plain data, a dataclass or a pydantic model",
        ) from error
    return None if text is None else job.load_output(json.loads(text))


def _new_context(job: Job[..., Any], text: str) -> Context:
    id, options = new_id(), job.options
    task = Task(
        id, id, 1, None, "job", job.name, text, job.policy_json, 1, 0, 0, options.queue, options.priority,
        SystemClock().now(), ActorType.SYSTEM, None, _CALLER, options.correlation_id, list(options.tags) or None,
    )  # fmt: skip
    context = Context(task, _refuse_connection, lambda _task: _MemoryCheckpoints())
    context.run_in_thread = _run_in_thread
    return context


async def _run_in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return await asyncio.to_thread(function, **arguments)


def _refuse_connection() -> NoReturn:
    raise EngineError(
        "a job that is called directly has no database connection",
        code="job.call.no_database",
        remedy="run it as a task; tests can use tenuto.testing",
    )


class _MemoryCheckpoints:
    """Checkpoints of one call, which nothing survives. Sleeps end at once."""

    def __init__(self) -> None:
        self._results: dict[str, str] = {}

    async def load(self) -> dict[str, str]:
        return dict(self._results)

    async def save(self, name: str, output: str) -> str:
        return self._results.setdefault(name, output)

    async def sleep(self, step: str, number: int, duration: timedelta, log: str | None) -> StepSleep:
        return StepSleep(number, SystemClock().now(), has_ended=True)

    async def wait_for_event(
        self, step: str, number: int, name: str, key: str, timeout: timedelta, log: str | None
    ) -> StepWait:
        raise EngineError(
            f"a job that is called directly cannot wait for the event {name!r}",
            code="job.call.no_events",
            remedy="run it as a task; tests can use tenuto.testing",
        )

    async def run_child(self, step: str, child: NewTask, log: str | None) -> StepWait:
        raise EngineError(
            f"a workflow that is called directly cannot start the child task {child.name!r}",
            code="job.call.no_children",
            remedy="run it as a task; tests can use tenuto.testing",
        )
