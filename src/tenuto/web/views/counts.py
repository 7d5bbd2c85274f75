"""Live counts beside the entries of the sidebar."""

from __future__ import annotations

import asyncio

from tenuto.app import Tenuto
from tenuto.web.navigation import Counts


async def load_counts(app: Tenuto) -> Counts:
    """Return the counts; computed once per second for all viewers."""
    overview, executions = await asyncio.gather(app.reports.overview(), app.executions.count("state:in_progress"))
    return Counts(
        executions=executions.count,
        tasks=overview.waiting_count + overview.running_count,
        dead_letters=overview.open_dead_letter_count,
    )
