"""What becomes of each due instant (S4, S5): the rules for missed ones, and for those that meet another run."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.model import occurrences
from tenuto.model.occurrences import MAX_LISTED_OCCURRENCES, DecidedOccurrence, Decision, DueOccurrences, OverlapState, decide_due_occurrences, first_undecided_instant, decide_overlap
from tenuto.model.schedules import MisfirePolicy, Misfire, OverlapPolicy, misfire_from_stored_fields, misfire_from_fields
from tenuto.model.triggers import Trigger, at, cron, every
from tests.model.triggers import test_laws as laws
from tests.support.model_values import NOON
from tests.support.proofs import times

MINUTE = timedelta(minutes=1)
MINUTELY = every("1m")


def decide(now: datetime, misfire: object = "once", trigger: Trigger = MINUTELY) -> list[tuple[float, Decision]]:
    """(minutes after noon, decision), the first instant due being noon."""
    decided = decide_due_occurrences(trigger, NOON, now, misfire_from_fields(misfire), "").decided
    return [((each.due_at - NOON) / MINUTE, each.decision) for each in decided]


@pytest.mark.parametrize("misfire", ["once", "all", "skip"])
def test_what_is_on_time_fires_whatever_the_rule_and_the_next_run_lies_ahead(misfire: str) -> None:
    found = decide_due_occurrences(MINUTELY, NOON, NOON, Misfire(misfire), "")  # type: ignore[arg-type]
    assert found.decided == [DecidedOccurrence(NOON, Decision.FIRED)]
    assert found.next_run_at == NOON + MINUTE


def test_once_runs_the_newest_of_the_missed_and_the_others_say_which_run_stands_for_them() -> None:
    found = decide_due_occurrences(MINUTELY, NOON, NOON + 3.5 * MINUTE, Misfire(), "")
    assert [each.decision for each in found.decided] == ["coalesced", "coalesced", "coalesced", "fired"]
    assert found.decided[0].reason == "the run due at 2031-05-17 12:03:00 UTC stands for it"
    assert found.next_run_at == NOON + 4 * MINUTE


def test_all_runs_each_of_the_missed() -> None:
    assert decide(NOON + 2 * MINUTE, "all") == [(0, "fired"), (1, "fired"), (2, "fired")]


def test_all_runs_only_the_last_so_many_and_the_older_ones_say_why_not() -> None:
    rule = {"policy": "all", "max_runs": 2}
    assert decide(NOON + 3 * MINUTE, rule) == [(0, "missed"), (1, "missed"), (2, "fired"), (3, "fired")]
    found = decide_due_occurrences(MINUTELY, NOON, NOON + 3 * MINUTE, misfire_from_fields(rule), "")
    assert found.decided[0].reason == "only the last 2 missed runs are made up for"


def test_skip_lets_go_what_is_later_than_the_grace_and_says_how_late_it_was() -> None:
    rule = {"policy": "skip", "grace_seconds": 300}
    assert decide(NOON + 6 * MINUTE, rule, every("1h")) == [(0, "missed")]
    found = decide_due_occurrences(every("1h"), NOON, NOON + 6 * MINUTE, misfire_from_fields(rule), "")
    assert found.decided[0].reason == "0:06:00 late, more than the grace of 0:05:00"
    assert found.next_run_at is not None
    assert found.next_run_at > NOON


def test_skip_runs_what_is_within_the_grace() -> None:
    assert decide(NOON + 5 * MINUTE, {"policy": "skip", "grace_seconds": 300}, every("1h")) == [(0, "fired")]


def test_a_grace_shorter_than_a_scheduler_may_sleep_does_not_lose_what_is_on_time() -> None:
    stored = misfire_from_stored_fields({"policy": "skip", "grace_seconds": 1})
    (found,) = decide_due_occurrences(every("1h"), NOON, NOON + timedelta(seconds=31), stored, "").decided
    assert found.decision is Decision.FIRED


def test_every_instant_is_decided_once_and_none_is_left_out() -> None:
    for rule in ("once", {"policy": "all", "max_runs": 3}, {"policy": "skip", "grace_seconds": 120}):
        found = decide(NOON + 10 * MINUTE, rule)
        assert [at for at, _ in found] == list(range(11))


@pytest.mark.parametrize("rule", ["once", {"policy": "all", "max_runs": 1000}, "skip"])
@pytest.mark.parametrize("trigger", [every("1s"), cron("* * * * *")], ids=["every second", "every minute"])
def test_a_year_of_downtime_costs_a_bounded_number_of_rows_and_little_time(trigger: Trigger, rule: object) -> None:
    now = NOON + timedelta(days=365)
    began = time.process_time()
    found = decide_due_occurrences(trigger, NOON, now, misfire_from_fields(rule), "")
    assert time.process_time() - began < 2
    assert len(found.decided) <= MAX_LISTED_OCCURRENCES + 1
    gap, *listed = found.decided
    assert gap.decision is Decision.MISSED
    assert gap.reason == "too many were missed to list each"
    assert gap.until is not None
    assert gap.until < listed[0].due_at, "what the gap stands for is not listed again"
    assert trigger.next_after(gap.until) == listed[0].due_at, "and nothing lies between"
    assert listed[-1].due_at <= now < (found.next_run_at or now)
    assert listed[-1].decision is Decision.FIRED, "the newest is on time"


def test_a_trigger_that_has_come_to_its_end_has_no_next_run() -> None:
    found = decide_due_occurrences(every("1m", end="2031-05-17"), NOON, NOON + timedelta(days=1), Misfire(), "")
    assert found.next_run_at is None
    assert found.decided[-1].due_at < NOON + timedelta(hours=12)
    assert found.decided[-1].decision is Decision.FIRED


# --- more than are listed -------------------------------------------------------------------------------------------

YEAR = timedelta(days=366)


def covered_once(found: DueOccurrences, instants: list[datetime]) -> None:
    """Every instant stands in exactly one row, and no row is about nothing."""
    rows = iter(found.decided)
    row = next(rows)
    for instant in instants:
        if instant > (row.until or row.due_at):
            row = next(rows)
        assert row.due_at <= instant <= (row.until or row.due_at), (row, instant)
    assert next(rows, None) is None
    assert len({each.due_at for each in found.decided}) == len(found.decided)


def fired(found: DueOccurrences) -> list[datetime]:
    return [each.due_at for each in found.decided if each.decision is Decision.FIRED]


def all_due(trigger: Trigger, first: datetime, now: datetime, seed: str = "") -> list[datetime]:
    """The slow way: one after the other."""
    instants, instant = [], trigger.next_after(first - timedelta(seconds=1), seed)
    while instant is not None and instant <= now:
        instants.append(instant)
        instant = trigger.next_after(instant, seed)
    return instants


LATE_AT_NIGHT = [
    (cron("* 8-17 * * 1-5"), "2026-11-02T08:00", "2026-11-08T23:00"),
    (cron("*/2 8-17 * * 1-5", zone="Europe/Berlin"), "2026-03-23T06:00", "2026-03-29T02:30"),
    (cron("* 0-4 * * *", zone="America/New_York"), "2026-10-25T00:00", "2026-11-01T23:00"),
    (every("30s", between=("08:00", "18:00")), "2026-11-02T09:00", "2026-11-03T03:00"),
    (every("20s", between=("22:00", "02:00"), days="fri", zone="Europe/Rome"), "2026-10-09T00:00", "2026-10-26T12:00"),
    (every("1m", between=("08:00", "09:00"), days="sat"), "2026-01-01T00:00", "2026-10-09T12:00"),
    (at([f"08:{minute:02}" for minute in range(0, 60, 4)], days="weekdays"), "2026-01-01T00:00", "2026-05-05T06:00"),
    (every("10s", end="2026-01-02"), "2026-01-01T00:00", "2026-12-24T00:00"),
    (cron("* * * * *", excluded=["2026-01-03", "2026-01-04"]), "2026-01-01T00:00", "2026-01-04T23:59"),
]  # fmt: skip


@pytest.mark.parametrize(("trigger", "start", "end"), LATE_AT_NIGHT)
def test_after_an_outage_that_ends_while_the_trigger_is_silent_the_last_of_the_missed_still_run(
    trigger: Trigger, start: str, end: str
) -> None:
    began, now = (datetime.fromisoformat(each).replace(tzinfo=UTC) for each in (start, end))
    instants = all_due(trigger, began, now, "a")
    assert len(instants) > MAX_LISTED_OCCURRENCES + 1
    for rule, to_run in (
        (Misfire(), 1),
        (Misfire(MisfirePolicy.ALL), 100),
        (Misfire(MisfirePolicy.ALL, max_runs=MAX_LISTED_OCCURRENCES), MAX_LISTED_OCCURRENCES),
        (Misfire(MisfirePolicy.SKIP, grace_seconds=YEAR.total_seconds()), 1),
    ):
        found = decide_due_occurrences(trigger, instants[0], now, rule, "a")
        assert fired(found) == instants[-to_run:]
        assert len(found.decided) == MAX_LISTED_OCCURRENCES + 1
        assert found.next_run_at == trigger.next_after(now, "a")
        covered_once(found, instants)


def test_once_runs_once_though_the_times_lie_closer_at_the_end_than_at_the_start() -> None:
    trigger = cron("* * * 11 *", start="2026-11-01", excluded=[f"2026-11-{day:02}" for day in range(2, 20)])
    now = datetime(2026, 11, 29, tzinfo=UTC)
    instants = all_due(trigger, datetime(2026, 11, 1, 12, tzinfo=UTC), now)
    found = decide_due_occurrences(trigger, instants[0], now, Misfire(), "")
    assert fired(found) == [instants[-1]]
    assert found.next_run_at == now + MINUTE
    covered_once(found, instants)


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
def test_no_row_says_up_to_when_before_there_are_more_than_get_a_row(more: int) -> None:
    now = NOON + (MAX_LISTED_OCCURRENCES + more - 1) * MINUTE
    found = decide_due_occurrences(MINUTELY, NOON, now, Misfire(), "")
    assert [each.until for each in found.decided if each.until is not None] == ([NOON + MINUTE] if more == 2 else [])
    covered_once(found, all_due(MINUTELY, NOON, now))


def crowds() -> st.SearchStrategy[Trigger]:
    """Triggers with many runs close to each other and long silences."""
    hours = st.tuples(st.integers(0, 23), st.integers(0, 23)).map(sorted)
    weekdays = st.lists(st.sampled_from(["mon", "tue", "wed", "thu", "fri", "sat", "sun"]), min_size=1, max_size=3)
    zone, jitter = st.sampled_from(laws.ZONES), st.sampled_from([0, 0, 90])
    return st.one_of(
        st.builds(
            lambda step, span, days, zone, jitter: cron(
                f"*/{step} {span[0]}-{span[1]} * * {','.join(days)}", zone=zone, jitter=jitter
            ),
            st.integers(1, 30), hours, weekdays, zone, jitter,
        ),
        st.builds(
            lambda step, span, days, zone, jitter: every(
                step, between=(f"{span[0]:02}:00", f"{span[1]:02}:40"), days=days, zone=zone, jitter=jitter
            ),
            st.integers(20, 3000), hours, weekdays, zone, jitter,
        ),
    )  # fmt: skip


RULES: dict[MisfirePolicy, Callable[[int, int], Misfire]] = {
    MisfirePolicy.ONCE: lambda _max_runs, _grace: Misfire(),
    MisfirePolicy.ALL: lambda max_runs, _grace: Misfire(MisfirePolicy.ALL, max_runs=max_runs),
    MisfirePolicy.SKIP: lambda _max_runs, grace: Misfire(MisfirePolicy.SKIP, grace_seconds=grace),
}


@settings(max_examples=times(150, in_a_proof=3000), deadline=None)
@given(
    st.one_of(crowds(), laws.triggers()),
    laws.instants,
    laws.seeds,
    st.integers(1, 400),
    st.floats(0, 0.99),
    st.sampled_from(list(MisfirePolicy)),
    st.integers(1, 20),
    st.integers(60, 366 * 86_400),
)
def test_however_many_were_missed_the_last_are_run_and_each_stands_in_one_row(
    trigger: Trigger, start: datetime, seed: str, missed: int, pause: float, policy: MisfirePolicy, max_runs: int, grace: int
) -> None:
    instants: list[datetime] = []
    following = trigger.next_after(start, seed)
    while following is not None and len(instants) < missed:
        instants.append(following)
        following = trigger.next_after(following, seed)
    if not instants:
        return
    now = instants[-1] + pause * ((following - instants[-1]) if following else YEAR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(occurrences, "MAX_LISTED", 20)  # so that few are many
        found = decide_due_occurrences(trigger, instants[0], now, RULES[policy](max_runs, grace), seed)
    covered_once(found, instants)
    assert len(found.decided) <= 21
    assert found.next_run_at == following
    if policy is MisfirePolicy.ALL:
        assert fired(found) == instants[-max_runs:]
    elif policy is MisfirePolicy.ONCE or now - instants[-1] <= timedelta(seconds=grace):
        assert fired(found) == instants[-1:]
    else:
        assert fired(found) == []


@pytest.mark.parametrize(
    "trigger",
    [
        every("1s", end="2031-06-01"),
        every("1s", between=("23:00", "01:00"), days="mon", zone="Europe/Berlin"),
        cron("* * 1-31/15 5 *"),
    ],
    ids=["came to its end", "once a week", "once a year"],
)
def test_years_of_downtime_that_end_in_a_silence_cost_little_time(trigger: Trigger) -> None:
    now, first = NOON + 5 * YEAR, trigger.next_after(NOON)
    assert first is not None
    began = time.process_time()
    found = decide_due_occurrences(trigger, first, now, Misfire(), "")
    assert time.process_time() - began < 3
    (run,) = fired(found)
    assert trigger.next_after(run) == found.next_run_at
    assert len(found.decided) == MAX_LISTED_OCCURRENCES + 1


@pytest.mark.parametrize(
    ("decided_until", "first"), [(None, 0), (-1, 0), (0, 1), (0.5, 1), (1, 2)], ids=lambda value: str(value)
)
def test_what_is_decided_is_not_planned_again(decided_until: float | None, first: int) -> None:
    until = None if decided_until is None else NOON + decided_until * MINUTE
    assert first_undecided_instant(MINUTELY, NOON, until, "") == NOON + first * MINUTE


# --- meeting another run --------------------------------------------------------------------------------------------

FREE = OverlapState(has_active=False, has_queued=False)
ACTIVE = OverlapState(has_active=True, has_queued=False)
BOTH = OverlapState(has_active=True, has_queued=True)
WAITING = OverlapState(has_active=False, has_queued=True)


@pytest.mark.parametrize("overlap", list(OverlapPolicy))
def test_where_nothing_is_in_the_way_every_rule_lets_it_run(overlap: OverlapPolicy) -> None:
    assert decide_overlap(overlap, FREE) == (Decision.FIRED, None)


@pytest.mark.parametrize(
    ("overlap", "meeting", "decision", "reason"),
    [
        (OverlapPolicy.SKIP, ACTIVE, "skipped", "the previous run is still active"),
        (OverlapPolicy.SKIP, WAITING, "skipped", "the previous run is still active"),
        (OverlapPolicy.QUEUE_ONE, ACTIVE, "queued", "waits until the previous run has ended"),
        (OverlapPolicy.QUEUE_ONE, BOTH, "coalesced", "a run is waiting already"),
        (OverlapPolicy.QUEUE_ONE, WAITING, "coalesced", "a run is waiting already"),
        (
            OverlapPolicy.CANCEL_PREVIOUS,
            ACTIVE,
            "queued",
            "waits until the previous run, which is being cancelled, has stopped",
        ),
        (OverlapPolicy.CANCEL_PREVIOUS, BOTH, "coalesced", "a run is waiting already"),
        (OverlapPolicy.ALLOW, BOTH, "fired", None),
    ],
)
def test_every_rule_decides_and_says_why(overlap: OverlapPolicy, meeting: OverlapState, decision: str, reason: str | None) -> None:
    assert decide_overlap(overlap, meeting) == (decision, reason)
