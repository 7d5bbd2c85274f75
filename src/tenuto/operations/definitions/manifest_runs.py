"""Single runs of manifests: concurrent calls for one manifest share a transaction, and so its lock and its commit.

Runs of different manifests are written apart, because each waits for the lock of its manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from uuid import UUID

from tenuto.definitions.manifest_definitions import MANIFESTS
from tenuto.errors import Conflict, TenutoError
from tenuto.model.work.tasks import NewTask
from tenuto.operations.bound_operation import Operation
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import manifest_manager
from tenuto.store.access.audit_recorder import duplicate_request_error
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import GroupSettings, StoredManifest
from tenuto.store.work.task_creation import (
    enqueue_audited_tasks_within,
    enqueue_tasks_within,
    find_existing_tasks,
    record_span,
)


@dataclass(slots=True, eq=False)
class RunRequest:
    """A call that runs a manifest, for one item if it has a key."""

    external_id: str
    id: UUID
    operation: Operation
    make_input: Callable[[StoredManifest], str]
    item_key: str | None
    may_exist: bool
    """Whether an earlier call may have created the task."""
    context: Context = field(default_factory=copy_context)
    """Of the caller: the task is part of its trace."""


async def start_run(database: Database, request: RunRequest) -> UUID:
    """Create the task of a run and return its id."""
    subject = (request.external_id, request.operation.is_audited)
    return await database.write_coalesced(_start_runs, request, subject=subject)


async def _start_runs(database: Database, requests: Sequence[RunRequest]) -> list[UUID | Exception]:
    """Create the tasks of several calls for one manifest; return an id or an error for each."""
    may_exist = any(request.may_exist for request in requests)

    async def start(connection: Connection) -> tuple[dict[RunRequest, UUID | Exception], list[RunRequest]]:
        nonlocal may_exist
        stored = await manifests.lock_manifest(connection, requests[0].external_id)
        results: dict[RunRequest, UUID | Exception] = {}
        if may_exist:
            # Checked under the lock: an earlier call with an id has committed by now, and its task cannot end unseen.
            existing = await find_existing_tasks(connection, [request.id for request in requests])
            # Only the reply was lost; the task may have ended since.
            results = {request: request.id for request in requests if request.id in existing}
        may_exist = True  # if this transaction is repeated, its reply may have been lost
        runs: list[tuple[RunRequest, NewTask]] = []
        group_priority = 0 if stored is None else await _load_group_priority(connection, stored)
        for request in requests:
            if request not in results:
                try:
                    runs.append((request, request.context.run(_build_run, request, stored, group_priority)))
                except TenutoError as error:
                    results[request] = error
        created = []
        for (request, _), refusal in zip(runs, await _insert_runs(connection, runs), strict=True):
            results[request] = refusal or request.id
            if refusal is None:
                created.append(request)
        if stored is not None and (started := [each for each in created if each.item_key is None]):
            await manifests.record_runs(connection, [(stored.id, started[0].operation.now, stored.next_run_at)])
        return results, created

    results, created = await database.transaction(start)
    for request in created:
        entry = request.operation.entry
        entry.is_written = True
        if entry.context.idempotency_key is not None:
            entry.context.idempotency_key.is_stored = True
    return [results[request] for request in requests]


async def _load_group_priority(connection: Connection, stored: StoredManifest) -> int:
    name = stored.manifest.group
    return ((None if name is None else await manifests.load_group(connection, name)) or GroupSettings()).priority


def _build_run(request: RunRequest, stored: StoredManifest | None, group_priority: int) -> NewTask:
    if stored is None:
        raise MANIFESTS.not_found(request.external_id)
    operation = request.operation
    task = manifest_manager.new_run(
        stored.id, stored.manifest, operation.now, operation.actor, id=request.id, input=request.make_input(stored),
        item_key=request.item_key, group_priority=group_priority,
    )  # fmt: skip
    record_span(task)
    return task


async def _insert_runs(connection: Connection, runs: Sequence[tuple[RunRequest, NewTask]]) -> list[Exception | None]:
    """Insert runs, with their audit entries if the callers are audited; return for each what prevented it."""
    tasks = [task for _, task in runs]
    if not runs or not runs[0][0].operation.is_audited:
        ids = await enqueue_tasks_within(connection, tasks)
        return [None if task.id in ids else _already_open(request) for request, task in runs]
    created = await enqueue_audited_tasks_within(
        connection, [(task, request.operation.entry) for request, task in runs]
    )
    for (request, _), was_created in zip(runs, created, strict=True):
        # The key of a request that fails is not kept: roll back, and write the requests one by one.
        # guard: manifests.key_of_refused_run
        if was_created is False and request.operation.entry.context.idempotency_key is not None:
            raise _already_open(request)
    return [
        None if was_created else _already_open(request) if was_created is False else duplicate_request_error()
        for (request, _), was_created in zip(runs, created, strict=True)
    ]


def _already_open(request: RunRequest) -> Conflict:
    item = "" if request.item_key is None else f" for the item {request.item_key!r}"
    return Conflict(
        f"a run of the manifest {request.external_id!r}{item} is already open",
        code="manifest.run.already_open",
        remedy="wait until it has ended, or cancel it",
    )
