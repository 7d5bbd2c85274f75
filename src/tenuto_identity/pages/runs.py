"""Pages of runs and their results, and the panel of a run profile step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tenuto.errors import NotFound
from tenuto.extension import PageRequest, StepSubject
from tenuto.web.components.extension_kit import FieldChange, FilterField, Listing, path_of
from tenuto_identity.pages.page_query import (
    PAGE_SIZE,
    Count,
    before_and_after,
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
from tenuto_identity.store.run_items import Item
from tenuto_identity.store.runs import RunRecord, RunState

FIRST_ERRORS = 5
STATE_LABELS = {
    RunState.RUNNING.value: "running",
    RunState.COMPLETED.value: "completed",
    RunState.WARNING.value: "completed with warning",
    RunState.ERROR.value: "completed with error",
    RunState.FAILED.value: "failed",
    RunState.CANCELLED.value: "cancelled",
    RunState.LOST.value: "lost",
}


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the list."""

    run: RunRecord
    path: str
    system_path: str
    changes: Sequence[Count]
    error_count: int


@dataclass(frozen=True, slots=True)
class SubjectChange:
    """The values of one object before and after."""

    title: str
    changes: Sequence[FieldChange]


@dataclass(frozen=True, slots=True)
class ItemRow:
    """The result for one object."""

    item: Item
    name: str
    path: str | None
    """Page of its identity, or of its object."""
    result: str
    """The change or the error in words."""
    subjects: Sequence[SubjectChange]


@dataclass(frozen=True, slots=True)
class CountChip:
    """A number of items with the filter that shows them."""

    label: str
    count: int
    query: Mapping[str, str]
    is_current: bool
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class RunCountsView:
    """The counts of a run and its first errors."""

    run: RunRecord
    path: str
    processed: int
    error_count: int
    changes: Sequence[Count]
    types: Sequence[Count]
    exports: Sequence[Count]
    errors: Sequence[ItemRow]


@dataclass(frozen=True, slots=True)
class RunPage:
    result: RunCountsView
    system_path: str
    chips: Sequence[CountChip]
    listing: Listing
    is_filtered: bool


async def load_runs(request: PageRequest) -> Listing:
    system, before = text_of(request, "system"), uuid_cursor(request)
    state = choice_of(request, "state", STATE_LABELS)
    names = [each.name for each in await operations(request).systems(limit=500)]
    found = await operations(request).runs(system=system or None, state=state or None, before=before, limit=PAGE_SIZE)
    return Listing(
        "Runs",
        [_row(each) for each in found],
        "/identity/runs",
        filters=[
            FilterField("system", "System", system, [(name, name) for name in names]),
            FilterField("state", "State", state, tuple(STATE_LABELS.items())),
        ],
        next=str(found[-1].id) if len(found) == PAGE_SIZE else None,
        is_first=before is None,
    )


async def load_run(request: PageRequest) -> RunPage:
    id = uuid_of(request, "run", "run")
    run = await operations(request).run_record(id)
    change, error = text_of(request, "change"), text_of(request, "error")
    only_errors = choice_of(request, "show", ("errors",))
    after, path = number_of(request), path_of("identity", "runs", id)
    found = await operations(request).items(
        id,
        errors_only=bool(only_errors),
        change=change or None,
        error=error or None,
        after=after,
        limit=PAGE_SIZE,
        reveals=reveals(request),
    )
    is_filtered = bool(change or error or only_errors)
    counts = await _load_counts(request, run, with_errors=not is_filtered and not after)
    return RunPage(
        counts,
        path_of("identity", "systems", run.system),
        _chips(run, change, error, only_errors),
        Listing(
            "Results",
            await _load_item_rows(request, run.system, id, found),
            path,
            filters=[
                FilterField("change", "Change", change),
                FilterField("error", "Error", error),
                FilterField("show", "Show", only_errors),
            ],
            next=str(found[-1].number) if len(found) == PAGE_SIZE else None,
            is_first=not after,
        ),
        is_filtered,
    )


async def load_run_panel(request: PageRequest) -> RunCountsView | None:
    """Show the counts of the attempt that the inspector shows; nothing before the run has begun."""
    step: StepSubject = request.subject
    if step.activity_id is None:
        return None
    try:
        run = await operations(request).run_record(step.activity_id)
    except NotFound:
        return None
    return await _load_counts(request, run, with_errors=True)


async def _load_counts(request: PageRequest, run: RunRecord, *, with_errors: bool) -> RunCountsView:
    errors: Sequence[Item] = ()
    if with_errors and run.counts.get("in_error"):
        errors = await operations(request).items(run.id, errors_only=True, limit=FIRST_ERRORS, reveals=reveals(request))
    return RunCountsView(
        run,
        path_of("identity", "runs", run.id),
        int(run.counts.get("processed", 0)),
        int(run.counts.get("in_error", 0)),
        counts_of(run.counts, "changes"),
        counts_of(run.counts, "types", in_words=False),
        counts_of(run.counts, "exports", in_words=False),
        [_item_row(run.system, each, ()) for each in errors],
    )


async def _load_item_rows(request: PageRequest, system: str, run_id: UUID, found: Sequence[Item]) -> list[ItemRow]:
    numbers = [each.number for each in found]
    entries = await operations(request).item_changes(run_id, numbers, reveals=reveals(request)) if numbers else ()
    subjects: dict[int, list[SubjectChange]] = {}
    for entry in entries:
        title = "Identity" if entry.subject == "identity" else f"Object in {entry.system or system}"
        changes = [FieldChange(name, *before_and_after(diff)) for name, diff in sorted(entry.diff.items())]
        subjects.setdefault(entry.item_number, []).append(SubjectChange(title, changes))
    return [_item_row(system, each, subjects.get(each.number, ())) for each in found]


def _item_row(system: str, item: Item, subjects: Sequence[SubjectChange]) -> ItemRow:
    path = None
    if item.metaverse_id is not None:
        path = path_of("identity", "identities", item.metaverse_id)
    elif item.anchor:
        path = path_of("identity", "objects", system, item.anchor)
    name = item.display or item.anchor or (f"object {item.object_id}" if item.object_id else f"item {item.number}")
    return ItemRow(item, name, path, label_of(item.error or item.change or ""), subjects)


def _row(run: RunRecord) -> RunRow:
    return RunRow(
        run,
        path_of("identity", "runs", run.id),
        path_of("identity", "systems", run.system),
        counts_of(run.counts, "changes"),
        int(run.counts.get("in_error", 0)),
    )


def _chips(run: RunRecord, change: str, error: str, only_errors: str) -> list[CountChip]:
    total, in_error = int(run.counts.get("items", 0)), int(run.counts.get("in_error", 0))
    chips = [CountChip("All", total, {}, not (change or error or only_errors))]
    chips += [
        CountChip(each.label, each.count, {"change": each.name}, change == each.name)
        for each in counts_of(run.counts, "changes")
    ]
    if in_error:
        chips.append(CountChip("In error", in_error, {"show": "errors"}, bool(only_errors), is_error=True))
    chips += [
        CountChip(each.label, each.count, {"error": each.name}, error == each.name, is_error=True)
        for each in counts_of(run.counts, "errors")
    ]
    return chips
