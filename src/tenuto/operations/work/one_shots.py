"""One-shot operations (``app.one_shots``): create, list and cancel tasks that run once at a given instant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from tenuto.errors import Conflict, Forbidden, Invalid, NotFound, quoted
from tenuto.jobs.registry import Job, JobRegistry
from tenuto.lifecycle import task_cancellation
from tenuto.model import validation
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.access.secrets import may_refer_to_secret
from tenuto.model.definitions.policies import RetryPolicy
from tenuto.model.definitions.steps import JOB
from tenuto.model.filter_keys import ONE_SHOT_KEYS
from tenuto.model.filters import Filter
from tenuto.model.work import one_shots
from tenuto.model.work.one_shots import EndedOneShot, OneShotStatus, OneShotSummary, RuntimeStatus
from tenuto.model.work.tasks import (
    NewTask,
    Settlement,
    Task,
    cancelled_outcome,
    check_new_task,
    parse_duration_seconds,
    parse_expires_in,
)
from tenuto.operations.argument_checks import build_filter, check_instant, check_limit, require_single_match
from tenuto.operations.bound_operation import OpenDatabase, Operation, OperationGroup
from tenuto.operations.work.tasks import new_task
from tenuto.postgres.database import Connection, Database
from tenuto.settings import Settings
from tenuto.store.filter_sql import CappedCount
from tenuto.store.work import one_shots as store
from tenuto.store.work import task_creation, task_outcomes

MAX_LIMIT = 1000
_MAX_SEARCH_LENGTH = 200

_OPEN_STATUSES = (RuntimeStatus.PENDING, RuntimeStatus.RUNNING)
_ENDED_STATUSES = (RuntimeStatus.COMPLETED, RuntimeStatus.FAILED, RuntimeStatus.TERMINATED)
CANCEL_CHUNK_SIZE = 5000
"""Number of tasks that one statement of `cancel_all_one_shots` ends; all statements are in one transaction."""


@dataclass(frozen=True, slots=True)
class OneShot:
    """Result of creating a one-shot. ``created`` is False if one with this id already existed."""

    id: UUID
    exec_at: datetime
    created: bool = True


@dataclass(slots=True)
class CancelledOneShots:
    """Result of cancelling all one-shots."""

    terminated: list[UUID] = field(default_factory=list)
    """All cancelled one-shots."""
    stopping: list[UUID] = field(default_factory=list)
    """Those that were running; they end when their code has stopped."""


class OneShots(OperationGroup):
    """Operations on one-shots. The registry is the set of one-shots that have not ended."""

    def __init__(
        self, open: OpenDatabase, caller: OperationCaller, jobs: JobRegistry, settings: Callable[[], Settings]
    ) -> None:
        super().__init__(open, caller)
        self._jobs = jobs
        self._settings = settings

    async def create(
        self,
        exec_at: datetime | str,
        prompt_type: str,
        payload: Mapping[str, Any] | None = None,
        *,
        tags: Iterable[str] = (),
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | str | timedelta | None = None,
        expires_in: float | str | timedelta | None = None,
        may_use_secrets: bool = True,
        id: UUID | None = None,
        is_repeat: bool = False,
    ) -> OneShot:
        """Create a one-shot of type ``log.append``, ``http.call`` or the name of a registered job.

        A one-shot with a past ``exec_at`` runs at once. The payload is checked against the parameters of the handler.
        Without ``max_attempts`` and ``retry``, a job is retried as it declares, and the other types have one attempt.
        ``may_use_secrets`` decides whether the payload may refer to secrets, because a caller that chooses the URL of a
        call could send any secret there. A repeated call with the same ``id`` has no effect; ``is_repeat`` says that
        the call is a repetition, so that an existing one-shot is searched first.
        """
        kind, handler = self.find_handler(prompt_type)
        if kind != JOB and not may_use_secrets and may_refer_to_secret(payload):  # guard: access.secret_in_one_shot
            raise Forbidden(
                "the payload refers to a secret, which requires the role editor",
                code="one_shot.secret.forbidden",
                field="payload",
                remedy="make the call in a job or a schedule, or use a key with the role editor",
            )
        operation = await self._begin("one_shot.create")
        database, now = operation.database, operation.now
        try:
            run_at = one_shots.parse_exec_at(exec_at, now, self._settings().past_one_shots)
        except Invalid:
            if id is None or await store.load_state(database, id) is None:  # guard: idempotency.past_instant
                raise
            return OneShot(id, one_shots.parse_exec_at(exec_at, now, "accept"), created=False)  # exec_at was valid then
        retry = one_shots.choose_retry_policy(
            handler.policy.retry, is_job=kind == JOB, retry=retry, max_attempts=max_attempts
        )
        policy = one_shots.one_shot_policy_json(handler.policy, retry, parse_duration_seconds(timeout, field="timeout"))
        task = new_task(handler, _check_payload(handler, payload), now, operation.actor, id)
        task.kind, task.name, task.policy, task.origin = kind, prompt_type, policy, one_shots.ONE_SHOT_ORIGIN
        task.tags = [*handler.options.tags, *validation.check_tags(tags)] or None
        if expires_in is not None:
            task.expires_at = task.due_at + (parse_expires_in(expires_in) or timedelta())
        task.reschedule(run_at)
        check_new_task(task)
        # One query of open and ended tasks: the one-shot may end between a separate query and the insert.
        # guard: one_shots.existing_is_read
        if is_repeat and id is not None and await store.load_state(database, id) is not None:
            return OneShot(id, run_at, created=False)
        operation.entry.target = str(task.id)
        operation.entry.after = {"prompt_type": prompt_type, "exec_at": run_at, "tags": task.tags}
        # guard: one_shots.ended_meanwhile_by_caller_id
        created = await self._insert(operation, task, may_exist=id is not None)
        if not created and id is not None and await store.load_state(database, id) is None:
            raise Conflict(
                f"{id} is the id of a task that is not a one-shot",
                code="one_shot.id.in_use",
                field="id",
                remedy="omit the id or generate a new one",
            )
        # A generated id exists already only if this call inserted it and lost the reply.
        return OneShot(task.id, run_at, created=created or id is None)

    async def _insert(self, operation: Operation, task: NewTask, *, may_exist: bool) -> bool:
        """Insert the task and return whether it is new.

        ``may_exist`` says that the caller chose the id. Audited requests do not need it: the audit entry has the
        idempotency key of the request, or the id was generated with the request.
        """
        if may_exist and not operation.is_audited:
            return bool(await task_creation.enqueue_tasks(operation.database, [task]))
        return await task_creation.enqueue_new(operation.database, task)

    def as_one_shot(self, task: NewTask, at: datetime | str, now: datetime) -> NewTask:
        """Turn a task of a job into a one-shot that keeps the policies of the job."""
        task.reschedule(one_shots.parse_exec_at(at, now, self._settings().past_one_shots, field="at"))
        task.origin = one_shots.ONE_SHOT_ORIGIN
        return check_new_task(task)

    def find_handler(self, prompt_type: str) -> tuple[str, Job[..., Any]]:
        """Return the task kind and the handler of a prompt type."""
        if isinstance(prompt_type, str):
            # guard: one_shots.allowed_kinds
            if prompt_type in one_shots.PROMPT_STEP_KINDS and prompt_type in self._jobs.handlers_by_kind:
                return prompt_type, self._jobs.handlers_by_kind[prompt_type]
            if prompt_type in self._jobs.jobs_by_name:
                return "job", self._jobs.jobs_by_name[prompt_type]
        raise Invalid(
            f"unknown prompt_type {quoted(prompt_type)}",
            code="one_shot.prompt_type.unknown",
            field="prompt_type",
            remedy=f"use one of {', '.join(self.prompt_types()[:20])} or the name of a registered job",
        )

    def prompt_types(self) -> Sequence[str]:
        """Return the known prompt types."""
        return sorted(
            (one_shots.PROMPT_STEP_KINDS & self._jobs.handlers_by_kind.keys()) | self._jobs.jobs_by_name.keys()
        )

    # --- inspect ----------------------------------------------------------------------------------------------------

    async def status(self, id: UUID, *, history: bool = False) -> OneShotStatus:
        """Return the status of a one-shot, open or ended, optionally with its history."""
        attempts = await store.list_attempts(await self._open(), id)
        if not attempts:
            raise _not_found(id)
        return one_shots.describe_one_shot(attempts, history=history)

    async def list(
        self,
        where: str | Filter | None = None,
        *,
        status: str | None = None,
        prompt_type: str | None = None,
        tags: Iterable[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        search: str | None = None,
        after: tuple[datetime, UUID] | None = None,
        limit: int = 100,
    ) -> Sequence[OneShotSummary]:
        """List the one-shots that have not ended, next one first. The next page is ``after`` the last (run_at, id).

        ``where`` is a filter such as ``type:http.call tag:order-7``. The other arguments are shorthands. All ``tags``
        must match. ``search`` is a text in type, tags or payload. ``since`` and ``until`` limit the instant of the run.
        """
        database = await self._open()
        filter = _build_filter(where, database.clock.now(), prompt_type, tags, since, until, search)
        filter = filter.where(state=_parse_status(status, _OPEN_STATUSES))
        return await store.list_open(database, filter, after=after, limit=check_limit(limit, MAX_LIMIT))

    async def list_ended(
        self,
        where: str | Filter | None = None,
        *,
        status: str | None = None,
        prompt_type: str | None = None,
        tags: Iterable[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        search: str | None = None,
        below: UUID | None = None,
        limit: int = 100,
    ) -> Sequence[EndedOneShot]:
        """List ended one-shots, newest first. The next page is ``below`` the last ``activity_id``."""
        database = await self._open()
        filter = _build_filter(where, database.clock.now(), prompt_type, tags, since, until, search)
        filter = filter.where(state=_parse_status(status, _ENDED_STATUSES))
        return await store.list_ended(database, filter, below=below, limit=check_limit(limit, MAX_LIMIT))

    async def count(
        self,
        where: str | Filter | None = None,
        *,
        ended: bool = False,
        status: str | None = None,
        prompt_type: str | None = None,
        tags: Iterable[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        search: str | None = None,
    ) -> CappedCount:
        """Count open or ended one-shots, exactly up to 10,000; the arguments are those of `list`."""
        database = await self._open()
        filter = _build_filter(where, database.clock.now(), prompt_type, tags, since, until, search)
        filter = filter.where(state=_parse_status(status, _ENDED_STATUSES if ended else _OPEN_STATUSES))
        return await store.count_one_shots(database, filter, ended=ended)

    async def count_of_each(self, wheres: Sequence[str | Filter], *, ended: bool = False) -> Sequence[CappedCount]:
        """Count the open or ended one-shots that meet each of the filters, in one statement."""
        database = await self._open()
        now = database.clock.now()
        filters = [build_filter(ONE_SHOT_KEYS, where, now) for where in wheres]
        return await store.count_one_shots_of_each(database, filters, ended=ended)

    async def find(self, prefix: str) -> UUID:
        """Return the only one-shot id that begins with this prefix."""
        found = await store.find_ids_by_prefix(await self._open(), prefix)
        return require_single_match(found, prefix, noun="one-shot", list_command="`tenuto once list`")

    # --- cancel ----------------------------------------------------------------------------------------------------

    async def cancel(self, id: UUID) -> Literal["terminated", "stopping", "ended"]:
        """Cancel a one-shot: at once if it is not running, otherwise by asking its code to stop.

        A one-shot that has already ended is left as it is.
        """
        operation = await self._begin("one_shot.cancel", target=str(id))
        return await cancel_one_shot(operation.database, id, operation.actor)

    async def cancel_all(self) -> CancelledOneShots:
        """Cancel all one-shots in one transaction."""
        return await cancel_all_one_shots(await self._begin("one_shot.wipe"))


def _check_payload(handler: Job[..., Any], payload: Mapping[str, Any] | None) -> str:
    """Return the payload as input of the handler, or raise an error that names the invalid part."""
    if payload is not None and not isinstance(payload, Mapping):
        raise Invalid(
            f"the payload must be an object, not {type(payload).__name__}",
            code="one_shot.payload.not_an_object",
            field="payload",
            remedy='write it like {"message": "Hello"}',
        )
    text = validation.dump_json(dict(payload or {}), field="payload")
    try:
        return handler.validate_input(text)
    except Invalid as error:
        error.field = "payload" if error.field in (None, "input") else f"payload.{error.field}"
        error.remedy = error.remedy or f"{handler.name} takes {', '.join(handler.parameters) or 'no parameters'}"
        raise


def _build_filter(
    where: str | Filter | None,
    now: datetime,
    prompt_type: str | None,
    tags: Iterable[str],
    since: datetime | None,
    until: datetime | None,
    search: str | None,
) -> Filter:
    filter = build_filter(ONE_SHOT_KEYS, where, now)
    if prompt_type is not None:
        filter = filter.where(type=validation.check_label(prompt_type, field="prompt_type"))
    if search is not None:
        filter = filter.containing(validation.check_label(search, field="search", limit=_MAX_SEARCH_LENGTH))
    check_instant(since, field="since")
    check_instant(until, field="until")
    for tag in validation.check_tags(tags, check=validation.check_label):
        filter = filter.where(tag=tag)
    return filter.within("due", since, until)


def _parse_status(status: str | None, statuses: Iterable[RuntimeStatus]) -> str | None:
    if status is None:
        return None
    for known in statuses:
        if status.lower() == known.lower():
            return known.lower()
    raise Invalid(
        f"unknown status {quoted(status, 60)}",
        code="one_shot.status.unknown",
        field="status",
        remedy=f"use one of {', '.join(statuses)}",
    )


# --- cancellation ---------------------------------------------------------------------------------------------------


async def cancel_one_shot(database: Database, id: UUID, by: Actor) -> Literal["terminated", "stopping", "ended"]:
    """Cancel a one-shot; "ended" if it had already ended."""
    state = await store.load_state(database, id)
    if state is None:
        raise _not_found(id)
    if state == "ended":
        return "ended"
    try:
        return "terminated" if await task_cancellation.cancel_task(database, id, by) == "cancelled" else "stopping"
    except Conflict:
        if await store.load_state(database, id) == "ended":  # meanwhile, by itself
            return "ended"
        raise


async def cancel_all_one_shots(operation: Operation) -> CancelledOneShots:
    """Cancel all one-shots in one transaction.

    Tasks are locked before they are changed, so no task can change its state between query and update.
    """
    database, now, by = operation.database, operation.now, operation.actor
    tries: list[CancelledOneShots] = []

    async def cancel_all(connection: Connection) -> CancelledOneShots:
        cancelled = CancelledOneShots()
        tries.append(cancelled)
        async for waiting in store.lock_unclaimed(connection, CANCEL_CHUNK_SIZE):
            await end(connection, waiting)
            cancelled.terminated += [task.id for task in waiting]
        # Running tasks are locked last, because a locked task cannot be renewed. Tasks created or returned to the queue
        # meanwhile are included.
        while True:
            found = await store.lock_open(connection, CANCEL_CHUNK_SIZE)
            running = [task.id for task in found if task.worker_id is not None]
            await end(connection, [task for task in found if task.worker_id is None])
            if running:
                await store.request_cancellation(connection, running, now, by)
            cancelled.terminated += [task.id for task in found]
            cancelled.stopping += running
            if len(found) < CANCEL_CHUNK_SIZE:
                operation.entry.after = {
                    "total": len(cancelled.terminated),
                    "stopping": len(cancelled.stopping),
                }
                return cancelled

    async def end(connection: Connection, waiting: Sequence[Task]) -> None:
        await task_outcomes.end_tasks(
            connection, [Settlement(task, cancelled_outcome(task, now, by)) for task in waiting]
        )

    cancelled = await database.transaction(cancel_all)
    # guard: one_shots.cancel_all_after_lost_reply
    for lost in tries[:-1]:  # a try without reply may have been committed
        committed = await store.find_stopped_at(database, lost.terminated, now) - set(cancelled.terminated)
        cancelled.terminated += [id for id in lost.terminated if id in committed]
        cancelled.stopping += [id for id in lost.stopping if id in committed]
    return cancelled


def _not_found(id: UUID) -> NotFound:
    return NotFound(
        f"there is no one-shot {id}", code="one_shot.not_found", remedy="see `tenuto once list`, also with --ended"
    )
