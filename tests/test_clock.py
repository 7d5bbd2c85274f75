"""Time (W2): one room reads it, from a timer that runs on while the machine sleeps."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from tenuto.clock import DatabaseClock, steady


def test_the_steady_timer_runs_on_where_the_ordinary_one_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does while a machine is suspended: a lease that ran out meanwhile must be seen to have run out."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    clock = DatabaseClock()
    clock.heard(datetime(2027, 6, 15, tzinfo=UTC))
    before, told = steady(), clock.now()
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        pass
    assert steady() - before >= 0.01
    assert clock.now() - told >= timedelta(seconds=0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="clocks can be set apart only there")
def test_the_steady_timer_counts_the_time_the_machine_was_suspended() -> None:
    """In a namespace in which the machine seems to have slept for a day."""
    code = "import time; from tenuto.clock import steady; print(round((steady() - time.monotonic()) / 3600))"
    apart = ["unshare", "--time", "--boottime", "86400", "--fork", sys.executable, "-c", code]
    done = subprocess.run(apart, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"not allowed here: {done.stderr}")
    here = round((steady() - time.monotonic()) / 3600)
    assert int(done.stdout) == here + 24


@pytest.mark.parametrize(
    ("off", "under_way", "moves"),
    [
        pytest.param(0, 5, False, id="right, and the answer took long"),
        pytest.param(-3, 5, False, id="behind by less than the answer took: it may be right"),
        pytest.param(-7, 5, True, id="behind by more than that"),
        pytest.param(1, 5, True, id="ahead of what was true when the answer came"),
        pytest.param(-0.01, 0, True, id="behind, and the answer took no time"),
    ],
)
def test_an_answer_that_was_long_under_way_does_not_move_a_clock_that_may_be_right(
    off: float, under_way: float, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database looked at its clock as it was asked, and the answer was under way for so long."""
    monkeypatch.setattr("tenuto.clock.steady", lambda: 1000.0)
    monkeypatch.setattr(time, "clock_gettime", lambda _timer: 1000.0)
    clock, now = DatabaseClock(), datetime(2027, 6, 15, tzinfo=UTC)
    clock.heard(now + timedelta(seconds=off))
    before = clock.now()
    told = now - timedelta(seconds=under_way)
    clock.heard(told, asked_at=1000.0 - under_way)
    assert clock.now() == (told if moves else before)
