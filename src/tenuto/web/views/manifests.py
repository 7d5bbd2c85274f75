"""``/manifests`` and ``/batches``: lists, and the pages of one manifest and one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.paging import After, decode_cursor, encode_cursor
from tenuto.api.parameters import Id, Name
from tenuto.app import Tenuto
from tenuto.diagnostics.reasons import Reason
from tenuto.model.filter_keys import BATCH_KEYS
from tenuto.model.manifests import manifest_from_fields
from tenuto.model.tasks import ActivityState
from tenuto.operations.batches import BatchDetails
from tenuto.presentation.columns import Column
from tenuto.presentation.definition_views import GROUPS, POLLS, describe_manifest_trigger, describe_obstacles
from tenuto.presentation.work_views import batch_display_state
from tenuto.store.batches import BatchItemRecord, BatchRecord
from tenuto.store.dead_letters import FailureGroup
from tenuto.store.manifests import ManifestDetails, ManifestGroupRecord, ManifestRecord, PollRecord
from tenuto.web.drawing import Share, stack_shares
from tenuto.web.filters import FilteredList, load_filtered_list, read_filter
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class ManifestRow:
    record: ManifestRecord
    description: str
    obstacles: str | None
    """Why it does not run on its own although it is enabled."""


@dataclass(frozen=True, slots=True)
class ManifestList:
    rows: Sequence[ManifestRow]
    search: str
    next: str | None
    is_first: bool
    groups: Sequence[ManifestGroupRecord]
    polls: Sequence[PollRecord]
    group_columns: Sequence[Column] = GROUPS.columns
    poll_columns: Sequence[Column] = POLLS.columns


@dataclass(frozen=True, slots=True)
class ManifestPage:
    details: ManifestDetails
    description: str
    fields: dict[str, Any]
    reasons: Sequence[Reason]
    """Why it does not run, or when it will."""
    versions: Sequence[Any]
    failures: Sequence[FailureGroup]


@dataclass(frozen=True, slots=True)
class BatchRow:
    record: BatchRecord
    state: str
    shares: Sequence[Share]


@dataclass(frozen=True, slots=True)
class BatchPage:
    record: BatchDetails
    shares: Sequence[Share]
    items: Sequence[BatchItemRecord]
    item_state: str
    """State of the items that are shown; empty for all."""
    next: str | None
    is_first: bool
    failures: Sequence[FailureGroup]


@router.get("/manifests")
async def show_manifests(
    request: Request,
    call: Reader,
    search: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str | None, Query(max_length=300)] = None,
) -> Response:
    """Show manifests by external id."""
    view = PageView(request, call)

    async def load(app: Tenuto) -> ManifestList:
        found, groups, polls = await asyncio.gather(
            app.manifests.list(after=after, search=search or None, limit=PAGE_SIZE),
            app.manifests.groups(limit=PAGE_SIZE),
            app.manifests.polls(only_busy=True, limit=10),
        )
        rows = [ManifestRow(each, _describe(each.definition), describe_obstacles(each.obstacles)) for each in found]
        following = found[-1].external_id if len(found) == PAGE_SIZE else None
        return ManifestList(rows, search, following, after is None, groups, polls)

    model = await view.shared(("manifests", search, after), load)
    return await view.render("pages/manifests.html", model, title="Manifests", current="/manifests")


def _describe(fields: dict[str, Any]) -> str:
    return describe_manifest_trigger(manifest_from_fields(fields))


@router.get("/manifests/{external_id:name}")
async def show_manifest(request: Request, call: Reader, external_id: Name) -> Response:
    """Show a manifest."""
    view = PageView(request, call)

    async def load(app: Tenuto) -> ManifestPage:
        details, diagnosis, versions, failures = await asyncio.gather(
            app.manifests.details(external_id, limit=20),
            app.manifests.why(external_id),
            app.manifests.versions(external_id, limit=15),
            app.dead_letters.groups(manifest=external_id, limit=10),
        )
        fields = details.manifest.manifest.to_fields()
        return ManifestPage(details, _describe(fields), fields, diagnosis.reasons, versions, failures)

    model = await view.shared(("manifest", external_id), load)
    return await view.render("pages/manifest.html", model, title=external_id, current="/manifests")


@router.get("/batches")
async def show_batches(
    request: Request, call: Reader, q: Annotated[str, Query(max_length=500)] = "", after: After = None
) -> Response:
    """Show batches, newest first."""
    view = PageView(request, call)
    zone = view.viewer.zone_name

    async def load(app: Tenuto) -> FilteredList[BatchRow]:
        found, bar = read_filter(BATCH_KEYS, "/batches", q, (await app.open()).clock.now(), zone)
        return await load_filtered_list(found, bar, after, app.batches.list, app.batches.count, _batch_row)

    model = await view.shared(("batches", q, after, zone), load)
    return await view.render_list("pages/batches.html", model, title="Batches", current="/batches")


def _batch_row(record: BatchRecord) -> BatchRow:
    done = max(record.item_count - record.open_count - record.failed_count, 0)
    parts = (
        ("done", done, f"{done:,} ended"),
        ("fail", record.failed_count, f"{record.failed_count:,} failed"),
    )
    return BatchRow(record, batch_display_state(record), stack_shares(parts, record.item_count))


@router.get("/batches/{id}")
async def show_batch(
    request: Request,
    call: Reader,
    id: Id,
    items: Annotated[ActivityState | Literal["all"] | None, Query(description="State of the items.")] = None,
    after: After = None,
) -> Response:
    """Show a batch with its items; first those that failed."""
    view = PageView(request, call)
    cursor = decode_cursor(after, UUID)

    async def load(app: Tenuto) -> BatchPage:
        record, failures = await asyncio.gather(app.batches.get(id), app.dead_letters.groups(batch=id, limit=10))
        state = items or ("failed" if record.failed_count else "all")
        found = await app.batches.list_items(
            id, above=cursor[0] if cursor else None, state=None if state == "all" else state, limit=PAGE_SIZE
        )
        following = encode_cursor(found[-1].task_id) if len(found) == PAGE_SIZE else None
        parts = (
            ("done", record.done_count, f"{record.done_count:,} completed"),
            ("fail", record.failed_count, f"{record.failed_count:,} failed"),
            ("stop", record.cancelled_count, f"{record.cancelled_count:,} cancelled"),
            ("run", record.running_count, f"{record.running_count:,} running"),
        )
        shares = stack_shares(parts, record.item_count)
        return BatchPage(record, shares, found, str(state), following, after is None, failures)

    model = await view.shared(("batch", id, items, after), load)
    return await view.render(
        "pages/batch.html", model, title=f"Batch of {model.record.external_id}", current="/batches"
    )
