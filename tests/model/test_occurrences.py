"""What becomes of each due instant (S4, S5): the rules for missed ones, and for those that meet another run."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest

from tenuto.model.occurrences import MAX_LISTED, Decided, Decision, Meeting, due, when_meeting
from tenuto.model.schedules import Misfire, Overlap, misfire_from_fields
from tenuto.model.triggers import Trigger, cron, every
from tests.model.making import NOON

MINUTE = timedelta(minutes=1)
MINUTELY = every("1m")


def decide(now: datetime, misfire: object = "once", trigger: Trigger = MINUTELY) -> list[tuple[float, Decision]]:
    """(minutes after noon, decision), the first instant due being noon."""
    decided = due(trigger, NOON, now, misfire_from_fields(misfire), "").decided
    return [((each.due_at - NOON) / MINUTE, each.decision) for each in decided]


@pytest.mark.parametrize("misfire", ["once", "all", "skip"])
def test_what_is_on_time_fires_whatever_the_rule_and_the_next_run_lies_ahead(misfire: str) -> None:
    found = due(MINUTELY, NOON, NOON, Misfire(misfire), "")  # type: ignore[arg-type]
    assert found.decided == [Decided(NOON, Decision.FIRED)]
    assert found.next_run == NOON + MINUTE


def test_once_runs_the_newest_of_the_missed_and_the_others_say_which_run_stands_for_them() -> None:
    found = due(MINUTELY, NOON, NOON + 3.5 * MINUTE, Misfire(), "")
    assert [each.decision for each in found.decided] == ["coalesced", "coalesced", "coalesced", "fired"]
    assert found.decided[0].reason == "the run due at 2031-05-17 12:03:00 UTC stands for it"
    assert found.next_run == NOON + 4 * MINUTE


def test_all_runs_each_of_the_missed() -> None:
    assert decide(NOON + 2 * MINUTE, "all") == [(0, "fired"), (1, "fired"), (2, "fired")]


def test_all_runs_only_the_last_so_many_and_the_older_ones_say_why_not() -> None:
    rule = {"policy": "all", "max_runs": 2}
    assert decide(NOON + 3 * MINUTE, rule) == [(0, "missed"), (1, "missed"), (2, "fired"), (3, "fired")]
    found = due(MINUTELY, NOON, NOON + 3 * MINUTE, misfire_from_fields(rule), "")
    assert found.decided[0].reason == "only the last 2 missed runs are made up for"


def test_skip_lets_go_what_is_later_than_the_grace_and_says_how_late_it_was() -> None:
    rule = {"policy": "skip", "grace_seconds": 300}
    assert decide(NOON + 6 * MINUTE, rule, every("1h")) == [(0, "missed")]
    found = due(every("1h"), NOON, NOON + 6 * MINUTE, misfire_from_fields(rule), "")
    assert found.decided[0].reason == "0:06:00 late, more than the grace of 0:05:00"
    assert found.next_run is not None
    assert found.next_run > NOON


def test_skip_runs_what_is_within_the_grace() -> None:
    assert decide(NOON + 5 * MINUTE, {"policy": "skip", "grace_seconds": 300}, every("1h")) == [(0, "fired")]


def test_a_grace_shorter_than_a_scheduler_may_sleep_does_not_lose_what_is_on_time() -> None:
    late = NOON + timedelta(seconds=31)
    assert decide(late, {"policy": "skip", "grace_seconds": 1}, every("1h")) == [(0, "fired")]


def test_every_instant_is_decided_once_and_none_is_left_out() -> None:
    for rule in ("once", {"policy": "all", "max_runs": 3}, {"policy": "skip", "grace_seconds": 120}):
        found = decide(NOON + 10 * MINUTE, rule)
        assert [at for at, _ in found] == list(range(11))


@pytest.mark.parametrize("rule", ["once", {"policy": "all", "max_runs": 1000}, "skip"])
@pytest.mark.parametrize("trigger", [every("1s"), cron("* * * * *")], ids=["every second", "every minute"])
def test_a_year_of_downtime_costs_a_bounded_number_of_rows_and_little_time(trigger: Trigger, rule: object) -> None:
    now = NOON + timedelta(days=365)
    began = time.process_time()
    found = due(trigger, NOON, now, misfire_from_fields(rule), "")
    assert time.process_time() - began < 2
    assert len(found.decided) <= MAX_LISTED + 1
    gap, *listed = found.decided
    assert gap.decision is Decision.MISSED
    assert gap.reason == "too many were missed to list each"
    assert gap.until is not None
    assert gap.until < listed[0].due_at, "what the gap stands for is not listed again"
    assert trigger.next_after(gap.until) == listed[0].due_at, "and nothing lies between"
    assert listed[-1].due_at <= now < (found.next_run or now)
    assert listed[-1].decision is Decision.FIRED, "the newest is on time"


def test_a_trigger_that_has_come_to_its_end_has_no_next_run() -> None:
    found = due(every("1m", end="2031-05-17"), NOON, NOON + timedelta(days=1), Misfire(), "")
    assert found.next_run is None
    assert found.decided[-1].due_at < NOON + timedelta(hours=12)
    assert found.decided[-1].decision is Decision.FIRED


# --- meeting another run --------------------------------------------------------------------------------------------

FREE = Meeting(active=False, queued=False)
ACTIVE = Meeting(active=True, queued=False)
BOTH = Meeting(active=True, queued=True)
WAITING = Meeting(active=False, queued=True)


@pytest.mark.parametrize("overlap", list(Overlap))
def test_where_nothing_is_in_the_way_every_rule_lets_it_run(overlap: Overlap) -> None:
    assert when_meeting(overlap, FREE) == (Decision.FIRED, None)


@pytest.mark.parametrize(
    ("overlap", "meeting", "decision", "reason"),
    [
        (Overlap.SKIP, ACTIVE, "skipped", "the previous run is still active"),
        (Overlap.SKIP, WAITING, "skipped", "the previous run is still active"),
        (Overlap.QUEUE_ONE, ACTIVE, "queued", "waits until the previous run has ended"),
        (Overlap.QUEUE_ONE, BOTH, "coalesced", "a run is waiting already"),
        (Overlap.QUEUE_ONE, WAITING, "coalesced", "a run is waiting already"),
        (
            Overlap.CANCEL_PREVIOUS,
            ACTIVE,
            "queued",
            "waits until the previous run, which is being cancelled, has stopped",
        ),
        (Overlap.CANCEL_PREVIOUS, BOTH, "coalesced", "a run is waiting already"),
        (Overlap.ALLOW, BOTH, "fired", None),
    ],
)
def test_every_rule_decides_and_says_why(overlap: Overlap, meeting: Meeting, decision: str, reason: str | None) -> None:
    assert when_meeting(overlap, meeting) == (decision, reason)
