"""What would fire when: the scheduler's own rules played through, clashes found, changes of the clock named."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model.schedules import ScheduleDefinition, Misfire, OverlapPolicy, Plan, misfire_from_fields
from tenuto.model.steps import Step
from tenuto.model.triggers import Trigger, at, cron, every, manual
from tenuto.simulation.dst_report import clock_change_effects
from tenuto.simulation.simulator import Simulation, SimulatedSchedule, simulate
from tests.support.proofs import times

NOON = datetime(2026, 3, 23, 12, tzinfo=UTC)


def subject(
    trigger: Trigger,
    minutes: float = 1,
    *,
    name: str = "a",
    overlap: str = "skip",
    misfire: Misfire | str | dict[str, Any] = "once",
    steps: Iterable[Any] = (Step("job", "work", queue="default"),),
) -> SimulatedSchedule:
    definition = ScheduleDefinition(name, trigger, Plan.from_steps(steps), "", OverlapPolicy(overlap), misfire_from_fields(misfire))
    return SimulatedSchedule(definition, name, minutes * 60)


def play(*subjects: SimulatedSchedule, minutes: float = 60, **given: Any) -> Simulation:
    return simulate(subjects, NOON, NOON + timedelta(minutes=minutes), **given)


def decided(found: Simulation) -> list[str]:
    return [f"{run.due_at:%H:%M} {run.decision}" for run in found.runs]


def clock(instant: datetime | None) -> str:
    return "" if instant is None else f"{instant:%H:%M}"


def test_the_beginning_counts_and_the_end_does_not() -> None:
    assert decided(play(subject(every("30m")))) == ["12:00 fired", "12:30 fired"]


def test_a_run_that_is_due_while_the_previous_is_active_is_skipped_and_named() -> None:
    found = play(subject(every("10m"), 15))
    assert decided(found)[:4] == ["12:00 fired", "12:10 skipped", "12:20 fired", "12:30 skipped"]
    assert [(clash.kind, clock(clash.at)) for clash in found.clashes][:2] == [
        ("overlap", "12:10"),
        ("overlap", "12:30"),
    ]
    (total,) = found.totals
    assert (total.due, total.fired, total.skipped, total.busy_seconds) == (6, 3, 3, 45 * 60)


def test_one_that_ends_when_the_next_is_due_is_not_in_its_way() -> None:
    assert {str(run.decision) for run in play(subject(every("10m"), 10)).runs} == {"fired"}


def test_one_waits_if_the_rule_is_to_queue_one() -> None:
    found = play(subject(every("20m"), 30, overlap="queue_one"))
    assert [(clock(run.due_at), clock(run.starts_at), str(run.decision)) for run in found.runs] == [
        ("12:00", "12:00", "fired"),
        ("12:20", "12:30", "fired"),
        ("12:40", "", "queued"),
    ]
    assert found.totals[0].waited == 2


def test_the_previous_is_cut_if_the_rule_is_to_cancel_it() -> None:
    found = play(subject(every("20m"), 30, overlap="cancel_previous"))
    assert [(clock(run.starts_at), clock(run.ends_at), run.cut) for run in found.runs] == [
        ("12:00", "12:20", True),
        ("12:20", "12:40", True),
        ("12:40", "13:10", False),
    ]


@pytest.mark.parametrize(
    ("misfire", "expected"),
    [
        ("once", ["12:00 fired", "12:10 coalesced", "12:20 coalesced", "12:30 fired", "12:40 fired", "12:50 fired"]),
        (
            {"policy": "all", "max_runs": 2},
            ["12:00 fired", "12:10 missed", "12:20 fired", "12:30 fired", "12:40 fired", "12:50 fired"],
        ),
        (
            {"policy": "skip", "grace_seconds": 600},
            ["12:00 fired", "12:10 missed", "12:20 missed", "12:30 fired", "12:40 fired", "12:50 fired"],
        ),
    ],
)
def test_what_falls_into_an_outage_is_decided_at_its_end_by_the_misfire_rule(misfire: Any, expected: list[str]) -> None:
    outage = (NOON + timedelta(minutes=5), NOON + timedelta(minutes=35))
    found = play(subject(every("10m"), 1, misfire=misfire), outages=[outage])
    assert decided(found) == expected
    assert all(run.starts_at is None or not outage[0] <= run.starts_at < outage[1] for run in found.runs)


def test_two_schedules_that_want_more_than_a_queue_has_room_for_clash() -> None:
    two = [Step("job", "x", queue="mail", name="x"), Step("job", "y", queue="mail", name="y")]
    first = subject(at(["12:00"]), 20, name="first", steps=[two])
    other = subject(at(["12:10"]), 20, name="other", steps=[two[0], two[1]])
    (clash,) = play(first, other, room={"mail": 2}).clashes
    assert (clash.kind, clash.queue, clash.schedules) == ("slots", "mail", ("first", "other"))
    assert (clock(clash.at), clock(clash.until)) == ("12:10", "12:20")
    assert "room for 2 at a time, and up to 3 are wanted" in clash.words
    assert play(first, other, room={"mail": 3}).clashes == []
    assert play(first, other, room={"default": 1}).clashes == [], "a queue of which nothing is known is not judged"


def test_a_step_that_runs_a_schedule_takes_no_slot() -> None:
    outer = subject(at(["12:00"]), 20, steps=[Step("schedule", "inner")])
    assert play(outer, room={"default": 0}).clashes == []


def test_manual_schedules_never_fire_and_are_in_the_totals() -> None:
    found = play(subject(manual()))
    assert (found.runs, found.totals[0].due) == ([], 0)


def test_too_many_runs_are_refused_before_they_are_all_made() -> None:
    with pytest.raises(Invalid, match="more than 100,000 runs"):
        play(subject(every("1s"), 0, overlap="allow"), minutes=60 * 24 * 365)


def test_an_end_before_the_beginning_is_refused() -> None:
    with pytest.raises(Invalid, match="not after"):
        play(subject(every("1m")), minutes=0)


@settings(max_examples=times(60, in_a_proof=1200), deadline=None)
@given(
    step=st.integers(1, 40),
    takes=st.floats(0, 90),
    overlap=st.sampled_from(list(OverlapPolicy)),
    late=st.sampled_from(["once", "all", "skip"]),
    outage=st.tuples(st.integers(0, 200), st.integers(1, 90)),
)
def test_every_due_instant_is_decided_once_and_alone_means_alone(
    step: int, takes: float, overlap: OverlapPolicy, late: str, outage: tuple[int, int]
) -> None:
    down = NOON + timedelta(minutes=outage[0]), NOON + timedelta(minutes=sum(outage))
    trigger = every(f"{step}m", anchor=NOON)
    found = play(subject(trigger, takes, overlap=overlap, misfire=late), minutes=300, outages=[down])
    end = NOON + timedelta(minutes=300)
    expected = [NOON + timedelta(minutes=n) for n in range(0, 300, step)]
    decidable = [due for due in expected if not (down[0] <= due < down[1] and down[1] >= end)]
    assert [run.due_at for run in found.runs] == decidable
    spans = sorted((run.starts_at, run.ends_at) for run in found.runs if run.starts_at and run.ends_at)
    if overlap is not OverlapPolicy.ALLOW:
        assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


# --- changes of the clock -------------------------------------------------------------------------------------------

YEAR = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


def told(trigger: Trigger) -> list[str]:
    return [effect.words for effect in clock_change_effects("a", trigger, *YEAR)]


def test_a_wall_time_that_is_not_or_is_twice_is_named() -> None:
    assert told(cron("30 1 * * *", zone="Europe/London")) == [
        "on 2026-03-29 the clock of Europe/London jumps ahead from 01:00 to 02:00: 01:30 does not exist; it runs once,"
        " at 02:00",
        "on 2026-10-25 the clock of Europe/London is set back from 02:00 to 01:00: 01:30 happens twice; it runs once,"
        " the first time",
    ]


def test_a_line_with_a_wildcard_follows_real_time() -> None:
    spring, autumn = told(cron("*/20 * * * *", zone="Europe/London"))
    assert spring.endswith("01:00, 01:20 and 01:40 do not exist, and are left out")
    assert autumn.endswith("01:00, 01:20 and 01:40 happen twice, and it runs both times")


def test_what_lies_elsewhere_feels_nothing() -> None:
    assert told(cron("30 6 * * *", zone="Europe/London")) == []
    assert told(cron("30 1 * * *", zone="UTC")) == []
    assert told(manual()) == []
    assert told(cron("30 1 * * mon", zone="Europe/London")) == [], "the clock is changed on Sundays"


def test_an_interval_says_that_its_wall_times_move_or_that_a_day_has_more_or_fewer_runs() -> None:
    assert [words.partition(": ")[2] for words in told(every("6h", zone="Europe/London"))] == [
        "it keeps to real time: on the wall its runs move by 1 h",
        "it keeps to real time: on the wall its runs move by 1 h",
    ]
    assert [words.partition(": ")[2] for words in told(every("30m", zone="Europe/London"))] == [
        "it keeps to real time, and runs 46 times that day instead of 48",
        "it keeps to real time, and runs 50 times that day instead of 48",
    ]
    night = every("1h", between=("00:00", "04:00"), zone="Europe/London")
    assert [words.partition(": ")[2] for words in told(night)] == [
        "it keeps to real time, and runs 4 times that day instead of 5",
        "it keeps to real time, and runs 6 times that day instead of 5",
    ]


def test_what_falls_into_an_outage_beyond_the_end_is_counted_in_a_note() -> None:
    outage = (NOON + timedelta(minutes=25), NOON + timedelta(minutes=90))
    found = play(subject(every("10m"), 1), subject(manual(), name="b"), outages=[outage])
    assert decided(found) == ["12:00 fired", "12:10 fired", "12:20 fired"]
    assert found.notes == ["3 due instants are decided after the end, when the outage is over: a"]
    (note,) = play(subject(at(["12:30"]), 1), outages=[outage]).notes
    assert note.startswith("1 due instant is decided after the end")
    assert play(subject(every("10m"), 1)).notes == []
    with pytest.raises(Invalid, match="more than 2 runs"):
        play(subject(every("10m"), 1), outages=[(NOON, NOON + timedelta(days=1))], most=2)
