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
