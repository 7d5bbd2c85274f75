"""Tenuto: the verbs a program or a person may ask for.

An app knows its jobs and its database. It opens the database when first needed, starts an embedded server if it was
given no address, and closes everything at `close` (or at the end of ``async with``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar
from uuid import UUID

from tenuto import processes as service
from tenuto.clock import SystemClock, steady
from tenuto.connections import Connections
from tenuto.diagnostics.doctor import Finding, Told
from tenuto.diagnostics.why import Why, why_task
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.jobs.context import current
from tenuto.jobs.registry import Job, Jobs
from tenuto.lifecycle import task_cancellation
from tenuto.model import stored_values
from tenuto.model.actors import Actor
from tenuto.model.manifests import Manifest
from tenuto.model.steps import MANIFEST, SCHEDULE
from tenuto.model.tasks import NewTask
from tenuto.observability.status import Observing
from tenuto.operations import installation
from tenuto.operations.api_keys import Keys
from tenuto.operations.audit_log import Audit
from tenuto.operations.batch_inputs import Storing
from tenuto.operations.batches import Batch, Batches
from tenuto.operations.dead_letters import DeadLetters
from tenuto.operations.execution_waiter import Endings
from tenuto.operations.executions import Executions
from tenuto.operations.listing import listed, the_one
from tenuto.operations.logs import Logs
from tenuto.operations.manifests import Manifests
from tenuto.operations.one_shots import OneShots
from tenuto.operations.plans import Plans
from tenuto.operations.schedules import Schedules
from tenuto.operations.secrets import Secrets
from tenuto.postgres import migrator as migrate
from tenuto.postgres.database import Connection, Database
from tenuto.registration import Defining, new_task
from tenuto.scheduling import manifest_step, schedule_step
from tenuto.service import health_file as health
from tenuto.settings import Settings, load, load_worker
from tenuto.steps.step_kinds import Means, add_kinds
from tenuto.store import activities, step_checkpoints, workers
from tenuto.store import tasks as store
from tenuto.store.access import audit_recorder
from tenuto.store.activities import Filters, Record
from tenuto.worker.executors import MakeServer
from tenuto.worker.executors.native import Native
from tenuto.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")

_BULK = 1000
_acting: ContextVar[Actor | None] = ContextVar("tenuto_actor", default=None)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A task that was asked for. ``created`` is False if an open task had the same key already."""

    id: UUID
    created: bool = True


class Tenuto(Defining):
    """One application: its jobs, its database, its verbs."""

    def __init__(
        self,
        database: str | None = None,
        *,
        home: Path | str | None = None,
        settings: Settings | None = None,
        actor: Actor | None = None,
    ) -> None:
        self.settings = settings or load(database=database, home=home)
        self.jobs = Jobs()
        self._actor = actor or Actor.system("app")
        self._connections = Connections(lambda: self.settings)
        self.schedules = Schedules(self.open, self._who, self.jobs)
        self._endings = Endings()
        self.executions = Executions(self.open, self._who, self._endings)
        self.manifests = Manifests(self.open, self._who, self.jobs)
        self.dead_letters = DeadLetters(
            self.open, self._who, self.jobs, needs_note=lambda: self.settings.letters_need_notes
        )
        self.batches = Batches(self.open, self._who, self.manifests, self.dead_letters)
        self.plans = Plans(
            self.open,
            self._who,
            self.jobs,
            self.manifests,
            lambda files, prune: self.schedules.plan(files, prune=prune),
        )
        self.one_shots = OneShots(
            self.open, self._who, self.jobs, self._task, in_the_past=lambda: self.settings.one_shots_in_the_past
        )
        self.keys = Keys(self.open, self._who)
        self.audit = Audit(self.open, lambda: self.settings)
        self.observing = Observing(self.open, lambda: self.settings)
        self.logs = Logs(self.open)
        self.secrets = Secrets(self.open, self._who, lambda: self.settings)
        self.jobs.add_kind(SCHEDULE, schedule_step.handler(self.open))
        self.jobs.add_kind(MANIFEST, manifest_step.handler(self.open, self.manifests.run))
        self._drivers = {}
        add_kinds(self.jobs, Means(self.open, lambda: self.settings, self.secrets.reveal_text, self._drivers))

    # --- opening and closing ----------------------------------------------------------------------------------------

    async def open(self) -> Database:
        """The database, opened when first asked for."""
        return await self._connections.open()

    @property
    def is_open(self) -> bool:
        """Whether the database has been opened, and not been closed since."""
        return self._connections.are_open

    async def connect(self, *, for_worker: bool = False, check_schema: bool = True) -> Database:
        """A database of the caller's own; the embedded one is started and brought up to date on the way."""
        return await self._connections.connect(for_worker=for_worker, check_schema=check_schema)

    async def close(self) -> None:
        """Let the database go; an embedded one stops once nobody uses it.

        Only who opened it closes it: for a job or a portal that used the app of a running service this does nothing.
        """
        if self._connections.are_ours_to_close():
            await self._endings.close()
            await self.keys.close()
        await self._connections.close()

    async def __aenter__(self) -> Tenuto:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @contextmanager
    def acting_as(self, actor: Actor) -> Iterator[None]:
        """Whatever is asked for inside the block is on this actor's account."""
        token = _acting.set(actor)
        try:
            yield
        finally:
            _acting.reset(token)

    # --- asking for work --------------------------------------------------------------------------------------------

    async def enqueue(self, job: Job[..., Any], *args: Any, **kwargs: Any) -> Enqueued:
        """Have a job run with this input, checked against its signature. Options go through ``job.using(...)``."""
        database = await self.open()
        task = self._task(job, job.dump_input(args, kwargs), database.clock.now())
        return _enqueued(task, await store.start_or_find(database, task))

    async def enqueue_json(self, job: Job[..., Any], text: str, *, request_id: UUID | None = None) -> Enqueued:
        """As `enqueue`, with input that came from outside as JSON. Asked again with the same ``request_id`` it creates
        one task."""
        database = await self.open()
        task = self._task(job, job.check_input(text), database.clock.now(), request_id)
        return _enqueued(task, await store.start_or_find(database, task, again=request_id is not None))

    async def once(self, job: Job[..., Any], /, *args: Any, at: datetime | str, **kwargs: Any) -> Enqueued:
        """Have a job run once, at this instant, as a one-shot: it can be found, watched and stopped as such."""
        database = await self.open()
        now = database.clock.now()
        task = self.one_shots.plan(self._task(job, job.dump_input(args, kwargs), now), at, now)
        return _enqueued(task, await store.start_or_find(database, task))

    async def enqueue_within(self, connection: Connection, job: Job[..., Any], *args: Any, **kwargs: Any) -> Enqueued:
        """As `enqueue`, in a transaction of the caller's on the same database: the task exists if their work does."""
        database = await self.open()
        task = self._task(job, job.dump_input(args, kwargs), database.clock.now())
        return _enqueued(task, await store.start_or_find_within(connection, task))

    async def enqueue_many(self, job: Job[..., Any], inputs: Iterable[Any]) -> int:
        """Have a job run for each of these inputs; how many tasks were created.

        An input is a mapping of arguments, or the one argument itself. They are taken in as they come, a thousand in
        a transaction: memory stays flat whatever their number. The next thousand is made ready while the database
        stores the last, and is asked for while nothing is being stored: they may be slow to come. If an input is
        refused, the thousands before it stand.
        """
        if job.using_.key is not None:
            raise Invalid("one key cannot stand for many tasks", field="key", remedy="enqueue them one by one")
        database = await self.open()
        rows = iter(inputs)
        async with Storing() as storing:
            while drawn := list(islice(rows, _BULK)):
                await storing.begin()
                chunk = [_dump(job, row) for row in drawn]
                like = self._task(job, "{}", database.clock.now())
                await storing.take(partial(store.start_alike, database, like, chunk))
        return storing.created

    async def bulk_enqueue(
        self,
        manifest: Manifest | str,
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        key: Callable[[Any], str] | None = None,
        batch_key: str | None = None,
        name: str | None = None,
        atomic: bool = False,
    ) -> Batch:
        """Have a manifest run for thousands of inputs, as one batch; see `Batches.enqueue`."""
        return await self.batches.enqueue(manifest, inputs, key=key, batch_key=batch_key, name=name, atomic=atomic)

    async def cancel(self, task_id: UUID) -> Literal["cancelled", "stopping"]:
        """Cancel a task: at once if nobody runs it, otherwise its code is told to stop."""
        audit_recorder.tell(target=str(task_id))
        return await task_cancellation.cancel(await self.open(), task_id, self._who())

    # --- asking about work ------------------------------------------------------------------------------------------

    async def activity(self, activity_id: UUID) -> Record:
        """The record of one attempt, whether it lies ahead, is in progress or is past."""
        found = await activities.activity(await self.open(), activity_id)
        if found is None:
            raise NotFound(f"there is no activity {activity_id}")
        return found

    async def children(self, activity_id: UUID, *, above: UUID | None = None, limit: int = 50) -> list[Record]:
        """What a running job asked for itself: the attempts at it, the first one first; page with ``above``."""
        await self.activity(activity_id)
        return await activities.children(await self.open(), activity_id, above, listed(limit))

    async def stats(self, *, since: datetime, name: str | None = None, limit: int = 100) -> list[Record]:
        """What has ended since, by name: how many and how, how long it waited and took."""
        if since.tzinfo is None:
            raise Invalid("has no time zone", field="since", remedy="write it with an offset, such as …T00:00:00Z")
        return await activities.stats(await self.open(), since, name, listed(limit))

    async def attempts(self, task_id: UUID) -> list[Record]:
        """Every attempt at a task so far, the first one first; the last may lie ahead."""
        found = await activities.attempts(await self.open(), task_id)
        if not found:
            raise NotFound(f"there is no task {task_id}")
        return found

    async def task(self, task_id: UUID) -> Record:
        """An open task."""
        found = await activities.task(await self.open(), task_id)
        if found is None:
            raise NotFound(f"there is no open task {task_id}", remedy="ended tasks live on as activities")
        return found

    async def chain_steps(self, task_id: UUID) -> list[dict[str, Any]]:
        """What the steps of a chain have come to, in order, and until when each slept; of others: nothing."""
        return await step_checkpoints.told(await self.open(), task_id)

    async def why(self, task_id: UUID) -> Why:
        """Why a task is not running: every reason, in plain words and as a code; what it does, or how it ended."""
        return await why_task(await self.open(), task_id)

    async def tasks(self, **filters: Any) -> list[Record]:
        """Open tasks, newest first: filter by state, name, queue, tag; page with ``below``."""
        return await activities.list_tasks(await self.open(), Filters(**filters))

    async def activities(self, **filters: Any) -> list[Record]:
        """Past attempts, newest first: filter by state, name, queue, tag; page with ``below``."""
        return await activities.list_activities(await self.open(), Filters(**filters))

    async def outcome_counts(self, *, tag: str | None = None, initiator_id: str | None = None) -> dict[str, int]:
        """What became of all tasks with a tag, or of one initiator: attempts, done, failed, open, doubled,
        lost_attempts."""
        return await activities.outcome_counts(await self.open(), tag, initiator_id)

    async def wait(self, task: Enqueued | UUID, timeout: float | None = None) -> Record:
        """Wait until a task has ended; the record of its last attempt."""
        task_id = task.id if isinstance(task, Enqueued) else task
        deadline = None if timeout is None else steady() + timeout
        database, pause = await self.open(), 0.01
        while True:
            if await activities.has_ended(database, task_id) is not False:
                return (await self.attempts(task_id))[-1]
            left = pause if deadline is None else deadline - steady()
            if left <= 0:
                why = f"`tenuto task why {task_id}` says what holds it up"
                raise Conflict(f"task {task_id} has not ended after {timeout:g} s", remedy=why)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.5)

    async def workers(self, *, ended: bool = False) -> list[dict[str, Any]]:
        """The workers that are alive, and on request those that have left."""
        found = await workers.list_workers(await self.open(), ended=ended)
        return [{**worker, "state": health.condition(worker)} for worker in found]

    async def find(self, prefix: str) -> UUID:
        """The one task or activity whose id begins so."""
        found = await activities.find(await self.open(), prefix)
        return the_one(found, prefix, whose="id", listed_by="`tenuto task list` or `activity list`")

    # --- queues -----------------------------------------------------------------------------------------------------

    async def queues(self) -> list[dict[str, Any]]:
        """Every queue with its limit, whether it is paused, and what is in it."""
        return await workers.list_queues(await self.open())

    async def limit_queue(self, name: str, max_running: int | None) -> None:
        """Bound how many tasks of a queue run at the same time, over all workers; None lifts the bound."""
        if max_running is not None and not (isinstance(max_running, int) and 1 <= max_running <= 100_000):
            raise Invalid("must be from 1 to 100,000", field="max_running", remedy="pause the queue to stop it")
        audit_recorder.tell(target=name, after={"max_running": max_running})
        await self._change_queue(name, lambda database: workers.limit_queue(database, name, max_running))

    async def pause_queue(self, name: str, reason: str | None = None) -> None:
        """Let nothing more of a queue be taken; what runs goes on."""
        if reason is not None:
            stored_values.storable_text(reason, field="reason", limit=1000)
        by = self._who().name
        audit_recorder.tell(target=name, reason=reason)
        await self._change_queue(name, lambda database: workers.pause_queue(database, name, by=by, reason=reason))

    async def resume_queue(self, name: str) -> None:
        """Let a paused queue go on."""
        audit_recorder.tell(target=name)
        await self._change_queue(name, lambda database: workers.resume_queue(database, name))

    async def _change_queue(self, name: str, change: Callable[[Database], Awaitable[None]]) -> None:
        stored_values.name(name, field="queue", limit=64)
        database = await self.open()
        await change(database)
        await store.wake(database, ["limits", f"queued {name}"])

    # --- upkeep -----------------------------------------------------------------------------------------------------

    migration_script = staticmethod(migrate.as_script)

    async def migrate(self) -> list[migrate.Migration]:
        """Bring the schema up to date; the migrations applied now."""
        return await installation.migrate(partial(self.connect, check_schema=False))

    async def doctor(self, told: Told | None = None) -> list[Finding]:
        """What is wrong, if anything: the server, the schema, the clocks, and every rule the work must keep.

        ``told`` is called with each finding as it comes, its number, and of how many.
        """
        is_embedded = self.settings.database is None
        return await installation.doctor(partial(self.connect, check_schema=is_embedded), self.settings, told)

    def health(self, service: str, name: str | None = None) -> list[health.Health]:
        """What the health files on this machine say of a service, without asking the database."""
        return health.look(self.settings.home, service, SystemClock().now(), name)

    # --- services ---------------------------------------------------------------------------------------------------

    def worker(self, *, server: MakeServer = Native, **given: Any) -> AbstractAsyncContextManager[Worker]:
        """A worker in this process, running for as long as the block lasts.

        ``server`` makes what runs the code, if not the worker itself is to.
        """
        return service.worker_beside(self._for_services, self.jobs, self.settings, load_worker(**given), server)

    def scheduler(self, *, name: str | None = None) -> AbstractAsyncContextManager[None]:
        """A scheduler in this process, running for as long as the block lasts."""
        return service.scheduler_beside(self._for_services, self.settings, name)

    async def run_worker(self, *, server: MakeServer = Native, **given: Any) -> None:
        """Be a worker until told to stop by a signal."""
        await service.run_worker(self._for_services, self.jobs, self.settings, load_worker(**given), server)

    async def run_scheduler(self, *, name: str | None = None) -> None:
        """Be a scheduler until told to stop by a signal."""
        await service.run_scheduler(self._for_services, self.settings, name=name)

    async def run(
        self,
        *,
        ready: Callable[[Worker], None] = lambda _worker: None,
        beside: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
        **given: Any,
    ) -> None:
        """Be scheduler and worker in one process until told to stop by a signal; ``beside`` is entered meanwhile."""
        await service.run_all(self._for_services, self.jobs, self.settings, load_worker(**given), ready, beside)

    async def connect_for_services(self) -> Database:
        """A database for a service that runs here, with what this program declares brought into force."""
        return await self._for_services()

    async def _for_services(self) -> Database:
        self._connections.are_at_home_here()
        database = await self.connect(for_worker=True)
        try:
            await self.schedules.deploy(database)
            await self.manifests.deploy(database)
        except BaseException:
            await database.close()
            raise
        return database

    # --- inside -----------------------------------------------------------------------------------------------------

    def _who(self) -> Actor:
        acting = _acting.get()
        if acting is not None:
            return acting
        context = current.get()
        return self._actor if context is None else context.initiator

    def _task(self, job: Job[..., Any], input: str, now: datetime, id: UUID | None = None) -> NewTask:
        task = new_task(job, input, now, self._who())
        task.id = id or task.id
        if audit_recorder.is_asked_for():
            audit_recorder.tell(target=task.name, after={"task_id": str(task.id)})
        context = current.get()
        if context is not None:  # asked for by a running task: the trail leads back to it
            task.parent_id = context.activity_id
            task.correlation_id = task.correlation_id or context.task.correlation_id or str(context.task.id)
        return task


def _enqueued(task: NewTask, standing: UUID) -> Enqueued:
    return Enqueued(standing, created=standing == task.id)


def _dump(job: Job[..., Any], row: Any) -> str:
    if type(row) is dict:  # as most are; asking for any mapping takes as long as checking one
        return job.dump_input((), row)
    return job.dump_input((), dict(row)) if isinstance(row, Mapping) else job.dump_input((row,), {})
