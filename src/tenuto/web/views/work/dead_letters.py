"""``/dead-letters``: open dead letters by kind of failure, the list of them, and the page of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff

from fastapi import APIRouter, Request, Response

from tenuto.api.list_pages import After
from tenuto.api.parameters import Id
from tenuto.app import Tenuto
from tenuto.model.filter_keys import DEAD_LETTER_KEYS
from tenuto.model.filters import DEFAULT_WINDOW
from tenuto.store.reports.failure_groups import FailureGroupDetails
from tenuto.store.work.activities import ActivityDetails
from tenuto.store.work.dead_letters import DeadLetterDetails, DeadLetterRecord
from tenuto.web.components.definition_forms import find_schema
from tenuto.web.components.filters import (
    FilteredList,
    FilterText,
    QuickFilter,
    Window,
    load_filtered_list,
    read_filter,
)
from tenuto.web.components.schema_forms import ArgumentsForm, make_arguments_form
from tenuto.web.page import LIST_MODULES, PageRoute, PageView, Reader
from tenuto.web.views.work.attempt_panel import AttemptPanel, make_panel, may_see_texts

router = APIRouter(route_class=PageRoute, include_in_schema=False)

QUICK = (
    QuickFilter("Awaiting intervention", "", "attention"),
    QuickFilter("Retried", "state:retried", "retry"),
    QuickFilter("Acknowledged", "state:acknowledged", "done"),
)
_SHOWN_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class DeadLetterList:
    """Groups of open dead letters, and a list of dead letters."""

    groups: Sequence[FailureGroupDetails]
    list: FilteredList[DeadLetterRecord]
    last_resolved: DeadLetterRecord | None

    @property
    def open_count(self) -> int:
        return sum(group.dead_letter_count for group in self.groups)


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """One dead letter."""

    record: DeadLetterDetails
    panel: AttemptPanel | None
    attempts: Sequence[ActivityDetails]
    same_failure: Sequence[DeadLetterRecord]
    """Resolved dead letters with the same failure."""
    texts_allowed: bool
    retry_form: ArgumentsForm
    changed_input: Sequence[str]
    """Diff of the old and the new input, if it was retried with another one."""

    @property
    def is_open(self) -> bool:
        return self.record.state == "awaiting_intervention"


@router.get("/dead-letters")
async def show_dead_letters(
    request: Request, call: Reader, q: FilterText = "", after: After = None, window: Window = DEFAULT_WINDOW
) -> Response:
    """Show open dead letters by failure, and a list."""
    view = PageView(request, call)
    zone = view.viewer.zone_name
    model = await view.shared(
        ("dead letters", q, after, zone, window), lambda app: load_dead_letters(app, q, after, zone, window)
    )
    return await view.render(
        "pages/dead_letters.html",
        model,
        title=f"Dead letters ({model.open_count:,})",
        current="/dead-letters",
        modules=LIST_MODULES,
        status=422 if model.list.bar.error else 200,
    )


async def load_dead_letters(app: Tenuto, q: str, after: str | None, zone: str, window: int) -> DeadLetterList:
    """Load the model of the page."""
    now = (await app.open()).clock.now()
    found, bar = read_filter(DEAD_LETTER_KEYS, "/dead-letters", q, now, zone, QUICK, window)
    listed, groups = await asyncio.gather(
        load_filtered_list(found, bar, after, app.dead_letters.list, app.dead_letters.count_of_each, lambda each: each),
        app.dead_letters.groups(limit=50),
    )
    resolved: Sequence[DeadLetterRecord] = ()
    if not groups:
        resolved = await app.dead_letters.list("-state:awaiting_intervention", state=None, limit=1)
    return DeadLetterList(groups, listed, resolved[0] if resolved else None)


@router.get("/dead-letters/{id}")
async def show_dead_letter(request: Request, call: Reader, id: Id) -> Response:
    """Show a dead letter."""
    view = PageView(request, call)
    allowed = may_see_texts(view.viewer.role, hidden=view.app.settings.web_hide_inputs)

    async def load(app: Tenuto) -> DeadLetterPage:
        record = await app.dead_letters.get(id)
        same = await app.dead_letters.list(
            "-state:awaiting_intervention", state=None, fingerprint=record.fingerprint, limit=5
        )
        attempts = record.attempts[-_SHOWN_ATTEMPTS:]
        panel = make_panel(record.attempts[-1], "error") if record.attempts else None
        schema, _ = find_schema(app, record.kind, record.name)
        form = make_arguments_form("input", schema, record.input if isinstance(record.input, dict) else None)
        changed = await _load_changed_input(app, record) if allowed else ()
        others = [each for each in same if each.id != id]
        return DeadLetterPage(record, panel, attempts, others, allowed, form, changed)

    model = await view.shared(("dead letter", id, allowed), load)
    return await view.render(
        "pages/dead_letter.html",
        model,
        title=f"Dead letter of {model.record.external_id or model.record.name}",
        current="/dead-letters",
        modules=("forms",),
    )


async def _load_changed_input(app: Tenuto, record: DeadLetterDetails) -> Sequence[str]:
    """Return the lines in which the input of the retry differs; none if it is equal or was removed."""
    if record.retry_task_id is None:
        return ()
    attempts = await app.attempts(record.retry_task_id)
    if not attempts or attempts[0].input == record.input:
        return ()
    old, new = (
        json.dumps(each, ensure_ascii=False, indent=2).splitlines() for each in (record.input, attempts[0].input)
    )
    return [line for line in unified_diff(old, new, n=3, lineterm="") if not line.startswith(("---", "+++", "@@"))]
