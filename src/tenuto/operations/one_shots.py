"""Stopping one-shots: one by `cancelling`, as any task; all of them in one transaction.

A wipe holds what it finds before it touches it, so that nothing can slip from one state into another between looking
and acting. What nobody runs ends through `finish`; what runs is asked to stop, and is out of the registry from then on.

``app.one_shots``: work for one instant, asked for by its prompt type, from code, terminal or over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from tenuto.errors import Conflict, Forbidden, Invalid, NotFound
from tenuto.jobs.registry import Job, Jobs
from tenuto.lifecycle import completion, task_cancellation
from tenuto.model import one_shots, stored_values
from tenuto.model.actors import Actor
from tenuto.model.one_shots import InThePast, RuntimeStatus
from tenuto.model.policies import RetryPolicy
from tenuto.model.secrets import names_a_secret
from tenuto.model.steps import JOB
from tenuto.model.tasks import NewTask, Settlement, Task, cancelled, check, seconds
from tenuto.operations.listing import Open, Record, the_one
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.write_coalescer import Together
from tenuto.store import one_shots as store
from tenuto.store.access import audit_recorder
from tenuto.store.access.audit_recorder import Deed
from tenuto.store.one_shots import TaskRow, Wanted

SOME = 5000
"""How many are ended with one statement; all of them still in one transaction."""


@dataclass(slots=True)
class Wiped:
    """What a wipe has removed from the registry."""

    terminated: list[UUID] = field(default_factory=list)
    """All of them."""
    stopping: list[UUID] = field(default_factory=list)
    """Those among them that were running, and end as soon as their code has stopped."""


async def cancel(database: Database, id: UUID, by: Actor) -> Literal["terminated", "stopping", "ended"]:
    """Stop a one-shot, or find that it has ended already: it is not in the registry either way."""
    standing = await store.standing(database, id)
    if standing is None:
        raise unknown(id)
    if standing == "ended":
        return "ended"
    try:
        return "terminated" if await task_cancellation.cancel(database, id, by) == "cancelled" else "stopping"
    except Conflict:
        if await store.standing(database, id) == "ended":  # by itself, between looking and acting
            return "ended"
        raise


async def wipe(database: Database, by: Actor) -> Wiped:
    """Stop every one-shot there is: all of them, or, if that fails, none."""
    now = database.clock.now()
    tries: list[Wiped] = []

    async def all_of_them(connection: Connection) -> Wiped:
        wiped = Wiped()
        tries.append(wiped)
        async for waiting in store.hold_waiting(connection, SOME):
            await end(connection, waiting)
            wiped.terminated += [task.id for task in waiting]
        # What runs comes last, with what was created or put back meanwhile: while we hold it nobody can renew it.
        while True:
            found = await store.hold_some(connection, SOME)
            running = [task.id for task in found if task.worker_id is not None]
            await end(connection, [task for task in found if task.worker_id is None])
            if running:
                await store.ask_to_stop(connection, running, now, by)
            wiped.terminated += [task.id for task in found]
            wiped.stopping += running
            if len(found) < SOME:
                audit_recorder.tell(after={"total": len(wiped.terminated), "stopping": len(wiped.stopping)})
                return wiped

    async def end(connection: Connection, waiting: Sequence[Task]) -> None:
        await completion.end_within(connection, [Settlement(task, cancelled(task, now, by)) for task in waiting])

    wiped = await database.transaction(all_of_them)
    for before in tries[:-1]:  # no reply came: what of it stands was done by us all the same
        stands = await store.stopped_at(database, before.terminated, now)
        stands -= set(wiped.terminated)
        wiped.terminated += [id for id in before.terminated if id in stands]
        wiped.stopping += [id for id in before.stopping if id in stands]
    return wiped


def unknown(id: UUID) -> NotFound:
    """There is no such one-shot."""
    return NotFound(f"there is no one-shot {id}", remedy="see `tenuto once list`, and with --ended what has been")


MAX_LISTED = 1000
_SEARCH = 200

_OPEN = {RuntimeStatus.PENDING: False, RuntimeStatus.RUNNING: True}
_ENDED = {
    RuntimeStatus.COMPLETED: ("completed", "completed_with_warning"),
    RuntimeStatus.FAILED: ("failed", "completed_with_error"),
    RuntimeStatus.TERMINATED: ("cancelled",),
}


@dataclass(frozen=True, slots=True)
class OneShot:
    """A one-shot that was asked for. ``created`` is False if there was one of this id already."""

    id: UUID
    exec_at: datetime
    created: bool = True


class OneShots:
    """``app.one_shots``: the registry of what is to run once, and what became of it."""

    def __init__(
        self,
        open: Open,
        who: Callable[[], Actor],
        jobs: Jobs,
        make: Callable[[Job[..., Any], str, datetime], NewTask],
        *,
        in_the_past: Callable[[], InThePast],
    ) -> None:
        """``make`` makes a task of a job, as whoever asks for it."""
        self._open = open
        self._who = who
        self._jobs = jobs
        self._make = make
        self._in_the_past = in_the_past
        self._create_together = Together(self._create_on_record)

    async def create(
        self,
        exec_at: datetime | str,
        prompt_type: str,
        payload: Mapping[str, Any] | None = None,
        *,
        tags: Iterable[str] = (),
        retry: RetryPolicy | None = None,
        timeout: float | str | timedelta | None = None,
        may_use_secrets: bool = True,
        id: UUID | None = None,
        again: bool = False,
    ) -> OneShot:
        """Have something done at an instant: ``log.append``, ``http.call``, or a registered job by its name.

        What is past is done at once. The payload is checked against what the handler takes. It is tried once, unless
        ``retry`` says otherwise. Whoever says where a call goes could have any secret sent there: it may name one only
        if ``may_use_secrets``. With an ``id`` of the caller's, asking again changes nothing;
        ``again`` says that it was asked for before: then it is looked for first.
        """
        kind, handler = self.handler(prompt_type)
        if kind != JOB and not may_use_secrets and names_a_secret(payload):
            raise Forbidden(
                "names a secret, which is for editors to do",
                field="payload",
                remedy="have a job or a schedule make the call, or ask somebody who may edit definitions",
            )
        database = await self._open()
        now = database.clock.now()
        try:
            run_at = one_shots.exec_at(exec_at, now, self._in_the_past())
        except Invalid:
            if id is None or await store.standing(database, id) is None:
                raise
            return OneShot(id, one_shots.exec_at(exec_at, now, "accept"), created=False)  # it was to come then
        rules = one_shots.policy(handler.policy, retry, seconds(timeout, field="timeout"))
        task = self._make(handler, _checked(handler, payload), now)
        task.id = id or task.id
        task.kind, task.name, task.run_at, task.origin = kind, prompt_type, run_at, one_shots.ONCE
        task.policy = rules
        task.tags = [*handler.using_.tags, *stored_values.tags(tags)] or None
        check(task)
        # It was made before, and may end between a look into the past and an insert: one look at both settles it.
        if again and id is not None and await store.standing(database, id) is not None:
            return OneShot(id, run_at, created=False)
        audit_recorder.tell(
            target=str(task.id), after={"prompt_type": prompt_type, "exec_at": run_at, "tags": task.tags}
        )
        created = await self._create(database, task, again=id is not None)
        if not created and id is not None and await store.standing(database, id) is None:
            raise Conflict(f"{id} is the id of something else", field="id", remedy="leave it out, or make a new one")
        # An id of our own is there already only if the reply was lost: then too it was made by us.
        return OneShot(task.id, run_at, created=created or id is None)

    async def _create(self, database: Database, task: NewTask, *, again: bool) -> bool:
        """``again``: nobody but the caller knows whether its id is new. On record there is a key of the request for
        that, or the id was made with the request."""
        deed = audit_recorder.to_be_written()
        if deed is None:
            return await store.create(database, task, again=again)
        if database.is_elsewhere():
            (created,) = await self._create_on_record([(store.row_of_one(task), deed)])
        else:
            created = await self._create_together((store.row_of_one(task), deed))
        if created is None:
            raise audit_recorder.done_elsewhere()
        return created

    async def _create_on_record(self, asked: Sequence[tuple[TaskRow, Deed]]) -> Sequence[bool | None]:
        with audit_recorder.off_record():  # it is part of the statement
            return await store.create_on_record(await self._open(), asked)

    def plan(self, task: NewTask, at: datetime | str, now: datetime) -> NewTask:
        """A task of a job as a one-shot, with the job's own rules."""
        task.run_at, task.origin = one_shots.exec_at(at, now, self._in_the_past(), field="at"), one_shots.ONCE
        return check(task)

    def handler(self, prompt_type: str) -> tuple[str, Job[..., Any]]:
        """The kind of task that stands for a prompt type, and what runs it."""
        if isinstance(prompt_type, str):
            if prompt_type in one_shots.PROMPTS and prompt_type in self._jobs.by_kind:
                return prompt_type, self._jobs.by_kind[prompt_type]
            if prompt_type in self._jobs.by_name:
                return "job", self._jobs.by_name[prompt_type]
        raise Invalid(
            f"{prompt_type!r:.80} is not known here",
            field="prompt_type",
            remedy=f"use one of {', '.join(self.prompt_types()[:20])}; every registered job is one",
        )

    def prompt_types(self) -> Sequence[str]:
        """What may be asked for."""
        return sorted((one_shots.PROMPTS & self._jobs.by_kind.keys()) | self._jobs.by_name.keys())

    # --- looking ----------------------------------------------------------------------------------------------------

    async def status(self, id: UUID, *, history: bool = False) -> Record:
        """Where a one-shot stands, open or ended; on request with everything that has happened to it."""
        attempts = await store.attempts(await self._open(), id)
        if not attempts:
            raise unknown(id)
        found = one_shots.described(attempts)
        return {**found, "history": one_shots.history(attempts)} if history else found

    async def list(
        self,
        *,
        status: str | None = None,
        prompt_type: str | None = None,
        tags: Iterable[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        search: str | None = None,
        after: tuple[datetime, UUID] | None = None,
        limit: int = 100,
    ) -> Sequence[Record]:
        """The registry: what is still to end, the next one first. The next page is ``after`` the last (run_at, id).

        ``tags`` must all be there; ``search`` looks for a text in type, tags and payload; ``since`` and ``until``
        bound the instant it is to run.
        """
        wanted = _wanted(prompt_type, tags, since, until, search)
        running = None if status is None else _among(status, _OPEN)
        found = await store.registry(await self._open(), wanted, running=running, after=after, limit=_listed(limit))
        return [{**row, "status": one_shots.status_of_task(row["state"])} for row in found]

    async def past(
        self,
        *,
        status: str | None = None,
        prompt_type: str | None = None,
        tags: Iterable[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        search: str | None = None,
        below: UUID | None = None,
        limit: int = 100,
    ) -> Sequence[Record]:
        """What has ended, the newest first. The next page is ``below`` the last ``record``."""
        wanted = _wanted(prompt_type, tags, since, until, search)
        statuses = None if status is None else _among(status, _ENDED)
        found = await store.past(await self._open(), wanted, statuses=statuses, below=below, limit=_listed(limit))
        return [_ended(row) for row in found]

    async def find(self, prefix: str) -> UUID:
        """The one one-shot whose id begins so."""
        found = await store.find(await self._open(), prefix)
        return the_one(found, prefix, whose="one-shot's id", listed_by="`tenuto once list`")

    # --- stopping ---------------------------------------------------------------------------------------------------

    async def cancel(self, id: UUID) -> Literal["terminated", "stopping", "ended"]:
        """Take a one-shot out of the registry: ended at once if nobody runs it, otherwise its code is told to stop.

        One that has ended already is not there any more: nothing is left to do, and its record stays.
        """
        audit_recorder.tell(target=str(id))
        return await cancel(await self._open(), id, self._who())

    async def wipe(self) -> Wiped:
        """Take all of them out of the registry, in one transaction."""
        return await wipe(await self._open(), self._who())


def _checked(handler: Job[..., Any], payload: Mapping[str, Any] | None) -> str:
    """The payload as the handler takes it, or a refusal that names what is wrong within it."""
    if payload is not None and not isinstance(payload, Mapping):
        raise Invalid("must be an object", field="payload", remedy='such as {"message": "Hello"}')
    text = stored_values.json_of(dict(payload or {}), field="payload")
    try:
        return handler.check_input(text)
    except Invalid as error:
        where = "payload" if error.field in (None, "input") else f"payload.{error.field}"
        known = ", ".join(handler.parameters) or "nothing"
        raise Invalid(error.message, field=where, remedy=error.remedy or f"it takes {known}") from error


def _wanted(
    prompt_type: str | None, tags: Iterable[str], since: datetime | None, until: datetime | None, search: str | None
) -> Wanted:
    if prompt_type is not None:
        stored_values.label(prompt_type, field="prompt_type")
    if search is not None:
        stored_values.label(search, field="search", limit=_SEARCH)
    for name, instant in (("since", since), ("until", until)):
        if instant is not None and instant.tzinfo is None:
            raise Invalid("has no offset", field=name, remedy="end it with Z or with an offset such as +01:00")
    return Wanted(prompt_type, stored_values.tags(tags, check=stored_values.label) or None, since, until, search)


def _among(status: str, known: Mapping[RuntimeStatus, Any]) -> Any:
    for each, meaning in known.items():
        if status.lower() == each.lower():
            return meaning
    raise Invalid(f"{status!r:.60} is none of them", field="status", remedy=f"use one of {', '.join(known)}")


def _listed(limit: int) -> int:
    if not 1 <= limit <= MAX_LISTED:
        raise Invalid(f"must be from 1 to {MAX_LISTED:,}", field="limit")
    return limit


def _ended(row: Record) -> Record:
    return {
        **row,
        "id": row["task_id"],
        "record": row["id"],
        "status": one_shots.status([{**row, "final": True}]),
        "error": one_shots.error_of(row),
    }
