"""``/operations``: bulk operations, and the page of one with its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from fastapi import APIRouter, Request, Response

from tenuto.api.list_pages import After, decode_key, encode_cursor
from tenuto.api.parameters import Id
from tenuto.app import Tenuto
from tenuto.model.work.bulk_operations import BulkKind
from tenuto.store.work.bulk_operations import BulkItemRecord, BulkOperationRecord
from tenuto.web.components.filters import PAGE_SIZE
from tenuto.web.components.svg_geometry import Share, stack_shares
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_SHOWN_ITEMS = 100


@dataclass(frozen=True, slots=True)
class OperationRow:
    """A bulk operation with its bar."""

    record: BulkOperationRecord
    shares: Sequence[Share]

    @property
    def title(self) -> str:
        """What it does, such as ``Cancel tasks``."""
        if self.record.kind is BulkKind.SCHEDULE_BACKFILL:
            return "Backfill a schedule"
        noun, _, verb = str(self.record.kind).partition(".")
        return f"{verb.capitalize()} {noun.replace('_', ' ')}s"

    @property
    def state(self) -> str:
        """State as it is shown."""
        if self.record.state == "aborted":
            return "cancelled"
        if self.record.state == "running":
            return "running" if self.record.paused_at is None else "paused"
        return "some_failed" if self.record.failed_count else "completed"

    @property
    def rate_per_second(self) -> float | None:
        """Processed objects per second, from its creation until it processed the last one."""
        record = self.record
        done = record.item_count - record.remaining_count
        if not done or record.processed_at is None:
            return None
        return done / max((record.processed_at - record.created_at).total_seconds(), 0.001)

    @property
    def seconds_left(self) -> float | None:
        """Time until the end at the rate so far."""
        if self.record.state != "running" or self.rate_per_second is None:
            return None
        return self.record.remaining_count / self.rate_per_second


@dataclass(frozen=True, slots=True)
class OperationList:
    rows: Sequence[OperationRow]
    next: str | None
    is_first: bool


@dataclass(frozen=True, slots=True)
class OperationPage:
    row: OperationRow
    items: Sequence[BulkItemRecord]


def describe_operation(record: BulkOperationRecord) -> OperationRow:
    """Return the row of a bulk operation."""
    shares = stack_shares(
        (
            ("done", record.succeeded_count, f"{record.succeeded_count:,} succeeded"),
            ("fail", record.failed_count, f"{record.failed_count:,} failed"),
            ("wait", record.skipped_count, f"{record.skipped_count:,} skipped"),
        ),
        record.item_count,
    )
    return OperationRow(record, shares)


@router.get("/operations")
async def show_operations(request: Request, call: Reader, after: After = None) -> Response:
    """Show bulk operations, newest first."""
    view = PageView(request, call)

    async def load(app: Tenuto) -> OperationList:
        found = await app.bulk_operations.list(below=decode_key(after, UUID), limit=PAGE_SIZE)
        following = encode_cursor(found[-1].id) if len(found) == PAGE_SIZE else None
        return OperationList([describe_operation(each) for each in found], following, after is None)

    model = await view.shared(("operations", after), load)
    return await view.render("pages/operations.html", model, title="Bulk operations", current="/operations")


@router.get("/operations/{id}")
async def show_operation(request: Request, call: Reader, id: Id) -> Response:
    """Show a bulk operation."""
    view = PageView(request, call)

    async def load(app: Tenuto) -> OperationPage:
        record = await app.bulk_operations.get(id)
        return OperationPage(describe_operation(record), await app.bulk_operations.items(id, limit=_SHOWN_ITEMS))

    model = await view.shared(("operation", id), load)
    return await view.render("pages/operation.html", model, title=model.row.title, current="/operations")
