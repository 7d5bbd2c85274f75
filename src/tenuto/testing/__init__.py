"""For tests of programs that use Tenuto: move time by hand, run what is due here and now, on a real database.

Nothing is faked but the clock: schedules are fired, tasks are claimed, run and finished by the code that does so in a
service. Only leases stay on the database's own clock, because they are about who holds a task at this very moment. For
databases of tests alone: beside a running service, both would take the same work.
"""

from __future__ import annotations

from tenuto.clock import ManualClock
from tenuto.testing.app_databases import on_database
from tenuto.testing.time_machine import Happened, TimeMachine, run_until_idle

__all__ = ["Happened", "ManualClock", "TimeMachine", "on_database", "run_until_idle"]
