"""Bulk operations (``app.bulk_operations``): one action on many objects, selected by a filter, tracked and abortable.

The selection is stored when the operation is created. Schedulers process it (`bulk_processor`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tenuto.errors import Conflict, Invalid, NotFound, quoted
from tenuto.ids import new_id
from tenuto.model import validation
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.filters import Filter, parse_filter
from tenuto.model.triggers.zones import load_zone
from tenuto.model.work.bulk_operations import (
    MAX_DIFFERENCE,
    MAX_SELECTED_IDS,
    BulkKind,
    BulkState,
    differs_too_much,
    write_id_list,
)
from tenuto.operations.argument_checks import MAX_LIMIT, check_instant, check_limit, require_single_match
from tenuto.operations.bound_operation import OpenDatabase, OperationGroup
from tenuto.operations.work.bulk_kinds import KINDS, KindRules
from tenuto.operations.work.completion_waiter import EndSignal, PollIntervals, wait_until_ended
from tenuto.postgres.database import Connection
from tenuto.settings import Settings
from tenuto.store.work import activities, bulk_operations
from tenuto.store.work.bulk_operations import BulkItemRecord, BulkOperationRecord

MAX_ITEMS = 1_000_000
_POLL_INTERVALS = PollIntervals(first_seconds=0.05, growth=1.5, max_seconds=1.0)
_MAX_REASON_LENGTH = 4000
_MAX_CLOCK_DIFFERENCE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """Selection that a bulk operation would make."""

    kind: BulkKind
    description: str
    """The filter in plain English."""
    until: datetime
    """Pass it on to `create`, so that objects that appear later are not selected."""
    count: int
    is_exact: bool
    """Whether there are no more than ``count``."""


class BulkOperations(OperationGroup):
    """Operations on bulk operations."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller, settings: Callable[[], Settings]) -> None:
        super().__init__(open, caller)
        self._settings = settings

    async def preview(
        self, kind: str, where: str = "", *, until: datetime | None = None, zone: str = "UTC"
    ) -> BulkPreview:
        """Count and describe the objects that a bulk operation would select, exactly up to 10,000.

        Dates without an offset in the filter are in ``zone``.
        """
        rules, database = _find_rules(kind), await self._open()
        now = database.clock.now()
        until = _check_until(until, now)
        filter = _parse(rules, where, until, zone)
        found = await bulk_operations.count_objects(database, rules.selection, filter, until=until)
        return BulkPreview(BulkKind(kind), filter.describe(), until, found.count, found.is_exact)

    async def create(
        self,
        kind: str,
        where: str = "",
        *,
        ids: Sequence[UUID] | None = None,
        until: datetime | None = None,
        zone: str = "UTC",
        expected: int | None = None,
        reason: str | None = None,
        request_id: UUID | None = None,
    ) -> BulkOperationRecord:
        """Start a bulk operation on all objects that meet a filter and existed at ``until``, by default now.

        ``ids`` selects these objects instead of a filter. Raises an error if their number differs from ``expected`` by
        more than 10 %. Dates in the filter without an offset are in ``zone``. Ages in it, such as ``2h``,
        count from ``until``. Calls with the same ``request_id`` create one operation.
        """
        rules = _find_rules(kind)
        self._check_reason(rules, reason)
        operation = await self._begin("operation.create", reason=reason)
        until = _check_until(until, operation.now)
        if ids is None:
            filter = _parse(rules, where, until, zone)
            description = filter.describe()
        else:
            ids = _check_ids(ids, where)
            filter, where = _parse(rules, "", until, zone).where(id=ids), write_id_list(ids)
            description = f"{len(ids):,} selected {filter.schema.noun}"
        actor = operation.actor
        new = BulkOperationRecord(
            request_id or new_id(), BulkKind(kind), where, description, until, reason, BulkState.RUNNING, 0, 0, 0,
            0, None, operation.now, None, None, None, actor.type, actor.id, actor.name,
        )  # fmt: skip

        async def create(connection: Connection) -> None:
            count = await bulk_operations.create_operation(connection, new, rules.selection, filter, MAX_ITEMS)
            if count is None:  # a repeated request
                operation.entry.mark_unchanged()
                return
            if count > MAX_ITEMS:
                raise Invalid(
                    f"the filter selects more than {MAX_ITEMS:,} {filter.schema.noun}",
                    code="operation.too_many_items",
                    field="where",
                    remedy="add a condition, and repeat the operation for the rest",
                )
            # guard: bulk_operations.expected_number
            if expected is not None and differs_too_much(expected, count):
                raise Conflict(
                    f"the filter selects {count:,} {filter.schema.noun}, not {expected:,}",
                    code="operation.selection.changed",
                    field="expected",
                    remedy=f"preview the operation again; up to {MAX_DIFFERENCE:.0%} difference is accepted",
                )
            operation.entry.after = {"kind": kind, "filter": where, "until": until, "items": count}

        operation.entry.target = str(new.id)
        await operation.database.transaction(create)
        return await self.get(new.id)

    async def abort(self, id: UUID) -> BulkOperationRecord:
        """Abort a running bulk operation after the chunk in progress; the rest of its objects is left untouched."""
        operation = await self._begin("operation.abort", target=str(id))
        aborted = False

        async def abort(connection: Connection) -> None:
            nonlocal aborted
            if await bulk_operations.abort_operation(connection, id, operation.actor):
                aborted = True
            else:
                operation.entry.mark_unchanged()

        await operation.database.transaction(abort)
        found = await self.get(id)
        if not aborted and found.state is not BulkState.ABORTED:
            raise _already_ended(id)
        return found

    async def pause(self, id: UUID) -> BulkOperationRecord:
        """Pause a running bulk operation after the chunk in progress; running executions of a backfill go on."""
        return await self._change_pause("operation.pause", id, paused=True)

    async def resume(self, id: UUID) -> BulkOperationRecord:
        """Resume a paused bulk operation."""
        return await self._change_pause("operation.resume", id, paused=False)

    async def _change_pause(self, action: str, id: UUID, *, paused: bool) -> BulkOperationRecord:
        operation = await self._begin(action, target=str(id))

        async def change(connection: Connection) -> None:
            if paused:
                changed = await bulk_operations.pause_operation(connection, id, operation.actor)
            else:
                changed = await bulk_operations.resume_operation(connection, id)
            if not changed:
                operation.entry.mark_unchanged()

        await operation.database.transaction(change)
        found = await self.get(id)
        if found.state is not BulkState.RUNNING:
            raise _already_ended(id)
        return found

    async def get(self, id: UUID) -> BulkOperationRecord:
        """Return a bulk operation with its counters."""
        found = await bulk_operations.load_operation(await self._open(), id)
        if found is None:
            raise NotFound(
                f"there is no bulk operation {id}", code="operation.not_found", remedy="see `tenuto operation list`"
            )
        return found

    async def list(
        self, *, below: UUID | None = None, state: str | None = None, kind: str | None = None, limit: int = 50
    ) -> Sequence[BulkOperationRecord]:
        """List bulk operations, newest first; page with ``below``."""
        return await bulk_operations.list_operations(
            await self._open(), below=below, state=state, kind=kind, limit=check_limit(limit)
        )

    async def items(
        self, id: UUID, *, outcome: str | None = None, above: UUID | None = None, limit: int = 100
    ) -> Sequence[BulkItemRecord]:
        """List the items that failed or were skipped, with the reason; page with ``above``."""
        found = await bulk_operations.list_items(
            await self._open(), id, outcome=outcome, above=above, limit=check_limit(limit)
        )
        if not found:
            await self.get(id)
        return found

    async def all_items(self, id: UUID) -> AsyncIterator[BulkItemRecord]:
        """Iterate over all items that failed or were skipped."""
        above = None
        while page := await self.items(id, above=above, limit=MAX_LIMIT):
            for item in page:
                yield item
            above = page[-1].item_id

    async def find(self, prefix: str) -> UUID:
        """Return the only bulk operation id that begins with this prefix."""
        found = await bulk_operations.find_operations(await self._open(), *activities.id_range_of_prefix(prefix))
        return require_single_match(found, prefix, noun="bulk operation", list_command="`tenuto operation list`")

    async def wait(self, id: UUID, timeout: float | None = None) -> BulkOperationRecord:
        """Wait until a bulk operation has ended or was aborted, and return it. A scheduler must run."""

        async def load_if_ended(_: bool) -> BulkOperationRecord | None:
            found = await self.get(id)
            return None if found.state is BulkState.RUNNING else found

        def timeout_error() -> Conflict:
            return Conflict(
                f"bulk operation {id} has not ended after {timeout:g} s",
                code="operation.wait.timeout",
                remedy="check that a scheduler runs with `tenuto status`",
            )

        return await wait_until_ended(load_if_ended, EndSignal(_POLL_INTERVALS), timeout, timeout_error)

    def _check_reason(self, rules: KindRules, reason: str | None) -> None:
        if reason is not None:
            validation.check_text(reason, field="reason", limit=_MAX_REASON_LENGTH)
        if rules.needs_note and self._settings().dead_letter_note_required and not (reason or "").strip():
            raise Invalid(
                "resolving dead letters requires a reason",
                code="dead_letter.note.required",
                field="reason",
                remedy="give the reason, or set TENUTO_DEAD_LETTER_NOTE_REQUIRED=false",
            )


def _already_ended(id: UUID) -> Conflict:
    return Conflict(
        f"bulk operation {id} has already ended",
        code="operation.already_ended",
        remedy=f"see `tenuto operation show {id}`",
    )


def _find_rules(kind: str) -> KindRules:
    if kind == BulkKind.SCHEDULE_BACKFILL:
        raise Invalid(
            "a backfill is not selected by a filter",
            code="operation.kind.not_selectable",
            field="kind",
            remedy="start it with `tenuto schedule backfill NAME --from INSTANT --to INSTANT`",
        )
    try:
        return KINDS[BulkKind(kind)]
    except ValueError:
        raise Invalid(
            f"unknown kind of bulk operation {quoted(kind, 60)}",
            code="operation.kind.unknown",
            field="kind",
            remedy=f"use any of {', '.join(BulkKind)}",
        ) from None


def _check_ids(ids: Sequence[UUID], where: str) -> list[UUID]:
    unique = list(dict.fromkeys(ids))
    if where:
        raise Invalid("give a filter or ids, not both", code="operation.selection.ambiguous", field="ids")
    if not 1 <= len(unique) <= MAX_SELECTED_IDS:
        raise Invalid(
            f"{len(unique):,} ids are selected, not 1 to {MAX_SELECTED_IDS:,}",
            code="operation.selection.size",
            field="ids",
            remedy="select more objects by a filter",
        )
    return unique


def _check_until(until: datetime | None, now: datetime) -> datetime:
    if until is None:
        return now
    check_instant(until, field="until")
    if until > now + _MAX_CLOCK_DIFFERENCE:
        raise Invalid(
            f"until {until.isoformat()} is in the future",
            code="operation.until.in_future",
            field="until",
            remedy="send the instant of the preview",
        )
    return min(until, now)


def _parse(rules: KindRules, where: str, until: datetime, zone: str) -> Filter:
    """Return the filter; ages in it count from the upper instant, so that it selects the same when it is read again."""
    return parse_filter(
        rules.selection.table.schema, where, until, zone=load_zone(zone), field="where"
    ).without_window()
