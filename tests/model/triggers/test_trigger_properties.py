"""Properties of all triggers, with generated options."""

from __future__ import annotations

import time as clock
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tenuto.errors import Invalid
from tenuto.model.triggers import Trigger, at, cron, every, trigger_from_json
from tenuto.model.triggers.calendar_limits import CalendarOptions
from tests.model.triggers.cron_lines import cron_lines
from tests.support.repetition_counts import times

ZONES = ["UTC", "Europe/London", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia"]
ZONES += ["Asia/Kathmandu", "America/St_Johns", "Africa/Cairo", "Antarctica/Troll", "America/Havana"]

instants = st.datetimes(datetime(2009, 1, 1), datetime(2033, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
dates = st.dates(date(2010, 1, 1), date(2032, 1, 1))
seeds = st.sampled_from(["", "nightly", "0198-ab"])
days = st.lists(st.sampled_from(["mon", "tue", "wed", "thu", "fri", "sat", "sun"]), min_size=1)
hours = st.times().map(lambda time: f"{time:%H:%M}")


@st.composite
def limits(draw: st.DrawFn) -> CalendarOptions:
    chosen = CalendarOptions(zone=draw(st.sampled_from(ZONES)), excluded=draw(st.lists(dates, max_size=5)))
    if draw(st.booleans()):
        chosen["start"] = draw(dates)
    if draw(st.booleans()):
        chosen["end"] = draw(dates)
    chosen["jitter"] = draw(st.sampled_from([0, 0, 30, 3600]))
    return chosen


@st.composite
def makings(draw: st.DrawFn) -> Trigger | None:
    """A trigger, or None if the generated options were rejected because it never fires."""
    kind, bounds = draw(st.sampled_from(["cron", "hours", "interval"])), draw(limits())
    try:
        if kind == "cron":
            return cron(draw(cron_lines()), **bounds)
        if kind == "hours":
            return at(draw(st.lists(hours, min_size=1, max_size=5)), days=draw(days), **bounds)
        window = draw(st.none() | st.tuples(hours, hours))
        anchor = draw(st.none() | instants)
        return every(draw(st.integers(1, 400_000)), between=window, days=draw(days), anchor=anchor, **bounds)
    except Invalid:
        return None


def triggers() -> SearchStrategy[Trigger]:
    return makings().filter(lambda trigger: trigger is not None).map(lambda trigger: trigger or every(1))


@pytest.mark.slow
@settings(max_examples=times(120, in_a_proof=2400), deadline=None)
@given(triggers(), instants, seeds)
def test_trigger_next_run_is_later_and_in_utc(trigger: Trigger, instant: datetime, seed: str) -> None:
    run = trigger.next_after(instant, seed)
    assert run is None or (run > instant and run.tzinfo is UTC and run.microsecond == 0)


@pytest.mark.slow
@settings(max_examples=times(120, in_a_proof=2400), deadline=None)
@given(triggers(), instants, instants, seeds)
def test_trigger_next_run_is_monotonic(trigger: Trigger, one: datetime, other: datetime, seed: str) -> None:
    early, late = sorted((one, other))
    first, second = trigger.next_after(early, seed), trigger.next_after(late, seed)
    if first is not None and second is not None:
        assert first <= second
        assert first == second or first <= late


@pytest.mark.slow
@settings(max_examples=times(70, in_a_proof=1400), deadline=None)
@given(triggers(), instants, seeds)
def test_trigger_preview_equals_repeated_next_runs(trigger: Trigger, instant: datetime, seed: str) -> None:
    runs = trigger.preview(instant, 6, seed)
    assert all(earlier < later for earlier, later in pairwise(runs))
    asked = instant
    for run in runs:
        assert trigger.next_after(asked, seed) == run
        asked = run
    if len(runs) < 6:
        assert trigger.next_after(asked, seed) is None


@settings(max_examples=times(70, in_a_proof=1400), deadline=None)
@given(triggers(), instants, seeds)
def test_trigger_runs_stay_within_its_dates(trigger: Trigger, instant: datetime, seed: str) -> None:
    fields = trigger.to_fields()
    for run in trigger.preview(instant, 4, seed):
        day = run.astimezone(ZoneInfo(fields["zone"])).date().isoformat()
        if fields["zone"] != "America/St_Johns":  # where a day used to begin, end and begin again
            assert fields.get("start", "0000") <= day <= fields.get("end", "9999")
            assert day not in fields.get("excluded", [])


@settings(max_examples=times(70, in_a_proof=1400), deadline=None)
@given(triggers())
def test_trigger_description_and_json_round_trip(trigger: Trigger) -> None:
    words = trigger.describe()
    assert words[0].isupper()
    assert "  " not in words
    again = trigger_from_json(trigger.to_json())
    assert again == trigger
    assert again.describe() == words


@settings(max_examples=times(200, in_a_proof=4000), deadline=None)
@given(st.text(alphabet="0123456789*/-,@ lwmonjafu#?", max_size=40))
def test_any_text_is_a_cron_line_or_rejected(text: str) -> None:
    try:
        trigger = cron(text)
    except Invalid:
        return
    assert trigger.next_after(datetime(2031, 5, 17, tzinfo=UTC))


def test_trigger_next_run_takes_less_than_a_millisecond() -> None:
    """Typically ten microseconds; the bound allows for a busy machine."""
    kinds: list[Trigger] = [
        cron("0 2 * * *", zone="Europe/London"),
        cron("*/5 * * * *", zone="Europe/London"),
        at(["06:00", "18:30"], days="weekdays", zone="Europe/London"),
        every("15m", between=("22:00", "06:00"), zone="Europe/London"),
    ]
    instant = datetime(2031, 5, 17, 12, tzinfo=UTC)
    for trigger in kinds:
        trigger.preview(instant, 50)
        began = clock.process_time()
        trigger.preview(instant, 500)
        assert (clock.process_time() - began) / 500 < 0.000_5


def test_trigger_search_without_result_ends_soon() -> None:
    worst: list[Trigger] = [
        every("24h", between=("22:00", "22:01"), anchor="2031-01-01T22:00:30Z", end="2031-01-03"),
        cron("* * * * *", excluded=[date(2031, 5, 18) + timedelta(days=number) for number in range(500)], jitter=60),
    ]
    for trigger in worst:
        began = clock.process_time()
        trigger.next_after(datetime(2031, 5, 17, 12, tzinfo=UTC), "seed")
        assert clock.process_time() - began < 0.5


@st.composite
def unrestricted_triggers(draw: st.DrawFn) -> Trigger:
    """A trigger on every date, whose runs of a period are computed together."""
    zone, kind = draw(st.sampled_from(ZONES)), draw(st.sampled_from(["cron", "hours", "interval"]))
    if kind == "cron":
        return cron(
            draw(st.sampled_from(["*/7 * * * *", "0 2 * * *", "30 1 * * mon-fri", "15,45 */3 1-9 * *"])), zone=zone
        )
    if kind == "hours":
        return at(draw(st.lists(hours, min_size=1, max_size=5)), days=draw(days), zone=zone)
    return every(draw(st.integers(60, 400_000)), days=draw(st.none() | days), zone=zone)


def search_one_by_one(trigger: Trigger, after: datetime, until: datetime, seed: str) -> list[datetime]:
    found = []
    run = trigger.next_after(after, seed)
    while run is not None and run <= until:
        found.append(run)
        run = trigger.next_after(run, seed)
    return found


@pytest.mark.slow
@settings(max_examples=times(200, in_a_proof=4000), deadline=None)
@given(triggers() | unrestricted_triggers(), instants, st.timedeltas(timedelta(), timedelta(days=4)), seeds)
def test_runs_between_equal_single_searches(trigger: Trigger, after: datetime, span: timedelta, seed: str) -> None:
    span = min(span, timedelta(hours=2)) if trigger.preview(after, 3)[-1:] < [after + timedelta(minutes=10)] else span
    expected = search_one_by_one(trigger, after, after + span, seed)
    assert list(trigger.runs_between(after, after + span, seed)) == expected


@pytest.mark.parametrize("zone", ["Europe/London", "America/New_York", "Pacific/Apia", "UTC"])
@pytest.mark.parametrize("make", [lambda zone: cron("*/20 * * * *", zone=zone), lambda zone: at(["01:30"], zone=zone)])
def test_runs_between_equal_single_searches_around_clock_changes(zone: str, make: Any) -> None:
    trigger = make(zone)
    for start in (
        datetime(2026, 3, 5, tzinfo=UTC),
        datetime(2026, 10, 20, tzinfo=UTC),
        datetime(2011, 12, 27, tzinfo=UTC),
    ):
        until = start + timedelta(days=28)
        assert list(trigger.runs_between(start, until)) == search_one_by_one(trigger, start, until, "")
