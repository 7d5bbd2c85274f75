"""Prepares an app for the demo: example jobs and schedules, and a week of history in an empty database."""

from __future__ import annotations

from collections.abc import Callable

from tenuto.app import Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.demo.application import NIGHTLY, Pace, apply_demo_settings, define_demo, define_live_schedules
from tenuto.demo.example_history import DAYS, create_history, prepare_present
from tenuto.errors import Conflict


async def prepare_demo(app: Tenuto, report: Callable[[str], None]) -> None:
    """Make an app without jobs the app of the demo, with example data in its database.

    Data of an earlier start of the demo is kept. A database with anything else is refused.
    """
    app.settings = apply_demo_settings(app.settings)
    pace = Pace()
    define_demo(app, pace)
    database = await app.open()
    try:
        found = await app.schedules.list(limit=500)
        if any(each.name == NIGHTLY and each.description.startswith("Example:") for each in found):
            define_live_schedules(app, pace)
            report("continuing with the example data of the last start")
        elif found or await app.manifests.list(limit=1) or await app.tasks(limit=1) or await app.activities(limit=1):
            raise Conflict(
                "the demo needs an empty database, and this one has schedules, manifests or tasks",
                code="demo.database.not_empty",
                remedy="name another folder with --home, or another database with --database",
            )
        else:
            began_at = monotonic_seconds()
            ended_count = await create_history(app, pace, database.clock.now())
            await prepare_present(app)
            seconds = monotonic_seconds() - began_at
            report(f"created {DAYS} days of example history: {ended_count:,} attempts in {seconds:.1f} s")
    finally:
        await app.close()
    pace.is_live = True
