"""One attempt in detail, as the inspector of an execution and the page of an activity show it: tabs of its texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import Query

from tenuto.app import Tenuto
from tenuto.model.access.actors import Role
from tenuto.model.definitions.steps import APPROVAL
from tenuto.presentation.work_views import progress_text
from tenuto.store.work.activities import ActivityDetails
from tenuto.web.components.attempt_text import (
    MAX_LINES,
    MAX_SHOWN_LINES,
    Frame,
    LogText,
    escape_invisible,
    parse_log,
    parse_stack,
    shorten_document,
    visible_text,
)

Tab = Literal["log", "input", "output", "error", "attempts", "why", "panel"]
"""``panel`` is the tab of an extension."""
LineCount = Annotated[int, Query(ge=1, le=MAX_SHOWN_LINES)]
"""Parameter ``lines``: how many of the last lines of a log are shown."""
TABS: tuple[Tab, ...] = ("log", "input", "output", "error", "attempts", "why")


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress that an attempt has reported."""

    percent: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """A stored value as text."""

    text: str
    is_cut: bool


@dataclass(frozen=True, slots=True)
class AttemptPanel:
    """The texts of one attempt."""

    activity: ActivityDetails
    tab: Tab
    progress: Progress | None
    log: LogText
    input: Document | None
    output: Document | None
    error_type: str
    error_message: str
    frames: Sequence[Frame]

    @property
    def topic(self) -> str:
        """Topic of the log while it is shown and grows."""
        return f"log:{self.activity.id}" if self.tab == "log" and self.is_open else ""

    @property
    def is_open(self) -> bool:
        return self.activity.ended_at is None


async def load_panel(app: Tenuto, activity: ActivityDetails, tab: Tab | None, lines: int = MAX_LINES) -> AttemptPanel:
    """Return the panel of an attempt; while it runs, with the log that its worker has sent so far."""
    shown = choose_tab(activity, tab)
    if shown == "log" and activity.ended_at is None and activity.started_at is not None:
        activity = replace(activity, log=(await app.activity_log(activity.id)).text)
    return make_panel(activity, shown, lines)


def choose_tab(activity: ActivityDetails, tab: Tab | None) -> Tab:
    """Return the tab: the chosen one, else the error of a failed attempt, else the log."""
    return tab or ("error" if activity.error and activity.ended_at else "log")


def make_panel(activity: ActivityDetails, tab: Tab, lines: int = MAX_LINES) -> AttemptPanel:
    """Return the panel of an attempt."""
    error = activity.error if isinstance(activity.error, dict) else {}
    return AttemptPanel(
        activity,
        tab,
        # That of an approval is as of its request; the card of the approval has the decisions since.
        read_progress(activity.progress) if activity.ended_at is None and activity.kind != APPROVAL else None,
        parse_log(activity.log, activity.started_at or activity.claimed_at or activity.created_at, lines),
        _document(activity.input),
        _document(activity.output),
        visible_text(str(error.get("type", ""))),
        visible_text(str(error.get("message", ""))),
        parse_stack(error.get("stack")),
    )


def read_progress(progress: Any) -> Progress | None:
    """Return reported progress with its share, if the total is known."""
    if not isinstance(progress, dict):
        return None
    done, total = progress.get("done"), progress.get("total")
    percent = None
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        percent = round(min(max(done / total, 0.0), 1.0) * 100, 1)
    return Progress(percent, progress_text(progress) or "")


def _document(value: Any) -> Document | None:
    if value is None:
        return None
    text, is_cut = shorten_document(json.dumps(value, ensure_ascii=False, indent=2, default=str))
    return Document(escape_invisible(text), is_cut)


def may_see_texts(role: Role, *, hidden: bool) -> bool:
    """Return whether a role may see inputs, outputs and logs (setting ``web_hide_inputs``)."""
    return role >= Role.OPERATOR or not hidden
