"""A manifest as a step: its task starts one run of it, lets its slot go, and looks in again until that run has ended.

The id of the run follows from that of the attempt's record, so that an attempt that dies in the middle and is looked
at again starts nothing twice; the next attempt after one that was lost goes on with the run that one had started. What
a run is given, and by which rules it is tried, is the manifest's own affair. So is its life: a step that is cancelled
leaves it alone, and so does one whose time limit is over, which counts from the beginning of its attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Protocol
from uuid import UUID

from pydantic import Field

from tenuto.errors import Conflict, Invalid, NotFound, UnknownJob
from tenuto.jobs.context import Context, PermanentFailure, PutAside, TimedOut
from tenuto.jobs.registry import Job, Using
from tenuto.model.policies import Policy, RetryPolicy
from tenuto.model.steps import MANIFEST
from tenuto.model.tasks import Aside
from tenuto.postgres.database import Database
from tenuto.scheduling.schedule_step import StepFailed, log
from tenuto.service.polling_loop import patiently
from tenuto.store import activities, tasks

_FIRST_LOOK = 0.5
_LONGEST_LOOK = 15.0
_WELL = ("completed", "completed_with_warning")

Record = dict[str, Any]
ExternalId = Annotated[str, Field(min_length=1, max_length=200)]


class Run(Protocol):
    """Starts a run of a manifest, once for a request id: see `Manifests.run`."""

    def __call__(
        self, external_id: str, arguments: Mapping[str, Any] | None = None, *, request_id: UUID | None = None
    ) -> Awaitable[UUID]: ...


def handler(open: Callable[[], Awaitable[Database]], run: Run) -> Job[..., Any]:
    """What runs the steps of this kind."""

    async def run_manifest(
        ctx: Context, manifest: ExternalId, input: dict[str, Any] | None = None, wait: bool = True
    ) -> dict[str, Any]:
        """Run a manifest, and wait for its end."""

        async def look() -> dict[str, Any]:
            database = await open()
            id = await _underway(database, ctx)
            if id is None:
                id = await _started(database, ctx, run, manifest, input)
            if not wait:
                return {"task_id": str(id), "status": None, "output": None}
            record = await _end_of(database, id)
            if record is None:
                raise await _later(database, ctx)
            return _result(ctx, manifest, id, record)

        return await patiently(look, log, "what a step stands for cannot be looked at yet", task=str(ctx.task_id))

    return Job(run_manifest, MANIFEST, Policy(RetryPolicy(max_retries=1)), Using(), isolated=False)


async def _underway(database: Database, ctx: Context) -> UUID | None:
    """The run this step has started already and that has not failed, be it by an attempt that was lost."""
    earlier = [_run_of(each["id"]) for each in await activities.attempts(database, ctx.task_id)]
    ours = _run_of(ctx.activity_id)
    for id in (ours, *reversed(earlier)):
        if await tasks.to_cancel(database, id) is not None:
            return id
        record = await _end_of(database, id)
        if record is not None and (id == ours or record["status"] in _WELL):
            return id
    return None


def _run_of(activity_id: UUID) -> UUID:
    """Which run an attempt starts: as old as its record, and another id than that has."""
    return UUID(int=activity_id.int ^ 1)


async def _started(database: Database, ctx: Context, run: Run, manifest: str, input: Mapping[str, Any] | None) -> UUID:
    try:
        return await run(manifest, input, request_id=_run_of(ctx.activity_id))
    except Conflict as error:
        ctx.log.info("%s", error.message)
        raise await _later(database, ctx) from None
    except (Invalid, NotFound, UnknownJob) as error:
        raise PermanentFailure(error.message, field=error.field, remedy=error.remedy) from None


async def _end_of(database: Database, id: UUID) -> Record | None:
    """The record of the attempt a run ended with, if it has ended."""
    if await tasks.to_cancel(database, id) is not None:
        return None
    records = await activities.attempts(database, id)
    return dict(records[-1]) if records else None


async def _later(database: Database, ctx: Context) -> PutAside | TimedOut:
    """The longer it has lasted, the longer until the next look; the last is when its time limit is over."""
    now, limit = database.clock.now(), ctx.task.policy.timeout_seconds
    lasted = (now - (await tasks.began_at(database, ctx.task_id) or now)).total_seconds()
    wait = min(max(_FIRST_LOOK, lasted / 10), _LONGEST_LOOK)
    if limit is not None:
        if lasted >= limit:
            return TimedOut(f"its run went on after the step's time limit of {limit:g} s")
        wait = min(wait, limit - lasted)
    return PutAside(Aside(until=now + timedelta(seconds=wait)))


def _result(ctx: Context, manifest: str, id: UUID, record: Record) -> dict[str, Any]:
    if record["status"] not in _WELL:
        error = record["error"]
        why = error.get("message", "") if isinstance(error, Mapping) else ""
        raise StepFailed(f"the run {id} of manifest {manifest!r} ended as {record['status']}: {why}"[:2000])
    if record["status"] != _WELL[0]:
        ctx.warn(f"the run of manifest {manifest!r} ended with a warning")
    return {"task_id": str(id), "status": record["status"], "output": record["output"]}
