"""Simulator: decisions of the scheduler, clashes, and the report of clock changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.model.definitions.schedules import Misfire, OverlapPolicy, Plan, ScheduleDefinition, misfire_from_fields
from tenuto.model.definitions.steps import Step
from tenuto.model.triggers import Trigger, at, cron, every, manual
from tenuto.simulation.clock_changes import clock_change_effects
from tenuto.simulation.simulator import SimulatedSchedule, Simulation, simulate
from tests.support.errors import raises_code
from tests.support.repetition_counts import times

NOON = datetime(2026, 3, 23, 12, tzinfo=UTC)


def make_schedule(
    trigger: Trigger,
    minutes: float = 1,
    *,
    name: str = "a",
    overlap: str = "skip",
    misfire: Misfire | str | dict[str, Any] = "once",
    steps: Iterable[Any] = (Step("job", "work", queue="default"),),
) -> SimulatedSchedule:
    definition = ScheduleDefinition(
        name, trigger, Plan.from_steps(steps), "", OverlapPolicy(overlap), misfire_from_fields(misfire)
    )
    return SimulatedSchedule(definition, name, minutes * 60)


def run_simulation(*schedules: SimulatedSchedule, minutes: float = 60, **given: Any) -> Simulation:
    return simulate(schedules, NOON, NOON + timedelta(minutes=minutes), **given)


def format_decisions(found: Simulation) -> list[str]:
    return [f"{run.due_at:%H:%M} {run.decision}" for run in found.runs]


def format_time(instant: datetime | None) -> str:
    return "" if instant is None else f"{instant:%H:%M}"


def test_simulation_includes_the_start_and_excludes_the_end() -> None:
    assert format_decisions(run_simulation(make_schedule(every("30m")))) == ["12:00 fired", "12:30 fired"]


def test_simulation_reports_a_skipped_overlapping_run() -> None:
    found = run_simulation(make_schedule(every("10m"), 15))
    assert format_decisions(found)[:4] == ["12:00 fired", "12:10 skipped", "12:20 fired", "12:30 skipped"]
    assert [(clash.kind, format_time(clash.at)) for clash in found.clashes][:2] == [
        ("overlap", "12:10"),
        ("overlap", "12:30"),
    ]
    (total,) = found.totals
    assert (total.due, total.fired, total.skipped, total.busy_seconds) == (6, 3, 3, 45 * 60)


def test_simulated_run_that_ends_when_the_next_is_due_does_not_overlap() -> None:
    assert {str(run.decision) for run in run_simulation(make_schedule(every("10m"), 10)).runs} == {"fired"}


def test_simulation_queues_one_run() -> None:
    found = run_simulation(make_schedule(every("20m"), 30, overlap="queue_one"))
    assert [(format_time(run.due_at), format_time(run.starts_at), str(run.decision)) for run in found.runs] == [
        ("12:00", "12:00", "fired"),
        ("12:20", "12:30", "fired"),
        ("12:40", "", "queued"),
    ]
    assert found.totals[0].waited == 2


def test_simulation_cancels_the_previous_run() -> None:
    found = run_simulation(make_schedule(every("20m"), 30, overlap="cancel_previous"))
    assert [(format_time(run.starts_at), format_time(run.ends_at), run.cut) for run in found.runs] == [
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
def test_simulation_decides_missed_instants_at_the_end_of_an_outage(misfire: Any, expected: list[str]) -> None:
    outage = (NOON + timedelta(minutes=5), NOON + timedelta(minutes=35))
    found = run_simulation(make_schedule(every("10m"), 1, misfire=misfire), outages=[outage])
    assert format_decisions(found) == expected
    assert all(run.starts_at is None or not outage[0] <= run.starts_at < outage[1] for run in found.runs)


def test_simulation_reports_a_shortage_of_queue_slots() -> None:
    two = [Step("job", "x", queue="mail", name="x"), Step("job", "y", queue="mail", name="y")]
    first = make_schedule(at(["12:00"]), 20, name="first", steps=[two])
    other = make_schedule(at(["12:10"]), 20, name="other", steps=[two[0], two[1]])
    (clash,) = run_simulation(first, other, queue_slots={"mail": 2}).clashes
    assert (clash.kind, clash.queue, clash.schedules) == ("slots", "mail", ("first", "other"))
    assert (format_time(clash.at), format_time(clash.until)) == ("12:10", "12:20")
    assert "has 2 slots, and up to 3 are needed" in clash.message
    assert run_simulation(first, other, queue_slots={"mail": 3}).clashes == []
    assert run_simulation(first, other, queue_slots={"default": 1}).clashes == [], "other queues are not checked"


@pytest.mark.parametrize("step", [Step("schedule", "inner"), Step.approval("Pay the salaries?")])
def test_simulated_step_that_waits_needs_no_slot(step: Step) -> None:
    outer = make_schedule(at(["12:00"]), 20, steps=[step])
    assert run_simulation(outer, queue_slots={"default": 0}).clashes == []


def test_simulation_totals_include_manual_schedules() -> None:
    found = run_simulation(make_schedule(manual()))
    assert (found.runs, found.totals[0].due) == ([], 0)


@pytest.mark.slow
def test_simulation_with_too_many_runs_is_rejected_early() -> None:
    with raises_code("simulation.too_many_runs"):
        run_simulation(make_schedule(every("1s"), 0, overlap="allow"), minutes=60 * 24 * 365)


def test_simulation_of_an_empty_period_is_rejected() -> None:
    with raises_code("simulation.range.empty"):
        run_simulation(make_schedule(every("1m")), minutes=0)


@settings(max_examples=times(60, in_a_proof=1200), deadline=None)
@given(
    step=st.integers(1, 40),
    takes=st.floats(0, 90),
    overlap=st.sampled_from(list(OverlapPolicy)),
    late=st.sampled_from(["once", "all", "skip"]),
    outage=st.tuples(st.integers(0, 200), st.integers(1, 90)),
)
def test_simulation_decides_every_due_instant_once(
    step: int, takes: float, overlap: OverlapPolicy, late: str, outage: tuple[int, int]
) -> None:
    down = NOON + timedelta(minutes=outage[0]), NOON + timedelta(minutes=sum(outage))
    trigger = every(f"{step}m", anchor=NOON)
    found = run_simulation(make_schedule(trigger, takes, overlap=overlap, misfire=late), minutes=300, outages=[down])
    end = NOON + timedelta(minutes=300)
    expected = [NOON + timedelta(minutes=n) for n in range(0, 300, step)]
    decidable = [due for due in expected if not (down[0] <= due < down[1] and down[1] >= end)]
    assert [run.due_at for run in found.runs] == decidable
    spans = sorted((run.starts_at, run.ends_at) for run in found.runs if run.starts_at and run.ends_at)
    if overlap is not OverlapPolicy.ALLOW:
        assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


# --- clock changes --------------------------------------------------------------------------------------------------

YEAR = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


def describe_effects(trigger: Trigger) -> list[str]:
    return [effect.message for effect in clock_change_effects("a", trigger, *YEAR)]


def test_clock_change_report_names_missing_and_repeated_wall_times() -> None:
    assert describe_effects(cron("30 1 * * *", zone="Europe/London")) == [
        "on 2026-03-29 the clock of Europe/London is set forward from 01:00 to 02:00: 01:30 does not exist; it runs"
        " once, at 02:00",
        "on 2026-10-25 the clock of Europe/London is set back from 02:00 to 01:00: 01:30 happens twice; it runs once,"
        " the first time",
    ]


def test_clock_change_report_of_a_cron_wildcard_follows_real_time() -> None:
    spring, autumn = describe_effects(cron("*/20 * * * *", zone="Europe/London"))
    assert spring.endswith("01:00, 01:20 and 01:40 do not exist and are skipped")
    assert autumn.endswith("01:00, 01:20 and 01:40 happen twice, and it runs both times")


def test_clock_change_report_is_empty_for_unaffected_triggers() -> None:
    assert describe_effects(cron("30 6 * * *", zone="Europe/London")) == []
    assert describe_effects(cron("30 1 * * *", zone="UTC")) == []
    assert describe_effects(manual()) == []
    assert describe_effects(cron("30 1 * * mon", zone="Europe/London")) == [], "clock changes are on Sundays"


def test_clock_change_report_of_an_interval() -> None:
    assert [words.partition(": ")[2] for words in describe_effects(every("6h", zone="Europe/London"))] == [
        "the interval follows real time: the wall times of its runs shift by 1 h",
        "the interval follows real time: the wall times of its runs shift by 1 h",
    ]
    assert [words.partition(": ")[2] for words in describe_effects(every("30m", zone="Europe/London"))] == [
        "the interval follows real time and runs 46 times that day instead of 48",
        "the interval follows real time and runs 50 times that day instead of 48",
    ]
    night = every("1h", between=("00:00", "04:00"), zone="Europe/London")
    assert [words.partition(": ")[2] for words in describe_effects(night)] == [
        "the interval follows real time and runs 4 times that day instead of 5",
        "the interval follows real time and runs 6 times that day instead of 5",
    ]


def test_simulation_notes_instants_of_an_outage_beyond_the_end() -> None:
    outage = (NOON + timedelta(minutes=25), NOON + timedelta(minutes=90))
    found = run_simulation(make_schedule(every("10m"), 1), make_schedule(manual(), name="b"), outages=[outage])
    assert format_decisions(found) == ["12:00 fired", "12:10 fired", "12:20 fired"]
    assert found.notes == ["3 due instants are decided after the end, when the outage is over: a"]
    (note,) = run_simulation(make_schedule(at(["12:30"]), 1), outages=[outage]).notes
    assert note.startswith("1 due instant is decided after the end")
    assert run_simulation(make_schedule(every("10m"), 1)).notes == []
    with raises_code("simulation.too_many_runs"):
        run_simulation(make_schedule(every("10m"), 1), outages=[(NOON, NOON + timedelta(days=1))], max_runs=2)


BEFORE_THE_START = [(NOON - timedelta(hours=2), NOON - timedelta(hours=1))]
"""An outage without effect; with outages, every schedule is simulated by events."""


@pytest.mark.slow
@settings(max_examples=times(150, in_a_proof=3000), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 90), st.sampled_from([0, 0.5, 1, 5, 20, 45, 90]), st.sampled_from([*OverlapPolicy]),
            st.sampled_from(["once", "all", {"policy": "skip", "grace_seconds": 60}]),
        ),
        min_size=1,
        max_size=6,
    )
)  # fmt: skip
def test_separate_runs_equal_runs_by_events(given: list[tuple[int, float, OverlapPolicy, Any]]) -> None:
    schedules = [
        make_schedule(every(f"{minutes}m"), seconds, name=f"schedule {number}", overlap=overlap, misfire=misfire)
        for number, (minutes, seconds, overlap, misfire) in enumerate(given)
    ]
    slots = {"default": 2}
    assert run_simulation(*schedules, minutes=300, queue_slots=slots) == run_simulation(
        *schedules, minutes=300, queue_slots=slots, outages=BEFORE_THE_START
    )


def test_simulation_names_every_schedule_of_a_shortage() -> None:
    found = run_simulation(
        make_schedule(every("1h"), 30, name="long"),
        make_schedule(every("10m"), 2, name="short"),
        make_schedule(every("20m"), 2, name="third"),
        queue_slots={"default": 1},
    )
    shortages = [(format_time(each.at), format_time(each.until), each.schedules) for each in found.clashes]
    assert shortages == [
        ("12:00", "12:02", ("long", "short", "third")),
        ("12:10", "12:12", ("long", "short")),
        ("12:20", "12:22", ("long", "short", "third")),
        ("12:40", "12:42", ("short", "third")),
    ]
