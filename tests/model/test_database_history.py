"""Whether a database still has what a process saw acknowledged."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tenuto.model.lost_commits import FoundHistory, HistoryVerdict, SeenHistory, judge_history

AT = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("system", "timeline", "number", "verdict"),
    [
        ("a/1", 2, 10, HistoryVerdict.SAME),
        ("a/1", 2, 11, HistoryVerdict.SAME),  # the reply to its newest mark was lost
        ("a/1", 3, 10, HistoryVerdict.PROMOTED),
        ("a/1", 3, 9, HistoryVerdict.LOST_COMMITS),
        ("a/1", 2, 9, HistoryVerdict.LOST_COMMITS),  # a snapshot of the disk was restored
        ("a/1", 1, 10, HistoryVerdict.FORMER_PRIMARY),
        ("a/1", 1, 99, HistoryVerdict.FORMER_PRIMARY),
        ("b/1", 1, 10, HistoryVerdict.PROMOTED),  # upgraded
        ("b/1", 1, 9, HistoryVerdict.LOST_COMMITS),  # restored from a dump
    ],
)
def test_history_is_compared_with_what_a_process_has_seen(
    system: str, timeline: int, number: int, verdict: HistoryVerdict
) -> None:
    assert judge_history(SeenHistory("a/1", 2, 10, AT), FoundHistory(system, timeline, number, AT)) is verdict
