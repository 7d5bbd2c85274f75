"""Logs of attempts, also of running ones: a request watches the log, and the worker sends its lines meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tenuto.errors import Invalid
from tenuto.model.work.tasks import ActivityState
from tenuto.postgres.database import Database
from tenuto.store.work import activities, live_logs
from tenuto.store.work.live_logs import LiveText


@dataclass(frozen=True, slots=True)
class AttemptLogText:
    """A part of the log of an attempt. Offsets count characters."""

    text: str
    first_offset: int
    """Number of characters of the log before the text."""
    next_offset: int
    """Offset from which the log continues."""
    is_complete: bool
    """Whether the attempt has ended, so that nothing follows."""


async def read_attempt_log(
    database: Database, watch_database: Database, id: UUID, tail: int | None, from_offset: int | None
) -> AttemptLogText | None:
    """Return a part of the log of an attempt; None if there is no such attempt.

    The log of a running attempt is watched in ``watch_database``. That is no act of a person and leaves no audit entry.
    """
    if tail is not None and from_offset is not None:
        raise Invalid("give tail or an offset, not both", code="activity.log.range", field="tail")
    if (tail or 0) < 0 or (from_offset or 0) < 0:
        raise Invalid("tail and offset must not be negative", code="activity.log.range", field="tail")
    found = await activities.load_log(database, id)
    if found is None:
        return None
    if found.state is not ActivityState.RUNNING:
        return select_text([LiveText(0, found.log or "")], tail, from_offset, is_complete=found.ended_at is not None)
    await live_logs.watch(watch_database, [id])
    texts = await live_logs.list_texts(database, id, from_offset or 0)
    return select_text(texts, tail, from_offset, is_complete=False)


def select_text(
    texts: Sequence[LiveText], tail: int | None, from_offset: int | None, *, is_complete: bool
) -> AttemptLogText:
    """Join the parts of a log, name the gaps between them, and cut the part that was asked for."""
    start = from_offset or 0
    parts: list[str] = []
    end = texts[0].first_offset if texts and from_offset is None else start
    first = end
    for each in texts:
        if each.first_offset > end:
            parts.append(f"… {each.first_offset - end:,} characters are shown when the attempt has ended …\n")
        parts.append(each.text[max(0, end - each.first_offset) :])
        end = max(end, each.first_offset + len(each.text))
    text = "".join(parts)
    if tail is not None:
        lines = text.splitlines(keepends=True)[-tail:] if tail else []
        first, text = end - sum(map(len, lines)), "".join(lines)
    return AttemptLogText(text, first, end, is_complete)
