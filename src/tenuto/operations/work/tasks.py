"""Task operations of the app: enqueue, cancel, wait for, inspect and diagnose tasks and their activities."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload
from uuid import UUID

from tenuto.diagnostics.reasons import Diagnosis
from tenuto.diagnostics.task_diagnosis import diagnose_task
from tenuto.errors import Conflict, Invalid, NotFound, quoted
from tenuto.jobs.enqueued_task import Enqueued
from tenuto.jobs.registry import Job, require_job
from tenuto.lifecycle import task_cancellation
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.filter_keys import ACTIVITY_KEYS, TASK_KEYS
from tenuto.model.filters import Filter
from tenuto.model.work.step_positions import position_of_step
from tenuto.model.work.tasks import NewTask, parse_duration_seconds
from tenuto.operations.argument_checks import build_filter, check_id, check_instant, check_limit, require_single_match
from tenuto.operations.bound_operation import OpenDatabase, OperationGroup
from tenuto.operations.work.attempt_logs import AttemptLogText, read_attempt_log
from tenuto.operations.work.batch_inputs import PipelinedWriter
from tenuto.operations.work.completion_waiter import EndSignal, PollIntervals, wait_until_ended
from tenuto.operations.work.dead_letters import DeadLetters
from tenuto.store.access.audit_recorder import AuditEntry
from tenuto.store.filter_sql import CappedCount
from tenuto.store.work import activities, caller_transactions, step_checkpoints, task_creation
from tenuto.store.work.activities import (
    ActivityDetails,
    ActivityRecord,
    JobStatistics,
    OutcomeCounts,
    TaskDetails,
    TaskRecord,
)
from tenuto.store.work.caller_transactions import AsyncCallerConnection, Driver, Statements
from tenuto.store.work.step_checkpoints import ChainStepRecord

if TYPE_CHECKING:
    from tenuto.operations.work.one_shots import OneShots

T = TypeVar("T")

_ENQUEUE_CHUNK_SIZE = 1000
_UNKNOWN_INSTANT = datetime(1970, 1, 1, tzinfo=UTC)
"""Creation time of a task until the database sets it."""
_POLL_INTERVALS = PollIntervals(first_seconds=0.01, growth=1.5)


@dataclass(frozen=True, slots=True)
class Record(ActivityDetails, Generic[T]):
    """The last attempt of an ended task. ``output`` has the type that the job returns; it is None, whatever that
    type, if the task did not succeed."""

    output: T


_RECORD_FIELDS = tuple(field.name for field in fields(ActivityDetails))


class Tasks(OperationGroup):
    """Operations on tasks (``app.tasks``); called, it lists the open ones."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller, dead_letters: DeadLetters) -> None:
        super().__init__(open, caller)
        self._dead_letters = dead_letters

    async def __call__(
        self, where: str | Filter | None = None, *, below: UUID | None = None, limit: int = 50, **values: Any
    ) -> Sequence[TaskRecord]:
        """List open tasks, newest first; page with ``below``.

        ``where`` is a filter such as ``state:queued queue:mail created:>2h``; further arguments are exact values of its
        keys, such as ``name="resize"``.
        """
        database = await self._open()
        filter = build_filter(TASK_KEYS, where, database.clock.now()).where(**values)
        return await activities.list_tasks(database, filter, below=below, limit=check_limit(limit))

    async def next_to_claim(
        self,
        where: str | Filter | None = None,
        *,
        after: tuple[str, int, datetime, UUID] | None = None,
        limit: int = 50,
    ) -> Sequence[TaskRecord]:
        """List queued tasks by queue, and within a queue in the order in which workers claim them.

        A task under a limit may be claimed later than its place. The next page is ``after`` the queue, priority, due
        instant and id of the last task.
        """
        database = await self._open()
        filter = build_filter(TASK_KEYS, where, database.clock.now())
        return await activities.list_queued_tasks(database, filter, after=after, limit=check_limit(limit))

    async def retry(
        self,
        id: UUID,
        *,
        input: Mapping[str, Any] | None = None,
        note: str | None = None,
        may_use_secrets: bool = True,
        request_id: UUID | None = None,
    ) -> UUID:
        """Run a task that failed for good again, optionally with another input, and return the id of the new task.

        The dead letter of the task is resolved in the same transaction. ``may_use_secrets`` decides whether the input
        of a call may refer to secrets. Calls with the same ``request_id`` create one task.
        """
        return await self._dead_letters.retry_task(
            check_id(id, noun="task"), input=input, note=note, may_use_secrets=may_use_secrets, request_id=request_id
        )


class TaskOperations(OperationGroup):
    """The methods of an app that handle tasks."""

    one_shots: OneShots
    tasks: Tasks

    # --- enqueue and cancel -----------------------------------------------------------------------------------------

    @overload
    async def enqueue(self, job: Job[..., Coroutine[Any, Any, T]], /, *args: Any, **kwargs: Any) -> Enqueued[T]: ...

    @overload
    async def enqueue(self, job: Job[..., T], /, *args: Any, **kwargs: Any) -> Enqueued[T]: ...

    async def enqueue(self, job: Job[..., Any], /, *args: Any, **kwargs: Any) -> Enqueued[Any]:
        """Enqueue a task with this input, checked against the job's signature. Set options with ``job.using(...)``.

        `Job.enqueue` does the same, and type checkers check its arguments.
        """
        require_job(job)
        operation = await self._begin("task.create", target=job.name)
        task = new_task(job, job.dump_input(args, kwargs), operation.now, operation.actor)
        operation.entry.after = {"task_id": str(task.id)}
        return _enqueued(job, task, await task_creation.enqueue_or_find(operation.database, task))

    async def enqueue_json(self, job: Job[..., Any], text: str, *, request_id: UUID | None = None) -> Enqueued[Any]:
        """Enqueue a task with untrusted JSON input. Calls with the same ``request_id`` create one task."""
        require_job(job)
        operation = await self._begin("task.create", target=job.name)
        task = new_task(job, job.validate_input(text), operation.now, operation.actor, request_id)
        operation.entry.after = {"task_id": str(task.id)}
        # An idempotency key is written with the task, so a task with a new key cannot exist.
        may_exist = request_id is not None and operation.context.idempotency_key is None
        stored_id = await task_creation.enqueue_or_find(operation.database, task, may_exist=may_exist)
        return _enqueued(job, task, stored_id, may_exist=may_exist)

    async def once(self, job: Job[..., Any], /, *args: Any, at: datetime | str, **kwargs: Any) -> Enqueued[Any]:
        """Enqueue a one-shot: the job runs once, at this instant."""
        require_job(job)
        operation = await self._begin("one_shot.create", target=job.name)
        task = new_task(job, job.dump_input(args, kwargs), operation.now, operation.actor)
        operation.entry.after = {"task_id": str(task.id)}
        self.one_shots.as_one_shot(task, at, operation.now)
        return _enqueued(job, task, await task_creation.enqueue_or_find(operation.database, task))

    @overload
    def enqueue_within(
        self, connection: AsyncCallerConnection, job: Job[..., Any], *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Enqueued[Any]]: ...

    @overload
    def enqueue_within(self, connection: Any, job: Job[..., Any], *args: Any, **kwargs: Any) -> Enqueued[Any]: ...

    def enqueue_within(
        self, connection: Any, job: Job[..., Any], *args: Any, **kwargs: Any
    ) -> Enqueued[Any] | Coroutine[Any, Any, Enqueued[Any]]:
        """Enqueue a task in the caller's transaction on the same database.

        The connection is one of asyncpg, psycopg 3 or Django, or a connection or session of SQLAlchemy. With a
        connection that needs an event loop, await the result. The app itself need not be open.
        """
        require_job(job)
        driver = caller_transactions.find_driver(connection)
        context, now = self._caller.begin("task.create"), self._database_now()
        task = new_task(job, job.dump_input(args, kwargs), now or _UNKNOWN_INSTANT, context.actor)
        task.run_at = job.options.run_at  # the database adds the delay: it may be the only one that knows the time
        entry = AuditEntry(context, job.name, after={"task_id": str(task.id)}) if self._caller.is_audited else None
        statements = caller_transactions.enqueue(task, now, job.options.delay, entry)
        if driver.is_async:
            return _enqueue_async(driver, connection, job, task, statements)
        return _enqueued(job, task, caller_transactions.run(driver, connection, statements))

    def _database_now(self) -> datetime | None:
        """Return the instant by the clock of the database, or None if the app has not opened it."""
        return None

    async def enqueue_many(self, job: Job[..., Any], inputs: Iterable[Any]) -> int:
        """Enqueue a task for each input and return the number of tasks created.

        An input is a mapping of arguments, or the single argument. Inputs are read in chunks of a
        thousand, one transaction each, so memory use stays constant. The next chunk is prepared while the database
        stores the previous one. No transaction is open while the iterator is read, so it may be slow. If an input is
        invalid, the earlier chunks remain stored.
        """
        require_job(job)
        if job.options.unique_key is not None:
            raise Invalid(
                f"enqueue_many cannot give the key {quoted(job.options.unique_key)} to several tasks",
                code="task.key.not_allowed",
                field="key",
                remedy="enqueue the tasks one by one",
            )
        operation = await self._begin("task.create", target=job.name)
        database, rows = operation.database, iter(inputs)
        async with PipelinedWriter() as writer:
            while chunk := list(islice(rows, _ENQUEUE_CHUNK_SIZE)):
                await writer.start_pending()
                dumped = [_dump_row(job, row) for row in chunk]
                template = new_task(job, "{}", database.clock.now(), operation.actor)
                await writer.submit(partial(task_creation.enqueue_bulk, database, template, dumped))
        return writer.created_count

    async def cancel(self, task: Enqueued[Any] | UUID) -> Literal["cancelled", "stopping"]:
        """Cancel a task: at once if it is not running, otherwise by asking its code to stop."""
        task_id = check_task_id(task)
        operation = await self._begin("task.cancel", target=str(task_id))
        return await task_cancellation.cancel_task(operation.database, task_id, operation.actor)

    @overload
    async def wait(self, task: Enqueued[T], timeout: float | str | timedelta | None = None) -> Record[T]: ...

    @overload
    async def wait(self, task: UUID, timeout: float | str | timedelta | None = None) -> Record[Any]: ...

    async def wait(self, task: Enqueued[Any] | UUID, timeout: float | str | timedelta | None = None) -> Record[Any]:
        """Wait until a task has ended and return the activity of its last attempt.

        For the result of an enqueue, the output has the type that the job returns; for an id it is plain JSON data.
        """
        load_output = task.load_output if isinstance(task, Enqueued) else None
        task_id = check_task_id(task)
        timeout_seconds = parse_duration_seconds(timeout, field="timeout")
        database = await self._open()

        async def load_if_ended(_: bool) -> Record[Any] | None:
            if await activities.has_task_ended(database, task_id) is False:
                return None
            return _to_record((await self.attempts(task_id))[-1], load_output)

        def timeout_error() -> Conflict:
            return Conflict(
                f"task {task_id} has not ended after {timeout_seconds:g} s",
                code="task.wait.timeout",
                remedy=f"see the reason with `tenuto task why {task_id}`",
            )

        return await wait_until_ended(load_if_ended, EndSignal(_POLL_INTERVALS), timeout_seconds, timeout_error)

    # --- inspect ----------------------------------------------------------------------------------------------------

    async def task(self, task: Enqueued[Any] | UUID) -> TaskDetails:
        """Return an open task."""
        task_id = check_task_id(task)
        record = await activities.load_task(await self._open(), task_id)
        if record is None:
            raise NotFound(
                f"there is no open task {task_id}",
                code="task.not_found",
                remedy="see its activities if the task has ended",
            )
        return record

    async def count_tasks(self, where: str | Filter | None = None, **values: Any) -> CappedCount:
        """Count open tasks, exactly up to 10,000; the arguments are those of `tasks`."""
        database = await self._open()
        filter = build_filter(TASK_KEYS, where, database.clock.now()).where(**values)
        return await activities.count_tasks(database, filter)

    async def count_tasks_of_each(self, wheres: Sequence[str | Filter]) -> Sequence[CappedCount]:
        """Count the open tasks that meet each of the filters, in one statement."""
        database = await self._open()
        now = database.clock.now()
        return await activities.count_tasks_of_each(database, [build_filter(TASK_KEYS, each, now) for each in wheres])

    async def activity(self, activity_id: UUID) -> ActivityDetails:
        """Return the record of one attempt, whether waiting, running or ended."""
        record = await activities.load_activity(await self._open(), check_id(activity_id, noun="activity"))
        if record is None:
            raise NotFound(f"there is no activity {activity_id}", code="activity.not_found")
        return record

    async def activity_log(
        self, activity_id: UUID, *, tail: int | None = None, from_offset: int | None = None
    ) -> AttemptLogText:
        """Return the log of an attempt, also while it runs: the whole, the last lines, or what follows an offset.

        While the attempt runs, the call asks its worker to send new lines for the next 15 seconds. The first lines
        arrive within a second; repeat the call with the next offset to follow the log.
        """
        id = check_id(activity_id, noun="activity")
        found = await read_attempt_log(await self._open(), await self._open_shared(), id, tail, from_offset)
        if found is None:
            raise NotFound(f"there is no activity {activity_id}", code="activity.not_found")
        return found

    async def activities(
        self, where: str | Filter | None = None, *, below: UUID | None = None, limit: int = 50, **values: Any
    ) -> Sequence[ActivityRecord]:
        """List ended attempts, newest first; page with ``below``.

        ``where`` is a filter such as ``state:failed final:yes ended:>2h``; further arguments are exact values of its
        keys, such as ``name="resize"``.
        """
        database = await self._open()
        filter = build_filter(ACTIVITY_KEYS, where, database.clock.now()).where(**values)
        return await activities.list_activities(database, filter, below=below, limit=check_limit(limit))

    async def count_activities(self, where: str | Filter | None = None, **values: Any) -> CappedCount:
        """Count ended attempts, exactly up to 10,000; the arguments are those of `activities`."""
        database = await self._open()
        filter = build_filter(ACTIVITY_KEYS, where, database.clock.now()).where(**values)
        return await activities.count_activities(database, filter)

    async def count_activities_of_each(self, wheres: Sequence[str | Filter]) -> Sequence[CappedCount]:
        """Count the ended attempts that meet each of the filters, in one statement."""
        database = await self._open()
        now = database.clock.now()
        filters = [build_filter(ACTIVITY_KEYS, each, now) for each in wheres]
        return await activities.count_activities_of_each(database, filters)

    async def attempts(self, task: Enqueued[Any] | UUID) -> Sequence[ActivityDetails]:
        """List all attempts of a task, first attempt first; the last one may not have started."""
        task_id = check_task_id(task)
        records = await activities.list_attempts(await self._open(), task_id)
        if not records:
            raise NotFound(f"there is no task {task_id}", code="task.not_found")
        return records

    async def children(
        self, activity_id: UUID, *, above: UUID | None = None, limit: int = 50
    ) -> Sequence[ActivityRecord]:
        """List the attempts of tasks that a running job enqueued, oldest first; page with ``above``."""
        parent = await self.activity(activity_id)
        return await activities.list_children(await self._open(), parent.id, above, check_limit(limit))

    async def chain_steps(self, task: Enqueued[Any] | UUID) -> Sequence[ChainStepRecord]:
        """List the stored steps, sleeps and waits of a chain or workflow by position; empty for other tasks."""
        task_id = check_task_id(task)
        steps = await step_checkpoints.list_steps_and_sleeps(await self._open(), task_id)
        return sorted(steps, key=lambda step: position_of_step(step.name))

    async def stats(self, *, since: datetime, name: str | None = None, limit: int = 100) -> Sequence[JobStatistics]:
        """Return, by name, the outcome counts, wait times and durations of attempts ended since an instant."""
        check_instant(since, field="since")
        return await activities.list_job_statistics(await self._open(), since, name, check_limit(limit))

    async def outcome_counts(self, *, tag: str | None = None, initiator_id: str | None = None) -> OutcomeCounts:
        """Count the tasks of a tag or an initiator."""
        return await activities.count_outcomes(await self._open(), tag, initiator_id)

    async def why(self, task: Enqueued[Any] | UUID) -> Diagnosis:
        """Explain why a task is not running, as text and codes, or describe its run or its end."""
        task_id = check_task_id(task)
        return await diagnose_task(await self._open(), task_id)

    async def find(self, prefix: str) -> UUID:
        """Return the only task or activity id that begins with this prefix."""
        ids = await activities.find_ids_by_prefix(await self._open(), prefix)
        return require_single_match(
            ids, prefix, noun="task or activity", list_command="`tenuto task list` or `tenuto activity list`"
        )


def new_task(job: Job[..., Any], input: str, now: datetime, actor: Actor, id: UUID | None = None) -> NewTask:
    """Build a task of a job with the options of the job; link it to the running task that enqueues it."""
    return job.new_task(input, now, actor, id)


async def _enqueue_async(
    driver: Driver, connection: Any, job: Job[..., Any], task: NewTask, statements: Statements[UUID]
) -> Enqueued[Any]:
    return _enqueued(job, task, await caller_transactions.run_async(driver, connection, statements))


def _to_record(last: ActivityDetails, load_output: Callable[[Any], Any] | None) -> Record[Any]:
    values = {name: getattr(last, name) for name in _RECORD_FIELDS}
    if load_output is not None and values["output"] is not None:
        values["output"] = load_output(values["output"])
    return Record(**values)


def check_task_id(task: Enqueued[Any] | UUID | str) -> UUID:
    """Return the id of a task, given as an id or as the result of an enqueue."""
    return task.id if isinstance(task, Enqueued) else check_id(task, noun="task")


def _enqueued(job: Job[..., Any], task: NewTask, stored_id: UUID, *, may_exist: bool = False) -> Enqueued[Any]:
    created = stored_id == task.id
    return Enqueued(stored_id, created, job.load_output, task if created and not may_exist else None)


def _dump_row(job: Job[..., Any], row: Any) -> str:
    if type(row) is dict:  # the common case; checking isinstance Mapping takes as long as validating a row
        return job.dump_input((), row)
    return job.dump_input((), dict(row)) if isinstance(row, Mapping) else job.dump_input((row,), {})
