"""``/manifests`` and ``/batches``: lists, and the pages of one manifest and one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.bodies.definition_bodies import manifest_to_fields
from tenuto.api.list_pages import After, decode_cursor, encode_cursor
from tenuto.api.parameters import Id, Name
from tenuto.app import Tenuto
from tenuto.diagnostics.reasons import Reason
from tenuto.model.definitions.manifests import Manifest, manifest_from_fields
from tenuto.model.definitions.steps import JOB
from tenuto.model.filter_keys import BATCH_KEYS
from tenuto.model.filters import DEFAULT_WINDOW
from tenuto.model.work.tasks import ActivityState
from tenuto.operations.reports import AttemptFigures
from tenuto.operations.work.batches import BatchDetails
from tenuto.presentation.columns import Column
from tenuto.presentation.definition_views import GROUPS, POLLS, describe_obstacles
from tenuto.presentation.work_views import batch_display_state
from tenuto.store.definitions.manifests import ManifestDetails, ManifestGroupRecord, ManifestRecord, PollRecord
from tenuto.store.reports.failure_groups import FailureGroup
from tenuto.store.work.activities import ActivityRecord
from tenuto.store.work.batches import BatchItemRecord, BatchRecord
from tenuto.web.components.definition_forms import find_schema
from tenuto.web.components.filters import (
    FilteredList,
    FilterText,
    QuickFilter,
    Window,
    load_filtered_list,
    read_filter,
)
from tenuto.web.components.html_elements import Outcome
from tenuto.web.components.schema_forms import ArgumentsForm, make_arguments_form
from tenuto.web.components.svg_geometry import Share, stack_shares
from tenuto.web.components.version_history import (
    HISTORY_COUNT,
    VERSION_COUNT,
    DefinitionTab,
    HistoryRow,
    VersionsTab,
    make_history,
    make_versions_tab,
)
from tenuto.web.page import PageRoute, PageView, Reader
from tenuto.web.views.work.tasks import describe_wait

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE_SIZE = 50
STRIP_LENGTH = 20
BATCH_QUICK = (
    QuickFilter("All", ""),
    QuickFilter("Paused", "paused:yes", "paused"),
    QuickFilter("Cancelled", "cancelled:yes", "cancel"),
    QuickFilter("Being filled", "complete:no cancelled:no", "run"),
)


@dataclass(frozen=True, slots=True)
class ManifestRow:
    record: ManifestRecord
    description: str
    obstacles: str | None
    """Why it does not run on its own although it is enabled."""
    outcomes: Sequence[Outcome]
    """The last ended runs, oldest first."""


@dataclass(frozen=True, slots=True)
class ManifestList:
    rows: Sequence[ManifestRow]
    search: str
    next: str | None
    is_first: bool
    groups: Sequence[ManifestGroupRecord]
    polls: Sequence[PollRecord]
    strip_length: int = STRIP_LENGTH
    group_columns: Sequence[Column] = GROUPS.columns
    poll_columns: Sequence[Column] = POLLS.columns


@dataclass(frozen=True, slots=True)
class ManifestPage:
    details: ManifestDetails
    description: str
    fields: dict[str, Any]
    reasons: Sequence[Reason]
    """Why it does not run, or when it will."""
    failures: Sequence[FailureGroup]
    attempts: Sequence[ActivityRecord]
    """The last ended attempts, those of batch items included."""
    figures: AttemptFigures | None
    """Ended attempts of its job in the last day."""
    tab: DefinitionTab
    versions: VersionsTab | None
    history: Sequence[HistoryRow]
    run_form: ArgumentsForm


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
    wait: str
    """Why its queued items do not start, as far as their queue says so."""
    queue: str
    """The queue of these items."""


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
        outcomes: dict[UUID, list[Outcome]] = {}
        for each in await app.manifests.recent_outcomes([each.id for each in found], STRIP_LENGTH):
            outcome = Outcome(each.id, each.state, each.started_at or each.ended_at)
            outcomes.setdefault(each.manifest_id, []).append(outcome)
        rows = [
            ManifestRow(each, each.when, describe_obstacles(each.obstacles), outcomes.get(each.id, ()))
            for each in found
        ]
        following = found[-1].external_id if len(found) == PAGE_SIZE else None
        return ManifestList(rows, search, following, after is None, groups, polls)

    model = await view.shared(("manifests", search, after), load)
    return await view.render("pages/manifests.html", model, title="Manifests", current="/manifests")


@router.get("/manifests/{external_id:name}")
async def show_manifest(
    request: Request,
    call: Reader,
    external_id: Name,
    tab: DefinitionTab = "overview",
    a: Annotated[int | None, Query(ge=1)] = None,
    b: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """Show a manifest: overview, versions with the difference of a and b, or history."""
    view = PageView(request, call)

    async def load(app: Tenuto) -> ManifestPage:
        details, diagnosis, failures, attempts = await asyncio.gather(
            app.manifests.details(external_id, limit=20),
            app.manifests.why(external_id),
            app.dead_letters.groups(manifest=external_id, limit=10),
            app.activities(manifest=external_id, limit=20),
        )
        stored = details.manifest
        report = await app.reports.series("24h", name=stored.manifest.job)
        versions = () if tab == "overview" else await app.manifests.versions(stored.id, limit=VERSION_COUNT)
        history = () if tab != "history" else await app.audit.history(f"manifest:{external_id}", limit=HISTORY_COUNT)
        fields = stored.manifest.to_fields()
        return ManifestPage(
            details,
            manifest_from_fields(fields).describe_trigger(),
            fields,
            diagnosis.reasons,
            failures,
            attempts,
            report.series[0].total if report.series else None,
            tab,
            None if tab != "versions" else make_versions_tab(versions, stored.version, a, b, _to_body),
            make_history(history, versions),
            make_run_form(app, stored.manifest),
        )

    model = await view.shared(("manifest", external_id, tab, a, b), load)
    return await view.render(
        "pages/manifest.html",
        model,
        title=external_id,
        current="/manifests",
        modules=("forms",),
        place="manifest",
        subject=model.details,
    )


def make_run_form(app: Tenuto, manifest: Manifest) -> ArgumentsForm:
    """Return the arguments of one run: those of the job, with the properties of the manifest as their defaults."""
    schema, _ = find_schema(app, JOB, manifest.job)
    if schema is not None:
        properties = {
            name: {**found, "default": manifest.properties[name]} if name in manifest.properties else found
            for name, found in schema.get("properties", {}).items()
        }
        required = [name for name in schema.get("required", ()) if name not in manifest.properties]
        schema = {**schema, "properties": properties, "required": required}
    return make_arguments_form("arguments", schema, None)


def _to_body(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a stored version as the body of a request."""
    return manifest_to_fields(manifest_from_fields(stored))


@router.get("/batches")
async def show_batches(
    request: Request, call: Reader, q: FilterText = "", after: After = None, window: Window = DEFAULT_WINDOW
) -> Response:
    """Show batches, newest first."""
    view = PageView(request, call)
    zone = view.viewer.zone_name

    async def load(app: Tenuto) -> FilteredList[BatchRow]:
        found, bar = read_filter(BATCH_KEYS, "/batches", q, (await app.open()).clock.now(), zone, BATCH_QUICK, window)
        return await load_filtered_list(found, bar, after, app.batches.list, app.batches.count_of_each, _batch_row)

    model = await view.shared(("batches", q, after, zone, window), load)
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
        queued = None
        if record.open_count and not record.running_count and record.paused_at is None:
            queued = next(iter(await app.tasks(f"batch:{id} state:queued", limit=1)), None)
        wait, queue = "", ""
        if queued is not None:
            obstacles = await app.reports.queue_obstacles([queued.queue])
            wait, queue = describe_wait(queued, obstacles.get(queued.queue)), queued.queue
        return BatchPage(record, shares, found, str(state), following, after is None, failures, wait, queue)

    model = await view.shared(("batch", id, items, after), load)
    return await view.render(
        "pages/batch.html", model, title=f"Batch of {model.record.external_id}", current="/batches"
    )
