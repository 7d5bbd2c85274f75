"""``/dead-letters``: open dead letters by kind of failure, the list of them, and the page of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from fastapi import APIRouter, Request, Response

from tenuto.api.list_pages import After
from tenuto.api.parameters import Id
from tenuto.app import Tenuto
from tenuto.errors import NotFound
from tenuto.model.filter_keys import DEAD_LETTER_KEYS
from tenuto.model.filters import DEFAULT_WINDOW
from tenuto.presentation.descriptions import describe_on_dead_letter, describe_policy
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
    retry: ActivityDetails | None
    """The last attempt of its retry; None if it was not retried, or retention has removed the attempts."""
    policies: Sequence[tuple[str, str]]
    """Name and value of the policies that its manifest has now."""

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
        retries = await _load_retries(app, record)
        changed = compare_inputs(record.input, retries[0].input) if allowed and retries else ()
        others = [each for each in same if each.id != id]
        policies = await _load_policies(app, record.external_id)
        return DeadLetterPage(
            record, panel, attempts, others, allowed, form, changed, retries[-1] if retries else None, policies
        )

    model = await view.shared(("dead letter", id, allowed), load)
    return await view.render(
        "pages/dead_letter.html",
        model,
        title=f"Dead letter of {model.record.external_id or model.record.name}",
        current="/dead-letters",
        modules=("forms",),
    )


async def _load_retries(app: Tenuto, record: DeadLetterDetails) -> Sequence[ActivityDetails]:
    """Return the attempts of its retry; none if it was not retried or retention has removed them."""
    if record.retry_task_id is None:
        return ()
    with suppress(NotFound):
        return await app.attempts(record.retry_task_id)
    return ()


def compare_inputs(before: Any, after: Any) -> Sequence[str]:
    """Return the lines in which two inputs differ; none if they are equal."""
    if before == after:
        return ()
    old, new = (json.dumps(each, ensure_ascii=False, indent=2).splitlines() for each in (before, after))
    return [line for line in unified_diff(old, new, n=3, lineterm="") if not line.startswith(("---", "+++", "@@"))]


async def _load_policies(app: Tenuto, external_id: str) -> Sequence[tuple[str, str]]:
    """Return what happens when a run of the manifest fails; nothing if it has no manifest, or that was deleted."""
    if not external_id:
        return ()
    try:
        stored = await app.manifests.get(external_id)
    except NotFound:
        return ()
    fields = stored.manifest.to_fields()
    policies = [("Policy", describe_policy(fields.get("policy") or {}))]
    if fields.get("on_dead_letter"):
        policies.append(("On dead letter", describe_on_dead_letter(fields["on_dead_letter"])))
    return policies
