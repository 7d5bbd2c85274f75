"""Test tools for programs that use Tenuto: a manual clock, an inline worker and databases.

Only the clock is replaced. The code of the services fires schedules and claims, runs and finishes tasks on a real
database; leases stay on the clock of the database. Use a database without running services, which would claim the same
tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenuto.app import Tenuto
from tenuto.clock import ManualClock
from tenuto.testing.time_machine import RunSummary, TimeMachine, run_until_idle

__all__ = ["ManualClock", "RunSummary", "TimeMachine", "run_until_idle", "use_database"]


@contextmanager
def use_database(app: Tenuto, url: str, *, home: Path | str | None = None) -> Iterator[Tenuto]:
    """Use another database for the duration of the block. The app must be closed at its start and its end."""
    original = app.settings
    overrides = {"database": url} if home is None else {"database": url, "home": Path(home)}
    app.settings = original.model_copy(update=overrides)
    try:
        yield app
    finally:
        app.settings = original
