"""Pages of previews: what runs would do, and what would be sent to each target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenuto.extension import PageRequest
from tenuto.web.components.extension_kit import Action, FilterField, Listing, Table, path_of
from tenuto_identity.list_views import PREVIEWS
from tenuto_identity.model.sync.explanation import HIDDEN
from tenuto_identity.model.sync.pending_exports import ExportKind
from tenuto_identity.pages.exports import ChangeRow, change_row
from tenuto_identity.pages.page_query import (
    PAGE_SIZE,
    Count,
    choice_of,
    counts_of,
    label_of,
    number_of,
    operations,
    reveals,
    text_of,
    uuid_cursor,
    uuid_of,
)
from tenuto_identity.store.previews import PreviewItem, PreviewRecord, PreviewRequest

TABS = {"requests": "Requests", "objects": "Objects"}
KINDS = [each.value for each in ExportKind]


@dataclass(frozen=True, slots=True)
class PreviewsPage:
    table: Table
    start: Action


@dataclass(frozen=True, slots=True)
class StepRow:
    """A previewed run."""

    number: int
    system: str
    system_path: str
    profile: str
    status: str
    changes: Sequence[Count]
    errors: Sequence[Count]
    requests: int
    held: Sequence[str]
    warnings: Sequence[str]
    problem: str | None


@dataclass(frozen=True, slots=True)
class TargetRow:
    """The requests to one target by kind."""

    system: str
    counts: Sequence[tuple[str, int]]
    total: int


@dataclass(frozen=True, slots=True)
class RequestRow:
    request: PreviewRequest
    name: str
    changes: Sequence[ChangeRow]


@dataclass(frozen=True, slots=True)
class PreviewItemRow:
    item: PreviewItem
    name: str
    result: str


@dataclass(frozen=True, slots=True)
class PreviewPage:
    preview: PreviewRecord
    path: str
    steps: Sequence[StepRow]
    targets: Sequence[TargetRow]
    tab: str
    tabs: Sequence[tuple[str, str]]
    listing: Listing
    system: str
    kind: str
    has_hidden_values: bool

    @property
    def holds(self) -> list[tuple[str, str]]:
        """Systems with the messages of guards that would hold."""
        return [(step.system, message) for step in self.steps for message in step.held]


async def load_previews(request: PageRequest) -> PreviewsPage:
    before = uuid_cursor(request)
    found = await operations(request).previews(before=before, limit=PAGE_SIZE, reveals=reveals(request))
    table = Table(
        "Previews",
        PREVIEWS,
        found,
        "/identity/previews",
        link=lambda each: path_of("identity", "previews", each.id),
        next=str(found[-1].id) if len(found) == PAGE_SIZE else None,
        is_first=before is None,
        empty="No preview in the last day. Start one here, or on the page of a system.",
        hint='tenuto identity preview --schedule "Nightly HR Sync"',
    )
    start = Action(
        "identity_previews_create",
        "Preview a schedule…",
        title="Preview the run profiles of a schedule",
        text="The run profile steps run in order on a copy of the data. Nothing is changed and nothing is sent.",
        fields=[{"name": "schedule", "label": "Name of the schedule", "required": True}],
        submit="Start the preview",
        done="The preview was started.",
        goto="/identity/previews/{preview_id}",
        style="primary",
    )
    return PreviewsPage(table, start)


async def load_preview(request: PageRequest) -> PreviewPage:
    id = uuid_of(request, "preview", "preview")
    found = await operations(request).preview_record(id, reveals=reveals(request))
    tab = choice_of(request, "tab", TABS) or "requests"
    system, kind = text_of(request, "system"), choice_of(request, "kind", KINDS)
    after = number_of(request)
    errors = choice_of(request, "errors", ("only",))
    path = path_of("identity", "previews", id)
    targets = await _load_targets(request, found)
    listing = (
        await _load_requests(request, found, path, system, kind, after)
        if tab == "requests"
        else await _load_items(request, found, path, errors, after)
    )
    shown = [value for row in listing.rows for value in _shown_values(row)]
    return PreviewPage(
        found,
        path,
        [_step(each) for each in found.steps],
        targets,
        tab,
        tuple(TABS.items()),
        listing,
        system,
        kind,
        HIDDEN in shown,
    )


async def _load_targets(request: PageRequest, preview: PreviewRecord) -> list[TargetRow]:
    counts: dict[str, list[tuple[str, int]]] = {}
    for each in await operations(request).preview_request_counts(preview.id):
        counts.setdefault(each.system, []).append((each.kind, each.request_count))
    return [
        TargetRow(system, sorted(kinds, key=lambda each: KINDS.index(each[0])), sum(count for _, count in kinds))
        for system, kinds in counts.items()
    ]


async def _load_requests(
    request: PageRequest, preview: PreviewRecord, path: str, system: str, kind: str, after: int
) -> Listing:
    found = await operations(request).preview_requests(
        preview.id, system=system or None, kind=kind or None, after=after, limit=PAGE_SIZE, reveals=reveals(request)
    )
    return Listing(
        "Requests",
        [
            RequestRow(each, each.address or each.anchor or each.type, [change_row(change) for change in each.changes])
            for each in found
        ],
        path,
        filters=[FilterField("system", "Target", system), FilterField("kind", "Kind", kind)],
        next=str(found[-1].number) if len(found) == PAGE_SIZE else None,
        is_first=not after,
    )


async def _load_items(request: PageRequest, preview: PreviewRecord, path: str, errors: str, after: int) -> Listing:
    found = await operations(request).preview_items(
        preview.id, errors_only=bool(errors), after=after, limit=PAGE_SIZE, reveals=reveals(request)
    )
    return Listing(
        "Objects",
        [
            PreviewItemRow(
                each,
                each.display or each.anchor or f"item {each.number}",
                label_of(each.error or each.change or ""),
            )
            for each in found
        ],
        path,
        filters=[FilterField("tab", "Tab", "objects"), FilterField("errors", "Errors", errors)],
        next=str(found[-1].number) if len(found) == PAGE_SIZE else None,
        is_first=not after,
    )


def _shown_values(row: Any) -> list[str | None]:
    if isinstance(row, RequestRow):
        return [row.name, *(each.sent for each in row.changes)]
    return [row.name, row.item.message]


def _step(step: Any) -> StepRow:
    return StepRow(
        step["step"],
        step["system"],
        path_of("identity", "systems", step["system"]),
        step["profile"],
        step["status"].lower(),
        counts_of(step, "changes"),
        counts_of(step, "errors"),
        step["requests"],
        step["held"],
        step["warnings"],
        step["problem"],
    )
