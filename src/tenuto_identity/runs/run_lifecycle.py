"""Life of a run: begin with take-over, fenced pages that can be cancelled at their borders, items, counts, end.

A run belongs to one attempt of a task. It uses one database connection, which is replaced if it is lost; a page whose
commit was not acknowledged is recognised by its number and not written twice.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from tenuto.errors import StaleLease, Unavailable
from tenuto.ids import new_id
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.logs import Log
from tenuto.model.work.tasks import OutcomeStatus
from tenuto.postgres.database import DRIVER_ERRORS, Connection, Database, translate_driver_error
from tenuto_identity.model.definitions.system_definitions import RunKind, RunProfile
from tenuto_identity.model.sync.run_status import RunTotals, decide_status
from tenuto_identity.runs.definition_snapshot import Configuration, System, load_configuration
from tenuto_identity.runs.garbage_collection import paused_collection
from tenuto_identity.store import run_items, runs, transaction_settings
from tenuto_identity.store.run_items import ChangeRecord, Item
from tenuto_identity.store.runs import NewRun, RunState

WAIT_SECONDS = 5.0
"""How long a run waits for another one before it tries again."""
MAX_PAGE_TRIES = 6
_NOT_WHILE_HELD = (RunKind.FULL_SYNC, RunKind.DELTA_SYNC, RunKind.EXPORT)
_RUN_STATES = {
    OutcomeStatus.COMPLETED: RunState.COMPLETED.value,
    OutcomeStatus.COMPLETED_WITH_WARNING: RunState.WARNING.value,
    OutcomeStatus.COMPLETED_WITH_ERROR: RunState.ERROR.value,
    OutcomeStatus.FAILED: RunState.FAILED.value,
    OutcomeStatus.CANCELLED: RunState.CANCELLED.value,
}

T = TypeVar("T")
log = Log("tenuto.identity.runs")


class PageConflict(Exception):
    """Rows that a page was decided on have changed since: the page is rolled back and decided again."""


class RunFailed(PermanentFailure):
    """An expected failure of a run: the source, a guard or the definitions do not allow it."""


@dataclass
class RunCounts:
    """What a run counted so far. A page counts into a copy, which replaces the counts when the page is committed."""

    processed: int = 0
    error_objects: int = 0
    unhandled: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)
    exports: Counter[str] = field(default_factory=Counter)
    """Pending exports staged, by system."""
    deleted_identities: Counter[str] = field(default_factory=Counter)
    """Metaverse objects that a sync deleted, by type."""
    postponed_count: int = 0
    """Metaverse objects whose deletion a guard postponed."""
    item_count: int = 0

    def copy(self) -> RunCounts:
        return RunCounts(
            self.processed,
            self.error_objects,
            self.unhandled,
            self.changes.copy(),
            self.errors.copy(),
            self.types.copy(),
            self.exports.copy(),
            self.deleted_identities.copy(),
            self.postponed_count,
            self.item_count,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the counts as they are stored and shown."""
        return {
            "processed": self.processed,
            "items": self.item_count,
            "in_error": self.error_objects,
            "unhandled": self.unhandled,
            "changes": dict(self.changes),
            "errors": dict(self.errors),
            "types": dict(self.types),
            "exports": dict(self.exports),
            **({"deleted_identities": dict(self.deleted_identities)} if self.deleted_identities else {}),
            **({"postponed": self.postponed_count} if self.postponed_count else {}),
        }


class Page:
    """The items and counts of one page; written with its transaction."""

    def __init__(self, counts: RunCounts) -> None:
        self.counts = counts.copy()
        self.items: list[Item] = []
        self.changes: list[ChangeRecord] = []

    def add_item(
        self,
        *,
        change: str | None = None,
        error: str | None = None,
        diff: dict[str, Any] | None = None,
        subject: str = "object",
        **fields: Any,
    ) -> int:
        """Add an item, and the change behind it if ``diff`` is given; return its number."""
        self.counts.item_count += 1
        number = self.counts.item_count
        self.items.append(Item(number, change=change, error=error, **fields))
        if change is not None:
            self.counts.changes[change] += 1
        if error is not None:
            self.counts.errors[error] += 1
            self.counts.error_objects += 1
            self.counts.unhandled += error == "unhandled"
        if fields.get("type"):
            self.counts.types[fields["type"]] += 1
        subject_id = fields.get("object_id" if subject == "object" else "metaverse_id")
        if diff and subject_id is not None:
            self.changes.append(ChangeRecord(number, subject, subject_id, diff))
        return number

    def add_new_objects(self, change: str, found: Sequence[tuple[int, str, str, str | None, str]]) -> None:
        """Add an item with a change for each new object: id, type, anchor, display name, diff as JSON."""
        number, counts = self.counts.item_count, self.counts
        for id, type_name, anchor, display, diff in found:
            number += 1
            self.items.append(Item(number, id, None, type_name, anchor, display, change))
            self.changes.append(ChangeRecord(number, "object", id, diff))
        counts.item_count = number
        if found:
            counts.changes[change] += len(found)
            counts.types.update([each[1] for each in found])

    def add_change(self, item_number: int, subject: str, subject_id: int, diff: dict[str, Any] | str) -> None:
        """Add a further change to an item. ``diff`` may be JSON text."""
        if diff:
            self.changes.append(ChangeRecord(item_number, subject, subject_id, diff))


class Run:
    """A run as its processor sees it."""

    observe: Callable[[str], None] = staticmethod(lambda point: None)
    """Called at every crash point with its name; tests end the process there."""

    def __init__(
        self,
        ctx: Context,
        database: Database,
        record: NewRun,
        system: System,
        profile: RunProfile,
        configuration: Configuration,
        schema: str,
    ) -> None:
        self.ctx = ctx
        self.database = database
        self.record = record
        self.system = system
        self.profile = profile
        self.configuration = configuration
        self.schema = schema
        self.counts = RunCounts()
        self.warnings: list[str] = []
        self.held: list[str] = []
        """Messages of the guards that hold something."""
        self._page_number = 0
        self._connections = AsyncExitStack()
        self._connection: Connection | None = None

    @property
    def id(self) -> UUID:
        return self.record.id

    def now(self) -> datetime:
        return self.database.clock.now()

    def at(self, point: str) -> None:
        """Pass a crash point."""
        self.observe(point)

    def warn(self, message: str) -> None:
        """Record a warning of the run: the status becomes completed with warning at least."""
        if message not in self.warnings:
            self.warnings.append(message)

    # --- pages ------------------------------------------------------------------------------------------------------

    async def write_page(
        self,
        work: Callable[..., Awaitable[T]],
        *arguments: Any,
        get_cursor: Callable[[T], int | None] | None = None,
        although_cancelled: bool = False,
    ) -> T:
        """Run ``work(connection, page, *arguments)`` in the fenced transaction of the next page.

        The page is finished although a cancellation is requested meanwhile; a second one, or the loss of the lease,
        rolls it back. The work is repeated after a conflict or a lost connection.
        """
        if not although_cancelled:
            self.raise_if_cancelled()
        writing = asyncio.ensure_future(self._write_page(work, arguments, get_cursor))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            if self.ctx.lease_lost:
                writing.cancel()
            await writing
            raise

    async def _write_page(
        self,
        work: Callable[..., Awaitable[T]],
        arguments: tuple[Any, ...],
        get_cursor: Callable[[T], int | None] | None,
    ) -> T:
        number = self._page_number + 1
        attempted: tuple[T, RunCounts] | None = None
        """Result and counts of the last try that reached its commit."""

        async def try_once() -> None:
            """Write the page, unless it was committed before and only the acknowledgement was lost."""
            nonlocal attempted
            page = Page(self.counts)
            async with transaction_settings.transaction(await self.connection(), self.schema) as connection:
                is_first = await runs.begin_fenced_page(connection, self.id, self.record.fence, number)
                if not is_first and attempted is not None:
                    return
                result = await work(connection, page, *arguments)
                await run_items.write_items(connection, self.id, page.items, page.changes)
                position = None if get_cursor is None else get_cursor(result)
                await runs.store_progress(connection, self.id, position, page.counts.to_json())
                attempted = result, page.counts

        for tries in range(1, MAX_PAGE_TRIES + 1):
            try:
                # The page is freed with the call, before the pause ends: the collection would go through it.
                with paused_collection():
                    await try_once()
                break
            except PageConflict:
                if tries == MAX_PAGE_TRIES:
                    raise
            except DRIVER_ERRORS as error:
                await self._recover(error, tries)
        assert attempted is not None
        result, self.counts = attempted
        self._page_number = number
        self.report_progress()
        return result

    async def read(self, work: Callable[..., Awaitable[T]], *arguments: Any, whole_tables: bool = False) -> T:
        """Run ``work(connection, *arguments)`` in a separate transaction; repeat it if the connection is lost."""
        for tries in range(1, MAX_PAGE_TRIES + 1):
            try:
                async with transaction_settings.transaction(
                    await self.connection(), self.schema, whole_tables=whole_tables
                ) as connection:
                    return await work(connection, *arguments)
            except DRIVER_ERRORS as error:
                await self._recover(error, tries)
        raise AssertionError("unreachable")

    async def _recover(self, error: BaseException, tries: int) -> None:
        """Replace a lost connection; raise the translated error if another try cannot help."""
        problem = translate_driver_error(error)
        if not isinstance(problem, Unavailable) or tries == MAX_PAGE_TRIES:
            raise problem from error
        log.warning("run interrupted by the database", run=self.id, tries=tries, error=problem.message)
        await self._connections.aclose()
        self._connection = None
        await asyncio.sleep(min(0.2 * 2**tries, 5.0))

    async def connection(self) -> Connection:
        """Return the connection of the run."""
        if self._connection is None:
            self._connection = await self._connections.enter_async_context(self.ctx.connection())
        assert self._connection is not None
        return self._connection

    async def close(self) -> None:
        await self._connections.aclose()

    def raise_if_cancelled(self) -> None:
        """End the run here if a stop is requested; called at the borders of pages."""
        if self.ctx.cancelled:
            raise asyncio.CancelledError

    def report_progress(self, total: int | None = None) -> None:
        """Report the counts; the worker stores them about once a second."""
        counts = self.counts
        changed = ", ".join(f"{count} {change}" for change, count in sorted(counts.changes.items()))
        failed = f", {counts.error_objects} in error" if counts.error_objects else ""
        self.ctx.progress(counts.processed, total, f"{counts.processed} processed: {changed or 'no changes'}{failed}")

    # --- end --------------------------------------------------------------------------------------------------------

    def totals(self) -> RunTotals:
        return RunTotals(
            processed=self.counts.processed,
            errors=self.counts.error_objects,
            unhandled=self.counts.unhandled,
            warnings=len(self.warnings),
            held=bool(self.held),
        )

    async def finish(self, also: Callable[[Connection], Awaitable[None]] | None = None) -> OutcomeStatus:
        """End the run by the status rule, in one transaction with ``also``."""
        status = decide_status(self.totals())
        problem = "; ".join(self.held or self.warnings[:5]) or None
        if status is OutcomeStatus.FAILED:
            problem = f"all {self.counts.processed} objects are in error"
        await self._end(_RUN_STATES[status], problem, None if status is OutcomeStatus.FAILED else also)
        return status

    async def end_failed(self, problem: str) -> None:
        """End the run as failed; another attempt may have taken it over."""
        await self._end("failed", problem, None)

    async def end_cancelled(self) -> None:
        """End the run as cancelled: no watermark is stored, no deletion detected."""
        await self._end("cancelled", None, None)

    async def _end(self, state: str, problem: str | None, also: Callable[[Connection], Awaitable[None]] | None) -> None:
        async def end(connection: Connection) -> None:
            await runs.end_run(
                connection, self.id, self.record.fence, state, problem, self.counts.to_json(), self.now()
            )
            if also is not None:
                await also(connection)

        await self.read(end)


Processor = Callable[[Run], Awaitable[OutcomeStatus]]


async def execute(
    ctx: Context,
    database: Database,
    system_name: str,
    profile: str | RunProfile,
    process: Callable[[RunProfile], Processor],
    *,
    schema: str = transaction_settings.LIVE_SCHEMA,
    allowed_states: tuple[str, ...] = ("active",),
) -> dict[str, Any]:
    """Execute a run profile as this attempt; return the summary that its activity shows.

    The profile is one of the system, by name, or that of a task which is a run as well.
    """
    async with _begin(ctx, database, RunRequest(system_name, profile, schema, allowed_states)) as run:
        log.info("run started", run_id=run.id, system=system_name, profile=run.profile.name, kind=run.profile.kind)
        try:
            status = await _process(run, process)
        except (asyncio.CancelledError, StaleLease):
            if not ctx.lease_lost:
                await _try_to_end(run, run.end_cancelled())
            raise
        except Exception as error:
            await _try_to_end(run, run.end_failed(str(error)))
            raise
        return _conclude(run, status)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How one of several runs of a task ended."""

    run_id: UUID
    system: str
    profile: str
    kind: RunKind | None
    """None if the run could not begin."""
    status: OutcomeStatus
    counts: RunCounts
    warnings: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    """Messages of the guards that hold something."""
    problem: str | None = None

    @property
    def is_good(self) -> bool:
        return self.status in (OutcomeStatus.COMPLETED, OutcomeStatus.COMPLETED_WITH_WARNING)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as it is stored and shown."""
        return {
            "run": str(self.run_id),
            "system": self.system,
            "profile": self.profile,
            "kind": self.kind,
            "status": self.status.value,
            "problem": self.problem,
            "warnings": list(self.warnings),
            "held": list(self.held),
            **self.counts.to_json(),
        }


async def execute_part(
    ctx: Context,
    database: Database,
    system_name: str,
    profile: str | RunProfile,
    process: Callable[[RunProfile], Processor],
    *,
    schema: str = transaction_settings.LIVE_SCHEMA,
    previewed: bool = False,
) -> RunOutcome:
    """Execute one of several runs of this attempt, under a separate id; an expected failure is its outcome."""
    run_id = new_id()
    run: Run | None = None
    try:
        request = RunRequest(system_name, profile, schema, run_id=run_id, previewed=previewed)
        async with _begin(ctx, database, request) as run:
            try:
                status = await _process(run, process)
            except (asyncio.CancelledError, StaleLease):
                if not ctx.lease_lost:
                    await _try_to_end(run, run.end_cancelled())
                raise
            except Exception as error:
                await _try_to_end(run, run.end_failed(str(error)))
                raise
    except PermanentFailure as error:
        name = profile if isinstance(profile, str) else profile.name
        if run is None:
            return RunOutcome(run_id, system_name, name, None, OutcomeStatus.FAILED, RunCounts(), problem=error.message)
        return _outcome(run, OutcomeStatus.FAILED, error.message)
    failed = f"all {run.counts.processed} objects are in error" if status is OutcomeStatus.FAILED else None
    return _outcome(run, status, failed)


def _outcome(run: Run, status: OutcomeStatus, problem: str | None) -> RunOutcome:
    return RunOutcome(
        run.id,
        run.system.name,
        run.profile.name,
        run.profile.kind,
        status,
        run.counts,
        tuple(run.warnings),
        tuple(run.held),
        problem,
    )


async def _process(run: Run, process: Callable[[RunProfile], Processor]) -> OutcomeStatus:
    grown = await run.read(runs.analyze_grown_tables, whole_tables=True)
    if grown:
        log.info("tables analysed", run_id=run.id, tables=len(grown))
    return await process(run.profile)(run)


async def _try_to_end(run: Run, ending: Awaitable[None]) -> None:
    """End a run that did not complete; if that fails too, the next attempt, the next run or housekeeping does."""
    try:
        await asyncio.shield(asyncio.ensure_future(ending))
    except (StaleLease, *DRIVER_ERRORS, Unavailable) as error:
        log.warning("identity run end not recorded", run_id=run.id, error=str(error))


def _conclude(run: Run, status: OutcomeStatus) -> dict[str, Any]:
    """Give the attempt the status of the run."""
    summary = {"run": str(run.id), "system": run.system.name, "profile": run.profile.name, **run.counts.to_json()}
    log.info("run ended", run_id=run.id, status=status.value, processed=run.counts.processed)
    if status is OutcomeStatus.FAILED:
        errors = ", ".join(f"{count} {error}" for error, count in sorted(run.counts.errors.items()))
        raise RunFailed(
            f"all {run.counts.processed} objects are in error: {errors}",
            code="identity.run.all_in_error",
            remedy="see the items of the run",
        )
    if status is OutcomeStatus.COMPLETED_WITH_ERROR:
        held = "; ".join(run.held)
        run.ctx.error(held or f"{run.counts.unhandled} objects ended with an unhandled error")
    elif status is OutcomeStatus.COMPLETED_WITH_WARNING:
        found = [f"{count} {error}" for error, count in sorted(run.counts.errors.items())]
        run.ctx.warn("; ".join([*run.warnings, *found]))
    return summary


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What an attempt asks for when it begins a run."""

    system_name: str
    profile: str | RunProfile
    schema: str = transaction_settings.LIVE_SCHEMA
    allowed_states: tuple[str, ...] = ("active",)
    run_id: UUID | None = None
    """None: the id of the activity."""
    previewed: bool = False


@dataclass(frozen=True, slots=True)
class BegunRun:
    """A run that has begun, with what it was begun on."""

    record: NewRun
    system: System
    profile: RunProfile
    configuration: Configuration


@asynccontextmanager
async def _begin(ctx: Context, database: Database, request: RunRequest) -> AsyncIterator[Run]:
    """Begin a run in one transaction; wait without a slot while another run excludes it."""
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(ctx.connection())
        begun = await begin_run(connection, ctx, request, database.clock.now())
        if isinstance(begun, runs.OpenRun):
            ctx.progress(0, None, f"waiting for the run {begun.id} ({begun.profile} of {begun.system})")
            while True:  # sleeps that have ended are skipped; the attempt ends at the first one that has not
                await ctx.sleep(WAIT_SECONDS)
        run = Run(ctx, database, begun.record, begun.system, begun.profile, begun.configuration, request.schema)
        run._connections.push_async_exit(stack.pop_all())
        run._connection = connection
    run.at("run_begun")
    try:
        yield run
    finally:
        await run.close()


async def begin_run(
    connection: Connection, ctx: Context, request: RunRequest, now: datetime
) -> BegunRun | runs.OpenRun:
    """Insert the run of this attempt; return the run that it has to wait for, if there is one."""
    async with transaction_settings.transaction(connection, request.schema):
        # guard: identity.begin_after_abandoned_run
        for abandoned in await runs.end_abandoned_runs(connection, now):
            log.warning("abandoned run ended", run_id=abandoned.id, task_id=abandoned.task_id)
    for tries in range(1, MAX_PAGE_TRIES + 1):
        try:
            return await _insert_run(connection, ctx, request, now)
        except runs.BEGIN_CONFLICTS:
            if tries == MAX_PAGE_TRIES:  # guard: identity.runs_that_begin_together
                raise
    raise AssertionError("unreachable")


async def _insert_run(
    connection: Connection, ctx: Context, request: RunRequest, now: datetime
) -> BegunRun | runs.OpenRun:
    """Take over from the earlier attempts and insert the run of this one, in one transaction.

    It locks in the order of a page: runs first, and only those of this task, then the system.
    """
    async with transaction_settings.transaction(connection, request.schema):
        # guard: identity.runs_of_lost_attempts
        lost_runs = await runs.end_runs_of_earlier_attempts(connection, ctx.task_id, ctx.fence, now)
        locked = await runs.lock_system(connection, request.system_name)
        configuration = await load_configuration(connection)
        if locked is None:
            raise RunFailed(
                f"there is no connected system {request.system_name!r}",
                code="identity.system.not_found",
                remedy="list them with `tenuto identity systems`",
            )
        system = configuration.systems[request.system_name]
        profile = system.profile(request.profile) if isinstance(request.profile, str) else request.profile
        _check_state(locked, profile, request.allowed_states)
        open_run = await runs.find_open_run(connection, system.number, profile.kind)
        if open_run is not None:
            return open_run
        resumed = next((each for each in lost_runs if _can_resume(each, system, profile, configuration)), None)
        record = NewRun(
            request.run_id or ctx.activity_id,
            ctx.task_id,
            ctx.fence,
            system.number,
            profile.name,
            profile.kind,
            configuration.rules_version,
            now,
            ctx.initiator,
            cursor=resumed.cursor if resumed else None,
            previewed=request.previewed,
        )
        await runs.insert_run(connection, record)
    return BegunRun(record, system, profile, configuration)


def _check_state(locked: runs.LockedSystem, profile: RunProfile, allowed_states: tuple[str, ...]) -> None:
    if locked.state not in allowed_states:
        raise RunFailed(
            f"the system {locked.name!r} is {locked.state}",
            code="identity.system.not_active",
            remedy="enable it" if locked.state == "disabled" else "wait until it is deleted",
        )
    if locked.held is not None and not locked.held.get("deletes_only") and profile.kind in _NOT_WHILE_HELD:
        raise held_system(locked.name, locked.held)


def held_system(name: str, held: Mapping[str, Any]) -> RunFailed:
    """Return the error of a run of a system that a guard holds."""
    return RunFailed(
        f"the system {name!r} is on hold since run {held.get('run')}: {held.get('message')}",
        code="identity.system.held",
        remedy=f"examine it with `tenuto identity show {shlex.quote(name)}`, then correct the source or approve it",
    )


def _can_resume(lost: runs.OpenRun, system: System, profile: RunProfile, configuration: Configuration) -> bool:
    """Return whether a full sync may continue after the last committed page of the lost attempt."""
    return (
        profile.kind is RunKind.FULL_SYNC
        and lost.kind == profile.kind
        and lost.system_number == system.number
        and lost.rules_version == configuration.rules_version
    )
