"""Manifest as a step of a schedule: the task of the step starts one run and defers until the run has ended.

The id of the run follows from the id of the attempt, so a repeated attempt starts no second run. The next attempt after
a lost one continues with the run of that attempt. The manifest determines retries and limits of the run. Neither the
cancellation of the step nor its time limit, which counts from the start of its attempt, stops the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Protocol
from uuid import UUID

from pydantic import Field

from tenuto.errors import Conflict, Invalid, NotFound, UnknownJob
from tenuto.jobs.context import Context, PermanentFailure, TaskDeferred, TimedOut
from tenuto.jobs.registry import Job, TaskOptions
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.definitions.steps import MANIFEST
from tenuto.model.work.tasks import Deferral
from tenuto.postgres.database import Database
from tenuto.scheduling.schedule_step import StepFailed, log
from tenuto.service.polling_loop import retry_while_unavailable
from tenuto.store.work import activities, tasks
from tenuto.store.work.activities import ActivityDetails

_MIN_CHECK_SECONDS = 0.5
_MAX_CHECK_SECONDS = 15.0
_SUCCESS_STATUSES = ("completed", "completed_with_warning")

ExternalId = Annotated[str, Field(min_length=1, max_length=200)]


class RunManifest(Protocol):
    """Starts a run of a manifest, once per request id; see `Manifests.run`."""

    def __call__(
        self, external_id: str, arguments: Mapping[str, Any] | None = None, *, request_id: UUID | None = None
    ) -> Awaitable[UUID]: ...


def manifest_step_job(open: Callable[[], Awaitable[Database]], run: RunManifest) -> Job[..., Any]:
    """Return the job that runs manifest steps."""

    async def run_manifest(
        ctx: Context, manifest: ExternalId, input: dict[str, Any] | None = None, wait: bool = True
    ) -> dict[str, Any]:
        """Run a manifest and wait for its end."""

        async def check() -> dict[str, Any]:
            database = await open()
            id = await _find_started_run(database, ctx)
            if id is None:
                id = await _start_run(database, ctx, run, manifest, input)
            if not wait:
                return {"task_id": str(id), "state": None, "output": None}
            record = await _load_final_attempt(database, id)
            if record is None:
                raise await _defer_or_time_out(database, ctx)
            return _result(ctx, manifest, id, record)

        return await retry_while_unavailable(check, log, "check of step postponed", task_id=str(ctx.task_id))

    return Job(run_manifest, MANIFEST, TaskPolicy(RetryPolicy(max_attempts=1)), TaskOptions(), isolated=False)


async def _find_started_run(database: Database, ctx: Context) -> UUID | None:
    """Return the run that this attempt or an earlier one has started, unless it failed."""
    attempts = await activities.list_attempts(database, ctx.task_id)
    earlier_ids = [_run_id_of_attempt(attempt.id) for attempt in attempts]
    own_id = _run_id_of_attempt(ctx.activity_id)
    for id in (own_id, *reversed(earlier_ids)):
        if await tasks.load_task_to_cancel(database, id) is not None:
            return id
        record = await _load_final_attempt(database, id)
        if record is not None and (id == own_id or record.state in _SUCCESS_STATUSES):
            return id
    return None


def _run_id_of_attempt(activity_id: UUID) -> UUID:
    """Return the id of the run that an attempt starts: sorted next to the id of the attempt, and different from it."""
    return UUID(int=activity_id.int ^ 1)


async def _start_run(
    database: Database, ctx: Context, run: RunManifest, manifest: str, input: Mapping[str, Any] | None
) -> UUID:
    try:
        return await run(manifest, input, request_id=_run_id_of_attempt(ctx.activity_id))
    except Conflict as error:
        ctx.log.info("%s", error.message)
        raise await _defer_or_time_out(database, ctx) from None
    except (Invalid, NotFound, UnknownJob) as error:
        raise PermanentFailure(error.message, code=error.code, field=error.field, remedy=error.remedy) from None


async def _load_final_attempt(database: Database, id: UUID) -> ActivityDetails | None:
    """Return the last attempt of a run, or None if the run has not ended."""
    if await tasks.load_task_to_cancel(database, id) is not None:
        return None
    records = await activities.list_attempts(database, id)
    return records[-1] if records else None


async def _defer_or_time_out(database: Database, ctx: Context) -> TaskDeferred | TimedOut:
    """Return a deferral that grows with the age of the attempt, or a timeout at the time limit of the step."""
    now, limit = database.clock.now(), ctx.task.policy.timeout_seconds
    age_seconds = (now - (await tasks.load_attempt_began_at(database, ctx.task_id) or now)).total_seconds()
    wait_seconds = min(max(_MIN_CHECK_SECONDS, age_seconds / 10), _MAX_CHECK_SECONDS)
    if limit is not None:
        if age_seconds >= limit:
            return TimedOut(
                f"the run did not end within the step's time limit of {limit:g} s", code="step.manifest.timed_out"
            )
        wait_seconds = min(wait_seconds, limit - age_seconds)
    return TaskDeferred(Deferral(resume_at=now + timedelta(seconds=wait_seconds)))


def _result(ctx: Context, manifest: str, id: UUID, record: ActivityDetails) -> dict[str, Any]:
    if record.state not in _SUCCESS_STATUSES:
        error = record.error
        message = error.get("message", "") if isinstance(error, Mapping) else ""
        raise StepFailed(
            f"run {id} of manifest {manifest!r} ended as {record.state}: {message}"[:2000],
            code="step.manifest.run_failed",
        )
    if record.state != _SUCCESS_STATUSES[0]:
        ctx.warn(f"the run of manifest {manifest!r} ended with a warning")
    return {"task_id": str(id), "state": record.state, "output": record.output}
