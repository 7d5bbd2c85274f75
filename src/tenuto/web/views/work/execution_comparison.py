"""``/executions/compare``: two executions side by side, step by step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.app import Tenuto
from tenuto.model.filters import quote_value
from tenuto.operations.work.execution_timeline import ExecutionTimeline, GroupWindow, TimelineStep
from tenuto.operations.work.executions import ExecutionDetails
from tenuto.presentation.execution_states import execution_state
from tenuto.presentation.text_formats import format_duration
from tenuto.web.components.version_history import ChangedField, find_changes
from tenuto.web.page import PageRoute, PageView, Reader
from tenuto.web.views.work.attempt_panel import may_see_texts
from tenuto.web.views.work.execution import find_step_state

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MAX_WINDOWS = 20
_EQUAL_SECONDS = 0.05
_VERSION_COUNT = 100
_COMPARED_INPUTS = 20


@dataclass(frozen=True, slots=True)
class Side:
    """A step in one of the two executions."""

    state: str
    number: int
    """Position in the plan, counted from 1."""
    waited_seconds: float | None
    ran_seconds: float | None
    attempt_count: int
    error: str | None


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A step of both executions; None where the plan does not have it."""

    name: str
    first: Side | None
    second: Side | None
    delta_seconds: float | None
    x: float
    """Start of the bar of the difference, 0 to 100 with 50 as no difference."""
    width: float
    is_slower: bool

    @property
    def is_different(self) -> bool:
        return self.first is None or self.second is None or self.first.state != self.second.state

    @property
    def delta(self) -> str:
        """The difference of the run times, with its sign."""
        if self.delta_seconds is None:
            return ""
        if abs(self.delta_seconds) < _EQUAL_SECONDS:
            return "same"
        return f"{'+' if self.delta_seconds > 0 else '-'}{format_duration(abs(self.delta_seconds))}"


@dataclass(frozen=True, slots=True)
class ExecutionComparison:
    """Two executions."""

    first: ExecutionDetails
    second: ExecutionDetails | None
    """None if there is no execution to compare with."""
    first_state: str
    second_state: str
    steps: Sequence[ComparedStep]
    changes: Sequence[ChangedField]
    """What differs between the versions of the schedule."""
    inputs: Sequence[ChangedField]
    """Steps whose input differs."""


@router.get("/executions/compare")
async def show_comparison(
    request: Request,
    call: Reader,
    a: Annotated[UUID, Query(description="Id of the execution.")],
    b: Annotated[UUID | None, Query(description="Id of the other execution.")] = None,
) -> Response:
    """Show an execution beside another one; by default the last successful one of its schedule."""
    view = PageView(request, call)
    allowed = may_see_texts(view.viewer.role, hidden=view.app.settings.web_hide_inputs)
    model = await view.shared(
        ("comparison", a, b, allowed), lambda app: load_comparison(app, a, b, texts_allowed=allowed)
    )
    return await view.render(
        "pages/execution_comparison.html",
        model,
        title=f"Compare {model.first.schedule_name}",
        current="/executions",
        modules=("forms",),
    )


async def load_comparison(app: Tenuto, a: UUID, b: UUID | None, *, texts_allowed: bool) -> ExecutionComparison:
    """Load the model of the page."""
    first = await app.executions.get(a)
    if b is None:
        b = await _find_last_success(app, first)
    if b is None:
        return ExecutionComparison(first, None, execution_state(first), "", (), (), ())
    second = await app.executions.get(b)
    timelines = await asyncio.gather(*(_load_timeline(app, each) for each in (first, second)))
    steps = _compare_steps(*(_read_sides(*each) for each in zip(timelines, (first, second), strict=True)))
    changes: Sequence[ChangedField] = ()
    if first.version != second.version and first.schedule_name == second.schedule_name:
        versions = await app.schedules.versions(first.schedule_name, limit=_VERSION_COUNT)
        known = {each.version: each.after for each in versions}
        if first.version in known and second.version in known:
            changes = find_changes(known[second.version], known[first.version])
    inputs = await _compare_inputs(app, first, second) if texts_allowed else ()
    return ExecutionComparison(first, second, execution_state(first), execution_state(second), steps, changes, inputs)


async def _compare_inputs(app: Tenuto, first: ExecutionDetails, second: ExecutionDetails) -> Sequence[ChangedField]:
    """Return the first steps whose input differs, as lines of a diff."""
    ids = {step.name: step.activity_id for step in second.steps}
    pairs = [
        (step.name, step.activity_id, other)
        for step in first.steps
        if step.activity_id is not None and (other := ids.get(step.name)) is not None
    ][:_COMPARED_INPUTS]
    found = await asyncio.gather(*(app.activity(id) for _, *both in pairs for id in both))
    changes = []
    for (name, *_), mine, theirs in zip(pairs, found[::2], found[1::2], strict=True):
        if mine.input != theirs.input:
            old, new = (json.dumps(each.input, ensure_ascii=False, sort_keys=True) for each in (theirs, mine))
            changes.append(ChangedField(name, (f"- {old}", f"+ {new}")))
    return changes


async def _find_last_success(app: Tenuto, first: ExecutionDetails) -> UUID | None:
    found = await app.executions.list(f"state:completed schedule:{quote_value(first.schedule_name)}", limit=2)
    return next((each.id for each in found if each.id != first.id), None)


async def _load_timeline(app: Tenuto, record: ExecutionDetails) -> ExecutionTimeline:
    windows = [GroupWindow(index) for index in range(min(record.group_count, _MAX_WINDOWS))]
    return await app.executions.timeline(record.id, windows=windows, find=None)


def _read_sides(timeline: ExecutionTimeline, record: ExecutionDetails) -> dict[str, Side]:
    return {step.name: _read_side(step, group.index, record) for group in timeline.groups for step in group.steps}


def _read_side(step: TimelineStep, group: int, record: ExecutionDetails) -> Side:
    ran = [each.duration_seconds for each in step.attempts if each.duration_seconds is not None]
    waited = [each.wait_seconds for each in step.attempts if each.wait_seconds is not None]
    return Side(
        state=find_step_state(step, group, record),
        number=step.number + 1,
        waited_seconds=sum(waited) if waited else None,
        ran_seconds=sum(ran) if ran else None,
        attempt_count=len(step.attempts),
        error=step.attempts[-1].message if step.attempts else None,
    )


def _compare_steps(first: dict[str, Side], second: dict[str, Side]) -> list[ComparedStep]:
    names = list(dict.fromkeys([*first, *second]))
    deltas = {name: _difference(first.get(name), second.get(name)) for name in names}
    largest = max((abs(each) for each in deltas.values() if each is not None), default=0.0)
    steps = []
    for name in names:
        delta = deltas[name]
        width = round(abs(delta) / largest * 50, 3) if delta is not None and largest >= _EQUAL_SECONDS else 0.0
        is_slower = delta is not None and delta > 0
        x = 50.0 if is_slower else 50.0 - width
        steps.append(ComparedStep(name, first.get(name), second.get(name), delta, x, width, is_slower))
    return steps


def _difference(first: Side | None, second: Side | None) -> float | None:
    if first is None or second is None or first.ran_seconds is None or second.ran_seconds is None:
        return None
    return first.ran_seconds - second.ran_seconds
