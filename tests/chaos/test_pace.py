"""A chaos run ends whatever its requested size, with as much of everything as requested."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.run_size import DEFAULT_COUNT, TASKS_PER_KILL, Pace, Progress, RunSize

counts = st.none() | st.integers(1, 100) | st.integers(1, 1_000_000)
sizes = st.builds(RunSize, seconds=st.none() | st.floats(0, 5000), tasks=counts, kills=counts)
progresses = st.builds(
    Progress,
    seconds=st.floats(0, 10_000),
    tasks=st.integers(0, 100) | st.integers(0, 1_100_000),
    kills=st.integers(0, 100) | st.integers(0, 1_100_000),
    every_fault_occurred=st.booleans(),
)


def is_load_complete(wanted: RunSize, so_far: Progress) -> bool:
    """The load is complete then, whether or not it may continue."""
    return wanted.tasks is not None and so_far.tasks >= wanted.tasks


@given(sizes, progresses)
def test_pace_lets_load_or_faults_continue_until_the_run_is_over_or_only_time_is_missing(
    wanted: RunSize, so_far: Progress
) -> None:
    pace = Pace(wanted, lambda: so_far)
    load = pace.load_may_continue() and not is_load_complete(wanted, so_far)
    timely = Pace(wanted, lambda: Progress(1e9, so_far.tasks, so_far.kills, so_far.every_fault_occurred))
    assert load or pace.faults_may_continue() or timely.is_over()


@given(st.builds(RunSize, st.none(), counts, counts), st.integers(1, 1000), st.integers(0, 12))
def test_pace_ends_with_the_requested_size(wanted: RunSize, at_once: int, kills_at_once: int) -> None:
    """The load submits ``at_once`` tasks per step, one fault kills ``kills_at_once``, every other one none."""
    tasks = kills = faults = 0
    at_once = max(at_once, (wanted.tasks or 0) // 500, (wanted.kills or 0) * TASKS_PER_KILL // 500)
    kills_at_once = max(1, kills_at_once, (wanted.kills or 0) // 500)
    pace = Pace(wanted, lambda: Progress(0.0, tasks, kills, faults >= 13))
    for _ in range(10_000):
        if pace.is_over():
            break
        if pace.load_may_continue() and not is_load_complete(wanted, Progress(tasks=tasks)):
            tasks += at_once
        if pace.faults_may_continue():
            faults += 1
            kills += kills_at_once * (faults % 2)
    assert pace.is_over()
    assert (tasks >= (wanted.tasks or 0), kills >= (wanted.kills or 0), faults >= 13) == (True, True, True)


def test_pace_distributes_counted_kills_and_tasks_evenly() -> None:
    wanted = RunSize(tasks=1000, kills=100)
    for so_far, load, faults in [
        (Progress(tasks=500, kills=50), True, True),
        (Progress(tasks=600, kills=50), False, True),
        (Progress(tasks=500, kills=60), True, False),
        (Progress(tasks=1000, kills=10), False, True),
    ]:
        pace = Pace(wanted, lambda so_far=so_far: so_far)  # type: ignore[misc]
        assert (pace.load_may_continue(), pace.faults_may_continue()) == (load, faults), so_far


def test_pace_derives_kills_from_tasks_if_one_of_them_is_not_counted() -> None:
    for wanted in (RunSize(), RunSize(tasks=10_000), RunSize(kills=10_000)):
        for kills, may in [(DEFAULT_COUNT, True), (DEFAULT_COUNT + 100, True), (DEFAULT_COUNT + 101, False)]:
            so_far = Progress(tasks=100 * TASKS_PER_KILL, kills=kills)
            assert Pace(wanted, lambda so_far=so_far: so_far).faults_may_continue() == may  # type: ignore[misc]
            assert Pace(wanted, lambda so_far=so_far: so_far).load_may_continue()  # type: ignore[misc]
