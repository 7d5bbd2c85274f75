"""Dead letter operations (``app.dead_letters``): list, retry and acknowledge permanently failed work.

A dead letter and the task that retries it are written in one transaction under the lock of the dead letter, so of two
concurrent resolutions one takes effect.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict, Forbidden, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.jobs.registry import JobRegistry
from tenuto.model import validation
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.access.secrets import may_refer_to_secret
from tenuto.model.definitions.steps import JOB
from tenuto.model.filter_keys import DEAD_LETTER_KEYS
from tenuto.model.filters import Filter
from tenuto.model.work.dead_letters import DeadLetterState
from tenuto.model.work.rate_limits import parse_rate_limit
from tenuto.model.work.tasks import ActivityState, NewTask
from tenuto.operations.argument_checks import MAX_LIMIT, build_filter, check_instant, check_limit, require_single_match
from tenuto.operations.bound_operation import OpenDatabase, Operation, OperationGroup
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling.manifest_manager import new_run
from tenuto.settings import Settings
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import GroupSettings, StoredManifest
from tenuto.store.events import external_events
from tenuto.store.filter_sql import CappedCount
from tenuto.store.reports import failure_groups
from tenuto.store.reports.failure_groups import FailureGroup, FailureGroupDetails
from tenuto.store.work import activities, batches, dead_letters, step_checkpoints, task_creation
from tenuto.store.work.batches import BatchLock
from tenuto.store.work.dead_letters import DeadLetterDetails, DeadLetterRecord, OpenDeadLetter

MakeInput = Callable[[OpenDeadLetter, StoredManifest | None], str]

_MAX_AUDITED_IDS = 20


class DeadLetters(OperationGroup):
    """Operations on dead letters."""

    def __init__(
        self, open: OpenDatabase, caller: OperationCaller, jobs: JobRegistry, settings: Callable[[], Settings]
    ) -> None:
        super().__init__(open, caller)
        self._jobs = jobs
        self._settings = settings

    async def list(
        self,
        where: str | Filter | None = None,
        *,
        below: UUID | None = None,
        limit: int = 50,
        state: str | None = DeadLetterState.AWAITING_INTERVENTION,
        **values: Any,
    ) -> Sequence[DeadLetterRecord]:
        """List dead letters, newest first; page with ``below``.

        ``where`` is a filter such as ``error:~timeout created:>1d``; further arguments are exact values of its keys,
        such as ``manifest="invoices"``. Without a state in the filter, only open ones are listed, unless ``state`` is
        None.
        """
        database = await self._open()
        filter = _build_filter(where, database.clock.now(), state, values)
        return await dead_letters.list_dead_letters(database, filter, below=below, limit=check_limit(limit))

    async def count(
        self,
        where: str | Filter | None = None,
        *,
        state: str | None = DeadLetterState.AWAITING_INTERVENTION,
        **values: Any,
    ) -> CappedCount:
        """Count dead letters, exactly up to 10,000; the arguments are those of `list`."""
        database = await self._open()
        return await dead_letters.count_dead_letters(
            database, _build_filter(where, database.clock.now(), state, values)
        )

    async def count_of_each(self, wheres: Sequence[str | Filter]) -> Sequence[CappedCount]:
        """Count the dead letters that meet each of the filters, in one statement; without a state, the open ones."""
        database = await self._open()
        now, open_state = database.clock.now(), DeadLetterState.AWAITING_INTERVENTION
        filters = [_build_filter(where, now, open_state, {}) for where in wheres]
        return await dead_letters.count_dead_letters_of_each(database, filters)

    async def groups(
        self, *, manifest: str | None = None, batch: UUID | None = None, limit: int = 100
    ) -> Sequence[FailureGroupDetails]:
        """Count open dead letters by kind of failure, most frequent first, with trend and last resolution."""
        database = await self._open()
        groups = await failure_groups.list_failure_groups(database, manifest, batch, check_limit(limit))
        return await failure_groups.add_histories(database, groups, database.clock.now())

    async def summary(self, ids: Sequence[UUID], *, limit: int = 20) -> Sequence[FailureGroup]:
        """Count the selected dead letters by manifest and kind of failure."""
        return await failure_groups.summarise_dead_letters(await self._open(), ids, check_limit(limit))

    async def find(self, prefix: str) -> UUID:
        """Return the only dead letter id that begins with this prefix."""
        found = await dead_letters.find_dead_letters(await self._open(), *activities.id_range_of_prefix(prefix))
        return require_single_match(found, prefix, noun="dead letter", list_command="`tenuto dead-letter list`")

    async def get(self, id: UUID) -> DeadLetterDetails:
        """Return a dead letter with the activities of all its attempts, first attempt first."""
        database = await self._open()
        found = await dead_letters.load_dead_letter(database, id)
        if found is None:
            raise _not_found(id)
        return replace(found, attempts=await activities.list_attempts(database, found.task_id))

    async def retry(
        self,
        id: UUID,
        *,
        input: Mapping[str, Any] | None = None,
        note: str | None = None,
        may_use_secrets: bool = True,
        request_id: UUID | None = None,
    ) -> UUID:
        """Run the failed work again, optionally with another input, and return the id of the new task.

        ``may_use_secrets`` decides whether the input of a call may refer to secrets, as for one-shots. Calls with the
        same ``request_id`` create one task.
        """
        return await self._retry("dead_letter.retry", id, id, input, note, may_use_secrets, request_id)

    async def retry_task(
        self,
        task_id: UUID,
        *,
        input: Mapping[str, Any] | None = None,
        note: str | None = None,
        may_use_secrets: bool = True,
        request_id: UUID | None = None,
    ) -> UUID:
        """Retry the dead letter of a failed task; see `retry`."""
        database = await self._open()
        id = await dead_letters.find_dead_letter_of_task(database, task_id)
        if id is None:
            raise await _retry_refusal_of_task(database, task_id)
        return await self._retry("task.retry", task_id, id, input, note, may_use_secrets, request_id)

    async def _retry(
        self,
        action: str,
        target: UUID,
        id: UUID,
        input: Mapping[str, Any] | None,
        note: str | None,
        may_use_secrets: bool,
        request_id: UUID | None,
    ) -> UUID:
        self._check_note(note)
        operation = await self._begin(
            action,
            target=str(target),
            reason=note,
            after=None if input is None else {"input": dict(input)},
        )
        database = operation.database
        if request_id is not None:
            found = await dead_letters.load_dead_letter(database, id)
            if found is not None and found.retry_task_id == request_id:
                return request_id
        make_input = None if input is None else partial(self._check_input, dict(input), may_use_secrets)
        retried = await retry_dead_letters(
            database,
            [id],
            operation.now,
            operation.actor,
            note=note,
            make_input=make_input,
            strict=True,
            task_id=request_id,
            on_unchanged=operation.entry.mark_unchanged,
        )
        if id not in retried:
            raise await _resolution_refusal(database, id)
        return retried[id]

    async def acknowledge(self, id: UUID, *, note: str | None = None, request_id: UUID | None = None) -> None:
        """Resolve a dead letter without running it. A repeated call with the same ``request_id`` has no effect."""
        self._check_note(note)
        operation = await self._begin("dead_letter.acknowledge", target=str(id), reason=note)
        if not await acknowledge_dead_letters(
            operation.database,
            [id],
            operation.now,
            operation.actor,
            note=note,
            request_id=request_id,
            on_unchanged=operation.entry.mark_unchanged,
        ):
            raise await _resolution_refusal(operation.database, id)

    async def select(
        self, where: str | Filter | None = None, *, until: datetime | None = None, **values: Any
    ) -> Sequence[UUID]:
        """Return the ids of the open dead letters that meet a filter now, for `retry_selected` and the like.

        The arguments are those of `list`; ``until`` excludes dead letters that were written later.
        """
        database = await self._open()
        check_instant(until, field="until")
        filter = build_filter(DEAD_LETTER_KEYS, where, database.clock.now()).where(**values)
        return await dead_letters.select_open_dead_letters(database, filter.without_window(), until)

    async def retry_all(self, *, note: str | None = None, request_id: UUID | None = None, **where: Any) -> int:
        """Retry all open dead letters that match a filter and return their number; see `retry_selected`."""
        ids = await self._select_for_request(request_id, **where)
        return await self.retry_selected(ids, note=note, request_id=request_id)

    async def retry_selected(
        self, ids: Sequence[UUID], *, note: str | None = None, request_id: UUID | None = None
    ) -> int:
        """Retry the selected dead letters that are still open, and return their number.

        A repeated call with the same ``request_id``, such as after a crash, completes the first one and returns the
        number of both.
        """
        self._check_note(note)
        operation = await self._begin("dead_letter.retry", reason=note, after=_audited_selection(ids))
        return await _resolve_in_chunks(retry_dead_letters, operation, ids, note, request_id)

    async def retry_all_of_batch(self, batch: UUID, *, note: str | None, request_id: UUID | None) -> int:
        """Retry all open dead letters of a batch and return their number; see `retry_selected`."""
        self._check_note(note)
        ids = await self._select_for_request(request_id, batch=batch)
        operation = await self._begin("batch.retry", target=str(batch), reason=note, after=_audited_selection(ids))
        return await _resolve_in_chunks(retry_dead_letters, operation, ids, note, request_id)

    async def acknowledge_all(self, *, note: str | None = None, request_id: UUID | None = None, **where: Any) -> int:
        """Acknowledge all open dead letters that match a filter and return their number; see `retry_selected`."""
        ids = await self._select_for_request(request_id, **where)
        return await self.acknowledge_selected(ids, note=note, request_id=request_id)

    async def acknowledge_selected(
        self, ids: Sequence[UUID], *, note: str | None = None, request_id: UUID | None = None
    ) -> int:
        """Acknowledge the selected dead letters that are still open and return their number; see `retry_selected`."""
        self._check_note(note)
        operation = await self._begin("dead_letter.acknowledge", reason=note, after=_audited_selection(ids))
        return await _resolve_in_chunks(acknowledge_dead_letters, operation, ids, note, request_id)

    async def _select_for_request(self, request: UUID | None, **where: Any) -> Sequence[UUID]:
        """Return the dead letters that match a filter; for a repeated request, those that matched at the first call.

        Later failures, such as those of tasks that the request itself retried, are excluded.
        """
        if request is None:
            return await self.select(**where)
        before, since = await dead_letters.list_resolved_by_request(await self._open(), request)
        if since is not None:  # guard: idempotency.later_failures
            until = where.get("until")
            where["until"] = since if until is None else min(until, since)
        return sorted({*before, *await self.select(**where)})

    def _check_input(
        self, input: dict[str, Any], may_use_secrets: bool, dead_letter: OpenDeadLetter, manifest: StoredManifest | None
    ) -> str:
        # guard: access.secret_in_retry
        if dead_letter.kind != JOB and not may_use_secrets and may_refer_to_secret(input):
            raise Forbidden(
                "the input refers to a secret, which requires the role editor",
                code="dead_letter.secret.forbidden",
                field="input",
                remedy="retry without another input, or use a key with the role editor",
            )
        text = json.dumps(input)
        if manifest is not None:
            return self._jobs.get_job(manifest.manifest.job).validate_input(text)
        return self._jobs.get_handler(dead_letter.kind, dead_letter.name).validate_input(text)

    def _check_note(self, note: str | None) -> None:
        if note is not None:
            validation.check_text(note, field="note", limit=4000)
        if self._settings().dead_letter_note_required and not (note or "").strip():
            raise Invalid(
                "resolving a dead letter requires a note",
                code="dead_letter.note.required",
                field="note",
                remedy="give the reason, or set TENUTO_DEAD_LETTER_NOTE_REQUIRED=false",
            )


def _build_filter(where: str | Filter | None, now: datetime, state: str | None, values: Mapping[str, Any]) -> Filter:
    filter = build_filter(DEAD_LETTER_KEYS, where, now).where(**values)
    return filter if filter.has_key("state") else filter.where(state=state)


async def _resolve_in_chunks(
    resolve: Callable[..., Awaitable[Collection[UUID]]],
    operation: Operation,
    ids: Sequence[UUID],
    note: str | None,
    request_id: UUID | None,
) -> int:
    """Retry or acknowledge dead letters, some in each transaction, and return their number."""
    database, request, count = operation.database, request_id or new_id(), 0
    for chunk in _transaction_chunks(ids):
        resolved = await resolve(
            database,
            chunk,
            database.clock.now(),
            operation.actor,
            note=note,
            request_id=request,
            on_unchanged=operation.entry.mark_unchanged,
        )
        count += len(resolved)
    return count


async def retry_dead_letters(
    database: Database,
    ids: Sequence[UUID],
    now: datetime,
    by: Actor,
    *,
    note: str | None = None,
    make_input: MakeInput | None = None,
    strict: bool = False,
    task_id: UUID | None = None,
    request_id: UUID | None = None,
    on_unchanged: Callable[[], None] = lambda: None,
) -> dict[UUID, UUID]:
    """Retry dead letters with a new failure count, and return the new task id of each dead letter.

    Dead letters that are already resolved are skipped; so are those that cannot be retried, unless ``strict`` is set,
    which raises the reason. ``task_id`` is the id of the new task of a single dead letter. ``make_input`` makes the
    input from the current manifest. Dead letters retried earlier under the same ``request_id`` are included in the
    result. ``on_unchanged`` is called in a transaction that retries nothing. Batches and manifests are locked before
    dead letters, in the lock order of finishing a task.
    """
    task_ids = {id: task_id or new_id() for id in ids}
    request = request_id or task_id or new_id()  # guard: idempotency.own_resolution

    async def retry_in_tx(connection: Connection) -> dict[UUID, UUID]:
        locked = await _lock_for_retry(connection, ids)
        retries = [
            await _build_retry(connection, dead_letter, locked, now, by, task_ids[dead_letter.id], make_input)
            for dead_letter in locked.dead_letters
        ]
        created = await _enqueue_retries(connection, retries, strict=strict)
        retried = [dead_letter for dead_letter in locked.dead_letters if task_ids[dead_letter.id] in created]
        if make_input is None:  # a chain continues after its last stored step
            pairs = [(dead_letter.task_id, task_ids[dead_letter.id]) for dead_letter in retried]
            await step_checkpoints.copy_checkpoints(connection, pairs)
            await external_events.copy_received_waits(connection, pairs)
        resolved = [(dead_letter.id, task_ids[dead_letter.id]) for dead_letter in retried]
        if resolved:
            await dead_letters.resolve_dead_letters(connection, resolved, now, by, note, request)
        else:
            on_unchanged()
        return await dead_letters.find_resolved_by_request(connection, ids, request)

    return await database.transaction(retry_in_tx)


@dataclass(frozen=True, slots=True)
class _LockedRows:
    """Open dead letters to retry, with the manifests and batches that they belong to."""

    dead_letters: Sequence[OpenDeadLetter]
    manifests: Mapping[str, StoredManifest]
    batches: Mapping[UUID, BatchLock]


async def _lock_for_retry(connection: Connection, ids: Sequence[UUID]) -> _LockedRows:
    """Lock the batches, manifests and open dead letters, in the lock order of finishing a task."""
    external_ids, batch_ids = await dead_letters.find_owners(connection, ids)
    batch_states = await batches.lock_batches_shared_with_state(connection, batch_ids)
    stored = await manifests.lock_manifests(connection, external_ids)  # guard: dead_letters.manifest_lock_order
    return _LockedRows(await dead_letters.lock_open_dead_letters(connection, ids), stored, batch_states)


async def _build_retry(
    connection: Connection,
    dead_letter: OpenDeadLetter,
    locked: _LockedRows,
    now: datetime,
    by: Actor,
    id: UUID,
    make_input: MakeInput | None,
) -> NewTask | Conflict:
    """Return the task that retries a dead letter, or the reason why it cannot be retried."""
    if dead_letter.task is not None:
        return _new_task(dead_letter, id, now, by, make_input)
    manifest = locked.manifests.get(dead_letter.external_id)
    batch = None if dead_letter.batch_id is None else locked.batches.get(dead_letter.batch_id)
    refusal = _retry_refusal(dead_letter, manifest, batch)
    if refusal is not None:
        return refusal
    assert manifest is not None
    return await _new_run(connection, dead_letter, manifest, batch, now, by, id, make_input)


async def _enqueue_retries(connection: Connection, retries: Sequence[NewTask | Conflict], *, strict: bool) -> set[UUID]:
    """Enqueue the tasks that no refusal and no open task prevents, and return their ids. With ``strict``, raise the
    refusal or `Conflict`."""
    runs: list[NewTask] = []
    tasks: list[NewTask] = []
    for retry in retries:
        if isinstance(retry, NewTask):
            (tasks if retry.manifest_id is None else runs).append(retry)
        elif strict:
            raise retry
    created = await task_creation.enqueue_tasks_within(connection, runs)
    created |= await task_creation.enqueue_tasks_within(connection, tasks)
    if strict and tasks and not created:
        raise Conflict(
            f"a task with the key {tasks[0].unique_key!r} is already open",
            code="task.key.in_use",
            remedy="wait until it has ended",
        )
    if strict and len(created) < len(runs):
        raise Conflict(
            "a run of the same item is already open",
            code="manifest.run.already_open",
            remedy="wait until it has ended",
        )
    return created


def _retry_refusal(
    dead_letter: OpenDeadLetter, manifest: StoredManifest | None, batch: BatchLock | None
) -> Conflict | None:
    """Return the reason why a dead letter cannot be retried."""
    if manifest is None or manifest.id != dead_letter.manifest_id:
        return Conflict(
            f"the manifest {dead_letter.external_id!r} of dead letter {dead_letter.id} has been deleted",
            code="dead_letter.manifest.deleted",
            remedy="acknowledge the dead letter instead",
        )
    if batch is not None and batch.is_cancelled:
        return Conflict(
            f"the batch {dead_letter.batch_id} of dead letter {dead_letter.id} was cancelled",
            code="dead_letter.batch.cancelled",
            remedy="enqueue the item again and acknowledge the dead letter",
        )
    return None


async def _new_run(
    connection: Connection,
    dead_letter: OpenDeadLetter,
    stored: StoredManifest,
    batch: BatchLock | None,
    now: datetime,
    by: Actor,
    id: UUID,
    make_input: MakeInput | None,
) -> NewTask:
    name = stored.manifest.group
    group = (None if name is None else await manifests.load_group(connection, name)) or GroupSettings()
    run = new_run(
        stored.id, stored.manifest, now, by, id=id, batch_id=dead_letter.batch_id,
        input=dead_letter.input if make_input is None else make_input(dead_letter, stored),
        item_key=_explicit_key(dead_letter.item, dead_letter.task_id),
        group_priority=group.priority,
    )  # fmt: skip
    run.is_held = batch is not None and batch.is_paused
    return run


def _new_task(dead_letter: OpenDeadLetter, id: UUID, now: datetime, by: Actor, make_input: MakeInput | None) -> NewTask:
    """Return the task that retries one without a manifest: the same options, counted from its first attempt."""
    options = dead_letter.task or {}
    return NewTask(
        id,
        dead_letter.name,
        dead_letter.input if make_input is None else make_input(dead_letter, None),
        now,
        by,
        kind=dead_letter.kind,
        queue=options["queue"],
        priority=options["priority"],
        policy=json.dumps(options["policy"]),
        unique_key=options.get("unique_key"),
        limit_key=options.get("limit_key"),
        limit_max=options.get("limit_max"),
        rate_key=options.get("rate_key"),
        rate_limit=parse_rate_limit(options.get("rate_limit")),
        tags=options.get("tags"),
        correlation_id=options.get("correlation_id"),
        origin=options.get("origin"),
    )


def _explicit_key(item: str, task_id: UUID) -> str | None:
    """Return the key that the caller gave; an item without one has the id of its task as key."""
    return None if item in ("", str(task_id)) else item


async def acknowledge_dead_letters(
    database: Database,
    ids: Sequence[UUID],
    now: datetime,
    by: Actor,
    *,
    note: str | None,
    request_id: UUID | None = None,
    on_unchanged: Callable[[], None] = lambda: None,
) -> set[UUID]:
    """Resolve open dead letters and return their ids, including those resolved earlier under this ``request_id``."""
    request = request_id or new_id()

    async def acknowledge_open_dead_letters(connection: Connection) -> set[UUID]:
        found = await dead_letters.lock_open_dead_letters(connection, ids)
        if found:
            await dead_letters.resolve_dead_letters(
                connection, [(dead_letter.id, None) for dead_letter in found], now, by, note, request
            )
        else:
            on_unchanged()
        return set(await dead_letters.find_resolved_by_request(connection, ids, request))

    return await database.transaction(acknowledge_open_dead_letters)


async def _resolution_refusal(database: Database, id: UUID) -> NotFound | Conflict:
    """Return the reason why a dead letter could not be resolved."""
    found = await dead_letters.load_dead_letter(database, id)
    if found is None:
        return _not_found(id)
    return Conflict(
        f"dead letter {id} was already {found.state} by {found.resolved_by}",
        code="dead_letter.already_resolved",
        remedy=f"see its resolution with `tenuto dead-letter show {id}`",
    )


async def _retry_refusal_of_task(database: Database, task_id: UUID) -> NotFound | Conflict:
    """Return the reason why a task without a dead letter cannot be retried."""
    attempts = await activities.list_attempts(database, task_id)
    if not attempts:
        return NotFound(f"there is no task {task_id}", code="task.not_found", remedy="see `tenuto activity list`")
    last = attempts[-1]
    if last.execution_id is not None:
        problem, remedy = (
            "is a step of an execution",
            f"retry the execution: tenuto execution retry {last.execution_id}",
        )
    elif last.ended_at is None:
        problem, remedy = "has not ended", f"see why it waits: tenuto task why {task_id}"
    elif last.state is ActivityState.FAILED:
        problem, remedy = "has no dead letter, because its job has dead_letter=False", "enqueue it again"
    else:
        problem, remedy = f"is {last.state.replace('_', ' ')}, not failed", "enqueue it again"
    return Conflict(f"task {task_id} {problem}", code="task.not_retryable", remedy=remedy)


def _not_found(id: UUID) -> NotFound:
    return NotFound(
        f"there is no dead letter {id}", code="dead_letter.not_found", remedy="see `tenuto dead-letter list`"
    )


def _transaction_chunks(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    for start in range(0, len(ids), MAX_LIMIT):
        yield ids[start : start + MAX_LIMIT]


def _audited_selection(ids: Sequence[UUID]) -> dict[str, Any]:
    return {"dead_letter_count": len(ids), "first": [str(id) for id in ids[:_MAX_AUDITED_IDS]]}
