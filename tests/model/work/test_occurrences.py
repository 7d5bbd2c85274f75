"""Occurrences (S4, S5): decisions for due instants by misfire policy and overlap policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.model.definitions.schedules import (
    Misfire,
    MisfirePolicy,
    OverlapPolicy,
    misfire_from_fields,
    misfire_from_stored_fields,
)
from tenuto.model.triggers import Trigger, at, cron, every
from tenuto.model.work.occurrences import (
    MAX_LISTED_OCCURRENCES,
    DecidedOccurrence,
    Decision,
    DueOccurrences,
    OverlapState,
    decide_due_occurrences,
    decide_overlap,
    first_undecided_instant,
)
from tests.model.triggers import test_trigger_properties as properties
from tests.support.model_values import NOON
from tests.support.repetition_counts import times

MINUTE = timedelta(minutes=1)
MINUTELY = every("1m")


def decide(now: datetime, misfire: object = "once", trigger: Trigger = MINUTELY) -> list[tuple[float, Decision]]:
    """(minutes after noon, decision), the first instant due being noon."""
    decided = decide_due_occurrences(trigger, NOON, now, misfire_from_fields(misfire), "").decided
    return [((each.due_at - NOON) / MINUTE, each.decision) for each in decided]


@pytest.mark.parametrize("misfire", ["once", "all", "skip"])
def test_instant_on_time_fires_under_every_misfire_policy(misfire: str) -> None:
    found = decide_due_occurrences(MINUTELY, NOON, NOON, Misfire(misfire), "")  # type: ignore[arg-type]
    assert found.decided == [DecidedOccurrence(NOON, Decision.FIRED)]
    assert found.next_run_at == NOON + MINUTE


def test_misfire_once_fires_the_newest_missed_instant_and_coalesces_the_others() -> None:
    found = decide_due_occurrences(MINUTELY, NOON, NOON + 3.5 * MINUTE, Misfire(), "")
    assert [each.decision for each in found.decided] == ["coalesced", "coalesced", "coalesced", "fired"]
    assert found.decided[0].reason == "covered by the run due at 2031-05-17 12:03:00 UTC"
    assert found.next_run_at == NOON + 4 * MINUTE


def test_misfire_all_fires_each_missed_instant() -> None:
    assert decide(NOON + 2 * MINUTE, "all") == [(0, "fired"), (1, "fired"), (2, "fired")]


def test_misfire_all_fires_at_most_max_runs_of_the_newest() -> None:
    policy = {"policy": "all", "max_runs": 2}
    assert decide(NOON + 3 * MINUTE, policy) == [(0, "missed"), (1, "missed"), (2, "fired"), (3, "fired")]
    found = decide_due_occurrences(MINUTELY, NOON, NOON + 3 * MINUTE, misfire_from_fields(policy), "")
    assert found.decided[0].reason == "only the last 2 missed runs are made up for"


def test_misfire_skip_misses_an_instant_later_than_the_grace_period() -> None:
    policy = {"policy": "skip", "grace_seconds": 300}
    assert decide(NOON + 6 * MINUTE, policy, every("1h")) == [(0, "missed")]
    found = decide_due_occurrences(every("1h"), NOON, NOON + 6 * MINUTE, misfire_from_fields(policy), "")
    assert found.decided[0].reason == "0:06:00 late, more than the grace of 0:05:00"
    assert found.next_run_at is not None
    assert found.next_run_at > NOON


def test_misfire_skip_fires_an_instant_within_the_grace_period() -> None:
    assert decide(NOON + 5 * MINUTE, {"policy": "skip", "grace_seconds": 300}, every("1h")) == [(0, "fired")]


def test_stored_grace_shorter_than_a_minute_does_not_miss_instants_on_time() -> None:
    stored = misfire_from_stored_fields({"policy": "skip", "grace_seconds": 1})
    (found,) = decide_due_occurrences(every("1h"), NOON, NOON + timedelta(seconds=31), stored, "").decided
    assert found.decision is Decision.FIRED


def test_every_due_instant_gets_one_decision() -> None:
    for policy in ("once", {"policy": "all", "max_runs": 3}, {"policy": "skip", "grace_seconds": 120}):
        found = decide(NOON + 10 * MINUTE, policy)
        assert [at for at, _ in found] == list(range(11))


@pytest.mark.parametrize("policy", ["once", {"policy": "all", "max_runs": 1000}, "skip"])
@pytest.mark.parametrize("trigger", [every("1s"), cron("* * * * *")], ids=["every second", "every minute"])
def test_decisions_after_a_year_of_downtime_are_bounded_in_rows_and_time(trigger: Trigger, policy: object) -> None:
    now = NOON + timedelta(days=365)
    started = time.process_time()
    found = decide_due_occurrences(trigger, NOON, now, misfire_from_fields(policy), "")
    assert time.process_time() - started < 2
    assert len(found.decided) <= MAX_LISTED_OCCURRENCES + 1
    gap, *listed = found.decided
    assert gap.decision is Decision.MISSED
    assert gap.reason == "too many were missed to list each"
    assert gap.until is not None
    assert gap.until < listed[0].due_at, "instants of the gap are not listed again"
    assert trigger.next_after(gap.until) == listed[0].due_at, "no instant lies between gap and list"
    assert listed[-1].due_at <= now < (found.next_run_at or now)
    assert listed[-1].decision is Decision.FIRED, "the newest is on time"


def test_ended_trigger_has_no_next_run_after_due_instants() -> None:
    found = decide_due_occurrences(every("1m", end="2031-05-17"), NOON, NOON + timedelta(days=1), Misfire(), "")
    assert found.next_run_at is None
    assert found.decided[-1].due_at < NOON + timedelta(hours=12)
    assert found.decided[-1].decision is Decision.FIRED


# --- more instants than are listed ----------------------------------------------------------------------------------

YEAR = timedelta(days=366)


def assert_covered_once(found: DueOccurrences, instants: list[datetime]) -> None:
    """Check that every instant is covered by exactly one row and no row covers nothing."""
    rows = iter(found.decided)
    row = next(rows)
    for instant in instants:
        if instant > (row.until or row.due_at):
            row = next(rows)
        assert row.due_at <= instant <= (row.until or row.due_at), (row, instant)
    assert next(rows, None) is None
    assert len({each.due_at for each in found.decided}) == len(found.decided)


def fired_instants(found: DueOccurrences) -> list[datetime]:
    return [each.due_at for each in found.decided if each.decision is Decision.FIRED]


def list_due_instants(trigger: Trigger, first: datetime, now: datetime, seed: str = "") -> list[datetime]:
    """Return all due instants by evaluating one after the other."""
    instants, instant = [], trigger.next_after(first - timedelta(seconds=1), seed)
    while instant is not None and instant <= now:
        instants.append(instant)
        instant = trigger.next_after(instant, seed)
    return instants


OUTAGES_ENDING_IN_IDLE_PERIODS = [
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


@pytest.mark.parametrize(("trigger", "start", "end"), OUTAGES_ENDING_IN_IDLE_PERIODS)
def test_newest_missed_instants_fire_after_an_outage_that_ends_in_an_idle_period(
    trigger: Trigger, start: str, end: str
) -> None:
    began, now = (datetime.fromisoformat(each).replace(tzinfo=UTC) for each in (start, end))
    instants = list_due_instants(trigger, began, now, "a")
    assert len(instants) > MAX_LISTED_OCCURRENCES + 1
    for policy, to_run in (
        (Misfire(), 1),
        (Misfire(MisfirePolicy.ALL), 100),
        (Misfire(MisfirePolicy.ALL, max_runs=MAX_LISTED_OCCURRENCES), MAX_LISTED_OCCURRENCES),
        (Misfire(MisfirePolicy.SKIP, grace_seconds=YEAR.total_seconds()), 1),
    ):
        found = decide_due_occurrences(trigger, instants[0], now, policy, "a")
        assert fired_instants(found) == instants[-to_run:]
        assert len(found.decided) == MAX_LISTED_OCCURRENCES + 1
        assert found.next_run_at == trigger.next_after(now, "a")
        assert_covered_once(found, instants)


def test_misfire_once_fires_once_when_instants_are_denser_at_the_end() -> None:
    trigger = cron("* * * 11 *", start="2026-11-01", excluded=[f"2026-11-{day:02}" for day in range(2, 20)])
    now = datetime(2026, 11, 29, tzinfo=UTC)
    instants = list_due_instants(trigger, datetime(2026, 11, 1, 12, tzinfo=UTC), now)
    found = decide_due_occurrences(trigger, instants[0], now, Misfire(), "")
    assert fired_instants(found) == [instants[-1]]
    assert found.next_run_at == now + MINUTE
    assert_covered_once(found, instants)


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
def test_summary_row_appears_only_above_the_listing_limit(more: int) -> None:
    now = NOON + (MAX_LISTED_OCCURRENCES + more - 1) * MINUTE
    found = decide_due_occurrences(MINUTELY, NOON, now, Misfire(), "")
    assert [each.until for each in found.decided if each.until is not None] == ([NOON + MINUTE] if more == 2 else [])
    assert_covered_once(found, list_due_instants(MINUTELY, NOON, now))


def dense_triggers() -> st.SearchStrategy[Trigger]:
    """Triggers with dense runs and long idle periods."""
    hours = st.tuples(st.integers(0, 23), st.integers(0, 23)).map(sorted)
    weekdays = st.lists(st.sampled_from(["mon", "tue", "wed", "thu", "fri", "sat", "sun"]), min_size=1, max_size=3)
    zone, jitter = st.sampled_from(properties.ZONES), st.sampled_from([0, 0, 90])
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


MISFIRES: dict[MisfirePolicy, Callable[[int, int], Misfire]] = {
    MisfirePolicy.ONCE: lambda _max_runs, _grace: Misfire(),
    MisfirePolicy.ALL: lambda max_runs, _grace: Misfire(MisfirePolicy.ALL, max_runs=max_runs),
    MisfirePolicy.SKIP: lambda _max_runs, grace: Misfire(MisfirePolicy.SKIP, grace_seconds=grace),
}


@pytest.mark.slow
@settings(max_examples=times(150, in_a_proof=3000), deadline=None)
@given(
    st.one_of(dense_triggers(), properties.triggers()),
    properties.instants,
    properties.seeds,
    st.integers(1, 400),
    st.floats(0, 0.99),
    st.sampled_from(list(MisfirePolicy)),
    st.integers(1, 20),
    st.integers(60, 366 * 86_400),
)
def test_every_missed_instant_is_covered_by_one_row_and_the_newest_fire(
    trigger: Trigger,
    start: datetime,
    seed: str,
    missed: int,
    pause: float,
    policy: MisfirePolicy,
    max_runs: int,
    grace: int,
) -> None:
    instants: list[datetime] = []
    following = trigger.next_after(start, seed)
    while following is not None and len(instants) < missed:
        instants.append(following)
        following = trigger.next_after(following, seed)
    if not instants:
        return
    now = instants[-1] + pause * ((following - instants[-1]) if following else YEAR)
    misfire = MISFIRES[policy](max_runs, grace)
    found = decide_due_occurrences(trigger, instants[0], now, misfire, seed, max_listed=20)
    assert_covered_once(found, instants)
    assert len(found.decided) <= 21
    assert found.next_run_at == following
    if policy is MisfirePolicy.ALL:
        assert fired_instants(found) == instants[-max_runs:]
    elif policy is MisfirePolicy.ONCE or now - instants[-1] <= timedelta(seconds=grace):
        assert fired_instants(found) == instants[-1:]
    else:
        assert fired_instants(found) == []


@pytest.mark.parametrize(
    "trigger",
    [
        every("1s", end="2031-06-01"),
        every("1s", between=("23:00", "01:00"), days="mon", zone="Europe/Berlin"),
        cron("* * 1-31/15 5 *"),
    ],
    ids=["ended", "once a week", "once a year"],
)
def test_decisions_after_years_of_downtime_and_an_idle_period_are_fast(trigger: Trigger) -> None:
    now, first = NOON + 5 * YEAR, trigger.next_after(NOON)
    assert first is not None
    started = time.process_time()
    found = decide_due_occurrences(trigger, first, now, Misfire(), "")
    assert time.process_time() - started < 3
    (run,) = fired_instants(found)
    assert trigger.next_after(run) == found.next_run_at
    assert len(found.decided) == MAX_LISTED_OCCURRENCES + 1


@pytest.mark.parametrize(
    ("decided_until", "first"), [(None, 0), (-1, 0), (0, 1), (0.5, 1), (1, 2)], ids=lambda value: str(value)
)
def test_decided_instant_is_not_decided_twice(decided_until: float | None, first: int) -> None:
    until = None if decided_until is None else NOON + decided_until * MINUTE
    assert first_undecided_instant(MINUTELY, NOON, until, "") == NOON + first * MINUTE


# --- overlap policy -------------------------------------------------------------------------------------------------

NO_RUN = OverlapState(has_active=False, has_queued=False)
ACTIVE = OverlapState(has_active=True, has_queued=False)
BOTH = OverlapState(has_active=True, has_queued=True)
QUEUED = OverlapState(has_active=False, has_queued=True)


@pytest.mark.parametrize("overlap", list(OverlapPolicy))
def test_every_overlap_policy_fires_without_active_runs(overlap: OverlapPolicy) -> None:
    assert decide_overlap(overlap, NO_RUN) == (Decision.FIRED, None)


@pytest.mark.parametrize(
    ("overlap", "state", "decision", "reason"),
    [
        (OverlapPolicy.SKIP, ACTIVE, "skipped", "the previous run is still active"),
        (OverlapPolicy.SKIP, QUEUED, "skipped", "the previous run is still active"),
        (OverlapPolicy.QUEUE_ONE, ACTIVE, "queued", "waits until the previous run has ended"),
        (OverlapPolicy.QUEUE_ONE, BOTH, "coalesced", "a run is waiting already"),
        (OverlapPolicy.QUEUE_ONE, QUEUED, "coalesced", "a run is waiting already"),
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
def test_overlap_policy_decision_and_reason(
    overlap: OverlapPolicy, state: OverlapState, decision: str, reason: str | None
) -> None:
    assert decide_overlap(overlap, state) == (decision, reason)
