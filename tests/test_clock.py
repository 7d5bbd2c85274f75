"""Clocks (W2): the monotonic clock continues during suspension, and the database clock is synchronised."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from tenuto.clock import DatabaseClock, monotonic_seconds


def test_monotonic_clock_runs_while_time_monotonic_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """As during suspension of the machine: a lease that expired meanwhile must be recognised."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    clock = DatabaseClock()
    clock.synchronize(datetime(2027, 6, 15, tzinfo=UTC))
    before, clock_before = monotonic_seconds(), clock.now()
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        pass
    assert monotonic_seconds() - before >= 0.01
    assert clock.now() - clock_before >= timedelta(seconds=0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="time namespaces exist only on Linux")
def test_monotonic_clock_counts_the_time_of_suspension() -> None:
    """Use a time namespace in which the machine seems to have been suspended for a day."""
    code = (
        "import time; from tenuto.clock import monotonic_seconds;"
        " print(round((monotonic_seconds() - time.monotonic()) / 3600))"
    )
    command = ["unshare", "--time", "--boottime", "86400", "--fork", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"not allowed here: {done.stderr}")
    hours_here = round((monotonic_seconds() - time.monotonic()) / 3600)
    assert int(done.stdout) == hours_here + 24


@pytest.mark.parametrize(
    ("offset", "latency", "moves"),
    [
        pytest.param(0, 5, False, id="correct, slow response"),
        pytest.param(-3, 5, False, id="behind by less than the latency: plausible"),
        pytest.param(-7, 5, True, id="behind by more than the latency"),
        pytest.param(1, 5, True, id="ahead of the response"),
        pytest.param(-0.01, 0, True, id="behind, no latency"),
    ],
)
def test_slow_response_does_not_change_a_plausible_database_clock(
    offset: float, latency: float, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.clock.monotonic_seconds", lambda: 1000.0)
    monkeypatch.setattr(time, "clock_gettime", lambda _timer: 1000.0)
    clock, now = DatabaseClock(), datetime(2027, 6, 15, tzinfo=UTC)
    clock.synchronize(now + timedelta(seconds=offset))
    before = clock.now()
    reported = now - timedelta(seconds=latency)
    clock.synchronize(reported, requested_at=1000.0 - latency)
    assert clock.now() == (reported if moves else before)
